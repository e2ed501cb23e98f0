"""Calls in JSON: the model's own arguments come through, whatever they hold, however they are cut."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.harness import compiled, read
from tests.parser.streams import same_for_every_split, survives_noise

from derender.formats.registry import FORMATS

# How each way of writing calls puts a name and arguments (JSON text) together.
WRITTEN = {
    "hermes": '<tool_call>\n{"name": NAME, "arguments": ARGS}\n</tool_call>',
    "granite": '<|tool_call|>[{"name": NAME, "arguments": ARGS}]',
    "jamba": '<tool_calls>[{"name": NAME, "arguments": ARGS}]</tool_calls>',
    "llama3_json": '{"name": NAME, "parameters": ARGS}',
    "apertus": "<|tools_prefix|>[{NAME: ARGS}]<|tools_suffix|>",
    "cohere_command3": (
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": NAME, "parameters": ARGS}\n]<|END_ACTION|>'
    ),
    "phi4_mini_json": 'functools[{"name": NAME, "arguments": ARGS}]',
    "xlam": 'Now.\n```json\n[{"name": NAME, "arguments": ARGS}]\n```',
    "kimi_k2": (
        "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>ARGS"
        "<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\nARGS\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>ARGS<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "mistral": "[TOOL_CALLS]f[ARGS]ARGS",
}
SAID = {"xlam": "Now."}
BY_MEMBERS = [name for name, text in WRITTEN.items() if "NAME" in text and name != "apertus"]

# Text that looks like what may end a call, a string or an escape.
_PIECES = st.sampled_from(
    [
        "</tool_call>",
        "<tool_call>",
        "```",
        "]",
        "}",
        '"',
        "\\",
        "\\u00e9",
        ";",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|tool_call_end|>",
        "<｜tool▁call▁end｜>",
        "</tool_calls>",
        "<|END_ACTION|>",
        "\n",
        "é",
        "😀",
        "{",
        "[",
        "functools[",
        "\t",
    ]
)
_STRINGS = st.lists(_PIECES | st.text("abc ", max_size=3), max_size=6).map("".join)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_STRINGS, inner, max_size=3),
    max_leaves=8,
)
_OBJECTS = st.dictionaries(_STRINGS, _VALUES, max_size=4)


def arguments_of(value: Any, *, ascii_only: bool, indent: int | None) -> str:
    return json.dumps(value, ensure_ascii=ascii_only, indent=indent)


ARGUMENTS = st.builds(arguments_of, _OBJECTS, ascii_only=st.booleans(), indent=st.none() | st.just(1))


def output(family: str, arguments: str, name: str = "f") -> str:
    return (
        WRITTEN[family]
        .replace("NAME", json.dumps(name))
        .replace("]ARGS", "]" + "\0")
        .replace("ARGS", "\0")
        .replace("[\0]", "[ARGS]")
        .replace("\0", arguments)
    )


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("family", WRITTEN)
@settings(max_examples=20, deadline=None)
@given(arguments=ARGUMENTS, seed=st.integers(0, 1 << 16))
def test_arguments_are_the_models_own_characters(family: str, tokens: bool, arguments: str, seed: int) -> None:
    form = compiled(FORMATS[family], tokens=tokens)
    text = output(family, arguments)
    expected = {"reasoning": "", "content": SAID.get(family, ""), "calls": [("f", arguments, True)]}
    assert same_for_every_split(form, text, seed) == expected
    assert same_for_every_split(form, text, seed, complete=True) == expected


@pytest.mark.parametrize("family", BY_MEMBERS)
@settings(max_examples=12, deadline=None)
@given(arguments=ARGUMENTS, order=st.permutations(range(3)), seed=st.integers(0, 1 << 16))
def test_members_in_any_order(family: str, arguments: str, order: list[int], seed: int) -> None:
    text = WRITTEN[family]
    start, end = text.index("{"), text.index("}") + 1
    name, member = ("tool_name", "parameters") if "tool_name" in text else ("name", "arguments")
    members = [f'"{name}": "f"', f'"{member}": \0', '"type": "function"']
    text = text[:start] + "{" + ", ".join(members[n] for n in order) + "}" + text[end:]
    form = compiled(FORMATS[family], tokens=True)
    got = same_for_every_split(form, text.replace("\0", arguments), seed)
    assert got == {"reasoning": "", "content": SAID.get(family, ""), "calls": [("f", arguments, True)]}


@pytest.mark.parametrize("family", BY_MEMBERS)
@settings(max_examples=12, deadline=None)
@given(arguments=ARGUMENTS, ascii_only=st.booleans(), seed=st.integers(0, 1 << 16))
def test_arguments_in_a_string_are_decoded_once(family: str, arguments: str, ascii_only: bool, seed: int) -> None:
    form = compiled(FORMATS[family], tokens=True)
    text = output(family, json.dumps(f" {arguments}\n", ensure_ascii=ascii_only))
    assert same_for_every_split(form, text, seed)["calls"] == [("f", arguments, True)]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('""', "{}"),
        ('"  "', "{}"),
        ('"Oslo"', '"Oslo"'),
        ('" [1]\\n"', '" [1]\\n"'),
        ("null", "{}"),
        ("nul", "nul"),
        ("5", "5"),
        ("-1.50e+3", "-1.50e+3"),
        ("[1, 2]", "[1, 2]"),
        ("true", "true"),
        ('{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        ('{"n": 9007199254740993.25}', '{"n": 9007199254740993.25}'),
        ("{\"a\": NaN, b: 'c'}", "{\"a\": NaN, b: 'c'}"),
    ],
)
def test_other_arguments(written: str, arguments: str) -> None:
    form = compiled(FORMATS["hermes"], tokens=True)
    assert same_for_every_split(form, output("hermes", written), 1)["calls"] == [("f", arguments, True)]


CALL = '<tool_call>{"name": "f", "arguments": '


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        # Broken arguments go on to the call's end, as written.
        (CALL + '{"a": 1]}} </tool_call>Done.', [("f", '{"a": 1]}}', True)], "Done."),
        (CALL + '{"a": [1, 2</tool_call>', [("f", '{"a": [1, 2', True)], ""),
        (CALL + '{"a": 1', [("f", '{"a": 1', False)], ""),
        (CALL + '{"a": 1]', [("f", '{"a": 1]', False)], ""),
        (CALL + "oops, {x}</tool_call>", [("f", "oops", True)], "{x}"),
        # The end of the object is missing.
        (CALL + '{"a": 1}</tool_call>', [("f", '{"a": 1}', True)], ""),
        (CALL + '{"a": 1}', [("f", '{"a": 1}', False)], ""),
        (CALL + '{"a": 1}}', [("f", '{"a": 1}', True)], ""),
        (CALL + '{"a": 1}}}\n</tool_call>', [("f", '{"a": 1}', True)], ""),
        # The next call's opener ends a broken one.
        (CALL + '{"a": ' + CALL + "{}}</tool_call>", [("f", '{"a": ', True), ("f", "{}", True)], ""),
        # Arguments are missing, or there twice.
        ('<tool_call>{"name": "f"}</tool_call>', [("f", "{}", True)], ""),
        ('<tool_call>{"name": "f", </tool_call>', [("f", "{}", True)], ""),
        (CALL + '{}, "arguments": {"a": 1}}</tool_call>', [("f", "{}", True)], ""),
        (CALL + '{"a": 1}, "parameters": {}}</tool_call>', [("f", '{"a": 1}', True)], ""),
        ('<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>', [("f", "{}", True)], ""),
        # Without a name it is no call.
        ('<tool_call>{"arguments": {"a": 1}}</tool_call>', [], '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
        ('<tool_call>{"name": "", "x": 1}</tool_call>', [], '<tool_call>{"name": "", "x": 1}</tool_call>'),
        ("<tool_call>nothing</tool_call> more", [], "<tool_call>nothing</tool_call> more"),
        ('<tool_call>{"name": "f', [], '<tool_call>{"name": "f'),
        # Names are decoded and stripped.
        ('<tool_call>{"name": " caf\\u00e9 ", "arguments": {}}</tool_call>', [("café", "{}", True)], ""),
        ('<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>', [("\ufffd", "{}", True)], ""),
    ],
)
def test_what_is_not_quite_a_call(text: str, calls: list[Any], content: str, tokens: bool) -> None:
    got = same_for_every_split(compiled(FORMATS["hermes"], tokens=tokens), text, 2)
    assert (got["calls"], got["content"]) == (calls, content)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": {"a": tru}}\n</tool_call> more',
        '<tool_call>{"name": "f", "arguments": {"a": 1]}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1',
        '\n<tool_call>{"name": "f", "argu',
    ],
)
def test_complete_gives_only_whole_calls_and_all_else_verbatim(text: str) -> None:
    for tokens in (True, False):
        got = same_for_every_split(compiled(FORMATS["hermes"], tokens=tokens), text, 3, complete=True)
        assert got == {"reasoning": "", "content": text, "calls": []}


@pytest.mark.parametrize("family", WRITTEN)
def test_an_output_cut_anywhere(family: str) -> None:
    arguments = '{"a\\n": "\\ud83d\\ude00\\"\\\\", "b": ["</tool_call>", {"c": null}], "d": 1.50}'
    text = output(family, arguments)
    form = compiled(FORMATS[family], tokens=False)
    begun = ""
    for cut in range(len(text) + 1):
        got = read(form, text[:cut])
        assert len(got["calls"]) <= 1
        if got["calls"]:
            name, so_far, complete = got["calls"][0]
            assert name == "f"
            assert arguments.startswith(so_far)
            assert so_far == arguments or not complete
            assert len(so_far) >= len(begun), "what was given stays"
            assert got["content"] == SAID.get(family, "") or complete
            begun = so_far
        else:
            assert not begun
            assert text[:cut].removeprefix("</think>").startswith(got["content"])
    assert begun == arguments


@pytest.mark.parametrize("family", WRITTEN)
def test_deep_arguments(family: str) -> None:
    arguments = '{"a": ' + '[{"b": ' * 600 + '"]}"' + "}]" * 600 + "}"
    form = compiled(FORMATS[family], tokens=True)
    for sizes in ((), [7] * 4000):
        assert read(form, output(family, arguments), sizes=sizes, snapshots=False)["calls"] == [("f", arguments, True)]


def test_no_bound_is_a_broken_value() -> None:
    arguments = '{"a": ' + "[" * 5000
    got = read(compiled(FORMATS["hermes"], tokens=True), CALL + arguments + "</tool_call>")
    assert got["calls"] == [("f", arguments, True)]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1} is a dict.',
        '{"name": "Oslo", "population": 700000}',
        '[{"name": "Oslo", "population": {}}]',
        '\n {"type": "object", "properties": {}}',
        '{"name": "f"}',
        '{"name": "f", "param',
        "a {b} c",
        "{",
        "",
    ],
)
def test_an_answer_in_json_is_no_call(text: str) -> None:
    for tokens in (True, False):
        got = same_for_every_split(compiled(FORMATS["llama3_json"], tokens=tokens), text, 4)
        assert got == {"reasoning": "", "content": text, "calls": []}


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ('{"name": "f", "parameters": {}};\n {"name": "g", "parameters": {}};', ["f", "g"], ""),
        ('{"name": "f", "parameters": {}} {"name": "g", "parameters": {}} ; end', ["f", "g"], " ; end"),
        ('{"name": "f", "parameters": {}}; {"a": 1}', ["f"], '; {"a": 1}'),
        ('<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', ["f"], ""),
        ('Text; {"parameters": {}, "name": "f"} and more', ["f"], "Text;  and more"),
    ],
)
def test_calls_without_markers(text: str, calls: list[str], content: str) -> None:
    got = same_for_every_split(compiled(FORMATS["llama3_json"], tokens=True), text, 5)
    assert ([name for name, *_ in got["calls"]], got["content"]) == (calls, content)


def test_names_that_call_nothing() -> None:
    form = compiled(FORMATS["command-r"], tokens=False)
    one, two = '{"tool_name": "directly_answer", "parameters": {}}', '{"tool_name": "f", "parameters": {"a": 1}}'
    for complete in (False, True):
        got = same_for_every_split(form, f"Action: ```json\n[{one}, {two}]\n```", 6, complete=complete)
        assert got == {"reasoning": "", "content": "", "calls": [("f", '{"a": 1}', True)]}
        assert same_for_every_split(form, f"Action: ```json\n[{one}]\n```", 6, complete=complete)["calls"] == []


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("family", WRITTEN)
def test_noise(family: str, tokens: bool) -> None:
    whole = output(family, '{"a": "\\"}"}')
    rng = random.Random(family)
    cuts = sorted(rng.sample(range(1, len(whole)), 8))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    markers = [
        "<tool_call>",
        "</think>",
        "<think>",
        "]",
        "}",
        '{"name": "f", "arguments": {',
        " ",
        "\n",
        "x",
        '"',
        "\\",
        ";",
    ]
    survives_noise(compiled(FORMATS[family], tokens=tokens), [*parts, *parts, *markers], rounds=12)
