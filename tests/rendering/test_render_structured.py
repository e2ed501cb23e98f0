"""Constraints on the output, as they reach the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.rendering.helpers import NAMED, TOOLS, chat, refused, renderer, text

NOTHING = {
    "json": None,
    "regex": None,
    "choice": None,
    "grammar": None,
    "json_object": None,
    "disable_any_whitespace": False,
    "disable_additional_properties": False,
    "whitespace_pattern": None,
    "structural_tag": None,
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TAG = '{"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}'
OLD = {"type": "structural_tag", "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a"]}


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
         {"json": SCHEMA}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({"structured_outputs": {"json": '{"type": "object"}'}}, {"json": '{"type": "object"}'}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"regex": ""}}, {"regex": ""}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, {"grammar": 'root ::= "a"'}),
        ({"structured_outputs": {"json_object": True, "whitespace_pattern": " ?", "disable_any_whitespace": True}},
         {"json_object": True, "whitespace_pattern": " ?", "disable_any_whitespace": True}),
        ({"structured_outputs": {"structural_tag": TAG}}, {"structural_tag": TAG}),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}}, {"regex": "a"}),
        ({"structured_outputs": {"json": {}, "disable_any_whitespace": True},
          "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
         {"json": SCHEMA, "disable_any_whitespace": True}),
        ({"structured_outputs": {"json": nested(64)}}, {"json": nested(64)}),
    ],
)  # fmt: skip
def test_constraints(body: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chat(renderer(), **body)["sampling_params"]["structured_outputs"] == NOTHING | expected
    [completion] = text(renderer(), prompt="a", **body)
    assert completion["sampling_params"]["structured_outputs"] == NOTHING | expected


@pytest.mark.parametrize("body", [{}, {"response_format": {"type": "text"}}, {"structured_outputs": None}])
def test_no_constraint(body: dict[str, Any]) -> None:
    assert "structured_outputs" not in chat(renderer(), **body)["sampling_params"]


@pytest.mark.parametrize("wanted", [json.loads(TAG), OLD, OLD | json.loads(TAG)])
def test_structural_tags_are_sent_as_text(wanted: Any) -> None:
    sent = chat(renderer(), response_format=wanted)["sampling_params"]["structured_outputs"]
    assert json.loads(sent["structural_tag"]) == wanted
    assert sent | {"structural_tag": None} == NOTHING


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"structured_outputs": {}}, "structured_outputs", "but none are specified"),
        ({"structured_outputs": {"grammar": "x", "json": {}}},
         "structured_outputs", "multiple are specified: json, grammar"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "response_format",
         "regex, json_object"),
        ({"structured_outputs": {"disable_any_whitespace": True}, "response_format": {"type": "json_object"}},
         "structured_outputs",
         "but none are specified"),
        ({"response_format": {"type": "json_schema"}}, "response_format",
         "the 'json_schema' field must be provided. (parameter=response_format)"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
         "response_format", "but none are specified"),
        ({"response_format": {"type": "structural_tag"}}, "response_format",
         "Invalid response_format structural_tag specification. (parameter=response_format)"),
        ({"response_format": {"type": "structural_tag", "format": {"value": "a"}}}, "response_format", "Invalid"),
        ({"response_format": {"type": "structural_tag", "triggers": ["a"], "structures": [{"begin": "a", "end": "b"}]}},
         "response_format", "Invalid"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs",
         "Invalid structured_outputs structural_tag specification. (parameter=structured_outputs)"),
        ({"structured_outputs": {"structural_tag": ""}}, "structured_outputs", "Invalid"),
        ({"structured_outputs": {"structural_tag": "[" * 100000}}, "structured_outputs", "Invalid"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "cannot be an empty list"),
        ({"structured_outputs": {"json": " "}}, "structured_outputs.json", "json cannot be an empty string"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "Invalid JSON grammar specification."),
        ({"structured_outputs": {"grammar": "\n"}}, "structured_outputs.grammar", "grammar cannot be an empty string"),
        ({"structured_outputs": {"json_object": False}},
         "structured_outputs.json_object", "json_object must be True if set"),
        ({"structured_outputs": {"regex": "a\0"}}, "structured_outputs.regex", "NUL"),
        ({"structured_outputs": {"json": nested(65)}}, "structured_outputs.json", "nested too deeply"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": nested(65)}}},
         "response_format",
         "nested too deeply"),
    ],
)  # fmt: skip
def test_constraints_refused(body: dict[str, Any], param: str | None, says: str) -> None:
    for error in (refused(chat, renderer(), **body), refused(text, renderer(), prompt="a", **body)):
        assert says in error["message"]
        assert (error["param"], error["type"]) == (param, "BadRequestError")


def test_two_kinds_that_clients_mix_up() -> None:
    body: dict[str, Any] = {"structured_outputs": {"choice": ["a"], "regex": "a"}}
    error = refused(chat, renderer(), **body)
    assert error["message"].endswith("structured outputs ('json', 'regex' or 'choice').")
    assert error["param"] == "structured_outputs"
    assert refused(text, renderer(), prompt="a", **body)["param"] == "structured_outputs"


# ------------------------------------------------------------------------------------------------------ tool calls


def tools_model() -> Any:
    return renderer(has_tool_parser=True, auto_tool_choice=True)


def test_demanded_calls_constrain_the_output() -> None:
    params = chat(tools_model(), tools=TOOLS, tool_choice="required")["sampling_params"]
    call = {"type": "object", "properties": {"x": {"type": "integer"}}}
    assert params["structured_outputs"]["json"] == {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "anyOf": [
                {"properties": {"name": {"type": "string", "enum": ["f"]}, "parameters": call},
                 "required": ["name", "parameters"]},
                {"properties": {"name": {"type": "string", "enum": ["g"]},
                                "parameters": {"type": "object", "properties": {}}},
                 "required": ["name", "parameters"]},
            ],
        },
    }  # fmt: skip
    assert params["skip_special_tokens"] is False
    one = chat(tools_model(), tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert one["sampling_params"]["structured_outputs"]["json"]["maxItems"] == 1
    named = chat(tools_model(), tools=TOOLS, tool_choice=NAMED)["sampling_params"]["structured_outputs"]
    assert named == NOTHING | {"json": call}


def test_calls_that_may_be_made_leave_the_output_free() -> None:
    params = chat(tools_model(), tools=TOOLS)["sampling_params"]
    assert "structured_outputs" not in params
    assert params["skip_special_tokens"] is False
    params = chat(tools_model(), tools=TOOLS, tool_choice="none")["sampling_params"]
    assert "skip_special_tokens" not in params


def test_demanded_calls_go_before_a_response_format() -> None:
    body: dict[str, Any] = {"tools": TOOLS, "response_format": {"type": "json_object"}}
    asked = chat(tools_model(), tool_choice=NAMED, **body)["sampling_params"]["structured_outputs"]
    assert asked["json_object"] is None
    assert chat(tools_model(), **body)["sampling_params"]["structured_outputs"]["json_object"] is True
    both = {"tools": TOOLS, "tool_choice": NAMED, "structured_outputs": {"choice": ["a"]}}
    assert "not both" in refused(chat, tools_model(), **both)["message"]


def test_definitions_of_tools_are_shared() -> None:
    def tool(name: str, definition: Any) -> Any:
        return {"function": {"name": name, "parameters": {"type": "object", "$defs": {"d": definition}}}}

    same = [tool("a", {"type": "string"}), tool("b", {"type": "string"})]
    schema = chat(tools_model(), tools=same, tool_choice="required")["sampling_params"]["structured_outputs"]["json"]
    assert schema["$defs"] == {"d": {"type": "string"}}
    assert schema["items"]["anyOf"][0]["properties"]["parameters"] == {"type": "object"}
    other = [tool("a", {"type": "string"}), tool("b", {"type": "integer"})]
    error = refused(chat, tools_model(), tools=other, tool_choice="required")
    assert error["param"] == "tools"
    assert "'d' has multiple schemas" in error["message"]
    bad = [{"function": {"name": "a", "parameters": {"$defs": 5}}}]
    assert "must be an object, got int" in refused(chat, tools_model(), tools=bad, tool_choice="required")["message"]


def test_a_format_may_bring_its_own_constraint() -> None:
    from derender.protocol.common import StructuredOutputs

    model = renderer(
        has_tool_parser=True, auto_tool_choice=True, tool_constraint=lambda request: StructuredOutputs(regex="x")
    )
    assert chat(model, tools=TOOLS)["sampling_params"]["structured_outputs"]["regex"] == "x"
    assert chat(model)["sampling_params"]["structured_outputs"]["regex"] == "x"  # an answer's form may be its own, too
    free = renderer(has_tool_parser=True, auto_tool_choice=True, tool_constraint=lambda request: None)
    assert "structured_outputs" not in chat(free)["sampling_params"]
