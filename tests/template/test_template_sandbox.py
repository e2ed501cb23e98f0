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
        "{% set ns = namespace(f='{0.__class__}'.format) %}{{ ns.f(m) }}",
        "{% set ns = namespace(f=['{0.__class__}']|map(attribute='format')|first) %}{{ ns.f(m) }}",
        "{% set ns = namespace(a=m) %}{{ ns.a.update({'x': 1}) }}",
        "{% set ns = namespace(a=1) %}{{ ns.__class__ }}{{ ns._Namespace__attrs }}{{ ns|attr('__init__') }}",
        "{% set ns = namespace(__class__=1, _a=2) %}{{ ns.__class__ }}{{ ns._a }}",
        "{% for x in [1] %}{{ m.setdefault('x', 1) }}{% endfor %}",
        "{{ (m.keys)()|list }}{{ m.clear() }}",
        "{{ ''.join.__self__ }}{{ ''.join.__call__ }}",
        "{{ ''|attr('__class__') }}{{ m|attr('update') }}",
        "{{ [m]|map(attribute='__class__')|list }}",
        "{{ [m]|map(attribute='update')|list }}",
        "{{ [m]|map('attr', '__class__')|list }}",
        "{{ [m]|groupby('__class__') }}",
        "{{ [m]|sort(attribute='a.__class__') }}",
        "{{ '{0.a.__class__.__mro__}'.format(m) }}",
        "{{ '{0[a].__class__}'.format(m) }}",
        "{{ ('{0.__cl' ~ 'ass__}').format(m) }}",
        "{{ ('{0.__class__}'|escape).format(m) }}",
        "{{ ['{0.__class__}']|map('format', m)|list }}",
        "{% set f = '{0.__class__}'.format %}{{ f(m) }}",
        "{% for f in ['{0.__class__}'.format] %}{{ f(m) }}{% endfor %}",
        "{{ {'f': '{0.__class__}'.format}.f(m) }}",
        "{{ dict(f='{0.__class__}'.format).f(m) }}",
        "{{ m.get('f', '{0.__class__}'.format)(m) }}",
        "{{ self.__init__ }}{{ self._TemplateReference__context }}",
        "{% macro f() %}{% endmacro %}{{ f.__init__ }}{{ f._func }}{{ f._environment }}",
        "{% macro f() %}{{ caller.__call__ }}{{ caller._func }}{% endmacro %}{% call f() %}{% endcall %}",
        "{% for x in [1] recursive %}{{ loop._recurse }}{{ loop._iterable }}{{ loop.__call__ }}{% endfor %}",
        "{{ range.__globals__ }}{{ lipsum.__globals__ }}{{ joiner.__init__ }}{{ namespace.mro }}{{ dict.mro }}",
        "{{ (range|string).__class__ }}{{ (m.items)().__iter__ }}",
        "{{ x.__class__ }}{{ x.y.__class__ }}",
        "{{ m.a.real.__class__ }}{{ m.__getitem__ }}{{ m.__class__.__subclasses__() }}",
        "{% set m.a = 5 %}",
        "{% set ns = namespace(m) %}{% set ns.a = 5 %}{{ ns.a }}{{ m.a }}",
        "{{ [1, 2].sort() }}",
        "{{ [1, 2].extend([3]) }}{{ m.popitem() }}",
        "{{ m.keys().__class__ }}{{ m.fromkeys.__self__ }}{{ ''.maketrans.__self__ }}",
        "{{ m|xmlattr }}{{ m|attr('keys') }}{{ m|attr('_x') }}",
        "{% include 'x' %}",
        "{% import 'os' as os %}{{ os }}",
        "{% extends 'x' %}",
        "{% from m import a %}",
        "{% autoescape true %}{{ '{0.__class__}'.format(m) }}{{ '<' ~ m.a }}{% endautoescape %}",
    ],
)
def test_nothing_unsafe_is_reached(source: str) -> None:
    values = {"m": {"a": 1}}
    results = []
    for environment in (OURS, BASE):
        try:
            results.append(environment.from_string(source).render(**values))
        except (jinja2.TemplateError, TypeError, AttributeError) as error:
            results.append(f"{type(error).__name__}: {error}".split(" at 0x")[0])
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


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(a=1, items=2) %}{{ ns.a }}{{ ns.items }}{{ ns.b is defined }}",
        "{% set ns = namespace(a=1) %}{% set ns.a = 5 %}{{ ns.a }}",
        "{% set ns = namespace(n=none, z=0) %}{{ ns.n is none }}{{ ns.z }}",
        "{% for x in xs %}{{ x.role.startswith('r') }}{{ namespace(a=x).a.role }}{% endfor %}",
        "{% for x in xs %}{{ x.role.split('s', maxsplit=1) }}{% endfor %}",
        "{% for x in xs recursive %}{{ x.role }}{{ loop(x.more) if x.more }}{% endfor %}",
        "{% for x in xs if x.role == 'r' %}{{ x.role }}{{ xs[0].more[0].role.upper() }}{% endfor %}",
        "{% macro f(x) %}{{ x.role }}{{ x.more.role is defined }}{% endmacro %}{{ f(xs[0]) }}",
        "{{ xs|map(attribute='role')|join(',') }}{{ xs|selectattr('role', 'equalto', 's')|list|length }}",
        "{{ xs[0].role.format(1) }}{{ '{}'.format(xs[1].role) }}{{ '%s'|format(xs[0].role) }}",
        "{{ {'get': 1, 'x': {'y': {'z': 3}}}.x.y.z }}{{ {'x': 1}.get('x') }}{{ {'get': 1}.get('get', 4) }}",
        "{% if xs[0].role is defined and xs[0].none is not defined %}{{ 1 }}{% endif %}",
        "{% if xs[0].role %}{{ (xs[0].role ~ xs[1].role).strip('r') }}{% endif %}",
    ],
)
def test_what_templates_do_gives_the_same(source: str) -> None:
    values = {"xs": [{"role": "r", "more": [{"role": "q"}]}, {"role": "s"}]}
    ours, base = (e.from_string(source).render(**values) for e in (OURS, BASE))
    assert ours == base


@pytest.mark.parametrize("names", [5, 60, 97, 99, 150, 190])
@pytest.mark.parametrize("source", ["{{ m%s }}", "{{ (m%s)(1) }}", "{%% for x in [m] if x%s %%}{{ x }}{%% endfor %%}"])
def test_long_chains_of_names_compile_as_in_the_base(source: str, names: int) -> None:
    value: Any = 7
    for _ in range(names):
        value = {"b": value}
    said = []
    for environment in (OURS, BASE):
        try:
            said.append(environment.from_string(source % (".b" * names)).render(m=value))
        except TypeError as error:
            said.append(str(error))
    assert said[0] == said[1]
    assert said[0] == "7" or "not callable" in said[0] or "{'b'" in said[0]


@pytest.mark.parametrize(
    "source", ["{{ x.a.b }}", "{{ m.a.b.c }}", "{% set ns = namespace() %}{{ ns.a.b }}", "{{ m.f() }}"]
)
def test_what_is_undefined_fails_in_the_same_words(source: str) -> None:
    said = []
    for environment in (OURS, BASE):
        with pytest.raises(jinja2.UndefinedError) as error:
            environment.from_string(source).render(m={"a": {}})
        said.append(error.value.message)
    assert said[0] == said[1]
