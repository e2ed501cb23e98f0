"""The gateway's application: all that `derender serve` has, and the API itself in front of engines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from derender.gateway.backends import Backend, backend_name
from derender.gateway.connecting import EMBEDDED, Connector
from derender.gateway.engines_file import load_engines, watch
from derender.gateway.loop import Gateway
from derender.gateway.pool import EnginePool
from derender.gateway.settings import EngineSpec, GatewaySettings
from derender.gateway.unused import by_first_name, unused
from derender.server.access_log import AccessLog, open_access_log
from derender.server.app import AppSettings, build_app
from derender.server.gateway_metrics import GatewayMetrics
from derender.server.gateway_routes import gateway_routes
from derender.server.http import App
from derender.server.pool import WorkPool
from derender.server.tracing import Tracing

if TYPE_CHECKING:
    from derender.registry import ModelRegistry

logger = logging.getLogger("derender.gateway")


@dataclass(frozen=True, kw_only=True)
class GatewayAppSettings:
    """What the gateway's application needs to know beside its models.

    `engines_file`: engines beside those in `engines`, read again when it changes. `embedded_slots`: sequences at once
    of an embedded engine.
    """

    gateway: GatewaySettings
    engines: Sequence[EngineSpec] = ()
    engines_file: str | None = None
    embedded_slots: int = 8
    access_log: bool = False
    log_prompts: bool = False
    traces_endpoint: str | None = None


def build_gateway_app(registry: ModelRegistry, *, settings: AppSettings, gateway: GatewayAppSettings) -> App:
    """The application that serves `registry` through engines.

    Raises `ModelLoadError` for an embedded engine that cannot be loaded, `EnginesFileError`, `TracingUnavailable`.
    """
    metrics = GatewayMetrics()
    names = [model.names for model in registry.models]
    own = by_first_name(gateway.engines, names=names)
    file = gateway.engines_file
    read = load_engines(file) if file is not None else ()

    def listed(of_file: Sequence[EngineSpec]) -> tuple[EngineSpec, ...]:
        specs = (*own, *by_first_name(of_file, names=names))
        for spec, what in unused(specs, names=names):
            logger.warning("engine %s %s", backend_name(spec), what)
        return specs

    engines = EnginePool(
        listed(read),
        settings=gateway.gateway.pool,
        connect=Connector(own, slots=gateway.embedded_slots),
        meter=metrics,
        models=[one[0] for one in names],
    )
    log = None
    if gateway.access_log:
        open_access_log()
        log = AccessLog(prompts=gateway.log_prompts)
    tracing = Tracing(endpoint=gateway.traces_endpoint) if gateway.traces_endpoint else None
    pool = WorkPool()
    loop = Gateway(engines, settings=gateway.gateway, meter=metrics)
    watching: list[asyncio.Task[None]] = []

    async def start() -> None:
        await engines.start()
        app.lines += [_line(backend) for backend in engines.backends]
        if file is not None:
            changes = watch(file, lambda specs: engines.set_specs(listed(specs)), current=read)
            watching.append(asyncio.ensure_future(changes))

    async def end() -> None:
        for task in watching:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await engines.aclose()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)

    app = build_app(
        registry,
        settings=settings,
        metrics=metrics,
        pool=pool,
        more_routes=gateway_routes(registry, loop, pool=pool, log=log, tracing=tracing),
        on_startup=(start,),
        on_shutdown=(end,),
    )
    return app


def _line(backend: Backend) -> str:
    """What is said of an engine at the start."""
    spec = backend.spec
    name = "embedded" if spec.url.startswith(EMBEDDED) else backend.name
    if not backend.connected or not backend.up:
        return f"Engine {name}: not up, will be tried again"
    does = []
    if backend.capabilities is not None:
        able = backend.capabilities
        does = [
            "stop strings here" if not able.stop_strings else "stop strings",
            "guided output" if able.structured_outputs else "no guided output",
            *(["no prompt logprobs"] if not able.prompt_logprobs else []),
        ]
    served = ", ".join(backend.served) or "?"
    return f"Engine {name}: serves {served}; {', '.join(does)}"
