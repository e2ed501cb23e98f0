"""What a parser says of a model's output, in order. A dialect turns events into its own messages and deltas."""

from __future__ import annotations

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
