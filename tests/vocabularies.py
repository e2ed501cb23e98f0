"""Vocabularies for tests: small ones made here, and real ones from where scripts/test put them."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Reference
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from derender.sources import find_source
from derender.tokenizer import Tokenizer
from derender.tokenizer.files import tokenizer_spec
from derender.tokenizer.gguf import read_gguf_metadata

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
REAL = Path(os.environ.get("DERENDER_TEST_VOCABS", ROOT / ".cache" / "vocabularies"))

TEXT = (
    "Hello there, how are you today? The quick brown fox jumps over the lazy dog.\n"
    "def f(x):\n    return x + 1\n"
    "Zürich, naïve café — 日本語 今天天气 삼겹살 😊 world Hello world\n"
)


def from_json(text: str, config: dict[str, Any]) -> Tokenizer:
    """A tokenizer from the text of a tokenizer.json."""
    return Tokenizer(tokenizer_spec(lambda: text.encode("utf-8"), config=config))


@functools.cache
def byte_level_json() -> str:
    """A small byte-level BPE with ChatML's special tokens and one added token that is not special."""
    reference = Reference(models.BPE())
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    reference.train_from_iterator([TEXT] * 3, trainer)
    reference.add_tokens(["<think>", "</think>"])
    return str(reference.to_str())


@functools.cache
def byte_level() -> Tokenizer:
    """The small byte-level tokenizer."""
    return from_json(byte_level_json(), {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"})


def byte_fallback_json() -> str:
    """A sentencepiece-style BPE with byte fallback: `<unk>` `<s>` `</s>`, ids 3–258 the bytes, then a few words."""
    words = ["▁Hello", "▁world", "▁", "▁a", ".", "a", "▁leading", "▁x", "x", "世", "é"]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{b:02X}>": 3 + b for b in range(256)}
    vocab |= {word: 259 + i for i, word in enumerate(words)}
    reference = Reference(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    reference.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    reference.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    reference.add_special_tokens(["<unk>", "<s>", "</s>"])
    return str(reference.to_str())


@functools.cache
def byte_fallback() -> Tokenizer:
    """The small sentencepiece-style tokenizer."""
    return from_json(byte_fallback_json(), {"bos_token": "<s>", "eos_token": "</s>"})


@functools.cache
def real(name: str) -> Tokenizer:
    """A real model's tokenizer. Skips where there is none (see `real_model`)."""
    path = real_model(name)
    if not path.endswith(".gguf"):
        return Tokenizer.from_directory(path)
    return Tokenizer(find_source(path, tokenizer=None, revision=None, tokenizer_revision=None).spec)


def real_model(name: str) -> str:
    """What `Model.load` takes for a real model: its directory, else the GGUF file of real tests where it is that model.

    Skips where scripts/test could fetch neither.
    """
    directory = REAL / name
    if (directory / "tokenizer.json").is_file():
        return str(directory)
    file = os.environ.get("DERENDER_TEST_GGUF", "")
    if Path(file).is_file() and read_gguf_metadata(file).get("general.basename") == name:
        return file
    pytest.skip(f"the vocabulary {name} is not in {REAL}, and DERENDER_TEST_GGUF names no file that has it")


def real_directory(name: str) -> Path:
    """A real model's directory (tokenizer and configuration). Skips where there is none."""
    directory = REAL / name
    if not (directory / "tokenizer.json").is_file():
        pytest.skip(f"the vocabulary {name} is not in {REAL}")
    return directory


def bug_case(case_id: str) -> dict[str, Any]:
    """A public bug report as a case. Skips in a clone without the case files."""
    path = SHARED / "cases" / "bugs.jsonl"
    if not path.is_file():
        pytest.skip(f"no case files at {path}")
    for line in path.read_text(encoding="utf-8").splitlines():
        case: dict[str, Any] = json.loads(line)
        if case["id"] == case_id:
            return case
    raise LookupError(case_id)
