"""Segments of a long text give the ids of the whole, and are encoded once."""

from __future__ import annotations

import random

import pytest
from tests.vocabularies import REAL, byte_fallback_json, byte_level, from_json

from derender.tokenizer import Tokenizer
from derender.tokenizer.files import AddedToken
from derender.tokenizer.segments import LONG, SegmentedEncoder, _cuts

WORDS = ("so", "  ok", "naïve", "日本", "1 + 1", "\n\n", "👍🏽", "def f():", "<|im", "<", "▁", "im_end|>", "\t")


def text_of(rng: random.Random, tokens: list[str], size: int) -> str:
    parts: list[str] = []
    length = 0
    while length < size:
        part = rng.choice(tokens) if rng.random() < 0.02 else rng.choice(WORDS) + rng.choice((" ", "", "\n"))
        parts.append(part)
        length += len(part)
    return "".join(parts)


class Counting:
    """An encoder that knows how much it encoded."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.chars = 0
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        self.chars += len(text)
        return self._tokenizer.encode(text)


def segmented(tokenizer: Tokenizer, encode: Counting, *, max_bytes: int = 1 << 24) -> SegmentedEncoder:
    special = [token.content for token in tokenizer.added_tokens if token.special]
    return SegmentedEncoder(encode, boundaries=special, added=tokenizer.added_tokens, max_bytes=max_bytes)


def test_a_growing_text_is_encoded_for_what_is_new() -> None:
    tokenizer = byte_level()
    encode = Counting(tokenizer)
    encoder = segmented(tokenizer, encode)
    rng = random.Random(1)
    text = ""
    for turn in range(30):
        text += "<|im_start|>user\n" + text_of(rng, ["<|im_end|>"], 4000) + "<|im_end|>\n"
        before = encode.chars
        assert encoder.encode(text) == tokenizer.encode(text)
        if turn > 10:
            assert encode.chars - before < 10_000
    assert encoder.on
    assert encoder.hits > 20 * encoder.misses / 2
    assert 0 < encoder.bytes < 1 << 20


def test_the_cache_is_bounded() -> None:
    tokenizer = byte_level()
    encoder = segmented(tokenizer, Counting(tokenizer), max_bytes=30_000)
    rng = random.Random(2)
    for _ in range(20):
        text = text_of(rng, ["<|im_end|>"], 20_000)
        assert encoder.encode(text) == tokenizer.encode(text)
        assert encoder.bytes <= 30_000
    assert not segmented(tokenizer, Counting(tokenizer), max_bytes=0).on


def test_short_texts_are_let_alone() -> None:
    tokenizer = byte_level()
    encode = Counting(tokenizer)
    encoder = segmented(tokenizer, encode)
    text = "a" * (LONG - 1)
    for _ in range(2):
        encoder.encode(text)
    assert encode.chars == 2 * len(text)
    assert encoder.bytes == encoder.hits == encoder.misses == 0


def test_a_tokenizer_that_looks_across_its_tokens_is_found_out() -> None:
    encoder = SegmentedEncoder(
        lambda text: [len(text)], boundaries=["|"], added=[AddedToken(id=1, content="|", special=True)], max_bytes=10**6
    )
    text = "a|" * LONG
    assert encoder.encode(text) == [len(text)]
    assert not encoder.on
    assert "not those of the whole" in encoder.fault
    assert encoder.bytes == 0
    assert encoder.encode(text) == [len(text)]


@pytest.mark.parametrize(
    ("others", "cuts"),
    [
        ([], True),
        (["<|im_start|>", "<think>", "x"], True),
        (["<|im_end|>>"], False),
        (["a<"], False),
        (["<"], True),
        (["|><|im"], False),
        (["end"], True),
    ],
)
def test_a_boundary_is_found_wherever_it_is_spelled(others: list[str], cuts: bool) -> None:
    token = AddedToken(id=0, content="<|im_end|>", special=True)
    tokens = [token, *(AddedToken(id=n, content=text) for n, text in enumerate(others, 1))]
    assert _cuts(token, tokens) is cuts


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
def test_tokens_that_take_of_their_surroundings_are_no_boundaries(flag: str) -> None:
    token = AddedToken(id=0, content="<|im_end|>", **{flag: True})
    assert not _cuts(token, [token])


def check(tokenizer: Tokenizer, seed: str) -> None:
    special = [token.content for token in tokenizer.added_tokens]
    encoder = segmented(tokenizer, Counting(tokenizer))
    rng = random.Random(seed)
    for _ in range(12):
        text = text_of(rng, special, rng.randint(LONG, 4 * LONG))
        assert encoder.encode(text) == tokenizer.encode(text)
    assert not encoder.fault


def test_a_vocabulary_that_puts_a_blank_before_a_text() -> None:
    check(from_json(byte_fallback_json(), {}), "fallback")


@pytest.mark.real
@pytest.mark.parametrize("name", sorted(path.parent.name for path in REAL.glob("*/tokenizer.json")) or ["none at hand"])
def test_real_vocabularies(name: str) -> None:
    if not (REAL / name / "tokenizer.json").is_file():
        pytest.skip(f"no vocabularies under {REAL}")
    check(Tokenizer.from_directory(REAL / name), name)
