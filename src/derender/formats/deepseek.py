"""DeepSeek up to V3.2-Exp: tokens around a section, each call, and between name and arguments; `<think>` first.

Later versions write calls in tags of their own and are another group.
"""

from __future__ import annotations

from derender.formats.table import Calls, JsonValue, OutputFormat, Reasoning, Reopen, Switch, tags

_END = ("<｜end▁of▁sentence｜>",)
_TURN = ("<｜Assistant｜>",)
_SECTION = tags("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_CALL = tags("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")

DEEPSEEK_R1 = OutputFormat(
    name="deepseek_r1",
    # Everything is reasoning until a closer is met, and only the first pair counts.
    reasoning=Reasoning(tags=tags("<think>", "</think>"), switches=(), duplicates=Reopen.LITERAL),
    end_of_turn=_END,
    turn_starts=_TURN,
)

DEEPSEEK_V3 = OutputFormat(
    name="deepseek_v3",
    # R1-0528 writes the calls of V3, and V3 has no reasoning: it begins only where prompt or model opens it.
    reasoning=Reasoning(tags=tags("<think>", "</think>"), start="content", switches=(), duplicates=Reopen.REOPEN),
    calls=(
        Calls(
            section=_SECTION,
            call=_CALL,
            header=(
                r"\s{0,64}\w{0,64}\s{0,64}«<｜tool▁sep｜>»[ \t]{0,64}(?P<name>[^\s{`](?:[^\n{`]*?[^\s{`])??)[ \t]{0,64}"
                r"(?:\n|(?=[{`]))"
            ),
            bare=True,
            noise=True,
            body=JsonValue(fence=("```json", "```")),
            structural_tag="deepseek_r1",
        ),
    ),
    end_of_turn=_END,
    turn_starts=_TURN,
)

DEEPSEEK_V31 = OutputFormat(
    name="deepseek_v31",
    reasoning=Reasoning(
        tags=tags("<think>", "</think>"),
        start="content",
        switches=(Switch(name="thinking"), Switch(name="enable_thinking")),
        duplicates=Reopen.REOPEN,
    ),
    calls=(
        Calls(
            section=_SECTION,
            call=_CALL,
            header=r"\s{0,64}(?P<name>[^\s{](?:[^\n{]*?[^\s{])??)\s{0,64}«<｜tool▁sep｜>»",
            bare=True,
            noise=True,
            body=JsonValue(),
            structural_tag="deepseek_v3_1",
        ),
    ),
    end_of_turn=_END,
    turn_starts=_TURN,
)

HOLO2 = OutputFormat(
    name="holo2",
    reasoning=Reasoning(
        tags=tags("<think>", "</think>"), switches=(Switch(name="thinking"), Switch(name="enable_thinking"))
    ),
)
"""Reasoning as V3.1 has it, on unless a switch turns it off."""
