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

GLM47 = OutputFormat(
    name="glm47",
    reasoning=Reasoning(
        tags=tags("<think>", "</think>"),
        switches=(Switch(name="enable_thinking"), Switch(name="thinking")),
        strip=True,
        duplicates=Reopen.REOPEN,
    ),
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
