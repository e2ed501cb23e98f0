"""`{key: value}` with fences: whatever JSON is written so comes back, under any split."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.harness import compiled, read
from tests.parser.streams import same_for_every_split, survives_noise

from derender.formats.gemma import FUNCTIONGEMMA, GEMMA4

FENCE = '<|"|>'
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12).filter(lambda text: FENCE not in text)
KEYS = st.text("abcdeé_0-", min_size=1, max_size=5)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


def written(value: Any) -> str:
    if isinstance(value, str):
        return FENCE + value + FENCE
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{written(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


@settings(max_examples=60, deadline=None)
@given(arguments=st.dictionaries(KEYS, VALUES, max_size=4), seed=st.integers(0, 999), tokens=st.booleans())
def test_round_trip(arguments: dict[str, Any], seed: int, tokens: bool) -> None:
    text = f"<|tool_call>call:f{written(arguments)}<tool_call|>"
    got = same_for_every_split(compiled(GEMMA4, tokens=tokens), text, seed)
    assert (got["content"], got["reasoning"]) == ("", "")
    (name, text, complete), *others = got["calls"]
    assert (name, json.loads(text), complete, others) == ("f", arguments, True, [])
    assert text == json.dumps(arguments, ensure_ascii=False)


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("{ a : 1 , b : [ 1 , 2 ] }", '{"a": 1, "b": [1, 2]}'),
        ("{}", "{}"),
        ("(a:1)", '{"a": 1}'),
        ("{a:None,b:True,c:False}", '{"a": null, "b": true, "c": false}'),
        ("{a:hello world,b:02139,c:-1.50}", '{"a": "hello world", "b": "02139", "c": -1.50}'),
        ('{<|"|>a b<|"|>:1,"c":2}', '{"a b": 1, "c": 2}'),
        ("{a:,b:1}", '{"a": "", "b": 1}'),
        ("{a:Oslo, Norway,b:1}", '{"a": "Oslo", "b": 1}'),
        ("{a:[1,{b:2}", '{"a": [1, {"b": 2}]}'),
        ("{a:[1}", '{"a": [1]}'),
        ("{a:1]}", '{"a": 1}'),
        ("{a{b:1}}", '{"a": {"b": 1}}'),
        ("{a:NaN,b:Infinity}", '{"a": "NaN", "b": "Infinity"}'),
        ("{a:https://x.no/?q=1}", '{"a": "https://x.no/?q=1"}'),
    ],
)
def test_lenient(body: str, arguments: str) -> None:
    for tokens in (True, False):
        form = compiled(GEMMA4, tokens=tokens)
        got = same_for_every_split(form, f"<|tool_call>call:f{body}<tool_call|>after", 1)
        assert got == {"reasoning": "", "content": "after", "calls": [("f", arguments, True)]}


def test_the_fence_is_all_that_ends_a_string() -> None:
    form = compiled(FUNCTIONGEMMA, tokens=True)
    text = '<start_function_call>call:f{a:<escape>"},<end_function_call><|"|><escape>}<end_function_call>'
    got = same_for_every_split(form, text, 1)
    assert got["calls"] == [("f", json.dumps({"a": '"},<end_function_call><|"|>'}), True)]


def test_a_cut_call_keeps_what_came() -> None:
    form = compiled(GEMMA4, tokens=False)
    assert read(form, '<|tool_call>call:f{a:<|"|>Os<|"')["calls"] == [("f", '{"a": "Os<|\\"', False)]
    assert read(form, "<|tool_call>call:f{a:1,b:2")["calls"] == [("f", '{"a": 1, "b": ', False)]
    assert read(form, "<|tool_call>call:f")["content"] == "<|tool_call>call:f"
    assert read(form, '<|tool_call>call:f{a:<|"|>Os', complete=True)["content"] == '<|tool_call>call:f{a:<|"|>Os'


def test_a_channel_says_its_name_first() -> None:
    form = compiled(GEMMA4, tokens=True)
    for text, reasoning, content in (
        ("<|channel>thought\nyes<channel|>4", "yes", "4"),
        ("<|channel>thought\nthought\nyes<channel|>4", "thought\nyes", "4"),
        ("<|channel>thought<channel|>4", "", "4"),
        ("<|channel>thoughtful<channel|>4", "thoughtful", "4"),
        ("<|channel>thought\na<channel|> b <|channel>thought\nc<channel|>d", "ac", " b d"),
    ):
        got = same_for_every_split(form, text, 3)
        assert (got["reasoning"], got["content"]) == (reasoning, content)
    assert same_for_every_split(form, "yes<channel|>4", 3, prompt_tail="<|turn>model\n<|channel>thought\n") == {
        "reasoning": "yes",
        "content": "4",
        "calls": [],
    }


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
def test_noise(tokens: bool) -> None:
    pieces = [
        "<|tool_call>",
        "<tool_call|>",
        "call:",
        "f",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ":",
        ",",
        FENCE,
        "a",
        " ",
        "1",
    ]
    survives_noise(compiled(GEMMA4, tokens=tokens), [*pieces, "<|channel>", "thought\n", "<channel|>", "<|", "é"])
    survives_noise(compiled(GEMMA4, tokens=tokens), ["<|tool_call>call:f{", *pieces])
