"""Real servers on the loopback, and a client that can misbehave."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from derender.server.http import App
from derender.server.listen import Address, bind
from derender.server.run import Server, ServerSettings, uvicorn_config

PATIENCE = 20.0  # seconds


@contextlib.contextmanager
def running(app: App, **settings: Any) -> Iterator[int]:
    """`app` in a thread of this process; gives the port."""
    chosen = ServerSettings(address=Address(host="127.0.0.1", port=0), **settings)
    sock = bind(chosen.address)
    ready = threading.Event()
    server = Server(uvicorn_config(app, settings=chosen), on_ready=ready.set)
    thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


class Wire:
    """A connection, byte by byte. `target`: a port of the loopback, or the path of a Unix socket."""

    def __init__(self, target: int | str, *, wrap: Callable[[socket.socket], socket.socket] | None = None) -> None:
        if isinstance(target, int):
            sock = socket.create_connection(("127.0.0.1", target), timeout=PATIENCE)
        else:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(PATIENCE)
            sock.connect(target)
        self.sock = wrap(sock) if wrap else sock
        self._held = bytearray()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def until(self, mark: bytes) -> bytes:
        """What comes up to and with `mark`. Raises `ConnectionError` if the connection ends before it."""
        while mark not in self._held:
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionError(f"closed after {self._held!r}")
            self._held += data
        return self._take(self._held.index(mark) + len(mark))

    def _take(self, size: int) -> bytes:
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """One answer with a length: status, headers, body."""
        head = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        size = int(headers.get("content-length", "0"))
        while len(self._held) < size:
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionError("closed in the body")
            self._held += data
        return int(head[0].split()[1]), headers, self._take(size)

    def ended(self, within: float = PATIENCE) -> bool:
        """Whether the server closes the connection in time, having sent nothing more."""
        readable, _, _ = select.select([self.sock], [], [], within)
        if not readable:
            return False
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True


def post_bytes(path: str, body: bytes, *headers: str) -> bytes:
    """A POST request, whole."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get_bytes(path: str, *headers: str) -> bytes:
    """A GET request."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers]).encode() + b"\r\n\r\n"


def post_json(target: int | str, path: str, body: Any) -> tuple[int, Any]:
    """Posts to a server on a connection of its own: status, decoded answer."""
    with Wire(target) as wire:
        wire.send(post_bytes(path, json.dumps(body).encode()))
        status, _, answer = wire.answer()
        return status, json.loads(answer)


class Served:
    """`derender serve …` in a process of its own."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "derender", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.lines: list[str] = []
        self.port = 0

    def wait(self) -> Served:
        """Waits until it listens."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            found = re.match(r"Listening on (?:https?://.*:(\d+)|unix:.*)$", line)
            if found:
                self.port = int(found[1] or 0)
                return self
        raise AssertionError(f"did not start: {self.process.stderr.read() if self.process.stderr else ''}")

    def __enter__(self) -> Served:
        return self.wait()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.end()

    def end(self) -> tuple[int, str, str]:
        """Waits for its end: exit code, the rest of standard output, standard error."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err


def wait_for(true: Callable[[], bool], *, seconds: float = PATIENCE) -> None:
    """Waits until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
