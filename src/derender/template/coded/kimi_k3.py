"""Kimi K3: elements between special tokens (`<|open|>name key="value"<|sep|>`), one for each message and channel.

What a request demands of the answer (tools or none, a form) is told to the model in messages at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from derender.protocol.errors import BadRequest
from derender.template.coded.base import CodedTemplate, Message, arguments_of, no_role, text_of, to_json, to_sorted_json

_EFFORTS = ("low", "high", "max")
_END = "<|end_of_msg|>"
_EFFORT_TEXT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort={}`."
)
_TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n"
_MORE_TOOLS = (
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\nYou have access to all "
    "existing and extended tools.\nHere are the specs for the extended tools.\n\n"
)
_CHOICES = {
    "required": "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
    "none": "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
}
_FORM = (
    "The system is invoked with `response_format={}`.\nYour response must be raw JSON data without markdown code "
    "blocks (```json) or any additional formatting."
)
_FORM_SCHEMA = "\nThe JSON data must match the following schema:\n```json\n{}\n```"
_FORMS = ("json_object", "json_schema")


class KimiK3(CodedTemplate):
    """Variables: `thinking` or `enable_thinking`, on by default; `thinking_effort` or `reasoning_effort` (low, high,
    max; "none" as a reasoning effort switches thinking off); `tool_choice` and `response_format` as the API has them.
    """

    __slots__ = ()

    NAME = "kimi_k3"
    SOURCE = f"<|open|>think<|sep|> <|close|>think<|sep|> <|open|>tools<|sep|> {_END}"
    VARIABLES = frozenset(
        ("thinking", "enable_thinking", "thinking_effort", "reasoning_effort", "tool_choice", "response_format")
    )
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
        thinking, effort = _thinking(options)
        out = [_declaration(_TOOLS, tools)] if tools else []
        if thinking and effort is not None:
            out.append(_from_system("thinking-effort", _EFFORT_TEXT.format(effort)))
        rest = messages
        last: Message | None = None
        if continue_final_message:
            rest, last = messages[:-1], messages[-1]
            if last["role"] != "assistant" or last.get("tool_calls"):
                raise BadRequest(
                    "continue_final_message is set, but the last message is not a text of the assistant",
                    param="continue_final_message",
                )
        out += _history(rest, thinking)
        if last is not None:
            out.append(_open("message", role="assistant", name=last.get("name") or None) + _channels(last, thinking))
            return "".join(out)
        choice, form = options.get("tool_choice"), options.get("response_format")
        if isinstance(choice, str) and choice in _CHOICES:
            out.append(_from_system("tool-choice", _CHOICES[choice]))
        kind = form.get("type") if isinstance(form, Mapping) else form
        if kind in _FORMS:
            schema = _FORM_SCHEMA.format(to_sorted_json(_schema(form))) if kind == "json_schema" else ""
            out.append(_from_system("response-format", _FORM.format(kind) + schema))
        if add_generation_prompt:
            out.append(_open("message", role="assistant") + _open("think" if thinking else "response"))
        return "".join(out)


def _thinking(options: Mapping[str, Any]) -> tuple[bool, str | None]:
    """Whether the model thinks, and how much; None leaves the effort unsaid."""
    effort = options.get("thinking_effort", "max")
    reasoning_effort = options.get("reasoning_effort")
    if reasoning_effort not in (None, "none") and "thinking_effort" not in options:
        effort = reasoning_effort
    if effort is not None and effort not in _EFFORTS:
        raise BadRequest(
            f"Kimi K3 supports thinking_effort values: {', '.join(_EFFORTS)}", param="thinking_effort"
        )  # fmt: skip
    default = options.get("enable_thinking")
    if default is None:
        default = reasoning_effort != "none"
    return bool(options.get("thinking", default)), effort


def _history(messages: Sequence[Message], thinking: bool) -> list[str]:
    out = []
    calls: Sequence[Mapping[str, Any]] = ()
    place = 0
    while place < len(messages):
        message = messages[place]
        role, text = message["role"], text_of(message["content"])
        place += 1
        if role == "tool":
            place -= 1
            block = place
            while place < len(messages) and messages[place]["role"] == "tool":
                place += 1
            out += _results(messages[block:place], calls, block)
        elif role == "user":
            out.append(_message(text, role=role, name=message.get("name") or None))
        elif role in ("system", "developer"):
            added = message.get("tools")
            if text or not added:
                out.append(_message(text, role="system", name=message.get("name") or None))
            if added:
                out.append(_declaration(_MORE_TOOLS, added))
        elif role == "assistant":
            calls = message.get("tool_calls") or ()
            body = f"{_channels(message, thinking)}{_close('response')}{_calls(calls, place - 1)}"
            out.append(_message(body, role=role, name=message.get("name") or None))
        else:
            no_role(role, "Kimi K3", place - 1)
    return out


def _channels(message: Message, thinking: bool) -> str:
    """The reasoning and the answer of an assistant's message, the answer not closed."""
    thought = ""
    if thinking:
        reasoning = message.get("reasoning") or ""
        thought = f"{_open('think')}{reasoning if reasoning.strip() else ''}{_close('think')}"
    return f"{thought}{_open('response')}{text_of(message['content'])}"


