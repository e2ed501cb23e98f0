"""Inkling: a message for each text, thought and call, between special tokens that name the role and the kind.

Tools, also those of a developer's messages, are declared in one message at the front. How much to think is said in
words after the first instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from derender.protocol.errors import BadRequest
from derender.template.coded.base import (
    CodedTemplate,
    Message,
    arguments_of,
    no_role,
    says_something,
    text_of,
    to_json,
    to_sorted_json,
)

XML_TOKENS = ("<|content_xml|>", "<|unused_200024|>")
"""How vocabularies spell the token of a declaration of tools."""

_ROLES = {
    "system": "<|message_system|>",
    "developer": "<|message_system|>",
    "user": "<|message_user|>",
    "assistant": "<|message_model|>",
    "tool": "<|message_tool|>",
}
_TEXT, _THOUGHT, _CALL = "<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>"
_END = "<|end_message|>"
_END_OF_TURN = "<|content_model_end_sampling|>"
_EFFORTS = {"none": 0.0, "minimal": 0.1, "low": 0.2, "medium": 0.7, "high": 0.9, "xhigh": 0.99, "max": 0.99}


class Inkling(CodedTemplate):
    """`xml`: the vocabulary's spelling of the token of a declaration. Variable: `reasoning_effort`, by name or a number
    from 0 to 0.99."""

    __slots__ = ("_xml",)

    NAME = "inkling"
    SOURCE = f"{' '.join(_ROLES.values())} {_TEXT} {_THOUGHT} {_CALL} {_END}"
    VARIABLES = frozenset(("reasoning_effort",))

    def __init__(self, xml: str = XML_TOKENS[0]) -> None:
        super().__init__()
        self._xml = xml

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        continue_final_message: bool,
        options: Mapping[str, Any],
    ) -> str:
        declared = [*tools, *(tool for message in messages for tool in message.get("tools") or ())]
        out = [f"{_ROLES['system']}tool_declare{self._xml}{_declaration(declared)}{_END}"] if declared else []
        effort = f"{_ROLES['system']}{_TEXT}{_effort(options.get('reasoning_effort', 'high'))}{_END}"
        first = next((n for n, one in enumerate(messages) if one["role"] not in ("system", "developer")), None)
        names: dict[str, str] = {}
        for index, message in enumerate(messages):
            role = message["role"]
            if index == first:
                out.append(effort)
            if role == "tool":
                name = message.get("name") or names.get(message.get("tool_call_id") or "", "")
                out.append(f"{_ROLES[role]}{name}{_TEXT}{text_of(message['content'])}{_END}")
            elif role == "assistant":
                out += _assistant(message, index, names)
            elif role in _ROLES:
                out += [f"{_ROLES[role]}{_TEXT}{text}{_END}" for text in _texts(message["content"])]
            else:
                no_role(role, "Inkling", index)
        if first is None:
            out.append(effort)
        if continue_final_message:
            last = messages[-1]
            if last["role"] != "assistant" or last.get("tool_calls") or not says_something(last):
                raise BadRequest(
                    "continue_final_message is set, but the last message is not a text of the assistant",
                    param="continue_final_message",
                )
            out.pop()
            out[-1] = out[-1].removesuffix(_END)
        elif add_generation_prompt:
            out.append(_ROLES["assistant"])
        return "".join(out)


def _assistant(message: Message, index: int, names: dict[str, str]) -> list[str]:
    """The messages of an assistant's turn. `names`: id of a call → its function, for the results that follow."""
    role = _ROLES["assistant"]
    reasoning = message.get("reasoning")
    out = [f"{role}{_THOUGHT}{reasoning}{_END}"] if reasoning else []
    out += [f"{role}{_TEXT}{text}{_END}" for text in _texts(message["content"])]
    for number, call in enumerate(message.get("tool_calls") or ()):
        name = call["function"]["name"]
        names[call["id"]] = name
        arguments = to_sorted_json(arguments_of(call, f"messages.{index}.tool_calls.{number}"))
        out.append(f'{role}{name}{_CALL}{{"name":{to_json(name)},"args":{arguments}}}{_END}')
    out.append(_END_OF_TURN)
    return out


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content] if content else []
    return [text_of([part]) for part in content]


def _declaration(tools: Sequence[Mapping[str, Any]]) -> str:
    return to_sorted_json(
        [
            {
                "description": tool["function"].get("description") or "",
                "name": tool["function"]["name"],
                "parameters": tool["function"].get("parameters") or {},
                "type": "function",
            }
            for tool in tools
        ]
    )


def _effort(effort: Any) -> str:
    number = _EFFORTS.get(effort) if isinstance(effort, str) else effort
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= _EFFORTS["max"]:
        raise BadRequest(
            f"reasoning_effort must be one of {', '.join(_EFFORTS)}, or a number from 0 to 0.99",
            param="reasoning_effort",
        )
    text = f"{number:.2f}".rstrip("0").rstrip(".")
    return f"Thinking effort level: {'0.0' if text in ('0', '-0') else text}"
