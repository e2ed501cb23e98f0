"""One JSON object in tags for each call, as Hermes writes it, in tags of their own or beside an answer in tags."""

from __future__ import annotations

from derender.formats.glm import NAME, PAIRS
from derender.formats.qwen import HERMES
from derender.formats.table import Calls, JsonMembers, Message, Messages, OutputFormat, Reasoning, Switch, tags

ERNIE45 = OutputFormat(
    name="ernie45",
    reasoning=Reasoning(tags=tags("<think>", "</think>"), switches=()),
    calls=(Calls(call=tags("<tool_call>", "</tool_call>"), body=JsonMembers()),),
    answer=tags("<response>", "</response>"),
    end_of_turn=("</s>", "<|end_of_sentence|>"),
)

_LONGCAT_CALL = tags("<longcat_tool_call>", "</longcat_tool_call>")

LONGCAT = OutputFormat(
    name="longcat",
    reasoning=Reasoning(
        tags=tags("<longcat_think>", "</longcat_think>"),
        start="content",
        switches=(Switch(name="enable_thinking"),),
    ),
    calls=(
        Calls(call=_LONGCAT_CALL, body=JsonMembers(), structural_tag="longcat"),
        Calls(
            call=_LONGCAT_CALL,
            header=NAME + "(?=«<longcat_arg_key>»|«</longcat_tool_call>»)",
            body=PAIRS.replace(
                open="<longcat_arg_key>",
                key=PAIRS.key.replace("arg_", "longcat_arg_"),
                close="</longcat_arg_value>",
            ),
        ),
    ),
    end_of_turn=("</longcat_s>",),
)

INTERNLM = OutputFormat(
    name="internlm",
    calls=(
        Calls(
            call=tags(("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"), "<|action_end|>"),
            body=JsonMembers(arguments=("parameters", "arguments")),
        ),
    ),
    end_of_turn=("<|im_end|>",),
)

TRINITY = HERMES.replace(name="trinity", answer=tags("<think>", "</think>"))
"""Its think tags stand around anything, calls too, and are only taken away."""

INKLING = OutputFormat(
    name="inkling",
    native_only=True,
    calls=(Calls(body=JsonMembers(arguments=("args",))),),
    messages=Messages(
        open=("<|message_model|>",),
        body=(
            "<|content_thinking|>",
            "<|content_text|>",
            "<|content_invoke_tool_json|>",
            "<|content_invoke_tool_text|>",
            "<|content_tool_error|>",
        ),
        close=("<|end_message|>",),
        kinds=(
            Message(header="«<|content_thinking|>»", region="reasoning"),
            Message(header="«<|content_invoke_tool_json|>»", region="call"),
            Message(
                header="«<|content_text|>»|«<|content_invoke_tool_text|>»|«<|content_tool_error|>»", region="content"
            ),
        ),
    ),
    end_of_turn=("<|content_model_end_sampling|>",),
)
