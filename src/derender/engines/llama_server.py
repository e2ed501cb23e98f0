"""A llama.cpp server (`llama-server`), asked with ids and answering with ids.

Its stream cannot be used: it leaves out every id whose bytes end inside a character, so that of an emoji only the last
id comes. Its whole answers have all ids. A stream is therefore made of several short requests, each of which goes on
where the one before ended; the server still has the sequence in its cache and computes nothing twice. What an output
must be (`structured_outputs`) cannot be cut like that, because a grammar begins with each request: it comes as one
chunk. Whole answers are made in (longer) steps too: the server sees only every five seconds whether anybody still waits
for one. Seen on the build inside xllamacpp 2026.10.

The ids are those that the model made, the EOS included, as with vLLM; so is sampling where nothing is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import secrets
import time
from collections.abc import AsyncGenerator, Iterable, Mapping

import msgspec

from derender.engines.base import NO_HEADERS, Capabilities, EngineLoad, EngineModel
from derender.engines.errors import EngineFailed, EngineRefused
from derender.engines.http import EngineHttp
from derender.engines.llama_completion import planned
from derender.engines.llama_steps import Piece, Run, Server
from derender.engines.owned import Owned
from derender.engines.sampling import ConstraintKind, Limits, plans_long
from derender.protocol.codec import encode
from derender.protocol.common import PromptTokensDetails, Usage
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

_SECONDS = 5.0
_MAX_LOGPROBS = 20
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
        self._server: Server | None = None
        self._running: set[Run] = set()

    async def probe(self) -> None:
        """Asks for the context's length, the vocabulary's size, the slots and the EOS. Raises `EngineFailed`."""
        self._server = await self._ask_server()

    async def _ask_server(self) -> Server:
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
        return Server(limits, eos, turns)

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
        last: Piece | None = None
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
        return Owned(self._chunks(request, run, first, pieces), end=pieces.aclose)

    async def _chunks(
        self, request: GenerateRequest, run: Run, first: Piece, pieces: AsyncGenerator[Piece, None]
    ) -> AsyncGenerator[GenerateChunk, None]:
        prompt = request.token_ids if request.return_token_ids else None
        count = 0
        piece: Piece | None = first
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

    async def _run(self, request: GenerateRequest, headers: Mapping[str, str], *, heard: bool) -> Run:
        server = self._server
        if server is None:
            server = self._server = await self._ask_server()
        make = functools.partial(planned, request, server.limits, random_seed=secrets.randbits(62))
        plan = await asyncio.to_thread(make) if plans_long(request) else make()
        return Run(self.http, server, request, plan, headers, heard=heard, running=self._running)

    async def abort(self, request_ids: Iterable[str]) -> None:
        """Ends requests of this client: their connections are closed and no further step is asked. The server has no
        ids for requests, so that those of other clients are not known."""
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


def _usage(request: GenerateRequest, completion: int, cached: int | None) -> Usage:
    prompt = len(request.token_ids)
    details = None if cached is None else PromptTokensDetails(cached_tokens=min(cached, prompt))
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=details,
    )
