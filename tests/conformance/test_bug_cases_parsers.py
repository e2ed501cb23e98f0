"""Public faults of tool-call parsers (C), each with the value that is right.

Every text is read whole and as streams: a token per chunk, each way to cut it in two, and the chunks of the report; and
with the format's markers as tokens of their own as well as spelled in ordinary ones.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.conformance.helpers import CHAT_DERENDER, chat, refused
from tests.conformance.parsed import Got, Served, context_of, function, of_batch, of_stream, reread, served, streamed
from tests.derendering.helpers import answer

Json = Any

_DEEPSEEK = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)
MARKERS: dict[str, tuple[str, ...]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v31": _DEEPSEEK,
    "deepseek_v32": ("｜DSML｜",),
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        "<|tool_call_argument_begin|>",
    ),
    "llama3_json": ("<|python_tag|>",),
    "pythonic": (),
    "lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>'),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "openai": ("<|channel|>", "<|message|>", "<|constrain|>", "<|return|>", "<|call|>"),
}
ASKED = {"type": "function", "function": {"name": "f"}}
F = [function("f", a="integer")]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def models(tool: str, reasoning: str | None = None, **settings: Any) -> list[Served]:
    """Without the format's markers as tokens, and with them."""
    return [served(tool, reasoning, markers=markers, **settings) for markers in ((), MARKERS[tool])]


def call_of(tool: str, text: str | list[str], *tools: Json, **how: Any) -> Got:
    """What is read of an answer that is calls alone and ends by itself."""
    got = reread(models(tool), text, tools=tools, **how)
    assert (got.reasoning, got.content, got.finish) == (None, None, "tool_calls")
    return got


LAST = ["7", "-0.5e3", "true", "null", '"s"', "[1, [2]]", '{"b": {"c": 1}}', "{}", "[]", '"}}"', r'"\"}"']


@pytest.mark.parametrize("value", LAST)
def test_c01_the_last_brace_is_never_lost(value: str) -> None:
    """Closing text guessed from the delta (vllm#32152): braces and the end tag arrive together."""
    pieces = ['<tool_call>\n{"name": "get_item", "arguments": {"id": ' + value, "}}\n</tool_call>"]
    got = call_of("hermes", pieces, function("get_item", id={}))
    [(_, name, arguments)] = got.calls
    assert (name, arguments) == ("get_item", f'{{"id": {value}}}')
    assert json.loads(arguments) == {"id": json.loads(value)}


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("hermes", ['<tool_call>\n{"name": "list_rooms", ', '"arguments": {', "}}\n</tool_call>"]),
        ("llama3_json", ['{"name": "list_rooms", "parameters": {}}']),
        ("deepseek_v31", [f"{_DEEPSEEK[0]}{_DEEPSEEK[2]}list_rooms{_DEEPSEEK[4]}{{}}{_DEEPSEEK[3]}{_DEEPSEEK[1]}"]),
        ("pythonic", ["[list_rooms()]"]),
        ("lfm2", ["<|tool_call_start|>[list_rooms()]<|tool_call_end|>"]),
        ("gemma4", ["<|tool_call>call:list_rooms{}<tool_call|>"]),
        ("mistral", ["[TOOL_CALLS]list_rooms[ARGS]{}"]),
        (
            "deepseek_v32",
            [
                '<｜DSML｜function_calls><｜DSML｜invoke name="list_rooms">',
                "</｜DSML｜invoke></｜DSML｜function_calls>",
            ],
        ),
    ],
)
def test_c02_no_arguments_are_an_empty_object(tool: str, text: list[str]) -> None:
    """Empty object treated as missing (vllm#28806), in every family."""
    got = call_of(tool, text, function("list_rooms"))
    assert [call[1:] for call in got.calls] == [("list_rooms", "{}")]


def test_c04_a_call_may_come_whole_in_one_chunk() -> None:
    """One token per delta assumed (vllm#48020)."""
    begin, end, call, close, sep = _DEEPSEEK
    text = f'{begin}{call}get_time{sep}{{"tz": "UTC"}}{close}{end}'
    got = call_of("deepseek_v31", text, function("get_time", tz="string"))
    assert [c[1:] for c in got.calls] == [("get_time", '{"tz": "UTC"}')]


