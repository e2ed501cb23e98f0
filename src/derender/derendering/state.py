"""The state that a caller carries between the chunks of a stream. Hostile until checked: bounded, versioned, 400 with a
fixed text. vLLM's own state, from a fleet that has both, is converted."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from derender.derendering.logprobs import MOST_WAITING
from derender.protocol.derender import VllmStreamState
from derender.protocol.errors import InvalidBody
from derender.tokenizer import Tokenizer

VERSION = 1
_Byte = Annotated[int, Meta(ge=0, le=255)]
_Pending = Annotated[list[_Byte], Meta(max_length=3)]
_Waiting = Annotated[list[_Byte], Meta(max_length=4096)]
_Count = Annotated[int, Meta(ge=0, le=2**53)]


class ChoiceState(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One choice: an array on the wire, in this order.

    `pending`: the bytes of an unfinished character. `logprob_pending`: those of tokens that end in one.
    `held_stop`: an id that ends the output unless
    another follows. `held_text`: what may still become a stop string. `text_offset`: characters told of in logprobs.
    """

    strip_blank: bool
    pending: _Pending
    held_stop: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=1)]
    held_text: str
    count: _Count
    logprob_strip: bool
    logprob_pending: _Waiting
    text_offset: _Count
    role_sent: bool
    ended: bool

    @classmethod
    def initial(cls, *, strip_blank: bool) -> ChoiceState:
        """Before the first token."""
        return cls(
            strip_blank=strip_blank,
            pending=[],
            held_stop=[],
            held_text="",
            count=0,
            logprob_strip=strip_blank,
            logprob_pending=[],
            text_offset=0,
            role_sent=False,
            ended=False,
        )


class StreamState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All choices of a stream, by index. `derender` is the version of this form."""

    derender: int = VERSION
    choices: dict[str, ChoiceState] = {}


class BadState(InvalidBody):
    """A `stream_state` that this server did not make. The text is fixed: nothing of the state is shown."""

    def __init__(self) -> None:
        super().__init__(
            "invalid stream_state: not a state that was given out for this stream", param="body.stream_state"
        )


def decode_state(value: Any, *, tokenizer: Tokenizer, longest_stop: int) -> StreamState | VllmStreamState:
    """A state as it came back from the caller. Raises `BadState`.

    `longest_stop`: no more text than this can be held back.
    """
    if value is None:
        return StreamState()
    if not isinstance(value, dict):
        raise BadState
    try:
        if "derender" not in value:
            if value and value.keys().isdisjoint(VllmStreamState.__struct_fields__):
                raise BadState
            return _checked_vllm(msgspec.convert(value, VllmStreamState))
        state = msgspec.convert(value, StreamState)
    except (msgspec.ValidationError, RecursionError):
        raise BadState from None
    if state.derender != VERSION:
        raise BadState
    for index, choice in state.choices.items():
        if not (index.isascii() and index.isdigit()) or len(choice.held_text) > longest_stop:
            raise BadState
        waiting = choice.logprob_pending
        if (
            not _unfinished(bytes(choice.pending))
            or len(waiting) > max(MOST_WAITING, tokenizer.max_bytes_per_token) + 3
        ):
            raise BadState
        if any(not tokenizer.knows(i) for i in choice.held_stop):
            raise BadState
    return state


def _unfinished(data: bytes) -> bool:
    """Whether bytes are the start of one character and no more."""
    text, used = codecs.utf_8_decode(data, "replace", False)
    return not text and not used


def _checked_vllm(state: VllmStreamState) -> VllmStreamState:
    window = len(state.prev_tokens)
    if not state.prefix_offset <= state.read_offset <= window:
        raise BadState
    if sum(state.output_chunk_lens) != len(state.output_token_ids):
        raise BadState
    return state


def encode_state(choices: Mapping[int, ChoiceState], *, keep: Mapping[str, ChoiceState]) -> dict[str, Any]:
    """The state to give out: the choices that this chunk moved, and the others as they were."""
    states = {**keep, **{str(index): state for index, state in choices.items()}}
    return {"derender": VERSION, "choices": {index: msgspec.to_builtins(state) for index, state in states.items()}}
