"""DSML, in which DeepSeek V3.2, V4 and V4.1 show tools and write calls, and the tokens that the three share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from derender.protocol.errors import BadRequest
from derender.template.coded.base import Message, arguments_of, to_json

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK, THOUGHT = "<think>", "</think>"

SCHEMAS = "{schemas}"
"""Where an introduction has the schemas of the tools, one a line."""


@dataclass(frozen=True, kw_only=True)
class Dsml:
    """One version: the names of its three tags, and the text that introduces the tools to the model."""

    section: str
    invoke: str
    parameter: str
    introduction: str

    @property
    def source(self) -> str:
        """What a prompt of this version may have, for the detection of the output format."""
        return f"{BOS} {USER} {ASSISTANT} {THINK} {THOUGHT} <｜DSML｜{self.section}> <｜DSML｜{self.invoke} {EOS}"

    def tools(self, functions: Sequence[Mapping[str, Any]]) -> str:
        """The section that declares functions."""
        return self.introduction.replace(SCHEMAS, "\n".join(map(to_json, functions)))

    def calls(self, calls: Sequence[Mapping[str, Any]], arguments: Sequence[Mapping[str, Any]]) -> str:
        """The calls of a message, with the arguments of each."""
        close = f"</｜DSML｜{self.invoke}>\n"
        written = (
            f'<｜DSML｜{self.invoke} name="{call["function"]["name"]}">\n{self._parameters(given)}\n{close}'
            for call, given in zip(calls, arguments, strict=True)
        )
        return f"<｜DSML｜{self.section}>\n{''.join(written)}</｜DSML｜{self.section}>"

    def _parameters(self, arguments: Mapping[str, Any]) -> str:
        return "\n".join(
            f'<｜DSML｜{self.parameter} name="{name}" string="{"true" if isinstance(value, str) else "false"}">'
            f"{value if isinstance(value, str) else to_json(value)}</｜DSML｜{self.parameter}>"
            for name, value in arguments.items()
        )


def functions_of(tools: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    """The functions of tools in the API's shape."""
    return [tool["function"] for tool in tools or ()]


def call_arguments(message: Message, index: int) -> list[dict[str, Any]]:
    """The arguments of all calls of a message."""
    return [
        arguments_of(call, f"messages.{index}.tool_calls.{number}")
        for number, call in enumerate(message.get("tool_calls") or ())
    ]


def thinks(options: Mapping[str, Any], *, default: bool) -> bool:
    """Whether a request has the model think: either of two switches, where one is there."""
    if "thinking" in options or "enable_thinking" in options:
        return bool(options.get("thinking")) or bool(options.get("enable_thinking"))
    return default


def check_continued(messages: Sequence[Message]) -> None:
    """Refuses to continue a message that is not the assistant's."""
    last = messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        raise BadRequest(
            "continue_final_message is set, but the last message is not a text of the assistant",
            param="continue_final_message",
        )
