"""In which region an output begins: from the tail of the rendered prompt, never from an earlier turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from derender.parser.compiled import CompiledFormat
from derender.parser.marks import Lexer

TAIL = 64
"""How many ids of the prompt are looked at: what a template writes between the turn's start and the model's words."""

Region = Literal["reasoning", "content"]


def start_region(
    compiled: CompiledFormat, prompt_ids: Sequence[int] | None, kwargs: Mapping[str, Any] | None
) -> Region:
    """The region that an output begins in.

    An opener in the tail of this turn's prompt: reasoning; a closer: content. Without either, what a switch among the
    template's `kwargs` says, else the format's default.
    """
    reasoning = compiled.table.reasoning
    if reasoning is None:
        return "content"
    found = prompt_region(compiled, prompt_ids)
    if found is not None:
        return found
    for switch in reasoning.switches:
        if kwargs is not None and switch.name in kwargs:
            value = kwargs[switch.name]
            off = any(value is one or (type(value) is type(one) and value == one) for one in switch.off)
            return "content" if off else "reasoning"
    return reasoning.start


def prompt_region(compiled: CompiledFormat, prompt_ids: Sequence[int] | None) -> Region | None:
    """What the markers in the prompt's tail say; None where there are none."""
    reasoning = compiled.table.reasoning
    if reasoning is None or not prompt_ids:
        return None
    marks = compiled.marks
    lexer = Lexer(marks, show_special=True, stop_ids=frozenset())
    tail = lexer.push(prompt_ids[-TAIL:]) + lexer.finish()
    turn = max(
        (at + len(text) for text in map(marks.literal, compiled.table.turn_starts) if (at := tail.rfind(text)) >= 0),
        default=0,
    )
    opened = max(tail.rfind(text, turn) for text in map(marks.literal, reasoning.tags.open))
    closed = max(tail.rfind(text, turn) for text in map(marks.literal, reasoning.tags.close))
    if opened < 0 and closed < 0:
        return None
    return "reasoning" if opened > closed else "content"
