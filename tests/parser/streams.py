"""Checks that hold for any output of any format: every split gives the same, through snapshots, and nothing raises."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.formats.harness import read

from derender.parser.compiled import CompiledFormat


def same_for_every_split(form: CompiledFormat, text: str, seed: int, **ask: Any) -> dict[str, Any]:
    """The answer for a text, after it was the same whole, token by token, and in random parts."""
    rng = random.Random(seed)
    whole = read(form, text, **ask)
    for sizes in ([1] * len(text), [rng.randint(0, 5) for _ in text]):
        assert read(form, text, sizes=sizes, **ask) == whole, text
    return whole


def noise(rng: random.Random, pieces: Sequence[str], longest: int = 24) -> str:
    """A random output made of markers and of what stands between them."""
    return "".join(rng.choice(pieces) for _ in range(rng.randint(0, longest)))


def survives_noise(form: CompiledFormat, pieces: Sequence[str], *, rounds: int = 150, **ask: Any) -> None:
    """Random outputs, in all ways of reading them."""
    rng = random.Random(11)
    for n in range(rounds):
        text = noise(rng, pieces)
        for options in ({}, {"complete": True}, {"trim": True}, {"calls": False}):
            same_for_every_split(form, text, n, **ask, **options)
