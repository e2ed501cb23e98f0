"""What the gateway counts, beside what a server that renders and derenders counts."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from derender.gateway.meter import Stage
from derender.server.metrics import TextMetrics

_STAGES: tuple[Stage, ...] = ("render", "queue", "prefill", "first_token", "inter_token", "generate", "derender")

# Seconds. Text work takes tens of µs, a token some ms, an answer minutes.
_SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 120, 300, 600),
)
_SHARED = "PROMETHEUS_MULTIPROC_DIR"
_STATES = ("derender_gateway_engine_up", "derender_gateway_engine_running")
_KEPT = 4096  # values held before they are handed on, where nobody asks for them earlier


class GatewayMetrics(TextMetrics):
    """The gateway's metrics; a `derender.gateway.meter.Meter`. For the event loop's thread only."""

    def __init__(self) -> None:
        super().__init__()
        registry = self._registry
        seconds = Histogram(
            "derender_gateway_stage_seconds",
            "Seconds of each stage; of inter_token, between two chunks of an engine.",
            ("stage",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._histograms = {stage: seconds.labels(stage) for stage in _STAGES}
        self._values: dict[Stage, list[float]] = {stage: [] for stage in _STAGES}
        self._held = 0
        self._prompt_tokens = Counter(
            "derender_gateway_prompt_tokens", "Prompt tokens of answered requests.", registry=registry
        )
        self._generated_tokens = Counter(
            "derender_gateway_generated_tokens", "Generated tokens of answered requests.", registry=registry
        )
        self._aborts = Counter(
            "derender_gateway_aborts", "Requests ended at their engine before the end.", ("reason",), registry=registry
        )
        self._retries = Counter(
            "derender_gateway_retries", "Requests that went to another engine before their first token.",
            registry=registry,
        )  # fmt: skip
        self._failures = Counter(
            "derender_gateway_engine_failures", "Requests that an engine failed.", ("engine", "reason"),
            registry=registry,
        )  # fmt: skip
        self._listed: frozenset[str] = frozenset()
        self._shown: set[str] = set()
        self._up = Gauge(
            _STATES[0], "1 where an engine is up.", ("engine",), registry=registry,
            multiprocess_mode="livemin",
        )  # fmt: skip
        self._running = Gauge(
            _STATES[1], "Requests given to an engine now.", ("engine",), registry=registry,
            multiprocess_mode="livesum",
        )  # fmt: skip

    def stage(self, stage: Stage, seconds: float, /) -> None:
        self._values[stage].append(seconds)
        self._held += 1
        if self._held >= _KEPT:
            self._flush_stages()

    def tokens(self, *, prompt: int = 0, generated: int = 0) -> None:
        self._prompt_tokens.inc(prompt)
        self._generated_tokens.inc(generated)
        self.worked(rendered=prompt, derendered=generated)

    def aborted(self, reason: str, /) -> None:
        self._aborts.labels(reason).inc()

    def retried(self) -> None:
        self._retries.inc()

    def failed(self, engine: str, reason: str, /) -> None:
        self._failures.labels(engine, reason).inc()

    def engine_state(self, engine: str, *, up: bool, running: int) -> None:
        self._shown.add(engine)
        self._up.labels(engine).set(1 if up else 0)
        self._running.labels(engine).set(running)

    def engines(self, names: Collection[str], /) -> None:
        self._listed = frozenset(names)
        if _SHARED in os.environ:  # values in files cannot be removed; `render` leaves them out
            return
        for engine in self._shown - self._listed:
            self._up.remove(engine)
            self._running.remove(engine)
        self._shown &= self._listed

    def render(self) -> bytes:
        """The metrics in Prometheus's text format. Called in the event loop's thread."""
        if _SHARED not in os.environ:
            return super().render()
        self.flush()
        merged = CollectorRegistry()
        merged.register(_OfEngines(self._listed))
        return generate_latest(merged)

    def flush(self) -> None:
        """Hands on all that is held. Called in the event loop's thread."""
        super().flush()
        self._flush_stages()

    def _flush_stages(self) -> None:
        self._held = 0
        for stage, values in self._values.items():
            observe = self._histograms[stage].observe
            for value in values:
                observe(value)
            values.clear()


class _OfEngines(Collector):
    """What all worker processes counted, without the states of engines that are not listed (any more): each worker
    has its values in a file that only grows."""

    def __init__(self, listed: Collection[str]) -> None:
        self._listed = listed
        self._every = MultiProcessCollector(None)  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[Metric]:
        for metric in self._every.collect():  # type: ignore[no-untyped-call]
            if metric.name in _STATES:
                metric.samples = [one for one in metric.samples if one.labels["engine"] in self._listed]
            yield metric
