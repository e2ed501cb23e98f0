"""The gateway's application: all that `derender serve` has, and the API itself in front of engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from derender.gateway.connecting import connect
from derender.gateway.loop import Gateway
from derender.gateway.pool import EnginePool
from derender.gateway.settings import EngineSpec, GatewaySettings
from derender.server.access_log import AccessLog, open_access_log
from derender.server.app import AppSettings, build_app
from derender.server.gateway_metrics import GatewayMetrics
from derender.server.gateway_routes import gateway_routes
from derender.server.http import App
from derender.server.pool import WorkPool

if TYPE_CHECKING:
    from derender.registry import ModelRegistry


@dataclass(frozen=True, kw_only=True)
class GatewayAppSettings:
    """What the gateway's application needs to know beside its models. `engines_file`: read again when it changes."""

    gateway: GatewaySettings
    engines: Sequence[EngineSpec] = ()
    engines_file: str | None = None
    access_log: bool = False
    log_prompts: bool = False
    embedded_slots: int = 8


def build_gateway_app(registry: ModelRegistry, *, settings: AppSettings, gateway: GatewayAppSettings) -> App:
    """The application that serves `registry` through engines."""
    metrics = GatewayMetrics()
    names = [model.names[0] for model in registry.models]
    connecting = partial(connect, slots=gateway.embedded_slots)
    engines = EnginePool(
        gateway.engines, settings=gateway.gateway.pool, connect=connecting, meter=metrics, models=names
    )
    loop = Gateway(engines, settings=gateway.gateway, meter=metrics)
    log = None
    if gateway.access_log:
        open_access_log()
        log = AccessLog(prompts=gateway.log_prompts)
    pool = WorkPool()
    return build_app(
        registry,
        settings=settings,
        metrics=metrics,
        pool=pool,
        more_routes=gateway_routes(registry, loop, pool=pool, log=log),
        on_startup=(engines.start,),
        on_shutdown=(engines.aclose,),
    )
