"""Formats with `<arg_key>` and `<arg_value>` pairs behind a bare name: GLM and its relatives."""

from __future__ import annotations

from derender.formats.table import Calls, OutputFormat, Parameters, Reasoning, Reopen, Switch, tags

NAME = r"\s{0,64}(?P<name>[^\s<>{}\ud800-\udfff]{1,256})\s{0,64}"
"""A name alone, up to the first pair or the call's closer."""

PAIRS = Parameters(
    open="<arg_key>",
    key=r"(?P<key>[^<\ud800-\udfff]{0,256})«</arg_key>»\s{0,16}«<arg_value>»",
    close="</arg_value>",
)

SWITCHES = (Switch(name="enable_thinking"), Switch(name="thinking"))
THINK = Reasoning(tags=tags("<think>", "</think>"), switches=SWITCHES, strip=True)

GLM47 = OutputFormat(
    name="glm47",
    reasoning=THINK.replace(duplicates=Reopen.REOPEN),
    calls=(
        Calls(
            call=tags("<tool_call>", "</tool_call>"),
            header=NAME + "(?=«<arg_key>»|«</tool_call>»)",
            strip=True,
            body=PAIRS,
            structural_tag="glm_4_7",
        ),
    ),
    end_of_turn=("<|user|>", "<|observation|>", "<|endoftext|>"),
    turn_starts=("<|assistant|>",),
)

GLM45 = GLM47.replace(name="glm45")

LING3 = GLM47.replace(
    name="ling3",
    native_only=True,
    reasoning=THINK.replace(switches=(*SWITCHES, Switch(name="thinking_option", off=("off",)))),
    end_of_turn=("<|role_end|>",),
    turn_starts=("<role>ASSISTANT</role>",),
)

POOLSIDE_V1 = GLM47.replace(
    name="poolside_v1",
    native_only=True,
    reasoning=THINK,
    end_of_turn=("</assistant>",),
    turn_starts=("<assistant>",),
)

SPARK25 = GLM47.replace(name="spark25", end_of_turn=(), turn_starts=())

IQUEST_Q1 = GLM47.replace(
    name="iquest_q1",
    calls=(
        GLM47.calls[0].replace(
            call=tags("<iquest_tool_call>", "</iquest_tool_call>"),
            header=NAME + "(?=«<arg_key>»|«</iquest_tool_call>»)",
            structural_tag=None,
        ),
    ),
    end_of_turn=(),
    turn_starts=("<|iquest_assistant|>",),
)
