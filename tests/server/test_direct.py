"""What is answered at once, without a task, is answered as the application would: the same bytes, in the same order."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest
from tests.server.live import PATIENCE, Wire, get_bytes, post_bytes, running
from tests.server.tiny_model import write_tiny_model

from derender.model import Model, ModelSettings
from derender.registry import ModelRegistry
from derender.server.app import AppSettings, build_app
from derender.server.cors import Cors
from derender.server.http import App
from derender.server.messages import Request, Response, Route

RENDER, COMPLETIONS, TOKENIZE = "/v1/chat/completions/render", "/v1/completions/render", "/tokenize"
CHAT = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
LONG = json.dumps({"messages": [{"role": "user", "content": "a" * 3000}], "x": "y" * 200_000}).encode()
MANY = json.dumps({"messages": [{"role": "user", "content": "a"}] * 100}).encode()
ID = "X-Request-Id: abc"
KEY = "Authorization: Bearer secret"

REQUESTS = {
    "health": get_bytes("/health"),
    "health with a query": get_bytes("/health?a=1"),
    "escaped path": get_bytes("/he%61lth"),
    "head": b"HEAD /version HTTP/1.1\r\nHost: x\r\n\r\n",
    "get with a body": b"GET /version HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
    "post without a body": b"POST /ping HTTP/1.1\r\nHost: x\r\n\r\n",
    "version": get_bytes("/version"),
    "load": get_bytes("/load"),
    "root path": get_bytes("/base/version"),
    "models": get_bytes("/nothing"),
    "wrong method": get_bytes(RENDER),
    "options": b"OPTIONS /version HTTP/1.1\r\nHost: x\r\n\r\n",
    "chat": post_bytes(RENDER, CHAT, ID),
    "invocation": post_bytes("/invocations", CHAT, ID),
    "completion": post_bytes(COMPLETIONS, b'{"prompt":"hi"}', ID),
    "tokens": post_bytes(TOKENIZE, b'{"prompt":"hi"}'),
    "large body": post_bytes(RENDER, LONG, ID),
    "many messages": post_bytes(RENDER, MANY, ID),
    "no json": post_bytes(RENDER, b"{", ID),
    "no text": post_bytes(RENDER, b'{"messages":"\xff"}', ID),
    "empty body": post_bytes(RENDER, b"", ID),
    "wrong field": post_bytes(RENDER, b'{"messages":[],"n":"x"}', ID),
    "unknown model": post_bytes(RENDER, b'{"model":"x","messages":[]}'),
    "wrong type": post_bytes(RENDER, CHAT).replace(b"application/json", b"text/plain"),
    "no type": b"POST " + RENDER.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    "no length": b"POST " + RENDER.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\r\n",
    "chunked": b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
    b'5\r\n{"pro\r\n9\r\nmpt":"a"}\r\n0\r\n\r\n',
    "id of odd bytes": post_bytes(RENDER, CHAT, "X-Request-Id: \xe9 b\tc"),
    "empty id": post_bytes(RENDER, b'{"messages":1}', "X-Request-Id: "),
    "broken": post_bytes("/broken", b"{}"),
    "with a key": post_bytes("/keyed", b"{}", KEY),
    "origin": get_bytes("/version", "Origin: http://a"),
    "close": post_bytes(RENDER, CHAT, ID, "Connection: close"),
    "http 1.0": b"GET /version HTTP/1.0\r\n\r\n",
    "kept http 1.0": b"GET /version HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
}


class Staged(App):
    """The application without its direct answers."""

    direct = None  # type: ignore[assignment]


def build(kind: type[App], registry: ModelRegistry, *, keys: tuple[str, ...] = ()) -> App:
    plain = build_app(registry, settings=AppSettings())

    def broken(_: Request) -> Response:
        raise ValueError("secret of ours")

    async def staged(request: Request) -> Response:
        return broken(request)

    return kind(
        [*plain.routes, Route("POST", "/broken", staged, json_body=True, direct=broken)],
        max_body_bytes=1 << 20,
        api_keys=keys,
        cors=Cors(origins=("http://a",)),
        root_path="/base",
        request_id_headers=bool(keys),
    )


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> ModelRegistry:
    directory = str(write_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))
    return ModelRegistry([Model.load(directory, settings=ModelSettings(served_model_names=("tiny",)))])


@pytest.fixture(scope="module", params=[(), ("secret",)], ids=["open", "keys"])
def ports(request: pytest.FixtureRequest, registry: ModelRegistry) -> Iterator[tuple[int, int]]:
    apps = [build(kind, registry, keys=request.param) for kind in (App, Staged)]
    with running(apps[0]) as direct, running(apps[1]) as staged:
        yield direct, staged


def everything(port: int, pieces: list[bytes]) -> bytes:
    """All that the server sends for a request in these pieces, and for one after it that ends the connection."""
    with Wire(port) as wire:
        try:
            for piece in [*pieces, get_bytes("/health", "Connection: close", "X-Request-Id: last")]:
                wire.send(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the first one ended it
        got = b""
        try:
            while data := wire.sock.recv(65536):
                got += data
        except ConnectionResetError:
            pass
    got = re.sub(rb"date: [^\r]*\r\n", b"", got)
    return re.sub(rb"(x-request-id: |chatcmpl-)[0-9a-f]{16,32}\b", rb"\1made-up", got)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_whole_request_is_answered_as_the_application_does(ports: tuple[int, int], name: str) -> None:
    raw = REQUESTS[name]
    direct, staged = (everything(port, [raw]) for port in ports)
    assert direct == staged
    assert direct.startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize("name", ["chat", "no json", "close", "chunked", "broken", "post without a body"])
def test_a_request_in_pieces_is_answered_the_same(ports: tuple[int, int], name: str) -> None:
    raw = REQUESTS[name]
    whole = everything(ports[1], [raw])
    body = raw.index(b"\r\n\r\n") + 4
    for cut in (10, body - 2, body, body + 1, len(raw) - 1):
        if 0 < cut < len(raw):
            assert everything(ports[0], [raw[:cut], raw[cut:]]) == whole
    assert everything(ports[0], [raw[at : at + 1] for at in range(len(raw))]) == whole


def test_an_error_of_ours_is_logged_and_not_told(registry: ModelRegistry, caplog: pytest.LogCaptureFixture) -> None:
    with running(build(App, registry)) as port, Wire(port) as wire, caplog.at_level(logging.ERROR):
        wire.send(post_bytes("/broken", b"{}"))
        status, _, body = wire.answer()
        assert status == 500
        assert b"secret" not in body
        assert json.loads(body)["error"]["message"] == "internal server error"
        wire.send(get_bytes("/health"))
        assert wire.answer()[0] == 200
    assert "POST /broken failed" in caplog.text


def test_pipelined_requests_are_answered_in_order(ports: tuple[int, int]) -> None:
    names = ["chat", "health", "no json", "version", "many messages", "tokens", "broken"] * 3
    wanted = [everything(ports[1], [REQUESTS[name]]) for name in names]
    tail = everything(ports[1], [])
    got = everything(ports[0], [b"".join(REQUESTS[name] for name in names)])
    assert got == b"".join(one.removesuffix(tail) for one in wanted) + tail


def test_answers_wait_for_a_client_that_does_not_read(registry: ModelRegistry) -> None:
    number = 3000
    with running(build(App, registry)) as port, Wire(port) as wire:
        wire.sock.setblocking(False)
        one = post_bytes(RENDER, json.dumps({"messages": [{"role": "user", "content": "a" * 2000}]}).encode(), ID)
        sent = 0
        whole = one * number
        try:
            while sent < len(whole):
                sent += wire.sock.send(whole[sent : sent + 65536])
        except BlockingIOError:
            pass  # the server takes no more: it holds back what nobody reads
        assert sent < len(whole)
        wire.sock.settimeout(PATIENCE)
        for _ in range(sent // len(one)):
            status, _, body = wire.answer()
            assert status == 200
            assert body.count(b",97") > 1500
