"""A `response_template` as an output format: what it reads, and what of one is refused by its key."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.formats.harness import compiled, read

from derender.formats.choose import UnknownFormat, choose_format
from derender.formats.response_template import ResponseTemplateError, from_response_template
from derender.formats.table import JsonMembers, JsonValue, KeyValues, OutputFormat, Parameters, Typing

CASES = Path(__file__).parents[3] / "shared/data/vllm/rust/src/parser/src/unified/hf/fixtures/differential.json"

CALL = {"type": "function", "function": {"name": "{content.name}", "arguments": "{content.arguments}"}}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
HERMES: dict[str, Any] = {
    "version": 1,
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": CALL,
        },
        "content": {"close": ["<|im_end|>"]},
    },
}
GEMMA: dict[str, Any] = {
    "start_anchor": ["<|turn>model\n", "<tool_response|>"],
    "fields": {
        "thinking": {"open": "<|channel>thought\n", "close": "<channel|>"},
        "tool_calls": {
            "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
            "close": "<tool_call|>",
            "repeats": True,
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            "transform": NAMED,
        },
        "content": {"close": ["<turn|>", "<eos>"]},
    },
}
CODER: dict[str, Any] = {
    "start_anchor_pattern": r"<\|im_start\|>assistant\s*",
    "fields": {
        "thinking": {"open_pattern": r"<think>\s*", "close_pattern": r"\s*</think>"},
        "tool_calls": {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>]+)>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>\w+)>(?P<value>.*?)</parameter>\s*",
                "value_parser": {"name": "text"},
            },
            "transform": NAMED,
        },
        "content": {"close": "<|im_end|>"},
    },
}


def reads(template: dict[str, Any], text: str, *, tokens: bool = True, **more: Any) -> dict[str, Any]:
    """A template's reading, which is the same in any split."""
    table = from_response_template(template)
    form = compiled(table, tokens=tokens)
    found = read(form, text, trim=table.trim, **more)
    dice = random.Random(7)
    for sizes in ([1] * 400, [dice.randint(1, 5) for _ in range(200)]):
        assert read(form, text, sizes=sizes, trim=table.trim, **more) == found
    return found


