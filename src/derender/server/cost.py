"""Which requests take long though their bodies are small: they leave the event loop, as large ones do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.completions import CompletionRequest
from derender.protocol.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
)
from derender.protocol.generate import GenerateChoice, GenerateStreamChoice
from derender.protocol.tokenize import TokenizeRequest

MANY = 64
"""Messages, tools, prompts or choices. Each takes about 10 µs, but chat templates of well-known models look through all
messages for each of them: Gemma 4's takes 10 ms for 64 and half a minute for 4,000."""

MANY_IDS = 4096
"""Generated ids. Each takes 1 to 5 µs where stop strings or an output format are looked for."""


def brings_template(request: Any) -> bool:
    """Whether a request has a chat template of its own, which may run for seconds before it is stopped."""
    if getattr(request, "chat_template", None) is not None:
        return True
    kwargs = getattr(request, "chat_template_kwargs", None)
    return kwargs is not None and "chat_template" in kwargs


def takes_long(request: Any) -> bool:
    """Whether a decoded request, however small, may take more than some milliseconds."""
    judge = _JUDGES.get(type(request))
    return judge is not None and judge(request)


def _chat(request: ChatCompletionRequest) -> bool:
    return (
        len(request.messages) > MANY
        or (request.tools is not None and len(request.tools) > MANY)
        or request.previous_token_ids is not None  # the chat is rendered several times
        or _tells_places(request)
    )


def _tells_places(request: ChatCompletionRequest | TokenizeRequest) -> bool:
    """Whether places of tokens are asked for: the encoder that has them is the slow one, and is loaded for the first.
    For spans and masks a chat is rendered several times, too."""
    return bool(request.return_token_offsets or request.return_message_spans or request.return_loss_mask)


def _completion(request: CompletionRequest) -> bool:
    prompt = request.prompt
    many = isinstance(prompt, list) and len(prompt) > MANY and type(prompt[0]) is not int
    return many or bool(request.return_token_offsets)


def _tokenize(request: TokenizeRequest) -> bool:
    return (
        bool(request.return_token_strs)  # for the first of them the vocabulary is read again
        or _tells_places(request)
        or len(request.messages or ()) > MANY
        or len(request.tools or ()) > MANY
    )


def _chunk(request: DerenderChatStreamRequest | DerenderCompletionStreamRequest) -> bool:
    state = request.stream_state
    replayed = isinstance(state, dict) and "derender" not in state  # vLLM's: all output is read again
    return replayed or _many(request.generate_chunk.choices)


def _answers(request: DerenderCompletionRequest) -> bool:
    return len(request.generate_responses) > MANY or _many(
        choice for response in request.generate_responses for choice in response.choices
    )


def _many(choices: Iterable[GenerateChoice | GenerateStreamChoice]) -> bool:
    ids = 0
    for count, choice in enumerate(choices, 1):
        ids += len(choice.token_ids or ())
        if count > MANY or ids > MANY_IDS:
            return True
    return False


def _answer(request: DerenderChatRequest) -> bool:
    return _many(request.generate_response.choices)


_JUDGES: dict[type, Callable[[Any], bool]] = {
    ChatCompletionRequest: _chat,
    CompletionRequest: _completion,
    TokenizeRequest: _tokenize,
    DerenderChatRequest: _answer,
    DerenderCompletionRequest: _answers,
    DerenderChatStreamRequest: _chunk,
    DerenderCompletionStreamRequest: _chunk,
}
