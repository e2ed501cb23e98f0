"""The sandbox's short way answers what Jinja's own sandbox does."""

from __future__ import annotations

from typing import Any

import jinja2
import jinja2.sandbox
import pytest
from hypothesis import given
from hypothesis import strategies as st

from derender.template.sandbox import Sandbox

OURS, BASE = Sandbox(), jinja2.sandbox.ImmutableSandboxedEnvironment()
VALUES = st.one_of(
    st.text(max_size=3),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.sampled_from(["a", "items", "role"]), st.text()),
)
NAMES = st.one_of(
    st.sampled_from(sorted({*dir(dict), *dir(list), *dir(str), "role", "a", "content", "mro", "func_code"})),
    st.text("abc_", max_size=4),
)


def outcome(environment: jinja2.Environment, value: Any, name: str) -> object:
    got = environment.getattr(value, name)
    if isinstance(got, jinja2.Undefined):
        return (type(got), got._undefined_exception, got._undefined_name)
    return getattr(got, "__name__", got), getattr(got, "__self__", None)


@given(VALUES, NAMES)
def test_attributes_are_the_base_sandboxs(value: Any, name: str) -> None:
    assert outcome(OURS, value, name) == outcome(BASE, value, name)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ {}.__class__.__mro__ }}",
        "{{ m.update({'x': 1}) }}",
        "{{ [].append(1) }}",
        "{{ m.pop('a') }}",
        "{{ '{0.__class__}'.format(m) }}",
        "{{ '{x.__class__}'.format_map({'x': m}) }}",
        "{% for x in [1] %}{{ loop.__class__ }}{% endfor %}",
        "{{ m['__class__'] }}{{ m.__init__ }}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_nothing_unsafe_is_reached(source: str) -> None:
    values = {"m": {"a": 1}}
    results = []
    for environment in (OURS, BASE):
        try:
            results.append(environment.from_string(source).render(**values))
        except jinja2.exceptions.SecurityError as error:
            results.append(str(error))
    assert results[0] == results[1]
    assert "<class" not in results[0]
    assert values == {"m": {"a": 1}}


def test_a_loop_and_keys_named_like_methods() -> None:
    shown = "{{ loop.first }}{{ loop.index0 }}{{ loop.last }}{{ x.items }}{{ x.role }}{{ x.none }}"
    source = "{% for x in xs %}" + shown + "{% endfor %}"
    values = {"xs": [{"items": 1, "role": "r"}, {"role": "s"}]}
    ours, base = (e.from_string(source).render(**values) for e in (OURS, BASE))
    assert ours.split(" at 0x")[0] == base.split(" at 0x")[0]
    assert ours.count("0x") == base.count("0x")
