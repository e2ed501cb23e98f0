"""In which region an output begins: from the tail of the rendered prompt, never from an earlier turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from derender.parser.compiled import CompiledFormat
from derender.parser.engine import HEADER
from derender.parser.marks import Lexer

TAIL = 64
"""How many ids of the prompt are looked at: what a template writes between the turn's start and the model's words."""

Region = str
"""`reasoning` or `content`; for a format of messages `HEADER` and what the prompt has of the first header, with the
marker behind it where the prompt has it whole."""


def start_region(
    compiled: CompiledFormat, prompt_ids: Sequence[int] | None, kwargs: Mapping[str, Any] | None
) -> Region:
    """The region that an output begins in.

    An opener in the tail of this turn's prompt: reasoning; a closer: content. Without either, what a switch among the
    template's `kwargs` says, else the format's default.
    """
    reasoning = compiled.table.reasoning
    if compiled.chain is not None:
        return HEADER + _header(compiled, prompt_ids)
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
    tail = _tail(compiled, prompt_ids)
    turn = max(
        (at + len(text) for text in map(marks.literal, compiled.table.turn_starts) if (at := tail.rfind(text)) >= 0),
        default=0,
    )
    opened = max(tail.rfind(text, turn) for text in map(marks.literal, reasoning.tags.open))
    closed = max(tail.rfind(text, turn) for text in map(marks.literal, reasoning.tags.close))
    if opened < 0 and closed < 0:
        return None
    return "reasoning" if opened > closed else "content"


def _tail(compiled: CompiledFormat, prompt_ids: Sequence[int]) -> str:
    """The end of the prompt as marked text, back to the end of the turn before. Ids that no piece is known of, which a
    model's padded vocabulary allows in a prompt, are passed over."""
    knows, ends = compiled.marks.tokenizer.knows, compiled.marks.end_ids
    tail = [token for token in prompt_ids[-TAIL:] if knows(token)]
    start = next((at for at in range(len(tail), 0, -1) if tail[at - 1] in ends), 0)
    lexer = Lexer(compiled.marks, show_special=True)
    return lexer.push(tail[start:]) + lexer.finish()


def _header(compiled: CompiledFormat, prompt_ids: Sequence[int] | None) -> str:
    """What the prompt has of a message's header, markers spelled out. Of a body that it has begun, nothing."""
    messages = compiled.table.messages
    if messages is None or not prompt_ids:
        return ""
    tail, literal = _tail(compiled, prompt_ids), compiled.marks.literal
    opened = max((at + len(text) for text in map(literal, messages.open) if (at := tail.rfind(text)) >= 0), default=-1)
    if opened < 0:
        return ""
    tail = tail[opened:]
    if any(literal(text) in tail for text in messages.close):
        return ""
    found = [(at + len(text)) for text in map(literal, messages.body) if (at := tail.find(text)) >= 0]
    return compiled.marks.spell(tail[: min(found)] if found else tail)
