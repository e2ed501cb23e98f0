"""Types of parameters that a model writes as bare text: from the tool's JSON schema.

The types that a schema allows are tried in a fixed order (that of vLLM 0.32), and text that fits none of them stays
what it can be. Other than in vLLM the keywords of a schema hold together (`type: string` beside an `anyOf` with null
allows no null), local references are followed, and a number keeps the digits that the model wrote.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from derender.parser.json_text import is_json, quoted
from derender.parser.python_value import python_as_json

_ALIASES = {
    **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
    **dict.fromkeys(
        ("int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64", "long", "short"),
        "integer",
    ),
    "unsigned": "integer",
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    "bool": "boolean",
    **dict.fromkeys(("dict", "map"), "object"),
    **dict.fromkeys(("list", "arr", "sequence"), "array"),
}
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"([+-]?)([0-9]+)(?:\.0*)?")
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DEEPEST = 24
_LONGEST_WHOLE = 40  # digits up to which an exponent is written out
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
        self._properties: dict[str, Mapping[str, Any]] = {}
        self._types: dict[tuple[str, str], Types] = {}

    def schema(self, tool: str, key: str) -> Any:
        """The schema of a parameter, its reference followed; None where there is none."""
        schema = self.properties(tool).get(key)
        return None if schema is None else resolve(schema, self._schemas[tool])

    def properties(self, tool: str) -> Mapping[str, Any]:
        """The schemas of a tool's parameters by their keys; empty where nothing is known."""
        found = self._properties.get(tool)
        if found is None:
            root = self._schemas.get(tool)
            found = {} if root is None else _properties(root, root)
            if root is not None:
                self._properties[tool] = found
        return found

    def root(self, tool: str) -> Mapping[str, Any]:
        """The schema of all parameters of a tool, which local references start from; empty where there is none."""
        return self._schemas.get(tool, {})

    def keys(self, tool: str) -> frozenset[str]:
        """The names of a tool's parameters; empty where nothing is known."""
        return frozenset(self.properties(tool))

    def types(self, tool: str, key: str) -> Types:
        """The types that a parameter may have; string where nothing is known."""
        if key not in self.properties(tool):
            return STRING
        found = self._types.get((tool, key))
        if found is None:
            root = self._schemas[tool]
            found = types_of(self.properties(tool)[key], root) or STRING
            self._types[tool, key] = found
        return found


def _properties(schema: Any, root: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    schema = resolve(schema, root)
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return {}
    found: dict[str, Any] = {}
    for inner in _list(schema.get("allOf")):
        found.update(_properties(inner, root, depth + 1))
    own = schema.get("properties")
    return {**found, **own} if isinstance(own, dict) else found


def resolve(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """A schema whose whole is a local `$ref`, followed; with keywords beside it both hold (`allOf`)."""
    if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str) or depth > _DEEPEST:
        return schema
    target: Any = root
    reference = unquote(schema["$ref"])
    if reference != "#" and not reference.startswith("#/"):
        return schema
    for step in reference[2:].split("/") if reference != "#" else ():
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and step.isascii() and step.isdecimal() and int(step[:6]) < len(target):
            target = target[int(step[:6])]
        elif isinstance(target, dict):
            target = target.get(step)
        else:
            return schema
    target = resolve(target, root, depth + 1)
    beside = {key: value for key, value in schema.items() if key not in ("$ref", "$defs", "definitions")}
    if not any(key in beside for key in ("type", "enum", "const", "anyOf", "oneOf", "allOf", "properties")):
        return target
    return {**beside, "allOf": [*_list(beside.get("allOf")), target]}


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Types:
    """All type names that a schema allows, under their usual names; empty where it says none."""
    schema = resolve(schema, root)
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return frozenset()
    said = schema.get("type")
    found = frozenset(
        _ALIASES.get(name.lower(), name.lower())
        for name in (said if isinstance(said, list) else [said])
        if isinstance(name, str)
    )
    if schema.get("nullable") is True and found:
        found |= {"null"}
    values = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    found = _both(found, frozenset(map(_type_name, values)))
    for combiner in ("anyOf", "oneOf"):
        found = _both(found, _union([types_of(inner, root, depth + 1) for inner in _list(schema.get(combiner))]))
    for inner in _list(schema.get("allOf")):
        found = _both(found, types_of(inner, root, depth + 1))
    return found


def _union(parts: list[Types]) -> Types:
    """The types of alternatives; empty if one of them allows any."""
    return frozenset().union(*parts) if all(parts) else frozenset()


def _both(one: Types, other: Types) -> Types:
    """The types that two keywords allow together; one that says nothing, or the opposite, does not count."""
    if not one or not other:
        return one or other
    both = one & other
    if "integer" in one ^ other and "number" in (one if "integer" in other else other):
        both |= {"integer"}
    return both or one


def named_types(name: str) -> Types:
    """The types that one name says, under its usual name."""
    return frozenset((_ALIASES.get(name.lower(), name.lower()),))


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
        return "integer" if value.is_integer() else "number"
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else "string"


def coerce(text: str, types: Types) -> str:
    """A parameter's text as JSON, by the types that it may have.

    Python's words and containers are read as well, since templates write them into a model's history.
    """
    bare = text.strip()
    low = bare.lower() if len(bare) <= 5 else ""
    if "null" in types and low in ("null", "none"):
        return "null"
    if types & {"integer", "number"} and _NUMBER.fullmatch(bare) and math.isfinite(float(bare)):
        whole = _whole(bare) if "integer" in types else None
        if whole is not None:
            return whole
        if "number" in types:
            return _number(bare)
    if "boolean" in types and low in ("true", "1", "false", "0"):
        return "true" if low in ("true", "1") else "false"
    if types & {"object", "array"} and bare[:1] in ("{", "[", "("):
        if is_json(bare):
            return bare
        as_json = python_as_json(bare)
        if as_json is not None:
            return as_json
    if "string" in types or not types:
        return quoted(text)
    return bare if is_json(bare) else quoted(text)


def _whole(text: str) -> str | None:
    """A whole number without a fraction or, if it is short, an exponent; None for another number."""
    found = _WHOLE.fullmatch(text)
    if found is not None:
        digits = found[2].lstrip("0") or "0"
        return "-" + digits if found[1] == "-" and digits != "0" else digits
    if "e" not in text.lower() or not float(text).is_integer():
        return None
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > _LONGEST_WHOLE or len(exponent) > 4:
        return None
    value = Decimal(text)
    if value != value.to_integral_value() or value.adjusted() >= _LONGEST_WHOLE:
        return None
    return str(int(value))


def _number(text: str) -> str:
    """A number's own spelling where it is JSON, else the same digits as JSON has them."""
    if _JSON_NUMBER.fullmatch(text):
        return text
    sign = "-" if text[0] == "-" else ""
    mantissa, exponent = re.split("(?=[eE])|$", text.lstrip("+-"), maxsplit=1)
    whole, _, fraction = mantissa.partition(".")
    return sign + (whole.lstrip("0") or "0") + ("." + fraction if fraction else "") + exponent
