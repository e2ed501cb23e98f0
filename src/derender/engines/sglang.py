"""An SGLang server, asked with ids and answering with ids.

It may have its tokenizer or not (`--skip-tokenizer-init`): newer ones give `output_ids` in both cases, older ones only
without. Constraints and `min_tokens` need the tokenizer. Source of the routes: SGLang's `http_server.py` and its page
"Native APIs".

Choices are asked for one by one (`max_n` is 1): for `n` over 1 SGLang gives each choice an id of its own making, under
which it could not be told to stop.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from derender.engines.base import NO_HEADERS, Capabilities, EngineLoad, EngineModel
from derender.engines.errors import EngineFailed, EngineRefused
from derender.engines.http import EngineHttp, failure_of
from derender.engines.owned import Owned, one_by_one
from derender.engines.served import served_models
from derender.engines.sglang_answer import Answer, Output, decode, prompt_logprobs
from derender.engines.sglang_body import body
from derender.protocol.codec import encode
from derender.protocol.errors import MAX_MESSAGE, ApiError, BadRequest, Unavailable
from derender.protocol.generate import (
    GenerateChoice,
    GenerateChunk,
    GenerateRequest,
    GenerateResponse,
)
from derender.protocol.records import DONE

logger = logging.getLogger("derender.engines")

GENERATE = "/generate"
ABORT = "/abort_request"
MODEL_INFO = ("/get_model_info", "/model_info")  # as older and as newer servers have it
SERVER_INFO = ("/get_server_info", "/server_info")

_SECONDS = 5.0
_ABORT_SECONDS = 2.0
_CONSTRAINTS = frozenset(("json", "json_object", "regex", "choice", "grammar", "structural_tag"))


class _Info(msgspec.Struct):
    """What a server tells of how it was started."""

    skip_tokenizer_init: bool = False
    grammar_backend: str | None = None
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False


class _RankLoad(msgspec.Struct):
    num_reqs: int = 0
    num_waiting_reqs: int = 0


_info = msgspec.json.Decoder(_Info)
_load = msgspec.json.Decoder(list[_RankLoad])


class SglangEngine:
    """The client of one server. The verbs are those of `engines.base.Engine`."""

    kind = "sglang"

    def __init__(self, http: EngineHttp) -> None:
        self.http = http
        self.capabilities = Capabilities(
            prompt_logprobs=True, kv_transfer=True, structured_outputs=_CONSTRAINTS, max_logprobs=-1, max_n=1
        )
        self._priority: int | None = None

    async def probe(self) -> None:
        """Asks how the server was started, and sets `capabilities` by it. Raises `EngineFailed`.

        A server that keeps that to itself is taken to do all that SGLang does.
        """
        await self._first_of(MODEL_INFO)
        try:
            info = _info.decode(await self._first_of(SERVER_INFO))
        except (EngineFailed, EngineRefused, msgspec.DecodeError) as error:
            logger.info("%s (%s) does not tell how it was started: %s", self.http.name, self.http.url, error)
            return
        constrains = not info.skip_tokenizer_init and info.grammar_backend != "none"
        self.capabilities = replace(
            self.capabilities, structured_outputs=_CONSTRAINTS if constrains else frozenset()
        )  # fmt: skip
        # vLLM serves lower numbers first; SGLang higher ones, unless it was told otherwise.
        sign = 1 if info.schedule_low_priority_values_first else -1
        self._priority = sign if info.enable_priority_scheduling else None

    async def _first_of(self, paths: Iterable[str]) -> bytes:
        """The answer of the first of these routes that the server has."""
        failure: EngineFailed | None = None
        for path in paths:
            try:
                return await self.http.get(path, seconds=_SECONDS)
            except EngineFailed as error:
                if error.answered not in (404, 405):
                    raise
                failure = error
        raise failure or EngineFailed(f"{self.http.name} has none of {', '.join(paths)}")

    async def generate(self, request: GenerateRequest, *, headers: Mapping[str, str] = NO_HEADERS) -> GenerateResponse:
        rid, asked, output = self._asked(request, stream=False)
        try:
            raw = await self.http.post(GENERATE, asked, headers=headers)
        except asyncio.CancelledError:
            self._abort_soon(rid)
            raise
        answer = self._read(raw)
        choice = output.push(answer)
        if choice is None or not output.ended or answer.meta_info is None:
            raise EngineFailed(f"{self.http.name} ended its answer before the end")
        wanted = request.sampling_params.prompt_logprobs
        prompt = None
        if wanted is not UNSET and wanted is not None and choice.finish_reason != "abort":
            prompt = prompt_logprobs(answer.meta_info, k=wanted, name=self.http.name)
        return GenerateResponse(
            request_id=request.request_id or rid,
            model=request.model,
            created=int(time.time()),
            usage=output.usage,
            prompt_logprobs=prompt,
            prompt_token_ids=request.token_ids if request.return_token_ids else None,
            choices=[
                GenerateChoice(
                    index=0,
                    finish_reason=choice.finish_reason,
                    stop_reason=choice.stop_reason,
                    token_ids=choice.token_ids,
                    logprobs=choice.logprobs,
                )
            ],
        )

    async def stream(
        self, request: GenerateRequest, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> AsyncGenerator[GenerateChunk, None]:
        rid, asked, output = self._asked(request, stream=True)
        try:
            records = one_by_one(await self.http.events(GENERATE, asked, headers=headers))
            # The head comes at once; whether the request is refused, its first event says.
            first = await anext(records, DONE)
        except asyncio.CancelledError:
            self._abort_soon(rid)
            raise
        if first == DONE:
            await records.aclose()
            raise EngineFailed(f"{self.http.name} ended its stream before the end")
        try:
            answer = self._read(first, begun=False)
            output_first = output.push(answer)
        except ApiError:
            await records.aclose()
            raise
        chunk = GenerateChunk(
            request_id=request.request_id or rid,
            prompt_token_ids=request.token_ids if request.return_token_ids else None,
            choices=[] if output_first is None else [output_first],
        )

        async def end() -> None:
            await records.aclose()
            if not output.ended:
                self._abort_soon(rid)

        return Owned(self._chunks(rid, chunk, output, records), end=end)

    async def _chunks(
        self, rid: str, chunk: GenerateChunk, output: Output, records: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[GenerateChunk, None]:
        name = chunk.request_id
        over = False
        try:
            if chunk.choices or chunk.prompt_token_ids:
                yield chunk
            async for record in records:
                if record == DONE:
                    break
                over = _is_error(record)  # there is nothing to abort where the engine says that it failed
                if (choice := output.push(self._read(record))) is not None:
                    yield GenerateChunk(request_id=name, choices=[choice])
            if not output.ended:
                raise EngineFailed(f"{self.http.name} ended its stream before the end")
            over = True
            yield GenerateChunk(request_id=name, usage=output.usage, choices=[])
        finally:
            try:
                await records.aclose()
            finally:
                if not (over or output.ended):
                    self._abort_soon(rid)

    def _asked(self, request: GenerateRequest, *, stream: bool) -> tuple[str, bytes, Output]:
        """The id under which the engine knows the request, the body, and what reads the answer."""
        rid = _rid(request.request_id or uuid.uuid4().hex)
        constraint = request.sampling_params.structured_outputs
        if constraint and not self.capabilities.structured_outputs:
            raise BadRequest("structured_outputs is not supported by this engine", param="structured_outputs")
        asked = body(request, stream=stream, rid=rid, priority=self._priority)
        params = request.sampling_params
        logprobs = None if params.logprobs is UNSET else params.logprobs
        stops = params.stop_token_ids or () if params.stop_token_ids is not UNSET else ()
        return rid, asked, Output(name=self.http.name, logprobs=logprobs, stops=stops)

    def _read(self, raw: bytes, *, begun: bool = True) -> Answer:
        """An answer. Raises what an error in its place means."""
        try:
            answer = decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            logger.warning("%s (%s) sent what is no answer: %s", self.http.name, self.http.url, error)
            raise EngineFailed(f"{self.http.name} sent what is no answer") from None
        if answer.error is not None:
            raise self._failure(answer.error, begun=begun)
        return answer

    def _failure(self, error: Any, *, begun: bool) -> ApiError:
        """What an error event means. Without a code, and before anything came, it is the refusal that has status 400
        where no stream is asked for."""
        told = error if isinstance(error, dict) else {"message": error}
        message = told.get("message")
        if not begun and told.get("code") is None and isinstance(message, str):
            return EngineRefused(message[:MAX_MESSAGE], status=400)
        return failure_of(told, name=self.http.name)

    async def abort(self, request_ids: Iterable[str]) -> None:
        """Ends requests by the ids that they were asked with."""
        for one in request_ids:
            await self._abort(_rid(one))

    async def _abort(self, rid: str) -> None:
        await self.http.post(ABORT, encode({"rid": rid}))

    def _abort_soon(self, rid: str) -> None:
        async def work() -> None:
            try:
                await asyncio.wait_for(self._abort(rid), _ABORT_SECONDS)
            except (ApiError, asyncio.TimeoutError) as error:
                logger.info("%s (%s) could not be told to abort: %s", self.http.name, self.http.url, error)

        self.http.soon(work())

    async def health(self) -> None:
        try:
            await self.http.get("/health", seconds=_SECONDS)
        except ApiError as error:
            raise Unavailable(error.message) from error

    async def load(self) -> EngineLoad:
        """The requests of all data-parallel ranks; nothing where the server does not tell."""
        try:
            ranks = _load.decode(await self.http.get("/get_load", seconds=_SECONDS))
        except (EngineRefused, msgspec.DecodeError):
            return EngineLoad()
        waiting = sum(rank.num_waiting_reqs for rank in ranks)
        return EngineLoad(running=max(0, sum(rank.num_reqs for rank in ranks) - waiting), waiting=waiting)

    async def models(self) -> list[EngineModel]:
        return await served_models(self.http, seconds=_SECONDS)

    async def aclose(self) -> None:
        await self.http.aclose()


def _rid(request_id: str) -> str:
    """SGLang aborts every request whose id begins with the one that it is given: this one begins no other's."""
    return quote(request_id, safe="") + "/"


def _is_error(record: bytes) -> bool:
    return record.startswith(b'{"error"')
