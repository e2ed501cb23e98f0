"""A whole Python literal as JSON, for the values that a model writes as its templates show them: `{'a': True}`."""

from __future__ import annotations

import re

from derender.parser.json_text import is_json, quoted
from derender.parser.python_text import escape, literal

_TOKEN = re.compile(r"\s+|[\[\]{},:()]|[\"']|[\w.+\-]+")
_STOPS = {'"': re.compile(r'["\\\n]'), "'": re.compile(r"['\\\n]")}
_AS_JSON = {"(": "[", ")": "]", ",": ", ", ":": ": "}


def python_as_json(text: str) -> str | None:
    """A literal of lists, tuples, dictionaries with strings for keys, strings, numbers and names; None for others."""
    parts: list[str] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            return None
        token, at = found[0], found.end()
        if token in _STOPS:
            string = _string(text, at, token)
            if string is None:
                return None
            part, at = string
            parts.append(part)
        elif token in "[]{},:()":
            if token in ")]}" and parts and parts[-1] == ", ":
                parts.pop()
            parts.append(_AS_JSON.get(token, token))
        elif not token.isspace():
            part_or_none = literal(token)
            if part_or_none is None:
                return None
            parts.append(part_or_none)
    made = "".join(parts)
    return made if is_json(made) else None


def _string(text: str, at: int, quote: str) -> tuple[str, int] | None:
    """The string whose body begins here, as JSON, and the place behind its closing quote."""
    parts = ['"']
    while True:
        found = _STOPS[quote].search(text, at)
        if found is None or found[0] == "\n":
            return None
        parts.append(quoted(text[at : found.start()])[1:-1])
        if found[0] == quote:
            return "".join([*parts, '"']), found.end()
        escaped = escape(text, found.start())
        if escaped is None:
            return None
        parts.append(escaped[0])
        at = escaped[1]
