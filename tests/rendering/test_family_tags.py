"""Structural tags of families that a pair of strings around JSON does not tell. Right values are those of vLLM 0.32."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.rendering.test_tool_grammar import NAMED, SCHEMA, request, schema, tag_of

from derender.formats.registry import FORMATS
from derender.rendering.family_tags import glm, kimi_k3
from derender.rendering.tag_nodes import HeldTool
from derender.rendering.tool_grammar import GRAMMARS


def text(*excludes: str) -> dict[str, Any]:
    return {"type": "any_text", "excludes": list(excludes), "max_tokens": None, "max_chars": None}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def sequence(*elements: Any) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def optional(content: Any) -> dict[str, Any]:
    return {"type": "optional", "content": content}


def chain(*tags: Any, single: bool = False) -> dict[str, Any]:
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": "",
        "at_least_one": True,
        "stop_after_first": single,
    }


def held(parameters: Any, *, strict: bool = True) -> HeldTool:
    return HeldTool(name="f", parameters=parameters, strict=strict)


@pytest.mark.parametrize("name", ["kimi_k3", "plamo3", "hy_v4", "harmony", "glm47", "deepseek_v41"])
def test_families_name_a_tag_that_is_there(name: str) -> None:
    assert all(calls.structural_tag in GRAMMARS for calls in FORMATS[name].calls)


# ------------------------------------------------------------------------------------------------------------ Kimi K3

K3_ANY = tag(
    "<|open|>argument ",
    sequence({"type": "regex", "pattern": r"[^<]*<\|sep\|>"}, text("<|close|>")),
    "<|close|>argument<|sep|>",
)


def k3_argument(key: str, kind: str, value: Any) -> dict[str, Any]:
    return tag(f'<|open|>argument key="{key}" type="{kind}"<|sep|>', value, "<|close|>argument<|sep|>")


def k3_call(name: str, arguments: Any) -> dict[str, Any]:
    number = {"type": "regex", "pattern": "[0-9]+"}
    content = sequence(number, const('"<|sep|>'), arguments)
    return tag(f'<|open|>call tool="{name}" index="', content, "<|close|>call<|sep|>")


def k3_answer(calls: Any) -> dict[str, Any]:
    return sequence(
        optional(const("<|open|>response<|sep|>")),
        tag("", text("<|open|>", "<|close|>", "<|end_of_msg|>"), "<|close|>response<|sep|>"),
        calls,
        optional(const("<|close|>message<|sep|>")),
    )


def test_kimi_k3() -> None:
    def calls(*each: Any, single: bool = False) -> dict[str, Any]:
        return tag("<|open|>tools<|sep|>", chain(*each, single=single), "<|close|>tools<|sep|>")

    first = k3_call("fa", {"type": "star", "content": k3_argument("x", "string", text("<|close|>"))})
    second = k3_call("fb", {"type": "star", "content": K3_ANY})
    assert tag_of("kimi_k3", request("required")) == k3_answer(calls(first, second))
    assert tag_of("kimi_k3", request("auto")) == k3_answer(optional(calls(first, second)))
    assert tag_of("kimi_k3", request(NAMED)) == k3_answer(calls(first))
    assert tag_of("kimi_k3", request(NAMED, parallel_tool_calls=False)) == k3_answer(calls(first, single=True))
    assert tag_of("kimi_k3", request("auto", strict=False)) is None


def k3_arguments(parameters: Any, *, name: str = "f") -> Any:
    form = kimi_k3([HeldTool(name=name, parameters=parameters, strict=True)], "required")
    [call] = form["elements"][2]["content"]["tags"]
    return call["content"]["elements"][2]


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ({"type": "string"}, k3_argument("k", "string", text("<|close|>"))),
        ({"type": "string", "enum": ["a"]}, k3_argument("k", "string", const("a"))),
        ({"type": "string", "const": "b"}, k3_argument("k", "string", const("b"))),
        ({"type": "string", "enum": ["a", "b"]},
         k3_argument("k", "string", {"type": "or", "elements": [const("a"), const("b")]})),
        ({"type": "string", "enum": ["<|x|>"]}, k3_argument("k", "string", text("<|close|>"))),
        ({"type": "string", "enum": []}, k3_argument("k", "string", text("<|close|>"))),
        ({"type": "string", "minLength": 2, "maxLength": 9},
         k3_argument("k", "string", {"type": "regex", "pattern": "(?:[^<]|<[^|]){2,9}"})),
        ({"type": "string", "minLength": 9, "maxLength": 2},
         k3_argument("k", "string", {"type": "regex", "pattern": "(?:[^<]|<[^|]){0,2}"})),
        ({"type": "string", "maxLength": 4097}, k3_argument("k", "string", text("<|close|>"))),
        ({"type": "integer", "minimum": 1}, k3_argument("k", "number", schema({"type": "integer", "minimum": 1}))),
        ({"type": "boolean"}, k3_argument("k", "boolean", schema({"type": "boolean"}))),
        ({"type": ["string", "null"]}, K3_ANY),
        ({"anyOf": [{"type": "string"}]}, K3_ANY),
        ({"type": "date"}, K3_ANY),
        ("no schema", K3_ANY),
    ],
)  # fmt: skip
def test_kimi_k3_arguments(of: Any, expected: Any) -> None:
    assert k3_arguments({"properties": {"k": of}}) == {"type": "star", "content": expected}


def test_kimi_k3_required_and_shared_definitions() -> None:
    definitions = {"item": {"type": "number"}}
    listed = {"type": "array", "items": {"$ref": "#/$defs/item"}}
    own = {"type": "object", "$defs": {}}
    parameters = {"properties": {"l": listed, "o": own}, "$defs": definitions, "required": ["l"]}
    each = [
        k3_argument("l", "array", schema(listed | {"$defs": definitions})),
        k3_argument("o", "object", schema(own)),
    ]
    assert k3_arguments(parameters) == {"type": "plus", "content": {"type": "or", "elements": each}}
    assert k3_arguments({"properties": {}}) == {"type": "star", "content": K3_ANY}
    assert k3_arguments({"properties": ["no", "object"]}) == {"type": "star", "content": K3_ANY}


def test_kimi_k3_names_are_attributes() -> None:
    form = kimi_k3([HeldTool(name='a"&', parameters={"properties": {'k"': {"type": "null"}}}, strict=True)], "required")
    [call] = form["elements"][2]["content"]["tags"]
    assert call["begin"] == '<|open|>call tool="a&quot;&amp;" index="'
    assert call["content"]["elements"][2]["content"]["begin"] == '<|open|>argument key="k&quot;" type="null"<|sep|>'


# ---------------------------------------------------------------------------------------------------------- Hunyuan 4


@pytest.mark.parametrize("suffix", ["", ":opensource"])
def test_hunyuan_4(suffix: str) -> None:
    def pair(key: str) -> dict[str, Any]:
        opener = [const(f"<arg_key{suffix}>"), const(key), const(f"</arg_key{suffix}>"), const(f"<arg_value{suffix}>")]
        return sequence(*opener, text(), const(f"</arg_value{suffix}>"))

    def call(name: str, content: Any) -> dict[str, Any]:
        return tag(f"<tool_call{suffix}>{name}", content, f"</tool_call{suffix}>")

    def calls(inner: Any) -> dict[str, Any]:
        return sequence(const(f"<tool_calls{suffix}>"), inner, const(f"</tool_calls{suffix}>"))

    x = sequence({"type": "star", "content": pair("x")})
    name = f"hy_v4{suffix}"
    assert tag_of(name, request("required")) == calls(chain(call("fa", x), call("fb", x)))
    assert tag_of(name, request(NAMED)) == calls(chain(call("fa", x), single=True))
    assert tag_of(name, request("auto")) is None
    assert tag_of(name, request("auto"), level="parameter") is None

    properties: dict[str, Any] = {"o": {}, "b": {}, "a": {}, "p": {}}
    parameters = {"properties": properties, "required": ["a", "b", "missing"]}
    others = {"type": "star", "content": {"type": "or", "elements": [pair("o"), pair("p")]}}
    made = GRAMMARS[name]([held(parameters)], "named")
    assert made == calls(chain(call("f", sequence(pair("b"), pair("a"), pair("missing"), others)), single=True))
    for none in (None, {}, {"properties": [], "required": "a"}):
        assert GRAMMARS[name]([held(none)], "named") == calls(chain(call("f", text()), single=True))


# ------------------------------------------------------------------------------------------------------------ PLaMo 3


def test_plamo_3() -> None:
    def call(name: str, value: Any) -> dict[str, Any]:
        return tag(
            f"<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
            "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",
            schema(value),
            "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
        )

    def requests(inner: Any) -> dict[str, Any]:
        end = "<|plamo:end_tool_requests:plamo|>"
        return tag("<|plamo:begin_tool_requests:plamo|>", inner, [end, end + "<|plamo:tag|>"])

    both = requests(chain(call("fa", SCHEMA), call("fb", True)))
    assert tag_of("plamo3", request("required")) == both
    assert tag_of("plamo3", request(NAMED)) == requests(chain(call("fa", SCHEMA), single=True))
    assert tag_of("plamo3", request("auto")) == {
        "type": "triggered_tags",
        "triggers": ["<|plamo:begin_tool_requests:plamo|>"],
        "tags": [both],
        "at_least_one": False,
        "stop_after_first": False,
        "excludes": [],
    }


# ------------------------------------------------------------------------------------------------------------ harmony

ENDS = ["<|end|>", ""]


def before(channel: str) -> dict[str, Any]:
    message = tag(f"<|channel|>{channel}<|message|>", text(), "<|end|>")
    return optional(sequence(message, const("<|start|>assistant")))


def test_harmony() -> None:
    made = tag_of("harmony", request(NAMED))
    begins = [
        " to=functions.fa<|channel|>commentary json<|message|>",
        " to=functions.fa<|channel|>analysis json<|message|>",
        " to=functions.fa<|channel|>final json<|message|>",
        " to=functions.fa<|channel|>commentary <|constrain|>json<|message|>",
        " to=functions.fa<|channel|>analysis <|constrain|>json<|message|>",
        " to=functions.fa<|channel|>final <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.fa json<|message|>",
        "<|channel|>analysis to=functions.fa json<|message|>",
        "<|channel|>final to=functions.fa json<|message|>",
        "<|channel|>commentary to=functions.fa <|constrain|>json<|message|>",
        "<|channel|>analysis to=functions.fa <|constrain|>json<|message|>",
        "<|channel|>final to=functions.fa <|constrain|>json<|message|>",
    ]
    calls = [tag(begin, schema(SCHEMA), ENDS) for begin in begins]
    assert made == sequence(before("analysis"), before("commentary"), {"type": "or", "elements": calls})

    others = [tag(begin.replace("functions.fa", "functions.fb"), schema(True), ENDS) for begin in begins]
    finals = [
        tag("<|channel|>final json<|message|>", text(), ENDS),
        tag("<|channel|>final <|constrain|>json<|message|>", text(), ENDS),
        tag("<|channel|>final<|message|>", text(), ENDS),
    ]
    assert tag_of("harmony", request("required"))["elements"][2]["elements"] == [*calls, *others]
    assert tag_of("harmony", request("auto"))["elements"][2]["elements"] == [*calls, *others, *finals]
    assert tag_of("harmony", request("auto", strict=False)) is None


def test_an_answers_form_is_one_message_of_harmony() -> None:
    """Also where nothing is said of tools; the reasoning stays free before it."""
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    as_json = sequence(
        before("analysis"),
        {
            "type": "or",
            "elements": [
                tag("<|channel|>final json<|message|>", schema(SCHEMA), ENDS),
                tag("<|channel|>final <|constrain|>json<|message|>", schema(SCHEMA), ENDS),
            ],
        },
    )
    for choice in ("auto", "none"):
        assert tag_of("harmony", request(choice, strict=False, response_format=wanted)) == as_json
    final = tag("<|channel|>final<|message|>", {"type": "regex", "pattern": "a+"}, ENDS)
    one = sequence(before("analysis"), final)
    assert tag_of("harmony", request("auto", strict=False, structured_outputs={"regex": "a+"})) == one
    joined = tag_of("harmony", request("auto", response_format=wanted))
    assert joined == {"type": "or", "elements": [tag_of("harmony", request("required")), as_json]}
    assert tag_of("harmony", request("required", response_format=wanted)) == tag_of("harmony", request("required"))


# ---------------------------------------------------------------------------------------------------------------- GLM

VALUE = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
AROUND = [one for one in VALUE if one != "<tool_call>"]


def glm_pair(key: str, value: Any) -> dict[str, Any]:
    return sequence(const(f"<arg_key>{key}</arg_key><arg_value>"), value, const("</arg_value>"))


def test_glm_strict() -> None:
    tools = [held(SCHEMA), HeldTool(name="g", parameters=None, strict=True)]
    first = tag("<tool_call>f", schema(SCHEMA, "glm_xml"), "</tool_call>")
    second = tag("<tool_call>g", schema(True, "glm_xml"), "</tool_call>")
    offered = {
        "type": "triggered_tags",
        "triggers": ["<tool_call>"],
        "tags": [first, second],
        "at_least_one": False,
        "stop_after_first": False,
        "excludes": AROUND,
    }
    assert glm(tools, "auto") == offered
    assert glm(tools, "required") == offered | {"at_least_one": True}
    assert glm(tools[:1], "named") == first


def test_glm_with_tools_that_are_not_strict() -> None:
    free = {"type": "star", "content": glm_pair("x", text(*VALUE))}
    first = tag("<tool_call>fa", schema(SCHEMA, "glm_xml"), "</tool_call>")
    second = tag("<tool_call>fb", free, "</tool_call>")
    assert tag_of("glm_4_7", request("required")) == chain(first, second)
    assert tag_of("glm_4_7", request(NAMED)) == first
    assert tag_of("glm_4_7", request(NAMED, strict=False)) == chain(
        tag("<tool_call>fa", free, "</tool_call>"), single=True
    )
    assert tag_of("glm_4_7", request("auto"))["tags"] == [first, second]


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ({"type": "string"}, text(*VALUE)),
        ({}, text(*VALUE)),
        ({"type": "integer", "minimum": 3}, schema({"type": "integer"})),
        ({"enum": ["a", 1, None]}, {"type": "or", "elements": [const("a"), const("1"), const("null")]}),
        ({"enum": [True]}, const("true")),
        ({"type": ["string", "null"]}, {"type": "or", "elements": [schema({"type": "null"}), text(*VALUE)]}),
        ({"type": ["integer"]}, schema({"type": "integer"})),
    ],
)
def test_glm_values(of: Any, expected: Any) -> None:
    [call] = glm([held({"properties": {"k": of}}, strict=False)], "required")["tags"]
    assert call["content"] == {"type": "star", "content": glm_pair("k", expected)}


@pytest.mark.parametrize(
    "parameters",
    [None, {}, {"properties": {}}, SCHEMA | {"additionalProperties": True}, SCHEMA | {"anyOf": []}],
)
def test_glm_arguments_that_no_list_of_keys_tells(parameters: Any) -> None:
    [call] = glm([held(parameters, strict=False)], "required")["tags"]
    assert call["content"] == schema(True, "glm_xml")


@pytest.mark.parametrize("name", sorted(GRAMMARS))
@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": 1, "required": 2, "$defs": 3},
        {"properties": {"a": None, "b": {"type": {}}, "c": {"type": [[]]}, "d": {"enum": 1}}, "required": [{}, None]},
    ],
)
def test_schemas_that_are_none_raise_nothing(name: str, parameters: Any) -> None:
    for strict in (False, True):
        json.dumps(GRAMMARS[name]([held(parameters, strict=strict)], "auto"))
        json.dumps(GRAMMARS[name]([held(parameters, strict=strict)], "required"))
        json.dumps(GRAMMARS[name]([held(parameters, strict=strict)], "named"))
