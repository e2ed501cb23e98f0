"""The routes of `derender serve`. A handler decodes, looks the model up, calls one function, encodes."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from derender.protocol.codec import check_containers, encode
from derender.protocol.common import ModelList
from derender.protocol.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
)
from derender.protocol.errors import InvalidBody
from derender.protocol.generate import GenerateRequest
from derender.server.cost import brings_template, takes_long
from derender.server.http import Handler, Request, Response, Route
from derender.server.operations import ACTIONS, INVOCATION, OPERATIONS, Operation
from derender.server.pool import INLINE_BYTES, INLINE_DERENDER_BYTES, WorkPool
from derender.server.streams import stream_routes

if TYPE_CHECKING:
    from derender.registry import ModelRegistry
    from derender.server.metrics import ServerMetrics


def build_routes(
    registry: ModelRegistry,
    *,
    pool: WorkPool,
    metrics: ServerMetrics,
    load: Callable[[], int],
    tokenizer_info: bool = False,
    docs: bool = True,
    root_path: str = "",
    max_record_bytes: int = 1 << 26,
) -> list[Route]:
    """All routes. `load` tells how many requests are in work; `tokenizer_info` and `docs` turn routes on;
    `max_record_bytes` bounds a record of a stream over one connection."""
    routes = stream_routes(registry, pool=pool, metrics=metrics, max_record_bytes=max_record_bytes)
    routes += [
        Route("POST", operation.path, _operation(operation, registry, pool, metrics), json_body=True)
        for operation in (*OPERATIONS, INVOCATION)
    ]
    routes += [
        Route("GET", "/health", _empty, open=True),
        Route("GET", "/ping", _empty, open=True),
        Route("POST", "/ping", _empty, open=True),
        Route("GET", "/version", _fixed(encode({"version": version("derender")}))),
        Route("GET", "/v1/models", _json(lambda: ModelList(data=registry.cards()))),
        Route("GET", "/load", _json(lambda: {"server_load": load()})),
        Route("GET", "/kv_event_sources", _fixed(b"{}")),
        Route("GET", "/metrics", _metrics(metrics)),
    ]
    if tokenizer_info:
        routes.append(Route("GET", "/tokenizer_info", _tokenizer_info(registry)))
    if docs:
        from derender.server.docs_page import docs_routes

        routes += docs_routes(routes, root_path=root_path)
    return routes


def _operation(operation: Operation, registry: ModelRegistry, pool: WorkPool, metrics: ServerMetrics) -> Handler:
    stages = metrics.stages
    inline_bytes = INLINE_DERENDER_BYTES if operation.path.endswith("/derender") else INLINE_BYTES

    def finish(request: Any, request_id: str | None) -> bytes:
        started = perf_counter()
        model = registry.get(request.model)
        try:
            answer = ACTIONS[type(request)](model, request, request_id)
            made = perf_counter()
            body = encode(answer)
        except RecursionError:  # what could just be decoded may stand deeper in the answer
            raise InvalidBody("body is nested too deeply", param="body") from None
        stages.model.observe(made - started)
        stages.encode.observe(perf_counter() - made)
        count_tokens(metrics, request, answer)
        if model.settings.tolerate_unknown_ids:
            metrics.unknown_ids_are(sum(one.unknown_ids for one in registry.models))
        return body

    def decode(body: bytes) -> Any:
        started = perf_counter()
        request = operation.decode(body)
        stages.decode.observe(perf_counter() - started)
        return request

    def whole(body: bytes, request_id: str | None) -> Any:
        """The answer; the request itself where it has to wait among those with a template of their own."""
        check_containers(body)
        request = decode(body)
        return request if brings_template(request) else finish(request, request_id)

    async def handle(http: Request) -> Response:
        body = http.body
        header = http.header(b"x-request-id")
        request_id = header.decode("latin-1") if header else None
        size = len(body)
        if size > inline_bytes:
            answer = await http.unless_left(pool.run(lambda: whole(body, request_id), size=size))
            if isinstance(answer, bytes):
                return Response(answer)
            request = answer
        else:
            request = decode(body)
            if not (brings_template(request) or takes_long(request)):
                return Response(finish(request, request_id))
        work = pool.run(lambda: finish(request, request_id), size=size, foreign=brings_template(request))
        return Response(await http.unless_left(work))

    return handle


def count_tokens(metrics: ServerMetrics, request: Any, answer: Any) -> None:
    """Counts what was rendered or derendered."""
    if isinstance(answer, GenerateRequest):
        metrics.tokens_rendered.inc(len(answer.token_ids))
    elif isinstance(answer, list):
        metrics.tokens_rendered.inc(sum(len(one.token_ids) for one in answer))
    elif isinstance(request, (DerenderChatStreamRequest, DerenderCompletionStreamRequest)):
        metrics.derendered(request.generate_chunk.choices)
    elif isinstance(request, DerenderChatRequest):
        metrics.derendered(request.generate_response.choices)
    elif isinstance(request, DerenderCompletionRequest):
        for one in request.generate_responses:
            metrics.derendered(one.choices)


async def _empty(_: Request) -> Response:
    return Response(content_type=None)


def _fixed(body: bytes) -> Handler:
    async def handle(_: Request) -> Response:
        return Response(body)

    return handle


def _json(value: Callable[[], Any]) -> Handler:
    async def handle(_: Request) -> Response:
        return Response(encode(value()))

    return handle


def _tokenizer_info(registry: ModelRegistry) -> Handler:
    async def handle(request: Request) -> Response:
        names = parse_qs(request.query.decode("latin-1")).get("model")
        return Response(encode(registry.get(names[0] if names else None).tokenizer_info()))

    return handle


def _metrics(metrics: ServerMetrics) -> Handler:
    from derender.server.metrics import CONTENT_TYPE

    async def handle(_: Request) -> Response:
        return Response(metrics.render(), content_type=CONTENT_TYPE)

    return handle
