"""Programs that nobody would write render, or fail, as in Jinja's own sandbox."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derender.template.sandbox import Sandbox

OPTIONS: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "extensions": [jinja2.ext.loopcontrols]}
# Undefined values that answer anything, so that a program gets further than its first mistake, and the usual ones.
PAIRS = [
    [kind(undefined=undefined, **OPTIONS) for kind in (Sandbox, jinja2.sandbox.ImmutableSandboxedEnvironment)]
    for undefined in (jinja2.Undefined, jinja2.ChainableUndefined)
]
PRELUDE = (
    "{% set ns = namespace(a=1, items=[{'a': 2}], b=m, n=none) %}{% set mk = m.role|escape %}"
    "{% macro mac(x, y=1) %}[{{ x.a }}{{ varargs }}{{ caller(x) if caller }}]{% endmacro %}"
)
ATTRIBUTES = [
    "a", "b", "n", "role", "items", "keys", "values", "get", "pop", "update", "setdefault", "clear", "copy",
    "fromkeys", "name", "content", "first", "last", "index", "index0", "length", "depth", "previtem", "nextitem",
    "cycle", "changed", "upper", "strip", "split", "format", "format_map", "append", "sort", "count", "extend",
    "caller", "arguments", "real", "translate", "title", "__class__", "__init__", "__len__", "__getitem__", "_x",
    "_Namespace__attrs", "__self__", "mro",
]  # fmt: skip
NAMES = [
    "m", "xs", "s", "i", "f", "nul", "t", "tup", "nest", "ns", "mk", "mac", "loop", "self", "range", "namespace",
    "dict", "caller", "varargs", "kwargs", "x", "_of", "environment",
]  # fmt: skip
LITERALS = ["'{0.a}{x.b}'", "1", "2.5", "none", "true", "[]", "{}", "{'a': 1, 'items': 2, '_x': 3}", "['a', {'a': 1}]"]
FILTERS = [
    "tojson", "length", "list", "join(',')", "upper", "string", "first", "last", "items", "safe", "e", "trim",
    "default('d')", "default('d',true)", "attr('a')", "attr('items')", "attr('__class__')", "attr('format')",
    "map(attribute='a')|list", "map(attribute='items')|list", "map('upper')|list",
    "map(attribute='__class__')|list", "selectattr('a')|list", "rejectattr('items')|list", "groupby('a')|list",
    "sort(attribute='a')", "unique|list", "sum(attribute='n')", "dictsort", "reverse|list", "batch(2)|list",
    "indent(2)", "int", "float", "xmlattr", "format(1)", "pprint",
]  # fmt: skip
TESTS = [
    "defined", "undefined", "none", "mapping", "string", "sequence", "iterable", "callable", "number", "true",
    "escaped", "odd",
]  # fmt: skip
_ADDRESS = re.compile("0x[0-9a-f]+", re.I)


class Program:
    """Writes one program by the given dice."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice

    def expression(self, depth: int) -> str:
        pick = self.dice.choice
        if depth <= 0:
            return pick(NAMES + LITERALS)
        inner, roll = self.expression(depth - 1), self.dice.random()
        other = self.expression(depth - 2)
        if roll < 0.45:
            return f"({inner}).{pick(ATTRIBUTES)}" if roll < 0.1 else f"{inner}.{pick(ATTRIBUTES)}"
        if roll < 0.55:
            return f"{inner}[{pick([repr(pick(ATTRIBUTES)), '0', '-1', '1:', other])}]"
        if roll < 0.68:
            return f"{inner}({pick(['', other, 'x=' + other, other + ', 1'])})"
        if roll < 0.82:
            return f"({inner}|{pick(FILTERS)})"
        if roll < 0.87:
            return f"({inner} is {pick(['', 'not '])}{pick(TESTS)})"
        if roll < 0.93:
            return f"({inner} {pick(['+', '~', '==', '<', 'in', 'not in', 'and', 'or'])} {other})"
        if roll < 0.96:
            return f"({inner} if {other}{pick([' else 1', ''])})"
        return pick([f"[{inner}, {other}]", f"{{'a': {inner}, 'items': {other}}}", f"(not {inner})"])

    def block(self, depth: int) -> str:
        pick, roll = self.dice.choice, self.dice.random()
        value = self.expression(pick([1, 1, 2, 2, 3]))
        if depth <= 0 or roll < 0.4:
            return f"{{{{ {value} }}}}|"
        body, other = self.block(depth - 1), self.expression(1)
        if roll < 0.55:
            recursive = pick(["", "", " recursive"])
            again = "{{ loop(x.a) if x.a }}" if recursive else ""
            stop = pick(["", "{% break %}", "{% if " + other + " %}{% continue %}{% endif %}"])
            head = f"{{% for x in {value}{pick(['', ' if ' + other])}{recursive} %}}"
            return f"{head}{body}{stop}{again}{{% else %}}{pick(['', body])}{{% endfor %}}"
        if roll < 0.65:
            return f"{{% if {value} %}}{body}{{% elif {other} %}}{body}{{% else %}}-{{% endif %}}"
        if roll < 0.75:
            return f"{{% set {pick(['x', 'm', 'ns.a', 'ns.items', 'ns._x', 'ns.format'])} = {value} %}}{body}"
        if roll < 0.82:
            return f"{{% macro f(x, y={other}) %}}{body}{{% endmacro %}}{{{{ f({value}) }}}}"
        if roll < 0.89:
            return f"{{% call{pick(['', '(x)'])} mac({value}) %}}{body}{{% endcall %}}"
        return pick(
            [
                f"{{% set x %}}{body}{{% endset %}}{{{{ x.a }}}}{{{{ x }}}}",
                f"{{% filter {pick(['upper', 'e', 'trim'])} %}}{body}{{% endfilter %}}",
                f"{{% with x = {value} %}}{body}{{% endwith %}}",
                f"{{% autoescape {pick(['true', 'm.a'])} %}}{body}{{% endautoescape %}}",
                f"{{% block c{pick(['', ' scoped'])} %}}{body}{{% endblock %}}",
            ]
        )


def values() -> dict[str, Any]:
    return {
        "m": {
            "a": {"b": {"a": 1, "items": [1]}, "n": 2}, "items": 5, "role": "r", "b": None, "_x": "p", "get": "g",
            "format": "{0.__class__}", "n": 3, "__class__": "c",
        },
        "xs": [{"role": "r", "a": {"b": 1}, "n": 1}, {"role": "s", "a": None, "n": 2, "items": [3]}, {"n": 0}],
        "s": "ab {0.__class__} {x.a}", "i": 3, "f": 2.5, "nul": None, "t": True, "tup": ("a", {"a": 1}),
        "nest": [[{"a": [1, {"b": 2}]}]],
    }  # fmt: skip


def outcome(environment: jinja2.Environment, source: str) -> tuple[str, str]:
    given = values()
    try:
        text = environment.from_string(source).render(**given)
    except RecursionError as error:
        return type(error).__name__, ""
    except (
        jinja2.TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        return type(error).__name__, _ADDRESS.sub("", str(error))
    assert given == values(), "a template changed what it was given"
    return "", _ADDRESS.sub("", text)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # such as of `1[0]`
@settings(max_examples=settings().max_examples * 5)
@given(st.integers(0, 2**32), st.sampled_from(PAIRS))
def test_programs_render_or_fail_as_in_the_base(seed: int, pair: list[jinja2.Environment]) -> None:
    source = PRELUDE + Program(Random(seed)).block(2)
    ours, base = (outcome(environment, source) for environment in pair)
    assert ours == base, source
