"""From an operator's words for an engine to the engine: one behind HTTP, or the embedded one in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from derender.engines.base import Engine
from derender.engines.connect import connect as connect_http
from derender.engines.errors import EngineFailed
from derender.gateway.settings import EngineSpec

EMBEDDED = "embedded:"
"""Begins the address of an engine that is in this process; the path of a GGUF file follows."""


async def connect(spec: EngineSpec, *, slots: int = 8) -> Engine:
    """The engine of an address; `slots`: sequences at once of an embedded one.

    Raises `EngineFailed` where it is not there (yet), `ValueError` for what is no address.
    """
    if not spec.url.startswith(EMBEDDED):
        return await connect_http(spec.url, kind=spec.kind, api_key=spec.api_key)
    from derender.engines.llama_abi import EngineUnavailable
    from derender.engines.llama_backend import BackendOptions
    from derender.engines.llamacpp import LlamaCppEngine

    path = Path(spec.url.removeprefix(EMBEDDED))
    try:
        return await asyncio.to_thread(
            LlamaCppEngine.open, path, names=spec.models, options=BackendOptions(slots=slots)
        )
    except EngineUnavailable as error:
        raise EngineFailed(str(error), begun=False) from None
