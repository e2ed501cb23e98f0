"""MiniMax M2: invoke and parameter elements; the model always thinks first."""

from __future__ import annotations

from derender.formats.table import Calls, OutputFormat, Parameters, Reasoning, tags

INVOKE_NAME = r"""["']?(?P<name>[^"'<>\n\ud800-\udfff]{1,256})["']?\s{0,8}>"""
"""The name attribute of an invoke element, with quotes of either kind or none, up to the tag's end."""

MINIMAX_M2 = OutputFormat(
    name="minimax_m2",
    reasoning=Reasoning(tags=tags("<think>", "</think>"), switches=(), strip=True),
    calls=(
        Calls(
            section=tags("<minimax:tool_call>", "</minimax:tool_call>"),
            call=tags("<invoke name=", "</invoke>"),
            header=INVOKE_NAME,
            bare=True,
            strip=True,
            body=Parameters(open="<parameter name=", close="</parameter>", unclosed=True),
            structural_tag="minimax",
        ),
    ),
    end_of_turn=("[e~[",),
    turn_starts=("]~b]ai",),
)
