"""One server process: load the models, listen, serve until a signal, drain."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import uvicorn

from derender.server.app import AppSettings, build_app
from derender.server.connection import Connection
from derender.server.describe import describe_registry
from derender.server.listen import Address, ListenError, bind, describe, release
from derender.server.metrics import ServerMetrics

if TYPE_CHECKING:
    from derender.registry import ModelRegistry

Load = Callable[[], "ModelRegistry"]
"""Loads the models; goes to other processes, so it must be picklable. Raises `derender.model.ModelLoadError`."""

TRUSTED_OF_CLIENTS = ssl.CERT_NONE


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Files and rules for HTTPS. `cert_reqs` is one of the numbers of the standard library's `ssl.VerifyMode`."""

    keyfile: str | None = None
    certfile: str
    ca_certs: str | None = None
    cert_reqs: int = int(TRUSTED_OF_CLIENTS)


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How to listen, how many processes, what to log, how long to wait. Levels are lower-case names, times seconds."""

    address: Address = field(default_factory=Address)
    app: AppSettings = field(default_factory=AppSettings)
    workers: int = 1
    tls: Tls | None = None
    log_level: str = "info"
    uvicorn_log_level: str = "error"
    access_log: bool = False
    keep_alive_seconds: int = 5
    shutdown_seconds: int = 30


class _Server(uvicorn.Server):
    """uvicorn's server, telling when it listens."""

    def __init__(self, config: uvicorn.Config, *, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()


def serve(load: Load, *, settings: ServerSettings) -> int:
    """Serves until SIGTERM or SIGINT; gives the exit code. Prints what it serves and where, once it does.

    Raises `ListenError` and `derender.model.ModelLoadError` before anything is served.
    """
    configure_logging(settings)
    if settings.workers > 1:
        from derender.server.workers import serve_with_workers

        return serve_with_workers(load, settings=settings)
    sock = bind(settings.address)
    where = describe(settings.address, sock, tls=settings.tls is not None)
    try:
        serve_one(load, settings=settings, sock=sock, on_ready=lambda lines: announce(lines, where=where))
    except KeyboardInterrupt:  # raised again by uvicorn after it has drained
        pass
    finally:
        release(settings.address)
    return 0


def announce(lines: Sequence[str], *, where: str) -> None:
    """Prints what is served and where."""
    print(*lines, f"Listening on {where}", sep="\n", flush=True)


def serve_one(
    load: Load, *, settings: ServerSettings, sock: socket.socket, on_ready: Callable[[Sequence[str]], None]
) -> None:
    """Serves on `sock` in this process. `on_ready` is given the lines that tell what is served."""
    signal.signal(signal.SIGTERM, _leave)
    config = uvicorn_config(settings)
    registry = load()
    metrics = ServerMetrics()
    lines = describe_registry(registry, max_body_bytes=settings.app.max_body_bytes)
    config.app = build_app(registry, settings=settings.app, metrics=metrics)
    load_config(config)
    # What is loaded now stays: without this every full collection walks through all vocabularies.
    gc.collect()
    gc.freeze()
    _Server(config, on_ready=lambda: on_ready(lines)).run(sockets=[sock])


def _leave(signal_number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM outside of serving, before it or (raised again by uvicorn) after it has drained: a normal end."""
    raise SystemExit(0)


async def _no_app(*_: object) -> None:
    raise RuntimeError("no application")


def uvicorn_config(settings: ServerSettings) -> uvicorn.Config:
    """uvicorn's settings, without the application."""
    tls = settings.tls
    config = uvicorn.Config(
        _no_app,
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=settings.uvicorn_log_level,
        access_log=settings.access_log,
        proxy_headers=False,  # nothing here depends on the client's address
        server_header=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        ssl_keyfile=tls.keyfile if tls else None,
        ssl_certfile=tls.certfile if tls else None,
        ssl_ca_certs=tls.ca_certs if tls else None,
        ssl_cert_reqs=tls.cert_reqs if tls else int(TRUSTED_OF_CLIENTS),
    )
    if settings.access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    return config


def load_config(config: uvicorn.Config) -> None:
    """Loads TLS files. Raises `ListenError` for what cannot be read."""
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ListenError(f"cannot use the TLS files: {error.strerror or error}") from None


def configure_logging(settings: ServerSettings) -> None:
    """All logs to stderr: standard output has the start-up lines only."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    logging.getLogger("derender").setLevel(settings.log_level.upper())
