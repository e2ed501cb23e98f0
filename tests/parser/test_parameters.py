"""Parameters in tags: values of any text under any split, typing, and the look ahead that tells closers from data."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.harness import TOOLS, compiled, read, vocabulary
from tests.parser.streams import same_for_every_split, survives_noise

from derender.formats.registry import FORMATS
from derender.formats.table import OutputFormat, Parameters
from derender.parser.coerce import ToolSchemas
from derender.parser.compiled import CompiledFormat, _all_literals
from derender.parser.engine import FormatParser, ParserOptions

Pairs = list[tuple[str, str]]
Writer = Callable[[str, Pairs], str]


def coder(before: str, after: str, edge: str = "\n") -> Writer:
    def write(name: str, pairs: Pairs) -> str:
        body = "".join(f"<parameter={key}>{edge}{value}{edge}</parameter>\n" for key, value in pairs)
        return f"{before}\n<function={name}>\n{body}</function>\n{after}"

    return write


def arg_pairs(before: str, after: str, *, behind_name: str = "", between: str = "") -> Writer:
    def write(name: str, pairs: Pairs) -> str:
        parts = [f"<arg_key>{key}</arg_key>{between}<arg_value>{value}</arg_value>{between}" for key, value in pairs]
        return f"{before}{name}{behind_name}{''.join(parts)}{after}"

    return write


def dsml(section: str, blank: str = "") -> Writer:
    piece = f"｜DSML｜{blank}"

    def write(name: str, pairs: Pairs) -> str:
        parts = [f'<{piece}parameter name="{key}" string="true">{value}</{piece}parameter>\n' for key, value in pairs]
        call = f'<{piece}invoke name="{name}">\n{"".join(parts)}</{piece}invoke>\n'
        return f"<{piece}{section}>\n{call}</{piece}{section}>"

    return write


def invoke(before: str, after: str, prefix: str = "", between: str = "\n") -> Writer:
    def write(name: str, pairs: Pairs) -> str:
        parts = [f'<{prefix}parameter name="{k}">{v}</{prefix}parameter>{between}' for k, v in pairs]
        return f'{before}{between}<{prefix}invoke name="{name}">{between}{"".join(parts)}</{prefix}invoke>{after}'

    return write


def minicpm5(name: str, pairs: Pairs) -> str:
    """As its template writes it: raw where there is a need."""
    parts = [f'<param name="{key}"><![CDATA[{value}]]></param>' for key, value in pairs]
    return f'<function name="{name}">{"".join(parts)}</function>'


WRITERS: dict[str, Writer] = {
    "qwen3_coder": coder("<tool_call>", "</tool_call>"),
    "nemotron_v3": coder("<tool_call>", "</tool_call>\n"),
    "step3p5": coder("<tool_call>", "</tool_call>"),
    "mimo": coder("<tool_call>", "</tool_call>", edge=""),
    "seed_oss": coder("<seed:tool_call>", "</seed:tool_call>"),
    "glm47": arg_pairs("<tool_call>", "</tool_call>"),
    "glm45": arg_pairs("\n<tool_call>", "</tool_call>", behind_name="\n", between="\n"),
    "ling3": arg_pairs("<tool_call>", "\n</tool_call>", between="\n"),
    "poolside_v1": arg_pairs("<tool_call>", "</tool_call>"),
    "spark25": arg_pairs("<tool_call>", "</tool_call>"),
    "iquest_q1": arg_pairs("<iquest_tool_call>", "</iquest_tool_call>"),
    "hy_v3": arg_pairs(
        "<tool_calls>\n<tool_call>", "</tool_call>\n</tool_calls>", behind_name="<tool_sep>\n", between="\n"
    ),
    "hy_v4": arg_pairs("<tool_calls><tool_call>", "</tool_call></tool_calls>"),
    "deepseek_v32": dsml("function_calls"),
    "deepseek_v4": dsml("tool_calls"),
    "deepseek_v41": dsml("calls", " "),
    "minimax_m2": invoke("<minimax:tool_call>", "\n</minimax:tool_call>"),
    "dots": invoke("<dots_function_call>", "\n</dots_function_call>"),
    "step3": invoke(
        "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>",
        "<｜tool_call_end｜>\n<｜tool_calls_end｜>",
        prefix="steptml:",
        between="",
    ),
    "minicpm5": minicpm5,
}
FAMILIES = sorted(WRITERS)


def body(table: OutputFormat) -> Parameters:
    found = table.calls[0].body
    assert isinstance(found, Parameters)
    return found


def ask(table: OutputFormat) -> dict[str, Any]:
    """The prompt has closed the reasoning."""
    assert table.reasoning is not None
    return {"prompt_tail": table.reasoning.tags.close[0]}


def call(family: str, name: str, pairs: Pairs) -> str:
    return WRITERS[family](name, pairs)


# ------------------------------------------------------------------------------------------------------- any text

TRICKY = [
    "<", "</", "</p", "</parameter", "<parameter", "<function=f>", "<b>x</b>", "\n", "\n\n", " ", '"', "\\", "\\n",
    "é", "😀", "&lt;", "&amp", "]]", "<![CDATA", "｜DSML｜", "</｜DSML｜", "<arg", "</arg_value", "null", "{", "}",
    "[1]", "<invoke>", 'name="x"', "=", ">", "<think>", "</think>", "\u2028", "\x00",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(TRICKY) | st.text(max_size=6), max_size=8).map("".join)


def inside(form: CompiledFormat, value: str) -> bool:
    """Whether a value is one that a call can carry at all: without closers, openers, and the vocabulary's tokens."""
    table, parts = form.table, body(form.table)
    calls = table.calls[0]
    closers = [parts.close, parts.open, "<![CDATA[", "]]>"]
    closers += [token.content for token in form.marks.tokenizer.added_tokens if token.special]
    closers += table.end_of_turn
    for pair in (calls.call, calls.section):
        closers += [*pair.open, *pair.close] if pair is not None else []
    squeezed = "".join(value.split())
    return not value.endswith("]") and not any("".join(one.split()) in squeezed for one in closers)


