"""How tests ask the client of a llama.cpp server that has a stand-in behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from tests.engines.llama_stand_in import LlamaStandIn
from tests.engines.sglang_stand_in import serving

from derender.engines.http import EngineHttp
from derender.engines.llama_server import LlamaServerEngine
from derender.protocol.generate import GenerateChunk, GenerateRequest

PROMPT = [5, 6, 7]


def request(*, request_id: str = "r", outside: dict[str, Any] | None = None, **params: Any) -> GenerateRequest:
    told = {"token_ids": PROMPT, "request_id": request_id, "sampling_params": params, **(outside or {})}
    return msgspec.convert(told, GenerateRequest)


def run(server: LlamaStandIn, act: Callable[[LlamaServerEngine], Awaitable[Any]]) -> Any:
    async def inside() -> Any:
        async with serving(server.app()) as url:
            engine = LlamaServerEngine(EngineHttp(url))
            try:
                return await asyncio.wait_for(act(engine), 10)
            finally:
                await engine.aclose()

    return asyncio.run(inside())


def generated(server: LlamaStandIn, asked: GenerateRequest) -> Any:
    return run(server, lambda engine: engine.generate(asked))


def streamed(server: LlamaStandIn, asked: GenerateRequest) -> list[GenerateChunk]:
    async def act(engine: LlamaServerEngine) -> list[GenerateChunk]:
        return [chunk async for chunk in await engine.stream(asked)]

    chunks: list[GenerateChunk] = run(server, act)
    return chunks
