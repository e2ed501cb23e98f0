"""Output formats in TOML files: every table goes through one unchanged, and faults are told with their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.formats.harness import compiled, read
from tests.server.tiny_model import write_tiny_model

from derender.formats.registry import FORMATS
from derender.formats.table import Calls, JsonMembers, OutputFormat, Parameters, Reasoning, Switch, tags
from derender.formats.user_format import FormatFileError, dump_format, load_format, read_format
from derender.model import Model, ModelLoadError, ModelSettings

OWN = r"""
name = "own"
end_of_turn = ["<end>"]

[reasoning]
start = "content"
tags = { open = ["<why>"], close = ["</why>"] }
switches = [{ name = "think", off = [false, "no", 0] }]

[[calls]]
header = '\s*«<fn:»(?P<name>\w{1,64})«>»'
call = { open = ["<do>"], close = ["</do>"] }

[calls.body]
kind = "parameters"
open = "<arg:"
key = '(?P<key>\w{1,64})>'
close = "</arg>"
"""

CALL = """
[[calls]]
call = { open = ["<a>"], close = ["</a>"] }
"""


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_table_goes_through_a_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.toml"
    file.write_text(dump_format(FORMATS[name]), encoding="utf-8")
    assert load_format(file) == FORMATS[name]


def test_odd_texts_go_through_a_file() -> None:
    table = OutputFormat(
        name='"\\',
        reasoning=Reasoning(
            tags=tags(("'\\", "'''\\", "\n\\", "\x7f\x00"), "é｜"), switches=(Switch(name="x", off=("", 1, 2.5)),)
        ),
        calls=(Calls(body=JsonMembers(name=None)),),
    )
    assert read_format(dump_format(table), source="x") == table


def test_a_file_as_it_is_written() -> None:
    found = read_format(OWN, source="own.toml")
    assert found == OutputFormat(
        name="own",
        end_of_turn=("<end>",),
        reasoning=Reasoning(
            tags=tags("<why>", "</why>"), start="content", switches=(Switch(name="think", off=(False, "no", 0)),)
        ),
        calls=(
            Calls(
                header=r"\s*«<fn:»(?P<name>\w{1,64})«>»",
                call=tags("<do>", "</do>"),
                body=Parameters(open="<arg:", key=r"(?P<key>\w{1,64})>", close="</arg>"),
            ),
        ),
    )
    text = "<why>a</why>b<do>\n<fn:add><arg:a>1</arg></do>"
    for tokens in (True, False):
        assert read(compiled(found, tokens=tokens), text, sizes=[1] * 99) == {
            "reasoning": "a",
            "content": "b",
            "calls": [("add", '{"a": 1}', True)],
        }


def test_bodies_that_no_family_of_ours_has() -> None:
    text = """
