"""Structural tags of families whose calls are no JSON between two strings: GLM, Kimi K3, Hunyuan 4, PLaMo 3, harmony.

Each takes the tools and how calls are wanted, and gives the form of a structural tag, None where it has none. All are
equal to what vLLM 0.32 makes for the same family, in what they leave free too. None is of the reasoning: vLLM and
derender tell the engine apart from the tag where that ends; harmony's alone says it, as its reasoning is a message.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

from derender.protocol.common import Json
from derender.rendering.tag_nodes import (
    HeldTool,
    any_text,
    chain,
    either,
    json_schema,
    literal,
    one_of,
    optional,
    pattern,
    plus,
    sequence,
    star,
    tag,
    triggered,
)

Choice = Literal["auto", "required", "named"]
"""Whether the model may call, must call, or must call the one tool that is given."""

Grammar = Callable[[Sequence[HeldTool], Choice], Json | None]
"""From tools and how calls are wanted to the form of a structural tag."""


def _members(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


# ------------------------------------------------------------------------------------------------------------ GLM

_GLM_TEXT = ("<think>", "</think>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_GLM_VALUE = (*_GLM_TEXT[:2], "<tool_call>", *_GLM_TEXT[2:])
_NOT_PLAIN = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties")


def glm(tools: Sequence[HeldTool], choice: Choice) -> Json:
    """A strict tool's arguments follow its schema; of another tool the keys are held, and the types of their values."""
    calls = [tag(f"<tool_call>{tool.name}", _glm_arguments(tool), "</tool_call>") for tool in tools]
    strict = all(tool.strict for tool in tools)
    if choice == "auto" or (choice == "required" and strict):
        return triggered(["<tool_call>"], calls, at_least_one=choice == "required", excludes=_GLM_TEXT)
    return calls[0] if strict else chain(calls, single=choice == "named")


def _glm_arguments(tool: HeldTool) -> Json:
    if tool.strict:
        return json_schema(tool.schema, style="glm_xml")
    parameters = tool.parameters or {}
    properties = _members(parameters.get("properties"))
    if not properties or parameters.get("additionalProperties") is True or any(key in parameters for key in _NOT_PLAIN):
        return json_schema(True, style="glm_xml")
    return star(
        one_of(
            [
                sequence(
                    literal(f"<arg_key>{key}</arg_key><arg_value>"), _glm_value(_members(of)), literal("</arg_value>")
                )
                for key, of in properties.items()
            ]
        )
    )


def _glm_value(schema: Json) -> Json:
    if isinstance(schema.get("enum"), list):
        return one_of([literal(one if isinstance(one, str) else json.dumps(one)) for one in schema["enum"]])
    kind = schema.get("type")
    if isinstance(kind, list):
        forms = [_glm_value({"type": one}) for one in kind if one != "string"]
        return one_of([*forms, any_text(excludes=_GLM_VALUE)] if "string" in kind else forms)
    if kind is None or kind == "string":
        return any_text(excludes=_GLM_VALUE)
    return json_schema({"type": kind})


# --------------------------------------------------------------------------------------------------------- Kimi K3

_K3_TYPES = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "object",
    "array": "array",
}
_K3_END = "<|close|>argument<|sep|>"
_K3_MOST_VALUES = 256
_K3_LONGEST = 4096  # characters; a longer bound is none


def kimi_k3(tools: Sequence[HeldTool], choice: Choice) -> Json:
    """The response, which the prompt may have opened, then the calls.

    A value is held to its schema, but a string, which stands there as it is, to its choices or its length only. Which
    arguments there are, and how often, is free: at least one where the tool requires any. A property without a single
    type may be anything.
    """
    calls = tag("<|open|>tools<|sep|>", chain([_k3_call(tool) for tool in tools]), "<|close|>tools<|sep|>")
    return sequence(
        optional(literal("<|open|>response<|sep|>")),
        tag("", any_text(excludes=("<|open|>", "<|close|>", "<|end_of_msg|>")), "<|close|>response<|sep|>"),
        optional(calls) if choice == "auto" else calls,
        optional(literal("<|close|>message<|sep|>")),
    )


def _k3_attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


def _k3_call(tool: HeldTool) -> Json:
    arguments = _k3_arguments(tool.schema if isinstance(tool.schema, dict) else {})
    return tag(
        f'<|open|>call tool="{_k3_attribute(tool.name)}" index="',
        sequence(pattern("[0-9]+"), literal('"<|sep|>'), arguments),
        "<|close|>call<|sep|>",
    )


def _k3_arguments(schema: Json) -> Json:
    properties = _members(schema.get("properties"))
    if not properties:
        return star(_K3_ANY_ARGUMENT)
    # A property's schema may refer to definitions that stand beside it.
    shared = {key: schema[key] for key in ("$defs", "definitions") if isinstance(schema.get(key), dict)}
    one = one_of([_k3_argument(key, _members(of), shared) for key, of in properties.items()])
    required = schema.get("required")
    return plus(one) if isinstance(required, list) and required else star(one)


_K3_ANY_ARGUMENT = tag(
    "<|open|>argument ", sequence(pattern(r"[^<]*<\|sep\|>"), any_text(excludes=("<|close|>",))), _K3_END
)


def _k3_argument(key: str, schema: Json, shared: Json) -> Json:
    kind = schema.get("type")
    written = _K3_TYPES.get(kind) if isinstance(kind, str) else None
    if written is None:
        return _K3_ANY_ARGUMENT
    if written == "string":
        value = _k3_string(schema)
    else:
        value = json_schema({**schema, **{name: of for name, of in shared.items() if name not in schema}})
    return tag(f'<|open|>argument key="{_k3_attribute(key)}" type="{written}"<|sep|>', value, _K3_END)


