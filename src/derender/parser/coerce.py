"""Types of parameters that a model writes as bare text: from the tool's JSON schema.

The rule is vLLM 0.32's: the types that a schema allows are tried in a fixed order, and text that fits none of them
stays what it can be. Local references are followed, which vLLM does not do.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

_ALIASES = {
    **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "uint", "uint32", "uint64", "long", "short", "unsigned"), "integer"),
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    "bool": "boolean",
    "dict": "object",
    **dict.fromkeys(("list", "arr", "sequence"), "array"),
}
_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_DEEPEST = 24
STRING = frozenset(("string",))
Types = frozenset[str]


class ToolSchemas:
    """The parameter schemas of a request's tools, by tool name."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """`tools`: as in a request, `{"function": {"name", "parameters"}}`."""
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function")
            if isinstance(function, dict) and isinstance(function.get("name"), str):
                parameters = function.get("parameters")
                self._schemas[function["name"]] = parameters if isinstance(parameters, dict) else {}
        self._types: dict[tuple[str, str], Types] = {}

    def schema(self, tool: str, key: str) -> Any:
        """The schema of a parameter, its reference followed; None where there is none."""
        root = self._schemas.get(tool)
        properties = root.get("properties") if root is not None else None
        if root is None or not isinstance(properties, dict) or key not in properties:
            return None
        return resolve(properties[key], root)

    def types(self, tool: str, key: str) -> Types:
        """The types that a parameter may have; string where nothing is known."""
        found = self._types.get((tool, key))
        if found is None:
            root = self._schemas.get(tool, {})
            found = types_of(self.schema(tool, key), root) or STRING
            self._types[tool, key] = found
        return found


def resolve(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """A schema with a local `$ref` followed."""
    if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str) or depth > _DEEPEST:
        return schema
    target: Any = root
    reference = schema["$ref"]
    if not reference.startswith("#/"):
        return schema
    for step in reference[2:].split("/"):
        if not isinstance(target, dict):
            return schema
        target = target.get(step.replace("~1", "/").replace("~0", "~"))
    return resolve(target, root, depth + 1)


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Types:
    """All type names that a schema allows, under their usual names; empty where it says none."""
    schema = resolve(schema, root)
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return frozenset()
    found: set[str] = set()
    said = schema.get("type")
    for name in said if isinstance(said, list) else [said]:
        if isinstance(name, str):
            found.add(_ALIASES.get(name.lower(), name.lower()))
    for value in [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]:
        found.add(_type_name(value))
    for combiner in ("anyOf", "oneOf", "allOf"):
        for inner in _list(schema.get(combiner)):
            found |= types_of(inner, root, depth + 1)
    if schema.get("nullable") is True:
        found.add("null")
    return frozenset(found)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else "string"


def quoted(text: str) -> str:
    """Text as a JSON string, characters kept as they are."""
    return json.dumps(text, ensure_ascii=False)


def coerce(text: str, types: Types) -> str:
    """A parameter's text as JSON, by the types that it may have."""
    bare = text.strip()
    if "null" in types and (bare.lower() == "null" or bare == "None"):
        return "null"
    if "integer" in types and _INTEGER.fullmatch(bare):
        return _number(bare)
    if "number" in types and _NUMBER.fullmatch(bare) and math.isfinite(float(bare)):
        return _number(bare)
    if "boolean" in types and bare.lower() in ("true", "1", "false", "0"):
        return "true" if bare.lower() in ("true", "1") else "false"
    if types & {"object", "array"} and is_container(bare):
        return bare
    if "string" in types or not types:
        return quoted(text)
    return bare if is_json(bare) else quoted(text)


def _number(text: str) -> str:
    """A number's own spelling where it is JSON, else the same number."""
    if _JSON_NUMBER.fullmatch(text):
        return text
    return str(int(text)) if _INTEGER.fullmatch(text) else json.dumps(float(text))


def is_json(text: str) -> bool:
    """Whether text is one finite JSON value."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def is_container(text: str) -> bool:
    """Whether text is a JSON object or array."""
    return text[:1] in ("{", "[") and is_json(text)


def _refuse(name: str) -> Any:
    raise ValueError(name)
