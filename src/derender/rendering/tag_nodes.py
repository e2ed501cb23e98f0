"""The parts that structural tags are made of, as xgrammar writes them: every member is there, defaults too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from derender.protocol.common import Json


@dataclass(frozen=True, kw_only=True)
class HeldTool:
    """A tool as a grammar sees it. `strict`: its arguments are held to `parameters`, else its call to its name only."""

    name: str
    parameters: Json | None
    strict: bool

    @property
    def schema(self) -> Json | bool:
        """What the arguments are held to; True for any JSON."""
        return self.parameters if self.strict and self.parameters is not None else True


def literal(text: str) -> Json:
    """These characters."""
    return {"type": "const_string", "value": text}


def pattern(expression: str) -> Json:
    """What a regular expression matches."""
    return {"type": "regex", "pattern": expression}


def json_schema(schema: Json | bool, *, style: str = "json") -> Json:
    """A value of a JSON schema (True: any), in one of xgrammar's styles of writing arguments."""
    return {
        "type": "json_schema",
        "json_schema": schema,
        "style": style,
        "any_order": False,
        "max_whitespace_cnt": None,
        "excludes": [],
    }


def any_text(*, excludes: Iterable[str] = ()) -> Json:
    """Text without some strings."""
    return {"type": "any_text", "excludes": list(excludes), "max_tokens": None, "max_chars": None}


def tag(begin: str, content: Json, end: str | list[str]) -> Json:
    """Content between two strings; several ends are several spellings."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def sequence(*elements: Json) -> Json:
    """One after another."""
    return {"type": "sequence", "elements": list(elements)}


def either(elements: Sequence[Json]) -> Json:
    """One of them."""
    return {"type": "or", "elements": list(elements)}


def one_of(elements: Sequence[Json]) -> Json:
    """One of them; where there is a single one, that one itself."""
    return elements[0] if len(elements) == 1 else either(elements)


def optional(content: Json) -> Json:
    """Once or not at all."""
    return {"type": "optional", "content": content}


def star(content: Json) -> Json:
    """Any number of times."""
    return {"type": "star", "content": content}


def plus(content: Json) -> Json:
    """Once or more."""
    return {"type": "plus", "content": content}


def chain(tags: Sequence[Json], *, separator: str = "", single: bool = False) -> Json:
    """One or more of the tags, one after another, and nothing else; `single`: one."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": single,
    }


def triggered(
    triggers: Sequence[str], tags: Sequence[Json], *, at_least_one: bool = False, excludes: Iterable[str] = ()
) -> Json:
    """Free text without some strings, in which a trigger begins one of the tags."""
    return {
        "type": "triggered_tags",
        "triggers": list(triggers),
        "tags": list(tags),
        "at_least_one": at_least_one,
        "stop_after_first": False,
        "excludes": list(excludes),
    }


def structural_tag(form: Json) -> Json:
    """The whole."""
    return {"type": "structural_tag", "format": form}


_LISTS = ("triggered_tags", "token_triggered_tags", "tags_with_separator")
"""In the families' tags these hold calls, never arguments."""


def single_call(form: Any) -> Any:
    """The same with every list of calls ending after its first one (`parallel_tool_calls: false`).

    A schema stays as it is, whatever stands in it.
    """
    if isinstance(form, list):
        return [single_call(one) for one in form]
    if not isinstance(form, dict):
        return form
    made = {key: value if key == "json_schema" else single_call(value) for key, value in form.items()}
    if form.get("type") in _LISTS:
        made["stop_after_first"] = True
    return made
