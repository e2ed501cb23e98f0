"""The routes of `derender serve`. A handler decodes, looks the model up, calls one function, encodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.codec import check_containers, encode, is_dense
from derender.protocol.common import ModelList
from derender.protocol.completions import CompletionRequest
from derender.protocol.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
)
from derender.protocol.errors import InvalidBody
from derender.protocol.generate import GenerateRequest
from derender.server.cost import SHORT_BYTES, brings_template, takes_long, takes_long_though_short
from derender.server.messages import Request, Response, Route
from derender.server.metrics import CONTENT_TYPE, generated_tokens
from derender.server.operations import ACTIONS, INVOCATION, OPERATIONS, Operation
from derender.server.pool import ALONE_BYTES, INLINE_BYTES, INLINE_DERENDER_BYTES, WorkPool
from derender.server.streams import stream_routes

if TYPE_CHECKING:
    from derender.registry import ModelRegistry
    from derender.server.metrics import TextMetrics


def build_routes(
    registry: ModelRegistry,
    *,
    pool: WorkPool,
    metrics: TextMetrics,
    load: Callable[[], int],
    tokenizer_info: bool = False,
    docs: bool = True,
    root_path: str = "",
    max_record_bytes: int = 1 << 26,
    more: Sequence[Route] = (),
) -> list[Route]:
    """All routes. `load` tells how many requests are in work; `tokenizer_info` and `docs` turn routes on;
    `max_record_bytes` bounds a record of a stream over one connection."""
    routes = stream_routes(registry, pool=pool, metrics=metrics, max_record_bytes=max_record_bytes)
    routes += [_operation(operation, registry, pool, metrics) for operation in (*OPERATIONS, INVOCATION)]
    routes += more
    version_body = encode({"version": version("derender")})
    routes += [
        _at_once("GET", "/health", _empty, open=True),
        _at_once("GET", "/ping", _empty, open=True),
        _at_once("POST", "/ping", _empty, open=True),
        _at_once("GET", "/version", lambda _: Response(version_body)),
        _at_once("GET", "/v1/models", lambda _: Response(encode(ModelList(data=registry.cards())))),
        _at_once("GET", "/load", lambda _: Response(encode({"server_load": load()}))),
        _at_once("GET", "/kv_event_sources", lambda _: Response(b"{}")),
        _at_once("GET", "/metrics", lambda _: Response(metrics.render(), content_type=CONTENT_TYPE)),
    ]
    if tokenizer_info:
        routes.append(_at_once("GET", "/tokenizer_info", _tokenizer_info(registry)))
    if docs:
        from derender.server.docs_page import docs_routes

        routes += docs_routes(routes, root_path=root_path)
    return routes


def _at_once(method: str, path: str, answer: Callable[[Request], Response], *, open: bool = False) -> Route:
    """A route that never has to wait."""

    async def handle(request: Request) -> Response:
        return answer(request)

    return Route(method, path, handle, open=open, direct=answer)


def _operation(operation: Operation, registry: ModelRegistry, pool: WorkPool, metrics: TextMetrics) -> Route:
    derenders = operation.path.endswith("/derender")
    inline_bytes = INLINE_DERENDER_BYTES if derenders else INLINE_BYTES

    def finish(request: Any, request_id: str | None, decoding: float) -> bytes:
        started = perf_counter()
        model = registry.get(request.model)
        try:
            answer = ACTIONS[type(request)](model, request, request_id)
            made = perf_counter()
            body = encode(answer)
        except RecursionError:  # what could just be decoded may stand deeper in the answer
            raise InvalidBody("body is nested too deeply", param="body") from None
        metrics.worked(
            decode=decoding,
            model=made - started,
            encode=perf_counter() - made,
            rendered=rendered_tokens(answer),
            derendered=0 if type(request) in _RENDERED else derendered_tokens(request),
        )
        return body

    def decode(body: bytes) -> tuple[Any, float]:
        """The request, and how many seconds it took to decode."""
        started = perf_counter()
        return operation.decode(body), perf_counter() - started

    def whole(body: bytes, request_id: str | None) -> Any:
        """The answer; what was decoded where it has to wait among those with a template of their own."""
        check_containers(body, answer=derenders or operation is INVOCATION)
        request, seconds = decode(body)
        return (request, seconds) if brings_template(request) else finish(request, request_id, seconds)

    def is_long(request: Any, size: int) -> bool:
        if size <= SHORT_BYTES and not takes_long_though_short(request):
            return False
        slow = registry.get(request.model).tokenizer.encoder.name == "tokenizers"
        return brings_template(request) or takes_long(request, size=size, slow_encoder=slow)

    def direct(http: Request) -> Response | None:
        body = http.body
        if len(body) > inline_bytes:
            return None
        request, seconds = decode(body)
        if is_long(request, len(body)):
            return None
        return Response(finish(request, _request_id(http), seconds))

    async def handle(http: Request) -> Response:
        body = http.body
        request_id = _request_id(http)
        size = len(body)
        if size > inline_bytes:
            alone = size <= ALONE_BYTES and is_dense(body)
            answer = await http.unless_left(pool.run(lambda: whole(body, request_id), size=size, alone=alone))
            if isinstance(answer, bytes):
                return Response(answer)
            request, seconds = answer
        else:
            request, seconds = decode(body)
            if not is_long(request, size):
                return Response(finish(request, request_id, seconds))
        work = pool.run(lambda: finish(request, request_id, seconds), size=size, foreign=brings_template(request))
        return Response(await http.unless_left(work))

    return Route("POST", operation.path, handle, json_body=True, direct=direct)


def _request_id(http: Request) -> str | None:
    header = http.header(b"x-request-id")
    return header.decode("latin-1") if header else None


_RENDERED = frozenset((ChatCompletionRequest, CompletionRequest))


def rendered_tokens(answer: Any) -> int:
    """How many prompt tokens an answer has."""
    if isinstance(answer, GenerateRequest):
        return len(answer.token_ids)
    if isinstance(answer, list):
        return sum(len(one.token_ids) for one in answer)
    return 0


def derendered_tokens(request: Any) -> int:
    """How many generated tokens a request has."""
    if isinstance(request, (DerenderChatStreamRequest, DerenderCompletionStreamRequest)):
        return generated_tokens(request.generate_chunk.choices)
    if isinstance(request, DerenderChatRequest):
        return generated_tokens(request.generate_response.choices)
    if isinstance(request, DerenderCompletionRequest):
        return sum(generated_tokens(one.choices) for one in request.generate_responses)
    return 0


def _empty(_: Request) -> Response:
    return Response(content_type=None)


def _tokenizer_info(registry: ModelRegistry) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        names = parse_qs(request.query.decode("latin-1")).get("model")
        return Response(encode(registry.get(names[0] if names else None).tokenizer_info()))

    return answer
