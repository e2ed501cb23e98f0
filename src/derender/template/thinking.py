"""Whether a chat template has its model think unless it is told otherwise: found by rendering, not by reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from derender.protocol.errors import BadRequest
from derender.template.jinja import ChatTemplate

_SWITCHES = ("enable_thinking", "thinking")
_NOT_KWARGS = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "special_tokens")
_QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]


def thinks_by_default(
    template: ChatTemplate,
    kwargs: Mapping[str, Any],
    *,
    special_tokens: Mapping[str, str] | None = None,
    tags: tuple[str, str] = ("<think>", "</think>"),
) -> bool:
    """Whether the model is to think in an answer to a request that says nothing about it.

    `kwargs`: the server's own chat_template_kwargs. True where the generation prompt opens reasoning, or is the one of
    a request that switches thinking on and not the one of a request that switches it off. False too for a template
    that renders nothing for a plain question.
    """
    special = special_tokens or {}
    kwargs = {name: value for name, value in kwargs.items() if name in template.variables and name not in _NOT_KWARGS}

    def prompt(**more: Any) -> str:
        return template.render(_QUESTION, special_tokens=special, **{**kwargs, **more})

    try:
        usual = prompt()
        tail = usual[usual.rfind(_QUESTION[0]["content"]) :]
        opened, closed = (tail.rfind(tag) for tag in tags)
        if opened >= 0 or closed >= 0:
            return opened > closed
        for switch in _SWITCHES:
            if switch in template.variables and usual == prompt(**{switch: True}) != prompt(**{switch: False}):
                return True
    except BadRequest:
        return False
    return False
