"""DeepSeek V3.2. Results of calls stand in a block of their own behind the calls, and tools in a system message.

Checked against the model's published renders. vLLM 0.32 lost the blank lines of the text that introduces the tools;
the model was taught with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from derender.protocol.errors import BadRequest
from derender.template.coded.base import CodedTemplate, Message, no_role, text_of
from derender.template.coded.dsml import (
    ASSISTANT,
    BOS,
    EOS,
    SCHEMAS,
    THINK,
    THOUGHT,
    USER,
    Dsml,
    call_arguments,
    check_continued,
    functions_of,
    thinks,
)

_INTRODUCTION = f"""## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>

String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:

<｜DSML｜function_calls>
...
</｜DSML｜function_calls>

<function_results>
...
</function_results>

<think>...thinking about results</think>

Here are the functions available in JSONSchema format:
<functions>
{SCHEMAS}
</functions>
"""  # noqa: E501

DSML = Dsml(section="function_calls", invoke="invoke", parameter="parameter", introduction=_INTRODUCTION)


class DeepseekV32(CodedTemplate):
    """Variables: `thinking` or `enable_thinking`, off by default."""

    __slots__ = ()

    NAME = "deepseek_v32"
    SOURCE = DSML.source
    VARIABLES = frozenset(("thinking", "enable_thinking"))
    CONTENT_FORMAT = "string"

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        continue_final_message: bool,
        options: Mapping[str, Any],
    ) -> str:
        thinking = thinks(options, default=False)
        if continue_final_message:
            check_continued(messages)
        numbered = list(enumerate(messages))
        if tools:
            numbered.insert(0, (0, {"role": "system", "content": "", "tools": tools}))
        last_user = max(
            (place for place, (_, message) in enumerate(numbered) if message["role"] in ("user", "developer")),
            default=-1,
        )
        out = [BOS]
        open_calls = results = 0
        for place, (index, message) in enumerate(numbered):
            role = message["role"]
            text = text_of(message["content"])
            mark = THINK if thinking and place >= last_user else THOUGHT
            tail = ""  # what opens the answer to this message
            if role == "system":
                out.append(text)
                if message.get("tools"):
                    out.append(f"\n\n{DSML.tools(functions_of(message['tools']))}")
            elif role == "user":
                out.append(f"{USER}{text}")
                tail = f"{ASSISTANT}{mark}"
            elif role == "developer":
                out.append(_developer(message, text, index))
                tail = f"{ASSISTANT}{mark}"
            elif role == "tool":
                results += 1
                if results > open_calls:
                    raise BadRequest(
                        f"messages.{index}: the result of a call, but no call goes before it", param=f"messages.{index}"
                    )
                out.append(f"{'<function_results>' if results == 1 else ''}\n<result>{text}</result>")
                if results == 1:
                    out[-1] = "\n\n" + out[-1]
                if results == open_calls:
                    out.append("\n</function_results>")
                    tail = f"\n\n{mark}"
            elif role == "assistant":
                open_calls, results = len(message.get("tool_calls") or ()), 0
                is_continued = continue_final_message and place == len(numbered) - 1
                out.append(_assistant(message, text, index, thinking=thinking and place > last_user, open=is_continued))
            else:
                no_role(role, "DeepSeek V3.2", index)
            if role != "tool" and role != "assistant":
                open_calls = 0
            if add_generation_prompt or place < len(numbered) - 1:
                out.append(tail)
        return "".join(out)


def _developer(message: Message, text: str, index: int) -> str:
    if not text:
        raise BadRequest("a developer's message must have a text", param=f"messages.{index}.content")
    functions = functions_of(message.get("tools"))
    tools = f"\n\n{DSML.tools(functions)}" if functions else ""
    return f"{USER}{tools}\n\n# The user's message is: {text}"


def _assistant(message: Message, text: str, index: int, *, thinking: bool, open: bool) -> str:
    calls = message.get("tool_calls") or ()
    reasoning = message.get("reasoning") or ""
    thought = ""
    if thinking:
        if not (reasoning or calls or open):
            raise BadRequest(
                "with thinking on, an assistant's message after the last of the user must have reasoning or calls",
                param=f"messages.{index}",
            )
        thought = f"{reasoning}{THOUGHT}"
    written = f"\n\n{DSML.calls(calls, call_arguments(message, index))}" if calls else ""
    return f"{thought}{text}{written}{'' if open else EOS}"
