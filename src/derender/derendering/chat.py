"""Generate answers → the chat dialect, whole and per chunk. One path: the batch is a stream pushed once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from msgspec import UNSET

from derender.derendering.bounds import check_prompt_ids, check_repeated, check_responses
from derender.derendering.choice import ChoiceDelta, ChoiceStream
from derender.derendering.ids import response_id
from derender.derendering.logprobs import TokenTexts
from derender.derendering.messages import CallIds, delta_message, message
from derender.derendering.model import DerenderModel
from derender.derendering.options import DerenderOptions, derender_options
from derender.derendering.prompts import chat_echo, fill_prompt_logprobs
from derender.derendering.reading import chat_reading
from derender.derendering.stream import ChoiceStreams, StreamDerenderer
from derender.derendering.usage import prompt_count, stream_usage, total_usage, with_reasoning
from derender.protocol.chat import (
    ChatChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatLogprobs,
    ChatStreamChoice,
)
from derender.protocol.derender import (
    ChatStreamContext,
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderedChatChunk,
)
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateChoice, GenerateChunk, GenerateStreamChoice


def derender_chat(texts: TokenTexts, request: DerenderChatRequest) -> ChatCompletionResponse:
    """The whole answer. Raises `BadRequest` for what the model cannot have given."""
    model, response, asked = texts.model, request.generate_response, request.chat_request
    check_responses(model, [response])
    check_prompt_ids(model, request.prompt_token_ids)
    prompt_ids = request.prompt_token_ids if request.prompt_token_ids is not None else response.prompt_token_ids
    options = _options(model, request, prompt_ids)
    identity = response_id(response.request_id)
    prefix = _echoed(asked)
    check_repeated(len(prefix) * (len(response.choices) - 1))
    choices: list[ChatChoice] = []
    generated = reasoned = 0
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
        reasoned += stream.reasoning
        choices.append(_choice(model, choice, stream, delta, options, identity, prefix))
    usage = total_usage(prompt_count(request.prompt_tokens, response), generated, response.usage)
    return ChatCompletionResponse(
        id=identity,
        created=int(time.time()),
        model=request.model or model.name,
        choices=choices,
        usage=usage if options.reading is None else with_reasoning(usage, reasoned),
        prompt_logprobs=fill_prompt_logprobs(texts, response.prompt_logprobs, prompt_ids=prompt_ids),
        prompt_token_ids=_whole_prompt(request, prompt_ids) if options.return_token_ids else None,
        kv_transfer_params=response.kv_transfer_params,
        ec_transfer_params=response.ec_transfer_params,
        metrics=response.metrics,
    )


def _options(
    model: DerenderModel,
    request: DerenderChatRequest | ChatStreamContext,
    prompt_ids: Sequence[int] | None,
) -> DerenderOptions:
    options = derender_options(request.chat_request, eos_token_ids=model.eos_token_ids)
    reading = chat_reading(
        model,
        request.chat_request,
        request.parse_context,
        prompt_ids=prompt_ids,
        reasoning_ended=request.reasoning_ended,
    )
    return options if reading is None else replace(options, reading=reading)


def _ids(options: DerenderOptions, identity: str, choice: int) -> CallIds:
    calls = options.reading.compiled.table.calls if options.reading is not None else ()
    return CallIds(identity, choice, calls[0].ids if calls else "made")


def _choice(
    model: DerenderModel,
    choice: GenerateChoice,
    stream: ChoiceStream,
    delta: ChoiceDelta,
    options: DerenderOptions,
    identity: str,
    prefix: str,
) -> ChatChoice:
    ids = _ids(options, identity, choice.index)
    return ChatChoice(
        index=choice.index,
        message=message(delta, options, ids, prefix=prefix, field=model.reasoning_field),
        logprobs=_logprobs(choice, stream, delta, options),
        finish_reason=delta.finish_reason,
        stop_reason=delta.stop_reason,
        token_ids=delta.shown(delta.token_ids) if options.return_token_ids else None,
        routed_experts=choice.routed_experts,
        sampling_mask=UNSET if choice.sampling_mask is None else choice.sampling_mask,
        weight_versions=UNSET if choice.weight_versions is None else choice.weight_versions,
    )


def _logprobs(
    choice: GenerateChoice | GenerateStreamChoice, stream: ChoiceStream, delta: ChoiceDelta, options: DerenderOptions
) -> ChatLogprobs | None:
    if delta.logprobs is None:
        return None if choice.logprobs is None else ChatLogprobs(None)
    return ChatLogprobs(delta.shown(stream.logprobs.chat(delta.logprobs, limit=options.top_logprobs)))


def _whole_prompt(request: DerenderChatRequest, prompt_ids: Sequence[int] | None) -> list[int] | None:
    """The prompt's ids, unless the caller sent only a tail of them."""
    echoed = request.generate_response.prompt_token_ids
    if echoed is not None:
        return echoed
    if prompt_ids is None or request.prompt_tokens not in (None, len(prompt_ids)):
        return None
    return list(prompt_ids)


