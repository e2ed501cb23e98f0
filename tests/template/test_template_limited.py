"""Templates that come with a request run under limits, and harm nobody."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from derender.protocol.errors import ApiError, BadRequest, InvalidBody, Unavailable
from derender.template import limited
from derender.template.jinja import ChatTemplate
from derender.template.limited import render_limited

USER = {"role": "user", "content": "q ü"}


def render(source: str, messages: list[Any] | None = None, **arguments: Any) -> str:
    limits: dict[str, Any] = {"model_name": "m", "seconds": 1.0, "max_chars": 10_000}
    return render_limited(source, [USER] if messages is None else messages, **{**limits, **arguments})


def refusal(source: str, messages: list[Any] | None = None, **arguments: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        render(source, messages, **arguments)
    return caught.value


def test_renders_what_the_request_says() -> None:
    source = (
        "{{ bos }}{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | tojson }}{{ documents | tojson }}"
        "{{ add_generation_prompt }}{{ enable_thinking }}{{ a }}{{ b }}"
    )
    text = render(
        source,
        special_tokens={"bos": "<s>"},
        tools=[{"b": 1, "a": 1.0}],
        documents=[{"title": "t"}],
        template_kwargs={"a": 2, "unread": 1},
        defaults={"a": 1, "b": 9007199254740993},
        reasoning_effort="none",
    )
    assert text == '<s>q ü[{"b": 1, "a": 1.0}][{"title": "t"}]TrueFalse29007199254740993'


def test_messages_take_the_shape_of_the_template() -> None:
    assert render("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}") == "q ü"
    developer = [USER, {"role": "developer", "content": "d"}]
    assert render("{% for m in messages %}{{ m.role }} {% endfor %}", developer) == "system user "


def test_continues() -> None:
    source = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"
    assert render(source, add_generation_prompt=False, continue_final_message=True) == "q ü"


def test_endless_output_stops() -> None:
    error = refusal("{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}")
    assert error.message == "the chat template of the request went over its limit of 10000 characters"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set x %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{% endset %}",
    ],
)
def test_endless_loops_are_ended(source: str) -> None:
    start = time.monotonic()
    error = refusal(source, seconds=0.5)
    assert isinstance(error, BadRequest)
    assert error.message == "the chat template of the request went over its limit of 0.5 seconds"
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 999999999 }}",
        "{% set x = 'a' * 9999999 %}{{ (x * 200) | length }}",
        "{% set n = namespace(a='a') %}{% for i in range(99) %}{% set n.a = n.a + n.a %}{% endfor %}",
    ],
)
def test_memory_is_bounded(source: str) -> None:
    error = refusal(source, seconds=60.0, memory_bytes=256 << 20)
    assert isinstance(error, BadRequest)
    assert "memory" in error.message


def test_output_at_the_limit() -> None:
    assert render("{{ 'x' * 10000 }}") == "x" * 10_000
    assert "10000 characters" in refusal("{{ 'x' * 10000 }}y").message


@pytest.mark.parametrize(
    ("source", "message", "param"),
    [
        ("{% if", "chat template, line 1: unexpected 'end of template'", "chat_template"),
        ("{{ raise_exception('no ü') }}", "no ü", "chat_template"),
        (
            "{{ [" + "[" * 9000 + "]" * 9000 + "] }}",
            "chat template does not compile: nested too deeply",
            "chat_template",
        ),
        ("{{ x.y }}", "chat template could not be rendered: 'x' is undefined", "chat_template"),
    ],
)
def test_errors_of_the_template(source: str, message: str, param: str | None) -> None:
    error = refusal(source)
    assert (type(error), error.message, error.param) == (BadRequest, message, param)


def test_errors_of_the_messages() -> None:
    error = refusal("x", [{"role": "user", "content": 5}])
    assert isinstance(error, InvalidBody)
    assert error.param == "messages.0.content"
    assert refusal("x", template_kwargs={"tokenize": False}).param == "chat_template_kwargs.tokenize"


def test_surrogates_are_refused_not_lost() -> None:
    assert refusal("{{ x }}", template_kwargs={"x": "\ud800"}).message == (
        "the rendered prompt holds a lone surrogate, which is not text"
    )


def test_a_hostile_template_does_not_disturb_others() -> None:
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"

    def hostile() -> str:
        return refusal(loops, seconds=1.0).message

    before = set(threading.enumerate())
    with ThreadPoolExecutor(4) as pool:
        bad = pool.submit(hostile)
        good = [pool.submit(render, "{{ messages[0].content }}", seconds=5.0) for _ in range(6)]
        assert [one.result() for one in good] == ["q ü"] * 6
        assert "1 seconds" in bad.result()
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if "derender" in thread.name]


def test_large_messages_pass() -> None:
    big = "語" * 1_000_000
    text = render("{{ messages[0].content }}", [{"role": "user", "content": big}], max_chars=2_000_000, seconds=5.0)
    assert text == big


def test_once_the_asker_has_left_nothing_runs_on_or_begins() -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    asker = limited.Asker()

    def make(source: str) -> str:
        return limited.render_limited(
            source, [{"role": "user", "content": "x"}], model_name="m", seconds=30, max_chars=100
        )

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(asker.run, lambda: make(endless))
        while not limited._running:
            time.sleep(0.01)
        began = time.monotonic()
        asker.leave()
        with pytest.raises(Unavailable, match="the client has left"):
            asked.result()
        assert time.monotonic() - began < 10
    with pytest.raises(Unavailable, match="the client has left"):
        asker.run(lambda: make("x"))
    assert make("x") == "x"


def test_what_a_template_raises_names_the_field() -> None:
    source = "{{ raise_exception('no') }}"
    with pytest.raises(BadRequest, match=r"^no$") as caught:
        limited.render_limited(source, [{"role": "user", "content": "x"}], model_name="m", seconds=30, max_chars=100)
    assert caught.value.param == "chat_template"
    for broken in (source, "{{ messages[0].content.x.y }}"):
        with pytest.raises(BadRequest) as caught:
            ChatTemplate(broken).render([{"role": "user", "content": "x"}])
        assert caught.value.param == "messages"
