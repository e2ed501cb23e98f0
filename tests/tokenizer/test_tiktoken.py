"""tiktoken's rank files: ids by hand, and where pattern and special tokens come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.tokenizer.makers import rank_file, write

from derender.tokenizer import Tokenizer, TokenizerBroken
from derender.tokenizer.rank_families import HARMONY, RANK_FAMILIES
from derender.tokenizer.tiktoken import oniguruma, read_ranks

CODE = '''
"""A tokenizer."""
import unicodedata
class Tok:
    pat_str = "|".join([r"""[^\\r\\n\\p{L}\\p{N}]?\\p{L}+""", r"""\\p{N}{1,3}""" + r"|\\s+|[^\\s]"])
raise SystemExit("a model's code is never run")
'''
CONFIG: dict[str, Any] = {
    "tokenizer_class": "TikTokenTokenizer",
    "auto_map": {"AutoTokenizer": ["tokenization_x.Tok", None]},
    "bos_token": "[BOS]",
    "added_tokens_decoder": {
        "263": {"content": "[BOS]", "special": True},
        "265": {"content": "<tool>", "special": False},
    },
}


def load(
    directory: Path, *, code: str = CODE, config: dict[str, Any] | None = None, name: str = "x.tiktoken"
) -> Tokenizer:
    write(directory, tokenizer_config__json=CONFIG if config is None else config, tokenization_x__py=code)
    (directory / name).write_bytes(rank_file())
    return Tokenizer.from_directory(directory)


@pytest.mark.parametrize("name", ["x.tiktoken", "tiktoken.model", "tokenizer.model"])
def test_pattern_from_the_code_and_tokens_from_the_config(tmp_path: Path, name: str) -> None:
    tokenizer = load(tmp_path, name=name)
    assert tokenizer.source == f"{name} (tiktoken ranks)"
    assert tokenizer.encode(" the") == [259]
    assert tokenizer.encode("the") == [116, 258]
    assert tokenizer.encode("[BOS]<tool>a") == [263, 265, 97]
    assert tokenizer.special_ids == {263}
    assert not tokenizer.knows(264)
    assert tokenizer.encode("a", add_special_tokens=True) == [97]


def test_bos_is_added_where_the_config_says(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, config={**CONFIG, "add_bos_token": True})
    assert tokenizer.encode("a", add_special_tokens=True) == [263, 97]


def test_nfc_where_the_code_has_it(tmp_path: Path) -> None:
    assert load(tmp_path / "a").encode("e\u0301") == [101, 0xCC, 0x81]
    composed = load(tmp_path / "b", code=CODE + '\ntext = unicodedata.normalize("NFC", text)\n')
    assert composed.encode("e\u0301") == [262]


@pytest.mark.parametrize("code", ["", "def f(:", "PAT_STR = make()", "PAT_STR = 'no classes'"])
def test_an_unknown_vocabulary_without_a_pattern_is_refused(tmp_path: Path, code: str) -> None:
    with pytest.raises(TokenizerBroken, match="how a rank file of 263 tokens cuts text is not known"):
        load(tmp_path, code=code)


def test_two_rank_files_are_one_too_many(tmp_path: Path) -> None:
    write(tmp_path, a__tiktoken=rank_file(), b__tiktoken=rank_file())
    with pytest.raises(TokenizerBroken, match=r"more than one tiktoken file: a.tiktoken, b.tiktoken"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"YQ== 0\nYg== 0\n", "gives one rank twice"),
        (b"YQ== 0\nYg==\n", "line 2 of the rank file"),
        (b"YQ== 0\n!! 1\n", "line 2 of the rank file"),
        (b"YQ== 0\n", "no token for the byte 0x00"),
    ],
)
def test_a_broken_rank_file_is_one_clear_line(data: bytes, says: str) -> None:
    with pytest.raises(TokenizerBroken, match=says):
        read_ranks(data)


@pytest.mark.parametrize("number", ["²", "9" * 5000])
def test_an_id_that_is_no_number_is_one_clear_line(tmp_path: Path, number: str) -> None:
    config = {"added_tokens_decoder": {number: {"content": "<a>"}}}
    code = r'pat_str = r"\p{L}+|."'
    write(tmp_path, x__tiktoken=rank_file(), tokenization_x__py=code, tokenizer_config__json=config)
    with pytest.raises(TokenizerBroken, match="is not an added token") as caught:
        Tokenizer.from_directory(tmp_path)
    assert "\n" not in str(caught.value)


def test_patterns_keep_their_meaning_in_oniguruma() -> None:
    assert oniguruma(r"\p{N}{1,3}+|\s++$|[$^a]|\$|^b") == r"\p{N}{1,3}|\s++\z|[$^a]|\$|\Ab"
    with pytest.raises(TokenizerBroken, match="within a branch"):
        oniguruma(r"\p{N}{1,3}+a")


@pytest.mark.parametrize(("ranks", "family"), [*RANK_FAMILIES.items(), (199998, HARMONY)])
def test_families_give_each_id_one_spelling(ranks: int, family: Any) -> None:
    both = {**family.special_tokens, **family.plain_tokens}
    assert len(both) == len(family.special_tokens) + len(family.plain_tokens) == len(set(both.values()))
    assert all(number >= ranks or number == 50256 for number in both)
    assert set(family.names.values()) <= set(both.values()) or not both
