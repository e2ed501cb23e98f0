"""The generate server in a process of its own with a real model: start, load, departures, stop."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.engines.real_model import gguf
from tests.server.live import Wire, get_bytes, post_bytes, post_json, wait_for

pytestmark = pytest.mark.real

PATH = "/inference/v1/generate"
START = (
    "import sys, json; from derender.server.generate import run_generate; "
    "run_generate(sys.argv[1], uds=sys.argv[2], served_model_name=['m'], threads=1, max_model_len=1024, parallel=8)"
)


def process(model: Path, place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START, str(model), str(place)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def served(place: Path) -> Iterator[subprocess.Popen[str]]:
    """The server, listening; killed at the end where it still runs."""
    started = process(gguf(), place)
    try:
        assert started.stdout is not None
        for line in started.stdout:
            if line == f"Listening on unix:{place}\n":
                break
        else:
            raise AssertionError(started.stderr.read() if started.stderr else "")
        yield started
    finally:
        started.kill()
        started.communicate()


def body(prompt: list[int], *, stream: bool = False, **params: Any) -> dict[str, Any]:
    return {"token_ids": prompt, "stream": stream, "sampling_params": {"temperature": 0, "ignore_eos": True, **params}}


def load(place: str) -> int:
    with Wire(place) as wire:
        wire.send(get_bytes("/load"))
        return int(json.loads(wire.answer()[2])["server_load"])


def streamed(place: str, asked: dict[str, Any]) -> list[int]:
    ids: list[int] = []
    with Wire(place) as wire:
        wire.send(post_bytes(PATH, json.dumps(asked).encode()))
        wire.until(b"\r\n\r\n")
        while True:
            event = wire.until(b"\n\n").split(b"data: ", 1)[1].strip()
            if event == b"[DONE]":
                return ids
            ids += json.loads(event)["choices"][0]["token_ids"]


def test_eight_clients_departures_and_a_graceful_stop(tmp_path):
    place = str(tmp_path / "socket")
    with served(tmp_path / "socket") as server:
        prompts = [[500 + i] * 12 for i in range(8)]
        whole = [post_json(place, PATH, body(prompt, max_tokens=10)) for prompt in prompts]
        assert {status for status, _ in whole} == {200}
        alone = [answer["choices"][0]["token_ids"] for _, answer in whole]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda prompt: streamed(place, body(prompt, stream=True, max_tokens=10)), prompts))
        assert together == alone

        for stream in (False, True):
            wire = Wire(place)
            wire.send(post_bytes(PATH, json.dumps(body(prompts[0], stream=stream, max_tokens=1000)).encode()))
            wait_for(lambda: load(place) == 1)
            wire.sock.close()
            left = time.monotonic()
            wait_for(lambda: load(place) == 0)
            assert time.monotonic() - left < 1

        with ThreadPoolExecutor(1) as pool:
            last = pool.submit(post_json, place, PATH, body(prompts[1], max_tokens=100))
            wait_for(lambda: load(place) == 1)
            server.send_signal(signal.SIGTERM)
            status, answer = last.result(20)
        assert status == 200
        assert len(answer["choices"][0]["token_ids"]) == 100
        assert server.wait(10) == 0
        assert server.stderr is not None
        assert server.stderr.read() == ""
        assert not Path(place).exists()


def test_what_keeps_it_from_starting_is_one_line(tmp_path):
    gguf()
    started = process(tmp_path / "none.gguf", tmp_path / "socket")
    out, err = started.communicate(timeout=20)
    assert (started.returncode, out) == (1, "")
    assert err == f"derender: {tmp_path / 'none.gguf'}: no such file\n"
