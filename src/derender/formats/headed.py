"""Further formats with a JSON body behind markers: GigaChat 3 and PLaMo 3."""

from __future__ import annotations

from derender.formats.table import Calls, JsonMembers, JsonValue, OutputFormat, Reasoning, tags

GIGACHAT3 = OutputFormat(
    name="gigachat3",
    calls=(
        Calls(
            call=tags(("<|message_sep|>\n\nfunction call<|role_sep|>", "<|function_call|>")),
            body=JsonMembers(),
        ),
    ),
    end_of_turn=("</s>",),
)

PLAMO3 = OutputFormat(
    name="plamo3",
    native_only=True,
    reasoning=Reasoning(
        tags=tags("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"), start="content", switches=()
    ),
    calls=(
        Calls(
            section=tags("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"),
            call=tags(
                "<|plamo:begin_tool_request:plamo|>",
                (
                    "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
                    "<|plamo:end_tool_request:plamo|>",
                ),
            ),
            header=(
                r"\s*«<|plamo:begin_tool_name:plamo|>»(?P<name>.+?)«<|plamo:end_tool_name:plamo|>»"
                r"\s*«<|plamo:begin_tool_arguments:plamo|>»(?:«<|plamo:constrain|>»\w*)?«<|plamo:msg|>»"
            ),
            body=JsonValue(),
            structural_tag="plamo3",
        ),
    ),
    end_of_turn=("<|plamo:tag|>",),
)
