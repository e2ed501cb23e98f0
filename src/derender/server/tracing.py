"""OpenTelemetry spans of the gateway's requests: one for each, one for each of its stages. Needs the extra `otel`.

Names and attributes follow OpenTelemetry's conventions for generative AI. The engine gets the trace's context, so that
its own spans are children of ours. No text of prompts or answers is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from time import perf_counter_ns, time_ns
from typing import TYPE_CHECKING, Any

from derender.gateway.context import Context
from derender.protocol.chat import ChatCompletionRequest

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


class TracingUnavailable(Exception):
    """The packages that tracing needs are not there."""


class RequestSpan:
    """The span of one request, from its head to the end of its answer."""

    def __init__(self, tracer: Tracer, span: Span, headers: Mapping[str, str]) -> None:
        self._tracer = tracer
        self._span = span
        self.headers = headers
        """The request's headers to tell on, with the trace's context of this span."""

    def end(self, context: Context, status: int, /) -> None:
        """Ends the span, with what became of the request, and tells of its stages."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        span, request = self._span, context.request
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat" if isinstance(request, ChatCompletionRequest) else "text_completion",
            "gen_ai.request.model": context.name,
            "gen_ai.request.choice.count": context.choices,
            "gen_ai.usage.input_tokens": sum(len(one.token_ids) for one in context.prompts),
            "gen_ai.usage.output_tokens": context.generated,
            "http.response.status_code": status,
            "derender.stream": bool(request.stream),
            "derender.engines": context.engines,
            "derender.retries": context.retries,
        }
        if context.prompts:
            attributes["gen_ai.response.id"] = context.identity
        for name in ("max_tokens", "temperature", "top_p"):
            if (value := getattr(request, name)) is not None:
                attributes[f"gen_ai.request.{name}"] = value
        span.set_attributes(attributes)
        if status >= 500:
            span.set_status(StatusCode.ERROR)
        offset = time_ns() - perf_counter_ns()
        parent = set_span_in_context(span)
        for stage, begun, ended in context.marks:
            child = self._tracer.start_span(
                f"derender.{stage}", context=parent, kind=SpanKind.INTERNAL, start_time=int(begun * 1e9) + offset
            )
            child.end(end_time=int(ended * 1e9) + offset)
        span.end()


def check_packages() -> None:
    """Raises `TracingUnavailable`."""
    for name in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        try:
            import_module(name)
        except ImportError as error:
            raise TracingUnavailable(f"traces need the extra otel: pip install 'derender[otel]' ({error})") from None


class Tracing:
    """Makes the spans. `endpoint`: where they go, as OTLP over HTTP.

    Raises `TracingUnavailable`.
    """

    def __init__(self, *, endpoint: str | None = None, provider: Any = None) -> None:
        check_packages()
        from opentelemetry.propagate import get_global_textmap

        if provider is None:
            provider = _exporting(endpoint)
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer("derender")
        self._propagator = get_global_textmap()

    def begin(self, path: str, headers: Mapping[str, str]) -> RequestSpan:
        """The span of a request. `headers`: those of the request that are told on."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        above = self._propagator.extract(dict(headers))
        span = self._tracer.start_span(f"POST {path}", context=above, kind=SpanKind.SERVER)
        told = dict(headers)
        self._propagator.inject(told, context=set_span_in_context(span, above))
        return RequestSpan(self._tracer, span, told)

    def close(self) -> None:
        """Sends what is still held."""
        self._provider.shutdown()


def _exporting(endpoint: str | None) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "derender"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider
