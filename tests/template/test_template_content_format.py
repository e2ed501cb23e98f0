"""Strings or parts: what a template's loops say."""

from __future__ import annotations

import pytest

from derender.template.jinja import ChatTemplate

EACH = "{% for message in messages %}"
END = "{% endfor %}"
MACRO = "{% macro show(x, y=0) %}{% for p in x %}{{ p }}{% endfor %}{% endmacro %}"


@pytest.mark.parametrize(
    "source",
    [
        EACH + "{% for part in message.content %}{{ part.text }}{% endfor %}" + END,
        EACH + "{% for part in message['content'] | list %}{{ part.text }}{% endfor %}" + END,
        EACH + "{% for part in message['content'][1:] %}{{ part.text }}{% endfor %}" + END,
        EACH + "{% set content = message.content %}{% for part in content %}{{ part }}{% endfor %}" + END,
        "{% set a = messages[1:] %}{% set b = a %}{% for m in b %}{% for p in m.content %}{{ p }}{% endfor %}" + END,
        MACRO + EACH + "{{ show(message.content) }}" + END,
        MACRO + EACH + "{{ show(y=1, x=message['content']) }}" + END,
    ],
)
def test_loops_over_content_want_parts(source: str) -> None:
    assert ChatTemplate(source).content_format == "openai"


@pytest.mark.parametrize(
    "source",
    [
        EACH + "{{ message.content }}" + END,
        EACH + "{% for call in message.tool_calls %}{{ call }}{% endfor %}" + END,
        EACH + "{% for c in message.content[0] %}{{ c }}{% endfor %}" + END,
        EACH + "{% set c = message.content %}{% for p in c %}{{ p }}{% endfor %}" + END,
        "{% for p in messages[0].content %}{{ p }}{% endfor %}",
        MACRO + EACH + "{{ show(1, message.content) }}" + END,
        MACRO + EACH + "{{ show(message.other) }}" + END,
        # shapes that vLLM's search gives up on
        "{% for a, b in messages %}{% endfor %}{% for p in content %}{% endfor %}",
        EACH + "{% for a, b in message.content %}{% endfor %}" + END,
        "{% set ns = namespace() %}{% set ns.m = messages %}{% for p in content %}{% endfor %}",
    ],
)
def test_other_templates_want_strings(source: str) -> None:
    assert ChatTemplate(source).content_format == "string"


def test_assignments_in_a_circle_end() -> None:
    source = "{% set a = messages %}{% set b = a %}{% set a = b %}{% for m in a %}{{ m.content }}{% endfor %}"
    assert ChatTemplate(source).content_format == "string"
