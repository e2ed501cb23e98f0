"""Arguments in lines, and parameters whose values are merged: the readers alone, and their states."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.cost import least_seconds
from tests.formats.harness import TOOLS, assemble, compiled, read

from derender.formats.table import Calls, JsonMembers, KeyLines, OutputFormat, Parameters, Typing, tags
from derender.parser.coerce import ToolSchemas
from derender.parser.engine import FormatParser, ParserOptions


def own(body: Any, **more: Any) -> OutputFormat:
    header = None if isinstance(body, JsonMembers) else r"(?P<name>\w{1,64})>"
    return OutputFormat(name="own", calls=(Calls(call=tags("<call ", "</call>"), header=header, body=body, **more),))


LINES = own(KeyLines())
MERGED = own(Parameters(open="<p ", key=r"(?P<key>\w{1,64})>", close="</p>", first=True, merge=True))
WITHIN = own(JsonMembers(within=("a", "b"), id="id"), ids="native")


@pytest.mark.parametrize(
    ("name", "body", "arguments"),
    [
        ("add", "a: 1\nb: 2.50\nzip: 02139", '{"a": 1, "b": 2.50, "zip": "02139"}'),
        ("add", "a:1", '{"a": 1}'),
        ("add", "a: one\na: 2\n", '{"a": "one", "a": 2}'),
        ("add", "\n\n", "{}"),
        ("add", "", "{}"),
        ("add", "nothing here", "{}"),
        ("add", ": x", '{"": "x"}'),
        ("add", "k:", '{"k": ""}'),
        ("add", 'k: a:b  \n  c : \\ "\n', '{"k": "a:b", "c": "\\\\ \\""}'),
        (
            "set_flags",
            "on: TRUE\nzip: 02139\nlimit: null\ntags: [1]\nopts: {'a': 1}",
            '{"on": true, "zip": "02139", "limit": null, "tags": [1], "opts": {"a": 1}}',
        ),
    ],
)
@pytest.mark.parametrize("tokens", [True, False])
def test_lines(name: str, body: str, arguments: str, tokens: bool) -> None:
    form = compiled(LINES, tokens=tokens)
    for sizes in ((), [1] * 200, [2, 3] * 60):
        found = read(form, f"<call {name}>{body}</call>", sizes=sizes)
        assert found == {"reasoning": "", "content": "", "calls": [(name, arguments, True)]}


def test_text_is_given_as_it_comes_and_the_rest_by_lines() -> None:
    form = compiled(LINES, tokens=True)
    parser = FormatParser(form, ParserOptions(), ToolSchemas(TOOLS))
    given = []
    for piece in ("<call write_file>path: /a", "/b", " \n", "count: 3", "\n", "</call>"):
        events = parser.push(form.marks.tokenizer.encode(piece))
        given.append("".join(getattr(event, "text", "") for event in events))
    assert given == ['{"path": "/a', "/b", '"', ', "count": "3', '"', "}"]


@pytest.mark.parametrize(
    ("typing", "value", "expected"),
    [
        (Typing.INTEGER, " 7 ", "7"),
        (Typing.INTEGER, "seven", '"seven"'),
        (Typing.NUMBER, "7.50", "7.50"),
        (Typing.BOOLEAN, "True", "true"),
        (Typing.BOOLEAN, "yes", "false"),
        (Typing.VALUE, '"7"', '"7"'),
        (Typing.VALUE_OR_SCHEMA, '"7"', "7"),
        (Typing.VALUE_OR_SCHEMA, "x", '"x"'),
        (Typing.VALUE_OR_SCHEMA, "[1]", "[1]"),
    ],
)
def test_where_a_type_comes_from(typing: Typing, value: str, expected: str) -> None:
    text = f"<call add>a: {value}\n</call>"
    assert read(compiled(own(KeyLines(typing=typing)), tokens=True), text)["calls"] == [
        ("add", f'{{"a": {expected}}}', True)
    ]


def test_values_of_one_key() -> None:
    form = compiled(MERGED, tokens=True)
    text = "<call add><p a>1</p><p b>2</p><p a>x</p></call>"
    assert read(form, text, sizes=[1] * 99)["calls"] == [("add", '{"a": [1, "x"], "b": 2}', True)]
    assert read(form, text[:-10], sizes=[1] * 99)["calls"] == [("add", '{"a": 1, "b": 2', False)]


def test_members_of_members() -> None:
    form = compiled(WITHIN, tokens=True)
    text = '<call {"name": "no", "a": {"id": "7", "b": {"arguments": {"a": 1}, "name": "add"}}}</call>'
    for sizes in ((), [1] * 200):
        assert read(form, text, sizes=sizes)["calls"] == [("add", '{"a": 1}', True)]
    flat = '<call {"name": "add", "arguments": {}}</call>'
    assert read(form, flat) == {"reasoning": "", "content": flat, "calls": []}


@pytest.mark.parametrize("table", [LINES, MERGED, WITHIN], ids=["lines", "merged", "within"])
def test_a_snapshot_that_was_changed_is_refused_or_borne(table: OutputFormat) -> None:
    dice = random.Random(4)
    form = compiled(table, tokens=True)
    encode = form.marks.tokenizer.encode
    text = (
        'x <call add>a: 1\n b:2\n<p a>1</p> <p b>{"name": "add", "a": {"b": {"name": "f", "arguments": {}}}}</p></call>'
    )
    if table is WITHIN:
        text = 'x <call {"a": {"k": 1, "b": {"name": "f", "arguments": {"a": [1]}}}, "id": "1"}</call>'
    junk: list[Any] = [None, True, -1, 0, 7, "", "key", "typed", "\ud800", "a", [], [1], [["a"]], {}, 2**60]
    ids = encode(text)
    for at in range(1, len(ids)):
        parser = FormatParser(form, ParserOptions(), ToolSchemas(TOOLS))
        parser.push(ids[:at])
        state = parser.snapshot()
        for _ in range(12):
            changed = json.loads(json.dumps(state))
            place: Any = changed
            while True:
                n = dice.randrange(len(place))
                if isinstance(place[n], list) and place[n] and dice.random() < 0.8:
                    place = place[n]
                    continue
                place[n] = dice.choice(junk)
                break
            again = FormatParser(form, ParserOptions(), ToolSchemas(TOOLS))
            try:
                again.restore(changed)
            except ValueError:
                continue
            again.push(ids[at:])
            again.finish()


@pytest.mark.parametrize("table", [LINES, MERGED], ids=["lines", "merged"])
def test_time_is_linear(table: OutputFormat) -> None:
    form = compiled(table, tokens=True)
    line = "key: 1\n" if table is LINES else "<p key>1</p>\n"
    short, long = (form.marks.tokenizer.encode(f"<call add>{line * size}</call>") for size in (400, 3200))

    def work(ids: list[int]) -> None:
        parser = FormatParser(form, ParserOptions(), ToolSchemas(TOOLS))
        events = [event for n in range(0, len(ids), 7) for event in parser.push(ids[n : n + 7])]
        events += parser.finish()
        assert assemble(events)["calls"][0][2]

    bound = 8 * 4 * least_seconds(lambda: work(short), within=0)
    assert least_seconds(lambda: work(long), within=bound) < bound
