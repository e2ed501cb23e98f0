"""Calls written as Python: literals come out as JSON, under any split; what is no call list stays content."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.harness import compiled, read
from tests.parser.streams import same_for_every_split, survives_noise

from derender.formats.pythonic import LFM2, LLAMA4_PYTHONIC, OLMO3, PYTHONIC
from derender.parser.python_text import escape, literal

KEYS = st.text("abc_d", min_size=1, max_size=4)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.text("\\'\"nx\n", max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, min_size=2, max_size=3).map(tuple)
        | st.dictionaries(TEXTS, inner, max_size=3)
    ),
)


def call(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


@settings(max_examples=80, deadline=None)
@given(calls=st.lists(st.dictionaries(KEYS, VALUES, max_size=3), min_size=1, max_size=3), seed=st.integers(0, 999))
def test_round_trip(calls: list[dict[str, Any]], seed: int) -> None:
    written = [call(f"f.g{n}", arguments) for n, arguments in enumerate(calls)]
    expected = [(f"f.g{n}", json.loads(json.dumps(arguments)), True) for n, arguments in enumerate(calls)]
    for table, text in (
        (PYTHONIC, f"[{', '.join(written)}]"),
        (OLMO3, "<function_calls>" + "\n".join(written) + "</function_calls>"),
        (LFM2, f"<|tool_call_start|>[{', '.join(written)}]<|tool_call_end|>"),
    ):
        got = same_for_every_split(compiled(table, tokens=True), text, seed)
        assert got["content"] == ""
        assert [(name, json.loads(arguments), whole) for name, arguments, whole in got["calls"]] == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "{}"),
        (" ", "{}"),
        ("a=1,", '{"a": 1}'),
        ("a = 1 ,\n b = 2", '{"a": 1, "b": 2}'),
        ("a=1.50, b=-0.5, c=+3, d=1_000, e=.5, f=5., g=1e5, h=0x1F, i=007", None),
        ('a="it\'s", b=\'say "hi"\'', '{"a": "it\'s", "b": "say \\"hi\\""}'),
        ('a="""x\n"y" ""z""", b=""', '{"a": "x\\n\\"y\\" \\"\\"z", "b": ""}'),
        (r'a="\x41\u00e9\U0001F600\101\N{BULLET}\q\'\"\\"', '{"a": "Aé😀A•\\\\q\'\\"\\\\"}'),
        (r'a=r"\d\"x", b=u"y"', r'{"a": "\\d\\\"x", "b": "y"}'),
        (r'a="\ud83d\ude00"', r'{"a": "\ud83d\ude00"}'),
        ("a=[1, [2], (3, 4), {}], b={'x': [], 1: None, True: 'y'}", None),
        ("a=true, b=null", '{"a": true, "b": null}'),
    ],
)
def test_literals(arguments: str, expected: str | None) -> None:
    got = same_for_every_split(compiled(PYTHONIC, tokens=True), f"[f({arguments})]", 3)
    (name, text, whole), *others = got["calls"]
    assert (name, whole, others, got["content"]) == ("f", True, [], "")
    if expected is None:
        expected = {
            "a=1": '{"a": 1.50, "b": -0.5, "c": 3, "d": 1000, "e": 0.5, "f": 5.0, "g": 1e5, "h": 31, "i": 7}',
            "a=[": '{"a": [1, [2], [3, 4], {}], "b": {"x": [], "1": null, "true": "y"}}',
        }[arguments[:3]]
    assert text == expected


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2, 3]",
        "[]",
        "[f]",
        "[f(1)]",
        "[f(x)]",
        "[f(a=1+1)]",
        "[f(a=g(1))]",
        '[f(a=f"{x}")]',
        "[f(a=b)]",
        "[f(a)]",
        "[1.5(a=1)]",
        "[[f(a=1)]]",
        'Sure: [f(a="x")]',
        "[link](https://example.org) and more",
        "[f(",
        "[f(a=",
        "[f(a=1",
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    for table in (PYTHONIC, LLAMA4_PYTHONIC):
        assert same_for_every_split(compiled(table, tokens=True), text, 5) == {
            "reasoning": "",
            "content": text,
            "calls": [],
        }


def test_a_call_that_breaks_or_is_cut() -> None:
    form = compiled(PYTHONIC, tokens=True)
    for text, calls in (
        ('[f(a="Os', [("f", '{"a": "Os', False)]),
        ('[f(a="Os\\u00', [("f", '{"a": "Os', False)]),
        ('[f(a="x", b=1', [("f", '{"a": "x"', False)]),
        ('[f(a="x"]', [("f", '{"a": "x"}', True)]),
        ("[f(a=[1, {'b': 2)]", [("f", '{"a": [1, {"b": 2', True)]),
        ('[f(a="x"), g(', [("f", '{"a": "x"}', True)]),
    ):
        assert same_for_every_split(form, text, 5)["calls"] == calls
    assert read(form, '[f(a="Os', complete=True) == {"reasoning": "", "content": '[f(a="Os', "calls": []}


def test_a_wrapper_closes_what_is_open() -> None:
    form = compiled(LFM2, tokens=True)
    text = "a<|tool_call_start|>[f(a=[1, {'b': 2<|tool_call_end|>b"
    assert same_for_every_split(form, text, 5) == {
        "reasoning": "",
        "content": "ab",
        "calls": [("f", '{"a": [1, {"b": 2}]}', True)],
    }


def test_literal() -> None:
    assert [literal(text) for text in ("", "-", ".", "1.", "-.5e3", "1j", "nan", "0b11", "-0x_f", "00")] == [
        *(None, None, None, "1.0", "-0.5e3", None, None, "3", "-15", "0"),
    ]


def test_escape_waits_for_its_end() -> None:
    for text in ("\\", "\\x", "\\x4", "\\u00e", "\\U0001F60", "\\1", "\\12", "\\N", "\\N{BUL"):
        assert escape(text, 0) is None
    assert escape("\\x4g", 0) == ("\\\\", 1)
    assert escape("\\U00110000", 0) == ("\\\\", 1)
    assert escape("\\N{NO SUCH}", 0) == ("\\\\", 1)
    assert escape("\\\nx", 0) == ("", 2)


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize(
    ("table", "start"),
    [(PYTHONIC, "["), (LLAMA4_PYTHONIC, ""), (OLMO3, "<function_calls>"), (LFM2, "<|tool_call_start|>[")],
)
def test_noise(table: Any, start: str, tokens: bool) -> None:
    pieces = [*"[](){}=:,'\"\\ \n1af", "f(", "a=", '"x"', "None", '"""', start, '{"name": "f", "arguments": {}}']
    markers = ["<function_calls>", "</function_calls>", "<|tool_call_end|>", "<|python_start|>", "<|python_end|>"]
    form = compiled(table, tokens=tokens)
    survives_noise(form, [*pieces, *markers], rounds=80)
    survives_noise(form, [start + "f(a=", *pieces], rounds=80)


def test_wrappers_without_a_call() -> None:
    form = compiled(LFM2, tokens=True)
    text = "<|tool_call_start|>1<|tool_call_end|><|tool_call_start|>2<|tool_call_end|></think>"
    assert same_for_every_split(form, text, 1)["content"] == text.removesuffix("</think>")
    empty = "<|tool_call_start|>[]<|tool_call_end|>a"
    assert same_for_every_split(form, empty, 1) == {"reasoning": "", "content": "a", "calls": []}
