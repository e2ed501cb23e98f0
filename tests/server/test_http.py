"""The ASGI core: routes, bodies, keys, errors, streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from tests.server.asgi_client import JSON, Answer, Call, call, post, request

from derender.protocol.errors import BadRequest, Conflict
from derender.server.cors import Cors
from derender.server.http import App
from derender.server.messages import Request, Response, Route, StreamResponse
from derender.server.metrics import TextMetrics

LIMIT = 1000


async def echo(http: Request) -> Response:
    return Response(http.body)


async def refuse(http: Request) -> Response:
    raise Conflict("not so", param="body.x")


async def break_down(http: Request) -> Response:
    raise RuntimeError("secret path /etc/x")


async def health(http: Request) -> Response:
    return Response(content_type=None)


async def show(http: Request) -> Response:
    return Response(http.path.encode() + b"?" + http.query + b" " + (http.header(b"x-a") or b"-"))


ROUTES = [
    Route("POST", "/echo", echo, json_body=True),
    Route("POST", "/refuse", refuse),
    Route("POST", "/break", break_down),
    Route("GET", "/health", health, open=True),
    Route("GET", "/show", show),
]


def make(**options: object) -> App:
    return App(ROUTES, **{"max_body_bytes": LIMIT, **options})  # type: ignore[arg-type]


@pytest.fixture
def app() -> App:
    return make()


def test_answers_with_length_and_type(app: App) -> None:
    answer = post(app, "/echo", b'{"a": 1}')
    assert (answer.status, answer.body) == (200, b'{"a": 1}')
    assert answer.headers == {"content-type": "application/json", "content-length": "8"}


def test_health_has_no_body_and_no_type(app: App) -> None:
    answer = request(app, "GET", "/health")
    assert (answer.status, answer.body, answer.headers) == (200, b"", {"content-length": "0"})


def test_head_is_get_without_the_body(app: App) -> None:
    whole = request(app, "GET", "/show")
    head = request(app, "HEAD", "/show")
    assert head.status == 200
    assert head.body == b""
    assert head.headers["content-length"] == str(len(whole.body))


def test_query_and_headers_reach_the_handler(app: App) -> None:
    assert request(app, "GET", "/show", query="a=b", headers=[("X-A", "c")]).body == b"/show?a=b c"


@pytest.mark.parametrize("path", ["/", "/nothing", "/echo/", "//echo", "/Echo", "/\x00", "*"])
def test_unknown_routes_get_404(app: App, path: str) -> None:
    answer = request(app, "GET", path)
    assert answer.status == 404
    assert answer.error["type"] == "NotFoundError"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/echo", "POST"),
        ("HEAD", "/echo", "POST"),
        ("DELETE", "/show", "GET, HEAD"),
        ("OPTIONS", "/echo", "POST"),
    ],
)
def test_wrong_methods_get_405_and_the_right_ones(app: App, method: str, path: str, allow: str) -> None:
    answer = request(app, method, path)
    assert answer.status == 405
    assert answer.headers["allow"] == allow
    if method != "HEAD":
        assert answer.error["type"] == "MethodNotAllowedError"


@pytest.mark.parametrize("media", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"])
def test_json_types_are_taken(app: App, media: str) -> None:
    assert post(app, "/echo", b"{}", headers=[("content-type", media)]).status == 200


@pytest.mark.parametrize("media", ["text/plain", "", "application/x-www-form-urlencoded", "json", "application/jsonl"])
def test_other_types_get_400(app: App, media: str) -> None:
    answer = post(app, "/echo", b"{}", headers=[("content-type", media)] if media else [])
    assert answer.status == 400
    assert answer.error == {
        "message": "Unsupported Media Type: Only 'application/json' is allowed",
        "type": "Bad Request",
        "param": None,
        "code": 400,
    }


def test_api_errors_become_their_envelope(app: App) -> None:
    answer = post(app, "/refuse", b"{}")
    assert answer.error == {"message": "not so", "type": "ConflictError", "param": "body.x", "code": 409}


def test_other_errors_say_nothing_and_are_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        answer = post(app, "/break", b"{}")
    assert answer.error == {
        "message": "internal server error",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
    assert "secret path" in caplog.text


# ------------------------------------------------------------------------------------------------- bodies


def test_a_body_in_parts_is_joined(app: App) -> None:
    assert (
        request(app, "POST", "/echo", parts=[b"{", b"", b"}"], headers=[JSON, ("transfer-encoding", "chunked")]).body
        == b"{}"
    )


def test_a_body_of_just_the_limit_is_taken(app: App) -> None:
    assert post(app, "/echo", b"x" * LIMIT).body == b"x" * LIMIT


def refused(answer: Answer) -> None:
    assert answer.status == 413
    assert answer.error["type"] == "RequestEntityTooLargeError"
    assert answer.headers["connection"] == "close"
    assert answer.complete


@pytest.mark.parametrize("length", [str(LIMIT + 1), "9" * 18, "9" * 500])
def test_a_large_length_is_refused_before_reading(app: App, length: str) -> None:
    async def ask() -> Call:
        one = Call("POST", "/echo", headers=[JSON, ("content-length", length), ("expect", "100-continue")], leaves=True)
        await app(one.scope, one.receive, one.send)
        return one

    refused(asyncio.run(ask()).answer)


def test_a_chunked_body_is_refused_when_it_passes_the_limit(app: App) -> None:
    parts = [b"x" * 400] * 1000

    async def ask() -> Answer:
        one = Call("POST", "/echo", parts=parts, headers=[JSON, ("transfer-encoding", "chunked")])
        waits = asyncio.Event()

        async def receive() -> dict[str, object]:
            if one.answer.status:  # what comes after the answer is read over, not kept
                await waits.wait()
            return await one.receive()

        await app(one.scope, receive, one.send)
        assert one.received == 1200
        return one.answer

    refused(asyncio.run(ask()))


def test_a_body_longer_than_its_length_is_refused(app: App) -> None:
    refused(request(app, "POST", "/echo", parts=[b"x" * 2000], headers=[JSON, ("content-length", "500")]))


def test_a_length_that_is_no_number_gets_400(app: App) -> None:
    answer = request(app, "POST", "/echo", parts=[b"{}"], headers=[JSON, ("content-length", "-5")])
    assert answer.error["message"] == "Content-Length is not a number"


def test_a_client_that_leaves_in_its_body_gets_nothing(app: App, caplog: pytest.LogCaptureFixture) -> None:
    answer = request(app, "POST", "/echo", parts=[b"{"], headers=[JSON, ("content-length", "9")], leaves=True)
    assert answer.status == 0
    assert caplog.text == ""
    assert app.running == 0


def test_a_refused_request_with_a_short_body_keeps_its_connection(app: App) -> None:
    assert "connection" not in post(app, "/nothing", b"{}").headers
    assert request(app, "POST", "/nothing", headers=[("content-length", "70000")]).headers["connection"] == "close"


# ------------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize("value", ["Bearer one", "bearer two", "BEARER  two "])
def test_a_right_key_is_let_in(value: str) -> None:
    app = make(api_keys=["one", "two"])
    assert request(app, "GET", "/show", headers=[("authorization", value)]).status == 200


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer ", "Bearer On", "Bearer one two", "Basic one", "one", "Bearer é"]
)
def test_a_wrong_key_is_not(value: str) -> None:
    app = make(api_keys=["one", "two"])
    answer = request(app, "GET", "/show", headers=[("authorization", value)] if value else [])
    assert answer.error["type"] == "AuthenticationError"
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "one" not in answer.error["message"]


def test_health_needs_no_key() -> None:
    assert request(make(api_keys=["one"]), "GET", "/health").status == 200


# ------------------------------------------------------------------------------------------------- extras


def test_request_ids_are_echoed_when_asked_for() -> None:
    app = make(request_id_headers=True)
    assert request(app, "GET", "/show", headers=[("x-request-id", "abc")]).headers["x-request-id"] == "abc"
    assert len(request(app, "GET", "/nothing").headers["x-request-id"]) == 32
    assert "x-request-id" not in request(make(), "GET", "/show", headers=[("x-request-id", "abc")]).headers


@pytest.mark.parametrize("path", ["/show", "/under/it/show"])
def test_a_root_path_may_be_there_or_be_taken_off(path: str) -> None:
    assert request(make(root_path="/under/it/"), "GET", path).status == 200


def test_a_root_path_is_whole_segments() -> None:
    assert request(make(root_path="/un"), "GET", "/under/show").status == 404


def test_cors_names_the_allowed() -> None:
    app = make(cors=Cors(origins=["https://a.example"], methods=["POST"], request_headers=["Content-Type"]))
    ask = [("origin", "https://a.example"), ("access-control-request-method", "POST")]
    answer = request(app, "OPTIONS", "/echo", headers=[*ask, ("access-control-request-headers", "content-type")])
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "https://a.example"
    assert answer.headers["access-control-allow-headers"] == "content-type"
    assert request(app, "OPTIONS", "/echo", headers=[*ask[:1], (ask[1][0], "PUT")]).status == 400
    assert request(app, "OPTIONS", "/echo", headers=[*ask, ("access-control-request-headers", "x-a")]).status == 400
    assert request(app, "GET", "/show", headers=ask[:1]).headers["vary"] == "Origin"
    other = request(app, "GET", "/show", headers=[("origin", "https://b.example")])
    assert "access-control-allow-origin" not in other.headers
    assert "vary" not in request(app, "GET", "/show").headers


def test_cors_for_all() -> None:
    app = make(cors=Cors())
    origin = [("origin", "https://b.example")]
    assert request(app, "GET", "/nothing", headers=origin).headers["access-control-allow-origin"] == "*"
    app = make(cors=Cors(credentials=True))
    headers = request(app, "GET", "/show", headers=origin).headers
    assert headers["access-control-allow-origin"] == "https://b.example"
    assert headers["access-control-allow-credentials"] == "true"


def test_requests_and_errors_are_counted() -> None:
    metrics = TextMetrics()
    app = make(metrics=metrics)
    post(app, "/echo", b"{}")
    post(app, "/echo", b"x" * 2000)
    request(app, "GET", "/a-path-of-ones-own")
    text = metrics.render().decode()
    assert 'derender_requests_total{route="/echo",status="200"} 1.0' in text
    assert 'derender_requests_total{route="/echo",status="413"} 1.0' in text
    assert 'derender_requests_total{route="other",status="404"} 1.0' in text
    assert 'derender_request_seconds_count{route="/echo"} 2.0' in text
    assert 'derender_errors_total{type="RequestEntityTooLargeError"} 1.0' in text
    assert "derender_bodies_refused_total 1.0" in text
    assert "a-path-of-ones-own" not in text


def test_lifespan_runs_the_hooks() -> None:
    seen: list[str] = []

    async def up() -> None:
        seen.append("up")

    async def down() -> None:
        seen.append("down")

    async def run() -> list[str]:
        messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
        sent: list[str] = []

        async def receive() -> dict[str, str]:
            return next(messages)

        async def send(message: dict[str, str]) -> None:
            sent.append(message["type"])

        await make(on_startup=[up], on_shutdown=[down])({"type": "lifespan"}, receive, send)
        return sent

    assert asyncio.run(run()) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert seen == ["up", "down"]


# ------------------------------------------------------------------------------------------------- streams


class Numbers:
    """A stream of `data: 0`, `data: 1`, … that knows how often it was closed and how far it was read."""

    def __init__(self, count: int, *, error: Exception | None = None, pause: float = 0.0) -> None:
        self.made = 0
        self.closed = 0
        self.third = asyncio.Event()
        self._count = count
        self._error = error
        self._pause = pause

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await asyncio.sleep(self._pause)
        if self.made == self._count:
            if self._error is not None:
                raise self._error
            raise StopAsyncIteration
        self.made += 1
        if self.made == 3:
            self.third.set()
        return b"data: %d\n\n" % (self.made - 1)

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


def streaming(numbers: Numbers) -> App:
    async def handle(http: Request) -> StreamResponse:
        return StreamResponse(numbers)

    return App([Route("POST", "/stream", handle, json_body=True)], max_body_bytes=LIMIT)


def test_a_stream_is_sent_in_its_chunks_and_closed_once() -> None:
    numbers = Numbers(3)
    answer = post(streaming(numbers), "/stream", b"{}")
    assert answer.chunks == [b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n", b""]
    assert answer.complete
    assert answer.headers["content-type"] == "text/event-stream"
    assert "content-length" not in answer.headers
    assert numbers.closed == 1


def test_an_api_error_in_a_stream_is_its_last_event() -> None:
    numbers = Numbers(1, error=BadRequest("no more", param="x"))
    answer = post(streaming(numbers), "/stream", b"{}")
    assert answer.body == (
        b'data: 0\n\ndata: {"error":{"message":"no more","type":"BadRequestError","param":"x","code":400}}\n\n'
    )
    assert answer.complete
    assert numbers.closed == 1


def test_another_error_in_a_stream_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    numbers = Numbers(1, error=RuntimeError("secret"))
    answer = post(streaming(numbers), "/stream", b"{}")
    assert b"internal server error" in answer.body
    assert b"secret" not in answer.body
    assert "secret" in caplog.text
    assert numbers.closed == 1


def test_a_client_that_leaves_ends_its_stream() -> None:
    numbers = Numbers(10**9, pause=0.001)
    app = streaming(numbers)

    async def run() -> None:
        one = Call("POST", "/stream", parts=[b"{}"], headers=[JSON, ("content-length", "2")])
        task = asyncio.create_task(app(one.scope, one.receive, one.send))
        await numbers.third.wait()
        assert app.running == 1
        one.gone.set()
        await asyncio.wait_for(task, 1)
        assert numbers.closed == 1
        assert not one.answer.complete
        assert app.running == 0

    asyncio.run(run())


def test_a_slow_client_holds_the_stream_back() -> None:
    numbers = Numbers(10**9)
    app = streaming(numbers)

    async def run() -> None:
        one = Call("POST", "/stream", parts=[b"{}"], headers=[JSON, ("content-length", "2")])
        takes = asyncio.Semaphore(5)

        async def send(message: dict[str, object]) -> None:
            await takes.acquire()
            await one.send(message)

        task = asyncio.create_task(app(one.scope, one.receive, send))
        await asyncio.sleep(0.05)
        assert len(one.answer.chunks) == 4
        assert numbers.made == 5
        one.gone.set()
        await asyncio.wait_for(task, 1)
        assert numbers.closed == 1

    asyncio.run(run())


def test_a_cancelled_stream_says_so_and_closes() -> None:
    numbers = Numbers(10**9, pause=0.001)
    app = streaming(numbers)

    async def run() -> Answer:
        one = Call("POST", "/stream", parts=[b"{}"], headers=[JSON, ("content-length", "2")])
        task = asyncio.create_task(app(one.scope, one.receive, one.send))
        await numbers.third.wait()
        task.cancel()
        await asyncio.wait_for(task, 1)
        return one.answer

    answer = asyncio.run(run())
    assert answer.complete
    assert b'"code":503' in answer.chunks[-1]
    assert numbers.closed == 1


def test_a_cancelled_request_gets_503() -> None:
    async def wait(http: Request) -> Response:
        await asyncio.sleep(60)
        return Response()

    app = App([Route("POST", "/wait", wait)], max_body_bytes=LIMIT)

    async def run() -> Answer:
        one = Call("POST", "/wait")
        task = asyncio.create_task(app(one.scope, one.receive, one.send))
        await asyncio.sleep(0.01)
        task.cancel()
        await task
        return one.answer

    assert asyncio.run(run()).error["message"] == "the server is shutting down"


def test_a_handler_can_wait_for_its_client_to_leave() -> None:
    left = asyncio.Event()

    async def wait(http: Request) -> Response:
        await http.disconnected()
        await http.disconnected()
        left.set()
        return Response()

    app = App([Route("POST", "/wait", wait, json_body=True)], max_body_bytes=LIMIT)

    async def run() -> None:
        one = Call("POST", "/wait", parts=[b"{}"], headers=[JSON, ("content-length", "2")])
        task = asyncio.create_task(app(one.scope, one.receive, one.send))
        await asyncio.sleep(0.01)
        assert not left.is_set()
        one.gone.set()
        await asyncio.wait_for(task, 1)
        assert left.is_set()

    asyncio.run(run())


def test_call_is_what_a_server_would_be() -> None:
    async def run() -> None:
        assert (await call(make(), "GET", "/health")).status == 200

    asyncio.run(run())
