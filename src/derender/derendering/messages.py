"""Events → the chat dialect's messages and deltas."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET, UnsetType

from derender.derendering.choice import ChoiceDelta
from derender.derendering.options import DerenderOptions
from derender.parser.events import ContentText, Event, ToolCallArguments, ToolCallBegin
from derender.protocol.chat import (
    ChatMessage,
    DeltaMessage,
    FunctionCall,
    FunctionCallDelta,
    ToolCall,
    ToolCallDelta,
)

ReasoningField = Literal["reasoning", "reasoning_content", "both"]
_ALPHANUMERIC = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True)
class CallIds:
    """Makes the ids of tool calls: from the request's id, the choice and the call's index, so that batch, stream, a
    retry and another replica agree. `kind`: the family's own form, where it has one."""

    request_id: str
    choice: int
    kind: str = "made"

    def of(self, event: ToolCallBegin) -> str:
        """The id of a call."""
        if event.id is not None and self.kind in ("kimi", "native"):
            return event.id
        if self.kind == "kimi":
            return f"functions.{event.name}:{event.index}"
        key = f"{self.request_id}\0{self.choice}\0{event.index}".encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(key, digest_size=12).digest()
        if self.kind == "mistral":  # nine letters and digits: other ids are refused when the call comes back in history
            number = int.from_bytes(digest, "big")
            return "".join(_ALPHANUMERIC[number // len(_ALPHANUMERIC) ** n % len(_ALPHANUMERIC)] for n in range(9))
        return f"call_{digest.hex()}"


def _tool_calls(events: Sequence[Event], ids: CallIds) -> list[ToolCall]:
    begun: dict[int, tuple[str, str]] = {}
    arguments: dict[int, list[str]] = {}
    for event in events:
        if isinstance(event, ToolCallBegin):
            begun[event.index] = (ids.of(event), event.name)
            arguments[event.index] = []
        elif isinstance(event, ToolCallArguments):
            arguments[event.index].append(event.text)
    return [
        ToolCall(id=call_id, function=FunctionCall(name=name, arguments="".join(arguments[index])))
        for index, (call_id, name) in begun.items()
    ]


def message(
    delta: ChoiceDelta, options: DerenderOptions, ids: CallIds, *, prefix: str, field: ReasoningField
) -> ChatMessage:
    """The whole message. Its content is null where there are calls and no text, unless calls were demanded."""
    reading = options.reading
    content: str | None = prefix + delta.text
    if reading is None:
        return ChatMessage(content=content)
    reasoning = delta.reasoning or None
    calls = _tool_calls(delta.events, ids)
    if not content and calls and reading.choice not in ("required", "named"):
        content = None
    named = _reasoning(reasoning, field)
    return ChatMessage(content=content, tool_calls=calls or UNSET, reasoning=named[0], reasoning_content=named[1])


def _reasoning(text: str | None, field: ReasoningField) -> tuple[str | UnsetType | None, str | UnsetType | None]:
    """The values of `reasoning` and `reasoning_content`."""
    return (
        UNSET if field == "reasoning_content" else text,
        UNSET if field == "reasoning" else text,
    )


def delta_message(
    delta: ChoiceDelta, options: DerenderOptions, ids: CallIds, *, role: str | None, text: str, field: ReasoningField
) -> DeltaMessage:
    """What a chunk adds. `text` is the visible text, an echoed beginning included."""
    if options.reading is None:
        return DeltaMessage(role=role, content=text or None)
    events = delta.events
    if field == "reasoning" and (not events or (len(events) == 1 and type(events[0]) is ContentText)):
        return DeltaMessage(role=role, content=text or None)  # most chunks: text, or nothing yet
    named = _reasoning(delta.reasoning or None, field)
    return DeltaMessage(
        role=role,
        content=text or None,
        reasoning=named[0],
        reasoning_content=named[1],
        tool_calls=_call_deltas(delta.events, ids) or UNSET,
    )


def _call_deltas(events: Sequence[Event], ids: CallIds) -> list[ToolCallDelta]:
    """One delta per call that moved: id, type and name where it begins, arguments as far as they came."""
    begun: dict[int, ToolCallBegin] = {}
    arguments: dict[int, str] = {}
    for event in events:
        if isinstance(event, ToolCallBegin):
            begun[event.index] = event
            arguments.setdefault(event.index, "")
        elif isinstance(event, ToolCallArguments):
            arguments[event.index] = arguments.get(event.index, "") + event.text
    return [
        ToolCallDelta(
            id=ids.of(first),
            type="function",
            index=index,
            function=FunctionCallDelta(name=first.name, arguments=text),
        )
        if (first := begun.get(index)) is not None
        else ToolCallDelta(index=index, function=FunctionCallDelta(arguments=text))
        for index, text in arguments.items()
    ]