def changed(template: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A template with one value changed, or taken out (None)."""
    found = copy.deepcopy(template)
    *steps, last = path.split(".")
    inner = found
    for step in steps:
        inner = inner[step]
    if value is None:
        inner.pop(last)
    else:
        inner[last] = value
    return found


@pytest.mark.parametrize("tokens", [True, False])
def test_members_of_a_json_object(tokens: bool) -> None:
    call = '{"name": "f", "arguments": {"x": "</tool_call>", "y": 1.0}}'
    text = f" <think>a </think>\nb <tool_call>\n{call}\n</tool_call>"
    assert reads(HERMES, text, tokens=tokens) == {
        "reasoning": "a",
        "content": "b",
        "calls": [("f", '{"x": "</tool_call>", "y": 1.0}', True)],
    }


@pytest.mark.parametrize("tokens", [True, False])
def test_bare_keys_and_fenced_strings(tokens: bool) -> None:
    text = '<|channel>thought\nhm<channel|>So:<|tool_call>call:get_time{a:<|"|>x, {y}<|"|>,b:[1,true]}<tool_call|>'
    assert reads(GEMMA, text, tokens=tokens) == {
        "reasoning": "hm",
        "content": "So:",
        "calls": [("get_time", '{"a": "x, {y}", "b": [1, true]}', True)],
    }


@pytest.mark.parametrize("tokens", [True, False])
def test_parameters_are_typed_by_the_tools(tokens: bool) -> None:
    text = (
        "<think>\nhm\n</think>\n\n<tool_call>\n<function=set_flags>\n<parameter=on>\nTrue\n</parameter>\n"
        "<parameter=zip>\n02139\n</parameter>\n</function>\n</tool_call>"
    )
    assert reads(CODER, text, tokens=tokens) == {
        "reasoning": "hm",
        "content": "",
        "calls": [("set_flags", '{"on": true, "zip": "02139"}', True)],
    }


def test_values_that_are_json_have_its_types() -> None:
    template = changed(
        CODER,
        "fields.tool_calls.content_args.value_parser",
        {"name": "json", "args": {"allow_non_json": True}},
    )
    text = '<tool_call><function=f><parameter=a>{"b": [1]}</parameter><parameter=c> d </parameter></tool_call>'
    assert reads(template, text)["calls"] == [("f", '{"a": {"b": [1]}, "c": "d"}', True)]


def test_a_list_of_calls() -> None:
    template = changed(
        HERMES,
        "fields.tool_calls",
        {
            "open": "[TOOL_CALLS]",
            "content": "json",
            "transform": {"function": {"name": "{tool}", "arguments": "{args}"}, "id": "{key}"},
            "transform_each": True,
        },
    )
    table = from_response_template(template)
    assert table.calls[0].body == JsonMembers(name="tool", arguments=("args",), id="key", array=True)
    assert table.calls[0].ids == "native"
    text = '[TOOL_CALLS][{"tool": "f", "args": {}, "key": "1"}, {"tool": "g", "args": {"x": [2]}, "key": "2"}]'
    assert reads(template, text)["calls"] == [("f", "{}", True), ("g", '{"x": [2]}', True)]


def test_the_prompt_says_where_the_output_begins() -> None:
    opened = {"prompt_tail": "<think>x</think><|im_start|>assistant\n<think>\n"}
    assert reads(HERMES, "a</think>b", **opened) == {"reasoning": "a", "content": "b", "calls": []}
    closed = {"prompt_tail": "<|im_start|>assistant\n<think>\n\n</think>\n\n"}
    assert reads(HERMES, "b", **closed)["content"] == "b"
    earlier = {"prompt_tail": "<think>x<|im_start|>assistant\n"}
    assert reads(HERMES, "b", **earlier)["content"] == "b"


def test_only_its_closer_ends_reasoning() -> None:
    assert reads(HERMES, '<think>a<tool_call>{"name": "f"}</tool_call>')["calls"] == []


def test_blanks_stay_where_the_template_strips_none() -> None:
    template = changed(HERMES, "fields.content.content_args", {"strip": False})
    template["fields"].pop("thinking")
    table = from_response_template(template)
    assert not table.trim
    assert reads(template, " a\n")["content"] == " a\n"


@pytest.mark.parametrize(
    ("template", "body"),
    [
        (HERMES, JsonMembers(arguments=("arguments",))),
        (GEMMA, KeyValues(fence='<|"|>')),
        (changed(GEMMA, "fields.tool_calls.content_args", None), JsonValue()),
        (
            CODER,
            Parameters(
                open="<parameter=",
                key=r"(?P<key>\w{1,384})«>»",
                close="</parameter>",
                trim=True,
                typing=Typing.SCHEMA,
                first=True,
            ),
        ),
    ],
)
def test_bodies(template: dict[str, Any], body: Any) -> None:
    assert from_response_template(template).calls[0].body == body


def test_a_name_is_whole_before_a_call_begins() -> None:
    """A pattern that more text could make longer waits for a character behind it."""
    assert reads(GEMMA, "<|tool_call>call:get_time{}<tool_call|>")["calls"] == [("get_time", "{}", True)]
    assert reads(GEMMA, "<|tool_call>call:get_ti")["content"] == "<|tool_call>call:get_ti"


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("template", "path", "value", "said"),
    [
        (HERMES, "version", 2, "version: 2 is not known"),
        (HERMES, "stop", ["x"], "stop: is not known"),
        (HERMES, "defaults", {"role": "assistant", "channel": "x"}, "defaults.channel: only a role"),
        (HERMES, "fields", {}, "fields: is empty"),
        (HERMES, "start_anchor", None, "start_anchor: is missing"),
        (HERMES, "start_anchor_pattern", "x", "start_anchor_pattern: stands beside start_anchor"),
        (CODER, "start_anchor_pattern", r"<\|\w+\|>", "start_anchor_pattern: matches more than a few plain texts"),
        (HERMES, "fields.citations", {"open": "<c>"}, "fields.citations: only thinking"),
        (HERMES, "fields.content.kind", "x", "fields.content.kind: is not known"),
        (HERMES, "fields.content.content", "json", "fields.content.content: 'json'"),
        (HERMES, "fields.content.close", [], "fields.content.close: must be a text"),
        (HERMES, "fields.content.close", "", "fields.content.close: must be a text"),
        (HERMES, "fields.thinking.open", None, "fields.thinking.open: is missing"),
        (HERMES, "fields.thinking.close", None, "fields.thinking.close: is missing"),
        (HERMES, "fields.thinking.join", "\n", "fields.thinking.join: "),
        (HERMES, "fields.thinking.transform", "{content}", "fields.thinking.transform: "),
        (HERMES, "fields.thinking.content_args", {"strip": False}, "fields.thinking.content_args.strip: "),
        (HERMES, "fields.tool_calls.open", None, "fields.tool_calls.open: is missing"),
        (HERMES, "fields.tool_calls.transform", None, "fields.tool_calls.transform: is missing"),
        (HERMES, "fields.tool_calls.join", "", "fields.tool_calls.join: "),
        (HERMES, "fields.tool_calls.content", "kv-lines", "fields.tool_calls.content: 'kv-lines'"),
        (HERMES, "fields.tool_calls.content_args", {"unquoted_keys": True}, "content_args.unquoted_keys: is not known"),
        (HERMES, "fields.tool_calls.transform.function.name", "f", "transform.function.name: 'f' is no placeholder"),
        (HERMES, "fields.tool_calls.transform.function.name", "{content.a.b}", "must stand in the same object"),
        (HERMES, "fields.tool_calls.transform.function.name", "{content}", "function.name: must be {content.M"),
        (HERMES, "fields.tool_calls.transform.id", "{content.a.id}", "transform.id: must stand in the same object"),
        (HERMES, "fields.tool_calls.transform.function", "{call}", "there is no group (?P<call>"),
        (HERMES, "fields.tool_calls.transform.function.name", "{name}", "there is no group (?P<name>…)"),
        (HERMES, "fields.tool_calls.transform.function.arguments", "{content.name}", "the same member"),
        (HERMES, "fields.tool_calls.transform.type", "{content.type}", "transform.type: must be function"),
        (GEMMA, "fields.tool_calls.content", "kv-lines", "content_args.unquoted_keys: is not known"),
        (GEMMA, "fields.tool_calls.content", "bool", "fields.tool_calls.content: 'bool' cannot be read here, only"),
        (GEMMA, "fields.tool_calls.close", None, "fields.tool_calls.close: is missing"),
        (GEMMA, "fields.tool_calls.content_args.string_delims", [["«", "»"]], "string_delims: must be one pair"),
        (GEMMA, "fields.tool_calls.content_args.unquoted_keys", None, "string_delims: needs unquoted_keys"),
        (GEMMA, "fields.tool_calls.open_pattern", r"(?P<name>\w+)\(", "open_pattern: does not begin with plain text"),
        (GEMMA, "fields.tool_calls.open_pattern", r"<c>(?P<name>\w+", "open_pattern: is no regular expression"),
        (GEMMA, "fields.tool_calls.open_pattern", r"<c>(?:x\.)*(?P<name>\w+)>", "a repeated group cannot be used"),
        (GEMMA, "fields.tool_calls.open_pattern", r"<c>(?P<name>\w+)(?: x)?", "(?: x)? may take what follows it"),
        (GEMMA, "fields.tool_calls.open_pattern", r"<c>(?:x\d)?(?P<name>\w+)>", "(?:…)? may take what follows it"),
        (GEMMA, "fields.tool_calls.open_pattern", r"<c>(?P<name>\w+.*?)\w>", "may take what follows it"),
        (GEMMA, "fields.tool_calls.open_pattern", r"(?:<t>\s)?<c>(?P<name>\w+)>", "does not begin with plain text"),
        (GEMMA, "fields.tool_calls.close_pattern", r"<\w>", "fields.tool_calls.close_pattern: stands beside close"),
        (GEMMA, "fields.tool_calls.open_pattern", r"<c>(?P<name>\w+)(?=\{)", "(?=…) cannot be used"),
        (GEMMA, "fields.tool_calls.open_pattern", r"<c>(?P<name>.+)>", "may take what follows it"),
        (GEMMA, "fields.tool_calls.open_pattern", r"<c>(?:a|ab)(?P<name>\w+)>", "another one begins with"),
        (GEMMA, "fields.tool_calls.open_pattern", r"^<c>(?P<name>\w+)>", "^ cannot be used"),
        (CODER, "fields.tool_calls.content_args.tag_pattern", None, "tag_pattern: is missing"),
        (CODER, "fields.tool_calls.content_args.tag_pattern", r"<p=(?P<key>\w+)>", "must have a group key, and"),
        (
            CODER,
            "fields.tool_calls.content_args.tag_pattern",
            r"<p=(?P<key>\w+)>(?P<value>[^<]*)</p>",
            "the group value must be .*?",
        ),
        (CODER, "fields.tool_calls.content_args.tag_pattern", r"<p=(?P<key>\w+)>(?P<value>.*?)", "must begin with"),
        (
            CODER,
            "fields.tool_calls.content_args",
            {"tag_pattern": r"<p=(?P<key>\w+)>\s*(?P<value>.*?)</p>"},
            r"must have \s* on both sides of the value",
        ),
        (
            CODER,
            "fields.tool_calls.content_args.tag_pattern",
            r"<p=(?P<key>\w+)>\n?(?P<value>.*?)</p>",
            "must have a plain text between the key and the value",
        ),
        (CODER, "fields.tool_calls.content_args.value_parser", {"name": "kv-lines"}, "value_parser.name: 'kv-lines'"),
        (CODER, "fields.tool_calls.content_args.value_parser", {"name": "int", "args": {"base": 2}}, "args.base: is"),
        (HERMES, "fields.content.content", "int", "fields.content.content: 'int': it must be text"),
        (HERMES, "fields.thinking.open_pattern", "^", "fields.thinking.open_pattern: stands beside open"),
        (CODER, "fields.thinking.open_pattern", r"^a|b", "either all alternatives begin with ^, or none"),
        (CODER, "fields.thinking.open_pattern", r"a$|b", "open_pattern: matches more than a few plain texts"),
        (CODER, "fields.thinking.close_pattern", r"^", "close_pattern: ^ cannot be used"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_key(template: dict[str, Any], path: str, value: Any, said: str) -> None:
    with pytest.raises(ResponseTemplateError) as found:
        from_response_template(changed(template, path, value))
    assert said in str(found.value)
    assert str(found.value).startswith("response_template: ")
    assert "\n" not in str(found.value)


# ------------------------------------------------------------------------------------------------- as a parser's name


@pytest.mark.parametrize("name", ["hf", "response_template"])
def test_the_parser_hf_uses_the_tokenizers_own(name: str) -> None:
    config = {"response_template": HERMES}
    both = choose_format(name, name, config=config)
    assert both == from_response_template(HERMES)
    tools = choose_format(name, None, config=config)
    assert tools is not None
    assert (tools.reasoning, tools.calls) == (None, both.calls)
    mixed = choose_format("hermes", name, config=config)
    assert mixed is not None
    assert (mixed.name, mixed.reasoning) == ("hermes+hf", both.reasoning)


@pytest.mark.parametrize(
    ("config", "tool", "reasoning", "said"),
    [
        ({}, "hf", None, "--tool-call-parser hf: the tokenizer's configuration has no response_template"),
        ({"response_schema": {}}, "hf", None, "has no response_template, only a response_schema, which"),
        ({"response_template": "x"}, None, "hf", "--reasoning-parser hf: the tokenizer's configuration has no"),
        ({"response_template": changed(HERMES, "fields.thinking", None)}, None, "hf", "has no field thinking"),
        ({"response_template": changed(HERMES, "fields.tool_calls", None)}, "hf", None, "has no field tool_calls"),
        (
            {"response_template": changed(HERMES, "version", 3)},
            "hf",
            "hf",
            "--tool-call-parser hf: response_template: ",
        ),
    ],
)
def test_where_there_is_none_to_use(config: Any, tool: str | None, reasoning: str | None, said: str) -> None:
    with pytest.raises(UnknownFormat) as found:
        choose_format(tool, reasoning, config=config)
    assert said in str(found.value)


# --------------------------------------------------------------------------------------- against other readers' answers

OTHERWISE: dict[str, tuple[str, dict[str, Any]]] = {
    'Before <|tool_call>call:f{x:<|"|>a, b<|"|>,y:[1,2.5,-3],z:{w:true}}<tool_call|> after': (
        "text before and after a call is content",
        {"content": "Beforeafter", "tool_calls": [("f", {"x": "a, b", "y": [1, 2.5, -3], "z": {"w": True}})]},
    ),
    '<|tool_call>call:f{a:<|"|>unterminated': (
        "a call that the output's end cuts is a call with what came",
        {"tool_calls": [("f", '{"a": "unterminated')]},
    ),
    'noise <invoke name="get" id="1"><param name="city">"Paris"</param><param name="n">3</param>'
    '<param name="raw">not json</param></invoke>': (
        "text outside of every region, and a call that is none, are content",
        {
            "content": 'noise <invoke name="get" id="1"><param name="city">"Paris"</param><param name="n">3</param>'
            '<param name="raw">not json</param></invoke>'
        },
    ),
    "bare text only": ("text outside of every region is content", {"content": "bare text only"}),
}


def load() -> dict[str, Any]:
    if not CASES.is_file():
        pytest.skip(f"no {CASES.name} at {CASES}")
    return json.loads(CASES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("number", range(21))
def test_published_cases(number: int, tokens: bool) -> None:
    data = load()
    case = data["cases"][number]
    template = data["templates"][case["template"]]
    found = reads(template, case["text"], tokens=tokens, prompt_tail=case["prefix"], tools=case["tools"] or [])
    _, expected = OTHERWISE.get(case["text"], ("", None))
    if expected is None:
        expected = case["expected"]
        expected["tool_calls"] = [(call["name"], call["arguments"]) for call in expected.get("tool_calls", [])]
    got = [(name, json.loads(text) if whole else text) for name, text, whole in found["calls"]]
    assert got == expected.get("tool_calls", [])
    assert found["reasoning"] == expected.get("reasoning", "")
    assert found["content"] == expected.get("content", "")


def test_every_published_case_is_read() -> None:
    assert len(load()["cases"]) == 21


def test_random_output_is_split_invariant() -> None:
    dice = random.Random(3)
    parts = [
        "<|tool_call>call:", "f", "{", "a", ":", '<|"|>', ",", "}", "<tool_call|>", "<|channel>thought\n", "<channel|>",
        " ", "\n", "<tool_call>", "<function=", "g>", "<parameter=", "k>", "1", "</parameter>", "</tool_call>",
        "<think>", "</think>", '{"name": "f"', ', "arguments": {}}', "text",
    ]  # fmt: skip
    tables: list[tuple[OutputFormat, bool]] = [
        (from_response_template(one), tokens) for one in (HERMES, GEMMA, CODER) for tokens in (True, False)
    ]
    for _ in range(60):
        text = "".join(dice.choices(parts, k=14))
        for table, tokens in tables:
            form = compiled(table, tokens=tokens)
            whole = read(form, text, trim=table.trim)
            sizes = [dice.randint(1, 4) for _ in range(200)]
            assert read(form, text, sizes=sizes, trim=table.trim) == whole, text