@settings(max_examples=60, deadline=None)
@given(value=TEXTS, sizes=st.lists(st.integers(0, 9), max_size=200), tokens=st.booleans())
@pytest.mark.parametrize("family", FAMILIES)
def test_any_text_comes_back(family: str, value: str, sizes: list[int], tokens: bool) -> None:
    table = FORMATS[family]
    form = compiled(table, tokens=tokens)
    if not inside(form, value):
        return
    expected = value.strip() if body(table).trim and not body(table).xml else value
    text = call(family, "write_file", [("path", "a"), ("content", value)])
    got = read(form, text, sizes=sizes, **ask(table))
    assert [(name, complete) for name, _, complete in got["calls"]] == [("write_file", True)]
    assert json.loads(got["calls"][0][1]) == {"path": "a", "content": expected}
    assert got["content"] == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_string_streams_as_it_comes(family: str) -> None:
    """What is given out lags behind only by what may be a closer or framing, and nothing piles up in the state."""
    form = compiled(FORMATS[family], tokens=False)
    parser = FormatParser(form, ParserOptions(), ToolSchemas(TOOLS))
    pieces = form.marks.tokenizer.pieces
    came = given = 0
    for token in form.marks.tokenizer.encode(call(family, "get_weather", [("city", "0123456789" * 30)])):
        came += sum(chr(byte).isdigit() for byte in pieces[token])
        given += sum(c.isdigit() for event in parser.push([token]) for c in getattr(event, "text", ""))
        assert came - given <= 2
        assert len(json.dumps(parser.snapshot())) < 1000
    assert given == 300


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cut_call_keeps_what_came(family: str) -> None:
    table = FORMATS[family]
    whole = call(family, "get_weather", [("city", "Oslo and Bergen")])
    text = whole[: whole.index(" and Bergen")]
    got = same_for_every_split(compiled(table, tokens=False), text, 3, **ask(table))
    assert got["calls"] == [("get_weather", '{"city": "Oslo', False)]
    assert got["content"] == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_cut_anywhere(family: str) -> None:
    """Each prefix of a call is content or a call whose arguments are a prefix of the whole's."""
    table = FORMATS[family]
    form = compiled(table, tokens=False)
    whole = call(family, "get_weather", [("city", "Oslo"), ("unit", "c")])
    full = '{"city": "Oslo", "unit": "c"}'
    for n in range(len(whole)):
        got = read(form, whole[:n], **ask(table))
        if got["calls"]:
            [(name, arguments, complete)] = got["calls"]
            assert (name, got["content"]) == ("get_weather", "")
            assert full == arguments if complete else full.startswith(arguments)
        else:
            assert got["content"].strip() == whole[:n].strip()


