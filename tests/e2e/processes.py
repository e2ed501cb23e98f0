"""Servers in processes of their own: started together, watched while they start, and stopped whatever happens."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.e2e.client import Client

DERENDER = (sys.executable, "-m", "derender")
_STOP_SECONDS = 20.0
_TAIL = 4000  # characters of a log that a report shows
_GUARD = """
import os, signal, sys, time
sys.stdin.read()  # until the tests' process is gone
for number in (signal.SIGTERM, signal.SIGKILL):
    try:
        os.killpg(int(sys.argv[1]), number)
    except ProcessLookupError:
        break
    time.sleep(5)
"""

_logs: dict[str, Path] = {}  # of the servers that run


@contextlib.contextmanager
def servers(
    commands: Mapping[str, Sequence[str]],
    *,
    logs: Path,
    patience: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Client]]:
    """Starts all commands at once, each on a free port of the loopback; gives a client for each name.

    `patience`: seconds in which all must answer `/health`. Standard output and error go to `logs`/NAME.log, which stay
    there. All are stopped at the end, or when this process is killed.
    """
    with contextlib.ExitStack() as stack:
        started = {}
        for name, command in commands.items():
            port = _free_port()
            process = _start([*command, "--host", "127.0.0.1", "--port", str(port)], logs / f"{name}.log", environment)
            stack.callback(_stop, process, _guard(process))
            stack.callback(_logs.pop, name, None)
            _logs[name] = logs / f"{name}.log"
            started[name] = process, Client(port)
        deadline = time.monotonic() + patience
        for name, (process, client) in started.items():
            _wait(name, process, client, deadline)
        yield {name: client for name, (_, client) in started.items()}


def show_logs(report: pytest.TestReport) -> None:
    """Adds to the report of a failed test where the logs of the running servers are, and how they end."""
    if report.failed:
        for name, path in _logs.items():
            report.sections.append((f"server {name}: end of {path}", _tail(path)))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(command: Sequence[str], log: Path, environment: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        out.write(f"$ {shlex.join(command)}\n".encode())
        out.flush()
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )


def _guard(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """A process that ends the server's group if this one is killed: then its standard input is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", _GUARD, str(process.pid)], stdin=subprocess.PIPE, start_new_session=True
    )


def _wait(name: str, process: subprocess.Popen[bytes], client: Client, deadline: float) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"{name} ended with {process.returncode}:\n{_tail(_logs[name])}", pytrace=False)
        with contextlib.suppress(OSError):
            if client.ask("GET", "/health").status == 200:
                return
        time.sleep(0.05)
    pytest.fail(f"{name} did not start:\n{_tail(_logs[name])}", pytrace=False)


def _stop(process: subprocess.Popen[bytes], guard: subprocess.Popen[bytes]) -> None:
    """Ends the process, then what is left of its group."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    guard.kill()
    guard.communicate()


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-_TAIL:]
