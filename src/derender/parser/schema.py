"""What a tool's JSON schema says of parameters: their types, their members' schemas, local references followed.

A schema comes with the request and may be anything: references in circles that branch at each turn, a list of a million
choices. So what is looked at is bounded, and what is known is kept; beyond the bounds a schema says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

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
_DEEPEST = 24
_LONGEST_REFERENCE = 4096
_MOST_PARTS = 2048
"""Schemas that are looked at for one answer. Each takes some microseconds."""

_MOST_IN_ALL = 16384
"""The same for all answers of one tree: an output may ask about thousands of keys."""

Types = frozenset[str]
_COMBINERS = ("allOf", "anyOf", "oneOf")


class SchemaTree:
    """The schema of one tool's parameters, which local references start from."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self._left = 0  # how many schemas may still be looked at for this answer
        self._left_in_all = _MOST_IN_ALL
        # By the identity of a schema, which is kept beside what is known of it.
        self._resolved: dict[int, tuple[Any, Any]] = {}
        self._types: dict[int, tuple[Any, Types]] = {}
        self._of_values: dict[int, tuple[Any, Types]] = {}

    # ------------------------------------------------------------------------------------------------- answers

    def types(self, schema: Any) -> Types:
        """All type names that a schema allows, under their usual names; empty where it says none."""
        if not isinstance(schema, dict):
            return frozenset()
        found = self._types.get(id(schema))
        if found is None:
            self._begin()
            found = self._types[id(schema)] = schema, self._types_of(schema, 0)
        return found[1]

    def properties(self) -> dict[str, Any]:
        """The schemas of the parameters by their keys."""
        self._begin()
        found: dict[str, Any] = {}
        self._add_properties(self.root, found, 0)
        return found

    def member(self, schema: Any, name: str) -> Any:
        """The schema of an object's member; None where there is none."""

        def own(whole: Mapping[str, Any]) -> Any:
            members = whole.get("properties")
            return members.get(name) if isinstance(members, dict) else None

        def last(whole: Mapping[str, Any]) -> Any:
            others = whole.get("additionalProperties")
            return others if isinstance(others, dict) else None

        self._begin()
        return self._first(schema, own, last, 0)

    def items(self, schema: Any) -> Any:
        """The schema of a list's elements; None where there is none."""

        def own(whole: Mapping[str, Any]) -> Any:
            items = whole.get("items")
            return items if isinstance(items, dict) else None

        self._begin()
        return self._first(schema, own, lambda _: None, 0)

    def resolve(self, schema: Any, depth: int = 0) -> Any:
        """A schema whose whole is a local `$ref`, followed; with keywords beside it both hold (`allOf`)."""
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str) or depth > _DEEPEST:
            return schema
        known = self._resolved.get(id(schema))
        if known is not None:
            return known[1]
        found = self._followed(schema, depth)
        if not depth:  # one that is met on the way of another may be cut short
            self._resolved[id(schema)] = schema, found
        return found

    # ----------------------------------------------------------------------------------------------- the walks

    def _begin(self) -> None:
        """A new answer is looked for."""
        self._left = min(_MOST_PARTS, self._left_in_all)

    def _may(self, depth: int) -> bool:
        """Whether one more schema may be looked at; counts it."""
        if depth > _DEEPEST or not self._left:
            return False
        self._left -= 1
        self._left_in_all -= 1
        return True

    def _followed(self, schema: Mapping[str, Any], depth: int) -> Any:
        target: Any = self.root
        reference = schema["$ref"]
        if len(reference) > _LONGEST_REFERENCE or (reference != "#" and not reference.startswith("#/")):
            return schema
        reference = unquote(reference)
        for step in reference[2:].split("/") if reference != "#" else ():
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and step.isascii() and step.isdecimal() and int(step[:6]) < len(target):
                target = target[int(step[:6])]
            elif isinstance(target, dict):
                target = target.get(step)
            else:
                return schema
        target = self.resolve(target, depth + 1)
        beside = {key: value for key, value in schema.items() if key not in ("$ref", "$defs", "definitions")}
        if not any(key in beside for key in ("type", "enum", "const", *_COMBINERS, "properties")):
            return target
        return {**beside, "allOf": [*_list(beside.get("allOf")), target]}

    def _types_of(self, schema: Any, depth: int) -> Types:
        schema = self.resolve(schema)
        if not isinstance(schema, dict) or not self._may(depth):
            return frozenset()
        said = schema.get("type")
        found = frozenset(
            _ALIASES.get(name.lower(), name.lower())
            for name in (said[:_MOST_PARTS] if isinstance(said, list) else [said])
            if isinstance(name, str)
        )
        if schema.get("nullable") is True and found:
            found |= {"null"}
        values = self._types_of_values(_list(schema.get("enum")))
        if "const" in schema:
            values |= {_type_name(schema["const"])}
        found = _both(found, values)
        for combiner in ("anyOf", "oneOf"):
            found = _both(found, self._union(_list(schema.get(combiner)), depth + 1))
        for inner in _list(schema.get("allOf")):
            if not self._left:
                break
            found = _both(found, self._types_of(inner, depth + 1))
        return found

    def _union(self, parts: list[Any], depth: int) -> Types:
        """The types of alternatives; empty if one of them allows any."""
        found: Types = frozenset()
        for part in parts:
            types = self._types_of(part, depth)
            if not types:
                return types
            found |= types
        return found

    def _types_of_values(self, values: list[Any]) -> Types:
        """The types of the values of an `enum`, which many schemas may refer to."""
        if not values:
            return frozenset()
        known = self._of_values.get(id(values))
        if known is None:
            known = self._of_values[id(values)] = values, frozenset(map(_type_name, values))
        return known[1]

    def _add_properties(self, schema: Any, found: dict[str, Any], depth: int) -> None:
        """Add the properties of a schema's parts, then its own."""
        schema = self.resolve(schema)
        if not isinstance(schema, dict) or not self._may(depth):
            return
        for inner in _list(schema.get("allOf")):
            if not self._left:
                break
            self._add_properties(inner, found, depth + 1)
        own = schema.get("properties")
        if isinstance(own, dict):
            if found:
                self._pay(len(own))
            found.update(own)

    def _pay(self, size: int) -> None:
        """Count what takes as long as looking at schemas: adding so many members once more."""
        self._left = max(0, self._left - size // 64)

    def _first(
        self,
        schema: Any,
        own: Callable[[Mapping[str, Any]], Any],
        last: Callable[[Mapping[str, Any]], Any],
        depth: int,
    ) -> Any:
        """What a schema has itself, or the first of its parts and alternatives, or else at last itself."""
        schema = self.resolve(schema)
        if not isinstance(schema, dict) or not self._may(depth):
            return None
        found = own(schema)
        for combiner in _COMBINERS:
            for inner in _list(schema.get(combiner)):
                if found is not None or not self._left:
                    break
                found = self._first(inner, own, last, depth + 1)
        return found if found is not None else last(schema)


def named_types(name: str) -> Types:
    """The types that one name says, under its usual name."""
    return frozenset((_ALIASES.get(name.lower(), name.lower()),))


def _both(one: Types, other: Types) -> Types:
    """The types that two keywords allow together; one that says nothing, or the opposite, does not count."""
    if not one or not other:
        return one or other
    both = one & other
    if "integer" in one ^ other and "number" in (one if "integer" in other else other):
        both |= {"integer"}
    return both or one


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
