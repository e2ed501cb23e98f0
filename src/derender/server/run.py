"""One server process: load the models, listen, serve until a signal, drain."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, cast

import uvicorn

from derender.server.app import AppSettings, build_app
from derender.server.connection import Connection
from derender.server.describe import describe_registry
from derender.server.http import App
from derender.server.interpreter import settle
from derender.server.listen import Address, ListenError, bind, describe, release

if TYPE_CHECKING:
    from derender.registry import ModelRegistry

Load = Callable[[], "ModelRegistry"]
"""Loads the models; goes to other processes, so it must be picklable. Raises `derender.model.ModelLoadError`."""

Build = Callable[..., App]
"""Makes the application: called with the registry, and `settings`, an `AppSettings`. Picklable, too."""

_NO_CLIENT_CERTIFICATES = ssl.CERT_NONE
_ACCEPT_SECONDS = 0.1
_APP_TICKS = 10  # of 0.1 seconds, between two of the application's
_SWEEP_TICKS = 20  # of 0.1 seconds, between two looks for silent connections


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Files and rules for HTTPS. `cert_reqs` is one of the numbers of the standard library's `ssl.VerifyMode`."""

    keyfile: str | None = None
    certfile: str
    ca_certs: str | None = None
    cert_reqs: int = int(_NO_CLIENT_CERTIFICATES)


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
    build: Build = build_app
    """Makes the application of the loaded models: `build_app`, or what does more; other processes get it pickled."""


class Server(uvicorn.Server):
    """uvicorn's server, telling when it listens."""

    def __init__(self, config: uvicorn.Config, *, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        if counter % _APP_TICKS == 0:
            cast("App", self.config.app).tick()
        if counter % _SWEEP_TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.end_if_silent(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends in steps, so that no request is lost that is on its way: answers say `connection: close`, connections
        that the kernel has taken come in (they would be reset with the listener's end), and what those ask is read."""
        self.server_state.draining = True  # type: ignore[attr-defined]
        for connection in self.server_state.connections:
            if isinstance(connection, Connection) and connection.cycle is not None:
                connection.cycle.keep_alive = False
        await asyncio.sleep(_ACCEPT_SECONDS)
        for sock in sockets or ():
            sock.listen(0)  # the kernel takes no more than one
        await asyncio.sleep(_ACCEPT_SECONDS)
        for server in self.servers:
            server.close()
        await asyncio.sleep(_ACCEPT_SECONDS)
        await super().shutdown(sockets=sockets)


def serve(load: Load, *, settings: ServerSettings) -> int:
    """Serves until SIGTERM or SIGINT; gives the exit code. Prints what it serves and where, once it does.

    Raises `ListenError` and `derender.model.ModelLoadError` before anything is served.
    """
    configure_logging(settings)
    check_tls(settings)
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
    signal.signal(signal.SIGTERM, leave)
    registry = load()
    lines = describe_registry(registry, max_body_bytes=settings.app.max_body_bytes)
    app = settings.build(registry, settings=settings.app)
    run_app(app, settings=settings, sock=sock, on_ready=lambda: on_ready([*lines, *app.lines]))


def run_app(app: App, *, settings: ServerSettings, sock: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serves `app` on `sock` until SIGTERM or SIGINT, then drains. Raises `ListenError`, `SystemExit(0)` at SIGTERM,
    `KeyboardInterrupt` at SIGINT."""
    signal.signal(signal.SIGTERM, leave)
    config = uvicorn_config(app, settings=settings)
    settle()
    Server(config, on_ready=on_ready).run(sockets=[sock])


def leave(signal_number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM outside of serving, before it or (raised again by uvicorn) after it has drained: a normal end."""
    raise SystemExit(0)


def uvicorn_config(app: App, *, settings: ServerSettings) -> uvicorn.Config:
    """uvicorn's settings, loaded. Raises `ListenError` for TLS files that cannot be used."""
    tls = settings.tls
    config = uvicorn.Config(
        app,
        workers=1,  # or uvicorn would read WEB_CONCURRENCY
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
        ssl_cert_reqs=tls.cert_reqs if tls else int(_NO_CLIENT_CERTIFICATES),
    )
    if settings.access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ListenError(f"cannot use the TLS files: {error.strerror or error}") from None
    return config


def check_tls(settings: ServerSettings) -> None:
    """Raises `ListenError` for TLS files that cannot be used, before the time it takes to load a model."""
    if settings.tls is not None:
        uvicorn_config(App((), max_body_bytes=0), settings=settings)


def configure_logging(settings: ServerSettings) -> None:
    """All logs to stderr: standard output has the start-up lines only."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    logging.getLogger("derender").setLevel(settings.log_level.upper())
