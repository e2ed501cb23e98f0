"""Types of bare text by a tool's schema: the rule as a table, right values written out by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cost import least_seconds

from derender.parser.coerce import ToolSchemas, coerce
from derender.parser.json_text import is_json, quoted
from derender.parser.schema import SchemaTree, named_types

RULE = [
    # types, text, JSON
    ("string", "Oslo", '"Oslo"'),
    ("string", "null", '"null"'),
    ("string", "02139", '"02139"'),
    ("string", '"quoted"', '"\\"quoted\\""'),
    ("string", "  kept  ", '"  kept  "'),
    ("string", "São 東京 \n", '"São 東京 \\n"'),
    ("", "3", '"3"'),
    ("integer", "3", "3"),
    ("integer", " 3\n", "3"),
    ("integer", "02139", "2139"),
    ("integer", "+5", "5"),
    ("integer", "-0", "0"),
    ("integer", "42.0", "42"),
    ("integer", "42.", "42"),
    ("integer", "9007199254740993.0", "9007199254740993"),
    ("integer", "1e3", "1000"),
    ("integer", "-2.5e1", "-25"),
    ("integer", "1e300", "1e300"),
    ("integer", "42.5", "42.5"),
    ("integer", "null", "null"),
    ("integer", "three", '"three"'),
    ("integer", "1_000", '"1_000"'),
    ("integer", "٣", '"٣"'),
    ("integer string", "1", "1"),
    ("integer string", "42.5", '"42.5"'),
    ("integer string", "auto", '"auto"'),
    ("integer null", "None", "null"),
    ("integer null", "NULL", "null"),
    ("string null", "null", "null"),
    ("string null", "nullable", '"nullable"'),
    ("number", "0.5", "0.5"),
    ("number", "7.0", "7.0"),
    ("number", "9007199254740993.25", "9007199254740993.25"),
    ("number", "0.10000000000000000001", "0.10000000000000000001"),
    ("number", "9.0071992547409925e15", "9.0071992547409925e15"),
    ("number", "-.5", "-0.5"),
    ("number", "5.", "5"),
    ("number", "+1.50E3", "1.50E3"),
    ("number", "007.5", "7.5"),
    ("number", "NaN", '"NaN"'),
    ("number", "Infinity", '"Infinity"'),
    ("number", "1e400", '"1e400"'),
    ("boolean", "true", "true"),
    ("boolean", "False", "false"),
    ("boolean", "1", "true"),
    ("boolean", "0", "false"),
    ("boolean", "yes", '"yes"'),
    ("boolean integer", "1", "1"),
    ("object", '{"n": 1.50}', '{"n": 1.50}'),
    ("object", " {} ", "{}"),
    ("object", "[1]", "[1]"),
    ("object", "{'a': True, 'b': [None, 1,], \"c\": 'it\\'s ,]'}", '{"a": true, "b": [null, 1], "c": "it\'s ,]"}'),
    ("object", "{broken", '"{broken"'),
    ("object", "{a: 1}", '"{a: 1}"'),
    ("object string", '{"a": 1}', '{"a": 1}'),
    ("object string", "{a", '"{a"'),
    ("array", '["a", "b"]', '["a", "b"]'),
    ("array", "('a', 1)", '["a", 1]'),
    ("array", "[1e400]", '"[1e400]"'),
    ("array", "a, b", '"a, b"'),
    ("null", "null", "null"),
    ("null", "x", '"x"'),
]


@pytest.mark.parametrize(("types", "text", "expected"), RULE)
def test_rule(types: str, text: str, expected: str) -> None:
    assert coerce(text, frozenset(types.split())) == expected
    json.loads(expected)


SCHEMAS: list[tuple[Any, str]] = [
    ({"type": "string"}, "string"),
    ({"type": ["integer", "null"]}, "integer null"),
    ({"type": "INT64"}, "integer"),
    ({"type": "float"}, "number"),
    ({"type": "varchar"}, "string"),
    ({"type": "dict"}, "object"),
    ({"type": "list"}, "array"),
    ({"type": "integer", "nullable": True}, "integer null"),
    ({"enum": ["c", "f"]}, "string"),
    ({"enum": [1, 2.5, True, None]}, "integer number boolean null"),
    ({"const": "42"}, "string"),
    ({"const": {"a": 1}}, "object"),
    ({"type": "string", "enum": ["null", None]}, "string"),
    ({"type": ["integer", "null"], "const": 42}, "integer"),
    ({"type": "number", "enum": [1, 2]}, "integer"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string null"),
    ({"oneOf": [{"const": "auto"}, {"type": "integer"}]}, "string integer"),
    ({"type": "string", "anyOf": [{"type": "string"}, {"type": "null"}]}, "string"),
    ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, "integer"),
    ({"anyOf": [{"type": "integer"}, {}]}, ""),
    ({"type": "string", "const": 3}, "string"),  # a contradiction: the type counts
    ({"$ref": "#/$defs/Count"}, "integer"),
    ({"$ref": "#/$defs/postal%20code"}, "integer"),
    ({"$ref": "#/$defs/caf%c3%a9+"}, "integer"),
    ({"$ref": "#/$defs/a%7E1b%7E0c"}, "integer"),
    ({"$ref": "#/$defs/Scalar", "type": "integer"}, "integer"),
    ({"$ref": "#/$defs/Scalar", "description": "d"}, "string integer boolean"),
    ({"$ref": "#/$defs/Choices/anyOf/1"}, "boolean"),
    ({"$ref": "#/$defs/Loop"}, ""),
    ({"$ref": "#/$defs/missing"}, ""),
    ({"$ref": "https://example.org/schema"}, ""),
    ({}, ""),
    (True, ""),
    ("nonsense", ""),
]
ROOT = {
    "type": "object",
    "$defs": {
        "Count": {"type": "integer"},
        "postal code": {"type": "integer"},
        "café+": {"type": "integer"},
        "a/b~c": {"type": "integer"},
        "Scalar": {"type": ["string", "integer", "boolean"]},
        "Choices": {"anyOf": [{"type": "string"}, {"type": "boolean"}]},
        "Loop": {"$ref": "#/$defs/Loop"},
    },
}


@pytest.mark.parametrize(("schema", "expected"), SCHEMAS)
def test_types_of_a_schema(schema: Any, expected: str) -> None:
    assert SchemaTree(ROOT).types(schema) == frozenset(expected.split())


def tools(parameters: Any) -> ToolSchemas:
    return ToolSchemas([{"type": "function", "function": {"name": "f", "parameters": parameters}}])


def test_what_nothing_is_known_of_is_a_string() -> None:
    schemas = tools({"properties": {"n": {"type": "integer"}, "any": {}}})
    assert schemas.types("f", "n") == {"integer"}
    assert schemas.types("f", "any") == schemas.types("f", "other") == schemas.types("g", "n") == {"string"}
    assert schemas.keys("f") == {"n", "any"}
    assert schemas.keys("g") == frozenset()


@pytest.mark.parametrize("parameters", [None, [], "x", {"properties": []}, {"properties": {"n": None}}])
def test_a_schema_that_is_none(parameters: Any) -> None:
    assert tools(parameters).types("f", "n") == {"string"}


def test_properties_behind_a_reference() -> None:
    schemas = tools(
        {
            "$ref": "#/$defs/Args",
            "$defs": {"Args": {"allOf": [{"properties": {"a": {"type": "integer"}}}], "properties": {"b": {}}}},
        }
    )
    assert schemas.keys("f") == {"a", "b"}
    assert schemas.types("f", "a") == {"integer"}


def test_recursive_schemas_end() -> None:
    root = {"$defs": {"Tree": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}]}}}
    assert SchemaTree(root).types({"$ref": "#/$defs/Tree"}) <= {"null"}
    whole = {"properties": {"x": {"$ref": "#"}}, "type": "object"}
    assert tools(whole).types("f", "x") == {"object"}


@pytest.mark.parametrize("combiner", ["anyOf", "oneOf", "allOf"])
def test_schemas_that_refer_to_each_other_take_no_time(combiner: str) -> None:
    """Each turn branches: with three references each, 24 turns would be three to the 24th."""
    both = [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}, {"$ref": "#/$defs/A"}]
    parameters = {
        "properties": {f"k{n}": {"$ref": "#/$defs/A"} for n in range(2000)} | {"plain": {"type": "integer"}},
        "$defs": {"A": {combiner: both}, "B": {combiner: both}},
        combiner: both,
    }

    def work() -> None:
        schemas = tools(parameters)
        assert schemas.types("f", "plain") == {"integer"}
        assert {schemas.types("f", f"k{n}") for n in range(2000)} == {frozenset(("string",))}
        tree = schemas.tree("f")
        assert [tree.member(tree.root, f"no {n}") for n in range(2000)] == [None] * 2000
        assert tree.items({"$ref": "#/$defs/A"}) is None

    assert least_seconds(work, within=2) < 2


def test_a_large_schema_is_read_once() -> None:
    choices = list(range(100_000))
    parameters = {
        "properties": {f"k{n}": {"$ref": "#/$defs/Choice"} for n in range(5000)},
        "$defs": {"Choice": {"enum": [*choices, None]}, "Far": {"$ref": "#/" + "a/" * 500_000}},
    }

    def work() -> None:
        schemas = tools(parameters)
        for n in range(5000):
            assert schemas.types("f", f"k{n}") == {"integer", "null"}
            assert "k0" in schemas.keys("f")
            schemas.tree("f").types({"$ref": "#/" + "a/" * 5000})

    assert least_seconds(work, within=2) < 2


def test_members_and_items_behind_parts_and_references() -> None:
    root = {
        "allOf": [{"properties": {"a": {"type": "integer"}}}, {"$ref": "#/$defs/More"}],
        "properties": {"b": {"type": "boolean"}},
        "additionalProperties": {"type": "null"},
        "$defs": {"More": {"properties": {"a": {}, "c": {"anyOf": [{}, {"items": {"type": "number"}}]}}}},
    }
    tree = SchemaTree(root)
    assert tree.member(root, "a") == {"type": "integer"}
    assert tree.member(root, "b") == {"type": "boolean"}
    assert tree.member(root, "d") == {"type": "null"}
    assert tree.items(tree.member(root, "c")) == {"type": "number"}
    assert tree.items(root) is None


def test_a_named_type() -> None:
    assert named_types("Int32") == {"integer"}
    assert named_types("array") == {"array"}


KINDS = st.sets(st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array"]))


@given(text=st.text() | st.from_regex(r"\s*[+-]?[0-9._eE]{1,12}\s*", fullmatch=True), types=KINDS)
def test_whatever_the_text_the_value_is_json(text: str, types: set[str]) -> None:
    value = json.loads(coerce(text, frozenset(types)))
    if types == {"string"} or not types:
        assert value == text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=st.lists(VALUES, max_size=4) | st.dictionaries(st.text(), VALUES, max_size=4), python=st.booleans())
def test_containers_as_json_and_as_python_writes_them(value: Any, python: bool) -> None:
    text = repr(value) if python else json.dumps(value, ensure_ascii=False)
    got = coerce(text, frozenset(("object", "array")))
    assert got == text or python
    assert json.loads(got) == value


@pytest.mark.parametrize("text", ["9" * 5000, "-" + "9" * 5000 + ".5", "1e99999999999999999999", "[" * 3000, "'" * 999])
@pytest.mark.parametrize("types", ["integer", "number", "array", "integer string"])
def test_extremes_do_not_raise(text: str, types: str) -> None:
    json.loads(coerce(text, frozenset(types.split())), parse_int=len)


def test_json_is_finite() -> None:
    assert [is_json(text) for text in ("[1, 2.5e3]", "NaN", "[1e999]", "1 2")] == [True, False, False, False]
    assert quoted('é"\n') == '"é\\"\\n"'
