"""Gemma: `call:NAME{key:value,…}`, strings between fences, everything else bare; thinking is a channel."""

from __future__ import annotations

from derender.formats.table import Calls, KeyValues, OutputFormat, Reasoning, Reopen, tags

# `call` may be missing, and parentheses may stand for the braces.
_HEADER = r"\s*(?:call\s*)?:\s*(?P<name>[^\s{(<]+)\s*(?=[{(])"

FUNCTIONGEMMA = OutputFormat(
    name="functiongemma",
    calls=(
        Calls(
            call=tags("<start_function_call>", "<end_function_call>"),
            header=_HEADER,
            body=KeyValues(fence="<escape>"),
            strip=True,
        ),
    ),
    end_of_turn=("<end_of_turn>", "<start_function_response>", "<eos>"),
    turn_starts=("<start_of_turn>model\n",),
)

GEMMA4 = OutputFormat(
    name="gemma4",
    native_only=True,
    reasoning=Reasoning(
        tags=tags("<|channel>", "<channel|>"),
        start="content",
        switches=(),
        prefix="thought\n",
        strip=True,
        duplicates=Reopen.REOPEN,
    ),
    calls=(
        Calls(
            call=tags("<|tool_call>", "<tool_call|>"),
            header=_HEADER,
            body=KeyValues(fence='<|"|>'),
            strip=True,
        ),
    ),
    end_of_turn=("<turn|>", "<|tool_response>", "<eos>"),
    turn_starts=("<|turn>model\n",),
)
