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

MANY_VALUES = 512
"""JSON values in what a chat template may walk through: messages with their parts and calls, tools with their schemas,
template kwargs. Most templates write them as JSON, in far less than a microsecond each; Gemma 4's takes 5 to 13 µs, as
each value is a call of a macro."""

MANY_CARRIED = 8192
"""JSON values that are only checked and written again, for each prompt: biases, stop ids, transfer parameters. Each
takes about 0.2 µs."""

SHORT_BYTES = 512
"""Bytes of a body that can hold no more of anything than is quickly done; it is not looked through."""

HASHED_BYTES = 2048
"""Bytes of a body that asks for hashes of its blocks. They may be of one token, and a token of one byte; each hash
takes 1 to 2 µs."""

SLOW_BYTES = 8192
"""Bytes of a body for a model that the slower library encodes for: 0.5 µs for each character."""

MANY_IDS = 4096
"""Generated ids. Each takes 1 to 5 µs where stop strings or an output format are looked for."""


def brings_template(request: Any) -> bool:
    """Whether a request has a chat template of its own, which may run for seconds before it is stopped."""
    if getattr(request, "chat_template", None) is not None:
        return True
    kwargs = getattr(request, "chat_template_kwargs", None)
    return kwargs is not None and "chat_template" in kwargs


def takes_long_though_short(request: Any) -> bool:
    """Whether a request whose body has at most `SHORT_BYTES` may take long all the same: not by how much it holds."""
    kind = type(request)
    if kind is ChatCompletionRequest:
        return (
            request.chat_template is not None
            or request.chat_template_kwargs is not None
            or request.previous_token_ids is not None
            or bool(request.return_token_offsets or request.return_message_spans or request.return_loss_mask)
        )
    return kind is not CompletionRequest or bool(request.return_token_offsets)


def takes_long(request: Any, *, size: int | None = None, slow_encoder: bool = False) -> bool:
    """Whether a decoded request, however small, may take more than some milliseconds.

    `size`: bytes of its body, None for not known. `slow_encoder`: the model's encoder is the slower library.
    """
    judge = _JUDGES.get(type(request))
    if judge is None:
        return False
    if type(request) in _ENCODED:
        if slow_encoder and size is not None and size > SLOW_BYTES:
            return True
        if request.return_block_hashes and (size is None or size > HASHED_BYTES):
            return True
    return judge(request)


def _chat(request: ChatCompletionRequest) -> bool:
    return (
        len(request.messages) > MANY
        or (request.tools is not None and len(request.tools) > MANY)
        or request.previous_token_ids is not None  # the chat is rendered several times
        or _tells_places(request)
        or _walked(request, request.documents)
        or _carries(request, prompts=1)
    )


def _walked(request: ChatCompletionRequest | TokenizeRequest, documents: list[dict[str, str]] | None = None) -> bool:
    """Whether a template may have many values to walk through."""
    roots: list[Any] = [request.messages]
    if request.tools is not None:
        roots += [tool.function.parameters for tool in request.tools]
    roots += (request.chat_template_kwargs, documents)
    return _many_values(roots, MANY_VALUES)


def _carries(request: ChatCompletionRequest | CompletionRequest, *, prompts: int) -> bool:
    """Whether there is much in what goes to the engine as it came, with each of the prompts."""
    flat = (request.logit_bias, request.stop_token_ids, request.allowed_token_ids, request.logprob_token_ids)
    many = sum(len(one) for one in flat if one is not None) + len(request.bad_words)
    roots: list[Any] = [request.kv_transfer_params, request.ec_transfer_params, request.vllm_xargs]
    form, outputs = request.response_format, request.structured_outputs
    if form is not None:
        roots += (form.json_schema and form.json_schema.schema, form.format, form.structures)
    if outputs is not None:
        roots += (outputs.json, outputs.choice)
    return _many_values(roots, MANY_CARRIED // prompts - many)


def _many_values(roots: Iterable[Any], most: int) -> bool:
    """Whether objects and lists have more than so many members in all; JSON in a call's arguments counts, too."""
    left = most
    waiting: list[Any] = [one for one in roots if type(one) is dict or type(one) is list]
    while waiting:
        one = waiting.pop()
        left -= len(one)
        if left < 0:
            return True
        if type(one) is list:
            waiting.extend(value for value in one if type(value) is dict or type(value) is list)
            continue
        for key, value in one.items():
            kind = type(value)
            if kind is dict or kind is list:
                waiting.append(value)
            elif kind is str and key == "arguments":
                left -= value.count(",") + value.count("[") + value.count("{")
    return left < 0


def _tells_places(request: ChatCompletionRequest | TokenizeRequest) -> bool:
    """Whether places of tokens are asked for: the encoder that has them is the slow one. For spans and masks a chat is
    rendered several times, too."""
    return bool(request.return_token_offsets or request.return_message_spans or request.return_loss_mask)


def _completion(request: CompletionRequest) -> bool:
    prompt = request.prompt
    prompts = len(prompt) if isinstance(prompt, list) and prompt and type(prompt[0]) is not int else 1
    return prompts > MANY or bool(request.return_token_offsets) or _carries(request, prompts=prompts)


def _tokenize(request: TokenizeRequest) -> bool:
    return (
        bool(request.return_token_strs)  # for the first of them the vocabulary is read again
        or _tells_places(request)
        or len(request.messages or ()) > MANY
        or len(request.tools or ()) > MANY
        or _walked(request)
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

_ENCODED = frozenset((ChatCompletionRequest, CompletionRequest, TokenizeRequest))
