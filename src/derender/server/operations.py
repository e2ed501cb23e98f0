"""What can be asked of a model over HTTP: for each path how its body is decoded, which types go in and come out.

One table serves the routes and the OpenAPI document, so that they cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from derender.protocol.chat import ChatCompletionRequest, ChatCompletionResponse
from derender.protocol.codec import Decoder
from derender.protocol.completions import CompletionRequest, CompletionResponse
from derender.protocol.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
    DerenderedChatChunk,
    DerenderedCompletionChunk,
    decode_derender_chat,
    decode_derender_completion,
)
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateRequest
from derender.protocol.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse

if TYPE_CHECKING:
    from derender.model import Model

Action = Callable[["Model", Any, "str | None"], Any]


class Operation(NamedTuple):
    """One POST route. `decode` gives a value of one of `requests`; its answer is the one of `responses` beside it."""

    path: str
    summary: str
    decode: Callable[[bytes], Any]
    requests: tuple[type, ...]
    responses: tuple[Any, ...]


ACTIONS: dict[type, Action] = {
    ChatCompletionRequest: lambda model, request, request_id: model.render_chat(request, request_id=request_id),
    CompletionRequest: lambda model, request, request_id: model.render_completions(request, request_id=request_id),
    DerenderChatRequest: lambda model, request, _: model.derender_chat(request),
    DerenderChatStreamRequest: lambda model, request, _: model.derender_chat_chunk(request),
    DerenderCompletionRequest: lambda model, request, _: model.derender_completions(request),
    DerenderCompletionStreamRequest: lambda model, request, _: model.derender_completion_chunk(request),
    TokenizeRequest: lambda model, request, _: model.tokenize(request),
    DetokenizeRequest: lambda model, request, _: model.detokenize(request),
}
"""What is called for a decoded body, by its type: `(model, body, request id) -> answer`."""


class _Shape(msgspec.Struct):
    messages: Raw | UnsetType = UNSET
    prompt: Raw | UnsetType = UNSET
    generate_response: Raw | UnsetType = UNSET
    generate_responses: Raw | UnsetType = UNSET
    generate_chunk: Raw | UnsetType = UNSET
    completion_request: Raw | UnsetType = UNSET


class _Tokens(msgspec.Struct):
    tokens: Raw | UnsetType = UNSET


_shape = Decoder(_Shape)
_tokens = Decoder(_Tokens)
_tokenize = Decoder(TokenizeRequest)
_detokenize = Decoder(DetokenizeRequest)
decode_chat = Decoder(ChatCompletionRequest)
decode_completion = Decoder(CompletionRequest)


def decode_invocation(body: bytes) -> Any:
    """A SageMaker body as what its members show it to be. Raises `BadRequest` where they show nothing."""
    shape = _shape(body)
    if shape.generate_responses is not UNSET:
        return decode_derender_completion(body)
    if shape.generate_response is not UNSET or shape.generate_chunk is not UNSET:
        completion = shape.generate_chunk is not UNSET and shape.completion_request is not UNSET
        return (decode_derender_completion if completion else decode_derender_chat)(body)
    if shape.messages is not UNSET:
        return decode_chat(body)
    if shape.prompt is not UNSET:
        return decode_completion(body)
    names = [t.__name__ for t in INVOCATION.requests]
    raise BadRequest(f"Cannot find suitable handler for request. Expected one of: {names}")


def decode_tokens(body: bytes) -> TokenizeRequest | DetokenizeRequest:
    """A body for `/detokenize` where it has tokens, else one for `/tokenize`. Raises `InvalidBody`."""
    return _tokenize(body) if _tokens(body).tokens is UNSET else _detokenize(body)


OPERATIONS = (
    Operation(
        "/v1/chat/completions/render",
        "Render a chat request to token ids and sampling parameters.",
        decode_chat,
        (ChatCompletionRequest,),
        (GenerateRequest,),
    ),
    Operation(
        "/v1/completions/render",
        "Render a completions request: one generate request per prompt.",
        decode_completion,
        (CompletionRequest,),
        (list[GenerateRequest],),
    ),
    Operation(
        "/v1/chat/completions/derender",
        "Derender a generate answer, or one chunk of a stream, to the chat API.",
        decode_derender_chat,
        (DerenderChatRequest, DerenderChatStreamRequest),
        (ChatCompletionResponse, DerenderedChatChunk),
    ),
    Operation(
        "/v1/completions/derender",
        "Derender generate answers, or one chunk of a stream, to the completions API.",
        decode_derender_completion,
        (DerenderCompletionRequest, DerenderCompletionStreamRequest),
        (CompletionResponse, DerenderedCompletionChunk),
    ),
    Operation(
        "/tokenize",
        "Token ids of a text or of a chat.",
        _tokenize,
        (TokenizeRequest,),
        (TokenizeResponse,),
    ),
    Operation(
        "/detokenize",
        "Text of token ids.",
        _detokenize,
        (DetokenizeRequest,),
        (DetokenizeResponse,),
    ),
)

API = (
    Operation(
        "/v1/chat/completions",
        "Answer a chat through an engine; with `stream` as server-sent events.",
        decode_chat,
        (ChatCompletionRequest,),
        (ChatCompletionResponse,),
    ),
    Operation(
        "/v1/completions",
        "Answer prompts through engines; with `stream` as server-sent events.",
        decode_completion,
        (CompletionRequest,),
        (CompletionResponse,),
    ),
)
"""The routes of a gateway beside those of a server that only renders and derenders."""

INVOCATION = Operation(
    "/invocations",
    "SageMaker's one route: renders or derenders, by what the body holds.",
    decode_invocation,
    tuple(t for operation in OPERATIONS[:4] for t in operation.requests),
    tuple(t for operation in OPERATIONS[:4] for t in operation.responses),
)
