"""The embedded engine: llama.cpp in this process, behind the verbs of `engines.base`.

A constraint (`structured_outputs`) holds from the first token on: this engine knows no reasoning section, so
`reasoning_ended` and `reasoning_parser_kwargs` change nothing, as on a vLLM server without a reasoning parser.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from pathlib import Path

from derender.engines.base import NO_HEADERS, Capabilities, EngineLoad, EngineModel
from derender.engines.llama_backend import BackendOptions, LlamaBackend
from derender.engines.sampling import FEW, Limits, Plan, plan, plans_long
from derender.engines.scheduler import Backend, Job, Scheduler, Token
from derender.protocol.common import Usage
from derender.protocol.errors import ApiError, Unavailable
from derender.protocol.generate import (
    GenerateChoice,
    GenerateChunk,
    GenerateLogprob,
    GenerateLogprobs,
    GenerateRequest,
    GenerateResponse,
    GenerateStreamChoice,
)

_TAKEN_AT_ONCE = 512  # tokens
_KINDS = {"json_schema": ("json", "json_object"), "regex": ("regex",), "lark": ("choice", "grammar")}


class LlamaCppEngine:
    """One GGUF model, several sequences at once. The verbs belong to one event loop; the model has its own thread."""

    def __init__(self, backend: Backend, limits: Limits, *, root: str | None = None, description: str = "") -> None:
        self.limits = limits
        self.description = description
        self.slots = backend.slots
        self._root = root
        self._backend = backend
        self._scheduler = Scheduler(backend)
        self.capabilities = Capabilities(
            structured_outputs=frozenset(name for kind in limits.constraints for name in _KINDS[kind]),
            max_logprobs=limits.max_logprobs,
        )

    @classmethod
    def open(cls, path: Path, *, names: Sequence[str] = (), options: BackendOptions | None = None) -> LlamaCppEngine:
        """Loads a GGUF file; blocks for as long as that takes. Raises `EngineUnavailable`.

        `names`: what the model is served as; without any, the file's name without its ending.
        """
        backend = LlamaBackend(path, options or BackendOptions())
        limits = Limits(
            names=tuple(names) or (path.stem,),
            vocab_size=backend.vocab_size,
            max_model_len=backend.max_model_len,
            constraints=backend.constraints,
        )
        text = f"{backend.description}, {backend.threads} thread{'s' if backend.threads > 1 else ''}"
        return cls(backend, limits, root=path.name, description=text)

    async def generate(self, request: GenerateRequest, *, headers: Mapping[str, str] = NO_HEADERS) -> GenerateResponse:
        planned = await self._plan(request)
        run = _Run(self._scheduler, request, planned)
        ids: list[list[int]] = [[] for _ in planned.choices]
        logprobs: list[list[GenerateLogprob]] = [[] for _ in planned.choices]
        ends: dict[int, Token] = {}
        try:
            while len(ends) < len(planned.choices):
                token = await run.next()
                if token.token is not None:
                    ids[token.choice].append(token.token)
                if token.logprob is not None:
                    logprobs[token.choice].append(token.logprob)
                if token.finish_reason is not None:
                    ends[token.choice] = token
        finally:
            run.close()

        def made() -> GenerateResponse:
            return GenerateResponse(
                request_id=run.request_id,
                model=request.model or self._name,
                created=int(time.time()),
                usage=_usage(request, sum(map(len, ids))),
                prompt_token_ids=request.token_ids if request.return_token_ids else None,
                choices=[
                    GenerateChoice(
                        index=index,
                        finish_reason=ends[index].finish_reason,
                        stop_reason=ends[index].stop_reason,
                        token_ids=ids[index],
                        logprobs=GenerateLogprobs(logprobs[index]) if sampling.logprobs is not None else None,
                    )
                    for index, sampling in enumerate(planned.choices)
                ],
            )

        return await asyncio.to_thread(made) if len(planned.choices) > FEW else made()

    async def stream(
        self, request: GenerateRequest, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> AsyncGenerator[GenerateChunk, None]:
        planned = await self._plan(request)
        await self.health()  # told now, it is an answer of its own and not an event in a stream
        return self._chunks(request, planned)

    async def _chunks(self, request: GenerateRequest, planned: Plan) -> AsyncGenerator[GenerateChunk, None]:
        # Submitted here, not in `stream`: a generator that never started has nothing to clean up.
        run = _Run(self._scheduler, request, planned)
        options = request.stream_options
        include_usage = bool(options and options.include_usage)
        continuous = include_usage and bool(options and options.continuous_usage_stats)
        counts = [0] * len(planned.choices)
        held: list[list[Token]] = [[] for _ in planned.choices]
        prompt = request.token_ids if request.return_token_ids else None
        opened = len(planned.choices)
        try:
            while opened:
                token = await run.next()
                pending = held[token.choice]
                pending.append(token)
                first = counts[token.choice] == 0
                if not (first or token.finish_reason is not None or len(pending) >= planned.stream_interval):
                    continue
                held[token.choice] = []
                counts[token.choice] += sum(one.token is not None for one in pending)
                opened -= token.finish_reason is not None
                yield GenerateChunk(
                    request_id=run.request_id,
                    usage=_usage(request, counts[token.choice]) if continuous else None,
                    prompt_token_ids=prompt,
                    choices=[_delta(pending, logprobs=planned.choices[token.choice].logprobs is not None)],
                )
                prompt = None
            if include_usage:
                yield GenerateChunk(request_id=run.request_id, usage=_usage(request, sum(counts)), choices=[])
        finally:
            run.close()

    async def _plan(self, request: GenerateRequest) -> Plan:
        make = functools.partial(plan, request, self.limits, random_seed=lambda: secrets.randbits(62))
        planned = await asyncio.to_thread(make) if plans_long(request) else make()
        constraint = planned.choices[0].constraint
        if constraint is not None:
            await asyncio.to_thread(self._backend.check, constraint)
        return planned

    async def probe(self) -> None:
        """Nothing has to be tried: what was loaded tells what it can do."""

    async def abort(self, request_ids: Iterable[str]) -> None:
        self._scheduler.abort_ids(frozenset(request_ids))

    async def health(self) -> None:
        if not self._scheduler.alive:
            raise Unavailable("the engine is not running")

    async def load(self) -> EngineLoad:
        return self._scheduler.load()

    async def models(self) -> list[EngineModel]:
        return [
            EngineModel(name=name, max_model_len=self.limits.max_model_len, root=self._root)
            for name in self.limits.names
        ]

    async def aclose(self) -> None:
        await asyncio.to_thread(self._scheduler.close)

    @property
    def _name(self) -> str:
        return next(iter(self.limits.names))


class _Run:
    """A job on its way: tokens cross from the engine's thread to the loop through one queue."""

    def __init__(self, scheduler: Scheduler, request: GenerateRequest, planned: Plan) -> None:
        self.request_id = request.request_id or f"generate-tokens-{uuid.uuid4().hex}"
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Token | ApiError] = asyncio.Queue()
        self._job = Job(
            request_id=self.request_id,
            prompt=tuple(request.token_ids),
            choices=planned.choices,
            sink=self._sink,
            salt=request.cache_salt,
            priority=request.priority,
        )
        self._open = len(planned.choices)
        self._taken = 0
        scheduler.submit(self._job)

    def _sink(self, token: Token | ApiError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._queue.put_nowait, token)

    async def next(self) -> Token:
        """The next token of any choice. Raises the `ApiError` that ended the job."""
        self._taken += 1
        if not self._taken % _TAKEN_AT_ONCE:  # a full queue never waits, and the loop has others to serve
            await asyncio.sleep(0)
        token = await self._queue.get()
        if isinstance(token, ApiError):
            raise token
        self._open -= token.finish_reason is not None
        return token

    def close(self) -> None:
        """Ends at the engine what is not at its end yet."""
        self._scheduler.forget(self._job)
        if self._open:
            self._scheduler.abort(self._job)


def _delta(tokens: Sequence[Token], *, logprobs: bool) -> GenerateStreamChoice:
    last = tokens[-1]
    return GenerateStreamChoice(
        index=last.choice,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        token_ids=[one.token for one in tokens if one.token is not None],
        logprobs=GenerateLogprobs([one.logprob for one in tokens if one.logprob is not None]) if logprobs else None,
    )


def _usage(request: GenerateRequest, completion_tokens: int) -> Usage:
    prompt_tokens = len(request.token_ids)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
    )
