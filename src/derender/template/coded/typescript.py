"""A tool's JSON Schema in the notation that harmony shows it in, which resembles TypeScript.

The rules are those of openai-harmony: the words of a schema that it writes, where their comments stand, and that texts
are not escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from derender.template.coded.base import to_compact_json

_PLAIN = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}
_STEP = "    "
_IN_UNION = "   "
_MAX_U64 = 2**64 - 1
_MIN_I64 = -(2**63)
_NOTHING: Mapping[str, Any] = {}


def namespace(name: str, functions: Sequence[Mapping[str, Any]]) -> str:
    """The declaration of functions, each with `name`, `description` and `parameters`."""
    lines = [f"## {name}\n", f"namespace {name} {{\n"]
    for function in functions:
        lines += [f"// {line}" for line in _lines(function.get("description") or "")]
        parameters = function.get("parameters")
        taken = "" if parameters is None else f"_: {type_of(parameters)}"
        lines.append(f"type {function['name']} = ({taken}) => any;\n")
    lines.append(f"}} // namespace {name}")
    return "\n".join(lines)


def type_of(schema: Any, indent: str = "") -> str:
    """The type that a schema describes; `any` where it says nothing that the notation has a word for."""
    if not isinstance(schema, Mapping):
        return "any"
    union = schema.get("oneOf")
    if isinstance(union, list):
        return "".join(
            f"\n{indent} | {_variant(one, indent)}{_trailing(_comments(one, raw_enum_default=False))}" for one in union
        )
    kind = schema.get("type")
    if isinstance(kind, list):
        names = [("number" if name == "integer" else name) for name in kind if isinstance(name, str)]
        if names:
            return " | ".join(names)
    if kind == "object":
        return _object(schema, indent)
    if kind == "array":
        return f"{type_of(schema['items'], indent)}[]" if "items" in schema else "Array<any>"
    if kind == "string":
        values = schema.get("enum")
        texts = [f'"{value}"' for value in values if isinstance(value, str)] if isinstance(values, list) else []
        return " | ".join(texts) or "string"
    return _PLAIN.get(kind, "any") if isinstance(kind, str) else "any"


def _object(schema: Mapping[str, Any], indent: str) -> str:
    out = [f"{indent}// {text}\n"] if isinstance(text := schema.get("description"), str) else []
    out.append("{\n")
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        listed = schema.get("required")
        required = {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else set()
        for name, value in properties.items():
            out += _property(name if name in required else f"{name}?", value, indent)
    out.append(f"{indent}}}")
    return "".join(out)


def _property(label: str, value: Any, indent: str) -> list[str]:
    schema = value if isinstance(value, Mapping) else _NOTHING
    description = text if isinstance(text := schema.get("description"), str) else None
    out = [f"{indent}// {title}\n{indent}//\n"] if isinstance(title := schema.get("title"), str) else []
    if description is not None and "oneOf" not in schema:
        out.append(f"{indent}// {description}\n")
    examples = schema.get("examples")
    if isinstance(examples, list) and examples:
        out.append(f"{indent}// Examples:\n")
        out += [f'{indent}// - "{example}"\n' for example in examples if isinstance(example, str)]
    union = schema.get("oneOf")
    if isinstance(union, list):
        return out + _union_property(label, schema, union, description, indent)
    out.append(f"{indent}{label}: {_variant(value, indent, _STEP)},")
    if "default" in schema and "oneOf" not in schema:
        out.append(f" // {_default(schema)}")
    out.append("\n")
    return out


def _union_property(
    label: str, schema: Mapping[str, Any], union: list[Any], description: str | None, indent: str
) -> list[str]:
    """A property of several types, one on each line. A description that the first type has too is written once."""
    out = []
    first = union[0].get("description") if union and isinstance(union[0], Mapping) else None
    above = description is not None and description != first
    if above:
        out.append(f"{indent}// {description}\n")
    if "default" in schema:
        out.append(f"{indent}// {_default(schema)}\n")
    out.append(f"{indent}{label}:\n")
    for number, one in enumerate(union):
        comments = _comments(one, unless=description, described=not (above and number == 0))
        out.append(f"{indent} | {_variant(one, indent)}{_trailing(comments)}\n")
    out.append(f"{indent},\n")
    return out


def _variant(schema: Any, indent: str, step: str = _IN_UNION) -> str:
    text = type_of(schema, indent + step)
    if isinstance(schema, Mapping) and schema.get("nullable") is True and "null" not in text:
        return f"{text} | null"
    return text


def _comments(
    schema: Any, *, unless: str | None = None, described: bool = True, raw_enum_default: bool = True
) -> list[str]:
    if not isinstance(schema, Mapping):
        return []
    description = schema.get("description")
    found = [description] if described and isinstance(description, str) and description != unless else []
    if "default" in schema:
        found.append(_default(schema, raw_enum=raw_enum_default))
    return found


def _trailing(comments: list[str]) -> str:
    return f" // {' '.join(comments)}" if comments else ""


def _default(schema: Mapping[str, Any], *, raw_enum: bool = True) -> str:
    """The default: a text in quotes as it is, one of an enum without quotes, anything else as JSON."""
    value = schema["default"]
    if isinstance(value, str):
        values = schema.get("enum")
        if not (isinstance(values, list) and values):
            return f'default: "{value}"'
        if raw_enum:
            return f"default: {value}"
    return f"default: {_json(value)}"


def _json(value: Any) -> str:
    """Compact JSON with numbers as Rust writes them."""
    if isinstance(value, float) or (type(value) is int and not _MIN_I64 <= value <= _MAX_U64):
        return _float(float(value))
    if isinstance(value, list):
        return f"[{','.join(map(_json, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{to_compact_json(name)}:{_json(inner)}" for name, inner in value.items()) + "}"
    return to_compact_json(value)


def _float(value: float) -> str:
    """The shortest digits; an exponent from 1e16 on and below 1e-5, with its sign and without leading zeros."""
    text = repr(value)
    if "e" not in text:
        return text
    digits, _, exponent = text.partition("e")
    if int(exponent) == -5:
        sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
        return f"{sign}0.0000{digits.replace('.', '')}"
    return f"{digits}e{int(exponent):+d}"


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
