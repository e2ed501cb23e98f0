"""What a client asks of an answer's form, as a part of a structural tag."""

from __future__ import annotations

import json
import re
from typing import Any

from derender.protocol.common import Json, StructuredOutputs
from derender.rendering.tag_nodes import either, json_schema, literal, pattern, tag, triggered


def form_of(asked: StructuredOutputs) -> Json | None:
    """The constraint as a form. None for what has none: a grammar in Lark's syntax, a schema that is no schema."""
    if asked.json_object:
        return json_schema({"type": "object"})
    if asked.json is not None:
        schema = json.loads(asked.json) if isinstance(asked.json, str) else asked.json
        return json_schema(schema) if isinstance(schema, (dict, bool)) else None
    if asked.regex is not None:
        return pattern(asked.regex)
    if asked.choice is not None:
        return either([literal(one) for one in asked.choice])
    if asked.grammar is not None:
        return {"type": "grammar", "grammar": asked.grammar} if "::=" in asked.grammar else None
    if asked.structural_tag is not None:
        return _form_of_tag(json.loads(asked.structural_tag))
    return None


def _form_of_tag(given: Json) -> Json:
    """A client's own tag, which has been checked to have one of the two forms."""
    if "structures" not in given:
        form: Json = given["format"]
        return form
    tags = [tag(one["begin"], json_schema(one["schema"]), one["end"]) for one in given["structures"]]
    return triggered(given["triggers"], tags)


def readable(asked: StructuredOutputs) -> bool:
    """Whether xgrammar, which alone reads all of a structural tag, reads what is asked. What it refuses in regular
    expressions was tried with 0.2.8: where one has it, another backend may read it, if it is left as it is."""
    return asked.regex is None or not any(map(_refused, _GROUPS_AND_ESCAPES.finditer(asked.regex)))


def binding(asked: StructuredOutputs) -> bool:
    """Whether xgrammar holds the output to all of a schema that is asked for. What it passes over in silence is what
    vLLM 0.32 lists (xgrammar#937, #958 to #968): there too the schema is better left as it is, for another backend."""
    if asked.json is None:
        return True
    return not _passed_over(json.loads(asked.json) if isinstance(asked.json, str) else asked.json)


_GROUPS_AND_ESCAPES = re.compile(r"\\(?P<escape>.)|\(\?(?P<group><?.)", re.DOTALL)


def _refused(found: re.Match[str]) -> bool:
    """Word boundaries, references back, Unicode classes; groups that look around or have flags or Python's names."""
    escape, group = found["escape"], found["group"]
    if escape is not None:
        return escape in "bBpPk123456789"
    return group in ("<=", "<!") or not group.startswith((":", "<"))


_FORMATS = (
    *("email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid"),
    *("uri", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
)
_ARRAY_WORDS = ("uniqueItems", "contains", "minContains", "maxContains")


def _passed_over(schema: Any) -> bool:
    """Whether something in a schema does not bind. Linear in its size."""
    nodes = [schema]
    while nodes:
        node = nodes.pop()
        if not isinstance(node, dict):
            continue
        if _does_not_bind(node):
            return True
        for value in node.values():
            nodes += value if isinstance(value, list) else [value]
    return False


def _does_not_bind(node: Json) -> bool:
    kinds = node.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "multipleOf" in node and ("integer" in kinds or "number" in kinds):
        return True
    if "array" in kinds and any(word in node for word in _ARRAY_WORDS):
        return True
    if "string" in kinds and (_two_measures(node) or ("format" in node and node["format"] not in _FORMATS)):
        return True
    if "object" in kinds and _names_are_mixed(node):
        return True
    parts = node.get("allOf")
    return isinstance(parts, list) and len(parts) > 1


def _two_measures(node: Json) -> bool:
    return ("pattern" in node or "format" in node) and ("minLength" in node or "maxLength" in node)


def _names_are_mixed(node: Json) -> bool:
    """Properties that several words speak of: only one of them is heard."""
    names, patterns = node.get("propertyNames"), node.get("patternProperties")
    if "propertyNames" in node:
        others = "patternProperties" in node or "properties" in node
        if others or node.get("unevaluatedProperties", True) is not True:
            return True
        if isinstance(names, dict) and _two_measures(names):
            return True
    return isinstance(patterns, dict) and ("properties" in node or len(patterns) > 1)