# --------------------------------------------------------------------------------------------------------- typing

TYPED = [
    ("on", "true", True),
    ("on", "False", False),
    ("zip", "02139", "02139"),
    ("limit", "null", None),
    ("limit", "7", 7),
    ("tags", '["a", "b"]', ["a", "b"]),
    ("tags", "['a', None]", ["a", None]),
    ("opts", '{"n": 1.5}', {"n": 1.5}),
    ("opts", "none of these", "none of these"),
    ("unknown", "3", "3"),
]


@pytest.mark.parametrize(("key", "text", "value"), TYPED)
@pytest.mark.parametrize("family", [f for f in FAMILIES if not f.startswith("deepseek")])
def test_typed_by_the_schema(family: str, key: str, text: str, value: Any) -> None:
    output = call(family, "set_flags", [(key, text), ("zip", "1")])
    got = same_for_every_split(compiled(FORMATS[family], tokens=True), output, 1, **ask(FORMATS[family]))
    wanted = {key: value, "zip": "1"}
    assert [(n, json.loads(a), c) for n, a, c in got["calls"]] == [("set_flags", wanted, True)]


@pytest.mark.parametrize(
    ("attribute", "text", "expected"),
    [
        (' string="true"', "null", '"null"'),
        (' string="true"', "3 > 2", '"3 > 2"'),
        (' string="false"', "3.50", "3.50"),
        (' string="false"', ' {"a": [1]} ', '{"a": [1]}'),
        (' string="false"', "not JSON", '"not JSON"'),
        (' string="false"', "NaN", '"NaN"'),
        ("", "true", "true"),
        ("", "Oslo", '"Oslo"'),
    ],
)
def test_typed_by_an_attribute(attribute: str, text: str, expected: str) -> None:
    """The schema (city: string) has no say."""
    output = (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
        f'<｜DSML｜parameter name="city"{attribute}>{text}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    )
    got = same_for_every_split(compiled(FORMATS["deepseek_v4"], tokens=True), output, 2, prompt_tail="</think>")
    assert got["calls"] == [("get_weather", f'{{"city": {expected}}}', True)]


def test_typed_by_an_element() -> None:
    output = (
        "<ifm|tool_calls><ifm|tool_call>f<ifm|arg_key>n</ifm|arg_key><ifm|arg_type>integer</ifm|arg_type>"
        "<ifm|arg_value>03</ifm|arg_value><ifm|arg_key>s</ifm|arg_key><ifm|arg_value>03</ifm|arg_value>"
        '</ifm|tool_call><ifm|tool_call>{"name": "g", "arguments": {"a": 1}}</ifm|tool_call></ifm|tool_calls>'
    )
    got = same_for_every_split(compiled(FORMATS["k2_horizon"], tokens=True), output, 4)
    assert got["calls"] == [("f", '{"n": 3, "s": "03"}', True), ("g", '{"a": 1}', True)]


def test_only_the_piece_is_a_token() -> None:
    """In DeepSeek's vocabulary ｜DSML｜ is a token, and the rest of a tag is text."""
    tokenizer = vocabulary(("｜DSML｜", "<think>", "</think>", "<｜Assistant｜>"), ("<｜end▁of▁sentence｜>",))
    for family in ("deepseek_v32", "deepseek_v4", "deepseek_v41"):
        form = CompiledFormat(FORMATS[family], tokenizer)
        text = "On it.\n\n" + call(family, "write_file", [("path", "a"), ("content", "</｜DSML｜ x")])
        got = same_for_every_split(form, text + "<｜end▁of▁sentence｜>", 5, prompt_tail="<｜Assistant｜></think>")
        assert got["calls"] == [("write_file", '{"path": "a", "content": "</｜DSML｜ x"}', True)]
        assert got["content"] == "On it.\n\n"


# -------------------------------------------------------------------------------------------- closers and data


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "minicpm5"])
@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
def test_a_whole_call_as_a_value(family: str, tokens: bool) -> None:
    """A file about calls, with parameters that the outer tool has not."""
    table = FORMATS[family]
    inner = call(family, "f", [("p", "1"), ("q", "2")]).strip()
    output = call(family, "write_file", [("path", "a"), ("content", inner)]) + "Written."
    got = same_for_every_split(compiled(table, tokens=tokens), output, 6, **ask(table))
    assert [(n, json.loads(a), c) for n, a, c in got["calls"]] == [
        ("write_file", {"path": "a", "content": inner}, True)
    ]
    assert got["content"].strip() == "Written."


