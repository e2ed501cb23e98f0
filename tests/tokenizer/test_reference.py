"""Vocabularies that are no tokenizer.json, against the libraries that they are made for.

DERENDER_TEST_REFERENCE: a Python that has tiktoken, mistral-common and sentencepiece; skipped without.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tests.tokenizer.fuzz import COUNT, strings
from tests.vocabularies import REAL
from tokenizers import normalizers

from derender.tokenizer import Tokenizer

PYTHON = os.environ.get("DERENDER_TEST_REFERENCE", "")
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not PYTHON, reason="DERENDER_TEST_REFERENCE names no Python with the reference libraries"),
]
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?%s+|\p{N}%s| ?[^\s%s\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
)
_KIMI = r"[\p{Han}]+|" + _CASED.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]")
_REST = r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+%s*|\s*[\r\n]+|\s+(?!\S)|\s+"
RANKS = {
    "openai-tiktoken/p50k_base.tiktoken": (
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
    ),
    "openai-tiktoken/cl100k_base.tiktoken": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
        r"|\s+(?!\S)|\s"
    ),
    "openai-tiktoken/o200k_base.tiktoken": _CASED + _REST % r"[\r\n/]",
    "qwen-tiktoken/qwen.tiktoken": _WORDS % (r"\p{L}", "", r"\p{L}"),
    "qwen-tiktoken/qwen3_6.tiktoken": _WORDS % (r"[\p{L}\p{M}]", "", r"\p{L}\p{M}"),
}
"""The patterns as OpenAI's and Qwen's own code write them."""
MISTRAL = (
    "tekken_240718.json",
    "tekken_240911.json",
    "tokenizer.model.v1",
    "mistral_instruct_tokenizer_240216.model.v2",
    "mistral_instruct_tokenizer_240323.model.v3",
    "mistral_instruct_tokenizer_241114.model.v7",
    "mistral_instruct_tokenizer_241114.model.v7m1",
)
TRAINED: dict[str, dict[str, Any]] = {
    "bpe": {"model_type": "bpe", "byte_fallback": True, "remove_extra_whitespaces": False},
    "bpe-no-prefix": {
        "model_type": "bpe",
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
    },
    "bpe-user-defined": {
        "model_type": "bpe",
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["<think>", "<sep>"],
    },
    "bpe-unknown-squeezed": {"model_type": "bpe"},
}


def reference(**job: Any) -> tuple[list[list[int]], list[str]]:
    script = Path(__file__).with_name("reference.py")
    done = subprocess.run(
        [PYTHON, str(script)], input=json.dumps(job), capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout)
    return answer["ids"], answer["texts"]


def alone(directory: Path, name: str) -> tuple[Tokenizer, Path]:
    """The file alone in a directory."""
    file = REAL / name
    if not file.is_file():
        pytest.skip(f"{file} is missing")
    target = directory / (f"tokenizer{file.suffixes[-2]}{file.suffix}" if ".model." in name else file.name)
    shutil.copy(file, target)
    return Tokenizer.from_directory(directory), target


def compare(
    tokenizer: Tokenizer, texts: list[str], ids: list[list[int]], decoded: list[str], *, unknown: str = ""
) -> None:
    for text, row, back in zip(texts, ids, decoded, strict=True):
        assert tokenizer.encode(text) == row, text
        if "\ufffd" not in back and (not unknown or unknown not in back):
            assert tokenizer.decode(row) == back


@pytest.mark.parametrize("name", RANKS)
def test_tiktoken(tmp_path: Path, name: str) -> None:
    tokenizer, file = alone(tmp_path, name)
    special = {token.content: token.id for token in tokenizer.added_tokens}
    nfc = name.startswith("qwen")
    texts = strings(COUNT, special=list(special)[:60])
    if nfc:
        # Characters that the two libraries' versions of Unicode compose otherwise are left out.
        ours = normalizers.NFC()
        texts = [text for text in texts if ours.normalize_str(text) == unicodedata.normalize("NFC", text)]
    ids, decoded = reference(
        kind="tiktoken_file", path=str(file), strings=texts, pattern=RANKS[name], special=special, nfc=nfc
    )
    compare(tokenizer, texts, ids, decoded)
    assert len(texts) > COUNT * 0.98


def test_kimis_pattern(tmp_path: Path) -> None:
    """Over another vocabulary's ranks, as its own file is not public in a package: the pattern is what differs."""
    file = REAL / "openai-tiktoken/cl100k_base.tiktoken"
    if not file.is_file():
        pytest.skip(f"{file} is missing")
    shutil.copy(file, tmp_path / "tiktoken.model")
    pattern = _KIMI + _REST % r"[\r\n]"
    (tmp_path / "tokenization_x.py").write_text(f"class X:\n    pat_str = {pattern!r}\n")
    tokenizer = Tokenizer.from_directory(tmp_path)
    from derender.tokenizer.rank_families import RANK_FAMILIES

    assert RANK_FAMILIES[163584].pattern == pattern
    texts = strings(COUNT)
    job = {"path": str(tmp_path / "tiktoken.model"), "pattern": pattern, "special": {}, "nfc": False}
    compare(tokenizer, texts, *reference(kind="tiktoken_file", strings=texts, **job))


@pytest.mark.parametrize("name", MISTRAL)
def test_mistral(tmp_path: Path, name: str) -> None:
    tokenizer, file = alone(tmp_path, f"mistral-common/{name}")
    plain = [token.content for token in tokenizer.added_tokens if not token.special]
    special = [token.content for token in tokenizer.added_tokens if token.special]
    # mistral-common never reads a control token out of text.
    texts = [text for text in strings(COUNT, special=plain) if not any(token in text for token in special)]
    ids, decoded = reference(kind="mistral", path=str(file), strings=texts)
    compare(tokenizer, texts, ids, decoded)
    assert len(texts) > COUNT * 0.9


@pytest.mark.parametrize("name", TRAINED)
def test_sentencepiece(tmp_path: Path, name: str) -> None:
    file = tmp_path / "tokenizer.model"
    lines = [text for text in strings(6000, seed=7) if text.strip() and not set(text) & set("\0\n")]
    options = {"vocab_size": 6500, "character_coverage": 0.98, "normalization_rule_name": "identity", **TRAINED[name]}
    reference(kind="train", path=str(file), strings=lines, options=options)
    tokenizer = Tokenizer.from_directory(tmp_path)
    special = [token.content for token in tokenizer.added_tokens if token.special]
    made = strings(COUNT, special=["<think>", "<sep>"], seed=11)
    texts = [text for text in made if not any(token in text for token in special)]
    ids, decoded = reference(kind="sentencepiece", path=str(file), strings=texts)
    if "squeezed" in name:  # sentencepiece drops every blank at the start of the text, the library one
        decoded = ["\ufffd"] * len(ids)
    compare(tokenizer, texts, ids, decoded, unknown="\u2047")
