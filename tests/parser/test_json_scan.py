"""The incremental JSON scanner and string decoder: where a value ends, whatever the pieces it comes in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derender.parser.json_scan import JsonScan, JsonString, enders

MARK = "\ud800"
CLOSERS = ("</call>", "<call>", MARK)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
containers = st.dictionaries(st.text(max_size=8), json_values, max_size=4) | st.lists(json_values, max_size=4)
sizes = st.lists(st.integers(1, 7), min_size=1, max_size=20)


def written(value: Any, *, ascii_only: bool, indent: int | None) -> str:
    return json.dumps(value, ensure_ascii=ascii_only, indent=indent)


texts = st.builds(written, containers, ascii_only=st.booleans(), indent=st.none() | st.just(2))


def pieces(text: str, lengths: Sequence[int]) -> list[str]:
    parts, at, n = [], 0, 0
    while at < len(text):
        parts.append(text[at : at + lengths[n % len(lengths)]])
        at += lengths[n % len(lengths)]
        n += 1
    return parts


def scan(parts: Sequence[str], closers: tuple[str, ...] = CLOSERS) -> tuple[str, str, str]:
    """What was taken, what was not, and where the scanner stands; through its state between any two pieces."""
    taken = rest = ""
    state = ("", "")
    for part in parts:
        scanner = JsonScan(closers, state=state)
        text = rest + part
        end = scanner.feed(text, 0)
        taken, rest = taken + text[:end], text[end:]
        state = (scanner.stack, scanner.where)
    return taken, rest, state[1]


@given(texts, st.sampled_from(["", "\n</call>", "}, x", "]", MARK, ' "', "\n```"]), sizes)
def test_a_value_ends_where_it_ends(text: str, after: str, lengths: list[int]) -> None:
    assert scan(pieces(text + after, lengths)) == (text, after, ".")


@given(st.text(alphabet='{}[]",:\\ </cal>1n\n' + MARK, max_size=40), sizes)
def test_any_text_is_split_alike(text: str, lengths: list[int]) -> None:
    taken, rest, where = scan([text])
    assert scan(pieces(text, lengths)) == (taken, rest, where)
    assert taken + rest == text


@pytest.mark.parametrize(
    ("text", "taken", "where"),
    [
        ('{"a": 1', '{"a": 1', "v"),
        ('{"a": "x\\', '{"a": "x\\', "e"),
        ('{"a": "</call>', '{"a": "</call>', "s"),
        (f'{{"a": "{MARK}"}}', f'{{"a": "{MARK}"}}', "."),
        ('{"a": </call>', '{"a": ', "!"),
        ('{"a": </ca', '{"a": ', "v"),
        (f'{{"a": {MARK}', '{"a": ', "!"),
        ('{"a": 1]}', '{"a": 1', "!"),
        ("[1, 2}", "[1, 2", "!"),
        ("12,", "12", "."),
        ("tru", "tru", "n"),
        ("12</call>", "12", "."),
        ("12</ca", "12", "n"),
        ("</call>", "", "!"),
        ("}", "", "!"),
        ('"a\\"b" c', '"a\\"b"', "."),
        ("", "", ""),
        (" \n", " \n", ""),
    ],
)
def test_states(text: str, taken: str, where: str) -> None:
    assert scan([text]) == (taken, text[len(taken) :], where)
    assert scan(list(text)) == (taken, text[len(taken) :], where)


def test_deep_nesting_has_a_limit() -> None:
    fits = "[" * 4096 + "]" * 4096
    assert scan([fits]) == (fits, "", ".")
    taken, rest, where = scan(["[" * 4097 + "]" * 4097])
    assert (len(taken), rest[:2], where) == (4096, "[]", "!")


@given(st.text(max_size=30), st.booleans(), sizes)
def test_a_string_is_decoded_in_pieces(text: str, ascii_only: bool, lengths: list[int]) -> None:
    body = json.dumps(text, ensure_ascii=ascii_only)[1:] + " rest"
    said, held, left = "", "", ""
    done = False
    for part in pieces(body, lengths):
        if done:
            left += part
            continue
        string = JsonString(held)
        end, piece = string.feed(part, 0)
        said, held, done = said + piece, string.held, string.done
        left += part[end:]
    assert (said, left, done) == (text, " rest", True)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (r"\ud83d\ude00", "😀"),
        (r"\ud83d", "\ufffd"),
        (r"\ude00", "\ufffd"),
        (r"\ud83d\ud83d\ude00", "\ufffd😀"),
        (r"\ud83dx", "\ufffdx"),
        (r"\ud83d\n", "\ufffd\n"),
        (r"\ud83dA", "\ufffdA"),
        (r"\ud83d\u00zz", "\ufffd\\u00zz"),
        (r"\u12", "\\u12"),
        (r"\u12\n", "\\u12\n"),
        (r"\q", "\\q"),
        (r"\\\"", '\\"'),
        (r"\/\b\f\r\t", "/\b\f\r\t"),
        ("line\nbreak", "line\nbreak"),
        (MARK, MARK),
    ],
)
def test_odd_escapes(body: str, said: str) -> None:
    for parts in ([body + '"'], list(body + '"')):
        held = got = ""
        done = False
        for part in parts:
            string = JsonString(held)
            _, piece = string.feed(part, 0)
            got, held, done = got + piece, string.held, string.done
        assert (got, done) == (said, True)


def test_broken_text_goes_on_to_what_ends_the_call() -> None:
    ends = enders(CLOSERS)
    assert ends.rest("a ] b \n</call> c", 0) == (7, True)
    assert ends.rest("a ] b \n</ca", 0) == (7, False)
    assert ends.rest("a \n", 0) == (3, False)
    assert enders(()).rest("a </call>", 0) == (9, False)
    assert ends.may("x</ca", 1)
    assert not ends.may("x</call>", 1)
    assert ends.at("x</call>", 1)
