"""The OpenAPI document, made from the types that decode and encode, so that it says what the server does."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec

from derender.protocol.chat import ChatCompletionChunk, ChatCompletionRequest
from derender.protocol.common import ModelList
from derender.protocol.completions import CompletionChunk
from derender.protocol.derender import ChatStreamContext, CompletionStreamContext
from derender.protocol.errors import ErrorResponse
from derender.protocol.generate import GenerateChunk
from derender.server.messages import Route
from derender.server.operations import API, INVOCATION, OPERATIONS, Operation

_REF = "#/components/schemas/{name}"
_ERRORS = {
    "400": "The body or a value in it is wrong; `param` names the place.",
    "401": "The API key is missing or wrong.",
    "404": "No such model or route.",
    "405": "The route has no such method; `Allow` has those that it has.",
    "409": "Well formed, but cannot be fulfilled exactly.",
    "413": "The body is over the server's limit.",
    "500": "A fault of the server's.",
    "502": "The engine failed.",
    "503": "The server has too much to do, has no engine that is up, or is shutting down.",
    "504": "The engine did not answer in time.",
}
_OF_ENGINES = ("502", "504")
_GET_ERRORS = ("401", "404", "405", "500", "503")

_SUMMARIES: dict[str, str] = {
    "/health": "Whether the server answers.",
    "/ping": "The same, under SageMaker's name.",
    "/ready": "Whether every model has an engine that is up.",
    "/version": "The server's version.",
    "/v1/models": "The models that are served.",
    "/load": "How many requests are in work.",
    "/kv_event_sources": "Always empty: this server has no KV cache.",
    "/metrics": "Metrics in Prometheus's text format.",
    "/tokenizer_info": "What is known of a model's tokenizer.",
    "/openapi.json": "This document.",
    "/docs": "This document as a page.",
    "/redoc": "The same page.",
}
_JSON_ANSWERS: dict[str, Any] = {
    "/version": dict[str, str],
    "/v1/models": ModelList,
    "/load": dict[str, int],
    "/kv_event_sources": dict[str, Any],
    "/tokenizer_info": dict[str, Any],
    "/openapi.json": dict[str, Any],
}
_TEXT_ANSWERS = {"/metrics": "text/plain", "/docs": "text/html", "/redoc": "text/html"}
_STREAM_SWITCH = {
    "DerenderChatRequest": False,
    "DerenderChatStreamRequest": True,
    "DerenderCompletionRequest": False,
    "DerenderCompletionStreamRequest": True,
}
_STREAMS: dict[str, tuple[str, Any, Any]] = {
    "/v1/chat/completions/derender/stream": (
        "A generate stream as a chat stream, over one connection.",
        ChatStreamContext,
        ChatCompletionChunk,
    ),
    "/v1/completions/derender/stream": (
        "A generate stream as a completions stream, over one connection.",
        CompletionStreamContext,
        CompletionChunk,
    ),
}
"""By path: what it is, the type of the first record, the type of each event of the answer."""

_OPEN_SECURITY: list[dict[str, list[str]]] = [{}]


def build_document(routes: Iterable[Route], *, root_path: str = "") -> dict[str, Any]:
    """OpenAPI 3.1 of `routes`."""
    operations = {operation.path: operation for operation in (*OPERATIONS, *API, INVOCATION)}
    types: list[Any] = [ErrorResponse]
    for operation in operations.values():
        types += [*operation.requests, *operation.responses]
    types += _JSON_ANSWERS.values()
    types += [GenerateChunk, *(kind for _, *kinds in _STREAMS.values() for kind in kinds)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    for name, streams in _STREAM_SWITCH.items():
        components[name]["properties"]["stream"] = {"const": streams} | ({} if streams else {"default": False})

    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation_ = operations.get(route.path)
        if operation_:
            described = _post(operation_, by_type)
        elif route.path in _STREAMS:
            described = _stream(route.path, by_type)
        else:
            described = _get(route, by_type)
        described["operationId"] = f"{route.method.lower()}{route.path.replace('/', '_').replace('.', '_')}"
        if route.open:
            described["security"] = _OPEN_SECURITY
        paths.setdefault(route.path, {})[route.method.lower()] = described

    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "derender",
            "version": version("derender"),
            "description": "The text side of disaggregated LLM serving: API requests to token ids (render), "
            "token ids to API responses (derender).",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }
    if root_path:
        document["servers"] = [{"url": root_path}]
    return document


def _post(operation: Operation, by_type: dict[str, Any]) -> dict[str, Any]:
    content = _json(_one_of(operation.responses, by_type))
    statuses = [status for status in _ERRORS if status not in _OF_ENGINES]
    if operation in API:
        chunk = ChatCompletionChunk if ChatCompletionRequest in operation.requests else CompletionChunk
        content["text/event-stream"] = {"schema": by_type[repr(chunk)]}
        statuses = [*_ERRORS]
    return {
        "summary": operation.summary,
        "requestBody": {"required": True, "content": _json(_one_of(operation.requests, by_type))},
        "responses": {"200": {"description": "Done.", "content": content}, **_errors(statuses, by_type)},
    }


def _stream(path: str, by_type: dict[str, Any]) -> dict[str, Any]:
    summary, context, chunk = _STREAMS[path]
    record = {"oneOf": [by_type[repr(context)], by_type[repr(GenerateChunk)]]}
    body = "Server-sent events or JSON lines: the context first, then each chunk of the generate server's."
    events = "Server-sent events, each a chunk or an error; the last is `[DONE]`."
    return {
        "summary": summary,
        "requestBody": {
            "required": True,
            "description": body,
            "content": {kind: {"schema": record} for kind in ("text/event-stream", "application/x-ndjson")},
        },
        "responses": {
            "200": {"description": events, "content": {"text/event-stream": {"schema": by_type[repr(chunk)]}}},
            **_errors((status for status in _ERRORS if status not in _OF_ENGINES), by_type),
        },
    }


def _get(route: Route, by_type: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Done."}
    if route.path in _JSON_ANSWERS:
        answer["content"] = _json(by_type[repr(_JSON_ANSWERS[route.path])])
    elif route.path in _TEXT_ANSWERS:
        answer["content"] = {_TEXT_ANSWERS[route.path]: {"schema": {"type": "string"}}}
    described: dict[str, Any] = {
        "summary": _SUMMARIES[route.path],
        "responses": {"200": answer, **_errors(_GET_ERRORS, by_type)},
    }
    if route.path == "/tokenizer_info":
        described["parameters"] = [{"name": "model", "in": "query", "schema": {"type": "string"}}]
    return described


def _one_of(types: tuple[Any, ...], by_type: dict[str, Any]) -> Any:
    schemas = [by_type[repr(t)] for t in types]
    if len(schemas) == 1:
        return schemas[0]
    return {"oneOf" if len(schemas) == 2 else "anyOf": schemas}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _errors(statuses: Iterable[str], by_type: dict[str, Any]) -> dict[str, Any]:
    schema = by_type[repr(ErrorResponse)]
    return {status: {"description": _ERRORS[status], "content": _json(schema)} for status in statuses}
