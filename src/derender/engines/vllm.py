"""A vLLM server without a tokenizer (`vllm serve --tokens-only`), and what else speaks its token protocol.

Source of the routes and fields: vllm#43606, vllm#57574; seen on 0.32.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace as replace_fields

from derender.engines.base import NO_HEADERS, Capabilities, EngineLoad, EngineModel
from derender.engines.errors import EngineFailed, EngineRefused, EngineTimeout
from derender.engines.http import EngineHttp, failure_of
from derender.engines.owned import Owned, one_by_one
from derender.engines.served import served_models
from derender.protocol.codec import Decoder, encode
from derender.protocol.common import StreamOptions, StructuredOutputs
from derender.protocol.errors import ApiError, InvalidBody, Unavailable
from derender.protocol.generate import (
    AbortRequest,
    GenerateChunk,
    GenerateRequest,
    GenerateResponse,
    SamplingParams,
)
from derender.protocol.records import DONE

logger = logging.getLogger("derender.engines")

GENERATE = "/inference/v1/generate"
ABORT = ("/inference/v1/abort_requests", "/abort_requests")  # where 0.32 has it, and where older servers do
PREFIX = "generate-tokens-"
"""What the server puts before a request's id."""

_HEALTH_SECONDS = 5.0
_ABORT_SECONDS = 2.0
_PROBE_SECONDS = 60.0  # an engine that has just started compiles its kernels for the first request
_INLINE_BYTES = 1 << 18  # what is larger is read outside of the event loop
_STREAMED = StreamOptions(include_usage=True)

_response = Decoder(GenerateResponse, lenient_numbers=True)
_chunk = Decoder(GenerateChunk, lenient_numbers=True)


class _Failure(msgspec.Struct):
    error: Any


class _Load(msgspec.Struct):
    server_load: int = 0


_failure = msgspec.json.Decoder(_Failure)
_load = msgspec.json.Decoder(_Load)

_PROBES: Mapping[str, SamplingParams] = {
    "stop_strings": SamplingParams(max_tokens=1, stop=["\n"]),
    "prompt_logprobs": SamplingParams(max_tokens=1, prompt_logprobs=0),
    "structured_outputs": SamplingParams(max_tokens=1, structured_outputs=StructuredOutputs(regex="a")),
}
"""What is tried once to know whether the engine does it; each costs one token."""

_CONSTRAINTS = frozenset(("json", "json_object", "regex", "choice", "grammar", "structural_tag"))


