"""The OpenAPI document and its page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import jsonschema
import pytest
from tests.server.asgi_client import post, request
from tests.server.tiny_model import write_tiny_model

from derender.model import Model
from derender.registry import ModelRegistry
from derender.server.app import AppSettings, build_app
from derender.server.http import App

POSTS = {
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/chat/completions/derender",
    "/v1/completions/derender",
    "/tokenize",
    "/detokenize",
    "/invocations",
    "/ping",
}
STREAMS = {"/v1/chat/completions/derender/stream", "/v1/completions/derender/stream"}
GETS = {"/health", "/ping", "/version", "/v1/models", "/load", "/kv_event_sources", "/metrics"}
GENERATED = {"choices": [{"index": 0, "token_ids": [97]}]}
DOCS = {"/openapi.json", "/docs", "/redoc"}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> ModelRegistry:
    return ModelRegistry([Model.load(str(write_tiny_model(tmp_path_factory.mktemp("tiny"))))])


@pytest.fixture(scope="module")
def app(registry: ModelRegistry) -> App:
    return build_app(registry, settings=AppSettings(root_path="/under"))


@pytest.fixture(scope="module")
def document(app: App) -> Any:
    return request(app, "GET", "/openapi.json").json


def test_every_route_is_there(document: Any, app: App) -> None:
    paths = document["paths"]
    assert {path for path in paths if "post" in paths[path]} == POSTS | STREAMS
    assert {path for path in paths if "put" in paths[path]} == STREAMS
    assert {path for path in paths if "get" in paths[path]} == GETS | DOCS
    assert {(r.method.lower(), r.path) for r in app.routes} == {(m, p) for p, methods in paths.items() for m in methods}
    assert document["openapi"] == "3.1.0"
    assert document["servers"] == [{"url": "/under"}]


def test_every_reference_leads_somewhere(document: Any) -> None:
    found = re.findall(r'"\$ref": ?"#/components/schemas/([^"]+)"', json.dumps(document))
    assert len(set(found)) > 30
    assert set(found) <= set(document["components"]["schemas"])


def schema(document: Any, path: str, method: str = "post", status: str | None = None) -> dict[str, Any]:
    described = document["paths"][path][method]
    part = described["requestBody"] if status is None else described["responses"][status]
    return {**part["content"]["application/json"]["schema"], "components": document["components"]}


def test_derender_bodies_are_a_batch_or_a_chunk(document: Any) -> None:
    for path, names in (
        ("/v1/chat/completions/derender", ["DerenderChatRequest", "DerenderChatStreamRequest"]),
        ("/v1/completions/derender", ["DerenderCompletionRequest", "DerenderCompletionStreamRequest"]),
    ):
        refs = [one["$ref"].rpartition("/")[2] for one in schema(document, path)["oneOf"]]
        assert refs == names


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions/render", {"prompt": "x"}),
        ("/v1/chat/completions/derender", {"generate_response": GENERATED}),
        (
            "/v1/chat/completions/derender",
            {"stream": True, "generate_chunk": GENERATED},
        ),
        ("/v1/completions/derender", {"generate_responses": [GENERATED]}),
        (
            "/v1/completions/derender",
            {"stream": True, "generate_chunk": GENERATED},
        ),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [97]}),
    ],
)
def test_bodies_and_answers_are_as_the_document_says(app: App, document: Any, path: str, body: dict[str, Any]) -> None:
    jsonschema.validate(body, schema(document, path))
    answer = post(app, path, body)
    assert answer.status == 200
    jsonschema.validate(answer.json, schema(document, path, status="200"))
    wrong = post(app, path, {"model": "none", **body})
    jsonschema.validate(wrong.json, schema(document, path, status=str(wrong.status)))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"model": 1}, schema(document, path))


@pytest.mark.parametrize("path", ["/version", "/v1/models", "/load", "/kv_event_sources"])
def test_get_answers_are_as_the_document_says(app: App, document: Any, path: str) -> None:
    jsonschema.validate(request(app, "GET", path).json, schema(document, path, "get", "200"))


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_stands_alone(app: App, document: Any) -> None:
    answer = request(app, "GET", "/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert request(app, "GET", "/redoc").body == answer.body
    page = Page()
    page.feed(answer.body.decode())
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "img", "iframe")]
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    for tag, attributes in page.tags:
        if tag == "a":
            target = attributes["href"] or ""
            assert target == "openapi.json" or target[1:] in ids
    for path in document["paths"]:
        assert path in page.text
    assert ids == set(document["components"]["schemas"])


def test_docs_can_be_turned_off(registry: ModelRegistry) -> None:
    app = build_app(registry, settings=AppSettings(docs=False))
    assert [request(app, "GET", path).status for path in sorted(DOCS)] == [404, 404, 404]