def _k3_string(schema: Json) -> Json:
    """A string without quotes; xgrammar has no look-ahead, so that only the marks' first characters can be kept out."""
    values = schema.get("enum")
    if values is None and isinstance(schema.get("const"), str):
        values = [schema["const"]]
    values = values if isinstance(values, list) else []
    if 0 < len(values) <= _K3_MOST_VALUES and all(isinstance(one, str) and "<|" not in one for one in values):
        return one_of([literal(one) for one in values])
    longest, shortest = schema.get("maxLength"), schema.get("minLength")
    if type(longest) is not int or not 0 <= longest <= _K3_LONGEST:
        return any_text(excludes=("<|close|>",))
    if type(shortest) is not int or not 0 <= shortest <= longest:
        shortest = 0
    return pattern(rf"(?:[^<]|<[^|]){{{shortest},{longest}}}")


# ------------------------------------------------------------------------------------------------------ Hunyuan 4


def hunyuan_4(suffix: str) -> Grammar:
    """Hunyuan 4, whose tags all have one suffix. The keys are held, those that a tool requires in their order and
    first; values are free, whether a tool is strict or not. Calls that the model may make are left free, as in vLLM."""

    def pair(key: str) -> Json:
        return sequence(
            literal(f"<arg_key{suffix}>"),
            literal(key),
            literal(f"</arg_key{suffix}>"),
            literal(f"<arg_value{suffix}>"),
            any_text(),
            literal(f"</arg_value{suffix}>"),
        )

    def arguments(parameters: Json) -> Json:
        properties, required = _members(parameters.get("properties")), parameters.get("required")
        needed = [key for key in required if isinstance(key, str)] if isinstance(required, list) else []
        first = [key for key in properties if key in needed] + [key for key in needed if key not in properties]
        others = [pair(key) for key in properties if key not in needed]
        parts = [*map(pair, first), *([star(one_of(others))] if others else [])]
        return sequence(*parts) if parts else any_text()

    def build(tools: Sequence[HeldTool], choice: Choice) -> Json | None:
        if choice == "auto":
            return None
        calls = [
            tag(f"<tool_call{suffix}>{tool.name}", arguments(tool.parameters or {}), f"</tool_call{suffix}>")
            for tool in tools
        ]
        return sequence(
            literal(f"<tool_calls{suffix}>"), chain(calls, single=choice == "named"), literal(f"</tool_calls{suffix}>")
        )

    return build


# --------------------------------------------------------------------------------------------------------- PLaMo 3


def _plamo(name: str) -> str:
    return f"<|plamo:{name}:plamo|>"


def plamo_3(tools: Sequence[HeldTool], choice: Choice) -> Json:
    """A section of requests, each a name and JSON; the end of the turn may follow in one go."""
    ends = _plamo("end_tool_requests")
    requests = tag(
        _plamo("begin_tool_requests"),
        chain(
            [
                tag(
                    f"{_plamo('begin_tool_request')}{_plamo('begin_tool_name')}{tool.name}{_plamo('end_tool_name')}"
                    f"{_plamo('begin_tool_arguments')}<|plamo:constrain|>json<|plamo:msg|>",
                    json_schema(tool.schema),
                    _plamo("end_tool_arguments") + _plamo("end_tool_request"),
                )
                for tool in tools
            ],
            single=choice == "named",
        ),
        [ends, ends + "<|plamo:tag|>"],
    )
    return triggered([requests["begin"]], [requests]) if choice == "auto" else requests


# --------------------------------------------------------------------------------------------------------- harmony

_CHANNELS = ("commentary", "analysis", "final")
_JSON_MARKS = (" json", " <|constrain|>json")
_MESSAGE_ENDS = ["<|end|>", ""]
"""The other closers end the output, and a grammar has no place for what ends it: nothing stands for them."""


def harmony(tools: Sequence[HeldTool], choice: Choice) -> Json:
    """The reasoning and a word before calling, both optional, then one call, or the answer where the model may choose.
    The name stands in the role or in the channel."""
    messages = [
        tag(head.format(name=tool.name, channel=channel, mark=mark), json_schema(tool.schema), _MESSAGE_ENDS)
        for tool in tools
        for head in (
            " to=functions.{name}<|channel|>{channel}{mark}<|message|>",
            "<|channel|>{channel} to=functions.{name}{mark}<|message|>",
        )
        for mark in _JSON_MARKS
        for channel in _CHANNELS
    ]
    if choice == "auto":
        messages += [_final(mark, any_text()) for mark in (*_JSON_MARKS, "")]
    return sequence(_before("analysis"), _before("commentary"), either(messages))


def harmony_answer(form: Json) -> Json:
    """The reasoning, which is optional, then an answer of that form."""
    if form["type"] == "json_schema":
        return sequence(_before("analysis"), either([_final(mark, form) for mark in _JSON_MARKS]))
    return sequence(_before("analysis"), _final("", form))


def _final(mark: str, form: Json) -> Json:
    return tag(f"<|channel|>final{mark}<|message|>", form, _MESSAGE_ENDS)


def _before(channel: str) -> Json:
    message = tag(f"<|channel|>{channel}<|message|>", any_text(), "<|end|>")
    return optional(sequence(message, literal("<|start|>assistant")))
