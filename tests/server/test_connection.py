"""The application on a real server: what a connection can do to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.server.live import Wire, get_bytes, post_bytes, running, wait_for

from derender.server.http import App
from derender.server.messages import Request, Response, Route, StreamResponse

LIMIT = 100_000
CHUNK = b"data: " + b"x" * 10_000 + b"\n\n"


class State:
    """What the handlers saw."""

    opened = 0
    closed = 0
    sent = 0


async def echo(http: Request) -> Response:
    return Response(http.body)


async def health(http: Request) -> Response:
    return Response(content_type=None)


async def slow(http: Request) -> Response:
    await asyncio.sleep(0.3)
    return Response(b"{}")


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def port(state: State) -> Iterator[int]:
    async def chunks() -> AsyncIterator[bytes]:
        state.opened += 1
        try:
            while True:
                yield CHUNK
                state.sent += 1
                await asyncio.sleep(0)
        finally:
            state.closed += 1

    async def stream(http: Request) -> StreamResponse:
        return StreamResponse(chunks())

    routes = [
        Route("POST", "/echo", echo, json_body=True),
        Route("POST", "/slow", slow, json_body=True),
        Route("POST", "/stream", stream, json_body=True),
        Route("GET", "/health", health, open=True),
    ]
    with running(App(routes, max_body_bytes=LIMIT)) as number:
        yield number


def error(body: bytes) -> dict[str, object]:
    return json.loads(body)["error"]


def test_a_connection_is_kept_over_answers_and_errors(port: int) -> None:
    with Wire(port) as wire:
        for request, status in [
            (post_bytes("/echo", b"{}"), 200),
            (get_bytes("/health"), 200),
            (get_bytes("/nothing"), 404),
            (post_bytes("/nothing", b"{}"), 404),
            (get_bytes("/echo"), 405),
            (post_bytes("/echo", b"[1]"), 200),
        ]:
            wire.send(request)
            assert wire.answer()[0] == status


def test_pipelined_requests_are_answered_in_order(port: int) -> None:
    with Wire(port) as wire:
        wire.send(post_bytes("/slow", b"1") + post_bytes("/echo", b"2") + get_bytes("/health"))
        assert [wire.answer()[2] for _ in range(3)] == [b"{}", b"2", b""]


def test_a_huge_length_is_refused_at_once(port: int) -> None:
    with Wire(port) as wire:
        wire.send(
            b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n{"
        )
        status, headers, body = wire.answer()
        assert status == 413
        assert headers["connection"] == "close"
        assert error(body)["type"] == "RequestEntityTooLargeError"
        assert wire.ended(3)


def test_who_sends_a_large_body_reads_the_refusal_not_a_reset(port: int) -> None:
    with Wire(port) as wire:
        wire.send(post_bytes("/echo", b"x" * 3_000_000))
        assert wire.answer()[0] == 413


CHUNKED = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = b"2710\r\n" + b"x" * 10_000 + b"\r\n"


def test_a_chunked_body_over_the_limit_is_refused(port: int) -> None:
    with Wire(port) as wire:
        wire.send(CHUNKED + PIECE * 11)
        assert wire.answer()[0] == 413
        assert wire.ended(3)


def test_an_endless_body_is_cut_off(port: int) -> None:
    started = time.monotonic()
    with Wire(port) as wire:
        wire.send(CHUNKED)
        with contextlib.suppress(OSError):
            while time.monotonic() < started + 10:
                wire.send(PIECE)
    assert time.monotonic() < started + 5


def test_a_chunked_body_is_taken(port: int) -> None:
    with Wire(port) as wire:
        wire.send(CHUNKED + b"1\r\n{\r\n")
        wire.send(b"1\r\n}\r\n0\r\n\r\n")
        assert wire.answer()[2] == b"{}"


def test_continue_is_said_only_when_the_body_is_wanted(port: int) -> None:
    head = (
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: "
    )
    with Wire(port) as wire:
        wire.send(f"{head}2\r\n\r\n".encode())
        assert wire.until(b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        wire.send(b"{}")
        assert wire.answer()[2] == b"{}"
    with Wire(port) as wire:
        wire.send(f"{head}200000\r\n\r\n".encode())
        assert wire.answer()[0] == 413


def test_half_a_body_makes_no_noise(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        with Wire(port) as wire:
            wire.send(post_bytes("/echo", b"{}").replace(b"Length: 2", b"Length: 9"))
        with Wire(port) as wire:
            wire.send(get_bytes("/health"))
            assert wire.answer()[0] == 200
    assert "rror" not in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"BREW /echo HTTP/1.1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /echo HTTP/1.1\r\nContent-Length: 99999999999999999999999999\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nBad\x00Header: x\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\n\r\n",
    ],
)
def test_garbage_gets_an_envelope(port: int, garbage: bytes) -> None:
    with Wire(port) as wire:
        wire.send(garbage)
        status, headers, body = wire.answer()
        assert status in (400, 404, 405)
        assert headers["content-type"] == "application/json"
        assert set(error(body)) == {"message", "type", "param", "code"}
        assert error(body)["code"] == status


@pytest.mark.parametrize("path", ["/echo", "/slow"])
def test_a_whole_request_is_answered_though_garbage_follows(port: int, path: str) -> None:
    with Wire(port) as wire:
        wire.send(post_bytes(path, b"{}") + b"\x00\x01\x02 more")
        status, headers, body = wire.answer()
        assert (status, headers["connection"], body) == (200, "close", b"{}")
        assert wire.ended(3)


def test_garbage_between_requests_is_refused(port: int) -> None:
    with Wire(port) as wire:
        wire.send(get_bytes("/health"))
        assert wire.answer()[0] == 200
        wire.send(b"\x00\x01\x02 more")
        assert wire.answer()[0] == 400
        assert wire.ended(3)


def test_a_broken_chunk_ends_the_connection(port: int) -> None:
    with Wire(port) as wire:
        wire.send(b"POST /echo HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert wire.answer()[0] == 400
        assert wire.ended(3)


def test_an_endless_head_is_refused(port: int) -> None:
    with Wire(port) as wire:
        wire.send(b"GET /health HTTP/1.1\r\n")
        try:
            for _ in range(300):
                wire.send(b"X-A: " + b"x" * 1000 + b"\r\n")
        except OSError:
            pass
        else:
            status, _, body = wire.answer()
            assert status == 431
            assert error(body)["code"] == 431
        wire.sock.close()
    with Wire(port) as wire:
        wire.send(b"GET /" + b"x" * 70_000)
        assert wire.answer()[0] == 431


def test_a_large_head_below_the_bound_is_taken(port: int) -> None:
    with Wire(port) as wire:
        wire.send(get_bytes("/health", *(f"X-{n}: {'x' * 500}" for n in range(100))))
        assert wire.answer()[0] == 200


def test_an_offer_to_upgrade_is_passed_over(port: int) -> None:
    with Wire(port) as wire:
        wire.send(
            post_bytes("/echo", b"{}", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAM")
        )
        assert wire.answer()[2] == b"{}"


def test_http_10_is_answered_and_closed(port: int) -> None:
    with Wire(port) as wire:
        wire.send(b"GET /health HTTP/1.0\r\n\r\n")
        assert wire.answer()[0] == 200
        assert wire.ended(3)


def test_a_client_that_leaves_its_stream_ends_it(port: int, state: State) -> None:
    with Wire(port) as wire:
        wire.send(post_bytes("/stream", b"{}"))
        head = wire.until(b"\r\n\r\n")
        assert b"text/event-stream" in head
        assert b"transfer-encoding: chunked" in head
        wire.until(CHUNK)
        assert (state.opened, state.closed) == (1, 0)
    wait_for(lambda: state.closed == 1)


def test_a_client_that_does_not_read_holds_its_stream_back(port: int, state: State) -> None:
    with Wire(port) as wire:
        wire.send(post_bytes("/stream", b"{}"))
        wire.until(CHUNK)
        before = -1
        for _ in range(50):
            asyncio.run(asyncio.sleep(0.1))
            if state.sent == before:
                break
            before = state.sent
        else:
            pytest.fail("the stream runs on")
        assert state.sent * len(CHUNK) < 50_000_000
        with Wire(port) as other:  # and holds back nobody else
            other.send(get_bytes("/health"))
            assert other.answer()[0] == 200
    wait_for(lambda: state.closed == 1)