class VllmEngine:
    """The client of one server. The verbs are those of `engines.base.Engine`."""

    kind = "vllm"

    def __init__(self, http: EngineHttp) -> None:
        self.http = http
        self.capabilities = Capabilities(
            prompt_logprobs=True, multimodal=True, kv_transfer=True, structured_outputs=_CONSTRAINTS, max_logprobs=-1
        )
        self._abort_paths = list(ABORT)
        self._to_abort: list[str] = []
        self._aborting = False

    async def probe(self) -> None:
        """Tries what only some servers do, and sets `capabilities` by it. Raises `EngineFailed` where it cannot be
        reached."""
        self._abort_paths = list(ABORT)  # it may be another server than before
        names = list(_PROBES)
        able = await asyncio.gather(*(self._takes(_PROBES[name]) for name in names))
        found = dict(zip(names, able, strict=True))
        self.capabilities = replace(
            self.capabilities,
            stop_strings=found["stop_strings"],
            prompt_logprobs=found["prompt_logprobs"],
            structured_outputs=_CONSTRAINTS if found["structured_outputs"] else frozenset(),
        )

    async def _takes(self, params: SamplingParams) -> bool:
        request = GenerateRequest(token_ids=[0, 0], sampling_params=params)
        try:
            await asyncio.wait_for(self.http.post(GENERATE, encode(request)), _PROBE_SECONDS)
        except EngineRefused:
            return False
        except asyncio.TimeoutError:
            raise EngineTimeout(f"{self.http.name} does not answer") from None
        return True

    async def generate(self, request: GenerateRequest, *, headers: Mapping[str, str] = NO_HEADERS) -> GenerateResponse:
        body = _body(request, stream=False)
        try:
            answer = await self.http.post(GENERATE, body, headers=headers)
        except asyncio.CancelledError:
            self._abort_soon(PREFIX + request.request_id)
            raise
        try:
            return _response(answer) if len(answer) <= _INLINE_BYTES else await asyncio.to_thread(_response, answer)
        except InvalidBody as error:
            raise self._garbage(error) from None

    async def stream(
        self, request: GenerateRequest, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> AsyncGenerator[GenerateChunk, None]:
        return one_by_one(await self.batches(request, headers=headers))

    async def batches(
        self, request: GenerateRequest, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> AsyncGenerator[list[GenerateChunk], None]:
        """As `stream`, with the chunks that came together in one list."""
        body = _body(request, stream=True)
        try:
            records = await self.http.events(GENERATE, body, headers=headers)
        except asyncio.CancelledError:
            self._abort_soon(PREFIX + request.request_id)
            raise

        async def end() -> None:
            await records.aclose()
            self._abort_soon(PREFIX + request.request_id)

        return Owned(self._chunks(request, records), end=end)

    async def _chunks(
        self, request: GenerateRequest, several: AsyncGenerator[list[bytes], None]
    ) -> AsyncGenerator[list[GenerateChunk], None]:
        name = ""
        ended = False
        failed: ApiError | None = None
        try:
            async for records in several:
                chunks: list[GenerateChunk] = []
                for record in records:
                    if record == DONE:
                        ended = True
                        break
                    try:
                        large = len(record) > _INLINE_BYTES
                        chunk = await asyncio.to_thread(_chunk, record) if large else _chunk(record)
                    except InvalidBody as error:
                        # There is nothing to abort where the engine says that it failed.
                        ended = (told := _told(record)) is not None
                        failed = failure_of(told, name=self.http.name) if ended else self._garbage(error)
                        break
                    name = name or chunk.request_id
                    chunks.append(chunk)
                if chunks:
                    yield chunks
                if failed is not None:
                    raise failed
                if ended:
                    return
            raise EngineFailed(f"{self.http.name} ended its stream before the end")
        finally:
            try:
                await several.aclose()
            finally:
                if not ended:
                    self._abort_soon(name or PREFIX + request.request_id)

    def _garbage(self, error: ApiError) -> EngineFailed:
        logger.warning("%s (%s) sent what is no answer: %s", self.http.name, self.http.url, error.message)
        return EngineFailed(f"{self.http.name} sent what is no answer")

    async def abort(self, request_ids: Iterable[str]) -> None:
        """Ends requests by the ids that the engine's chunks have, or by those that it was asked with."""
        body = encode(AbortRequest([one if one.startswith(PREFIX) else PREFIX + one for one in request_ids]))
        for path in tuple(self._abort_paths):
            try:
                await self.http.post(path, body)
                return
            except EngineFailed as error:
                if error.answered not in (404, 405):
                    raise
                if path in self._abort_paths:  # it has no such route
                    self._abort_paths.remove(path)

    def _abort_soon(self, request_id: str) -> None:
        """Aborts one request; with it those that end while the engine is told of the ones before."""
        self._to_abort.append(request_id)
        if not self._aborting:
            self._aborting = True
            self.http.soon(self._abort_all())

    async def _abort_all(self) -> None:
        try:
            while ids := self._to_abort:
                self._to_abort = []
                try:
                    await asyncio.wait_for(self.abort(ids), _ABORT_SECONDS)
                except (ApiError, asyncio.TimeoutError) as error:
                    logger.info("%s (%s) could not be told to abort: %s", self.http.name, self.http.url, error)
        finally:
            self._aborting = False

    async def health(self) -> None:
        try:
            await self.http.get("/health", seconds=_HEALTH_SECONDS)
        except ApiError as error:
            raise Unavailable(error.message) from error

    async def load(self) -> EngineLoad:
        try:
            told = _load.decode(await self.http.get("/load", seconds=_HEALTH_SECONDS))
        except (EngineRefused, msgspec.DecodeError):
            return EngineLoad()
        return EngineLoad(running=told.server_load)

    async def models(self) -> list[EngineModel]:
        return await served_models(self.http, seconds=_HEALTH_SECONDS)

    async def aclose(self) -> None:
        await self.http.aclose()


_UNSENT = {
    name: UNSET if name not in ("token_offsets",) else None
    for name in ("token_offsets", "parse_context", "prompt_text", "message_spans", "loss_mask", "block_hashes")
}


def _body(request: GenerateRequest, *, stream: bool) -> bytes:
    """The request as its body: without what is only for whoever renders."""
    return encode(
        replace_fields(
            request, stream=stream, stream_options=_STREAMED if stream else None, content_parts=None, **_UNSENT
        )
    )


def _told(record: bytes) -> Any:
    """What an error event tells; None for what is none."""
    try:
        return _failure.decode(record).error
    except (msgspec.DecodeError, RecursionError):
        return None
