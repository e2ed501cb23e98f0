"""Clients that are slow, silent, gone or in great number; work that takes long; a shutdown with all of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.asgi_client import JSON, Call, call, post
from tests.server.live import Served, Wire, get_bytes, post_bytes, running, wait_for
from tests.server.tiny_model import write_tiny_model

from derender.model import Model, ModelSettings
from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.codec import Decoder
from derender.protocol.errors import ApiError, BadRequest, Unavailable
from derender.registry import ModelRegistry
from derender.server import connection, http
from derender.server.app import AppSettings, build_app
from derender.server.cost import HASHED_BYTES, MANY, MANY_CARRIED, MANY_VALUES, SLOW_BYTES, takes_long
from derender.server.http import App
from derender.server.messages import Request, Response, Route
from derender.server.operations import decode_invocation
from derender.server.pool import WorkPool
from derender.template import jinja, limited
from derender.template.jinja import ChatTemplate

RENDER = "/v1/chat/completions/render"
STREAM = "/v1/chat/completions/derender/stream"
CHAT = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
HEADERS = [JSON, ("transfer-encoding", "chunked")]
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def app(model: str) -> App:
    trusting = ModelSettings(served_model_names=("tiny",), trust_request_chat_template=True)
    return build_app(ModelRegistry([Model.load(model, settings=trusting)]), settings=AppSettings())


@pytest.fixture(scope="module")
def port(app: App) -> Iterator[int]:
    with running(app) as number:
        yield number


# -------------------------------------------------------------------------------------------------- connections


def test_who_owes_the_rest_of_a_request_is_not_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENT_SECONDS", 0.5)
    whole = post_bytes(RENDER, CHAT)
    with Wire(port) as nothing, Wire(port) as head, Wire(port) as body, Wire(port) as second:
        head.send(b"GET /health HT")
        body.send(whole[:-1])
        second.send(whole + whole[:-1])
        assert second.answer()[0] == 200
        for wire in (head, body, second):
            status, headers, answer = wire.answer()
            assert (status, headers["connection"]) == (408, "close")
            assert json.loads(answer)["error"]["type"] == "RequestTimeoutError"
            assert wire.ended(3)
        assert nothing.ended(5)


def test_who_is_slow_but_not_silent_is_served(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENT_SECONDS", 2.0)
    with Wire(port) as wire:
        data = post_bytes(RENDER, CHAT)
        for start in range(0, len(data), 30):
            wire.send(data[start : start + 30])
            time.sleep(0.4)
        assert wire.answer()[0] == 200


def test_a_stream_whose_engine_is_silent_is_not_ended(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENT_SECONDS", 0.5)
    with Wire(port) as wire:
        wire.send(f"POST {STREAM} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        record = b'{"model":"tiny"}\n{"choices":[{"index":0,"token_ids":[104]}]}\n'
        wire.send(b"%x\r\n%s\r\n" % (len(record), record))
        wire.until(b'"content":"h"')
        time.sleep(3)
        last = b'{"choices":[{"index":0,"token_ids":[105],"finish_reason":"stop"}]}\n'
        wire.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(last), last))
        wire.until(b'"content":"i"')
        wire.until(b"[DONE]")


def test_who_takes_nothing_of_an_answer_is_not_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENT_SECONDS", 1.0)
    body = json.dumps({"prompt": "x" * 3_000_000}).encode()
    with Wire(port) as wire, Wire(port) as reader:
        for one in (wire, reader):
            one.send(post_bytes("/tokenize", body))
        assert reader.answer()[0] == 200
        time.sleep(6)
        with pytest.raises(OSError, match=r"closed|reset"):
            wire.answer()


def test_two_thousand_connections(port: int) -> None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wires = [Wire(port) for _ in range(min(2000, files // 3))]
    try:
        for wire in wires:
            wire.send(post_bytes(RENDER, CHAT))
        assert {wire.answer()[0] for wire in wires} == {200}
    finally:
        for wire in wires:
            wire.sock.close()


def test_bodies_that_are_held_are_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_HELD_BYTES", 250_000)

    async def echo(request: Request) -> Response:
        return Response(b"%d" % len(request.body))

    app = App([Route("POST", "/echo", echo, json_body=True)], max_body_bytes=1_000_000)
    part = b"x" * 100_000

    async def main() -> None:
        go_on = asyncio.Event()

        class Slow(Call):
            async def receive(self) -> dict[str, Any]:
                if len(self._parts) == 1:
                    await go_on.wait()
                return await super().receive()

        first = Slow("POST", "/echo", parts=[part, part, part], headers=HEADERS)
        task = asyncio.create_task(app(first.scope, first.receive, first.send))
        await asyncio.sleep(0)
        refused = await call(app, "POST", "/echo", parts=[part, part], headers=HEADERS)
        assert (refused.status, refused.error["type"]) == (503, "ServiceUnavailableError")
        assert (await call(app, "POST", "/echo", parts=[b"x" * 900_000], headers=HEADERS)).body == b"900000"
        go_on.set()
        await task
        assert first.answer.body == b"300000"  # one alone may have what the limit of a body allows
        again = await call(app, "POST", "/echo", parts=[part, part], headers=HEADERS)
        assert again.body == b"200000"

    asyncio.run(main())


def test_a_line_without_end_and_lines_without_text(app: App) -> None:
    context = b'data: {"model":"tiny"}\n'
    chunk = b'data: {"choices":[{"index":0,"token_ids":[97]}]}\n\n'
    started = time.monotonic()
    answer = post(app, STREAM, context + b"\n" * 3_000_000 + b":\n" * 100_000 + chunk + b"data: [DONE]\n\n")
    assert b'"content":"a"' in answer.body
    assert time.monotonic() - started < 5
    small = build_app(ModelRegistry([]), settings=AppSettings(max_body_bytes=1000, docs=False))
    assert post(small, STREAM, b"x" * 2000).status == 413


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b'{"choices":[],"metrics":{"a":' + b"[" * 100_000, "body is nested too deeply"),
        (b'{"choices":[],"request_id":"\\ud800"}', "request_id holds a lone surrogate, which is not text"),
        (b'{"choices":[],"x":"\xff"}', "body is not valid UTF-8 (byte 19)"),
        (b'{"choices":[' + b'{"index":1},' * 16384 + b'{"index":1}]}', "choices count (16385) exceeds"),
    ],
)
def test_a_bad_record_is_told_by_its_number(app: App, record: bytes, message: str) -> None:
    answer = post(app, STREAM, b'{"model":"tiny"}\n{"choices":[]}\n' + record + b"\n")
    events = answer.body.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    error = json.loads(events[-3].removeprefix(b"data: "))["error"]
    assert error["message"].startswith(f"record 2: {message}")
    assert error["code"] == 400


def test_a_stream_of_ever_new_choices_ends(app: App) -> None:
    chunks = [{"choices": [{"index": first + number} for number in range(8000)]} for first in range(0, 40_000, 8000)]
    records = [b'{"model":"tiny"}', *(json.dumps(chunk).encode() for chunk in chunks)]
    answer = post(app, STREAM, b"\n".join(records) + b"\n")
    assert b'"message":"record 3: choices count (24000) exceeds server maximum (16384).' in answer.body


# ---------------------------------------------------------------------------------------------------- long work


def test_small_bodies_with_much_work_leave_the_event_loop() -> None:
    many, ids = [{"index": 0}] * (MANY + 1), [{"index": 0, "token_ids": [1] * 5000}]
    message = {"role": "user", "content": ""}

    def called(arguments: object) -> object:
        return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}

    def tool(properties: object) -> object:
        return {"function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}

    def schema(properties: object) -> object:
        return {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": properties}}}

    for body in (
        {"messages": [message] * (MANY + 1)},
        {"messages": [message], "tools": [{"function": {"name": "f"}}] * (MANY + 1)},
        {"messages": [message], "return_token_offsets": True},
        {"prompt": ["a"] * (MANY + 1)},
        {"messages": [message], "return_block_hashes": {"block_size": 1}},
        {"prompt": "1", "return_block_hashes": True},
        {"prompt": ["a", "b"], "logit_bias": {str(i): 1 for i in range(MANY_CARRIED // 2 + 1)}},
        {"messages": [message], "stop_token_ids": [1] * (MANY_CARRIED + 1)},
        {"messages": [message], "kv_transfer_params": {"a": [[]] * MANY_CARRIED}},
        {"messages": [message], "chat_template_kwargs": {"a": [1] * MANY_VALUES}},
        {"messages": [{"role": "user", "content": ["a"] * MANY_VALUES}]},
        {"messages": [called({"a": [1] * MANY_VALUES})]},
        {"messages": [called({"a": {str(i): "" for i in range(MANY_VALUES)}})]},
        {"messages": [called(json.dumps({"a": [[]] * MANY_VALUES}))]},
        {"messages": [message], "tools": [tool({str(i): {} for i in range(MANY_VALUES)})]},
        {"messages": [message], "tools": [tool({"a": {"enum": ["x"] * MANY_VALUES}})]},
        {"messages": [message], "response_format": schema({str(i): {} for i in range(MANY_CARRIED + 1)})},
        {"generate_response": {"choices": many}},
        {"generate_response": {"choices": ids}},
        {"generate_responses": [{"choices": [{"index": 0}]}] * (MANY + 1)},
        {"stream": True, "generate_chunk": {"choices": many}},
        {"stream": True, "generate_chunk": {"choices": []}, "stream_state": {"output_token_ids": [1]}},
    ):
        assert takes_long(decode_invocation(json.dumps(body).encode())), body
    for body in (
        {"messages": [message] * MANY},
        {"messages": [called(json.dumps({"a": [[1]] * 100}))], "tools": [tool({"a": {"type": "string"}})] * 20},
        {"messages": [{"role": "user", "content": "a, [b], {c}. " * 5000}], "logit_bias": {"1": 1.0}},
        {"prompt": list(range(MANY + 1))},
        {"generate_response": {"choices": [{"index": 0, "token_ids": [1] * 4000}]}},
        {"stream": True, "generate_chunk": {"choices": [{"index": 0}]}, "stream_state": {"derender": 1}},
    ):
        assert not takes_long(decode_invocation(json.dumps(body).encode())), body


def test_the_slower_encoder_leaves_the_event_loop_earlier() -> None:
    request = decode_invocation(b'{"prompt":"a"}')
    assert takes_long(request, size=SLOW_BYTES + 1, slow_encoder=True)
    assert not takes_long(request, size=SLOW_BYTES, slow_encoder=True)
    assert not takes_long(request, size=SLOW_BYTES + 1)


def test_a_few_blocks_are_hashed_in_the_event_loop() -> None:
    request = decode_invocation(b'{"prompt":"a","return_block_hashes":true}')
    assert not takes_long(request, size=HASHED_BYTES)
    assert takes_long(request, size=HASHED_BYTES + 1)


def test_a_template_that_looks_through_all_messages_for_each_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jinja, "MAX_SECONDS", 0.2)
    quadratic = (
        "{% for m in messages %}{% for n in messages %}{% if n is string %}x{% endif %}{% endfor %}.{% endfor %}"
    )
    messages = [{"role": "user", "content": ""}] * 20_000
    started = time.monotonic()
    with pytest.raises(BadRequest, match=r"needs more than 0\.2 seconds"):
        ChatTemplate(quadratic).render(messages)
    assert time.monotonic() - started < 10
    assert ChatTemplate(quadratic).render(messages[:3]) == "..."
    monkeypatch.setattr(jinja, "MAX_CHARS", 100)
    with pytest.raises(BadRequest, match="needs more than 100 characters"):
        ChatTemplate("{% for m in messages %}{% for n in messages %}x{% endfor %}{% endfor %}").render(messages[:100])


def test_tojson_in_a_thread_writes_what_it_writes_elsewhere() -> None:
    """There it writes in parts, so that the event loop has its turns."""
    values = [
        {"a": {"b": [1, {"c": {"d": [None, True, 'é"\n', 1.5, 10**30]}}], "": {}}, "e": []},
        [[[[[[{}]]]]]],
        1,
        "x",
    ]
    template = ChatTemplate("{{ messages | tojson }}")
    messages = [{"role": "user", "content": values}]
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(template.render(messages)))
    thread.start()
    thread.join()
    assert found == [json.dumps(messages, ensure_ascii=False)] == [template.render(messages)]


def test_endless_templates_hold_up_nobody_else(port: int) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "chat_template": ENDLESS}).encode()
    wires = [Wire(port) for _ in range(8)]
    try:
        for wire in wires:
            wire.send(post_bytes(RENDER, body))
        time.sleep(0.5)
        started = time.monotonic()
        with Wire(port) as other:
            other.send(post_bytes("/tokenize", json.dumps({"prompt": "x" * 200_000}).encode()))
            assert other.answer()[0] == 200
        assert time.monotonic() - started < 10  # a template may take 30 seconds
    finally:
        for wire in wires:
            wire.sock.close()
        limited.stop_all()


def test_a_template_whose_client_has_left_is_killed(port: int) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "chat_template": ENDLESS}).encode()
    wires = [Wire(port) for _ in range(8)]
    for wire in wires:
        wire.send(post_bytes(RENDER, body))
    wait_for(lambda: bool(limited._running))
    for wire in wires:
        wire.sock.close()
    wait_for(lambda: not limited._running, seconds=10)
    started = time.monotonic()
    with Wire(port) as other:
        honest = {"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ messages[0].content }}"}
        other.send(post_bytes(RENDER, json.dumps(honest).encode()))
        assert other.answer()[0] == 200
    assert time.monotonic() - started < 10  # a template may take 30 seconds


def test_work_whose_client_has_left_is_not_begun() -> None:
    async def main() -> None:
        pool, go_on, done = WorkPool(workers=1), threading.Event(), []
        first = asyncio.create_task(pool.run(go_on.wait, size=1))
        one = Call("POST", "/", parts=[b"{}"], headers=[JSON])
        request = Request(method="POST", path="/", query=b"", headers={}, client=None, receive=one.receive)
        await one.receive()
        waiting = asyncio.create_task(request.unless_left(pool.run(lambda: done.append(1), size=1)))
        await asyncio.sleep(0.05)
        one.gone.set()
        with pytest.raises(http.ClientLeft):
            await waiting
        go_on.set()
        await first
        await pool.run(lambda: None, size=1)
        assert done == []
        await pool.close()
        with pytest.raises(Unavailable, match="shutting down"):
            await pool.run(lambda: None, size=1)

    asyncio.run(main())


def test_a_refused_body_is_not_kept() -> None:
    """No cycle of error, traceback and task holds it until a collection comes by."""

    class Body:
        pass

    async def refuse(body: Body) -> None:
        raise BadRequest("no")

    async def main() -> None:
        one = Call("POST", "/", parts=[b"{}"], headers=[JSON])
        request = Request(method="POST", path="/", query=b"", headers={}, client=None, receive=one.receive)
        await one.receive()
        body = Body()
        kept = weakref.ref(body)
        with contextlib.suppress(BadRequest):
            await request.unless_left(refuse(body))
        del body
        await asyncio.sleep(0)
        assert kept() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_a_process_that_cannot_be_started_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any, **__: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(limited.subprocess, "Popen", none_left)
    with pytest.raises(Unavailable, match="cannot start another process"):
        limited.render_limited("x", [{"role": "user", "content": ""}], model_name="m", seconds=1, max_chars=10)


@pytest.mark.parametrize("body", [b'{"a - at `$[' + b"9" * 5000 + b']`": 1}', b'{"messages": {"[9]": 1}}'])
def test_what_a_caller_spells_is_no_place(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        Decoder(ChatCompletionRequest)(body)
    assert caught.value.param == "body.messages"


# ----------------------------------------------------------------------------------------------------- shutdown


class Load:
    """Clients that ask one thing after the other until the server is gone. `kept`: on connections that they keep."""

    def __init__(self, port: int, *, kept: bool) -> None:
        self.answered = self.lost = 0
        self._port, self._kept = port, kept
        self._threads = [threading.Thread(target=self._ask) for _ in range(8)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        data = post_bytes(RENDER, CHAT, *([] if self._kept else ["Connection: close"]))
        while True:
            try:
                wire = Wire(self._port)
            except OSError:  # nobody listens any longer
                return
            with wire:
                try:
                    closes = False
                    while not closes:
                        wire.send(data)
                        status, headers, _ = wire.answer()
                        self.answered += status == 200
                        closes = headers.get("connection") == "close"
                except OSError:
                    self.lost += 1

    def end(self) -> None:
        for thread in self._threads:
            thread.join(30)


@pytest.mark.parametrize("kept", [True, False])
def test_a_shutdown_under_load_loses_no_request(model: str, kept: bool) -> None:
    with Served(model, "--host", "127.0.0.1", "--port", "0") as served:
        load = Load(served.port, kept=kept)
        wait_for(lambda: load.answered > 100)
        served.process.terminate()
        assert served.process.wait(20) == 0
        load.end()
    assert load.lost <= 1  # the kernel may have taken one connection when the listener ended


def test_a_shutdown_does_not_wait_for_templates(model: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "chat_template": ENDLESS}).encode()
    settings = ("--trust-request-chat-template", "--shutdown-timeout", "1")
    with Served(model, "--host", "127.0.0.1", "--port", "0", *settings) as served:
        wires = [Wire(served.port) for _ in range(6)]
        for wire in wires:
            wire.send(post_bytes(RENDER, body))
        time.sleep(0.5)
        wires[0].sock.close()
        started = time.monotonic()
        served.process.terminate()
        for wire in wires[1:]:
            assert wire.answer()[0] == 503
            wire.sock.close()
        assert served.process.wait(20) == 0
        assert time.monotonic() - started < 10


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
def test_a_worker_that_is_killed_takes_only_its_own_connections(model: str) -> None:
    with Served(model, "--host", "127.0.0.1", "--port", "0", "--workers", "2") as served:
        pid = served.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")

        def workers() -> list[int]:
            found = [int(child) for child in children.read_text().split()]
            return [one for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]

        kept = [Wire(served.port) for _ in range(40)]
        for wire in kept:
            wire.send(get_bytes("/health"))
            assert wire.answer()[0] == 200
        before = workers()
        os.kill(before[0], signal.SIGKILL)
        time.sleep(0.2)
        alive = 0
        for wire in kept:
            try:
                wire.send(post_bytes(RENDER, CHAT))
                alive += wire.answer()[0] == 200
            except OSError:
                continue
            finally:
                wire.sock.close()
        assert 0 < alive < 40  # the kernel spread them over both
        wait_for(lambda: len(workers()) == 2 and before[0] not in workers())
        with Wire(served.port) as wire:
            wire.send(post_bytes(RENDER, CHAT))
            assert wire.answer()[0] == 200
