"""Prometheus metrics. Label children are bound once, so that a request costs a few increments."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from derender.protocol.generate import GenerateChoice, GenerateStreamChoice

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4.encode()

# A second series for each, of no use to anyone here.
disable_created_metrics()  # type: ignore[no-untyped-call]

# Seconds. A short chat takes tens of µs, a prompt of 100k tokens some tens of ms, a generated stream minutes.
_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 120)


class RouteMetrics:
    """The metrics of one route, their children bound when they are first needed."""

    __slots__ = ("_observe", "_requests", "_route", "_seconds", "_statuses")

    def __init__(self, route: str, *, requests: Counter, seconds: Histogram) -> None:
        self._route = route
        self._requests = requests
        self._seconds = seconds
        self._observe: Callable[[float], None] | None = None
        self._statuses: dict[int, Callable[[], None]] = {}

    def done(self, status: int, seconds: float) -> None:
        """One request answered; of a stream, when it has ended."""
        count = self._statuses.get(status)
        if count is None:
            count = self._statuses[status] = self._requests.labels(self._route, str(status)).inc
        if self._observe is None:
            self._observe = self._seconds.labels(self._route).observe
        count()
        self._observe(seconds)


class Stages:
    """Seconds that a request spends in each of its three stages."""

    __slots__ = ("decode", "encode", "model")

    def __init__(self, histogram: Histogram) -> None:
        self.decode = histogram.labels("decode")
        self.model = histogram.labels("model")
        self.encode = histogram.labels("encode")


class ServerMetrics:
    """All metrics of one server process, in a registry of its own.

    With `PROMETHEUS_MULTIPROC_DIR` set, `render` adds up what all worker processes wrote there.
    """

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "derender_requests", "Requests answered, by route and status.", ("route", "status"), registry=registry
        )
        self._seconds = Histogram(
            "derender_request_seconds",
            "Seconds from the request's head to the end of its answer.",
            ("route",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._errors = Counter("derender_errors", "Errors answered, by type.", ("type",), registry=registry)
        self._error_types: dict[str, Counter] = {}
        self.bodies_refused = Counter(
            "derender_bodies_refused", "Bodies refused because they are over the limit.", registry=registry
        )
        self.stages = Stages(
            Histogram(
                "derender_stage_seconds",
                "Seconds of work on a request's body, by stage.",
                ("stage",),
                buckets=_SECONDS,
                registry=registry,
            )
        )
        self.tokens_rendered = Counter("derender_tokens_rendered", "Prompt tokens rendered.", registry=registry)
        self._tokens_derendered = Counter(
            "derender_tokens_derendered", "Generated tokens derendered.", registry=registry
        )
        self._unknown_ids = Counter(
            "derender_unknown_ids_tolerated", "Token ids beyond the vocabulary that were tolerated.", registry=registry
        )
        self._unknown_seen = 0
        self._lock = threading.Lock()
        self.encoder_fallback = Gauge(
            "derender_encoder_fallback",
            "1 where a model does without the faster encoder, 0 where it has it.",
            ("model",),
            registry=registry,
            multiprocess_mode="max",
        )

    def route(self, path: str) -> RouteMetrics:
        """The metrics of one route, bound."""
        return RouteMetrics(path, requests=self._requests, seconds=self._seconds)

    def error(self, type_: str) -> None:
        """Counts an error that was answered."""
        counter = self._error_types.get(type_)
        if counter is None:
            counter = self._error_types[type_] = self._errors.labels(type_)
        counter.inc()

    def derendered(self, choices: Iterable[GenerateChoice | GenerateStreamChoice]) -> None:
        """Counts the tokens of choices that were derendered."""
        self._tokens_derendered.inc(sum(len(choice.token_ids or ()) for choice in choices))

    def unknown_ids_are(self, total: int) -> None:
        """Brings the counter of tolerated ids up to this process's total."""
        with self._lock:
            if total > self._unknown_seen:
                self._unknown_ids.inc(total - self._unknown_seen)
                self._unknown_seen = total

    def render(self) -> bytes:
        """The metrics in Prometheus's text format."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._registry)
        from prometheus_client.multiprocess import MultiProcessCollector

        merged = CollectorRegistry()
        MultiProcessCollector(merged)  # type: ignore[no-untyped-call]
        return generate_latest(merged)
