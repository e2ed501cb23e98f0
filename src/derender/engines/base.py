"""What every engine can do: the verbs that the generate server and the gateway call, whatever stands behind them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from derender.engines.owned import Owned
from derender.protocol.generate import GenerateChunk, GenerateRequest, GenerateResponse


@dataclass(frozen=True)
class Capabilities:
    """What an engine does with a request beyond ids in and ids out.

    `structured_outputs` names the kinds of constraint that it applies (`json`, `json_object`, `regex`, `choice`,
    `grammar`, `structural_tag`); `max_n` is the most choices of one request, None where the engine sets no bound.
    """

    stop_strings: bool = False
    prompt_logprobs: bool = False
    bad_words: bool = False
    multimodal: bool = False
    kv_transfer: bool = False
    text_output: bool = False
    structured_outputs: frozenset[str] = field(default_factory=frozenset)
    max_logprobs: int = 0
    max_n: int | None = None


@dataclass(frozen=True)
class EngineLoad:
    """Sequences at work and in the queue, and the ids taken in and given out since the start."""

    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True)
class EngineModel:
    """One name that an engine serves. `max_model_len` is in tokens, prompt and output together."""

    name: str
    max_model_len: int | None = None
    root: str | None = None


NO_HEADERS: Mapping[str, str] = MappingProxyType({})


async def batches(
    engine: Engine, request: GenerateRequest, *, headers: Mapping[str, str] = NO_HEADERS
) -> AsyncGenerator[list[GenerateChunk], None]:
    """The answer as it comes (`Engine.stream`), chunks that came together in one list where the engine tells it."""
    own = getattr(engine, "batches", None)
    if own is not None:
        several: AsyncGenerator[list[GenerateChunk], None] = await own(request, headers=headers)
        return several
    chunks = await engine.stream(request, headers=headers)
    return Owned(_alone(chunks), end=chunks.aclose)


async def _alone(chunks: AsyncGenerator[GenerateChunk, None]) -> AsyncGenerator[list[GenerateChunk], None]:
    try:
        async for chunk in chunks:
            yield [chunk]
    finally:
        await chunks.aclose()


class Engine(Protocol):
    """An engine that takes and gives token ids.

    `generate` and `stream` raise an `ApiError` for what the engine refuses: `stream` when it is awaited, so that a
    refusal still has its HTTP status, and through the iterator once it has begun; `EngineFailed` where the engine
    cannot be reached or breaks off. Cancelling `generate`, or closing the iterator, ends the work at the engine.
    `headers` go along with the request to an engine behind HTTP: trace context, and what else is told on.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    async def probe(self) -> None:
        """Finds out what the engine can do; `capabilities` tell it from then on. Raises `EngineFailed`."""

    async def generate(self, request: GenerateRequest, /, *, headers: Mapping[str, str] = ...) -> GenerateResponse:
        """The whole answer."""

    async def stream(
        self, request: GenerateRequest, /, *, headers: Mapping[str, str] = ...
    ) -> AsyncGenerator[GenerateChunk, None]:
        """The answer as it comes: one choice in a chunk, choices interleaved, usage last where it was asked for."""

    async def abort(self, request_ids: Iterable[str], /) -> None:
        """Ends requests: each open choice gets finish_reason `abort`. Unknown ids are passed over."""

    async def health(self) -> None:
        """Returns where the engine can work, raises `Unavailable` where it cannot."""

    async def load(self) -> EngineLoad:
        """How much there is to do."""

    async def models(self) -> list[EngineModel]:
        """The names served."""

    async def aclose(self) -> None:
        """Ends all work and frees what the engine holds."""
