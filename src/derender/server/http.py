"""The ASGI core: routes by dictionary, bounded bodies, keys, one error envelope, streams that end with their client.

Plain ASGI because the hot path counts, and beside it `App.direct`, by which a connection has a short request answered
without a task: a trivial one costs 7 µs of Python so, 18 as ASGI with all that is here, and about 30 through Starlette.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from derender.protocol.codec import encode
from derender.protocol.errors import (
    ApiError,
    BodyTooLarge,
    InvalidBody,
    MethodNotAllowed,
    NotFound,
    Unauthorized,
    Unavailable,
)
from derender.server.messages import (
    JSON_TYPE,
    ClientLeft,
    Header,
    Message,
    Receive,
    Request,
    Response,
    Route,
    Scope,
    Send,
    StreamResponse,
)

if TYPE_CHECKING:
    from derender.server.cors import Cors
    from derender.server.metrics import RouteMetrics, ServerMetrics

Hook = Callable[[], Awaitable[None]]

logger = logging.getLogger("derender.server")

_CLOSE = (b"connection", b"close")
_KEPT_UNREAD = 65536  # bytes of a refused request's body that are read over to keep the connection
MAX_HELD_BYTES = 1 << 30
"""Bodies that came in more than one part and are held, of all requests together. Beyond it new parts are refused (503):
many clients that send large bodies slowly would fill the memory."""

_LINGER_SECONDS = 1.0  # how long a closed request may go on sending, so that a reset does not overtake the answer


class _Endpoint(NamedTuple):
    route: Route
    metrics: RouteMetrics | None


_NO_METHODS: dict[str, _Endpoint] = {}


async def _nothing_comes() -> Message:
    raise ClientLeft


def error_response(error: ApiError, *, headers: Sequence[Header] = ()) -> Response:
    """`error` as its envelope."""
    return Response(encode(error.response()), status=error.status, headers=headers)


def internal_error() -> ApiError:
    """What a client is told of a fault of ours; the log has the rest."""
    return ApiError("internal server error")


class App:
    """The ASGI callable.

    `max_body_bytes` bounds what is read of a body (413 beyond it, before reading where Content-Length tells).
    `api_keys`: when there are any, every route that is not open asks for one of them as `Authorization: Bearer`.
    `root_path` is taken off the front of paths that have it. `running` counts requests to JSON routes in work.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        max_body_bytes: int,
        api_keys: Sequence[str] = (),
        metrics: ServerMetrics | None = None,
        on_startup: Sequence[Hook] = (),
        on_shutdown: Sequence[Hook] = (),
        cors: Cors | None = None,
        root_path: str = "",
        request_id_headers: bool = False,
    ) -> None:
        self.routes = tuple(routes)
        self.running = 0
        self.lines: list[str] = []
        """What is said at the start beside the models; a hook of the start-up may add to it."""

        self._paths: dict[str, dict[str, _Endpoint]] = {}
        for route in self.routes:
            bound = metrics.route(route.path) if metrics else None
            self._paths.setdefault(route.path, {})[route.method] = _Endpoint(route, bound)
        self._max_body_bytes = max_body_bytes
        self._keys = [hashlib.sha256(key.encode()).digest() for key in api_keys]
        self._metrics = metrics
        self._unrouted = metrics.route("other") if metrics else None
        self._on_startup = on_startup
        self._on_shutdown = on_shutdown
        self._cors = cors
        self._root_path = root_path.rstrip("/")
        self._request_id_headers = request_id_headers
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = perf_counter()
        method: str = scope["method"]
        path = self._path(scope)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request = Request(
            method=method,
            path=path,
            query=scope["query_string"],
            headers=headers,
            client=scope.get("client"),
            receive=receive,
        )
        unread = b"content-length" in headers or b"transfer-encoding" in headers
        bound = self._unrouted
        answer: Response | StreamResponse
        working = False
        held = 0
        try:
            try:
                if method == "OPTIONS" and self._cors is not None and self._cors.is_preflight(headers):
                    answer = self._cors.preflight(headers)
                else:
                    endpoint = self._match(method, path)
                    route = endpoint.route
                    bound = endpoint.metrics
                    self._admit(route, headers)
                    if route.json_body:
                        working = True
                        self.running += 1
                    if route.stream_body:
                        request.streams, unread = True, False
                    elif unread and route.method != "GET":
                        request.body, held = await self._read_body(headers, receive)
                        unread = False
                    answer = await route.handler(request)
            except ApiError as error:
                answer = self._refusal(error, path)
            except ClientLeft:
                return
            except asyncio.CancelledError:
                # Only the server cancels a request, when its time to drain is over; nothing above waits for it.
                answer = self._refusal(Unavailable("the server is shutting down"), path)
            except Exception:
                logger.exception("%s %s failed", method, path)
                answer = self._refusal(internal_error(), path)
            extra = self._extra_headers(headers) if self._cors or self._request_id_headers else ()
            if isinstance(answer, StreamResponse):
                await self._send_stream(request, answer, extra, send)
            elif unread and (answer.status == 413 or _must_close(headers)):
                await _send_and_close(answer, extra, head=method == "HEAD", receive=receive, send=send)
            else:
                await send(
                    {"type": "http.response.start", "status": answer.status, "headers": [*answer.headers, *extra]}
                )
                await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})
            if bound is not None:
                bound.done(answer.status, perf_counter() - started)
        except asyncio.CancelledError:  # while a slow client took its answer; the server closes the connection
            logger.warning("%s %s: the answer was cut off by the shutdown", method, path)
        finally:
            self._held_bytes -= held
            if working:
                self.running -= 1

    def direct(self, scope: Scope, body: bytes) -> tuple[int, Sequence[Header], bytes] | None:
        """Status, headers and body of the answer to a whole request that needs to wait for nothing; None: call the
        application.

        A task, two dictionaries each way and two writes to the socket cost more than a short chat takes to render.
        """
        started = perf_counter()
        path = self._path(scope)
        endpoint = self._paths.get(path, _NO_METHODS).get(scope["method"])
        if endpoint is None or endpoint.route.direct is None or len(body) > self._max_body_bytes:
            return None
        route = endpoint.route
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request = Request(
            method=route.method,
            path=path,
            query=scope["query_string"],
            headers=headers,
            client=scope.get("client"),
            receive=_nothing_comes,
            body=body,
        )
        try:
            self._admit(route, headers)
            answer = endpoint.route.direct(request)
            if answer is None:
                return None
        except ApiError as error:
            answer = self._refusal(error, path)
        except Exception:
            logger.exception("%s %s failed", route.method, path)
            answer = self._refusal(internal_error(), path)
        if self._cors or self._request_id_headers:
            answer.headers.extend(self._extra_headers(headers))
        if endpoint.metrics is not None:
            endpoint.metrics.done(answer.status, perf_counter() - started)
        return answer.status, answer.headers, answer.body

    def tick(self) -> None:
        """Called about once a second, in the event loop's thread."""
        if self._metrics is not None:
            self._metrics.flush()

    def _path(self, scope: Scope) -> str:
        path: str = scope["path"]
        if self._root_path and path.startswith(self._root_path):
            path = path[len(self._root_path) :] or "/"
        return path

    def _admit(self, route: Route, headers: dict[bytes, bytes]) -> None:
        """Raises `Unauthorized` or `InvalidBody` for what no handler need see."""
        if self._keys and not route.open:
            self._check_key(headers.get(b"authorization"))
        if route.json_body:
            check_json_type(headers.get(b"content-type"))

    def _match(self, method: str, path: str) -> _Endpoint:
        methods = self._paths.get(path)
        if methods is None:
            raise NotFound("Not Found")
        endpoint = methods.get(method)
        if endpoint is None and method == "HEAD":
            endpoint = methods.get("GET")
        if endpoint is None:
            raise MethodNotAllowed("Method Not Allowed")
        return endpoint

    def _check_key(self, authorization: bytes | None) -> None:
        scheme, _, token = (authorization or b"").partition(b" ")
        digest = hashlib.sha256(token.strip()).digest()
        known = False
        for key in self._keys:  # all of them, so that the time taken tells nothing
            known |= hmac.compare_digest(digest, key)
        if not known or scheme.lower() != b"bearer":
            raise Unauthorized("Unauthorized")

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive) -> tuple[bytes, int]:
        """The whole body, and how much of it is counted as held.

        Raises `BodyTooLarge` with at most the limit and one network read held in memory, `Unavailable` where too much
        is held for others.
        """
        limit = self._max_body_bytes
        length = headers.get(b"content-length")
        if length is not None and not length.isdigit():
            raise InvalidBody("Content-Length is not a number")
        if length is not None and (len(length) > 18 or int(length) > limit):
            raise self._too_large()
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            if len(body) > limit:
                raise self._too_large()
            return body, 0
        parts: list[bytes] = []
        size = 0
        whole = False
        try:
            while True:
                if message["type"] != "http.request":
                    raise ClientLeft
                part = message.get("body", b"")
                size += len(part)
                self._held_bytes += len(part)
                if size > limit:
                    raise self._too_large()
                if self._held_bytes > max(MAX_HELD_BYTES, size):
                    raise Unavailable("the server holds too many bodies; try again later")
                parts.append(part)
                if not message.get("more_body", False):
                    whole = True
                    return b"".join(parts), size
                message = await receive()
        finally:
            if not whole:
                self._held_bytes -= size

    def _too_large(self) -> BodyTooLarge:
        if self._metrics is not None:
            self._metrics.bodies_refused.inc()
        return BodyTooLarge(f"body is larger than {self._max_body_bytes} bytes")

    def _refusal(self, error: ApiError, path: str) -> Response:
        if self._metrics is not None:
            self._metrics.error(error.type)
        headers: list[Header] = []
        if error.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        elif error.status == 405 and path in self._paths:
            headers.append((b"allow", self._allowed(path)))
        if error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after))
        return error_response(error, headers=headers)

    def _allowed(self, path: str) -> bytes:
        methods = set(self._paths[path])
        if "GET" in methods:
            methods.add("HEAD")
        return ", ".join(sorted(methods)).encode()

    def _extra_headers(self, headers: dict[bytes, bytes]) -> list[Header]:
        extra = list(self._cors.headers(headers)) if self._cors is not None else []
        if self._request_id_headers:
            extra.append((b"x-request-id", headers.get(b"x-request-id") or uuid.uuid4().hex.encode()))
        return extra

    async def _send_stream(self, request: Request, answer: StreamResponse, extra: Sequence[Header], send: Send) -> None:
        failure: ApiError | None = None
        if request.streams:  # the chunks are made of the request's own body, which tells when the client leaves
            await self._pump_through(request, answer, extra, send)
            return
        pump = asyncio.ensure_future(self._pump(request, answer, extra, send))
        watch = asyncio.ensure_future(request.disconnected())
        try:
            await asyncio.wait((pump, watch), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the time to drain is over
            failure = Unavailable("the server is shutting down")
        finally:
            watch.cancel()
            pump.cancel()
            await asyncio.wait((pump, watch))
            close = getattr(answer.chunks, "aclose", None)
            if close is not None:
                await close()
        if not pump.cancelled():
            failure = pump.result()
        if failure is not None:
            if self._metrics is not None:
                self._metrics.error(failure.type)
            event = b"data: " + encode(failure.response()) + b"\n\n"
            await send({"type": "http.response.body", "body": event + answer.end})

    async def _pump_through(
        self, request: Request, answer: StreamResponse, extra: Sequence[Header], send: Send
    ) -> None:
        try:
            failure = await self._pump(request, answer, extra, send)
        except asyncio.CancelledError:
            failure = Unavailable("the server is shutting down")
        finally:
            close = getattr(answer.chunks, "aclose", None)
            if close is not None:
                await close()
        if failure is not None:
            if self._metrics is not None:
                self._metrics.error(failure.type)
            await send({"type": "http.response.body", "body": b"data: " + encode(failure.response()) + b"\n\n"})

    async def _pump(
        self, request: Request, answer: StreamResponse, extra: Sequence[Header], send: Send
    ) -> ApiError | None:
        """Sends the chunks and the end of the body; an error stops it before the end and is returned."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [*answer.headers, *extra]})
            async for chunk in answer.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except ApiError as error:
            return error
        except ClientLeft:
            return None
        except Exception:
            logger.exception("%s %s failed while streaming", request.method, request.path)
            return internal_error()
        await send({"type": "http.response.body", "body": b""})
        return None

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            for hook in self._on_startup:
                await hook()
        except Exception as error:
            logger.exception("start-up failed")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.tick()
        try:
            for hook in self._on_shutdown:
                await hook()
        except Exception as error:
            logger.exception("shutdown failed")
            await send({"type": "lifespan.shutdown.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})


def check_json_type(content_type: bytes | None) -> None:
    """Raises `InvalidBody` unless the media type is application/json or ends in +json (the words are vLLM's)."""
    if content_type == JSON_TYPE:
        return
    media = (content_type or b"").partition(b";")[0].strip().lower()
    if media != JSON_TYPE and not media.endswith(b"+json"):
        raise InvalidBody("Unsupported Media Type: Only 'application/json' is allowed")


def _must_close(headers: dict[bytes, bytes]) -> bool:
    """Whether a request answered before its body was read costs its connection: a short rest is read over instead."""
    length = headers.get(b"content-length", b"")
    return not length.isdigit() or len(length) > 9 or int(length) > _KEPT_UNREAD or b"expect" in headers


async def _send_and_close(
    answer: Response, extra: Sequence[Header], *, head: bool, receive: Receive, send: Send
) -> None:
    """Sends a whole answer at once, reads over what still comes for a moment, then closes the connection.

    Closing with unread bytes makes the kernel send a reset, which may overtake the answer (RFC 9112, section 9.6).
    """
    headers = [*answer.headers, *extra, _CLOSE]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else answer.body, "more_body": True})
    with contextlib.suppress(asyncio.TimeoutError, asyncio.CancelledError):
        await asyncio.wait_for(_read_over(receive), _LINGER_SECONDS)
    await send({"type": "http.response.body", "body": b""})


async def _read_over(receive: Receive) -> None:
    more = True
    while more:
        message = await receive()
        more = message["type"] == "http.request" and message.get("more_body", False)