NEWLINES = "<tool_call>\n<function={}>\n{}</function>\n</tool_call>"
RECOVERED: list[tuple[str, str, list[tuple[str, str, bool]]]] = [
    # what the model wrote in <tool_call>, name → calls
    (
        "the next parameter ends a value without closer",
        NEWLINES.format("add", "<parameter=a>\n3\n<parameter=b>\n0.5\n"),
        [("add", '{"a": 3, "b": 0.5}', True)],
    ),
    (
        "so does the call's closer",
        NEWLINES.format("get_weather", "<parameter=city>\nOslo\n"),
        [("get_weather", '{"city": "Oslo"}', True)],
    ),
    (
        "and that of the section at the end",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</tool_call>",
        [("get_weather", '{"city": "Oslo"}', True)],
    ),
    (
        "and that of the section before another one",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</tool_call>\n" + NEWLINES.format("get_time", ""),
        [("get_weather", '{"city": "Oslo"}', True), ("get_time", "{}", True)],
    ),
    (
        "a section's closer in a value is data",
        NEWLINES.format("write_file", "<parameter=path>\ngit log </tool_call> --oneline\n</parameter>\n"),
        [("write_file", '{"path": "git log </tool_call> --oneline"}', True)],
    ),
    (
        "a value's closer in a value is data",
        NEWLINES.format("write_file", "<parameter=path>\na</parameter> b\n</parameter>\n"),
        [("write_file", '{"path": "a</parameter> b"}', True)],
    ),
    (
        "an opener of nothing that the tool has is data",
        NEWLINES.format("write_file", "<parameter=path>\nuse <parameter=x> here\n</parameter>\n"),
        [("write_file", '{"path": "use <parameter=x> here"}', True)],
    ),
    (
        "a parameter that the tool has not is one behind a closer",
        NEWLINES.format("get_time", "<parameter=zone>\nUTC\n</parameter>\n<parameter=extra>\n1\n</parameter>\n"),
        [("get_time", '{"zone": "UTC", "extra": "1"}', True)],
    ),
    (
        "of a tool that is unknown, any opener ends a value",
        NEWLINES.format("other", "<parameter=a>\n1\n<parameter=b>\n2\n"),
        [("other", '{"a": "1", "b": "2"}', True)],
    ),
    (
        "a closer twice",
        NEWLINES.format("get_weather", "<parameter=city>\nOslo\n</parameter>\n</parameter>\n"),
        [("get_weather", '{"city": "Oslo"}', True)],
    ),
    (
        "two functions in one wrapper",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"
        "<function=get_time>\n</function>\n</tool_call>",
        [("get_weather", '{"city": "Oslo"}', True), ("get_time", "{}", True)],
    ),
    (
        "the wrapper never opened",
        "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
        [("get_weather", '{"city": "Oslo"}', True)],
    ),
    (
        "nor closed",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>",
        [("get_weather", '{"city": "Oslo"}', True)],
    ),
    (
        "blanks in tags",
        NEWLINES.format("get_weather", "< parameter = city >\nOslo\n</parameter>\n"),
        [("get_weather", '{"city": "Oslo"}', True)],
    ),
    (
        "text between parameters is passed over",
        NEWLINES.format("get_weather", "Now <b> the city: <parameter=city>\nOslo\n</parameter>\n"),
        [("get_weather", '{"city": "Oslo"}', True)],
    ),
    (
        "one newline at each end is framing, more are data",
        NEWLINES.format("write_file", "<parameter=content>\n\n\nx\n\n\n</parameter>\n"),
        [("write_file", '{"content": "\\n\\nx\\n\\n"}', True)],
    ),
    (
        "an empty value",
        NEWLINES.format("write_file", "<parameter=content>\n</parameter>\n<parameter=path></parameter>\n"),
        [("write_file", '{"content": "", "path": ""}', True)],
    ),
    (
        "the closer of the value came, that of the call did not",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</fun",
        [("get_weather", '{"city": "Oslo"', False)],
    ),
]