@pytest.mark.parametrize("arguments", ['{"code": 705}', '{"o": {"p": "q"}}'])
def test_c05_arguments_are_not_cut(arguments: str) -> None:
    """The same of DeepSeek V3 (vllm#48342): the tail of the arguments and the end marker in one delta."""
    begin, end, call, close, sep = _DEEPSEEK
    half = arguments.index("5") if "5" in arguments else 6
    pieces = [f"{begin}{call}function{sep}get_code\n```json\n", arguments[:half]]
    pieces.append(f"{arguments[half:]}\n```{close}{end}")
    got = call_of("deepseek_v3", pieces, function("get_code", code="integer", o="object"))
    assert [c[1:] for c in got.calls] == [("get_code", arguments)]


def test_c07_what_is_sent_is_a_prefix_of_what_is_right() -> None:
    """Emitted prefix is no prefix of the final value (sgl-project/sglang#39632): what is no array is a string."""
    head = '<｜DSML｜function_calls><｜DSML｜invoke name="save"><｜DSML｜parameter name="rows" string="false">'
    tail = "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>"
    save = function("save", rows="array")
    got = call_of("deepseek_v32", [head + '[{"a": 1},', '{"b": oops}]', tail], save)
    assert got.arguments == [("save", {"rows": '[{"a": 1},{"b": oops}]'})]
    got = call_of("deepseek_v32", [head + '[{"a": 1},', '{"b": 2}]', tail], save)
    assert got.arguments == [("save", {"rows": [{"a": 1}, {"b": 2}]})]


def test_c08_a_dotted_name_is_kept() -> None:
    """Name taken from the id at the wrong separator (vllm#44135); arguments without their blanks in both modes."""
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.org.team.do_it:0<|tool_call_argument_begin|>"
        ' {"x": 1} <|tool_call_end|><|tool_calls_section_end|>'
    )
    got = call_of("kimi_k2", text, function("org.team.do_it", x="integer"))
    assert got.calls == [("functions.org.team.do_it:0", "org.team.do_it", '{"x": 1}')]


def test_c10_arguments_nest_to_any_depth() -> None:
    """Nested JSON matched by a regex (vllm#27701), and a depth that must not raise."""
    book = function("book", trip="object")
    trip = '{"trip": {"from": {"city": "Oslo", "code": {"iata": "OSL"}}}}'
    got = call_of("llama3_json", f'{{"name": "book", "parameters": {trip}}}', book)
    assert [call[1:] for call in got.calls] == [("book", trip)]
    deep = '{"trip": ' + '{"a":' * 2000 + "1" + "}" * 2001
    model = served("llama3_json", max_model_len=1 << 14)
    ids = model.tokenizer.encode(f'{{"name": "book", "parameters": {deep}}}')
    context = context_of(model, [book], None, {})
    whole = of_batch(chat(model.app, answer(ids), **context))
    for got in (whole, of_stream(streamed(model, [ids[:6000], ids[6000:]], context))):
        told = "".join(call[2] for call in got.calls) or got.content or ""
        assert deep in told  # a call or content, and nothing of it is lost


def test_c11_text_around_a_call_is_content() -> None:
    """Text around a call (vllm#19024): it is content, in both modes, and the call is not missed."""
    prose = "\n\nShall I look at one of them?"
    text = '{"type": "function", "name": "open_incidents", "parameters": {}}' + prose
    got = reread(models("llama3_json"), text, tools=[function("open_incidents")])
    assert [call[1:] for call in got.calls] == [("open_incidents", "{}")]
    assert (got.content, got.finish) == (prose, "tool_calls")
    assert got.parts == [("call", "open_incidents"), ("content", prose)]
    got = reread(models("hermes"), f"Before. {CALL} between {CALL}\nAfter.", tools=F)
    told = [text for kind, text in got.parts if kind == "content"]
    assert told == ["Before. ", " between ", "\nAfter."]
    assert [kind for kind, _ in got.parts] == ["content", "call", "content", "call", "content"]
    assert got.content == "Before.  between \nAfter."


