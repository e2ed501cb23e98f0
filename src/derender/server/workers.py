"""Several server processes: started, watched, replaced when one dies, drained together."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from time import monotonic
from types import FrameType

from derender.model import ModelLoadError
from derender.server.listen import Address, ListenError, bind, check_free, describe, release
from derender.server.run import (
    Load,
    ServerSettings,
    announce,
    configure_logging,
    serve_one,
)

logger = logging.getLogger("derender.server")

_METRICS_DIR = "PROMETHEUS_MULTIPROC_DIR"
_RETRY_SECONDS = 1.0  # before a worker is started again that died before it served
_KILL_SECONDS = 5.0  # beyond the time to drain

_spawn = multiprocessing.get_context("spawn")  # a fork would copy locks of the tokenizers' thread pools in any state


def serve_with_workers(load: Load, *, settings: ServerSettings) -> int:
    """Serves with `settings.workers` processes until a signal; gives the exit code. Raises `ListenError`, also where
    there is no directory for what the workers count."""
    check_free(settings.address)
    sock = bind(settings.address, shared=True)
    metrics_dir = None if _METRICS_DIR in os.environ else _temporary_dir()
    if metrics_dir is not None:
        os.environ[_METRICS_DIR] = metrics_dir
    try:
        return _Supervisor(load, settings, sock).run()
    finally:
        release(settings.address)
        if metrics_dir is not None:
            shutil.rmtree(metrics_dir, ignore_errors=True)


def _temporary_dir() -> str:
    try:
        return tempfile.mkdtemp(prefix="derender-metrics-")
    except OSError as error:
        raise ListenError(
            f"several workers need a directory for their metrics: set TMPDIR or {_METRICS_DIR} to one that can be "
            f"written ({error.strerror or error})"
        ) from None


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: connection.Connection
    ready: bool = False
    dead: bool = False


class _Supervisor:
    def __init__(self, load: Load, settings: ServerSettings, sock: socket.socket) -> None:
        self._load = load
        self._settings = settings
        self._sock = sock
        self._workers: list[_Worker] = []
        self._retry_at: list[float] = []
        self._announced = False
        self._stopping = False
        self._exit_code = 0
        self._wake, self._waker = os.pipe()

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        for _ in range(self._settings.workers):
            self._start()
        while not self._stopping:
            self._wait()
        self._stop()
        return self._exit_code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        os.write(self._waker, b"x")

    def _start(self) -> None:
        ours, theirs = _spawn.Pipe(duplex=False)
        port = self._sock.getsockname()[1] if self._settings.address.uds is None else None
        # A Unix socket cannot be bound twice: its workers take from one queue.
        handed = None if port is not None else self._sock
        process = _spawn.Process(target=_work, args=(self._load, self._settings, port, handed, theirs))
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))

    def _wait(self) -> None:
        """Waits for a message, a death, a signal or the time to start a worker again, and acts on it."""
        watched: list[int | connection.Connection] = [self._wake]
        for worker in self._workers:
            watched.append(worker.process.sentinel)
            if not worker.ready:
                watched.append(worker.pipe)
        timeout = max(0.0, min(self._retry_at) - monotonic()) if self._retry_at else None
        connection.wait(watched, timeout)
        for worker in self._workers:
            self._look_at(worker)
        self._workers = [worker for worker in self._workers if not worker.dead]
        if self._stopping:
            return
        due = [at for at in self._retry_at if at <= monotonic()]
        self._retry_at = [at for at in self._retry_at if at > monotonic()]
        for _ in due:
            self._start()

    def _look_at(self, worker: _Worker) -> None:
        failure: str | None = None
        if not worker.ready and worker.pipe.poll():
            try:
                ok, said = worker.pipe.recv()
            except EOFError:
                ok, said = False, [f"a worker ended while it started (exit code {_exit_code(worker)})"]
            if ok:
                worker.ready = True
                self._announce(said)
            else:
                failure = said[0]
        if worker.process.is_alive() and failure is None:
            return
        worker.process.join()
        worker.pipe.close()
        worker.dead = True
        _bury(worker.process)
        if self._stopping:
            return
        if not worker.ready and not self._announced:
            print(
                f"derender: {failure}"
                if failure
                else f"derender: a worker ended with exit code {worker.process.exitcode}",
                file=sys.stderr,
            )
            self._exit_code = 1
            self._stopping = True
            return
        logger.error("worker %d ended (%s); starting another", worker.process.pid, failure or _exit_code(worker))
        self._retry_at.append(monotonic() + (0.0 if worker.ready else _RETRY_SECONDS))

    def _announce(self, lines: Sequence[str]) -> None:
        if self._announced or not all(worker.ready for worker in self._workers):
            return
        self._announced = True
        where = describe(self._settings.address, self._sock, tls=self._settings.tls is not None)
        announce([*lines, f"Workers: {len(self._workers)}"], where=where)

    def _stop(self) -> None:
        self._sock.close()
        for worker in self._workers:
            worker.process.terminate()
        deadline = monotonic() + self._settings.shutdown_seconds + _KILL_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - monotonic()))
            if worker.process.is_alive():
                logger.error("worker %d does not end; killing it", worker.process.pid)
                worker.process.kill()
                worker.process.join()
            _bury(worker.process)


def _bury(process: SpawnProcess) -> None:
    """Removes what a process that has ended told of its present state; what it counted stays in the sums."""
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(process.pid)  # type: ignore[no-untyped-call]


def _exit_code(worker: _Worker) -> str:
    worker.process.join(1.0)
    return f"exit code {worker.process.exitcode}"


def _work(
    load: Load,
    settings: ServerSettings,
    port: int | None,
    handed: socket.socket | None,
    pipe: connection.Connection,
) -> None:
    """A worker process: serves, and tells the parent when it does or why it cannot."""
    configure_logging(settings)
    _end_with_parent()
    try:
        sock = handed
        if sock is None:
            sock = bind(Address(host=settings.address.host, port=port or 0), shared=True)
        serve_one(load, settings=settings, sock=sock, on_ready=lambda lines: pipe.send((True, list(lines))))
    except (ModelLoadError, ListenError) as error:
        pipe.send((False, [str(error)]))
        raise SystemExit(1) from None
    except KeyboardInterrupt:  # the terminal's Ctrl-C, after the requests in work have ended
        raise SystemExit(0) from None


def _end_with_parent() -> None:
    """A worker whose parent is gone drains and ends: nobody would replace or stop it."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="derender-parent", daemon=True).start()
