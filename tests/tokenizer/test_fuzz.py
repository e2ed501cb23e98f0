"""Ids and text of real vocabularies against the tokenizers library, and against llama.cpp's recorded ids.

DERENDER_TEST_FUZZ: strings for each vocabulary (500 where it is not set).
"""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path

import canitoolcall
import pytest
from tests.tokenizer.fuzz import COUNT, strings
from tests.vocabularies import REAL, SHARED
from tokenizers import Tokenizer as Reference

from derender.tokenizer import Tokenizer
from derender.tokenizer.directory import read_tokenizer_directory

pytestmark = pytest.mark.real
NAMES = sorted(path.parent.name for path in REAL.glob("*/tokenizer.json")) or ["none"]
PAIRS = SHARED / "data" / "llama.cpp-vocab"
SEPARATOR = "\n__ggml_vocab_test__\n"
SAME = {
    "bert-bge": "bert-wordpiece",
    "command-r": "command-r-plus",
    "falcon": "falcon",
    "gemma-4": "gemma4",
    "gpt-2": "gpt2",
    "llama-bpe": "llama3",
    "llama-spm": "llama2",
    "phi-3": "phi-3",
    "qwen2": "qwen2.5",
    "starcoder": "starcoder",
}
"""llama.cpp's recorded vocabularies that are also a model's tokenizer.json. Of deepseek-coder, deepseek-llm, mpt,
qwen35 and refact there is only a GGUF file (test_gguf_real.py)."""


def whole(name: str) -> Path:
    if not (REAL / name / "tokenizer.json").is_file():
        pytest.skip(f"the vocabulary {name} is not in {REAL}")
    return REAL / name


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_text_equal_the_reference(name: str) -> None:
    spec = read_tokenizer_directory(whole(name))
    tokenizer = Tokenizer(spec)
    reference = Reference.from_str(spec.json_text.decode())
    reference.no_truncation()
    reference.no_padding()
    special = [token.content for token in spec.added_tokens][:60]
    compared = 0
    for number, text in enumerate(strings(COUNT, special=special)):
        add = number % 2 == 1
        ids = reference.encode(text, add_special_tokens=add).ids
        assert tokenizer.encode(text, add_special_tokens=add) == ids, text
        for skip in (False, True):
            expected = reference.decode(ids, skip_special_tokens=skip)
            if "\ufffd" not in expected:
                assert tokenizer.decode(ids, skip_special_tokens=skip) == expected
                compared += 1
    assert compared > COUNT


@pytest.mark.parametrize("name", NAMES)
def test_text_of_any_ids_equals_the_reference(name: str) -> None:
    spec = read_tokenizer_directory(whole(name))
    tokenizer = Tokenizer(spec, force="tokenizers")
    reference = Reference.from_str(spec.json_text.decode())
    draw = random.Random(5)
    known = [number for number in range(tokenizer.vocab_size) if tokenizer.knows(number)]
    if (spec.decoder or {}).get("type") == "WordPiece":  # a first "##a" is the one thing that is not told per token
        first = [number for number in known if not tokenizer.token_string(number).startswith("##")]
    elif (spec.decoder or {}).get("type") == "Metaspace":  # as is a first token of more than one blank
        first = [number for number in known if not tokenizer.token_string(number).startswith("▁▁")]
    else:
        first = known
    for _ in range(COUNT):
        ids = [draw.choice(first), *draw.choices(known, k=draw.randrange(8))]
        expected = reference.decode(ids, skip_special_tokens=False)
        if "\ufffd" not in expected:
            assert tokenizer.decode(ids) == expected, ids


@pytest.mark.parametrize(("recorded", "name"), SAME.items())
def test_ids_are_those_that_llama_cpp_recorded(recorded: str, name: str) -> None:
    texts, rows = PAIRS / f"ggml-vocab-{recorded}.gguf.inp", PAIRS / f"ggml-vocab-{recorded}.gguf.out"
    if not texts.is_file():
        pytest.skip(f"no recorded ids at {texts}")
    tokenizer = Tokenizer.from_directory(whole(name))
    wanted = [[int(number) for number in line.split()] for line in rows.read_text().splitlines()]
    parts = texts.read_bytes().decode().split(SEPARATOR)[: len(wanted)]
    compared = 0
    for text, ids in zip(parts, wanted, strict=True):
        if recorded in ("command-r", "qwen2") and not unicodedata.is_normalized("NFC", text):
            continue  # llama.cpp leaves out the NFC of the model's own tokenizer
        assert tokenizer.encode(text) == ids, text
        compared += 1
    assert compared >= 46


RECORDED = {
    "Qwen/Qwen3-0.6B": "qwen3",
    "Qwen/Qwen3-4B-Instruct-2507": "qwen3",
    "Qwen/Qwen3-4B-Thinking-2507": "qwen3",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "qwen3",
    "Qwen/Qwen3.5-9B": "qwen3.6",
    "Qwen/Qwen3.8-27B": "qwen3.6",
    "deepseek-ai/DeepSeek-V3-0324": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3.1": "deepseek-v3.1",
    "deepseek-ai/DeepSeek-V3.2": "deepseek-v3.2",
    "deepseek-ai/DeepSeek-V4-Flash": "deepseek-v4",
    "google/gemma-4-31B-it": "gemma4",
    "openai/gpt-oss-20b": "gpt-oss",
    "unsloth/Llama-3.3-70B-Instruct": "llama3.2",
}
"""Whose ids canitoolcall has recorded, and a vocabulary that is the same."""


@pytest.mark.parametrize(("repo", "name"), RECORDED.items())
def test_recorded_outputs_have_their_ids_and_text(repo: str, name: str) -> None:
    tokenizer = Tokenizer.from_directory(whole(name))
    folder = Path(canitoolcall.__file__).parent / "_data" / "fixtures"
    compared = 0
    for path in sorted(folder.glob("*/*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            case = json.loads(line)
            ids = case.get("output_token_ids")
            if not ids or case["tokenizer"]["repo"] != repo:
                continue
            assert tokenizer.decode(ids) == case["raw_output"], case["id"]
            if "marker-in-" not in case["id"]:  # there a marker's spelling is text, not that token
                assert tokenizer.encode(case["raw_output"]) == ids, case["id"]
            compared += 1
    assert compared >= 5
