"""A llama.cpp server (`llama-server`), asked with ids and answering with ids.

Its stream cannot be used: it leaves out every id whose bytes end inside a character, so that of an emoji only the last
id comes. Its whole answers have all ids. A stream is therefore made of several short requests, each of which goes on
where the one before ended; the server still has the sequence in its cache and computes nothing twice. What an output
must be (`structured_outputs`) cannot be cut like that, because a grammar begins with each request: it comes as one
chunk. Seen on the build inside xllamacpp 2026.10.

The ids are those that the model made, the EOS included, as with vLLM; so is sampling where nothing is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from derender.engines.base import NO_HEADERS, Capabilities, EngineLoad, EngineModel
from derender.engines.errors import EngineFailed, EngineRefused
from derender.engines.http import EngineHttp
from derender.engines.llama_completion import (
    Completion,
    body,
    constraint_fields,
    logprob,
    looks_like_json,
    planned,
    read,
    scoring_body,
)
from derender.engines.sampling import ConstraintKind, Limits, Plan, Sampling, plans_long
from derender.protocol.codec import encode
from derender.protocol.common import PromptTokensDetails, Usage
from derender.protocol.errors import ApiError, BadRequest, Unavailable
from derender.protocol.generate import (
    GenerateChoice,
    GenerateChunk,
    GenerateLogprob,
    GenerateLogprobs,
    GenerateRequest,
    GenerateResponse,
    GenerateStreamChoice,
)

COMPLETION = "/completion"

_SECONDS = 5.0
_STEP = 4  # ids of one request in a stream: at 4, asking costs under a twentieth of computing a small model on a CPU
_STEP_UNHEARD = 32  # the same where nobody listens, but ids that stop the output have to be found
_MAX_LOGPROBS = 20
_CANDIDATES = 64  # asked for an id without logprobs before all of the vocabulary is
_ANY_VOCAB = 1 << 20  # of a server that does not tell its size
_CONSTRAINTS: frozenset[ConstraintKind] = frozenset(("json_schema", "lark"))
_METRIC = re.compile(rb"^llamacpp:(\w+) ([0-9.e+]+)", re.MULTILINE)


class _Settings(msgspec.Struct):
    n_ctx: int


class _Props(msgspec.Struct):
    default_generation_settings: _Settings
    total_slots: int = 1
    eos_token: str = ""


class _Meta(msgspec.Struct):
    n_vocab: int | None = None


class _Card(msgspec.Struct):
    id: str
    meta: _Meta | None = None


class _Models(msgspec.Struct):
    data: list[_Card]


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Slot(msgspec.Struct):
    is_processing: bool = False


_props = msgspec.json.Decoder(_Props)
_models = msgspec.json.Decoder(_Models)
_tokens = msgspec.json.Decoder(_Tokens)
_slots = msgspec.json.Decoder(list[_Slot])


@dataclass(frozen=True)
class _Server:
    """What the server said of itself. `turns` lets in as many requests as it has slots: one more would take over a
    slot between two steps of another, and its cache with it."""

    limits: Limits
    eos_id: int | None
    turns: asyncio.Semaphore


@dataclass(frozen=True)
class _Piece:
    """What one step adds to the output."""

    tokens: list[int]
    logprobs: list[GenerateLogprob] | None
    finish_reason: str | None = None
    stop_reason: int | None = None
    cached: int | None = None


class LlamaServerEngine:
    """The client of one server. The verbs are those of `engines.base.Engine`."""

    kind = "llamacpp"

    def __init__(self, http: EngineHttp) -> None:
        self.http = http
        self.capabilities = Capabilities(
            structured_outputs=frozenset(("json", "json_object", "choice", "grammar")),
            max_logprobs=_MAX_LOGPROBS,
            max_n=1,
        )
        self._server: _Server | None = None
        self._running: set[_Run] = set()

    async def probe(self) -> None:
        """Asks for the context's length, the vocabulary's size, the slots and the EOS. Raises `EngineFailed`."""
        try:
            props = _props.decode(await self.http.get("/props", seconds=_SECONDS))
            cards = _models.decode(await self.http.get("/v1/models", seconds=_SECONDS)).data
            eos = await self._id_of(props.eos_token)
        except (msgspec.DecodeError, EngineRefused):
            raise EngineFailed(f"{self.http.name} does not tell what it is", begun=False) from None
        sizes = [card.meta.n_vocab for card in cards if card.meta is not None and card.meta.n_vocab]
        limits = Limits(
            names=(),
            vocab_size=sizes[0] if sizes else _ANY_VOCAB,
            max_model_len=props.default_generation_settings.n_ctx,
            max_logprobs=_MAX_LOGPROBS,
            constraints=_CONSTRAINTS,
        )
        turns = asyncio.Semaphore(max(1, props.total_slots))
        if self._server is not None and self._server.limits == limits:
            turns = self._server.turns
        self._server = _Server(limits, eos, turns)

    async def _id_of(self, token: str) -> int | None:
        if not token:
            return None
        asked = encode({"content": token, "add_special": False, "parse_special": True})
        ids = _tokens.decode(await self.http.post("/tokenize", asked)).tokens
        return ids[0] if len(ids) == 1 else None

    async def generate(self, request: GenerateRequest, *, headers: Mapping[str, str] = NO_HEADERS) -> GenerateResponse:
        run = await self._run(request, headers, heard=False)
        ids: list[int] = []
        logprobs: list[GenerateLogprob] = []
        last: _Piece | None = None
        async with contextlib.aclosing(run.pieces()) as pieces:
            async for last in pieces:
                ids += last.tokens
                logprobs += last.logprobs or ()
        if last is None:
            raise EngineFailed(f"{self.http.name} sent no answer")
        choice = GenerateChoice(
            index=0,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            token_ids=ids,
            logprobs=GenerateLogprobs(logprobs) if run.sampling.logprobs is not None else None,
        )
        return GenerateResponse(
            request_id=run.request_id,
            model=request.model,
            created=int(time.time()),
            usage=_usage(request, len(ids), run.cached),
            prompt_token_ids=request.token_ids if request.return_token_ids else None,
            choices=[choice],
        )

    async def stream(
        self, request: GenerateRequest, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> AsyncGenerator[GenerateChunk, None]:
        run = await self._run(request, headers, heard=True)
        pieces = run.pieces()
        first = await anext(pieces)  # a refusal of the server comes with this one
        return self._chunks(request, run, first, pieces)

    async def _chunks(
        self, request: GenerateRequest, run: _Run, first: _Piece, pieces: AsyncGenerator[_Piece, None]
    ) -> AsyncGenerator[GenerateChunk, None]:
        prompt = request.token_ids if request.return_token_ids else None
        count = 0
        piece: _Piece | None = first
        async with contextlib.aclosing(pieces):
            while piece is not None:
                count += len(piece.tokens)
                choice = GenerateStreamChoice(
                    index=0,
                    finish_reason=piece.finish_reason,
                    stop_reason=piece.stop_reason,
                    token_ids=piece.tokens,
                    logprobs=None if piece.logprobs is None else GenerateLogprobs(piece.logprobs),
                )
                yield GenerateChunk(request_id=run.request_id, prompt_token_ids=prompt, choices=[choice])
                prompt = None
                piece = await anext(pieces, None)
        yield GenerateChunk(request_id=run.request_id, usage=_usage(request, count, run.cached), choices=[])

    async def _run(self, request: GenerateRequest, headers: Mapping[str, str], *, heard: bool) -> _Run:
        if self._server is None:
            await self.probe()
        server = self._server
        assert server is not None
        make = functools.partial(planned, request, server.limits, random_seed=secrets.randbits(62))
        plan = await asyncio.to_thread(make) if plans_long(request) else make()
        return _Run(self, server, request, plan, headers, heard=heard)

    async def abort(self, request_ids: Iterable[str]) -> None:
        """Ends requests of this client: their connections are closed, which frees their slots. The server has no ids
        for requests, so that those of other clients are not known to it."""
        ids = frozenset(request_ids)
        for run in [run for run in self._running if run.request_id in ids]:
            run.abort()

    async def health(self) -> None:
        try:
            await self.http.get("/health", seconds=_SECONDS)
        except ApiError as error:
            raise Unavailable(error.message) from error

    async def load(self) -> EngineLoad:
        """From `/metrics`, or `/slots`, or what this client has at work: both may be off on a server."""
        with contextlib.suppress(ApiError):
            told = {name: float(value) for name, value in _METRIC.findall(await self._get("/metrics"))}
            return EngineLoad(
                running=int(told.get(b"requests_processing", 0)),
                waiting=int(told.get(b"requests_deferred", 0)),
                prompt_tokens=int(told.get(b"prompt_tokens_total", 0)),
                generated_tokens=int(told.get(b"tokens_predicted_total", 0)),
            )
        with contextlib.suppress(ApiError, msgspec.DecodeError):
            return EngineLoad(running=sum(slot.is_processing for slot in _slots.decode(await self._get("/slots"))))
        await self._get("/health")
        return EngineLoad(running=len(self._running))

    async def models(self) -> list[EngineModel]:
        try:
            cards = _models.decode(await self._get("/v1/models")).data
            length = _props.decode(await self._get("/props")).default_generation_settings.n_ctx
        except msgspec.DecodeError:
            raise EngineFailed(f"{self.http.name} does not tell its models") from None
        return [EngineModel(name=card.id, max_model_len=length) for card in cards]

    async def _get(self, path: str) -> bytes:
        return await self.http.get(path, seconds=_SECONDS)

    async def aclose(self) -> None:
        for run in list(self._running):
            run.abort()
        await self.http.aclose()


class _Run:
    """One request on its way: as many steps as it takes."""

    def __init__(
        self,
        engine: LlamaServerEngine,
        server: _Server,
        request: GenerateRequest,
        plan: Plan,
        headers: Mapping[str, str],
        *,
        heard: bool,
    ) -> None:
        self.request_id = request.request_id or uuid.uuid4().hex
        self.sampling: Sampling = plan.choices[0]
        self.cached: int | None = None
        self._engine = engine
        self._server = server
        self._prompt = list(request.token_ids)
        self._headers = headers
        self._constraint: Mapping[str, Any] = constraint_fields(request)
        params = request.sampling_params
        # A choice that has a seed must come out the same whole and streamed, and each step starts the generator.
        seeded = not self.sampling.greedy and params.seed not in (UNSET, None, -1)
        if heard or seeded:
            asked = params.stream_interval
            self._step = plan.stream_interval if asked not in (UNSET, None) else _STEP
        else:
            self._step = _STEP_UNHEARD if self.sampling.stop_token_ids else self.sampling.max_tokens
        self._waiting: asyncio.Task[bytes] | None = None
        self._aborted = False

    async def pieces(self) -> AsyncGenerator[_Piece, None]:
        """The output, step by step; the last one says why it ended."""
        running = self._engine._running
        running.add(self)
        done = 0
        try:
            async with self._server.turns:
                ended = False
                while not ended:
                    piece = await self._piece(done)
                    done += len(piece.tokens)
                    ended = piece.finish_reason is not None
                    yield piece
        finally:
            running.discard(self)

    def abort(self) -> None:
        self._aborted = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def _piece(self, done: int) -> _Piece:
        sampling = self.sampling
        hold_end = done < sampling.min_tokens
        size = self._size(done)
        asked = body(
            self._prompt,
            sampling,
            tokens=size,
            position=done,
            window=self._server.limits.max_model_len,
            hold_end=hold_end,
            constraint=self._constraint,
        )
        answer = await self._ask(asked)
        if answer is None:
            return _Piece([], None if sampling.logprobs is None else [], finish_reason="abort")
        if "json_schema" in self._constraint and not looks_like_json(answer):
            raise BadRequest("the engine cannot hold its output to this schema", param="structured_outputs.json")
        if self.cached is None:
            self.cached = answer.cached
        tokens, finish_reason, stop_reason = self._end(answer, done, size)
        logprobs = None
        if sampling.logprobs is not None:
            logprobs = await self._logprobs(answer, tokens, sampling.logprobs)
        self._prompt += tokens
        return _Piece(tokens, logprobs, finish_reason, stop_reason)

    def _size(self, done: int) -> int:
        """How many ids the next step asks for. It depends on nothing but the request: a seed gives the same choice."""
        sampling = self.sampling
        left = sampling.max_tokens - done
        if self._constraint:
            return left
        size = min(left, self._step, max(1, done)) if self._step <= _STEP_UNHEARD else min(left, self._step)
        return min(size, sampling.min_tokens - done) if done < sampling.min_tokens else size

    async def _ask(self, asked: bytes) -> Completion | None:
        """The answer; None where the request was aborted."""
        http = self._engine.http
        if self._aborted:
            return None
        self._waiting = asyncio.ensure_future(http.post(COMPLETION, asked, headers=self._headers))
        try:
            return read(await self._waiting, name=http.name)
        except asyncio.CancelledError:
            if self._aborted and self._waiting.cancelled():
                return None
            self._waiting.cancel()
            raise
        finally:
            self._waiting = None

    def _end(self, answer: Completion, done: int, size: int) -> tuple[list[int], str | None, int | None]:
        """The ids up to where the output ends, and why it does. On the EOS there is no stop reason, as in vLLM."""
        sampling = self.sampling
        tokens = answer.tokens
        eos = answer.stop_type == "eos"
        for place, token in enumerate(tokens, 1):
            at_eos = eos and place == len(tokens) and not sampling.ignore_eos
            if at_eos or (token in sampling.stop_token_ids and done + place > sampling.min_tokens):
                return tokens[:place], "stop", None if at_eos and token == self._eos(token) else token
        if done + len(tokens) >= sampling.max_tokens or answer.truncated:
            return tokens, "length", None
        if eos and tokens:
            return tokens, None, None  # it is ignored: the output goes on
        if len(tokens) < size:
            if answer.stop_type != "limit":
                raise EngineFailed(f"{self._engine.http.name} ended its answer before the end")
            return tokens, "length", None
        return tokens, None, None

    def _eos(self, token: int) -> int:
        return token if self._server.eos_id is None else self._server.eos_id

    async def _logprobs(self, answer: Completion, tokens: Sequence[int], k: int) -> list[GenerateLogprob]:
        entries: list[GenerateLogprob] = []
        for place, token in enumerate(tokens):
            entry = logprob(token, answer.positions[place], k=k) if answer.whole else None
            if entry is None:
                entry = await self._scored([*self._prompt, *tokens[:place]], token, k)
            entries.append(entry)
        return entries

    async def _scored(self, before: Sequence[int], token: int, k: int) -> GenerateLogprob:
        """The entry of an id for which the server told none. Which one of an answer's ids that is cannot always be
        seen, so that all of that answer are looked up."""
        for candidates in (max(k, _CANDIDATES), self._server.limits.vocab_size):
            answer = await self._ask(scoring_body(before, candidates=candidates))
            if answer is None:
                break
            if answer.positions and (entry := logprob(token, answer.positions[0], k=k)) is not None:
                return entry
        raise EngineFailed(f"{self._engine.http.name} does not tell the logprob of a token")


def _usage(request: GenerateRequest, completion: int, cached: int | None) -> Usage:
    prompt = len(request.token_ids)
    details = None if cached is None else PromptTokensDetails(cached_tokens=min(cached, prompt))
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=details,
    )