@pytest.mark.parametrize(("output", "calls"), [row[1:] for row in RECOVERED], ids=[row[0] for row in RECOVERED])
def test_what_ends_a_value(output: str, calls: list[tuple[str, str, bool]]) -> None:
    form = compiled(FORMATS["qwen3_coder"], tokens=False)
    got = same_for_every_split(form, output, 7, prompt_tail="</think>")
    assert got["calls"] == calls
    assert got["content"] == ""


def test_a_section_that_closes_ends_the_call_in_it() -> None:
    output = (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n</｜DSML｜function_calls>'
    )
    got = same_for_every_split(compiled(FORMATS["deepseek_v32"], tokens=True), output, 8)
    assert got["calls"] == [("get_weather", '{"city": "Oslo"}', True)]


def test_pairs_know_no_missing_closer() -> None:
    """In these formats the next key cannot be told from data."""
    output = call("glm47", "get_weather", [("city", "Oslo<arg_key>unit</arg_key><arg_value>c")])
    got = same_for_every_split(compiled(FORMATS["glm47"], tokens=True), output, 9, prompt_tail="</think>")
    assert json.loads(got["calls"][0][1]) == {"city": "Oslo<arg_key>unit</arg_key><arg_value>c"}


# ---------------------------------------------------------------------------------- raw parts, wrappers, spellings


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("  a &amp; b &lt;i&gt; &#233;&#x1F600; &nope; & ", "a & b <i> é😀 &nope; &"),
        ("<![CDATA[  <p>a & b &lt;</p>\n]]>", "  <p>a & b &lt;</p>\n"),
        (" \n<![CDATA[x ]] ]> </param> y]]>\n ", "x ]] ]> </param> y"),
        ("<![CDATA[a]]><![CDATA[b]]>", "ab"),
        ("&amp;lt;", "&lt;"),
        ("<![CDATA[]]>", ""),
    ],
)
def test_raw_parts_and_entities(value: str, expected: str) -> None:
    output = f'<function name="write_file"><param name="content">{value}</param></function>'
    for tokens in (True, False):
        got = same_for_every_split(compiled(FORMATS["minicpm5"], tokens=tokens), output, 10)
        assert [(n, json.loads(a), c) for n, a, c in got["calls"]] == [("write_file", {"content": expected}, True)]


def test_a_typed_value_in_a_raw_part() -> None:
    output = '<function name="add"><param name="a"> <![CDATA[3]]> </param></function>'
    got = same_for_every_split(compiled(FORMATS["minicpm5"], tokens=False), output, 10)
    assert got["calls"] == [("add", '{"a": 3}', True)]


WRAPPED = [
    # all arguments under one key: unwrapped only if the keys in it are the tool's
    ("arguments", '{"a": 1, "b": 2.50}', "", '{"a": 1, "b": 2.50}'),
    ("input", "{}", "", "{}"),
    ("input", '{"z": 1}', "", '{"input": {"z": 1}}'),
    ("input", "a", "", '{"input": "a"}'),
    ("arguments", '{"a": 1}', '<｜DSML｜parameter name="b" string="false">2</｜DSML｜parameter>', None),
    ("a", '{"a": 1}', "", '{"a": {"a": 1}}'),
]


@pytest.mark.parametrize(("key", "value", "more", "expected"), WRAPPED)
def test_arguments_in_one_parameter(key: str, value: str, more: str, expected: str | None) -> None:
    output = (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="add">\n'
        f'<｜DSML｜parameter name="{key}" string="false">{value}</｜DSML｜parameter>\n{more}</｜DSML｜invoke>\n'
        "</｜DSML｜tool_calls>"
    )
    got = same_for_every_split(compiled(FORMATS["deepseek_v4"], tokens=True), output, 12, prompt_tail="</think>")
    assert got["calls"] == [("add", expected or '{"arguments": {"a": 1}, "b": 2}', True)]


