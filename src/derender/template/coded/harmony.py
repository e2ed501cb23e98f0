"""gpt-oss: harmony, a chain of messages with a role, a channel and a recipient each.

The prompt is what vLLM 0.32 sends for a chat, which is openai-harmony's for all but the headers of calls: their
recipient stands beside the role, as gpt-oss was taught.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from derender.protocol.errors import BadRequest
from derender.template.coded.base import CodedTemplate, Message, no_role, says_something, text_of, to_json
from derender.template.coded.typescript import namespace

_IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
_CUTOFF = "2024-06"
_EFFORTS = ("high", "medium", "low")
_CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
_CALLS_CHANNEL = "\nCalls to these tools must go to the commentary channel: 'functions'."
_CALL_HEADERS = {
    "role": "<|start|>assistant to=functions.{}<|channel|>commentary json<|message|>",
    "channel": "<|start|>assistant<|channel|>commentary to=functions.{} <|constrain|>json<|message|>",
}


class Harmony(CodedTemplate):
    """Variables: `reasoning_effort` (low, medium, high); `model_identity`, the first line of the system message;
    `current_date`, a text in the place of today's date; `system_instructions`: true puts the instructions into the
    system message (vLLM's VLLM_GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS); `call_header`: where the recipient of a call in
    the history stands, "role" or "channel" (openai-harmony's since 0.0.10).
    """

    __slots__ = ()

    NAME = "harmony"
    SOURCE = "<|start|> <|channel|> <|message|> <|end|> <|call|> analysis commentary final"
    VARIABLES = frozenset(
        ("reasoning_effort", "model_identity", "current_date", "system_instructions", "call_header")
    )  # fmt: skip
    CONTENT_FORMAT = "exact"
    RAW_ARGUMENTS = True

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        continue_final_message: bool,
        options: Mapping[str, Any],
    ) -> str:
        functions = [tool["function"] for tool in tools]
        first = messages[0]
        instructions = None
        if first["role"] in ("system", "developer"):
            instructions = text_of(first["content"])
            functions += _tools_of(first)
            messages = messages[1:]
        has_tools = bool(functions) or any(map(_tools_of, messages))
        in_system = bool(options.get("system_instructions"))
        out = [_system(options, instructions if in_system else None, has_tools)]
        if functions or (instructions and not in_system):
            out.append(_developer(None if in_system else instructions, functions))
        place = options.get("call_header", "role")
        header = _CALL_HEADERS.get(place) if isinstance(place, str) else None
        if header is None:
            raise BadRequest(f"call_header must be one of {', '.join(_CALL_HEADERS)}", param="call_header")
        if continue_final_message and not (
            messages and messages[-1]["role"] == "assistant" and says_something(messages[-1])
        ):
            raise BadRequest(
                "continue_final_message is set, but the last message is not one of the assistant with text",
                param="continue_final_message",
            )
        out += _history(messages, header, options, has_tools, open_last=continue_final_message)
        if continue_final_message:
            out[-1] = out[-1].removesuffix("<|end|>").removesuffix("<|call|>")
        elif add_generation_prompt:
            out.append("<|start|>assistant")
        return "".join(out)


def _history(
    messages: Sequence[Message], header: str, options: Mapping[str, Any], has_tools: bool, *, open_last: bool
) -> list[str]:
    """What follows the first instructions. Analysis before the last final message is left out, as the model was
    taught; that of a final message which is to be continued stays."""
    names = {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()}
    searched = len(messages) - 1 if open_last else len(messages)
    final = next((number for number in range(searched - 1, -1, -1) if _is_final(messages[number])), -1)
    out: list[str] = []
    for index, message in enumerate(messages):
        role = message["role"]
        text = text_of(message["content"])
        if role == "user":
            out.append(f"<|start|>user<|message|>{text}<|end|>")
        elif role == "assistant":
            calls = message.get("tool_calls") or ()
            if calls and text:
                out.append(f"<|start|>assistant<|channel|>commentary<|message|>{text}<|end|>")
            reasoning = message.get("reasoning")
            if reasoning and index > final:
                out.append(f"<|start|>assistant<|channel|>analysis<|message|>{reasoning}<|end|>")
            for call in calls:
                function = call["function"]
                arguments = function["arguments"]
                body = arguments if isinstance(arguments, str) else to_json(arguments)
                out.append(f"{header.format(function['name'])}{body}<|call|>")
            if text and not calls:
                out.append(f"<|start|>assistant<|channel|>final<|message|>{text}<|end|>")
        elif role == "tool":
            name = names.get(message.get("tool_call_id")) or message.get("name") or ""
            out.append(f"<|start|>functions.{name}<|channel|>commentary to=assistant<|message|>{text}<|end|>")
        elif role == "system" and options.get("system_instructions"):
            out.append(_system({**options, "reasoning_effort": "medium"}, text, has_tools))
        elif role in ("system", "developer"):
            out.append(_developer(text, _tools_of(message)))
        else:
            no_role(role, "harmony", index)
    return out


def _is_final(message: Message) -> bool:
    return message["role"] == "assistant" and not message.get("tool_calls") and bool(text_of(message["content"]))


def _tools_of(message: Message) -> list[Mapping[str, Any]]:
    return [tool["function"] for tool in message.get("tools") or ()]


def _system(options: Mapping[str, Any], instructions: str | None, has_tools: bool) -> str:
    effort = options.get("reasoning_effort", "medium")
    if effort not in _EFFORTS:
        raise BadRequest(
            f"reasoning_effort={effort!r} is not supported by Harmony. Supported values are: {', '.join(_EFFORTS)}.",
            param="reasoning_effort",
        )
    identity = _text_option(options, "model_identity", _IDENTITY)
    if instructions is not None:
        identity = f"{identity}\n{instructions}"
    date = _text_option(options, "current_date", "") or datetime.now().strftime("%Y-%m-%d")
    return (
        f"<|start|>system<|message|>{identity}\nKnowledge cutoff: {_CUTOFF}\nCurrent date: {date}\n\n"
        f"Reasoning: {effort}\n\n{_CHANNELS}{_CALLS_CHANNEL if has_tools else ''}<|end|>"
    )


def _text_option(options: Mapping[str, Any], name: str, default: str) -> str:
    value = options.get(name, default)
    if not isinstance(value, str):
        raise BadRequest(f"{name} must be a string", param=name)
    return value


def _developer(instructions: str | None, functions: Sequence[Mapping[str, Any]]) -> str:
    sections = [] if instructions is None else [f"# Instructions\n\n{instructions}"]
    if functions:
        sections.append(f"# Tools\n\n{namespace('functions', functions)}")
    return "<|start|>developer<|message|>" + "\n\n".join(sections) + "<|end|>"
