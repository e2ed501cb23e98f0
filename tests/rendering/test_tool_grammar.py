"""Structural tags for demanded and offered tool calls. Right values are those of vLLM 0.32 and xgrammar."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from derender.formats.registry import FORMATS
from derender.formats.table import Calls, JsonMembers, OutputFormat
from derender.protocol.chat import ChatCompletionRequest
from derender.rendering.tool_grammar import GRAMMARS, ToolConstraints

SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
NAMED = {"type": "function", "function": {"name": "fa"}}


def request(choice: Any, *, strict: bool = True, **fields: Any) -> ChatCompletionRequest:
    tools = [
        {"type": "function", "function": {"name": "fa", "parameters": SCHEMA, **({"strict": True} if strict else {})}},
        {"type": "function", "function": {"name": "fb", "parameters": SCHEMA}},
    ]
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": tools, "tool_choice": choice, **fields}
    return msgspec.convert(body, ChatCompletionRequest)


def tag_of(name: str, asked: ChatCompletionRequest, **kwargs: Any) -> Any:
    table = OutputFormat(name=name, calls=(Calls(body=JsonMembers(), structural_tag=name),))
    made = ToolConstraints(table, **kwargs)(asked)
    if made is None:
        return None
    assert made.structural_tag is not None
    tag = json.loads(made.structural_tag)
    assert tag["type"] == "structural_tag"
    return tag["format"]


def schema(value: Any, style: str = "json") -> dict[str, Any]:
    plain: dict[str, Any] = {"any_order": False, "max_whitespace_cnt": None, "excludes": []}
    return {"type": "json_schema", "json_schema": value, "style": style, **plain}


def test_hermes_required() -> None:
    def calls(name: str, value: Any) -> list[Any]:
        head = f'{{"name": "{name}", "arguments": '
        return [
            {"type": "tag", "begin": f"<tool_call>\n{head}", "content": schema(value), "end": "}\n</tool_call>"},
            {"type": "tag", "begin": f"<tool_call>{head}", "content": schema(value), "end": "}</tool_call>"},
        ]

    assert tag_of("hermes", request("required")) == {
        "type": "tags_with_separator",
        "tags": [*calls("fa", SCHEMA), *calls("fb", True)],
        "separator": "",
        "at_least_one": True,
        "stop_after_first": False,
    }
    assert tag_of("hermes", request(NAMED)) == {
        "type": "tags_with_separator",
        "tags": calls("fa", SCHEMA),
        "separator": "",
        "at_least_one": True,
        "stop_after_first": True,
    }
    assert tag_of("hermes", request("auto"), level="parameter") == {
        "type": "triggered_tags",
        "triggers": ["<tool_call>"],
        "tags": [*calls("fa", SCHEMA), *calls("fb", SCHEMA)],
        "at_least_one": False,
        "stop_after_first": False,
        "excludes": [],
    }


def test_kimi_section_and_index() -> None:
    def call(name: str, value: Any) -> Any:
        number = {"type": "regex", "pattern": r"\d+"}
        begin = {"type": "const_string", "value": "<|tool_call_argument_begin|>"}
        return {
            "type": "tag",
            "begin": f"<|tool_call_begin|>functions.{name}:",
            "content": {"type": "sequence", "elements": [number, begin, schema(value)]},
            "end": "<|tool_call_end|>",
        }

    chain = {
        "type": "tags_with_separator",
        "tags": [call("fa", SCHEMA), call("fb", True)],
        "separator": "",
        "at_least_one": True,
        "stop_after_first": False,
    }
    assert tag_of("kimi", request("required")) == {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "<|tool_calls_section_begin|>"},
            chain,
            {"type": "const_string", "value": "<|tool_calls_section_end|>"},
        ],
    }
    section = {
        "type": "tag",
        "begin": "<|tool_calls_section_begin|>",
        "content": chain,
        "end": "<|tool_calls_section_end|>",
    }
    assert tag_of("kimi", request("auto")) == {
        "type": "triggered_tags",
        "triggers": ["<|tool_calls_section_begin|>"],
        "tags": [section],
        "at_least_one": False,
        "stop_after_first": False,
        "excludes": ["<think>", "</think>", "<|tool_call_begin|>"],
    }


def test_auto_is_free_unless_something_asks() -> None:
    assert tag_of("hermes", request("auto", strict=False)) is None
    assert tag_of("hermes", request(None)) is None
    assert tag_of("hermes", request("none")) is None
    single = tag_of("hermes", request("auto", strict=False, parallel_tool_calls=False))
    assert single["stop_after_first"] is True
    assert [tag["content"]["json_schema"] for tag in single["tags"]] == [True] * 4
    assert tag_of("hermes", request("auto", strict=False), level="function")["stop_after_first"] is False


@pytest.mark.parametrize("name", sorted(GRAMMARS))
def test_single_calls_stop_after_the_first(name: str) -> None:
    def flags(value: Any) -> list[bool]:
        if isinstance(value, dict):
            own = [value["stop_after_first"]] if "stop_after_first" in value else []
            return own + [flag for inner in value.values() for flag in flags(inner)]
        return [flag for inner in value for flag in flags(inner)] if isinstance(value, list) else []

    for choice in ("auto", "required"):
        made = tag_of(name, request(choice, parallel_tool_calls=False))
        if name == "harmony":  # one message, and so one call, in any case
            assert flags(made) == []
        elif name.startswith("hy_v4") and choice == "auto":
            assert made is None
        else:
            assert flags(made)
            assert all(flags(made))
    assert all(flags(tag_of(name, request(NAMED, parallel_tool_calls=False))))


def test_a_named_tool() -> None:
    """One call: a tag alone, or with its section around it, in each family's way."""
    xml = schema(SCHEMA, "deepseek_xml")
    assert tag_of("qwen_3_coder", request(NAMED)) == {
        "type": "tag",
        "begin": "<tool_call>\n<function=fa>\n",
        "content": schema(SCHEMA, "qwen_xml"),
        "end": "\n</function>\n</tool_call>",
    }
    assert tag_of("deepseek_v3_1", request(NAMED)) == {
        "type": "tag",
        "begin": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>fa<｜tool▁sep｜>",
        "content": schema(SCHEMA),
        "end": "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    }
    assert tag_of("deepseek_v4", request(NAMED)) == {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "\n\n<｜DSML｜tool_calls>\n"},
            {"type": "tag", "begin": '<｜DSML｜invoke name="fa">\n', "content": xml, "end": "</｜DSML｜invoke>\n"},
            {"type": "const_string", "value": "</｜DSML｜tool_calls>"},
        ],
    }


