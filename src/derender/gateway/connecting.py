"""From an operator's words for an engine to the engine: one behind HTTP, or the embedded one in this process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from derender.engines.base import Engine
from derender.engines.connect import connect
from derender.gateway.settings import EngineSpec
from derender.model import ModelLoadError

EMBEDDED = "embedded:"
"""Begins the address of an engine that is in this process; the path of a GGUF file follows."""


class Connector:
    """Makes the engines of specs. Embedded ones are loaded at once, which takes a while: `slots` sequences each.

    Raises `ModelLoadError` for one that cannot be.
    """

    def __init__(self, specs: Iterable[EngineSpec] = (), *, slots: int = 8) -> None:
        self._embedded = {one: _opened(one, slots) for one in specs if one.url.startswith(EMBEDDED)}

    async def __call__(self, spec: EngineSpec) -> Engine:
        """The engine of a spec. Raises `EngineFailed` where it is not there (yet), `ValueError` for what is none."""
        engine = self._embedded.get(spec)
        return engine if engine is not None else await connect(spec.url, kind=spec.kind, api_key=spec.api_key)


def _opened(spec: EngineSpec, slots: int) -> Engine:
    from derender.engines.llama_abi import EngineUnavailable
    from derender.engines.llama_backend import BackendOptions
    from derender.engines.llamacpp import LlamaCppEngine

    path = Path(spec.url.removeprefix(EMBEDDED))
    try:
        return LlamaCppEngine.open(path, names=spec.models, options=BackendOptions(slots=slots))
    except EngineUnavailable as error:
        raise ModelLoadError(str(error)) from None
