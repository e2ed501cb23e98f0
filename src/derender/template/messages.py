"""API messages → the conversation that a chat template is given.

The shape is vLLM's (`renderers/chat_utils.py`, 0.32), key order included, since templates print whole tool calls as
JSON. Of a message survive: role, content, tool_calls and the reasoning of the assistant (under `reasoning` and
`reasoning_content`), tool_call_id of a tool, name, task, and the tools of a developer. All else is not part of the
chat API and templates never see it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from derender.protocol.errors import BadRequest, InvalidBody
from derender.template.content_format import ContentFormat
from derender.template.kwargs import check_default_kwargs, filter_template_kwargs, requested_template
from derender.template.tools import normalize_tools

__all__ = [
    "check_default_kwargs",
    "filter_template_kwargs",
    "normalize_messages",
    "normalize_tools",
    "requested_template",
]

# Part type -> the key that holds its text.
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MAY_BE_NULL = frozenset({"text", "refusal"})
_MEDIA = frozenset(
    {
        "image", "image_url", "input_image", "image_embeds", "image_pil", "audio_url", "input_audio", "audio_embeds",
        "video", "video_url", "video_embeds", "file", "input_file", "prompt_embeds",
    }
)  # fmt: skip
# Keys of content parts that the API defines. Others (such as `cache_control`) stay on a part that a template is given.
_PART_KEYS = frozenset(
    {
        "audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url", "input_audio",
        "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url",
    }
)  # fmt: skip
# Claude Code puts a line that changes with every request before its system prompt; vLLM drops it, so that prompts
# keep a common prefix.
_BILLING_HEADER = "x-anthropic-billing-header"

_Part = str | dict[str, Any]


def normalize_messages(
    messages: Sequence[Any],
    *,
    content_format: ContentFormat,
    developer_role: bool,
    model_name: str,
    text_roles: Collection[str] = (),
) -> list[dict[str, Any]]:
    """The conversation for a template of this `content_format`.

    `messages` are decoded JSON objects; they are not changed. Text parts are joined by a newline for "string"; for
    "openai" text becomes one part, except in tool messages, whose parts become one string where all are text
    (vllm#39614). Arguments of tool calls become mappings (Qwen3#1894): empty and null give `{}`, anything else that is
    not a JSON object is refused. For "parts" and "exact" texts and lists of parts stay what they are, parts of type
    thinking too, and arguments that are no JSON object stay the text that they are, for "exact" also others. Where the
    template lacks the role developer, it becomes system, and all system messages then become one at the front. Content
    of `text_roles` is as for "string".

    Raises InvalidBody or BadRequest whose `param` names the place, as `messages.2.content.0.type`; `model_name` is
    what the error about images, audio and files calls the model.
    """
    if not isinstance(messages, (list, tuple)):
        raise InvalidBody("messages must be a list", param="messages")
    if not messages:
        raise BadRequest("messages must not be empty", param="messages")
    if not developer_role and "system" in text_roles:
        text_roles = {*text_roles, "developer"}
    conversation = [
        _message(
            message,
            index,
            style=content_format,
            text_roles=text_roles,
            model_name=model_name,
        )
        for index, message in enumerate(messages)
    ]
    if not developer_role and any(message["role"] == "developer" for message in conversation):
        return _developer_to_system(conversation)
    return conversation


def _message(
    message: Any, index: int, *, style: ContentFormat, text_roles: Collection[str], model_name: str
) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidBody(f"messages.{index} must be an object", param=f"messages.{index}")
    role = message.get("role")
    if not isinstance(role, str):
        _invalid("a string is required" if role is None else "must be a string", "messages", index, "role")
    _check_text(role, "messages", index, "role")
    parts, exact = style != "string" and role not in text_roles, style in ("parts", "exact")
    result: dict[str, Any] = {
        "role": role,
        "content": _content(message, index, role=role, parts=parts, exact=exact, model_name=model_name),
    }
    if role == "assistant":
        calls = message.get("tool_calls")
        if calls is not None:
            if not isinstance(calls, list):
                _invalid("must be a list", "messages", index, "tool_calls")
            # An empty list takes some templates off the path of a plain assistant message.
            if calls:
                result["tool_calls"] = [_call(call, index, number, style=style) for number, call in enumerate(calls)]
        key = "reasoning" if message.get("reasoning") is not None else "reasoning_content"
        reasoning = message.get(key)
        if reasoning is not None:
            if not isinstance(reasoning, str):
                _invalid("must be a string", "messages", index, key)
            _check_text(reasoning, "messages", index, key)
            result["reasoning"] = result["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in message:
        result["tool_call_id"] = _optional_text(message, index, "tool_call_id")
    if "name" in message and (name := _optional_text(message, index, "name")) is not None:
        result["name"] = name
    if "task" in message and (task := _optional_text(message, index, "task")) is not None:
        result["task"] = task
    if role == "developer":
        result["tools"] = _developer_tools(message.get("tools"), index)
    return result


def _content(message: Mapping[str, Any], index: int, *, role: str, parts: bool, exact: bool, model_name: str) -> Any:
    content = message.get("content")
    if isinstance(content, str):
        _check_text(content, "messages", index, "content")
        if role == "system" and content.startswith(_BILLING_HEADER):
            content = content.partition("\n")[2]
            if not content:
                return [] if parts and not exact else ""
        return [{"type": "text", "text": content}] if parts and not exact and role != "tool" else content
    if content is None:
        if "content" in message and role not in ("assistant", "function"):
            _invalid("must be a string or a list of parts", "messages", index, "content")
        return [] if parts and not exact and role != "tool" else ""
    if not isinstance(content, list):
        _invalid("must be a string or a list of parts", "messages", index, "content")
    found: list[_Part] = []
    for number, part in enumerate(content):
        read = _part(part, index, number, parts=parts, exact=exact, model_name=model_name)
        if role == "system" and _is_text(part):
            read = _without_billing_header(read)
        if read:  # empty strings do not bring a newline with them
            found.append(read)
    if not parts:
        return "\n".join(found)  # type: ignore[arg-type]  # strings only, as `parts` is false
    if role == "tool" and not exact and all(part["type"] == "text" for part in found):  # type: ignore[index]
        return "\n".join(part["text"] for part in found)  # type: ignore[index]
    return found


def _part(part: Any, index: int, number: int, *, parts: bool, exact: bool, model_name: str) -> _Part | None:
    """One part as text, or as an object where the template takes parts; None for a part without text."""
    if isinstance(part, str):
        _check_text(part, "messages", index, "content", number)
        return {"type": "text", "text": part} if parts else part
    if not isinstance(part, Mapping):
        _invalid("must be an object or a string", "messages", index, "content", number)
    kind = part.get("type")
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if key is not None:
        text = part.get(key)
        if text is None and kind in _MAY_BE_NULL:
            return None
        if not isinstance(text, str):
            _invalid("must be a string", "messages", index, "content", number, key)
        _check_text(text, "messages", index, "content", number, key)
        if not parts:
            return text
        if exact and kind == "thinking":
            return {"type": "thinking", "thinking": text, "closed": part.get("closed") is not False}
        result = {"type": "text", "text": text}
        if len(part) > 2:
            result.update((name, value) for name, value in part.items() if name not in _PART_KEYS)
        return result
    if kind == "tool_reference":
        name = part.get("name")
        if not isinstance(name, str):
            _invalid("must be a string", "messages", index, "content", number, "name")
        _check_text(name, "messages", index, "content", number, "name")
        return {"type": "tool_reference", "name": name} if parts else name
    place = f"messages.{index}.content.{number}.type"
    if kind in _MEDIA if isinstance(kind, str) else not _MEDIA.isdisjoint(part):
        raise BadRequest(f"{model_name} is not a multimodal model", param=place)
    if kind is None:
        raise BadRequest("Missing 'type' field in content part.", param=place)
    if not isinstance(kind, str):
        raise BadRequest("Invalid 'type' field in content part.", param=place)
    shown = ascii(kind if len(kind) <= 100 else kind[:100] + "...")
    supported = ", ".join([*_TEXT_PARTS, "tool_reference"])
    raise BadRequest(f"Unsupported chat content part type: {shown}. Supported types: {supported}.", param=place)


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, Mapping) and part.get("type") == "text")


def _without_billing_header(part: _Part | None) -> _Part | None:
    text = part["text"] if isinstance(part, dict) else part
    if text is None or not text.startswith(_BILLING_HEADER):
        return part
    rest = text.partition("\n")[2]
    if not rest:
        return None
    return {**part, "text": rest} if isinstance(part, dict) else rest


def _call(call: Any, index: int, number: int, *, style: ContentFormat) -> dict[str, Any]:
    """One tool call of the assistant, its keys in the order that vLLM's request types give."""
    if not isinstance(call, Mapping):
        _invalid("must be an object", "messages", index, "tool_calls", number)
    identity = call.get("id")
    if not isinstance(identity, str):
        _invalid("must be a string", "messages", index, "tool_calls", number, "id")
    _check_text(identity, "messages", index, "tool_calls", number, "id")
    if call.get("type") != "function":
        raise BadRequest(
            "chat completions only support assistant tool_calls of type 'function'.",
            param=f"messages.{index}.tool_calls.{number}.type",
        )
    function = call.get("function")
    if not isinstance(function, Mapping):
        _invalid("must be an object", "messages", index, "tool_calls", number, "function")
    name = function.get("name")
    if not isinstance(name, str):
        _invalid("must be a string", "messages", index, "tool_calls", number, "function", "name")
    _check_text(name, "messages", index, "tool_calls", number, "function", "name")
    arguments = function.get("arguments")
    if style in ("parts", "exact") and isinstance(arguments, str):
        _check_text(arguments, "messages", index, "tool_calls", number, "function", "arguments")
        if style == "parts" and isinstance(parsed := _json(arguments), dict):
            arguments = parsed
    else:
        arguments = _arguments(arguments, index, number)
    inner = {"arguments": arguments, "name": name}
    if len(function) > 2:
        inner.update((key, value) for key, value in function.items() if key not in ("arguments", "name"))
    result: dict[str, Any] = {"id": identity, "function": inner, "type": "function"}
    if len(call) > 3:
        result.update((key, value) for key, value in call.items() if key not in result)
    return result


def _arguments(value: Any, index: int, number: int) -> dict[str, Any]:
    """The arguments of a call as a mapping. Numbers keep their kind and size, keys their order."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    place = ("messages", index, "tool_calls", number, "function", "arguments")
    if not isinstance(value, str):
        _invalid("must be a string that holds a JSON object", *place)
    _check_text(value, *place)
    if value == "{}" or not value or value.isspace():
        return {}
    parsed = _json(value)
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        raise BadRequest(
            f"messages.{index}: the arguments of tool call {number} are not a JSON object", param=_path(place)
        )
    if "\\u" in value:  # only an escape can bring a lone surrogate into text that was checked
        _check_text(json.dumps(parsed, ensure_ascii=False), *place)
    return parsed


def _json(text: str) -> Any:
    """The value of a JSON text, the text itself where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _developer_tools(tools: Any, index: int) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    if not isinstance(tools, list):
        _invalid("must be a list", "messages", index, "tools")
    result = []
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type") != "function":
            _invalid("must be a tool of type function", "messages", index, "tools", number)
        if not isinstance(function.get("name"), str):
            _invalid("must be a string", "messages", index, "tools", number, "function", "name")
        order = ("name", "description", "parameters", "strict")
        inner = {key: function[key] for key in order if key in function} | dict(function)
        result.append({"function": inner, "type": "function"} | {k: v for k, v in tool.items() if k != "function"})
    return result


def _developer_to_system(conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Developer messages as system ones; where system messages are many or not first, one at the front holds all."""
    turned = [
        {**{key: value for key, value in message.items() if key != "tools"}, "role": "system"}
        if message["role"] == "developer"
        else message
        for message in conversation
    ]
    if all(message["role"] != "system" for message in turned[1:]):
        return turned
    texts = (_text_of(message["content"]) for message in turned if message["role"] == "system")
    system = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [system, *(message for message in turned if message["role"] != "system")]


def _text_of(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


def _optional_text(message: Mapping[str, Any], index: int, key: str) -> str | None:
    value = message[key]
    if value is None:
        return None
    if not isinstance(value, str):
        _invalid("must be a string", "messages", index, key)
    _check_text(value, "messages", index, key)
    return value


def _check_text(text: str, *place: str | int) -> None:
    """Refuse what is not text: a lone surrogate has no UTF-8 and no tokens."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{_path(place)} holds a lone surrogate, which is not text", param=_path(place)) from error


def _invalid(problem: str, *place: str | int) -> NoReturn:
    raise InvalidBody(f"{_path(place)}: {problem}", param=_path(place))


def _path(place: tuple[str | int, ...]) -> str:
    return ".".join(map(str, place))
