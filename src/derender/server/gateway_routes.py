"""The gateway's routes: the API itself, answered through the loop. A handler decodes, calls the loop, encodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from derender.engines.owned import Owned
from derender.gateway.context import MANY, Context
from derender.gateway.loop import Gateway
from derender.protocol.codec import check_containers, encode
from derender.protocol.errors import ApiError, InvalidBody
from derender.server.cost import brings_template, takes_long
from derender.server.gateway_events import DONE, KEEPALIVE, Events
from derender.server.messages import ClientLeft, Request, Response, Route, StreamResponse
from derender.server.operations import decode_chat, decode_completion
from derender.server.pool import INLINE_BYTES, WorkPool

if TYPE_CHECKING:
    from derender.gateway.streaming import Chunk
    from derender.registry import ModelRegistry
    from derender.server.tracing import Tracing

Decode = Callable[[bytes], Any]
PATHS: Mapping[str, Decode] = {"/v1/chat/completions": decode_chat, "/v1/completions": decode_completion}

_TOLD_ON = (b"traceparent", b"tracestate", b"baggage", b"x-data-parallel-rank")
"""Headers of a request that its engine gets, too. Not X-Request-Id: vLLM takes it for the id by which a request is
aborted, before the body's, and an id of a client's own may come with several requests at once."""

_MAX_HEADER = 4096
Log = Callable[[Request, Context, int], None]


def gateway_routes(
    registry: ModelRegistry,
    gateway: Gateway,
    *,
    pool: WorkPool,
    log: Log | None = None,
    tracing: Tracing | None = None,
) -> list[Route]:
    """The routes of the API. `log` is told of each request when it has ended, with its status."""
    routes = [
        Route("POST", path, _Handler(decode, registry, gateway, pool, log, tracing), json_body=True)
        for path, decode in PATHS.items()
    ]

    async def ready(request: Request) -> Response:
        up = gateway.pool.ready([model.names[0] for model in registry.models])
        return Response(content_type=None, status=200 if up else 503)

    return [*routes, Route("GET", "/ready", ready, open=True)]


class _Handler:
    """Answers one of the two dialects."""

    def __init__(
        self,
        decode: Decode,
        registry: ModelRegistry,
        gateway: Gateway,
        pool: WorkPool,
        log: Log | None,
        tracing: Tracing | None,
    ) -> None:
        self._decode = decode
        self._registry = registry
        self._gateway = gateway
        self._pool = pool
        self._log = log
        self._tracing = tracing

    async def __call__(self, http: Request) -> Response | StreamResponse:
        context = await self._context(http)
        status = 499  # the client left
        streams = False
        try:
            if context.request.stream:
                answer: Response | StreamResponse = await self._stream(http, context)
                streams = True
            else:
                answer = await self._whole(http, context)
            status = 200
        except ApiError as error:
            status = error.status
            raise
        finally:
            if not streams:
                self._ended(http, context, status)
        return answer

    async def _context(self, http: Request) -> Context:
        body = http.body
        size = len(body)
        request: Any
        if size > INLINE_BYTES:
            request = await http.unless_left(self._pool.run(lambda: self._decode_large(body), size=size))
        else:
            request = self._decode(body)
        model = self._registry.get(request.model)
        foreign = brings_template(request)
        slow = model.tokenizer.encoder.name == "tokenizers"
        long = foreign or size > INLINE_BYTES or takes_long(request, size=size, slow_encoder=slow)
        request_id = http.header(b"x-request-id")
        context = Context(
            model=model,
            request=request,
            run=partial(self._pool.run, size=size, foreign=foreign),
            long=long,
            request_id=request_id.decode("latin-1") if request_id else None,
            headers=_told_on(http),
        )
        if self._tracing is not None:
            context.span = span = self._tracing.begin(http.path, context.headers)
            context.headers = span.headers
        return context

    def _ended(self, http: Request, context: Context, status: int) -> None:
        if self._log is not None:
            self._log(http, context, status)
        if context.span is not None:
            context.span.end(context, status)

    def _decode_large(self, body: bytes) -> Any:
        check_containers(body)
        return self._decode(body)

    async def _whole(self, http: Request, context: Context) -> Response:
        answer = await http.unless_left(self._gateway.answer(context))
        try:
            return Response(await context.work(lambda: encode(answer), long=context.weight > MANY))
        except RecursionError:  # what could just be decoded may stand deeper in the answer
            raise InvalidBody("body is nested too deeply", param="body") from None

    async def _stream(self, http: Request, context: Context) -> StreamResponse:
        """The stream. Its status is 200 once the engine's first chunk has come, or it has been waited for so long that
        the client is told that its request is still in work."""
        begins = asyncio.ensure_future(self._gateway.stream(context))
        left = asyncio.ensure_future(http.disconnected())
        try:
            await asyncio.wait(
                (begins, left), timeout=self._gateway.settings.keepalive_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            left.cancel()
            await asyncio.wait((left,))
            if not left.cancelled():
                raise ClientLeft
            if begins.done():
                begins.result()  # what is wrong is an answer of its own
        except BaseException:
            left.cancel()
            await _end(begins)
            raise

        async def unheard() -> None:
            await _end(begins)
            self._ended(http, context, 499)

        return StreamResponse(Owned(self._events(http, context, begins), end=unheard), end=DONE)

    async def _events(
        self, http: Request, context: Context, begins: asyncio.Future[AsyncGenerator[list[Chunk], None]]
    ) -> AsyncGenerator[bytes, None]:
        options = context.request.stream_options
        events = Events(usage=options is not None and bool(options.include_usage))
        patience = self._gateway.settings.keepalive_seconds
        status = 499
        chunks: AsyncGenerator[list[Chunk], None] | None = None
        try:
            while not begins.done():
                yield KEEPALIVE
                await asyncio.wait((begins,), timeout=patience)
            chunks = begins.result()
            told = monotonic()
            async for some in chunks:
                if event := b"".join([events.of(chunk) for chunk in some]):
                    yield event
                    told = monotonic()
                elif monotonic() - told > patience:  # the model works on what is not shown
                    yield KEEPALIVE
                    told = monotonic()
                await asyncio.sleep(0)  # what came already is taken without a wait; others have their turn, too
            yield DONE
            status = 200
        except ApiError as error:
            status = error.status
            raise
        finally:
            try:
                if chunks is not None:
                    await chunks.aclose()
                else:
                    await _end(begins)
            finally:
                self._ended(http, context, status)


async def _end(begins: asyncio.Future[AsyncGenerator[list[Chunk], None]]) -> None:
    """Ends a stream that nobody waits for, whether it has begun or not."""
    if begins.cancel():
        await asyncio.wait((begins,))
    if not begins.cancelled() and begins.exception() is None:
        await begins.result().aclose()


def _told_on(http: Request) -> dict[str, str]:
    found = {}
    for name in _TOLD_ON:
        value = http.header(name)
        if value is not None and len(value) <= _MAX_HEADER and value.isascii():
            found[name.decode()] = value.decode("ascii")
    return found
