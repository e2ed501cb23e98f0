"""A gateway that is a process of its own, in front of engines that fail: how it drains."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tests.gateway.faulty_engine import IDS, Ask, Connection, FaultyEngine, choice, chunk, until
from tests.gateway.under_test import CHAT, body, events, run
from tests.server.live import PATIENCE, Served, Wire, post_bytes, post_json
from tests.server.tiny_model import write_tiny_model

T = TypeVar("T")


class Gateway(Served):
    """`derender gateway …` in a process of its own."""

    def __init__(self, model: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "derender", "gateway", model, "--host", "127.0.0.1", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        self.lines = []
        self.port = 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


def outside(main: Callable[[], T]) -> asyncio.Future[T]:
    """The client's side, in a thread: the engine is in the event loop."""
    return asyncio.ensure_future(asyncio.to_thread(main))


def streamed(port: int, begun: Callable[[], None]) -> bytes:
    """The body of a stream; `begun` is called when its first event has come."""
    asked = body(CHAT, stream=True)
    del asked["model"]
    with Wire(port) as wire:
        wire.send(post_bytes(CHAT, json.dumps(asked).encode()))
        wire.until(b"\r\n\r\n")
        got = wire.until(b"\n\n")
        begun()
        while not got.endswith(b"0\r\n\r\n"):
            got += wire.until(b"\r\n")
    return _unchunked(got)


def _unchunked(data: bytes) -> bytes:
    made = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        made, data = made + data[:length], data[length + 2 :]
    return made


def test_streams_end_as_they_would_when_it_is_told_to_end(model: str) -> None:
    async def main() -> None:
        going = asyncio.Event()

        async def behave(ask: Ask, to: Connection) -> None:
            await to.head()
            await to.event(chunk(ask, choice(0, [IDS[0]])))
            await going.wait()
            await to.event(chunk(ask, choice(0, IDS[1:], finish="stop")))
            await to.event(b"[DONE]")
            await to.end()

        async with FaultyEngine(lambda ask: behave) as engine:
            served = Gateway(model, "--engine", engine.url, "--engine-kind", "vllm")
            try:
                await outside(served.wait)
                loop, begun = asyncio.get_running_loop(), asyncio.Event()
                client = outside(lambda: streamed(served.port, lambda: _set(loop, begun)))
                await begun.wait()
                served.process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.5)
                assert served.process.poll() is None
                going.set()
                told = events(await client)
                assert told[-1] == "[DONE]"
                assert "error" not in told[-2]
                code, _, err = await outside(served.end)
                assert code == 0
                assert "ERROR" not in err
                assert "Traceback" not in err
            finally:
                served.process.kill()
            assert not engine.aborts
            await until(lambda: not engine.open)

    run(main)


def test_what_does_not_end_in_time_is_ended_at_the_engine(model: str) -> None:
    async def main() -> None:
        async def behave(ask: Ask, to: Connection) -> None:
            if ask.streams:
                await to.head()
                await to.event(chunk(ask, choice(0, [IDS[0]])))
            await asyncio.Event().wait()

        async with FaultyEngine(lambda ask: behave) as engine:
            served = Gateway(model, "--engine", engine.url, "--engine-kind", "vllm", "--shutdown-timeout", "1")
            try:
                await outside(served.wait)
                loop, begun = asyncio.get_running_loop(), asyncio.Event()
                client = outside(lambda: streamed(served.port, lambda: _set(loop, begun)))
                whole = body(CHAT)
                del whole["model"]
                other = outside(lambda: post_json(served.port, CHAT, whole))
                await begun.wait()
                await until(lambda: len(engine.asked) == 2)
                served.process.send_signal(signal.SIGTERM)
                told = events(await client)
                assert told[-1] == "[DONE]"
                assert told[-2]["error"]["code"] == 503
                status, answer = await other
                assert status == 503
                assert answer["error"]["message"] == "the server is shutting down"
                assert await outside(lambda: served.process.wait(PATIENCE)) == 0
            finally:
                served.process.kill()
                await outside(served.process.communicate)
            assert set(engine.aborts) == {ask.id for ask in engine.asked}
            await until(lambda: not engine.open)

    run(main)


def test_the_engines_file_is_read_again(model: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FaultyEngine() as a, FaultyEngine() as b:
            file = tmp_path / "engines.toml"
            file.write_text(f'[[engine]]\nurl = "{a.url}"\nkind = "vllm"\n')
            served = Gateway(model, "--engines-file", str(file))
            asked = body(CHAT)
            del asked["model"]
            try:
                await outside(served.wait)
                assert (await outside(lambda: post_json(served.port, CHAT, asked)))[0] == 200
                file.write_text("[[engine")
                await asyncio.sleep(0.1)
                assert (await outside(lambda: post_json(served.port, CHAT, asked)))[0] == 200
                assert (len(a.asked), len(b.asked)) == (2, 0)
                file.write_text(f'[[engine]]\nurl = "{b.url}"\nkind = "vllm"\n')
                clock = asyncio.get_running_loop().time
                end = clock() + PATIENCE
                while not b.asked:
                    assert clock() < end
                    assert (await outside(lambda: post_json(served.port, CHAT, asked)))[0] == 200
                    await asyncio.sleep(0.05)
                await a.kill()
                assert (await outside(lambda: post_json(served.port, CHAT, asked)))[0] == 200
            finally:
                served.process.terminate()
                await outside(served.process.communicate)
            await a.start()

    run(main)


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    loop.call_soon_threadsafe(event.set)
