"""What is told of a request when it has ended: traces, whose context its engine gets, and a line of the access log."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from tests.gateway.faulty_engine import IDS, FaultyEngine
from tests.gateway.under_test import CHAT, COMPLETIONS, gate, run

from derender.server.access_log import AccessLog, logger

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "a secret"}], "max_tokens": 64}


def asked(told: dict[str, Any], *, stream: bool = False, path: str = CHAT, **more: Any) -> tuple[int, FaultyEngine]:
    async def main() -> tuple[int, FaultyEngine]:
        async with FaultyEngine() as engine, gate(engine, told=told) as gateway:
            body = {"model": "tiny", "prompt": "a secret", "max_tokens": 64} if path == COMPLETIONS else BODY
            call = gateway.call(path, {**body, "stream": stream, **more})
            call.scope["headers"].append((b"traceparent", PARENT.encode()))
            answer = await gateway.run(call)
            return answer.status, engine

    return run(main)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_and_its_stages_have_spans(path: str, stream: bool) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from derender.server.tracing import Tracing

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    status, engine = asked({"tracing": Tracing(provider=provider)}, stream=stream, path=path)
    assert status == 200
    spans = exporter.get_finished_spans()
    above = next(span for span in spans if span.name == f"POST {path}")
    assert format(above.context.trace_id, "032x") == PARENT.split("-")[1]
    assert above.parent is not None
    assert format(above.parent.span_id, "016x") == PARENT.split("-")[2]
    attributes = dict(above.attributes or {})
    assert attributes["gen_ai.request.model"] == "tiny"
    assert attributes["gen_ai.usage.output_tokens"] == len(IDS)
    assert attributes["http.response.status_code"] == 200
    stages = [span.name for span in spans if span is not above]
    wanted = ["render", "queue", "first_token", "stream"] if stream else ["render", "queue", "generate", "derender"]
    assert stages == [f"derender.{stage}" for stage in wanted]
    for span in spans:
        if span is not above:
            assert span.parent is not None
            assert span.parent.span_id == above.context.span_id
            assert above.start_time <= span.start_time <= span.end_time <= above.end_time
    [told] = [ask.headers["traceparent"] for ask in engine.asked if "traceparent" in ask.headers]
    assert told.split("-")[1:3] == [PARENT.split("-")[1], format(above.context.span_id, "016x")]
    assert "secret" not in str([span.to_json() for span in spans])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [False, True])
def test_the_access_log_has_one_line_of_json(
    stream: bool, prompts: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "propagate", True)
    with caplog.at_level(logging.INFO, logger=logger.name):
        assert asked({"log": AccessLog(prompts=prompts)}, stream=stream)[0] == 200
        assert asked({"log": AccessLog(prompts=prompts)}, stream=stream, max_tokens=-1)[0] == 400
    good, bad = (json.loads(record.message) for record in caplog.records if record.name == logger.name)
    assert (good["status"], good["prompt_tokens"] > 0, good["generated_tokens"]) == (200, True, len(IDS))
    assert (bad["status"], bad["prompt_tokens"], bad["engines"]) == (400, 0, [])
    assert ("secret" in str(good)) is prompts
