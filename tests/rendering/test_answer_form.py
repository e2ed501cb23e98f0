"""Calls that the model may make beside an answer of a form. Right values are those of vLLM 0.32."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.rendering.helpers import HI, chat, renderer
from tests.rendering.test_tool_grammar import SCHEMA, request, schema, tag_of

from derender.formats.registry import FORMATS
from derender.rendering.tool_grammar import ToolConstraints

TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}
OLD = {"type": "structural_tag", "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a"]}
OLD_FORM = {
    "type": "triggered_tags",
    "triggers": ["<a"],
    "tags": [{"type": "tag", "begin": "<a>", "content": schema(SCHEMA), "end": "</a>"}],
    "at_least_one": False,
    "stop_after_first": False,
    "excludes": [],
}


def json_format(value: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": value}}}


@pytest.mark.parametrize(
    ("asked", "form"),
    [
        ({"response_format": {"type": "json_object"}}, schema({"type": "object"})),
        (json_format(SCHEMA), schema(SCHEMA)),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, schema(SCHEMA)),
        ({"structured_outputs": {"regex": r"(?:a|b)\d"}}, {"type": "regex", "pattern": r"(?:a|b)\d"}),
        ({"structured_outputs": {"choice": ["a", "b"]}},
         {"type": "or", "elements": [{"type": "const_string", "value": one} for one in "ab"]}),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, {"type": "grammar", "grammar": 'root ::= "a"'}),
        ({"response_format": TAG}, TAG["format"]),
        ({"response_format": OLD}, OLD_FORM),
    ],
)  # fmt: skip
def test_a_call_or_an_answer(asked: dict[str, Any], form: Any) -> None:
    """The calls are as where they are demanded: free text beside them would undo the answer's form."""
    made = tag_of("hermes", request("auto", **asked))
    assert made == {"type": "or", "elements": [tag_of("hermes", request("required")), form]}
    single = tag_of("hermes", request("auto", parallel_tool_calls=False, **asked))
    demanded = tag_of("hermes", request("required", parallel_tool_calls=False))
    assert single == {"type": "or", "elements": [demanded, form]}


def test_the_whole_of_one() -> None:
    def call(name: str, value: Any) -> Any:
        number, mark = {"type": "regex", "pattern": r"\d+"}, "<|tool_call_argument_begin|>"
        content = {"type": "sequence", "elements": [number, {"type": "const_string", "value": mark}, schema(value)]}
        begin = f"<|tool_call_begin|>functions.{name}:"
        return {"type": "tag", "begin": begin, "content": content, "end": "<|tool_call_end|>"}

    chain = {
        "type": "tags_with_separator",
        "tags": [call("fa", SCHEMA), call("fb", True)],
        "separator": "",
        "at_least_one": True,
        "stop_after_first": False,
    }
    section = [
        {"type": "const_string", "value": "<|tool_calls_section_begin|>"},
        chain,
        {"type": "const_string", "value": "<|tool_calls_section_end|>"},
    ]
    made = tag_of("kimi", request("auto", response_format={"type": "json_object"}))
    answer = {
        "type": "json_schema",
        "json_schema": {"type": "object"},
        "style": "json",
        "any_order": False,
        "max_whitespace_cnt": None,
        "excludes": [],
    }
    assert made == {"type": "or", "elements": [{"type": "sequence", "elements": section}, answer]}


def test_hunyuan_4_is_held_only_beside_an_answer() -> None:
    made = tag_of("hy_v4", request("auto", **json_format(SCHEMA)))
    assert made == {"type": "or", "elements": [tag_of("hy_v4", request("required")), schema(SCHEMA)]}
    assert tag_of("hy_v4", request("auto")) is None


def test_without_a_strict_tool_the_answers_form_stays_alone() -> None:
    wanted = json_format(SCHEMA)
    assert tag_of("hermes", request("auto", strict=False, **wanted)) is None
    assert tag_of("hermes", request("auto", strict=False, parallel_tool_calls=False, **wanted)) is None
    assert tag_of("hermes", request("none", **wanted)) is None
    held = tag_of("hermes", request("auto", strict=False, **wanted), level="function")
    assert held["elements"][1] == schema(SCHEMA)
    text = tag_of("hermes", request("auto", response_format={"type": "text"}))
    assert text == tag_of("hermes", request("auto"))
    assert ToolConstraints(FORMATS["jamba"])(request("auto", **wanted)) is None


