"""A `response_template` whose regions are messages: each opener is a header with one of a few markers behind it.

`<|channel|>analysis<|message|>` and `<|channel|>final<|message|>` share their marker, and are told apart by what
stands before it; `[^<]*<|content_text|>` has no beginning that could be looked for. In both, what stands outside of all
regions is a header and no text, which is what a template without a field for such text says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import dropwhile
from typing import Literal

from derender.formats.patterns import Atom, group_names, last_text, split_prefix
from derender.formats.table import Calls, Message, Messages
from derender.formats.template_calls import LONGEST_HEADER, call_body, call_places, wanted_groups
from derender.formats.template_fields import Field, ResponseTemplateError, atoms, pattern

Region = Literal["reasoning", "content", "call"]
_MARKER = re.compile(r"<[^<>\s]+>\Z")


def as_messages(
    thoughts: Field | None, text: Field | None, calls: Field | None, *, anchors: tuple[str, ...]
) -> tuple[Messages, tuple[Calls, ...]] | None:
    """A template's fields as messages; None where they are regions with openers of their own.

    `anchors`: where a turn starts, which is where its first header does.
    """
    pairs: list[tuple[Field | None, Region]] = [(calls, "call"), (thoughts, "reasoning"), (text, "content")]
    given = [(field, region) for field, region in pairs if field is not None]
    if any(field.implicit for field, _ in given):
        return None
    openers = {field.name: _openers(field) for field, _ in given}
    marks = {name: {_marker(opener) for opener in found} for name, found in openers.items()}
    body = dict.fromkeys(mark for found in marks.values() for mark in found)
    if "" in body:
        return None
    shared = sum(map(len, marks.values())) > len(body)
    if not shared and all(split_prefix(opener)[0] for found in openers.values() for opener in found):
        return None
    closers = [closer for field, _ in given for closer in field.literals("close", edges=True).texts]
    if not closers:
        return None
    kinds: list[Message] = []
    ways: tuple[Calls, ...] = ()
    for field, region in given:
        groups: dict[str, str] = {}
        if region == "call":
            places = call_places(field)
            if not places.in_body:
                if places.id is not None:
                    raise field.fault("transform.id", "cannot stand in the header of a message")
                for opener in openers[field.name]:
                    groups = wanted_groups(field, places, opener)
            ways = (Calls(body=call_body(field, places), ids="made" if places.id is None else "native"),)
        for opener in openers[field.name]:
            header = pattern(_header(opener), groups, LONGEST_HEADER, f"{field.key}.open_pattern")
            kinds.append(Message(header=header, region=region))
    return Messages(open=anchors, body=tuple(body), close=tuple(dict.fromkeys(closers)), kinds=tuple(kinds)), ways


def _openers(field: Field) -> list[list[Atom]]:
    if "open_pattern" in field.spec and "open" not in field.spec:
        try:
            return [atoms(field.spec["open_pattern"], f"{field.key}.open_pattern")]
        except ResponseTemplateError:  # it may still be a few plain texts; if not, the reader of those says so
            return [[]]
    return [
        [Atom("text", character, (character,)) for character in text]
        for text in field.literals("open", edges=False).texts
    ]


def _marker(opener: Sequence[Atom]) -> str:
    """The marker that an opener ends with; "" where it ends otherwise."""
    found = _MARKER.search(last_text(opener))
    return found[0] if found is not None else ""


def _header(opener: Sequence[Atom]) -> list[Atom]:
    """What has to stand in a header. What may stand before it may as well be anything."""
    return list(dropwhile(lambda atom: atom.optional and not group_names([atom]), opener))
