"""Conversations for the families whose prompt is made by code: random ones, the same for the same seed."""

from __future__ import annotations

import json
from random import Random
from typing import Any

Json = Any

TEXTS = (
    "Hi", "What is 2 + 2?", "Be brief.", "", " ", " leading", "trailing  ", "two\nlines", "a\n\nb\n", "é 東京 😀",
    '{"temperature": 20.50, "ok": true}', '{"a":1,"b":[1, 2]}', "[1,2]", "12", "null", "not json {", 'quotes " and \\',
    "tabs\tand\r\n", "<b>&amp;</b>", "x" * 300, "\u200b\u00a0\u3000", "مرحبا",
)  # fmt: skip
ARGUMENTS = (
    "{}", '{"city":"Oslo"}', '{"city": "Zürich 東京", "days": 1.0, "big": 9007199254740993, "x": null}',
    '{"a":{"b":[true,false,1e5]},"s":"1"}', '{"k\\u00e9y":"line\\nbreak","n":-0.5}',
    '{"code": "print(\\"x\\")", "e": []}',
)  # fmt: skip
SCHEMAS: tuple[Json, ...] = (
    None,
    {},
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    {
        "type": "object",
        "description": "all of it\nin two lines",
        "properties": {
            "a": {"type": "string", "description": "A text", "default": "Paris"},
            "b": {"type": "integer", "default": 3},
            "c": {"type": ["string", "integer", "null"], "enum": ["x", "y", None]},
            "d": {"type": "array", "items": {"type": "number"}, "description": "many\nlines", "default": [1.0, 2]},
            "e": {
                "type": "object",
                "description": "nested",
                "properties": {"k": {"type": "boolean", "description": "inner"}, "z": {"type": "object"}},
                "required": ["k"],
            },
            "f": {"type": "string", "enum": ["s", "m"], "default": "s"},
            "g": {
                "oneOf": [
                    {"type": "string", "description": "one"},
                    {"type": "integer", "default": 2, "nullable": True},
                ],
                "description": "G",
                "default": 1.5,
            },
            "h": {"oneOf": [{"type": "string", "description": "same"}, {"enum": [1]}], "description": "same"},
            "i": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "j": {"type": "array", "items": {"oneOf": [{"type": "string", "default": "q"}, {"type": "number"}]}},
            "l": {"type": "string", "nullable": True, "title": "T", "examples": ["one", 2, "three"]},
            "m": {"type": "string", "enum": [1, 2]},
            "n": {"type": "array"},
            "o": {"type": "number", "default": 1e21},
            "p": {"type": "object", "default": {"x": "é", "y": [None, True, 0.00001]}},
            "q-r": {"const": 1},
            "s": True,
        },
        "required": ["a", "d", "e"],
    },
)
NAMES = ("get_weather", "now", "add", "Write-File_2")


def identity(random: Random) -> str:
    letters = "abcdefghijkABCDEFGHIJK0123456789"
    return "".join(random.choice(letters) for _ in range(9))


def text(random: Random) -> str:
    return random.choice(TEXTS)


def content(random: Random, *, parts: bool) -> Json:
    if parts and random.random() < 0.25:
        return [{"type": "text", "text": text(random)} for _ in range(random.randint(1, 3))]
    return text(random)


def tool(random: Random) -> Json:
    function: Json = {"name": random.choice(NAMES)}
    if random.random() < 0.7:
        function["description"] = random.choice(("Does it.", "Two\nlines\n", "é", ""))
    function["parameters"] = random.choice(SCHEMAS)
    if random.random() < 0.2:
        function["strict"] = random.random() < 0.5
    return {"type": "function", "function": function}


def conversation(
    random: Random,
    *,
    parts: bool = True,
    developer: bool = True,
    developer_tools: bool = True,
    late_system: bool = True,
    reasoning: bool = True,
    text_beside_calls: bool = True,
    shuffled: bool = True,
) -> list[Json]:
    """Messages of an agent: instructions, turns with calls and their results, sometimes in another order or too few."""
    messages: list[Json] = []
    instructions = ["system", "developer"] if developer else ["system"]

    def instruct() -> None:
        role = random.choice(instructions)
        message: Json = {"role": role, "content": content(random, parts=parts)}
        if role == "developer" and developer_tools and random.random() < 0.3:
            message["tools"] = [tool(random)]
        messages.append(message)

    if random.random() < 0.5:
        instruct()
    for _ in range(random.randint(1, 4)):
        if late_system and random.random() < 0.1:
            instruct()
        messages.append({"role": "user", "content": content(random, parts=parts)})
        while random.random() < 0.45:
            calls = [
                {
                    "id": identity(random),
                    "type": "function",
                    "function": {"name": random.choice(NAMES), "arguments": random.choice(ARGUMENTS)},
                }
                for _ in range(random.randint(1, 3))
            ]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
            if text_beside_calls and random.random() < 0.4:
                message["content"] = content(random, parts=parts)
            if reasoning and random.random() < 0.5:
                message["reasoning"] = text(random)
            messages.append(message)
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": content(random, parts=parts)} for call in calls
            ]
            if shuffled and random.random() < 0.3:
                random.shuffle(results)
            if shuffled and random.random() < 0.05:
                results.pop()
            messages += results
        if random.random() < 0.7:
            message = {"role": "assistant", "content": content(random, parts=parts)}
            if reasoning and random.random() < 0.5:
                message["reasoning"] = text(random)
            messages.append(message)
    if messages[-1]["role"] == "assistant" and random.random() < 0.7:
        messages.append({"role": "user", "content": content(random, parts=parts)})
    return messages


def request(seed: int, **kinds: bool) -> Json:
    """A chat request."""
    random = Random(seed)
    made: Json = {"model": "m", "messages": conversation(random, **kinds)}
    if random.random() < 0.4:
        made["tools"] = [tool(random) for _ in range(random.randint(1, 3))]
    return json.loads(json.dumps(made))
