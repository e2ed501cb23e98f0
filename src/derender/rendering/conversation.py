"""A chat → the text of its prompt, by the model's template or, where it is trusted, by the request's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from derender.protocol.chat import Tool
from derender.protocol.common import Json
from derender.rendering.model import RenderModel
from derender.template.limited import render_limited
from derender.template.messages import filter_template_kwargs, normalize_messages, requested_template
from derender.template.source import TemplateSet

TEMPLATE_SECONDS = 30.0
"""What a template that came with a request may take (vLLM's VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT)."""

_LEAST_TEMPLATE_CHARS = 1 << 20

_MEDIA_KEYS = frozenset(
    {
        "audio_embeds", "audio_url", "image_embeds", "image_pil", "image_url", "input_audio", "prompt_embeds",
        "video_url",
    }
)  # fmt: skip
_TEXT_TYPES = frozenset({"input_text", "output_text", "refusal", "text", "thinking", "tool_reference"})


class Conversation:
    """Renders the chats of one model to text. Safe to use from several threads."""

    def __init__(self, model: RenderModel, *, max_chars: int) -> None:
        self._model = model
        self._templates = model.templates or TemplateSet(None)
        self._max_chars = max(4 * max_chars, _LEAST_TEMPLATE_CHARS)
        self._defaults = dict(model.default_chat_template_kwargs)
        self._special_tokens = dict(model.tokenizer.special_tokens)
        self._content_format: Literal["string", "openai"] | None = (
            None if model.content_format == "auto" else model.content_format
        )

    def text(
        self,
        messages: Sequence[Json],
        *,
        tools: list[Json] | None,
        documents: list[dict[str, str]] | None = None,
        chat_template: str | None = None,
        kwargs: Json | None = None,
        reasoning_effort: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt. Raises BadRequest or InvalidBody for whatever the messages or the template make fail."""
        if chat_template or kwargs:
            source = requested_template(chat_template or None, kwargs, trusted=self._model.trust_request_chat_template)
            if source:
                return render_limited(
                    source,
                    messages,
                    model_name=self._model.name,
                    seconds=TEMPLATE_SECONDS,
                    max_chars=self._max_chars,
                    tools=tools,
                    documents=documents,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    special_tokens=self._special_tokens,
                    template_kwargs=kwargs,
                    defaults=self._defaults,
                    reasoning_effort=reasoning_effort,
                )
        template = self._templates.pick(tools is not None)
        normal = normalize_messages(
            messages,
            content_format=self._content_format or template.content_format,
            developer_role=template.developer_role,
            model_name=self._model.name,
        )
        variables = filter_template_kwargs(
            kwargs,
            template=template,
            defaults=self._defaults,
            reasoning_effort=reasoning_effort,
            trusted=self._model.trust_request_chat_template,
        )
        return template.render(
            normal,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            special_tokens=self._special_tokens,
            **variables,
        )


def tool_dicts(tools: Sequence[Tool]) -> list[Json]:
    """Tools as templates get them from vLLM, to the order of the keys: `description` and `parameters` are there also
    where they are null, `strict` and `defer_loading` only where they are set, and a tool's own `defer_loading` goes for
    its function too."""
    found = []
    for tool in tools:
        function = tool.function
        inner: Json = {
            "name": function.name,
            "description": function.description,
            "parameters": function.parameters,
        }
        if function.strict is not None:
            inner["strict"] = function.strict
        defer = tool.defer_loading if function.defer_loading is None else function.defer_loading
        if defer is not None:
            inner["defer_loading"] = defer
        outer: Json = {"type": tool.type, "function": inner}
        if tool.defer_loading is not None:
            outer["defer_loading"] = tool.defer_loading
        found.append(outer)
    return found


def has_media(messages: Sequence[Any]) -> bool:
    """Whether a message has a content part that is not text."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            continue
        for part in content:
            if isinstance(part, dict) and (
                not _MEDIA_KEYS.isdisjoint(part)
                or not isinstance(kind := part.get("type", "text"), str)
                or kind not in _TEXT_TYPES
            ):
                return True
    return False


def count_tool_calls(messages: Sequence[Any]) -> int:
    """Tool calls of the assistant in a history; families with running call ids (Kimi K2) go on from there."""
    count = 0
    for message in messages:
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        if calls and isinstance(calls, list) and message.get("role") == "assistant":
            count += len(calls)
    return count
