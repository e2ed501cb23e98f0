"""sentencepiece's model files: small ones written byte by byte, ids by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.tokenizer.makers import sentencepiece, write

from derender.tokenizer import Tokenizer, TokenizerBroken
from derender.tokenizer.protobuf import ProtobufBroken, fields, signed
from derender.tokenizer.sentencepiece_file import read_sentencepiece

UNIGRAM = {"▁": -3.0, "a": -4.0, "b": -4.0, "▁ab": -2.0, "ab": -5.0}


def load(directory: Path, data: bytes, **config: Any) -> Tokenizer:
    files: dict[str, Any] = {"tokenizer__model": data}
    return Tokenizer.from_directory(write(directory, **files, **({"tokenizer_config__json": config} if config else {})))


def test_bpe_with_byte_fallback(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, sentencepiece())
    assert tokenizer.source == "tokenizer.model (sentencepiece BPE)"
    assert tokenizer.encode("ab") == [263, 261]  # ▁a (-1) before ab (-2)
    assert tokenizer.encode("bab") == [259, 265]
    assert tokenizer.encode("é\n") == [259, 3 + 0xC3, 3 + 0xA9, 3 + 0x0A]
    assert tokenizer.encode("a", add_special_tokens=True) == [1, 263]
    assert tokenizer.decode(tokenizer.encode("ab é\n")) == "ab é\n"
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_alone_each_text_gets_its_blank_as_sentencepiece_does(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, sentencepiece())
    assert tokenizer.encode(" a") == [259, 263]
    assert tokenizer.encode("▁a") == [259, 263]
    assert tokenizer.encode("") == []
    assert tokenizer.encode("<s>a") == [1, 260]
    ids, offsets = tokenizer.encode_with_offsets(" a")
    assert (ids, offsets) == ([259, 263], [(0, 0), (0, 2)])


@pytest.mark.parametrize(
    ("config", "text", "ids"),
    [
        ({}, "a</s>a", [263, 2, 260]),
        ({"legacy": True}, "a</s>a", [263, 2, 263]),
        ({"legacy": False}, " a", [263]),
        ({"add_prefix_space": False}, "a", [260]),
    ],
)
def test_options_beside_the_file(tmp_path: Path, config: dict[str, Any], text: str, ids: list[int]) -> None:
    tokenizer = load(tmp_path, sentencepiece(), tokenizer_class="LlamaTokenizer", **config)
    assert tokenizer.encode(text) == ids


@pytest.mark.parametrize(
    ("config", "ids"),
    [({}, [1, 263]), ({"add_bos_token": False}, [263]), ({"add_eos_token": True, "eos_token": "</s>"}, [1, 263, 2])],
)
def test_what_frames_a_text(tmp_path: Path, config: dict[str, Any], ids: list[int]) -> None:
    tokenizer = load(tmp_path, sentencepiece(), tokenizer_class="LlamaTokenizer", **config)
    assert tokenizer.encode("a", add_special_tokens=True) == ids


def test_mistral_mode_takes_the_file_at_its_word(tmp_path: Path) -> None:
    load(tmp_path, sentencepiece(), tokenizer_class="LlamaTokenizer", legacy=True)
    tokenizer = Tokenizer.from_directory(tmp_path, mode="mistral")
    assert tokenizer.encode("a</s>a") == [263, 2, 260]
    assert tokenizer.encode(" a") == [259, 263]


def test_user_defined_pieces_are_found_whole(tmp_path: Path) -> None:
    data = sentencepiece({"▁": -9.0, "a": -8.0, "<x>": 0.0}, kinds={"<x>": 4})
    tokenizer = load(tmp_path, data)
    assert tokenizer.encode("a<x>a") == [259, 260, 261, 260]
    assert tokenizer.encode("<x>a") == [259, 261, 260]
    assert 261 not in tokenizer.special_ids


def test_unigram_takes_the_best_sum(tmp_path: Path) -> None:
    data = sentencepiece(UNIGRAM, byte_fallback=False, trainer={3: 1}, normalizer={4: 1})
    tokenizer = load(tmp_path, data)
    assert tokenizer.source == "tokenizer.model (sentencepiece Unigram)"
    assert tokenizer.encode("ab") == [6]
    assert tokenizer.encode("bab") == [3, 5, 7]
    assert tokenizer.encode("  ab   ab ") == [6, 6]
    assert tokenizer.encode("a日本b") == [3, 4, 0, 5]
    assert tokenizer.decode([6, 6]) == "ab ab"


def test_a_spelled_byte_is_text_in_unigram(tmp_path: Path) -> None:
    letters = dict.fromkeys("▁<0x41>ab", -4.0)
    tokenizer = load(tmp_path, sentencepiece(letters, trainer={3: 1}))
    numbers = {letter: 259 + number for number, letter in enumerate(letters)}
    assert tokenizer.encode("<0x41>") == [numbers["▁"], *(numbers[letter] for letter in "<0x41>")]
    assert tokenizer.encode("é") == [numbers["▁"], 3 + 0xC3, 3 + 0xA9]


def test_t5_has_its_sentinels_after_the_pieces(tmp_path: Path) -> None:
    data = sentencepiece(UNIGRAM, byte_fallback=False, trainer={3: 1}, normalizer={4: 1})
    tokenizer = load(tmp_path, data, tokenizer_class="T5Tokenizer", extra_ids=2)
    assert tokenizer.encode("ab<extra_id_0><extra_id_1>", add_special_tokens=True) == [6, 9, 8, 2]


@pytest.mark.parametrize(
    ("data", "config", "says"),
    [
        (b"", {}, "no sentencepiece model"),
        (b"\xff\xff", {}, "no sentencepiece model"),
        (b"<html>", {}, "no sentencepiece model"),
        (sentencepiece()[:-40], {}, "no sentencepiece model"),
        (sentencepiece() + b"\x0a\x07\x0a\x01q\x12\x02xx", {}, "no sentencepiece model"),  # a score of text
        (sentencepiece() + b"\x0a\x08\x0a\x01q\x1d\x00\x00\xc0\x7f", {}, "no sentencepiece model"),  # a kind of NaN
        (sentencepiece() + b"\x12\x05\x1d\x00\x00\x80\x7f", {}, "no sentencepiece model"),  # a kind of infinity
        (sentencepiece() + b"\x1a\x0a\x12\x08\xff\xff\xff\xffabcd", {}, "rules are cut short"),
        (sentencepiece() + b"\x1a\x03\x12\x01\x01", {}, "rules are cut short"),
        (sentencepiece(trainer={3: 4}), {}, "kind 4: only Unigram and BPE"),
        (sentencepiece(trainer={24: 1}), {}, "blanks after words"),
        (sentencepiece(byte_fallback=False, trainer={35: 1}), {}, "lacks the byte token <0x00>"),
        (sentencepiece({"▁▁": 0.0}, kinds={"▁▁": 4}), {}, "user-defined pieces with blanks"),
        (sentencepiece({"<x>": 0.0}, kinds={"<x>": 4}, normalizer={4: 1}), {}, "drops blanks and has user-defined"),
        (sentencepiece({"a": 0.0, "b": 0.0, "ab": -1.0, "ba": -1.0}), {}, "a score is -1.0 for both"),
        (sentencepiece(), {"tokenizer_class": "XLMRobertaTokenizerFast"}, "ids of XLMRobertaTokenizer are not those"),
        (sentencepiece(), {"tokenizer_class": "T5Tokenizer", "extra_ids": -1}, "extra_ids is -1"),
    ],
)
def test_what_cannot_be_exact_is_refused_in_one_line(
    tmp_path: Path, data: bytes, config: dict[str, Any], says: str
) -> None:
    with pytest.raises(TokenizerBroken, match=says) as caught:
        load(tmp_path, data, **config)
    assert "\n" not in str(caught.value)


def test_the_fields_that_count() -> None:
    file = read_sentencepiece(sentencepiece({"x": -1.5}, trainer={40: 0, 41: -1, 42: 2}))
    assert (file.texts[-1], file.scores[-1], file.types[-1]) == ("x", -1.5, 1)
    assert (file.model_type, file.byte_fallback, file.bos_id, file.eos_id, file.pad_id) == (2, True, -1, 2, -1)
    assert (file.add_dummy_prefix, file.remove_extra_whitespaces) == (True, False)


def test_the_wire_format() -> None:
    data = b"\x08\x96\x01" + b"\x12\x03abc" + b"\x1d\x00\x00\x80\x3f" + b"\x21" + b"\x01" + b"\x00" * 7
    assert list(fields(data)) == [(1, 150), (2, b"abc"), (3, 1.0), (4, 1)]
    assert signed((1 << 64) - 1) == -1
    for wrong in (b"\x08", b"\x12\x05ab", b"\x1d\x00", b"\x0b", b"\x00\x01", b"\x08" + b"\xff" * 11):
        with pytest.raises(ProtobufBroken):
            list(fields(wrong))