@pytest.mark.parametrize(
    ("family", "output"),
    [
        ("minimax_m2", "<minimax:tool_call><invoke name=get_weather><parameter name='city'>Oslo</parameter></invoke>"),
        ("minimax_m2", "<invoke name='get_weather'><parameter name=city>Oslo</parameter></invoke>"),
        ("deepseek_v4", call("deepseek_v4", "get_weather", [("city", "Oslo")]).replace("tool_calls", "toolcalls")),
        ("deepseek_v4", call("deepseek_v4", "get_weather", [("city", "Oslo")]).replace("tool_calls", "tool")),
        ("minicpm5", '<functionname="get_weather"><paramname="city">Oslo</param></function>'),
        ("hy_v3", call("hy_v3", "get_weather", [("city", "Oslo")]).replace(">", ":opensource>")),
        ("dots", '<dots_function_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</dots_function_call>'),
        ("glm47", call("glm45", "get_weather", [("city", "Oslo")])),
        ("glm45", call("glm47", "get_weather", [("city", "Oslo")])),
    ],
)
def test_other_spellings(family: str, output: str) -> None:
    got = same_for_every_split(compiled(FORMATS[family], tokens=True), output, 13, **ask(FORMATS[family]))
    assert got["calls"] == [("get_weather", '{"city": "Oslo"}', True)]
    assert got["content"] == ""


def test_two_ways_in_one_section() -> None:
    output = (
        '<dots_function_call>\n{"name": "get_time", "arguments": {}}\n<invoke name="add">\n'
        '<parameter name="a">1</parameter>\n</invoke>\n</dots_function_call>'
    )
    got = same_for_every_split(compiled(FORMATS["dots"], tokens=True), output, 14)
    assert [(n, a) for n, a, _ in got["calls"]] == [("get_time", "{}"), ("add", '{"a": 1}')]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_name_that_is_none(family: str) -> None:
    """A wrapper without a usable name is content, and a good call behind it is read."""
    table = FORMATS[family]
    good = call(family, "get_time", [])
    got = same_for_every_split(compiled(table, tokens=False), call(family, "", []) + good, 15, **ask(table))
    assert [name for name, _, _ in got["calls"]] == ["get_time"]


# ------------------------------------------------------------------------------------------------ thinking is off


def test_markers_of_reasoning_are_text_where_the_prompt_has_closed_it() -> None:
    form = compiled(FORMATS["glm47"], tokens=True)
    text = "<think>literal</think> then" + call("glm47", "get_time", [])
    off = same_for_every_split(form, text, 16, prompt_tail="<|assistant|></think>")
    assert (off["reasoning"], off["content"]) == ("", "<think>literal</think> then")
    on = same_for_every_split(form, text, 16, prompt_tail="<|assistant|>")
    assert (on["reasoning"], on["content"]) == ("literal", " then")
    stray = same_for_every_split(form, "a</think>b", 16, prompt_tail="<|assistant|></think>")
    assert stray["content"] == "ab"


# -------------------------------------------------------------------------------------------------------- any noise


@pytest.mark.parametrize("family", [*FAMILIES, "k2_horizon"])
def test_noise(family: str) -> None:
    table = FORMATS[family]
    pieces = [
        *_all_literals(table),
        "\n",
        " ",
        "x",
        '"',
        ">",
        "city",
        "get_weather",
        'add">',
        "3",
        "<",
        "{}",
        " " * 300,
    ]
    survives_noise(compiled(table, tokens=False), pieces, rounds=12, **ask(table))
    survives_noise(compiled(table, tokens=True), pieces, rounds=12)


@pytest.mark.parametrize(
    "unit",
    [
        "</parameter>x", "</parameter>\n</function>\n", "<parameter=", "<parameter=p>", "<", " \n", "word ",
        "</parameter>" + " " * 300, "</function></tool_call>\n</parameter>",
    ],
)  # fmt: skip
def test_work_and_state_do_not_grow_with_a_value(unit: str) -> None:
    """However many closers prove to be data: what waits is bounded, and so is the look ahead at each token."""
    form = compiled(FORMATS["qwen3_coder"], tokens=False)
    parser = FormatParser(form, ParserOptions(), ToolSchemas(TOOLS))
    head = "<tool_call>\n<function=write_file>\n<parameter=content>\n"
    for token in form.marks.tokenizer.encode(head + unit * (6000 // len(unit))):
        parser.push([token])
        assert len(parser._text) < 1200
    assert len(json.dumps(parser.snapshot())) < 2500
