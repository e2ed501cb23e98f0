"""The application against its own OpenAPI document: what the document allows is answered as the document says.

`DERENDER_FUZZ_BODIES=20` takes twenty times as many examples.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.server.live import running
from tests.server.tiny_model import write_tiny_model

from derender.model import Model, ModelSettings
from derender.registry import ModelRegistry
from derender.server.app import AppSettings, build_app

schemathesis = pytest.importorskip("schemathesis")
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

EXAMPLES = int(12 * float(os.environ.get("DERENDER_FUZZ_BODIES", "1")))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directory = str(write_tiny_model(tmp_path_factory.mktemp("tiny")))
    models = [
        Model.load(directory, settings=ModelSettings(served_model_names=("tiny",))),
        Model.load(directory, settings=ModelSettings(served_model_names=("other",), tolerate_unknown_ids=True)),
    ]
    app = build_app(ModelRegistry(models), settings=AppSettings(tokenizer_info=True))
    with running(app) as port:
        yield schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")


ROUTES = (
    "GET /docs", "GET /health", "GET /kv_event_sources", "GET /load", "GET /metrics", "GET /ping",
    "GET /redoc", "GET /tokenizer_info", "GET /v1/models", "GET /version",
    "POST /detokenize", "POST /invocations", "POST /ping", "POST /tokenize",
    "POST /v1/chat/completions/derender", "POST /v1/chat/completions/derender/stream",
    "POST /v1/chat/completions/render", "POST /v1/completions/derender", "POST /v1/completions/derender/stream",
    "POST /v1/completions/render",
    "PUT /v1/chat/completions/derender/stream", "PUT /v1/completions/derender/stream",
)  # fmt: skip


def test_no_route_is_left_out(document: Any) -> None:
    found = {f"{one.ok().method.upper()} {one.ok().path}" for one in document.get_all_operations()}
    assert found == set(ROUTES)


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_answers_as_the_document_says(document: Any, route: str) -> None:
    method, path = route.split()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=document[path][method].as_strategy())
    def answers(case: Any) -> None:
        events = path.endswith("/stream")  # each of which the schema describes, but for the last, `[DONE]`
        case.call_and_validate(checks=CHECKS if events else [*CHECKS, response_schema_conformance])

    answers()
