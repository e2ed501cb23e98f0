"""Generate answers → the chat dialect, whole and per chunk. One path: the batch is a stream pushed once."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import UNSET

from derender.derendering.bounds import check_prompt_ids, check_responses
from derender.derendering.choice import ChoiceDelta, ChoiceStream
from derender.derendering.ids import response_id
from derender.derendering.logprobs import TokenTexts
from derender.derendering.options import DerenderOptions, derender_options
from derender.derendering.prompts import chat_echo, fill_prompt_logprobs
from derender.derendering.stream import ChoiceStreams
from derender.derendering.usage import prompt_count, stream_usage, total_usage
from derender.protocol.chat import (
    ChatChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatLogprobs,
    ChatMessage,
    ChatStreamChoice,
    DeltaMessage,
)
from derender.protocol.derender import DerenderChatRequest, DerenderChatStreamRequest, DerenderedChatChunk
from derender.protocol.generate import GenerateChoice, GenerateStreamChoice


def derender_chat(texts: TokenTexts, request: DerenderChatRequest) -> ChatCompletionResponse:
    """The whole answer. Raises `BadRequest` for what the model cannot have given."""
    model, response, asked = texts.model, request.generate_response, request.chat_request
    check_responses(model, [response])
    check_prompt_ids(model, request.prompt_token_ids)
    options = derender_options(asked, eos_token_ids=model.eos_token_ids)
    prompt_ids = request.prompt_token_ids if request.prompt_token_ids is not None else response.prompt_token_ids
    prefix = chat_echo(asked.messages) if asked is not None and asked.echo else ""
    choices: list[ChatChoice] = []
    generated = 0
    for position, choice in enumerate(response.choices):
        stream = ChoiceStream(texts, options, continues=bool(prompt_ids))
        content = choice.logprobs.content if choice.logprobs is not None else None
        delta = stream.push(
            choice.token_ids,
            logprobs=content,
            finish=True,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            where=f"generate_response.choices.{position}.token_ids",
        )
        generated += len(delta.token_ids)
        choices.append(_choice(choice, stream, delta, options, prefix))
    return ChatCompletionResponse(
        id=response_id(response.request_id),
        created=int(time.time()),
        model=request.model or model.name,
        choices=choices,
        usage=total_usage(prompt_count(request.prompt_tokens, response), generated, response.usage),
        prompt_logprobs=fill_prompt_logprobs(texts, response.prompt_logprobs, prompt_ids=prompt_ids),
        prompt_token_ids=_whole_prompt(request, prompt_ids) if options.return_token_ids else None,
        kv_transfer_params=response.kv_transfer_params,
        ec_transfer_params=response.ec_transfer_params,
        metrics=response.metrics,
    )


def _choice(
    choice: GenerateChoice, stream: ChoiceStream, delta: ChoiceDelta, options: DerenderOptions, prefix: str
) -> ChatChoice:
    return ChatChoice(
        index=choice.index,
        message=ChatMessage(content=prefix + delta.text),
        logprobs=_logprobs(choice, stream, delta, options),
        finish_reason=delta.finish_reason,
        stop_reason=delta.stop_reason,
        token_ids=list(delta.token_ids) if options.return_token_ids else None,
        routed_experts=choice.routed_experts,
        sampling_mask=UNSET if choice.sampling_mask is None else choice.sampling_mask,
        weight_versions=UNSET if choice.weight_versions is None else choice.weight_versions,
    )


def _logprobs(
    choice: GenerateChoice | GenerateStreamChoice, stream: ChoiceStream, delta: ChoiceDelta, options: DerenderOptions
) -> ChatLogprobs | None:
    if delta.logprobs is None:
        return None if choice.logprobs is None else ChatLogprobs(None)
    return ChatLogprobs(stream.logprobs.chat(delta.logprobs, limit=options.top_logprobs))


def _whole_prompt(request: DerenderChatRequest, prompt_ids: Sequence[int] | None) -> list[int] | None:
    """The prompt's ids, unless the caller sent only a tail of them."""
    echoed = request.generate_response.prompt_token_ids
    if echoed is not None:
        return echoed
    if prompt_ids is None or request.prompt_tokens not in (None, len(prompt_ids)):
        return None
    return list(prompt_ids)


def derender_chat_chunk(texts: TokenTexts, request: DerenderChatStreamRequest) -> DerenderedChatChunk:
    """One chunk of a stream, and the state for the next. Raises `BadRequest`, `BadState`."""
    model, chunk, asked = texts.model, request.generate_chunk, request.chat_request
    options = derender_options(asked, eos_token_ids=model.eos_token_ids)
    streams = ChoiceStreams(
        texts, options, chunk, state=request.stream_state, prompt_token_ids=request.prompt_token_ids
    )
    choices: list[ChatStreamChoice] = []
    first = False
    for choice, stream, delta in streams.push():
        text = delta.text
        role = None
        if not stream.role_sent:
            stream.role_sent = first = True
            role = "assistant"
            text = _echoed(asked) + text
        choices.append(
            ChatStreamChoice(
                index=choice.index,
                delta=DeltaMessage(role=role, content=text or None),
                logprobs=_logprobs(choice, stream, delta, options),
                finish_reason=delta.finish_reason,
                stop_reason=delta.stop_reason,
                token_ids=list(delta.token_ids) if options.return_token_ids else None,
            )
        )
    return DerenderedChatChunk(
        chunk=ChatCompletionChunk(
            id=response_id(chunk.request_id),
            created=int(time.time()),
            model=request.model or model.name,
            choices=choices,
            usage=stream_usage(request.prompt_tokens, chunk.usage),
            prompt_token_ids=chunk.prompt_token_ids if first and options.return_token_ids else None,
            metrics=chunk.metrics,
        ),
        stream_state=streams.state(),
        stopped=True if streams.stopped else UNSET,
    )


def _echoed(asked: ChatCompletionRequest | None) -> str:
    return chat_echo(asked.messages) if asked is not None and asked.echo else ""
