"""Requests with a text of one's choice at any one place where a request has a text, and templates to try them on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.vocabularies import SHARED, byte_level_json, from_json

from derender.tokenizer import Tokenizer
from derender.tokenizer.byte_level import added_token

Json = Any
WORD = "zqz"
"""Stands where an injection may stand; part of no control token."""

PLACES = (
    *("user content", "system content", "part", "assistant content", "reasoning", "call id", "call name"),
    *("argument key", "argument value", "result", "result name", "tool name", "tool description"),
    *("parameter key", "parameter description", "enum value", "kwarg", "document", "user name"),
)
_TOKENS = re.compile(
    r"<\|[^|>\s{}'\"]{1,40}\|>|<｜[^｜\s{}]{1,40}｜>|\[/?[A-Z_]{2,30}\]|<(?:start|end)_of_[a-z]+>|</?s>|\[\|[a-z]+\|\]"
)


def request(place: str, text: str, *, simple: bool = False) -> Json:
    """A conversation with calls, its tools and more, with `text` at one place. `simple`: without them."""
    at = dict.fromkeys(PLACES, WORD) | {"call id": "abcdefghi", place: text}
    part: Json = [{"type": "text", "text": "a"}, {"type": "text", "text": at["part"]}]
    messages: list[Json] = [
        {"role": "system", "content": at["system content"]},
        {"role": "user", "content": part if place == "part" else at["user content"], "name": at["user name"]},
    ]
    body: Json = {"messages": messages}
    if simple:
        messages.append({"role": "assistant", "content": at["assistant content"], "reasoning": at["reasoning"]})
        messages.append({"role": "user", "content": "more"})
        return body
    arguments = json.dumps({at["argument key"]: [at["argument value"], 1], "n": 3})
    function = {"name": at["call name"], "arguments": arguments}
    messages.append(
        {
            "role": "assistant",
            "content": at["assistant content"],
            "reasoning": at["reasoning"],
            "tool_calls": [{"id": at["call id"], "type": "function", "function": function}],
        }
    )
    messages.append({"role": "tool", "content": at["result"], "tool_call_id": at["call id"], "name": at["result name"]})
    schema = {
        "type": "object",
        "properties": {
            at["parameter key"]: {
                "type": "string",
                "description": at["parameter description"],
                "enum": ["a", at["enum value"]],
            }
        },
        "required": [at["parameter key"]],
    }
    stated = {"name": at["tool name"], "description": at["tool description"], "parameters": schema}
    body["tools"] = [{"type": "function", "function": stated}]
    body["tool_choice"] = "none"
    body["documents"] = [{"title": "t", "text": at["document"]}]
    body["chat_template_kwargs"] = {"extra": at["kwarg"]}
    return body


def injections(token: str) -> Iterator[str]:
    """Texts that spell a control token, or would complete one between brackets or beside another text."""
    inner = token.strip("<>[]|/｜")
    yield token
    yield f"a{token}{token} b"
    yield inner
    yield f"{inner}|>{inner}"
    yield token[:-1]
    yield token[1:]
    yield "".join(f"\\u{ord(one):04x}" for one in token)


def tokens_of(source: str) -> list[str]:
    """What a template writes that looks like control tokens, and what all of them know."""
    return sorted({*_TOKENS.findall(source), "<s>", "</s>"})


def vocabulary(tokens: list[str]) -> Tokenizer:
    """The small vocabulary with these control tokens too."""
    tree = json.loads(byte_level_json())
    known = {one["content"] for one in tree["added_tokens"]}
    number = max(tree["model"]["vocab"].values()) + 1
    number = max(number, *(one["id"] + 1 for one in tree["added_tokens"]))
    for token in tokens:
        if token not in known:
            tree["added_tokens"].append(added_token(number, token))
            number += 1
    return from_json(json.dumps(tree), {"bos_token": "<s>", "eos_token": "</s>"})


def shared_templates() -> list[str]:
    """The paths of real chat templates, where there are any."""
    root = SHARED / "templates"
    return [str(path.relative_to(root)) for path in sorted(root.rglob("*.jinja"))]