@pytest.mark.parametrize("value", ["-12", "-1.5", "+3", "1e3"])
def test_c13_a_negative_number_is_a_number(value: str) -> None:
    """Literal grammar too narrow, and one bad call drops all (vllm#19569)."""
    tools = [function("set_temperature", value="number"), function("ping")]
    got = call_of("pythonic", f"[ping(), set_temperature(value={value})]", *tools)
    assert got.arguments == [("ping", {}), ("set_temperature", {"value": float(value)})]


@pytest.mark.parametrize(
    ("body", "name", "right"),
    [
        ("[sh(command='grep \"]\" a.txt')]", "sh", {"command": 'grep "]" a.txt'}),
        (" [sh(command='cat > n <<X\nyo\nX')]", "sh", {"command": "cat > n <<X\nyo\nX"}),
        ("[note_get(from=1)]", "note_get", {"from": 1}),
        ("[resize(size=(64, 48))]", "resize", {"size": [64, 48]}),
        ("[sh(command='a\\\\')]", "sh", {"command": "a\\"}),
        ("[sh(command='a, b=(c)')]", "sh", {"command": "a, b=(c)"}),
        ("[resize(size=[True, None, 'x'])]", "resize", {"size": [True, None, "x"]}),
    ],
)
def test_c14_python_literals_are_scanned(body: str, name: str, right: Json) -> None:
    """Depth counting ignores strings (vllm#48171), and the other literals of its table."""
    tools = [function("sh", command="string"), function("note_get", **{"from": "integer"})]
    tools.append(function("resize", size="array"))
    got = call_of("lfm2", f"<|tool_call_start|>{body}<|tool_call_end|>", *tools)
    assert got.arguments == [(name, right)]


def test_c16_an_end_marker_leaves_every_state() -> None:
    """No exit from a parser state on malformed output (vllm#53642): round parentheses for braces."""
    text = (
        '<|tool_call>call:terminal(command:<|"|>df -h<|"|>)<tool_call|>'
        '<|tool_call>call:terminal{command:<|"|>pwd<|"|>}<tool_call|>'
    )
    got = call_of("gemma4", text, function("terminal", command="string"))
    assert got.arguments == [("terminal", {"command": "df -h"}), ("terminal", {"command": "pwd"})]


ONCE = '<tool_call>\n{"name": "write", "arguments": {"text": "Once upon'


def test_c17_a_call_that_was_cut_keeps_its_finish_reason() -> None:
    """finish_reason overwritten (vllm#53269)."""
    write = [function("write", text="string"), *F]
    got = reread(models("hermes"), ONCE, tools=write, finish="length")
    assert [call[1:] for call in got.calls] == [("write", '{"text": "Once upon')]
    assert (got.content, got.finish) == (None, "length")
    got = reread(models("hermes"), CALL + ONCE, tools=write, finish="length")
    assert [call[1:] for call in got.calls] == [("f", '{"a": 1}'), ("write", '{"text": "Once upon')]
    assert got.finish == "length"
    for finish in ("length", "abort"):  # a complete call changes `stop` only
        assert reread(models("hermes"), CALL, tools=write, finish=finish).finish == finish
    # Cut before the name is known it is content; so is every unfinished call where only whole ones are given.
    got = reread(models("hermes"), 'hi <tool_call>\n{"na', tools=write, finish="length")
    assert (got.content, got.calls, got.finish) == ('hi <tool_call>\n{"na', [], "length")
    got = reread(models("hermes", tool_call_streaming="complete"), CALL + ONCE, tools=write, finish="length")
    assert ([call[1] for call in got.calls], got.content, got.finish) == (["f"], ONCE, "length")


def test_c17_a_call_that_was_not_closed_is_no_reason_to_run_it() -> None:
    """Its other half: the engine says stop inside a call."""
    got = reread(models("hermes"), ONCE, tools=[function("write", text="string")], finish="stop")
    assert (len(got.calls), got.finish) == (1, "stop")