def test_deepseek_v4_1_has_a_blank_in_its_tags() -> None:
    def call(name: str, value: Any) -> Any:
        content = schema(value, "deepseek_v4_1_xml")
        return {"type": "tag", "begin": f'<｜DSML｜ invoke name="{name}">\n', "content": content,
                "end": "</｜DSML｜ invoke>\n"}  # fmt: skip

    begin, chain, end = tag_of("deepseek_v4_1", request("required"))["elements"]
    assert begin == {"type": "const_string", "value": "\n\n<｜DSML｜ calls>\n"}
    assert chain["tags"] == [call("fa", SCHEMA), call("fb", True)]
    assert end == {"type": "const_string", "value": "</｜DSML｜ calls>"}


def test_the_vocabulary_decides_between_spellings() -> None:
    def begin(has_token: Any) -> str:
        made = ToolConstraints(FORMATS["hy_v4"], has_token=has_token)(request("required"))
        assert made is not None
        assert made.structural_tag is not None
        first: str = json.loads(made.structural_tag)["format"]["elements"][0]["value"]
        return first

    assert begin(None) == "<tool_calls>"
    assert begin(lambda token: False) == "<tool_calls>"
    assert begin(lambda token: token == "<tool_calls>") == "<tool_calls>"
    assert begin(lambda token: token == "<tool_calls:opensource>") == "<tool_calls:opensource>"


def test_the_text_is_vllms() -> None:
    """An engine finds a compiled tag by its text: members in vLLM's order, characters beyond ASCII escaped."""
    table = OutputFormat(name="x", calls=(Calls(body=JsonMembers(), structural_tag="deepseek_v3_1"),))
    made = ToolConstraints(table)(request(NAMED, strict=False))
    assert made is not None
    assert made.structural_tag == (
        '{"type": "structural_tag", "format": {"type": "tag", "begin": "<\\uff5ctool\\u2581calls\\u2581begin\\uff5c>'
        '<\\uff5ctool\\u2581call\\u2581begin\\uff5c>fa<\\uff5ctool\\u2581sep\\uff5c>", "content": {"type": '
        '"json_schema", "json_schema": true, "style": "json", "any_order": false, "max_whitespace_cnt": null, '
        '"excludes": []}, "end": "<\\uff5ctool\\u2581call\\u2581end\\uff5c>'
        '<\\uff5ctool\\u2581calls\\u2581end\\uff5c>"}}'
    )


def test_families_without_a_tag() -> None:
    array = ToolConstraints(FORMATS["jamba"])(request("required"))
    assert array is not None
    assert array.json is not None
    assert ToolConstraints(FORMATS["gemma4"])(request("required")) is None
    own = '{"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}'
    assert ToolConstraints(FORMATS["jamba"])(request("required", structured_outputs={"structural_tag": own})) is None


def test_families_that_only_write_their_own_form() -> None:
    """Those whose parsers in vLLM 0.32 refuse the generic JSON form."""
    names = (
        "dots gemma4 harmony hy_v4 inkling k2_horizon kimi_k3 ling3 minimax_m3 mistral muse_glimmer plamo3 poolside_v1"
    )
    assert {name for name, table in FORMATS.items() if table.native_only} == set(names.split())
