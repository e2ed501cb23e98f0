"""Rendering with the families with code, as a request is rendered."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.errors import ApiError
from derender.rendering.conversation import tool_dicts
from derender.template.coded.base import CodedTemplate
from derender.template.kwargs import filter_template_kwargs
from derender.template.messages import normalize_messages

Json = Any


def render(template: CodedTemplate, body: Json, **options: Json) -> str:
    """The prompt of a chat request; `options` are template variables besides those of the request."""
    request = msgspec.json.decode(json.dumps({"model": "m", **body}), type=ChatCompletionRequest)
    messages = normalize_messages(
        request.messages, content_format=template.content_format, developer_role=True, model_name="m"
    )
    variables = filter_template_kwargs(
        request.chat_template_kwargs,
        template=template,
        defaults=None,
        reasoning_effort=request.reasoning_effort,
        trusted=False,
    )
    return template.render(
        messages,
        tools=tool_dicts(request.tools) if request.tools else None,
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final_message=request.continue_final_message,
        **{**variables, **options},
    )


def attempt(template: CodedTemplate, body: Json) -> list[Json]:
    """[true, prompt], or [false, why it is refused]."""
    try:
        return [True, render(template, body)]
    except ApiError as error:
        return [False, error.message]


def chat(*turns: str | Json, **fields: Json) -> Json:
    """A request whose texts are turns of user and assistant, the user first; objects are messages as they are."""
    roles = iter(("user", "assistant") * len(turns))
    messages = [{"role": next(roles), "content": turn} if isinstance(turn, str) else turn for turn in turns]
    return {"messages": messages, **fields}


def call(identity: str, name: str, arguments: str) -> Json:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*made: Json, content: str | None = None, reasoning: str | None = None) -> Json:
    message = {"role": "assistant", "content": content, "tool_calls": list(made)}
    return message if reasoning is None else {**message, "reasoning": reasoning}


def result(identity: str, content: str) -> Json:
    return {"role": "tool", "tool_call_id": identity, "content": content}


WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
