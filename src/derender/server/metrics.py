"""Prometheus metrics, counted as plain numbers while requests are served and handed on from time to time."""

from __future__ import annotations

import contextlib
import os
from collections import deque
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
from derender.totals import ModelTotals

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4.encode()

# A second series for each, of no use to anyone here.
disable_created_metrics()  # type: ignore[no-untyped-call]

# Seconds. A short chat takes tens of µs, a prompt of 100k tokens some tens of ms, a generated stream minutes.
_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 120)


_KEPT = 256  # values that are held before they are handed on, where nobody asks for them earlier


class RouteMetrics:
    """The metrics of one route. For the event loop's thread only; `flush` hands on what came since the last one."""

    __slots__ = ("_bound", "_counts", "_observe", "_requests", "_route", "_seconds", "_times")

    def __init__(self, route: str, *, requests: Counter, seconds: Histogram) -> None:
        self._route = route
        self._requests = requests
        self._seconds = seconds
        self._observe: Callable[[float], None] | None = None
        self._bound: dict[int, Counter] = {}
        self._counts: dict[int, int] = {}
        self._times: list[float] = []

    def done(self, status: int, seconds: float) -> None:
        """One request answered; of a stream, when it has ended."""
        counts = self._counts
        counts[status] = counts.get(status, 0) + 1
        self._times.append(seconds)
        if len(self._times) >= _KEPT:
            self.flush()

    def flush(self) -> None:
        """Hands on what is held; the children are bound when they are first needed."""
        if not self._times:
            return
        if self._observe is None:
            self._observe = self._seconds.labels(self._route).observe
        for status, count in self._counts.items():
            if status not in self._bound:
                self._bound[status] = self._requests.labels(self._route, str(status))
            self._bound[status].inc(count)
        for seconds in self._times:
            self._observe(seconds)
        self._counts.clear()
        self._times.clear()


def generated_tokens(choices: Iterable[GenerateChoice | GenerateStreamChoice]) -> int:
    """How many tokens choices of an engine have."""
    return sum(len(choice.token_ids or ()) for choice in choices)


class ServerMetrics:
    """The metrics of any server process, in a registry of its own.

    What each request counts is held as plain numbers and handed on to Prometheus's objects in one go (`flush`, called
    about once a second, and before the metrics are read): their locks and lookups took a tenth of a short request.

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
        self._routes: list[RouteMetrics] = []

    def route(self, path: str) -> RouteMetrics:
        """The metrics of one route."""
        metrics = RouteMetrics(path, requests=self._requests, seconds=self._seconds)
        self._routes.append(metrics)
        return metrics

    def flush(self) -> None:
        """Hands on all that is held. Called in the event loop's thread."""
        for route in self._routes:
            route.flush()

    def error(self, type_: str) -> None:
        """Counts an error that was answered."""
        counter = self._error_types.get(type_)
        if counter is None:
            counter = self._error_types[type_] = self._errors.labels(type_)
        counter.inc()

    def render(self) -> bytes:
        """The metrics in Prometheus's text format. Called in the event loop's thread."""
        self.flush()
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._registry)
        from prometheus_client.multiprocess import MultiProcessCollector

        merged = CollectorRegistry()
        MultiProcessCollector(merged)  # type: ignore[no-untyped-call]
        return generate_latest(merged)


class TextMetrics(ServerMetrics):
    """The metrics of a server that renders and derenders."""

    def __init__(self) -> None:
        super().__init__()
        registry = self._registry
        stages = Counter(
            "derender_stage_seconds", "Seconds of work on requests' bodies, by stage.", ("stage",), registry=registry
        )
        self._stages = tuple(stages.labels(stage) for stage in ("decode", "model", "encode"))
        self._tokens = (
            Counter("derender_tokens_rendered", "Prompt tokens rendered.", registry=registry),
            Counter("derender_tokens_derendered", "Generated tokens derendered.", registry=registry),
        )
        self._work: deque[tuple[float, float, float, int, int]] = deque()
        unknown = Counter(
            "derender_unknown_ids_tolerated", "Token ids beyond the vocabulary that were tolerated.", registry=registry
        )
        guarded = Counter(
            "derender_guarded_control_tokens",
            "Spellings of control tokens in messages that were encoded as plain text.",
            registry=registry,
        )
        cached = Counter(
            "derender_encode_cache_chars",
            "Characters of long prompts whose ids were in the cache (hit) or not (miss).",
            ("result",),
            registry=registry,
        )
        self._totals = (unknown, guarded, cached.labels("hit"), cached.labels("miss"))
        self._seen = ModelTotals()
        self._read_totals: Callable[[], ModelTotals] = ModelTotals
        self.encoder_fallback = Gauge(
            "derender_encoder_fallback",
            "1 where a model does without the faster encoder, 0 where it has it.",
            ("model",),
            registry=registry,
            multiprocess_mode="max",
        )

    def flush(self) -> None:
        """Hands on all that is held. Called in the event loop's thread."""
        super().flush()
        self._flush_work()
        self._flush_totals()

    def _flush_work(self) -> None:
        done = []
        with contextlib.suppress(IndexError):  # other threads add at the same time, and may take
            while True:
                done.append(self._work.popleft())
        if done:
            for counter, amounts in zip((*self._stages, *self._tokens), zip(*done, strict=True), strict=True):
                counter.inc(sum(amounts))

    def worked(
        self,
        *,
        decode: float = 0.0,
        model: float = 0.0,
        encode: float = 0.0,
        rendered: int = 0,
        derendered: int = 0,
    ) -> None:
        """Counts the work on one body: seconds of its stages, and tokens. From any thread."""
        self._work.append((decode, model, encode, rendered, derendered))
        if len(self._work) >= _KEPT:
            self._flush_work()

    def watch(self, read: Callable[[], ModelTotals]) -> None:
        """`read` gives what the models counted since the start; it is asked at each flush."""
        self._read_totals = read

    def _flush_totals(self) -> None:
        now = self._read_totals()
        for counter, total, seen in zip(self._totals, now, self._seen, strict=True):
            if total > seen:
                counter.inc(total - seen)
        self._seen = now