@pytest.mark.parametrize(
    ("choice", "right"), [("auto", "tool_calls"), ("required", "tool_calls"), (ASKED, "stop")], ids=str
)
def test_c19_the_finish_reasons_of_tool_choice(choice: Json, right: str) -> None:
    """finish_reason table (vllm#25054); a guided engine's JSON is a call as well."""
    guided = {"auto": None, "required": '[{"name": "f", "parameters": {"a": 1}}]'}.get(str(choice), '{"a": 1}')
    for text in (CALL, guided):
        if text is not None:
            got = reread(models("hermes"), text, tools=F, tool_choice=choice)
            assert [call[1:] for call in got.calls] == [("f", '{"a": 1}')]
            assert (got.content, got.finish) == (None if choice == "auto" else "", right)
            assert reread(models("hermes"), text, tools=F, tool_choice=choice, finish="length").finish == "length"


def test_c20_text_that_is_not_ascii_is_sent_once() -> None:
    """Two serialisers disagree (vllm#17703)."""
    weather = function("get_weather", city="string")
    got = call_of("llama3_json", ['{"name": "get_weather", "parameters": {"city": "K', 'öln"}', "}"], weather)
    assert [call[2] for call in got.calls] == ['{"city": "Köln"}']
    got = call_of("llama3_json", '{"name": "get_weather", "parameters": {"city": "😊 日本"}}', weather)
    assert [call[2] for call in got.calls] == ['{"city": "😊 日本"}']
    escaped = r'{"city": "K\u00f6ln \ud83d\ude0a"}'  # the model's own characters
    got = call_of("llama3_json", f'{{"name": "get_weather", "parameters": {escaped}}}', weather)
    assert [call[2] for call in got.calls] == [escaped]
    assert got.arguments == [("get_weather", {"city": "Köln 😊"})]
    got = call_of("pythonic", "[get_weather(city='Köln 😊')]", weather)  # typed by us: not escaped
    assert [call[2] for call in got.calls] == ['{"city": "Köln 😊"}']


@pytest.mark.parametrize(
    "pieces",
    [
        ['[TOOL_CALLS]add[ARGS]{"a": 3', ', "b": 4}'],
        ['[TOOL_CALLS]add{"a": 3, "b": 4}'],
        ['[TOOL_CALLS] [{"name": "add", "arguments": {"a": 3, "b": 4}}]'],
    ],
)
def test_c22_three_forms_of_one_family(pieces: list[str]) -> None:
    """Format variants of one family (raullenchai/Rapid-MLX#579)."""
    got = call_of("mistral", pieces, function("add", a="integer", b="integer"))
    [(identity, name, arguments)] = got.calls
    assert (name, arguments) == ("add", '{"a": 3, "b": 4}')
    assert re.fullmatch("[a-zA-Z0-9]{9}", identity)


JUNK = "<|channel|>commentary?<|message|>let me see<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>"


@pytest.mark.parametrize(
    "text",
    [
        '<|channel|>commentary to=functions.web-browsing <|constrain|>json<|message|>{"q": "x"}<|call|>',
        '<|start|>assistant to=functions.web-browsing<|channel|>commentary json<|message|>{"q": "x"}<|call|>',
    ],
)
def test_c23_a_malformed_header_is_read(text: str) -> None:
    """Strict parser raises on model output (openai/harmony#38, vllm#51977)."""
    both = models("openai", "openai_gptoss")
    got = reread(both, text, tools=[function("web-browsing", q="string")])
    assert [call[1:] for call in got.calls] == [("web-browsing", '{"q": "x"}')]
    assert (got.content, got.finish) == (None, "tool_calls")
    got = reread(both, JUNK)
    assert (got.content, got.calls, got.finish) == ("Hi", [], "stop")
    for junk in ("<|channel|><|channel|>final<|message|>Hi<|return|>", "<|message|><|end|><|call|>", "<|channel|>"):
        reread(both, junk)  # nothing is raised


def test_f13_a_parser_needs_the_request() -> None:
    """Endpoint contract (llm-d/llm-d-inference-sim#677): with a parser, an answer alone cannot be read."""
    for model in models("hermes"):
        for body in (
            {"generate_response": answer([104, 105])},
            {"stream": True, "generate_chunk": {"choices": [{"index": 0, "token_ids": [104]}]}},
        ):
            assert "chat_request" in refused(model.app, CHAT_DERENDER, body)["message"]
    got = reread(models("hermes"), CALL, tools=F, tool_choice=ASKED)
    assert got.finish == "stop"  # as direct serving says of a named tool (c19)
