"""What a parser says of a model's output, in order. A dialect turns events into its own messages and deltas."""

from __future__ import annotations

from itertools import groupby

import msgspec


class ContentText(msgspec.Struct, frozen=True, gc=False):
    """Visible text."""

    text: str


class ReasoningText(msgspec.Struct, frozen=True, gc=False):
    """Text of the model's reasoning."""

    text: str


class ToolCallBegin(msgspec.Struct, frozen=True, gc=False):
    """A call whose name is known. `index` counts the calls of one choice from 0; `id` is the model's own, if any."""

    index: int
    name: str
    id: str | None = None


class ToolCallArguments(msgspec.Struct, frozen=True, gc=False):
    """The next characters of a call's arguments (JSON text)."""

    index: int
    text: str


class ToolCallEnd(msgspec.Struct, frozen=True, gc=False):
    """A call is closed."""

    index: int


Event = ContentText | ReasoningText | ToolCallBegin | ToolCallArguments | ToolCallEnd


def joined(events: list[Event]) -> list[Event]:
    """The same with texts of one kind that follow each other as one."""
    found: list[Event] = []
    for kind, same in groupby(events, type):
        if kind is ContentText or kind is ReasoningText:
            found.append(kind("".join([event.text for event in same if isinstance(event, kind)])))
        else:
            found += same
    return found
