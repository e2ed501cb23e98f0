"""Types of parameters that a model writes as bare text: from the tool's JSON schema.

The types that a schema allows are tried in a fixed order (that of vLLM 0.32), and text that fits none of them stays
what it can be. Other than in vLLM the keywords of a schema hold together (`type: string` beside an `anyOf` with null
allows no null), local references are followed, and a number keeps the digits that the model wrote.
"""

from __future__ import annotations

import math
import re
from collections.abc import KeysView, Mapping, Sequence
from decimal import Decimal
from typing import Any

from derender.parser.json_text import is_json, quoted
from derender.parser.python_value import python_as_json
from derender.parser.schema import SchemaTree, Types

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"([+-]?)([0-9]+)(?:\.0*)?")
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LONGEST_WHOLE = 40  # digits up to which an exponent is written out
STRING = frozenset(("string",))


class ToolSchemas:
    """The parameter schemas of a request's tools, by tool name."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """`tools`: as in a request, `{"function": {"name", "parameters"}}`."""
        self._trees: dict[str, SchemaTree] = {}
        for tool in tools:
            function = tool.get("function")
            if isinstance(function, dict) and isinstance(function.get("name"), str):
                parameters = function.get("parameters")
                self._trees[function["name"]] = SchemaTree(parameters if isinstance(parameters, dict) else {})
        self._properties: dict[str, Mapping[str, Any]] = {}

    def tree(self, tool: str) -> SchemaTree:
        """The schema of all parameters of a tool; an empty one where there is none."""
        return self._trees.get(tool) or SchemaTree({})

    def properties(self, tool: str) -> Mapping[str, Any]:
        """The schemas of a tool's parameters by their keys; empty where nothing is known."""
        found = self._properties.get(tool)
        if found is None:
            tree = self._trees.get(tool)
            if tree is None:
                return {}
            found = self._properties[tool] = tree.properties()
        return found

    def keys(self, tool: str) -> KeysView[str]:
        """The names of a tool's parameters; empty where nothing is known."""
        return self.properties(tool).keys()

    def types(self, tool: str, key: str) -> Types:
        """The types that a parameter may have; string where nothing is known."""
        schema = self.properties(tool).get(key)
        return STRING if schema is None else self._trees[tool].types(schema) or STRING


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
