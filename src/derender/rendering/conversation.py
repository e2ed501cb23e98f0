"""A chat → the text of its prompt, by the model's template or, where it is trusted, by the request's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Protocol

from derender.protocol.chat import Tool
from derender.protocol.common import Json
from derender.protocol.errors import BadRequest
from derender.rendering.guarded import Given, GuardedPrompts
from derender.rendering.model import RenderModel
from derender.template.coded.base import CodedTemplate
from derender.template.jinja import ChatTemplate
from derender.template.limited import render_limited
from derender.template.messages import filter_template_kwargs, normalize_messages, requested_template
from derender.template.own_text import Marked, OwnText
from derender.template.source import TemplateSet
from derender.template.tracking import GENERATION_MARKS, Tracked, Untrackable, track

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

_Render = Callable[[Sequence[Json], Json], str]


class Chat(Protocol):
    """A chat as its template is given it."""

    @property
    def messages(self) -> Sequence[Json]:
        """The messages, normalised."""

    def text(self) -> str:
        """The prompt. Raises BadRequest for whatever makes the template fail."""

    def text_of(self, messages: Sequence[Json], *, add_generation_prompt: bool) -> str:
        """The prompt of other messages in the same surroundings. Raises BadRequest."""

    def replaced(self, messages: Sequence[Json]) -> Chat:
        """The chat with other messages. Raises BadRequest."""

    def tracked(self) -> Tracked:
        """The prompt, and where in it the messages' texts stand. Raises BadRequest, also for texts with noncharacters,
        which the places are found by."""


class OwnChat:
    """A chat for the model's own template, whose text `render` makes of messages and options."""

    __slots__ = ("_options", "_render", "_template", "messages")

    def __init__(self, template: ChatTemplate, messages: Sequence[Json], options: Json, *, render: _Render) -> None:
        self.messages = messages
        self._template = template
        self._options = options
        self._render = render

    def text(self) -> str:
        return self._render(self.messages, self._options)

    def text_of(self, messages: Sequence[Json], *, add_generation_prompt: bool) -> str:
        changed = {"add_generation_prompt": add_generation_prompt, "continue_final_message": False}
        return self._render(messages, {**self._options, **changed})

    def replaced(self, messages: Sequence[Json]) -> Chat:
        return OwnChat(self._template, messages, self._options, render=self._render)

    def tracked(self) -> Tracked:
        template, options = self._template, self._options
        if template.generation:
            options = {**options, "generation_marks": GENERATION_MARKS}
        try:
            return track(
                self.messages,
                text=self.text(),
                render=lambda messages: self._render(messages, options),
                constants=template.constants,
                generation=template.generation,
            )
        except Untrackable as error:
            raise BadRequest(f"spans and masks cannot be given: {error}", param="messages") from None


class ForeignChat:
    """A chat with a template of the request's own, which runs under limits in a process of its own. `given`: what the
    request gives to it besides messages, `options` all else."""

    __slots__ = ("_given", "_options", "_prompts", "_source", "messages")

    def __init__(
        self, source: str, messages: Sequence[Json], given: Json, options: Json, *, prompts: GuardedPrompts | None
    ) -> None:
        self.messages = messages
        self._source = source
        self._given = given
        self._options = options
        self._prompts = prompts

    def text(self) -> str:
        if self._prompts is None:
            return render_limited(self._source, self.messages, **self._given, **self._options)
        return self._prompts.broken(Given(list(self.messages), self._given), partial(self._marked, self._prompts.own))

    def _marked(self, own: OwnText, given: Given) -> Marked:
        marked = render_limited(
            self._source, given.messages, **given.options, **self._options, marked_controls=own.controls
        )
        return Marked(own.show(marked), marked)

    def text_of(self, messages: Sequence[Json], *, add_generation_prompt: bool) -> str:
        raise _only_own()

    def replaced(self, messages: Sequence[Json]) -> Chat:
        raise _only_own()

    def tracked(self) -> Tracked:
        raise _only_own()


def _only_own() -> BadRequest:
    return BadRequest("spans and masks are given for the model's own chat template only", param="chat_template")


class Conversation:
    """Renders the chats of one model to text. Safe to use from several threads."""

    def __init__(self, model: RenderModel, *, max_chars: int) -> None:
        self._model = model
        self._templates = model.templates or TemplateSet(None)
        self._max_chars = max(4 * max_chars, _LEAST_TEMPLATE_CHARS)
        self._defaults = dict(model.default_chat_template_kwargs)
        self._special_tokens = dict(model.tokenizer.special_tokens)
        self._guard = model.guard
        self._marked_defaults = self._defaults if model.guard is None else model.guard.prompts.marked(self._defaults)
        self._content_format: Literal["string", "openai"] | None = (
            None if model.content_format == "auto" else model.content_format
        )

    def text(self, messages: Sequence[Json], *, tools: list[Json] | None, **options: Any) -> str:
        """The prompt; `options` are those of `chat`. Raises BadRequest or InvalidBody for whatever the messages or the
        template make fail."""
        return self.chat(messages, tools=tools, **options).text()

    def chat(
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
        asked: Json | None = None,
    ) -> Chat:
        """The chat, for the model's template or its own. Raises BadRequest or InvalidBody.

        `asked`: fields of the request that a prompt made by code may have to say, as JSON values.

        With a guard, its prompt has stand-ins in what spells a control token and is not the template's (`Guard.show`).
        """
        source = None
        if chat_template or kwargs:
            source = requested_template(chat_template or None, kwargs, trusted=self._model.trust_request_chat_template)
        if source:
            return ForeignChat(
                source,
                messages,
                {
                    "tools": tools,
                    "documents": documents,
                    "template_kwargs": kwargs,
                    "reasoning_effort": reasoning_effort,
                },
                {
                    "model_name": self._model.name,
                    "seconds": TEMPLATE_SECONDS,
                    "max_chars": self._max_chars,
                    "add_generation_prompt": add_generation_prompt,
                    "continue_final_message": continue_final_message,
                    "special_tokens": self._special_tokens,
                    "defaults": self._defaults,
                },
                prompts=None if self._guard is None else self._guard.prompts,
            )
        template = self._templates.pick(tools is not None)
        normal = normalize_messages(
            messages,
            content_format=self._content_format or template.content_format,
            developer_role=template.developer_role,
            model_name=self._model.name,
            text_roles=() if self._content_format else template.text_roles,
        )
        kwargs_of = partial(
            filter_template_kwargs,
            kwargs,
            template=template,
            reasoning_effort=reasoning_effort,
            trusted=self._model.trust_request_chat_template,
        )
        options: Json = kwargs_of(defaults=self._defaults)
        own_options = {}
        if self._marked_defaults is not self._defaults:
            marked = kwargs_of(defaults=self._marked_defaults)
            own_options = {name: value for name, value in marked.items() if value != options[name]}
        if asked and isinstance(template, CodedTemplate):
            options = {**{name: value for name, value in asked.items() if name in template.variables}, **options}
        options.update(
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        return OwnChat(template, normal, options, render=self._render_of(template, own_options))

    def _render_of(self, template: ChatTemplate, own: Json) -> _Render:
        """`own`: options that are the operator's, as the guard marks them."""
        if self._guard is not None:
            prompts = self._guard.prompts
            return lambda messages, options: prompts.text(template, Given(list(messages), options), own=own)
        special = self._special_tokens
        return lambda messages, options: template.render(messages, **options, special_tokens=special)


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
