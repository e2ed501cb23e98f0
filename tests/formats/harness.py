"""Runs a format's parser over text: markers as single tokens or as plain text, any split, through snapshots."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.vocabularies import byte_level_json, from_json

from derender.formats.table import OutputFormat
from derender.parser.coerce import ToolSchemas
from derender.parser.compiled import CompiledFormat, _all_literals
from derender.parser.engine import FormatParser, ParserOptions
from derender.parser.events import ContentText, Event, ReasoningText, ToolCallArguments, ToolCallBegin, ToolCallEnd
from derender.parser.start import start_region
from derender.tokenizer import Tokenizer

_PIECES = re.compile(r"<\|[^<>|]+\|>")
"""What is one token in a marker of several."""

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in {
        "get_weather": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["c", "f"]}},
        "get_time": {},
        "add": {"a": {"type": "integer"}, "b": {"type": "number"}},
        "set_flags": {
            "on": {"type": "boolean"},
            "zip": {"type": "string"},
            "limit": {"type": ["integer", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "opts": {"type": "object"},
        },
        "write_file": {"path": {"type": "string"}, "content": {"type": "string"}},
    }.items()
]


@functools.cache
def vocabulary(markers: tuple[str, ...], special: tuple[str, ...] = ()) -> Tokenizer:
    """The small byte-level vocabulary with these markers as added tokens, some of them flagged special."""
    tree = json.loads(byte_level_json())
    known = {token["content"] for token in tree["added_tokens"]}
    number = max([*tree["model"]["vocab"].values(), *(t["id"] for t in tree["added_tokens"])]) + 1
    for marker in dict.fromkeys((*markers, *special)):
        if marker not in known:
            template = tree["added_tokens"][-1]
            tree["added_tokens"].append(
                {**template, "id": number, "content": marker, "special": marker in special, "normalized": False}
            )
            number += 1
    return from_json(json.dumps(tree), {"eos_token": "<|im_end|>"})


@functools.cache
def compiled(table: OutputFormat, *, tokens: bool, special: tuple[str, ...] = ()) -> CompiledFormat:
    """A format over the small vocabulary; `tokens`: its markers that look like tokens are single tokens there."""
    literals = [piece for m in _all_literals(table) for piece in _PIECES.findall(m) or [m]]
    markers = [m for m in literals if m[:1] in "<[" and m[-1:] in ">]" and len(m) > 2] if tokens else []
    return CompiledFormat(table, vocabulary((*markers, *table.end_of_turn) if tokens else (), special))


def assemble(events: Sequence[Event]) -> dict[str, Any]:
    """What a client has in the end. A call is `(name, arguments, complete)`."""
    reasoning = content = ""
    calls: dict[int, list[Any]] = {}
    for event in events:
        match event:
            case ReasoningText(text):
                reasoning += text
            case ContentText(text):
                content += text
            case ToolCallBegin(index, name, _):
                assert index not in calls, "a name is sent once"
                calls[index] = [name, "", False]
            case ToolCallArguments(index, text):
                calls[index][1] += text
            case ToolCallEnd(index):
                calls[index][2] = True
    assert list(calls) == list(range(len(calls))), "calls are numbered from 0"
    return {"reasoning": reasoning, "content": content, "calls": [tuple(call) for call in calls.values()]}


def read(
    form: CompiledFormat,
    text: str,
    *,
    sizes: Sequence[int] = (),
    prompt_tail: str = "",
    kwargs: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = TOOLS,
    snapshots: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """The assembled answer for a text.

    Its ids are pushed in parts of these sizes, with a snapshot through JSON text between any two.
    """
    tokenizer = form.marks.tokenizer
    ids = tokenizer.encode(text)
    start = start_region(form, tokenizer.encode(prompt_tail) or None, kwargs)

    def parser() -> FormatParser:
        return FormatParser(form, ParserOptions(start=start, **options), ToolSchemas(tools))

    current, events, regions, at = parser(), list[Event](), 0, 0
    for size in sizes:
        if at >= len(ids):
            break
        events += current.push(ids[at : at + size])
        regions += len(current.take_regions())
        at += size
        if snapshots:
            state = json.loads(json.dumps(current.snapshot()))
            current = parser()
            current.restore(state)
    events += current.push(ids[at:])
    events += current.finish()
    regions += len(current.take_regions())
    assert regions == len(ids), "each token belongs to one region"
    return assemble(events)