class ChatStreamDerenderer(StreamDerenderer):
    """Derenders one chat stream: `push` a chunk of the engine's, get a chunk of the API's.

    `snapshot` is the small state from which any replica goes on (`context.stream_state`). Not safe for threads.
    """

    def __init__(self, texts: TokenTexts, context: ChatStreamContext) -> None:
        """What the context says is checked with the first chunk."""
        super().__init__(context.chat_request, state=context.stream_state)
        self._texts = texts
        self._context = context
        self._options: DerenderOptions | None = None
        self._echoed = _echoed(context.chat_request)
        self._ids: dict[int, CallIds] = {}

    def _open(self, chunk: GenerateChunk) -> tuple[DerenderOptions, ChoiceStreams]:
        """The streams, made with the first chunk: it may bring the prompt's ids."""
        if self._options is None or self._streams is None:
            model, context = self._texts.model, self._context
            prompt_ids = context.prompt_token_ids if context.prompt_token_ids is not None else chunk.prompt_token_ids
            if model.strict_vllm and model.formats is not None and prompt_ids is None:
                raise BadRequest(
                    "prompt_token_ids is required when an output format is configured.", param="prompt_token_ids"
                )
            self._options = _options(model, context, prompt_ids)
            self._streams = ChoiceStreams(
                self._texts, self._options, state=context.stream_state, continues=bool(prompt_ids)
            )
        return self._options, self._streams

    def push(self, chunk: GenerateChunk) -> ChatCompletionChunk:
        """The next chunk. Raises `BadRequest`, `BadState`."""
        model, context = self._texts.model, self._context
        options, streams = self._open(chunk)
        prefix = self._echoed
        if prefix:
            check_repeated(len(prefix) * (len(chunk.choices) - 1))
        choices: list[ChatStreamChoice] = []
        first = False
        for choice, stream, delta in streams.push(chunk, prompt_token_ids=context.prompt_token_ids):
            text = delta.text
            role = None
            if not stream.role_sent:
                stream.role_sent = first = True
                role = "assistant"
                text = prefix + text
            ids = self._ids.get(choice.index)
            if ids is None:
                ids = self._ids[choice.index] = _ids(options, streams.identity, choice.index)
            choices.append(
                ChatStreamChoice(
                    index=choice.index,
                    delta=delta_message(delta, options, ids, role=role, text=text, field=model.reasoning_field),
                    logprobs=_logprobs(choice, stream, delta, options),
                    finish_reason=delta.finish_reason,
                    stop_reason=delta.stop_reason,
                    token_ids=delta.shown(delta.token_ids) if options.return_token_ids else None,
                )
            )
        usage = stream_usage(context.prompt_tokens, chunk.usage)
        if usage is not None and options.reading is not None:
            usage = with_reasoning(usage, streams.reasoned)
        return ChatCompletionChunk(
            id=streams.identity,
            created=streams.created,
            model=context.model or model.name,
            choices=choices,
            usage=usage,
            prompt_token_ids=chunk.prompt_token_ids if first and options.return_token_ids else None,
            metrics=chunk.metrics,
        )


def derender_chat_chunk(texts: TokenTexts, request: DerenderChatStreamRequest) -> DerenderedChatChunk:
    """One chunk of a stream, and the state for the next. Raises `BadRequest`, `BadState`."""
    stream = ChatStreamDerenderer(texts, request)
    chunk = stream.push(request.generate_chunk)
    return DerenderedChatChunk(chunk=chunk, stream_state=stream.snapshot(), stopped=True if stream.stopped else UNSET)


def _echoed(asked: ChatCompletionRequest | None) -> str:
    return chat_echo(asked.messages) if asked is not None and asked.echo else ""