@pytest.mark.parametrize(
    "of",
    [
        {"type": "integer", "multipleOf": 2},
        {"type": ["null", "number"], "multipleOf": 0.5},
        {"type": "array", "uniqueItems": True},
        {"type": "array", "contains": {"type": "string"}},
        {"type": "string", "format": "idn-email"},
        {"type": "string", "format": {}},
        {"type": "string", "format": "date", "maxLength": 3},
        {"type": "string", "pattern": "a", "minLength": 3},
        {"type": "object", "propertyNames": {"pattern": "a", "maxLength": 3}},
        {"type": "object", "propertyNames": {}, "properties": {}},
        {"type": "object", "propertyNames": {}, "patternProperties": {}},
        {"type": "object", "propertyNames": {}, "unevaluatedProperties": False},
        {"type": "object", "patternProperties": {"a": {}}, "properties": {}},
        {"type": "object", "patternProperties": {"a": {}, "b": {}}},
        {"allOf": [{"type": "string"}, {"enum": ["a"]}]},
        {"anyOf": [{"type": "string"}, {"type": "integer", "multipleOf": 2}]},
    ],
)
def test_schemas_that_xgrammar_would_not_hold_to_stay_alone(of: Any) -> None:
    assert tag_of("hermes", request("auto", **json_format({"type": "object", "properties": {"a": of}}))) is None


@pytest.mark.parametrize(
    "of",
    [
        {"type": "string", "multipleOf": 2},
        {"type": "string", "format": "date"},
        {"type": "string", "maxLength": 3},
        {"type": "object", "propertyNames": {"maxLength": 3}},
        {"type": "object", "patternProperties": {"a": {}}},
        {"allOf": [{"type": "string"}]},
        {"enum": ["multipleOf", 2]},
    ],
)
def test_schemas_that_it_holds_to(of: Any) -> None:
    wanted = {"type": "object", "properties": {"a": of}}
    assert tag_of("hermes", request("auto", **json_format(wanted)))["elements"][1] == schema(wanted)


@pytest.mark.parametrize(
    "regex", ["a(?=b)", "a(?!b)", "(?<=a)b", "(?<!a)b", r"\bab", r"(a)\1", "(?i)a", "(?P<n>a)", r"\p{L}"]
)
def test_expressions_that_xgrammar_refuses_stay_alone(regex: str) -> None:
    assert tag_of("hermes", request("auto", structured_outputs={"regex": regex})) is None


@pytest.mark.parametrize("regex", ["(?<n>a)", r"\\b", r"\(?a", "a+?", r"\d\0"])
def test_expressions_that_it_reads(regex: str) -> None:
    made = tag_of("hermes", request("auto", structured_outputs={"regex": regex}))
    assert made["elements"][1] == {"type": "regex", "pattern": regex}


@pytest.mark.parametrize("asked", [{"grammar": 'start: "a"'}, {"json": "[1]"}])
def test_what_has_no_form_stays_alone(asked: Any) -> None:
    assert tag_of("hermes", request("auto", structured_outputs=asked)) is None
    assert tag_of("harmony", request("auto", structured_outputs=asked)) is None


def test_rendered() -> None:
    """What stays alone is sent as it was asked for; what is joined is the only kind."""
    to = renderer(has_tool_parser=True, auto_tool_choice=True, tool_constraint=ToolConstraints(FORMATS["hermes"]))
    tool = {"type": "function", "function": {"name": "fa", "parameters": SCHEMA, "strict": True}}

    def sent(**body: Any) -> dict[str, Any]:
        outputs = chat(to, messages=HI, tools=[tool], **body)["sampling_params"]["structured_outputs"]
        return {kind: value for kind, value in outputs.items() if value}

    joined = sent(**json_format(SCHEMA))
    assert set(joined) == {"structural_tag"}
    assert json.loads(joined["structural_tag"])["format"]["elements"][1] == schema(SCHEMA)
    assert sent(**json_format({"type": "array", "uniqueItems": True})) == {
        "json": {"type": "array", "uniqueItems": True}
    }
