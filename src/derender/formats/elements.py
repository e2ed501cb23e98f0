"""Kimi K3 and MiniMax M3: every part of an answer is an element with a tag that cannot be mistaken for text."""

from __future__ import annotations

from derender.formats.minimax import INVOKE_NAME
from derender.formats.table import (
    Calls,
    NestedElements,
    OutputFormat,
    Parameters,
    Reasoning,
    Reopen,
    Switch,
    Typing,
    tags,
)

_IN_TAG = r"(?:(?!«<|sep|>»).)"


def _attribute(name: str, group: str, longest: int) -> str:
    """Looks ahead for an attribute, wherever it stands in its tag."""
    return rf'(?={_IN_TAG}{{0,300}}?\b{name}="(?P<{group}>[^"]{{0,{longest}}})")'


KIMI_K3 = OutputFormat(
    name="kimi_k3",
    native_only=True,
    reasoning=Reasoning(
        # An answer that begins, or a message that ends, leaves the reasoning too; after it they say nothing.
        tags=tags(
            "<|open|>think<|sep|>",
            (
                "<|close|>think<|sep|>",
                "<|open|>response<|sep|>",
                "<|close|>response<|sep|>",
                "<|close|>message<|sep|>",
            ),
        ),
        switches=(Switch(name="thinking"), Switch(name="enable_thinking")),
        duplicates=Reopen.REOPEN,
    ),
    calls=(
        Calls(
            section=tags("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
            call=tags("<|open|>call", "<|close|>call<|sep|>"),
            header=rf"{_attribute('tool', 'name', 256)}{_IN_TAG}{{1,600}}«<|sep|>»",
            bare=True,
            body=Parameters(
                open="<|open|>argument",
                key=rf"{_attribute('key', 'key', 256)}(?:{_attribute('type', 'type', 16)})?{_IN_TAG}{{1,380}}«<|sep|>»",
                close="<|close|>argument<|sep|>",
                typing=Typing.ATTRIBUTE,
                entities=True,
            ),
            ids="kimi",
            structural_tag="kimi_k3",
        ),
    ),
    end_of_turn=("<|end_of_msg|>",),
    turn_starts=('<|open|>message role="assistant"<|sep|>',),
)

_MARK = "]<]minimax[>["

MINIMAX_M3 = OutputFormat(
    name="minimax_m3",
    native_only=True,
    reasoning=Reasoning(
        tags=tags("<mm:think>", "</mm:think>"),
        start="content",
        switches=(Switch(name="thinking_mode", off=("disabled", "adaptive")),),
    ),
    calls=(
        Calls(
            section=tags(f"{_MARK}<tool_call>", f"{_MARK}</tool_call>"),
            call=tags(f"{_MARK}<invoke name=", f"{_MARK}</invoke>"),
            header=INVOKE_NAME,
            bare=True,
            body=NestedElements(mark=_MARK),
            structural_tag="minimax_m3",
        ),
    ),
    end_of_turn=("[e~[",),
    turn_starts=("]~b]ai",),
)
