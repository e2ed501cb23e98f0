"""Pieces and the detokenizer against the reference's decode."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.vocabularies import byte_fallback, byte_fallback_json, byte_level, byte_level_json, from_json
from tokenizers import Tokenizer as Reference

from derender.tokenizer import Tokenizer, TokenizerBroken
from derender.tokenizer.pieces import Spelling, spelling

VOCABULARIES = [(byte_level, byte_level_json), (byte_fallback, byte_fallback_json)]


@pytest.mark.parametrize(("make", "text"), VOCABULARIES)
def test_decode_equals_the_reference_where_the_bytes_are_whole(make: object, text: object) -> None:
    tokenizer: Tokenizer = make()  # type: ignore[operator]
    reference = Reference.from_str(text())  # type: ignore[operator]

    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30), st.booleans())
    def check(ids: list[int], skip: bool) -> None:
        expected = reference.decode(ids, skip_special_tokens=skip)
        if "\ufffd" not in expected:
            assert tokenizer.decode(ids, skip_special_tokens=skip) == expected

    check()


@pytest.mark.parametrize(("make", "text"), VOCABULARIES)
def test_every_split_gives_the_whole(make: object, text: object) -> None:
    tokenizer: Tokenizer = make()  # type: ignore[operator]

    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30), st.data(), st.booleans(), st.booleans())
    def check(ids: list[int], data: st.DataObject, skip: bool, continues: bool) -> None:
        whole = tokenizer.detokenizer(skip_special_tokens=skip, continues=continues)
        expected = whole.push(ids) + whole.finish()
        cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
        parts = tokenizer.detokenizer(skip_special_tokens=skip, continues=continues)
        out = ""
        for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True):
            out += parts.push(ids[a:b])
            assert len(parts.pending) <= 3
        assert out + parts.finish() == expected
        table = tokenizer.visible_pieces if skip else tokenizer.pieces
        joined = b"".join(table[i] for i in ids).decode("utf-8", "replace")
        if tokenizer.strips_leading_blank and not continues:
            joined = joined.removeprefix(" ")
        assert expected == joined

    check()


def test_pieces_are_bytes_not_vocabulary_spelling() -> None:
    tokenizer = byte_level()
    world = tokenizer.encode(" world")
    assert b"".join(tokenizer.piece(i) for i in world) == b" world"
    assert tokenizer.token_string(world[0]).startswith("Ġ")
    assert tokenizer.piece(tokenizer.token_id("<think>") or -1) == b"<think>"
    for outside in (-1, tokenizer.vocab_size, tokenizer.empty_id):
        with pytest.raises(IndexError):
            tokenizer.piece(outside)


def test_spellings() -> None:
    assert Spelling(byte_level=True).piece("Ġa") == b" a"
    assert Spelling(byte_level=True).piece("âĢľ") == "“".encode()
    assert Spelling(byte_level=True).piece("a b") == b"a b"  # a blank is not in the alphabet: plain text
    assert Spelling(byte_level=True).piece("日") == "日".encode()
    spm = spelling(json.loads(byte_fallback_json())["decoder"])
    assert spm == Spelling(byte_fallback=True, replacements=(("▁", " "),), strips_leading_blank=True)
    assert spm.piece("<0xE2>") == b"\xe2"
    assert spm.piece("▁▁a") == b"  a"
    assert spelling({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}).strips_leading_blank is False
    assert spelling(None) == Spelling(word_mark="", strips_leading_blank=True)  # the library joins with blanks


@pytest.mark.parametrize(
    ("decoder", "tokens", "pieces"),
    [
        ({"type": "WordPiece", "prefix": "##"}, ["the", "##ing", ".", "n't", "#"], [" the", "ing", ".", "n't", " #"]),
        ({"type": "WordPiece", "prefix": "##", "cleanup": False}, [".", "##."], [" .", "."]),
        ({"type": "BPEDecoder", "suffix": "</w>"}, ["lo", "w</w>"], ["lo", "w "]),
        (None, ["a", "b"], [" a", " b"]),
        (
            {
                "type": "Sequence",
                "decoders": [{"type": "Strip", "content": "_", "start": 2, "stop": 1}, {"type": "Fuse"}],
            },
            ["___a__", "_"],
            ["_a_", ""],
        ),
        ({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}, ["_a_b"], [" a b"]),
    ],
)
def test_each_decoder_token_by_token(decoder: dict | None, tokens: list[str], pieces: list[str]) -> None:
    how = spelling(decoder)
    assert [how.piece(token).decode() for token in tokens] == pieces


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": "x", "start": 3, "stop": 0}]},
        {"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""},
        {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "ByteFallback"}]},
    ],
)
def test_an_unknown_decoder_is_refused(decoder: dict) -> None:
    with pytest.raises(TokenizerBroken, match="decoder"):
        spelling(decoder)


def test_an_added_token_keeps_its_own_spelling() -> None:
    """An added token that looks like byte-level spelling is text all the same."""
    tree = json.loads(byte_level_json())
    new = byte_level().vocab_size
    tree["added_tokens"].append({**tree["added_tokens"][-1], "id": new, "content": "éĠ", "special": False})
    tokenizer = from_json(json.dumps(tree), {"eos_token": "<|im_end|>"})
    assert tokenizer.decode([new]) == "éĠ"


def test_an_added_token_goes_through_the_decoder() -> None:
    """Gemma 3 lists its runs of blanks as added tokens."""
    tree = json.loads(byte_fallback_json())
    new = byte_fallback().vocab_size
    tree["added_tokens"].append({**tree["added_tokens"][-1], "id": new, "content": "▁▁", "special": False})
    tokenizer = from_json(json.dumps(tree), {})
    assert tokenizer.decode([259, new]) == "Hello  "
