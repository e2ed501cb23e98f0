"""The server's application: a registry of models, its routes, metrics and work pool in one ASGI callable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from derender.server.cors import Cors
from derender.server.http import App, Hook
from derender.server.messages import Route
from derender.server.metrics import TextMetrics
from derender.server.pool import WorkPool
from derender.server.routes import build_routes

if TYPE_CHECKING:
    from derender.registry import ModelRegistry


@dataclass(frozen=True, kw_only=True)
class AppSettings:
    """What the application does beside serving its models."""

    max_body_bytes: int = 64 << 20
    api_keys: Sequence[str] = ()
    cors: Cors | None = None
    root_path: str = ""
    request_id_headers: bool = False
    tokenizer_info: bool = False
    docs: bool = True


def build_app(
    registry: ModelRegistry,
    *,
    settings: AppSettings,
    metrics: TextMetrics | None = None,
    pool: WorkPool | None = None,
    more_routes: Sequence[Route] = (),
    on_startup: Sequence[Hook] = (),
    on_shutdown: Sequence[Hook] = (),
) -> App:
    """The application that serves `registry`; with routes and hooks beside its own for what is built on it."""
    metrics = metrics or TextMetrics()
    for model in registry.models:
        metrics.encoder_fallback.labels(model.names[0]).set(1 if model.tokenizer.encoder.reason else 0)
    metrics.watch(registry.totals)
    pool = pool or WorkPool()
    app: App

    def running() -> int:
        return app.running

    routes = build_routes(
        registry,
        pool=pool,
        metrics=metrics,
        load=running,
        tokenizer_info=settings.tokenizer_info,
        docs=settings.docs,
        root_path=settings.root_path,
        max_record_bytes=settings.max_body_bytes,
        more=more_routes,
    )
    app = App(
        routes,
        max_body_bytes=settings.max_body_bytes,
        api_keys=settings.api_keys,
        metrics=metrics,
        on_startup=on_startup,
        on_shutdown=(*on_shutdown, pool.close, _stop_templates),
        cors=settings.cors,
        root_path=settings.root_path,
        request_id_headers=settings.request_id_headers,
    )
    return app


async def _stop_templates() -> None:
    from derender.template.limited import stop_all

    stop_all()
