"""One output format from the names of a tool parser and of a reasoning parser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from derender.formats.names import REASONING_PARSERS, TOOL_PARSERS
from derender.formats.registry import FORMATS
from derender.formats.response_template import NAME as RESPONSE_TEMPLATE
from derender.formats.response_template import ResponseTemplateError, from_response_template
from derender.formats.table import OutputFormat


class UnknownFormat(ValueError):
    """A parser name that nothing is known of. The message lists near ones."""


def choose_format(
    tool: str | None, reasoning: str | None, *, config: Mapping[str, Any] | None = None
) -> OutputFormat | None:
    """The format that reads the calls of the one and the reasoning of the other; None where neither is named.

    `config`: the tokenizer's configuration, of which the parser `hf` uses the response_template. Raises
    `UnknownFormat`.
    """
    calls = _table(tool, TOOL_PARSERS, "--tool-call-parser", config) if tool else None
    thoughts = _table(reasoning, REASONING_PARSERS, "--reasoning-parser", config) if reasoning else None
    if calls is None or thoughts is None or calls.name == thoughts.name:
        only = calls or thoughts
        if only is None:
            return None
        if calls is None:
            return replaced(only, calls=())
        return only if thoughts is not None else replaced(only, reasoning=None)
    return replaced(
        calls,
        name=f"{calls.name}+{thoughts.name}",
        reasoning=thoughts.reasoning,
        answer=calls.answer or thoughts.answer,
        end_of_turn=tuple(dict.fromkeys((*calls.end_of_turn, *thoughts.end_of_turn))),
        turn_starts=tuple(dict.fromkeys((*calls.turn_starts, *thoughts.turn_starts))),
    )


def replaced(table: OutputFormat, **changes: object) -> OutputFormat:
    """A table with some fields changed."""
    return msgspec.structs.replace(table, **changes)


def _table(name: str, names: Mapping[str, str], flag: str, config: Mapping[str, Any] | None) -> OutputFormat:
    if names.get(name) == RESPONSE_TEMPLATE:
        return _described(f"{flag} {name}", config or {}, reasoning=names is REASONING_PARSERS)
    found = FORMATS.get(names.get(name, name))
    if found is None:
        known = ", ".join(sorted({key for key, table in names.items() if table in FORMATS} | set(FORMATS)))
        known += f" and {RESPONSE_TEMPLATE}"
        raise UnknownFormat(f"{flag} {name}: no such output format; known are {known}")
    return found


def _described(flag: str, config: Mapping[str, Any], *, reasoning: bool) -> OutputFormat:
    """The format that the tokenizer's configuration describes."""
    template = config.get("response_template")
    if not isinstance(template, Mapping):
        older = (
            ", only a response_schema, which Transformers itself has given up" if "response_schema" in config else ""
        )
        raise UnknownFormat(f"{flag}: the tokenizer's configuration has no response_template{older}")
    try:
        found = from_response_template(template)
    except ResponseTemplateError as error:
        raise UnknownFormat(f"{flag}: {error}") from None
    chain = found.messages.kinds if found.messages is not None else ()
    if reasoning and found.reasoning is None and not any(kind.region == "reasoning" for kind in chain):
        raise UnknownFormat(f"{flag}: the response_template has no field thinking")
    if not reasoning and not found.calls:
        raise UnknownFormat(f"{flag}: the response_template has no field tool_calls")
    return found
