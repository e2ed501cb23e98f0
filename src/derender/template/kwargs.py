"""What a request may hand to its chat template besides messages and tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from derender.protocol.errors import BadRequest, InvalidBody
from derender.template.jinja import GLOBAL_NAMES, ChatTemplate

__all__ = ["check_default_kwargs", "filter_template_kwargs", "requested_template"]

# Names with a field of their own in the request, or that say how the prompt is made rather than what stands in it
# (the parameters of transformers' apply_chat_template). A value given here would be lost or would replace the
# conversation (vllm#52025), so it is refused.
_RESERVED = frozenset(
    {
        "add_generation_prompt", "continue_final_message", "conversation", "documents", "generation_marks",
        "max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors",
        "self", "special_tokens", "tokenize", "tokenizer_kwargs", "tools", "truncation",
    }
)  # fmt: skip
_UNTRUSTED = (
    "Chat template is passed with request, but --trust-request-chat-template is not set. "
    "Refused request with untrusted chat template."
)
_UNSET = (None, "auto")  # values that mean "as if it were not there", as in vLLM's merge_kwargs


def requested_template(chat_template: str | None, kwargs: Mapping[str, Any] | None, *, trusted: bool) -> str | None:
    """The template that the request brings: its `chat_template`, or the one in its `chat_template_kwargs`.

    Raises BadRequest where it brings one and requests are not trusted with that. Whatever this returns is to be
    rendered by `render_limited` only.
    """
    place = "chat_template"
    found: Any = chat_template
    if kwargs and kwargs.get("chat_template") is not None:
        if found is None:
            place, found = "chat_template_kwargs.chat_template", kwargs["chat_template"]
        elif not trusted:
            place = "chat_template_kwargs.chat_template"
    if found is None:
        return None
    if not trusted:
        raise BadRequest(_UNTRUSTED, param=place)
    if not isinstance(found, str):
        raise InvalidBody(f"{place} must be a string", param=place)
    return found


def check_default_kwargs(defaults: Mapping[str, Any] | None) -> None:
    """Refuse what an operator cannot set for all requests. Raises ValueError that names the key."""
    for name in defaults or {}:
        if not isinstance(name, str) or name in _RESERVED or name in GLOBAL_NAMES or name == "chat_template":
            raise ValueError(f"default chat template kwargs: {name!r} cannot be set here")


def filter_template_kwargs(
    kwargs: Mapping[str, Any] | None,
    *,
    template: ChatTemplate,
    defaults: Mapping[str, Any] | None,
    reasoning_effort: str | None,
    trusted: bool,
) -> dict[str, Any]:
    """The keyword arguments for `ChatTemplate.render`: the operator's defaults, then the request's, then its effort.

    Only variables that the template reads are kept. `reasoning_effort` also sets `enable_thinking` (false for "none"),
    unless the request names that itself. A value of null or "auto" leaves the default. `chat_template` must have been
    taken by `requested_template`; it is refused here unless `trusted`. Raises BadRequest for reserved names.
    """
    given: dict[str, Any] = {}
    if kwargs:
        if not isinstance(kwargs, Mapping):
            raise InvalidBody("chat_template_kwargs must be an object", param="chat_template_kwargs")
        given.update(kwargs)
        if given.pop("chat_template", None) is not None and not trusted:
            raise BadRequest(_UNTRUSTED, param="chat_template_kwargs.chat_template")
        for name in given:
            if name in _RESERVED or name in GLOBAL_NAMES:
                raise BadRequest(
                    f"chat_template_kwargs: {name!r} cannot be set here", param=f"chat_template_kwargs.{name}"
                )
    if reasoning_effort is not None:
        if "enable_thinking" not in given:
            given["enable_thinking"] = reasoning_effort != "none"
        given["reasoning_effort"] = reasoning_effort
    if not given and not defaults:
        return {}
    variables = template.variables
    merged = {name: value for name, value in (defaults or {}).items() if name in variables and name not in _RESERVED}
    merged.update((name, value) for name, value in given.items() if name in variables and value not in _UNSET)
    return merged
