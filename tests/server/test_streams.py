"""A generate stream derendered over one connection, through real HTTP: chunks go out while the body still comes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.asgi_client import post, request
from tests.server.live import running
from tests.server.tiny_model import write_tiny_model

from derender.model import Model, ModelSettings
from derender.registry import ModelRegistry
from derender.server.app import AppSettings, build_app
from derender.server.http import App

PATH = "/v1/chat/completions/derender/stream"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> App:
    directory = write_tiny_model(tmp_path_factory.mktemp("model"))
    model = Model.load(str(directory), settings=ModelSettings(served_model_names=("m",)))
    return build_app(ModelRegistry([model]), settings=AppSettings())


@pytest.fixture(scope="module")
def server(app: App) -> Iterator[int]:
    with running(app) as port:
        yield port


class Exchange:
    """One chunked request whose answer is read while the body is still being sent."""

    def __init__(self, port: int, path: str = PATH, method: str = "POST") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        self.socket.sendall(head.encode())
        self.got = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def record(self, value: Any) -> None:
        self.send(b"data: " + json.dumps(value).encode() + b"\n\n")

    def end(self) -> None:
        self.socket.sendall(b"0\r\n\r\n")

    def until(self, text: bytes) -> bytes:
        while text not in self.got:
            part = self.socket.recv(65536)
            if not part:
                raise AssertionError(f"{text!r} did not come: {self.got!r}")
            self.got += part
        return self.got

    def close(self) -> None:
        self.socket.close()


def chunk(text: str, **choice: Any) -> Any:
    return {"request_id": "r", "choices": [{"index": 0, "token_ids": list(text.encode()), **choice}]}


def test_chunks_go_out_while_the_body_still_comes(server: int) -> None:
    exchange = Exchange(server)
    exchange.record({"model": "m"})
    exchange.record(chunk("Hel"))
    assert b'"content":"Hel"' in exchange.until(b'"content":"Hel"')  # the body is not at its end
    exchange.record(chunk("lo", finish_reason="stop"))
    exchange.send(b"data: [DONE]\n\n")
    exchange.end()
    assert b'"finish_reason":"stop"' in exchange.until(b"data: [DONE]")
    exchange.close()


def test_lines_split_anywhere_and_other_fields_of_events(server: int) -> None:
    exchange = Exchange(server, method="PUT")
    body = b": hello\nevent: x\n" + b"\n".join(
        [json.dumps({"model": "m"}).encode(), json.dumps(chunk("\u65e5", finish_reason="length")).encode(), b""]
    )
    for byte in range(0, len(body), 7):
        exchange.send(body[byte : byte + 7])
    exchange.end()
    got = exchange.until(b"data: [DONE]")
    assert "\u65e5".encode() in got
    exchange.close()


def test_what_is_wrong_from_the_start_is_an_answer_of_its_own(server: int) -> None:
    for body, status in (
        (b"", b"400"),
        (b'{"model": "nope"}\n', b"404"),
        (b'{"chat_request": 5}\n', b"400"),
        (b'{"stream_state": {"x": 1}}\n', b"400"),
        (b'{"model": null, "token_ids": [1], "sampling_params": {}}\n', b"400"),  # what render made
        (b'{"request_id": "r", "choices": []}\n', b"400"),
    ):
        exchange = Exchange(server)
        if body:
            exchange.send(body)
        exchange.end()
        assert exchange.until(b'{"error":').startswith(b"HTTP/1.1 " + status)
        exchange.close()


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b'data: {"choices": [{"index": 0, "token_ids": [-1]}]}\n', b"record 2: choices.0.token_ids.0"),
        (b'data: {"choices": [{"index": 0, "token_ids": [99999999]}]}\n', b"outside the vocabulary"),
        (b"data: {nonsense\n", b"not valid JSON"),
        (b'data: {"error": {"message": "engine\\ngone", "type": "X", "code": 503}}\n', b"engine\\ngone"),
    ],
)
def test_what_goes_wrong_later_is_an_event_and_the_end(server: int, bad: bytes, says: bytes) -> None:
    exchange = Exchange(server)
    exchange.record({"model": "m"})
    exchange.record(chunk("a"))
    exchange.until(b'"content":"a"')
    exchange.send(bad)
    got = exchange.until(b"data: [DONE]")
    assert says in got
    assert got.count(b'{"error":') == 1
    exchange.close()


def test_a_stop_string_ends_the_stream_before_the_engine_does(server: int) -> None:
    exchange = Exchange(server)
    exchange.record({"model": "m", "chat_request": {"messages": [], "stop": "END"}})
    exchange.record(chunk("say E"))
    exchange.record(chunk("ND more"))
    got = exchange.until(b"data: [DONE]")
    assert b'"content":"say "' in got
    assert b'"stop_reason":"END"' in got
    assert b"more" not in got
    exchange.close()


def test_a_client_that_leaves_leaves_nothing_behind(app: App, server: int) -> None:
    for _ in range(20):
        exchange = Exchange(server)
        exchange.record({"model": "m"})
        exchange.record(chunk("x"))
        exchange.until(b'"content":"x"')
        exchange.close()
    assert app.running == 0


def test_its_tokens_are_counted(app: App) -> None:
    def counted() -> float:
        text = request(app, "GET", "/metrics").body.decode()
        (line,) = [line for line in text.splitlines() if line.startswith("derender_tokens_derendered_total")]
        return float(line.split()[-1])

    before = counted()
    body = b"".join(json.dumps(one).encode() + b"\n" for one in ({"model": "m"}, chunk("Hello"), chunk("!")))
    assert post(app, PATH, body).status == 200
    assert counted() - before == 6
