"""The template environment: filters, globals, limits of what a template may do, and continuing a message."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derender.protocol.errors import BadRequest
from derender.template.jinja import ChatTemplate, TemplateBroken

USER = {"role": "user", "content": "q"}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPPING = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"


def render(source: str, messages: list[Any] | None = None, **arguments: Any) -> str:
    return ChatTemplate(source).render(messages or [USER], **arguments)


def refusal(source: str, messages: list[Any] | None = None, **arguments: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        render(source, messages, **arguments)
    return caught.value.message


def test_tojson_is_plain_json_dumps() -> None:
    tool = {
        "name": "t",
        "description": "a/b > 10 & c < 5 (user's) — ü 😀",
        "parameters": {"b": 1, "a": [1, 2], "f": 100.0},
    }
    text = render(
        "{{ tools[0]|tojson }}|{{ x|tojson(ensure_ascii=False) }}|{{ x|tojson(indent=2) }}", tools=[tool], x={"k": "ü"}
    )
    assert text == (
        '{"name": "t", "description": "a/b > 10 & c < 5 (user\'s) — ü 😀", '
        '"parameters": {"b": 1, "a": [1, 2], "f": 100.0}}|{"k": "ü"}|{\n  "k": "ü"\n}'
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", '{"b": "ü</>", "a": [1, 1.0, 9007199254740993, 1e+16, true, null]}'),
        ("ensure_ascii=True", '{"b": "\\u00fc</>", "a": [1, 1.0, 9007199254740993, 1e+16, true, null]}'),
        ("separators=(',', ':')", '{"b":"ü</>","a":[1,1.0,9007199254740993,1e+16,true,null]}'),
        ("sort_keys=True", '{"a": [1, 1.0, 9007199254740993, 1e+16, true, null], "b": "ü</>"}'),
        ("False, None, None, True", '{"a": [1, 1.0, 9007199254740993, 1e+16, true, null], "b": "ü</>"}'),
    ],
)
def test_tojson_arguments(arguments: str, expected: str) -> None:
    value = {"b": "ü</>", "a": [1, 1.0, 9007199254740993, 1e16, True, None]}
    assert render("{{ x | tojson(" + arguments + ") }}", x=value) == expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=10,
)


@given(json_values)
def test_tojson_equals_json_dumps_for_any_value(value: Any) -> None:
    assert render("{{ x | tojson }}", x=value) == json.dumps(value, ensure_ascii=False)


def test_blocks_are_trimmed_and_loops_controlled() -> None:
    source = (
        "  {% for m in messages %}\n"
        "{% if loop.index == 2 %}{% continue %}{% endif %}\n"
        "{% if loop.index == 4 %}{% break %}{% endif %}\n"
        "{{ m.content }}\n"
        "  {% endfor %}\nend\n"
    )
    assert render(source, [{"content": str(n)} for n in range(1, 6)]) == "1\n3\nend"


def test_generation_renders_as_its_body_in_a_scope_of_its_own() -> None:
    source = "{% set x = 1 %}a{% generation %}b{{ x }}{% set x = 2 %}{{ x }}{% endgeneration %}c{{ x }}"
    assert render(source) == "ab12c1"


def test_clock_can_be_fixed() -> None:
    source = "{{ strftime_now('%d %b %Y %H:%M') }}"
    fixed = ChatTemplate(source, now=lambda: datetime(2024, 7, 26, 3, 4))
    assert fixed.render([USER]) == "26 Jul 2024 03:04"
    assert ChatTemplate(source).render([USER]) == ChatTemplate(source).render([USER]) != fixed.render([USER])


def test_variables_that_are_given() -> None:
    source = (
        "{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }} {{ other is defined }} {{ bos_token }}"
    )
    assert render(source, special_tokens={"bos_token": "<s>"}) == "True True True False <s>"
    assert render(source, special_tokens={"bos_token": "<s>"}, bos_token="<b>", documents=[], tools=[]) == (
        "False False True False <b>"
    )


def test_variables_are_those_read_anywhere() -> None:
    template = ChatTemplate(
        "{% macro show(x) %}{{ x }}{{ hidden }}{% endmacro %}{% set own = 1 %}{{ own }}{{ namespace() }}"
        "{% if flag is defined and flag %}{% for m in messages %}{{ show(m) }}{% endfor %}{% endif %}"
    )
    assert template.variables == {"hidden", "flag", "messages"}


@pytest.mark.parametrize(
    ("source", "known"), [("{{ 'developer' }}", True), ('{{ "developer" }}', True), ("developer", False)]
)
def test_developer_role(source: str, known: bool) -> None:
    assert ChatTemplate(source).developer_role is known


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "chat template, line 1: "),
        ("a\n{% endfor %}", "chat template, line 2: "),
        ("{{ x | no_such_filter }}", "chat template, line 1: No filter named 'no_such_filter'."),
        ("{{" + "(" * 3000 + ")" * 3000 + "}}", "chat template does not compile: nested too deeply"),
        ("{% if a %}" * 150 + "{% endif %}" * 150, "chat template does not compile: "),
    ],
)
def test_broken_source(source: str, message: str) -> None:
    with pytest.raises(TemplateBroken) as caught:
        ChatTemplate(source)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('Roles must alternate: ü') }}", "Roles must alternate: ü"),
        ("{{ raise_exception(7) }}", "7"),
        ("{{ raise_exception() }}", "chat template could not be rendered: _raise_exception() missing 1 required"),
        ("{{ nothing.x }}", "chat template could not be rendered: 'nothing' is undefined"),
        ("{{ nothing | tojson }}", "chat template could not be rendered: Object of type Undefined is not JSON"),
        ("{{ 'a' + 1 }}", "chat template could not be rendered: can only concatenate str"),
        ("{{ messages.append(1) }}", "chat template could not be rendered: "),
        ("{{ ''.__class__.__mro__ }}", "chat template could not be rendered: access to attribute '__class__'"),
        ("{% for i in range(999999) %}{% endfor %}", "chat template could not be rendered: Range too big"),
        ("{% include 'x' %}", "chat template could not be rendered: no loader"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "chat template could not be rendered: nested too deeply"),
        ("{{ 1 // 0 }}", "chat template could not be rendered: "),
        ("{{ strftime_now(1) }}", "chat template could not be rendered: "),
        ("{{ '%s' % messages[9] }}{{ messages[0].content[9].x }}", "chat template could not be rendered: "),
    ],
)
def test_whatever_a_template_does_is_a_bad_request(source: str, message: str) -> None:
    text = refusal(source)
    assert text.startswith(message)
    assert "/" not in text
    assert "\n" not in text


def test_long_messages_of_templates_are_cut() -> None:
    assert len(refusal("{{ raise_exception('x' * 100000) }}")) < 5000
    assert len(refusal("{{ {}['k' * 100000].x }}")) < 1000


def test_surrogates_never_leave() -> None:
    assert refusal("{{ x }}", x="a\ud800") == "the rendered prompt holds a lone surrogate, which is not text"
    assert refusal("{{ raise_exception(x) }}", x="a\ud800") == "a?"


@pytest.mark.parametrize("messages", [[], ()])
def test_no_messages(messages: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        ChatTemplate("x").render(messages)
    assert caught.value.param == "messages"


def test_documents_are_objects() -> None:
    assert refusal("x", documents=["a"]) == "documents must be a list of objects with title and text"


def test_messages_stay_as_they_are() -> None:
    messages = ({"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]})
    before = json.dumps(messages)
    source = "{{ messages[0].content }}{{ messages[-1].content[0].text }}{{ (messages + []) | length }}"
    assert ChatTemplate(source).render(messages, add_generation_prompt=False, continue_final_message=True) == "ab"
    assert json.dumps(messages) == before


# ------------------------------------------------------------------------------------ continue_final_message


def continued(source: str, content: Any) -> str:
    messages = [USER, {"role": "assistant", "content": content}]
    return ChatTemplate(source).render(messages, add_generation_prompt=False, continue_final_message=True)


def test_continue_keeps_the_blank_and_no_end_token() -> None:
    assert continued(CHATML, "The answer is ") == (
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nThe answer is "
    )


def test_continue_where_the_template_strips() -> None:
    assert continued(STRIPPING, " The answer is ") == "[q][The answer is"


def test_continue_an_empty_message() -> None:
    assert continued(CHATML, "") == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"


def test_continue_the_last_text_part() -> None:
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}]
    messages = [{"role": "assistant", "content": parts}]
    rendered = ChatTemplate(source).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == "a;b"


@pytest.mark.parametrize("content", [None, [], [{"type": "image"}], 5])
def test_nothing_to_continue(content: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        continued(CHATML, content)
    assert caught.value.param == "continue_final_message"


@pytest.mark.parametrize(
    "source", ["{{ messages[0].role }}", "{{ messages[0].content }}", "{{ messages[1].content[:3] }}"]
)
def test_template_that_drops_the_message_to_continue(source: str) -> None:
    with pytest.raises(BadRequest) as caught:
        continued(source, "The answer is ")
    assert caught.value.param == "continue_final_message"


def test_continue_and_generation_prompt_exclude_each_other() -> None:
    with pytest.raises(BadRequest, match="Cannot set both") as caught:
        ChatTemplate(CHATML).render([USER], add_generation_prompt=True, continue_final_message=True)
    assert caught.value.param == "continue_final_message"


# ------------------------------------------------------------------------------------------------- properties

PIECES = [
    "{% for m in messages %}", "{% endfor %}", "{% if x %}", "{% endif %}", "{{ m.content }}", "{{ x }}", "{{ x.y.z }}",
    "{{ x + 1 }}", "{{ messages | tojson }}", "{{ raise_exception(x) }}", "{% set x = messages %}", "{{ x[0] }}", "{%",
    "}}", "text\n", "{% macro a(b) %}", "{% endmacro %}", "{{ a(1) }}", "{{ x() }}", "{% generation %}",
    "{% endgeneration %}", "{{ namespace(a=1).a }}", "{% break %}", "{# c #}", "{{ x | join(',') }}", "{{ x | float }}",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=8), json_values)
def test_only_its_own_errors(pieces: list[str], value: Any) -> None:
    try:
        text = ChatTemplate("".join(pieces)).render([USER], x=value)
    except (TemplateBroken, BadRequest):
        return
    assert isinstance(text, str)


def test_threads_share_a_template() -> None:
    template = ChatTemplate(CHATML)

    def one(number: int) -> bool:
        return template.render([{"role": "user", "content": str(number)}] * 50).count(f"\n{number}<") == 50

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(400)))


def test_compiled_once() -> None:
    source = "{{ messages }}" + " " * 33
    assert ChatTemplate(source)._compiled is ChatTemplate(source)._compiled
