"""The derender requests: a generate answer (or one chunk of a stream) with the request that it answers."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from derender.protocol.chat import ChatCompletionChunk, ChatCompletionRequest
from derender.protocol.codec import Decoder
from derender.protocol.common import NonNegative, TokenId
from derender.protocol.completions import CompletionChunk, CompletionRequest
from derender.protocol.errors import InvalidBody
from derender.protocol.generate import GenerateChunk, GenerateResponse, ParseContext

PromptTokenIds = list[TokenId]


class DerenderChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/v1/chat/completions/derender`: a whole answer.

    Of `prompt_token_ids` a tail is enough; without it `generate_response.prompt_token_ids` serves, else none.
    `parse_context` (the rendered request's own) may stand in for an absent `chat_request`; `reasoning_ended`, also of
    the rendered request, tells where the output begins, and is taken from the prompt's tail otherwise.
    """

    stream: bool = False
    model: str | None = None
    generate_response: GenerateResponse
    prompt_tokens: NonNegative | None = None
    prompt_token_ids: PromptTokenIds | None = None
    chat_request: ChatCompletionRequest | None = None
    parse_context: ParseContext | None = None
    reasoning_ended: bool | None = None


class DerenderCompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/v1/completions/derender`: one whole answer per prompt."""

    stream: bool = False
    model: str | None = None
    generate_responses: list[GenerateResponse]
    prompt_tokens: list[NonNegative] | None = None
    prompt_token_ids: list[PromptTokenIds | None] | None = None
    completion_request: CompletionRequest | None = None

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "prompt_token_ids"):
            value = getattr(self, name)
            if value is not None and len(value) != len(self.generate_responses):
                raise ValueError(
                    f"{name} length ({len(value)}) must equal generate_responses length "
                    f"({len(self.generate_responses)})"
                )


class VllmStreamState(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's own stream state, from a fleet that has both."""

    prev_tokens: Annotated[list[str], Meta(max_length=1024)] = []
    prefix_offset: NonNegative = 0
    read_offset: NonNegative = 0
    role_sent: bool = False
    logprob_context_token_ids: Annotated[list[int], Meta(max_length=4)] = []
    logprob_text_offset: NonNegative = 0
    output_token_ids: list[TokenId] = []
    output_chunk_lens: list[Annotated[int, Meta(gt=0)]] = []
    tools_streamed: bool = False
    last_tool_call_ids: list[str] = []


class ChatStreamContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a chat stream is derendered with: told once in a stream over one connection, where it is the first record,
    and with each chunk otherwise.

    `stream_state` is what the last answer gave (null at first), opaque to the caller. `prompt_token_ids` may be a tail,
    or absent after the first chunk.
    """

    model: str | None = None
    stream_state: Any = None
    prompt_tokens: NonNegative | None = None
    prompt_token_ids: PromptTokenIds | None = None
    chat_request: ChatCompletionRequest | None = None
    parse_context: ParseContext | None = None
    reasoning_ended: bool | None = None


class DerenderChatStreamRequest(ChatStreamContext, frozen=True, kw_only=True):
    """One chunk of a chat stream, and the context it is read in."""

    stream: bool
    generate_chunk: GenerateChunk


class CompletionStreamContext(msgspec.Struct, frozen=True, kw_only=True):
    """The same for a completions stream."""

    model: str | None = None
    stream_state: Any = None
    prompt_tokens: NonNegative | None = None
    prompt_token_ids: PromptTokenIds | None = None
    completion_request: CompletionRequest | None = None


class DerenderCompletionStreamRequest(CompletionStreamContext, frozen=True, kw_only=True):
    """One chunk of a completions stream, and the context it is read in."""

    stream: bool
    generate_chunk: GenerateChunk


class DerenderedChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """`stopped`: a stop string ended a choice here. The engine does not know: once all choices have ended, the caller
    should abort its request."""

    chunk: ChatCompletionChunk
    stream_state: Any
    stopped: bool | UnsetType = UNSET


class DerenderedCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """The same for completions."""

    chunk: CompletionChunk
    stream_state: Any
    stopped: bool | UnsetType = UNSET


class _Mode(msgspec.Struct):
    stream: Any = False


_Whole = TypeVar("_Whole", DerenderChatRequest, DerenderCompletionRequest)
_mode = Decoder(_Mode, lenient_numbers=True)
_chat = Decoder(DerenderChatRequest, lenient_numbers=True)
_chat_stream = Decoder(DerenderChatStreamRequest, lenient_numbers=True)
_completion = Decoder(DerenderCompletionRequest, lenient_numbers=True)
_completion_stream = Decoder(DerenderCompletionStreamRequest, lenient_numbers=True)


_LARGE = 16_384  # bytes from which looking for `"stream"` costs more than a try


def is_stream(body: bytes) -> bool:
    """Whether a derender body means a stream's chunk, so that its errors speak of that branch only.

    Raises `InvalidBody` for a `stream` that is not a boolean.
    """
    stream = _mode(body).stream
    if not isinstance(stream, bool):
        raise InvalidBody(f"stream: expected `bool` ({stream!r:.80})", param="body.stream")
    return stream


def decode_derender_chat(body: bytes) -> DerenderChatRequest | DerenderChatStreamRequest:
    """A chat derender body as the branch that was meant. Raises `InvalidBody`."""
    return _whole_if_large(_chat, body) or (_chat_stream(body) if is_stream(body) else _chat(body))


def decode_derender_completion(body: bytes) -> DerenderCompletionRequest | DerenderCompletionStreamRequest:
    """A completions derender body as the branch that was meant. Raises `InvalidBody`."""
    return _whole_if_large(_completion, body) or (_completion_stream(body) if is_stream(body) else _completion(body))


def _whole_if_large(decode: Decoder[_Whole], body: bytes) -> _Whole | None:
    """A large body is nearly always a whole answer: it is tried at once. None where it is something else."""
    if len(body) < _LARGE:
        return None
    try:
        request = decode(body)
    except InvalidBody:
        return None
    return None if request.stream else request
