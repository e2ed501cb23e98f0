"""The state that a caller carries between the chunks of a stream. Hostile until checked: bounded, versioned, 400 with a
fixed text. vLLM's own state, from a fleet that has both, is converted."""

from __future__ import annotations

import base64
import codecs
import hashlib
import hmac
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from derender.derendering.logprobs import MOST_WAITING
from derender.derendering.options import DerenderOptions
from derender.protocol.derender import VllmStreamState
from derender.protocol.errors import InvalidBody
from derender.tokenizer import Tokenizer

VERSION = 1
MAX_ID = 256
"""Characters of a request id that a state carries; of a longer one it carries none."""

_Byte = Annotated[int, Meta(ge=0, le=255)]
_Waiting = Annotated[list[_Byte], Meta(max_length=4096)]
_MOST = 2**53
_Count = Annotated[int, Meta(ge=0, le=_MOST)]


class ChoiceState(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One choice: an array on the wire, in this order.

    `parser`: the parser's own state, null before the first token. `reasoning`: how many tokens were. `held_stop`: an id
    that ends the output unless another follows. `held_text`: what may still become a stop string. `logprob_pending`:
    bytes of tokens that end inside a character. `text_offset`: characters told of in logprobs.
    """

    parser: list[Any] | None
    reasoning: _Count
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
            parser=None,
            reasoning=0,
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
    """All choices of a stream, by index.

    `derender` is the version of this form. `id`, `created` (Unix seconds): of the stream, told in each of its chunks.
    `mac`: the server's signature over the rest, where it has a key.
    """

    derender: int = VERSION
    id: Annotated[str, Meta(max_length=MAX_ID)] = ""
    created: _Count = 0
    mac: str = ""
    choices: dict[str, ChoiceState] = {}


class BadState(InvalidBody):
    """A `stream_state` that this server did not make. The text is fixed: nothing of the state is shown."""

    def __init__(self) -> None:
        super().__init__(
            "invalid stream_state: not a state that was given out for this stream", param="body.stream_state"
        )


def decode_state(
    value: Any, *, tokenizer: Tokenizer, options: DerenderOptions, key: bytes | None
) -> StreamState | VllmStreamState:
    """A state as it came back from the caller. Raises `BadState`.

    With a `key`, only what was signed with it is a state; vLLM's own is not.

    What it holds back must be something that these options hold back: whatever else stood there would be given out
    as the model's text.
    """
    if value is None:
        return StreamState()
    if not isinstance(value, dict):
        raise BadState
    try:
        if key is not None and not hmac.compare_digest(_mac(value, key), str(value.get("mac", "")).encode()):
            raise BadState
        if "derender" not in value:
            if value and value.keys().isdisjoint(VllmStreamState.__struct_fields__):
                raise BadState
            return _checked_vllm(msgspec.convert(value, VllmStreamState))
        state = msgspec.convert(value, StreamState)
    except (msgspec.ValidationError, RecursionError, UnicodeError):
        raise BadState from None
    if state.derender != VERSION:
        raise BadState
    if not all(_index(index) and _possible(choice, tokenizer, options) for index, choice in state.choices.items()):
        raise BadState
    return state


def _index(key: str) -> bool:
    """Whether a key is a choice's index as `encode_state` writes it."""
    return key.isascii() and key.isdigit() and (key == "0" or key[0] != "0")


def _possible(choice: ChoiceState, tokenizer: Tokenizer, options: DerenderOptions) -> bool:
    """Whether a choice can be in this state."""
    held, waiting = choice.held_text, bytes(choice.logprob_pending)
    if held and not any(stop.startswith(held) and stop != held for stop in options.stop):
        return False
    # Once the output has ended, nothing of what the state holds is given out.
    hides = options.hides_stop_token and choice.held_stop and choice.held_stop[0] in options.stop_ids
    if choice.held_stop and not choice.ended and not hides:
        return False
    if any(not tokenizer.knows(i) for i in choice.held_stop):
        return False
    return not waiting or (
        len(waiting) <= max(MOST_WAITING, tokenizer.max_bytes_per_token) + 3 and _ends_inside(waiting)
    )


def _ends_inside(data: bytes) -> bool:
    """Whether bytes end inside a character."""
    return codecs.utf_8_decode(data, "replace", False)[1] < len(data)


def _checked_vllm(state: VllmStreamState) -> VllmStreamState:
    window = len(state.prev_tokens)
    if not state.prefix_offset <= state.read_offset <= window:
        raise BadState
    if sum(state.output_chunk_lens) != len(state.output_token_ids) or state.logprob_text_offset > _MOST:
        raise BadState
    return state


def encode_state(
    choices: Mapping[int, ChoiceState],
    *,
    keep: Mapping[str, ChoiceState],
    identity: str,
    created: int,
    key: bytes | None,
) -> dict[str, Any]:
    """The state to give out: the choices that this chunk moved, and the others as they were."""
    states = {**keep, **{str(index): state for index, state in choices.items()}}
    state: dict[str, Any] = {
        "derender": VERSION,
        "id": identity if len(identity) <= MAX_ID else "",
        "created": created,
        "choices": {index: msgspec.to_builtins(choice) for index, choice in states.items()},
    }
    if key is not None:
        state["mac"] = _mac(state, key).decode()
    return state


def _mac(state: Mapping[str, Any], key: bytes) -> bytes:
    """The signature of a state: its members but `mac`, in the order of their names."""
    signed = msgspec.json.encode({name: value for name, value in state.items() if name != "mac"}, order="sorted")
    return base64.urlsafe_b64encode(hmac.digest(key, signed, hashlib.sha256)[:18])
