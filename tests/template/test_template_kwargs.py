"""Template arguments of a request, of the operator, and from the reasoning effort; and who may bring a template."""

from __future__ import annotations

from typing import Any

import pytest

from derender.protocol.errors import BadRequest, InvalidBody
from derender.template.jinja import ChatTemplate
from derender.template.kwargs import check_default_kwargs, filter_template_kwargs, requested_template

TEMPLATE = ChatTemplate("{{ enable_thinking }}{{ reasoning_effort }}{{ a }}{{ b }}{{ range(1) }}")


def filtered(
    kwargs: Any = None, *, defaults: Any = None, effort: str | None = None, trusted: bool = False
) -> dict[str, Any]:
    return filter_template_kwargs(
        kwargs, template=TEMPLATE, defaults=defaults, reasoning_effort=effort, trusted=trusted
    )


@pytest.mark.parametrize(
    ("kwargs", "defaults", "effort", "expected"),
    [
        (None, None, None, {}),
        ({"a": 1, "unread": 2}, None, None, {"a": 1}),
        ({"a": 1}, {"a": 2, "b": 3, "unread": 4}, None, {"a": 1, "b": 3}),
        ({"a": None, "b": "auto"}, {"a": 2, "b": 3}, None, {"a": 2, "b": 3}),
        ({"a": 0, "b": ""}, {"a": 2, "b": 3}, None, {"a": 0, "b": ""}),
        (None, None, "high", {"enable_thinking": True, "reasoning_effort": "high"}),
        (None, None, "none", {"enable_thinking": False, "reasoning_effort": "none"}),
        (None, {"enable_thinking": True}, "none", {"enable_thinking": False, "reasoning_effort": "none"}),
        ({"enable_thinking": True}, None, "none", {"enable_thinking": True, "reasoning_effort": "none"}),
        ({"enable_thinking": None}, None, "none", {"reasoning_effort": "none"}),
        ({"enable_thinking": None}, {"enable_thinking": 5}, "none", {"enable_thinking": 5, "reasoning_effort": "none"}),
        ({"reasoning_effort": "low"}, None, None, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "low"}, None, "high", {"enable_thinking": True, "reasoning_effort": "high"}),
        ({"chat_template": None, "a": 1}, None, None, {"a": 1}),
    ],
)
def test_what_reaches_the_template(kwargs: Any, defaults: Any, effort: str | None, expected: dict[str, Any]) -> None:
    assert filtered(kwargs, defaults=defaults, effort=effort) == expected


@pytest.mark.parametrize(
    "name",
    [
        "tokenize", "messages", "conversation", "tools", "documents", "add_generation_prompt", "continue_final_message",
        "self", "special_tokens", "generation_marks", "return_dict", "raise_exception", "range", "chat_template",
    ],
)  # fmt: skip
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        filtered({"a": 1, name: []})
    assert caught.value.param == f"chat_template_kwargs.{name}"
    with pytest.raises(ValueError, match=name):
        check_default_kwargs({"a": 1, name: 1})


def test_defaults_that_may_be_set() -> None:
    check_default_kwargs(None)
    check_default_kwargs({"a": 1, "enable_thinking": False})


def test_kwargs_that_are_no_object() -> None:
    with pytest.raises(InvalidBody):
        filtered([1])


def test_the_arguments_given_are_left_alone() -> None:
    kwargs, defaults = {"chat_template": None, "a": 1}, {"a": 2}
    filtered(kwargs, defaults=defaults, effort="high")
    assert (kwargs, defaults) == ({"chat_template": None, "a": 1}, {"a": 2})


@pytest.mark.parametrize(
    ("field", "kwargs", "param"),
    [
        ("x", None, "chat_template"),
        ("x", {"chat_template": None}, "chat_template"),
        (None, {"chat_template": "{{ 'a' * 999999999 }}"}, "chat_template_kwargs.chat_template"),
        ("", None, "chat_template"),
    ],
)
def test_a_template_needs_trust(field: str | None, kwargs: Any, param: str) -> None:
    with pytest.raises(BadRequest, match="--trust-request-chat-template is not set") as caught:
        requested_template(field, kwargs, trusted=False)
    assert caught.value.param == param


def test_trusted_templates() -> None:
    assert requested_template(None, None, trusted=False) is None
    assert requested_template(None, {"a": 1}, trusted=True) is None
    assert requested_template("x", {"chat_template": "y"}, trusted=True) == "x"
    assert requested_template(None, {"chat_template": "y"}, trusted=True) == "y"
    assert filtered({"chat_template": "y", "a": 1}, trusted=True) == {"a": 1}
    with pytest.raises(InvalidBody):
        requested_template(None, {"chat_template": 5}, trusted=True)
