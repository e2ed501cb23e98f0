"""Kimi K2 and its successors up to K2.6: a section of calls, each headed by its id `functions.NAME:INDEX`."""

from __future__ import annotations

from derender.formats.table import Calls, JsonValue, OutputFormat, Reasoning, Switch, tags

KIMI_K2 = OutputFormat(
    name="kimi_k2",
    reasoning=Reasoning(
        tags=tags(("<think>", "◁think▷"), ("</think>", "◁/think▷")),
        switches=(Switch(name="thinking"), Switch(name="enable_thinking")),
        strip=True,
    ),
    calls=(
        Calls(
            section=tags(
                ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
                ("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
            ),
            call=tags("<|tool_call_begin|>", "<|tool_call_end|>"),
            # A name may hold colons; what stands without an index is a name, and no id.
            header=(
                r"\s{0,64}(?:(?=(?P<id>[^\s<\ud800-\udfff]{1,512}:\d{1,9})\s{0,64}«<|tool_call_argument_begin|>»))?"
                r"(?:functions\.\s{0,64})?(?P<name>\S(?:.*?\S)??)(?::\d{1,9})?\s{0,64}«<|tool_call_argument_begin|>»"
            ),
            bare=True,
            noise=True,
            body=JsonValue(),
            ids="kimi",
            structural_tag="kimi",
        ),
    ),
    end_of_turn=("<|im_end|>", "[EOS]"),
    turn_starts=("<|im_middle|>",),
)
