"""One request to a llama.cpp server as the requests that it is made of: see `engines.llama_server` for why."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from derender.engines.errors import EngineFailed
from derender.engines.http import EngineHttp
from derender.engines.llama_completion import (
    Completion,
    body,
    constraint_fields,
    logprob,
    looks_like_json,
    read,
    scoring_body,
)
from derender.engines.sampling import Limits, Plan, Sampling
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateLogprob, GenerateRequest

COMPLETION = "/completion"

_STEP = 4  # ids of one request in a stream: at 4, asking costs under a twentieth of computing a small model on a CPU
_STEP_UNHEARD = 32  # the same of a whole answer: a request that is closed goes on for up to five seconds at the server
_CANDIDATES = 64  # asked for an id without logprobs before all of the vocabulary is


class _Aborted(Exception):
    """Somebody asked for this request's end."""


@dataclass(frozen=True)
class Server:
    """What the server said of itself. `turns` lets in as many requests as it has slots: one more would take over a
    slot between two steps of another, and its cache with it."""

    limits: Limits
    eos_id: int | None
    turns: asyncio.Semaphore


@dataclass(frozen=True)
class Piece:
    """What one step adds to the output."""

    tokens: list[int]
    logprobs: list[GenerateLogprob] | None
    finish_reason: str | None = None
    stop_reason: int | None = None
    cached: int | None = None


class Run:
    """One request on its way: as many steps as it takes."""

    def __init__(
        self,
        http: EngineHttp,
        server: Server,
        request: GenerateRequest,
        plan: Plan,
        headers: Mapping[str, str],
        *,
        heard: bool,
        running: set[Run],
    ) -> None:
        self.request_id = request.request_id or uuid.uuid4().hex
        self.sampling: Sampling = plan.choices[0]
        self.cached: int | None = None
        self._http = http
        self._running = running
        self._server = server
        self._prompt = list(request.token_ids)
        self._headers = headers
        self._constraint: Mapping[str, Any] = constraint_fields(request)
        params = request.sampling_params
        # A choice that has a seed must come out the same whole and streamed, and each step starts the generator.
        seeded = not self.sampling.greedy and params.seed not in (UNSET, None, -1)
        self._grows = heard or seeded
        if self._grows:
            asked = params.stream_interval
            self._step = plan.stream_interval if asked not in (UNSET, None) else _STEP
        else:
            self._step = _STEP_UNHEARD
        self._waiting: asyncio.Task[bytes] | None = None
        self._aborted = False

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The output, step by step; the last one says why it ended."""
        self._running.add(self)
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
            self._running.discard(self)

    def abort(self) -> None:
        self._aborted = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def _piece(self, done: int) -> Piece:
        sampling = self.sampling
        size = self._size(done)
        asked = body(
            self._prompt,
            sampling,
            tokens=size,
            position=done,
            window=self._server.limits.max_model_len,
            hold_end=done < sampling.min_tokens,
            constraint=self._constraint,
        )
        try:
            answer = await self._ask(asked)
            if "json_schema" in self._constraint and not looks_like_json(answer):
                raise BadRequest("the engine cannot hold its output to this schema", param="structured_outputs.json")
            if self.cached is None:
                self.cached = answer.cached
            tokens, finish_reason, stop_reason = self._end(answer, done, size)
            logprobs = None
            if sampling.logprobs is not None:
                logprobs = await self._logprobs(answer, tokens, sampling.logprobs)
        except _Aborted:
            return Piece([], None if sampling.logprobs is None else [], finish_reason="abort")
        self._prompt += tokens
        return Piece(tokens, logprobs, finish_reason, stop_reason)

    def _size(self, done: int) -> int:
        """How many ids the next step asks for. It depends on nothing but the request: a seed gives the same choice."""
        sampling = self.sampling
        left = sampling.max_tokens - done
        if self._constraint:
            return left
        size = min(left, self._step, max(1, done)) if self._grows else min(left, self._step)
        return min(size, sampling.min_tokens - done) if done < sampling.min_tokens else size

    async def _ask(self, asked: bytes) -> Completion:
        """The answer. Raises `_Aborted`."""
        if self._is_aborted():
            raise _Aborted
        self._waiting = asyncio.ensure_future(self._http.post(COMPLETION, asked, headers=self._headers))
        try:
            return read(await self._waiting, name=self._http.name)
        except asyncio.CancelledError:
            if self._waiting.cancelled() and self._is_aborted():
                raise _Aborted from None
            raise
        finally:
            self._waiting = None

    def _is_aborted(self) -> bool:
        return self._aborted

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
                raise EngineFailed(f"{self._http.name} ended its answer before the end")
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
            if answer.positions and (entry := logprob(token, answer.positions[0], k=k)) is not None:
                return entry
        raise EngineFailed(f"{self._http.name} does not tell the logprob of a token")
