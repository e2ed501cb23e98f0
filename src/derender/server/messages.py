"""What an application is asked and what it answers: requests, whole answers, streams, and the routes between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from typing import Any, NamedTuple, TypeVar

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]
T = TypeVar("T")

JSON_TYPE = b"application/json"
_JSON_HEADER = (b"content-type", JSON_TYPE)


class ClientLeft(Exception):
    """The body stopped before its end: there is nobody to answer."""


class Request:
    """One request, its body already read. `body` is empty for GET; `path` is without the root path."""

    __slots__ = ("_headers", "_left", "_receive", "body", "client", "method", "path", "query", "streams")

    def __init__(
        self,
        *,
        method: str,
        path: str,
        query: bytes,
        headers: dict[bytes, bytes],
        client: Any,
        receive: Receive,
        body: bytes = b"",
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.body = body
        self.client = client
        self._headers = headers
        self._receive = receive
        self._left = False
        self.streams = False
        """Whether the body is read by the handler, part by part (`parts`), and not before it."""

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it comes. Ends with it; raises `ClientLeft` when the client goes before that."""
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                self._left = True
                raise ClientLeft
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                return

    def header(self, name: bytes) -> bytes | None:
        """The value of a header by its lower-case name; of a repeated one the last."""
        return self._headers.get(name)

    async def unless_left(self, work: Awaitable[T]) -> T:
        """The result of `work`. Cancels it and raises `ClientLeft` when the client leaves before that."""
        task = asyncio.ensure_future(work)
        left = asyncio.ensure_future(self.disconnected())
        try:
            await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            if not task.done():
                task.cancel()
            await asyncio.wait((task, left))
        try:
            if task.cancelled():
                raise ClientLeft
            return task.result()
        finally:
            del task  # an error that it raised holds this frame, and with it what it worked on

    async def disconnected(self) -> None:
        """Returns when the client has left, or when the answer has been sent whole."""
        while not self._left:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._left = True


class Response:
    """A whole answer. `content_type` None leaves the header out."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self,
        body: bytes = b"",
        *,
        status: int = 200,
        content_type: bytes | None = JSON_TYPE,
        headers: Sequence[Header] = (),
    ) -> None:
        self.body = body
        self.status = status
        self.headers: list[Header] = [(b"content-length", b"%d" % len(body)), *headers]
        if content_type is not None:
            self.headers.append(_JSON_HEADER if content_type is JSON_TYPE else (b"content-type", content_type))


class StreamResponse:
    """An answer in chunks, each sent when it comes and not before the client has taken the ones before it.

    The iterator is closed (`aclose`) exactly once: at its end, on an error, when the client leaves, at shutdown.
    An `ApiError` that it raises becomes an SSE event with the error envelope, as vLLM does; `end` follows that event.
    """

    __slots__ = ("chunks", "end", "headers", "status")

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        *,
        content_type: bytes = b"text/event-stream",
        headers: Sequence[Header] = (),
        end: bytes = b"",
    ) -> None:
        self.chunks = chunks
        self.end = end
        self.status = 200
        self.headers: list[Header] = [
            (b"content-type", content_type),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *headers,
        ]


Handler = Callable[[Request], Awaitable["Response | StreamResponse"]]
DirectHandler = Callable[[Request], "Response | None"]


class Route(NamedTuple):
    """One method of one path. `json_body`: the content type must be JSON. `open`: served without an API key.
    `stream_body`: the handler reads the body itself. `direct`: answers a request without waiting for anything, or gives
    None for one that `handler` has to answer."""

    method: str
    path: str
    handler: Handler
    json_body: bool = False
    open: bool = False
    stream_body: bool = False
    direct: DirectHandler | None = None
