"""A parameter's text as JSON, by where its format takes the type from."""

from __future__ import annotations

import json

from derender.formats.table import Typing
from derender.parser.coerce import STRING, coerce
from derender.parser.json_text import is_json, quoted
from derender.parser.schema import Types

_FIXED: dict[Typing, Types] = {
    Typing.INTEGER: frozenset(("integer", "string")),
    Typing.NUMBER: frozenset(("number", "string")),
}


def typed(text: str, typing: Typing, types: Types) -> str:
    """The JSON of a whole value. `types`: those that the tool's schema allows for it."""
    match typing:
        case Typing.SCHEMA:
            return coerce(text, types)
        case Typing.BOOLEAN:
            return "true" if text.strip().lower() in ("true", "1") else "false"
        case Typing.INTEGER | Typing.NUMBER:
            return coerce(text, _FIXED[typing])
        case _:
            bare = text.strip()
            if not is_json(bare):
                return coerce(text, types) if typing is Typing.VALUE_OR_SCHEMA else quoted(text)
            if typing is Typing.VALUE_OR_SCHEMA and bare.startswith('"') and types != STRING:
                return coerce(json.loads(bare), types)
            return bare
