"""Elements: typed arguments with attributes, and nested ones that the tool's schema types."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.formats.harness import compiled, read, vocabulary
from tests.parser.streams import same_for_every_split, survives_noise

from derender.formats.elements import KIMI_K3, MINIMAX_M3
from derender.parser.compiled import CompiledFormat

MARK = "]<]minimax[>["
TEXTS = ["", " a b ", "</item>", "<b>x</b>", "é\n\"\\", "1", "null", "]<]minimax", "[1]"]  # fmt: skip
KEYS = ["city", "item", "a b", "invoker", "x-y"]


def m3(*, tokens: bool) -> CompiledFormat:
    markers = (MARK, "<mm:think>", "</mm:think>", "[e~[") if tokens else ()
    return CompiledFormat(MINIMAX_M3, vocabulary(markers))


def tool(properties: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": properties, **more}
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


def element(name: str, body: str) -> str:
    return f"{MARK}<{name}>{body}{MARK}</{name}>"


def invoke(body: str) -> str:
    return f'{MARK}<tool_call>\n{MARK}<invoke name="f">{body}{MARK}</invoke>\n{MARK}</tool_call>'


def a_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "null"] + ["array", "object"] * (depth < 3)
    kind = rng.choice(kinds)
    if kind == "array":
        return {"type": "array", "items": a_schema(rng, depth + 1)}
    if kind == "object":
        keys = rng.sample(KEYS, rng.randint(1, 3))
        return {"type": "object", "properties": {key: a_schema(rng, depth + 1) for key in keys}}
    return {"type": kind}


def a_value(rng: random.Random, schema: dict[str, Any]) -> tuple[Any, str]:
    """A value of a schema, and how it is written."""
    match schema["type"]:
        case "array":
            items = [a_value(rng, schema["items"]) for _ in range(rng.randint(0, 3))]
            return [value for value, _ in items], "\n".join(element("item", text) for _, text in items)
        case "object":
            members = {key: a_value(rng, one) for key, one in schema["properties"].items()}
            body = "\n".join(element(key, text) for key, (_, text) in members.items())
            return {key: value for key, (value, _) in members.items()}, body
        case "string":
            text = rng.choice(TEXTS)
            return text, text
        case "integer":
            value: Any = rng.randint(-9, 10**20)
        case "number":
            value = rng.choice([0.5, -1.25, 1e300])
        case "boolean":
            value = rng.random() < 0.5
        case _:
            value = None
    return value, json.dumps(value)


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
def test_round_trip(tokens: bool) -> None:
    form, rng = m3(tokens=tokens), random.Random(7)
    for n in range(60):
        properties = {key: a_schema(rng) for key in rng.sample(KEYS, rng.randint(0, 3))}
        values = {key: a_value(rng, schema) for key, schema in properties.items()}
        body = "\n".join(element(key, text) for key, (_, text) in values.items())
        got = same_for_every_split(form, "Hi." + invoke(body), n, tools=tool(properties))
        (name, text, whole), *others = got["calls"]
        assert (name, whole, others, got["content"]) == ("f", True, [], "Hi.")
        assert json.loads(text) == {key: value for key, (value, _) in values.items()}


@pytest.mark.parametrize(
    ("properties", "body", "expected"),
    [
        ({}, element("a", "1"), {"a": "1"}),
        ({}, element("a", "1") + element("a", "2"), {"a": ["1", "2"]}),
        ({}, element("a", element("b", "1") + element("b", "2") + element("c", "")), {"a": {"b": ["1", "2"], "c": ""}}),
        ({}, element("a", f"x {element('b', '1')} y"), {"a": {"b": "1", "$text": "x  y"}}),
        ({"a": {"type": "string"}}, element("a", element("b", "1")), {"a": element("b", "1")}),
        ({"a": {"type": ["array", "null"], "items": {"type": "integer"}}}, element("a", element("n", "1")), {"a": [1]}),
        ({"a": {"type": "array", "items": {"type": "integer"}}}, element("a", "[1, 2]"), {"a": [1, 2]}),
        ({"a": {"$ref": "#/$defs/P"}}, element("a", element("x", "1")), {"a": {"x": 1}}),
        ({"a": {"type": "integer"}}, f"{MARK}<a>1{MARK}<b>2", {"a": {"b": "2", "$text": "1"}}),
        ({"a": {}}, f"{MARK}</z>{element('a', '1')} noise {MARK}what", {"a": "1"}),
    ],
)
def test_shapes(properties: dict[str, Any], body: str, expected: dict[str, Any]) -> None:
    definitions = {"$defs": {"P": {"type": "object", "properties": {"x": {"type": "integer"}}}}}
    for tokens in (True, False):
        got = same_for_every_split(m3(tokens=tokens), invoke(body), 3, tools=tool(properties, **definitions))
        assert [(name, json.loads(text), whole) for name, text, whole in got["calls"]] == [("f", expected, True)]
        assert got["content"] == ""


def test_a_cut_element() -> None:
    form, tools = m3(tokens=True), tool({"a": {"type": "string"}, "n": {"type": "integer"}})
    cut = f'{MARK}<tool_call>{MARK}<invoke name="f">{element("n", "1")}{MARK}<a>Os'
    assert read(form, cut, tools=tools)["calls"] == [("f", '{"n": 1, "a": "Os', False)]
    assert read(form, cut[:-10], tools=tools)["calls"] == [("f", "", False)]


def test_nesting_without_end() -> None:
    form = m3(tokens=True)
    got = read(form, invoke(f"{MARK}<a>" * 3000), tools=tool({}))
    assert [(name, whole) for name, _, whole in got["calls"]] == [("f", True)]
    json.loads(got["calls"][0][1])


def test_attributes_in_any_order() -> None:
    form = compiled(KIMI_K3, tokens=True)
    text = (
        '<|open|>tools<|sep|><|open|>call index="1" tool="f" <|sep|>'
        '<|open|>argument type="number" key="a"<|sep|>1.50<|close|>argument<|sep|>'
        '<|open|>argument key="b"  type="string"<|sep|> x<|close|>think<|sep|> <|close|>argument<|sep|>'
        '<|open|>argument key="c" type="object"<|sep|>{"a": <|close|>argument<|sep|>'
        '<|open|>argument key="d"<|sep|>[1]<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    )
    got = same_for_every_split(form, text, 1, kwargs={"thinking": False})
    assert got == {
        "reasoning": "",
        "content": "",
        "calls": [("f", '{"a": 1.50, "b": " x<|close|>think<|sep|> ", "c": "{\\"a\\": ", "d": [1]}', True)],
    }


def test_the_answer_ends_reasoning() -> None:
    form = compiled(KIMI_K3, tokens=True)
    for text in ("a<|close|>think<|sep|><|open|>response<|sep|>b", "a<|open|>response<|sep|>b"):
        got = same_for_every_split(form, text + "<|close|>response<|sep|><|close|>message<|sep|>", 1)
        assert (got["reasoning"], got["content"]) == ("a", "b")
    tail = '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>'
    assert read(form, "b<|close|>response<|sep|>", prompt_tail=tail)["content"] == "b"


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
def test_noise(tokens: bool) -> None:
    names = ["tool_call", 'invoke name="f"', "invoke", "a", "item"]
    pieces = [MARK, *(f"{MARK}<{name}>" for name in names), *(f"{MARK}</{name}>" for name in names), "x", " ", "<a>"]
    tools = tool({"a": {"type": "string"}, "item": {"type": "array", "items": {"type": "integer"}}})
    survives_noise(m3(tokens=tokens), [*pieces, "<mm:think>", "</mm:think>", "1", "]<]"], tools=tools)
    names = ["think", "response", "tools", 'call tool="f" index="1"', "call", "argument", "message"]
    pieces = [*(f"<|open|>{name}<|sep|>" for name in names), *(f"<|close|>{name}<|sep|>" for name in names)]
    pieces += ['<|open|>argument key="a" type="number"<|sep|>', "<|open|>", "<|close|>", "<|sep|>", "1", "x", " "]
    survives_noise(compiled(KIMI_K3, tokens=tokens), pieces, rounds=80)