def _calls(calls: Sequence[Mapping[str, Any]], index: int) -> str:
    if not calls:
        return ""
    out = [_open("tools")]
    for number, call in enumerate(calls):
        out.append(_open("call", tool=call["function"]["name"], index=number + 1))
        for key, value in arguments_of(call, f"messages.{index}.tool_calls.{number}").items():
            text = value if isinstance(value, str) else to_json(value)
            out.append(f"{_open('argument', key=key, type=_type(value))}{text}{_close('argument')}")
        out.append(_close("call"))
    out.append(_close("tools"))
    return "".join(out)


def _results(results: Sequence[Message], calls: Sequence[Mapping[str, Any]], first: int) -> list[str]:
    """Results of calls, in the order of the calls where each names its call by its id (or `name:number`, K3's own);
    else as they stand, each taken for the result of the call in its place."""
    known: dict[str, tuple[int, str]] = {}
    for place, call in enumerate(calls):
        name = call["function"]["name"]
        for alias in filter(None, (call["id"], f"{name}:{place}")):
            known.setdefault(alias, (place, name))
    found = [known.get(message.get("tool_call_id") or "") for message in results]
    told = [(*one, message) for one, message in zip(found, results, strict=True) if one is not None]
    if len(told) < len(results):
        told = []
        for place, message in enumerate(results):
            name = message.get("name") or (calls[place]["function"]["name"] if place < len(calls) else None)
            if name is None:
                raise BadRequest(
                    f"messages.{first + place}: a tool's message needs the id of a call before it, or a name",
                    param=f"messages.{first + place}.tool_call_id",
                )
            told.append((place, name, message))
    told.sort(key=lambda one: one[0])
    return [
        _message(text_of(message["content"]), role="tool", tool=name, index=place + 1) for place, name, message in told
    ]


def _declaration(introduction: str, tools: Sequence[Mapping[str, Any]]) -> str:
    stated = [
        {**tool, "function": {key: value for key, value in tool["function"].items() if value is not None}}
        for tool in tools
    ]
    return _from_system("tool-declare", f"{introduction}```json\n{to_sorted_json(stated)}\n```")


def _schema(form: Any) -> Any:
    """The schema of a response format, without its name and description."""
    wrapped = form.get("json_schema") if isinstance(form, Mapping) else None
    for key in ("schema", "json_schema"):
        if isinstance(wrapped, Mapping) and key in wrapped:
            return wrapped[key]
    return wrapped


def _type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def _open(tag: str, **attributes: Any) -> str:
    """The opening of an element; an attribute of None is left out."""
    written = "".join(
        f' {key}="{str(value).replace("&", "&amp;").replace(chr(34), "&quot;")}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<|open|>{tag}{written}<|sep|>"


def _close(tag: str) -> str:
    return f"<|close|>{tag}<|sep|>"


def _message(body: str, **attributes: Any) -> str:
    return f"{_open('message', **attributes)}{body}{_close('message')}{_END}"


def _from_system(kind: str, body: str) -> str:
    return _message(body, role="system", type=kind)
