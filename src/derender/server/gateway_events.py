"""Chunks of a stream as the events that clients of OpenAI's API expect: members that say nothing are left out."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from derender.protocol.chat import ChatCompletionChunk, ChatLogprobs, ChatStreamChoice, DeltaMessage, ToolCallDelta
from derender.protocol.codec import encode
from derender.protocol.common import Json, Usage
from derender.protocol.completions import CompletionChunk, CompletionLogprobs

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keep-alive\n\n"
"""A comment, which clients pass over, so that nothing between here and there takes the connection to be dead."""


class _Delta(msgspec.Struct, gc=False):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class _Choice(msgspec.Struct):
    index: int
    delta: _Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class _TextChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class _Event(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    metrics: Json | UnsetType = UNSET


class Events:
    """Writes the events of one stream. `usage`: whether its client asked for usage, which is null in all chunks but
    those that tell it."""

    def __init__(self, *, usage: bool) -> None:
        self._null_usage: UnsetType | None = None if usage else UNSET
        self._plain: dict[int, bytes] = {}
        self._plain_end = (
            b'},"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
            if usage
            else b'},"logprobs":null,"finish_reason":null}]}\n\n'
        )

    def of(self, chunk: ChatCompletionChunk | CompletionChunk) -> bytes:
        """The events of a chunk; empty where it says nothing."""
        return self._chat(chunk) if isinstance(chunk, ChatCompletionChunk) else self._text(chunk)

    def _chat(self, chunk: ChatCompletionChunk) -> bytes:
        if chunk.usage is None and len(chunk.choices) == 1 and chunk.metrics is None:
            choice = chunk.choices[0]
            delta = choice.delta
            if (
                delta.content is not None
                and delta.role is None
                and not delta.reasoning
                and not delta.reasoning_content
                and not delta.tool_calls
                and choice.logprobs is None
                and choice.finish_reason is None
                and choice.token_ids is None
            ):  # most chunks of most streams
                return self._plain_start(chunk, choice.index) + encode(delta.content) + self._plain_end
        parts: list[bytes] = []
        choices: list[_Choice] = []
        for choice in chunk.choices:
            delta = choice.delta
            if delta.role is not None:
                role = _Choice(choice.index, _Delta(role=delta.role, content=""))
                parts.append(self._event(chunk, [role], usage=_before(chunk.usage)))
            if (made := _choice(choice)) is not None:
                choices.append(made)
        # An event without choices is the last one, which tells usage: clients look at the first choice of any other.
        if choices or (not chunk.choices and chunk.usage is not None):
            parts.append(self._event(chunk, choices, usage=chunk.usage, prompt=not parts))
        return b"".join(parts)

    def _plain_start(self, chunk: ChatCompletionChunk, index: int) -> bytes:
        start = self._plain.get(index)
        if start is None:
            start = self._plain[index] = (
                b'data: {"id":%s,"object":"chat.completion.chunk","created":%d,"model":%s,"choices":[{"index":%d,'
                b'"delta":{"content":' % (encode(chunk.id), chunk.created, encode(chunk.model), index)
            )
        return start

    def _text(self, chunk: CompletionChunk) -> bytes:
        choices = [
            _TextChoice(
                one.index,
                one.text,
                one.logprobs,
                one.finish_reason,
                UNSET if one.stop_reason is None else one.stop_reason,
                UNSET if one.token_ids is None else one.token_ids,
                UNSET if one.prompt_token_ids is None else one.prompt_token_ids,
            )
            for one in chunk.choices
            if one.text or one.logprobs or one.finish_reason or one.token_ids or one.prompt_token_ids
        ]
        if choices or (not chunk.choices and chunk.usage is not None):
            return self._event(chunk, choices, usage=chunk.usage)
        return b""

    def _event(
        self,
        chunk: ChatCompletionChunk | CompletionChunk,
        choices: list[Any],
        *,
        usage: Usage | None = None,
        prompt: bool = True,
    ) -> bytes:
        """One event; `prompt`: with the prompt's ids, where the chunk has them."""
        prompt_ids = getattr(chunk, "prompt_token_ids", None) if prompt else None
        return (
            b"data: "
            + encode(
                _Event(
                    chunk.id,
                    chunk.object,
                    chunk.created,
                    chunk.model,
                    choices,
                    self._null_usage if usage is None else usage,
                    UNSET if prompt_ids is None else prompt_ids,
                    UNSET if chunk.metrics is None else chunk.metrics,
                )
            )
            + b"\n\n"
        )


def _before(usage: Usage | None) -> Usage | None:
    """The usage of a choice before its first token, where usage is told in each event."""
    return None if usage is None else Usage(prompt_tokens=usage.prompt_tokens, total_tokens=usage.prompt_tokens)


def _choice(choice: ChatStreamChoice) -> _Choice | None:
    """What a choice says beside its role; None where that is nothing."""
    delta = _delta(choice.delta)
    told = delta is not None or choice.finish_reason is not None or choice.token_ids or choice.logprobs is not None
    if not told:
        return None
    return _Choice(
        choice.index,
        delta or _Delta(),
        choice.logprobs,
        choice.finish_reason,
        UNSET if choice.stop_reason is None else choice.stop_reason,
        UNSET if choice.token_ids is None else choice.token_ids,
    )


def _delta(delta: DeltaMessage) -> _Delta | None:
    made = _Delta(
        content=delta.content or UNSET,
        reasoning=delta.reasoning or UNSET,
        reasoning_content=delta.reasoning_content or UNSET,
        tool_calls=delta.tool_calls or UNSET,
    )
    nothing = made.content is UNSET and made.reasoning is UNSET and made.reasoning_content is UNSET
    return None if nothing and made.tool_calls is UNSET else made