name = "own"
[[calls]]
call = { open = ["<lines "], close = ["</lines>"] }
header = '(?P<name>\\w{1,64})>'
body = { kind = "key_lines", line = ";", pair = "=" }
[[calls]]
call = { open = ["<merged "], close = ["</merged>"] }
header = '(?P<name>\\w{1,64})>'
body = { kind = "parameters", open = "<arg:", key = '(?P<key>\\w{1,64})>', close = "</arg>", merge = true }
[[calls]]
call = { open = ["<inner>"], close = ["</inner>"] }
body = { kind = "json_members", within = ["call"] }
"""
    found = read_format(text, source="own.toml")
    assert read_format(dump_format(found), source="own.toml") == found
    output = (
        "<lines add>a = 1; b=2.5</lines><merged f><arg:x>1</arg><arg:x>2</arg></merged>"
        '<inner>{"call": {"name": "g", "arguments": {}}}</inner>'
    )
    for tokens in (True, False):
        assert read(compiled(found, tokens=tokens), output, sizes=[1] * 200)["calls"] == [
            ("add", '{"a": 1, "b": 2.5}', True),
            ("f", '{"x": ["1", "2"]}', True),
            ("g", "{}", True),
        ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "is not TOML: "),
        ("", "Object missing required field `name`"),
        ('name = " "', "name: is empty"),
        ("name = 1", "name: Expected `str`, got `int`"),
        ('name = "x"\nregions = 1', "Object contains unknown field `regions`"),
        ('name = "x"\n[reasoning]\nopen = "a"', "reasoning: Object contains unknown field `open`"),
        ('name = "x"\nreasoning.tags = { open = [], close = ["b"] }', "reasoning.tags.open: lists no marker"),
        ('name = "x"\nreasoning.tags = { open = ["a"], close = [""] }', "reasoning.tags.close[0]: an empty text"),
        ('name = "x"\nreasoning.tags = { open = "a", close = ["b"] }', "reasoning.tags.open: Expected `array`"),
        (
            'name = "x"\n[reasoning]\ntags = { open = ["a"], close = ["b"] }\nduplicates = "drop"',
            "reasoning.duplicates: Invalid enum value 'drop'",
        ),
        ('name = "x"\nend_of_turn = [""]', "end_of_turn[0]: an empty text is no marker"),
        ('name = "x"\n' + CALL, "calls[0]: Object missing required field `body`"),
        ('name = "x"\n' + CALL + "[calls.body]\nname = 'n'", "calls[0].body: Object missing required field `kind`"),
        (
            'name = "x"\n' + CALL + "[calls.body]\nkind = 'yaml'",
            "calls[0].body.kind: Invalid value 'yaml'; kinds of bodies are json_members, json_value, parameters, "
            "key_lines, key_values, python_call, nested_elements",
        ),
        ('name = "x"\n' + CALL + "body = { kind = 'json_value' }", "calls[0].header: is missing: a body of kind json"),
        (
            'name = "x"\n' + CALL + "header = '(?P<nam>x)'\nbody = { kind = 'json_value' }",
            "calls[0].header: the pattern has no group (?P<name>…)",
        ),
        (
            'name = "x"\n' + CALL + "header = '(?P<name>x'\nbody = { kind = 'json_value' }",
            "calls[0].header: is no regular expression: ",
        ),
        (
            'name = "x"\n' + CALL + "header = '(?P<name>x)[[a]'\nbody = { kind = 'json_value' }",
            "calls[0].header: is no regular expression: Possible nested set",
        ),
        (
            'name = "x"\n' + CALL + "header = '(?P<name>x)«»'\nbody = { kind = 'json_value' }",
            "calls[0].header: an empty text is no marker",
        ),
        (
            'name = "x"\n' + CALL + "header = '(?P<name>x)'\nbody = { kind = 'json_members' }",
            "calls[0].header: a body of kind json_members has the call's name in itself",
        ),
        (
            'name = "x"\n' + CALL + "header = '(?P<name>x)'\n"
            "body = { kind = 'parameters', open = '<p ', close = '</p>', key = 'x>' }",
            "calls[0].body.key: the pattern has no group (?P<key>…)",
        ),
        (
            'name = "x"\n' + CALL + "header = '(?P<name>x)'\nbody = { kind = 'key_values', fence = '' }",
            "calls[0].body.fence: is empty",
        ),
        (
            'name = "x"\n' + CALL + "header = '(?P<name>x)'\nbody = { kind = 'key_lines', pair = '' }",
            "calls[0].body.pair: is empty",
        ),
        (
            "name = 'x'\n[[calls]]\nnamed = true\nbody = { kind = 'key_lines' }",
            "calls[0].call: is missing: a body of kind key_lines needs markers around it",
        ),
        (
            "name = 'x'\n[[calls]]\nheader = '(?P<name>x)'\nbody = { kind = 'json_value' }",
            "calls[0].header: needs the markers of a call before it",
        ),
        (
            "name = 'x'\n[messages]\nopen = ['<a>']\nbody = ['<b>']\nclose = ['<c>']\n"
            "kinds = [{ header = 'x', region = 'call' }]",
            'messages.kinds[0].region: "call", but there are no calls',
        ),
        (
            "name = 'x'\n[messages]\nopen = ['<a>']\nbody = []\nclose = ['<c>']\n"
            "kinds = [{ header = 'x', region = 'content' }]",
            "messages.body: is empty",
        ),
    ],
)
def test_faults_are_told_with_file_and_key(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(FormatFileError) as found:
        load_format(file)
    assert str(found.value).startswith(f"{file}: {said}")
    assert "\n" not in str(found.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FormatFileError, match=r"none\.toml: cannot be read: No such file"):
        load_format(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(FormatFileError, match=r"bytes\.toml: is not UTF-8 text"):
        load_format(tmp_path / "bytes.toml")


# ------------------------------------------------------------------------------------------------------- in a model


def test_a_model_reads_by_a_file(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN, encoding="utf-8")
    directory = str(write_tiny_model(tmp_path / "tiny"))
    model = Model.load(directory, settings=ModelSettings(format_file=str(file), enable_auto_tool_choice=True))
    assert model.formats is not None
    assert model.formats.table == load_format(file)
    assert (model.parsers.tool, model.parsers.reasoning) == ("own", "own")


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        (OWN, {"tool_call_parser": "hermes"}, "leave --tool-call-parser out"),
        (OWN, {"reasoning_parser": "auto"}, "leave --reasoning-parser out"),
        ("name = 1", {}, "own.toml: name: Expected `str`"),
        ("name = 'x'", {"enable_auto_tool_choice": True}, "or --format with calls"),
        (OWN.replace("[calls.body]", "structural_tag = 'x'\n[calls.body]"), {}, "calls[0].structural_tag: 'x' is none"),
    ],
)
def test_what_does_not_go_with_a_file(text: str, settings: dict[str, object], said: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(text, encoding="utf-8")
    directory = str(write_tiny_model(tmp_path / "tiny"))
    with pytest.raises(ModelLoadError) as found:
        Model.load(directory, settings=ModelSettings(format_file=str(file), **settings))  # type: ignore[arg-type]
    assert said in str(found.value)
    assert "\n" not in str(found.value)
