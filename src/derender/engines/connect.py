"""From the address of an engine behind HTTP to the client that speaks its protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from derender.engines.base import Engine
from derender.engines.errors import EngineFailed, EngineRefused
from derender.engines.http import EngineHttp
from derender.engines.llama_server import LlamaServerEngine
from derender.engines.sglang import MODEL_INFO, SglangEngine
from derender.engines.vllm import GENERATE, VllmEngine

Kind = Literal["auto", "vllm", "sglang", "llamacpp"]

_SECONDS = 5.0
_CLIENTS: dict[str, Callable[[EngineHttp], Engine]] = {
    "vllm": VllmEngine,
    "sglang": SglangEngine,
    "llamacpp": LlamaServerEngine,
}


async def connect(url: str, *, name: str = "the engine", kind: Kind = "auto", api_key: str | None = None) -> Engine:
    """The client of the engine at `url`. With `kind` "auto" the engine is asked for routes that only its kind has;
    with a kind, nothing is sent yet.

    Raises `EngineFailed` where it cannot be told (yet) what it is, `ValueError` for what is no address or kind.
    """
    if kind != "auto" and kind not in _CLIENTS:
        raise ValueError(f"{kind!r} is no kind of engine: auto, {', '.join(_CLIENTS)}")
    http = EngineHttp(url, name=name, api_key=api_key)
    try:
        return _CLIENTS[await _kind(http) if kind == "auto" else kind](http)
    except BaseException:
        await http.aclose()
        raise


async def _kind(http: EngineHttp) -> str:
    """Which engine it is. vLLM first: its route is the token protocol's own, whoever serves it."""
    if await _speaks_tokens(http):
        return "vllm"
    for path in MODEL_INFO:
        if await _has(http, path):
            return "sglang"
    if await _has(http, "/props"):
        return "llamacpp"
    raise EngineFailed(f"{http.name} answers as no engine that is known", begun=False)


async def _speaks_tokens(http: EngineHttp) -> bool:
    """Whether there is a route that generates from ids: it refuses a request without any."""
    try:
        await http.post(GENERATE, b"{}")
    except EngineRefused:
        return True
    except EngineFailed as error:
        if not _absent(error):
            raise
        return False
    return True


async def _has(http: EngineHttp, path: str) -> bool:
    try:
        await http.get(path, seconds=_SECONDS)
    except EngineRefused:
        return False
    except EngineFailed as error:
        if not _absent(error):
            raise
        return False
    return True


def _absent(error: EngineFailed) -> bool:
    """Whether the server answered that it has no such route."""
    return error.answered in (404, 405)
