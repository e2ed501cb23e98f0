"""Rarer families with elements for a call and its parameters: Step-3, MiniCPM5, dots."""

from __future__ import annotations

from derender.formats.minimax import INVOKE_NAME
from derender.formats.table import Calls, JsonMembers, OutputFormat, Parameters, Reasoning, tags

STEP3 = OutputFormat(
    name="step3",
    reasoning=Reasoning(tags=tags("<think>", "</think>"), switches=()),
    calls=(
        Calls(
            section=tags("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
            call=tags("<｜tool_call_begin｜>", ("</steptml:invoke>", "<｜tool_call_end｜>")),
            header=(
                r"\s{0,8}(?:function\s{0,8}«<｜tool_sep｜>»)?\s{0,8}«<steptml:invoke name="
                r"»" + INVOKE_NAME
            ),
            bare=True,
            strip=True,
            body=Parameters(open="<steptml:parameter name=", close="</steptml:parameter>", unclosed=True, trim=True),
        ),
    ),
    end_of_turn=("<|EOT|>",),
)

MINICPM5 = OutputFormat(
    name="minicpm5",
    reasoning=Reasoning(tags=tags("<think>", "</think>"), start="content", ended_by_call=False),
    calls=(
        Calls(
            call=tags(("<function name=", "<functionname="), "</function>"),
            header=INVOKE_NAME,
            body=Parameters(
                open="<param name=",
                close="</param>",
                unclosed=True,
                trim=True,
                xml=True,
                wrappers=("arguments", "properties"),
            ),
        ),
    ),
    end_of_turn=("<|im_end|>",),
)

DOTS_SECTION = tags("<dots_function_call>", "</dots_function_call>")

DOTS = OutputFormat(
    name="dots",
    native_only=True,
    reasoning=Reasoning(tags=tags("<think>", "</think>"), start="content"),
    calls=(
        Calls(
            section=DOTS_SECTION,
            call=tags("<invoke name=", "</invoke>"),
            header=INVOKE_NAME,
            strip=True,
            body=Parameters(open="<parameter name=", close="</parameter>", unclosed=True, trim=True),
        ),
        Calls(section=DOTS_SECTION, strip=True, body=JsonMembers()),
    ),
    end_of_turn=("<|endofresponse|>",),
)
