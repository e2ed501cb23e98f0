"""What a header's pattern costs on text that does not become one: a model can write such a text for hours."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from tests.cost import least_seconds
from tests.formats.harness import compiled

from derender.formats.registry import FORMATS
from derender.parser.calls import LONGEST_HEADER

RUNS = (
    *(" ", "\n", "\t ", "a", "a ", " a\n", ":1", "1", "x:1 ", "-.", "to=", "to= "),
    *("functions.", "functions. ", "\\", "'", '"', "=", "<", "{"),
)
TEXTS = [(before + run * LONGEST_HEADER)[:LONGEST_HEADER] for run in RUNS for before in ("", "function", " x")]
MOST_SECONDS = 0.02


def slow(look: Callable[[str], object]) -> list[tuple[str, float]]:
    """The texts that take long, by their beginning, with their seconds."""
    found = []
    for text in TEXTS:
        took = least_seconds(functools.partial(look, text), within=MOST_SECONDS)
        if took > MOST_SECONDS:
            found.append((text[:16], round(took, 3)))
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_a_header_is_looked_for_in_short_time(name: str) -> None:
    form = compiled(FORMATS[name], tokens=True)
    for grammar in form.grammars:
        if grammar.header is not None:
            assert slow(grammar.header.match) == []
    if form.chain is not None:
        assert slow(form.chain.kind) == []
