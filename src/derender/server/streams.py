"""A stream over one connection: a generate stream comes in as the request's body, the API's stream goes out.

The body is server-sent events or JSON lines. Its first record is the context (model, chat_request, the prompt's tail);
each further one is a chunk as the generate server sent it. Chunks of the API go out while the body still comes, with
back-pressure both ways. `[DONE]` and error events are understood, and written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from derender.protocol.codec import Decoder, check_containers, encode
from derender.protocol.derender import ChatStreamContext, CompletionStreamContext
from derender.protocol.errors import MAX_MESSAGE, ApiError, BodyTooLarge, ErrorInfo, ErrorResponse, InvalidBody
from derender.protocol.generate import GenerateChunk
from derender.protocol.records import DONE, RecordReader, RecordTooLarge
from derender.server.messages import Handler, Request, Response, Route, StreamResponse
from derender.server.metrics import generated_tokens
from derender.server.pool import WorkPool

if TYPE_CHECKING:
    from derender.derendering.chat import ChatStreamDerenderer
    from derender.derendering.completions import CompletionStreamDerenderer
    from derender.model import Model
    from derender.registry import ModelRegistry
    from derender.server.metrics import TextMetrics

    Stream = ChatStreamDerenderer | CompletionStreamDerenderer

T = TypeVar("T")
INLINE_BYTES = 16384
"""Records up to this size are worked on in the event loop: a chunk of one token has some hundred bytes."""


class _EngineError(msgspec.Struct):
    error: dict[str, Any]


_CONTEXT = frozenset((*ChatStreamContext.__struct_fields__, *CompletionStreamContext.__struct_fields__))
_OF_ENGINES = frozenset(("token_ids", "sampling_params", "choices"))  # what a generate request or its answer has
_anything = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NOTHING = GenerateChunk(choices=[])
_chunk = Decoder(GenerateChunk, lenient_numbers=True)
_chat = Decoder(ChatStreamContext)
_completion = Decoder(CompletionStreamContext)
_error = msgspec.json.Decoder(_EngineError)


def stream_routes(
    registry: ModelRegistry, *, pool: WorkPool, metrics: TextMetrics, max_record_bytes: int
) -> list[Route]:
    """The two routes, by POST and by PUT (as `curl -T -` sends). A record may have `max_record_bytes`."""

    def opened(model: Model, make: Callable[[], Stream]) -> Stream:
        """A stream whose context has been checked, which it is with a first chunk: one is opened for a chunk that says
        nothing. vLLM's rules want what the engine's own first chunk may bring."""
        if not model.settings.strict_vllm:
            make().push(_NOTHING)
        return make()

    def chat(record: bytes) -> Stream:
        context = _chat(record)
        model = registry.get(context.model)
        return opened(model, lambda: model.derender_chat_stream(context))

    def completion(record: bytes) -> Stream:
        context = _completion(record)
        model = registry.get(context.model)
        return opened(model, lambda: model.derender_completion_stream(context))

    routes = []
    for path, opener in (
        ("/v1/chat/completions/derender/stream", chat),
        ("/v1/completions/derender/stream", completion),
    ):
        handler = _handler(opener, pool, metrics, max_record_bytes)
        routes += [Route(method, path, handler, stream_body=True) for method in ("POST", "PUT")]
    return routes


def _handler(opener: Callable[[bytes], Stream], pool: WorkPool, metrics: TextMetrics, limit: int) -> Handler:
    async def handle(request: Request) -> Response | StreamResponse:
        records = _records(request.parts(), limit)
        first = await anext(records, None)
        if first is None:
            raise InvalidBody("the body has no records: the first one is the context", param="body")
        check_context(first)
        # What is wrong from the start is an answer of its own, with its status; later it is an event.
        stream = await _work(opener, first, pool)
        return StreamResponse(_derendered(stream, records, pool, metrics, context_bytes=len(first)))

    return handle


def check_context(record: bytes) -> None:
    """Raises `InvalidBody` for a first record that has nothing of a context: a generate request or answer, say."""
    try:
        found = _anything.decode(record)
    except (msgspec.DecodeError, RecursionError):
        return  # the decoder of the context tells it better
    if found and (not _CONTEXT.intersection(found) or not _OF_ENGINES.isdisjoint(found)):
        raise InvalidBody(
            f"the first record is the context, an object with any of {', '.join(sorted(_CONTEXT))}; this one has "
            f"{', '.join(map(repr, list(found)[:5]))[:200]}",
            param="body",
        )


async def _work(function: Callable[[bytes], T], record: bytes, pool: WorkPool, *, context_bytes: int = 0) -> T:
    """`function(record)`, outside of the event loop where the record is large, or the context that is read for it.

    Raises `ApiError`.
    """

    def run() -> T:
        check_containers(record, answer=True)
        try:
            return function(record)
        except RecursionError:  # what could just be decoded may stand deeper in the answer
            raise InvalidBody("the record is nested too deeply", param="body") from None

    size = len(record) + context_bytes
    return run() if size <= INLINE_BYTES else await pool.run(run, size=size)


async def _derendered(
    stream: Stream, records: AsyncIterator[bytes], pool: WorkPool, metrics: TextMetrics, *, context_bytes: int
) -> AsyncIterator[bytes]:
    """The events of the answer."""
    number = 0

    def derendered(record: bytes) -> bytes:
        chunk = _chunk(record)
        event = _event(stream.push(chunk))
        metrics.worked(derendered=generated_tokens(chunk.choices))
        return event

    try:
        async for record in records:
            number += 1
            if record == DONE:
                break
            if b'"error"' in record and (failed := _engine_error(record)) is not None:
                yield _event(failed)
                break
            try:
                event = await _work(derendered, record, pool, context_bytes=context_bytes)
                context_bytes = 0  # it was read for the first
            except ApiError as error:
                error.message = f"record {number}: {error.message}"
                yield _event(error.response())
                break
            yield event
            if stream.finished:
                break
    except ApiError as error:
        yield _event(error.response())
    yield b"data: [DONE]\n\n"


def _event(value: Any) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def _engine_error(record: bytes) -> ErrorResponse | None:
    """An error event of the engine's, as ours; None for what is none."""
    try:
        error = _error.decode(record).error
    except (msgspec.DecodeError, RecursionError):
        return None
    texts = {name: value[:MAX_MESSAGE] for name, value in error.items() if isinstance(value, str)}
    code = error.get("code")
    return ErrorResponse(
        ErrorInfo(
            message=texts.get("message", "the generate server failed"),
            type=texts.get("type", "InternalServerError"),
            param=texts.get("param"),
            code=code if type(code) is int else 500,
        )
    )


async def _records(parts: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    """The records of a body: the data of its events, or its lines."""
    reader = RecordReader(max_bytes=limit)
    async for part in parts:
        try:
            records = reader.push(part)
        except RecordTooLarge:
            raise BodyTooLarge(f"a record is larger than {limit} bytes") from None
        for record in records:
            yield record
    if record := reader.finish():
        yield record
