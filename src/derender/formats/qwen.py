"""Hermes and the Qwen family: JSON in `<tool_call>` tags, XML parameters for the coders, `<think>` first."""

from __future__ import annotations

from derender.formats.table import Calls, JsonMembers, OutputFormat, Parameters, Reasoning, tags

THINK = Reasoning(tags=tags("<think>", "</think>"))

HERMES = OutputFormat(
    name="hermes",
    calls=(Calls(call=tags("<tool_call>", "</tool_call>"), body=JsonMembers(), structural_tag="hermes"),),
    end_of_turn=("<|im_end|>", "<|endoftext|>", "<|eot_id|>"),
)

QWEN3 = HERMES.replace(name="qwen3", reasoning=THINK)

THINK_TAGS = OutputFormat(name="think", reasoning=THINK.replace(start="content"))
"""For models that think only where they are asked to: without a marker in the prompt, the model opens its reasoning."""

QWEN3_CODER = OutputFormat(
    name="qwen3_coder",
    reasoning=THINK,
    calls=(
        Calls(
            section=tags("<tool_call>", "</tool_call>"),
            call=tags("<function=", "</function>"),
            header=r"(?P<name>[^<>\n\ud800-\udfff]{0,256})(?:>|(?=«</function>»))",
            bare=True,
            strip=True,
            body=Parameters(
                open="<parameter=",
                key=r"(?P<key>[^<>\n\ud800-\udfff]{0,256})>",
                close="</parameter>",
                unclosed=True,
                newline=True,
            ),
            structural_tag="qwen_3_coder",
        ),
    ),
    end_of_turn=("<|im_end|>", "<|endoftext|>"),
)
