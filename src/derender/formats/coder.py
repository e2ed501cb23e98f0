"""Families that write calls as Qwen's coders do: `<function=name>` with `<parameter=key>` elements."""

from __future__ import annotations

from derender.formats.qwen import QWEN3_CODER
from derender.formats.table import OutputFormat, Reasoning, Switch, tags

NEMOTRON_V3: OutputFormat = QWEN3_CODER.replace(
    name="nemotron_v3",
    reasoning=Reasoning(tags=tags("<think>", "</think>"), strip=True),
    end_of_turn=("<|im_end|>",),
)

STEP3P5: OutputFormat = NEMOTRON_V3.replace(
    name="step3p5", reasoning=Reasoning(tags=tags("<think>", "</think>"), switches=(), strip=True)
)

MIMO: OutputFormat = QWEN3_CODER.replace(
    name="mimo",
    calls=(QWEN3_CODER.calls[0].replace(body=QWEN3_CODER.calls[0].body.replace(newline=False), structural_tag="mimo"),),
    end_of_turn=("<|im_end|>",),
)

SEED_OSS: OutputFormat = QWEN3_CODER.replace(
    name="seed_oss",
    reasoning=Reasoning(
        tags=tags("<seed:think>", "</seed:think>"),
        switches=(Switch(name="thinking_budget", off=(0,)), Switch(name="enable_thinking")),
    ),
    calls=(QWEN3_CODER.calls[0].replace(section=tags("<seed:tool_call>", "</seed:tool_call>"), structural_tag=None),),
    end_of_turn=("<seed:eos>",),
    turn_starts=("<seed:bos>assistant",),
)
