"""Real vocabularies of llama.cpp, against the ids that llama.cpp's own tests want.

The folder in DERENDER_TEST_VOCABS holds ggml-vocab-NAME.gguf with .inp (texts) and .out (ids) beside them, as in
models/ of ggml-org/llama.cpp and of the source package of llama-cpp-python. The ids are without BOS, and no text holds
a control token (tests/test-tokenizer-0.cpp there: add_special and parse_special are both false).
"""

from __future__ import annotations

import json
import os
import unicodedata
from pathlib import Path

import pytest
from fastokens import Tokenizer as FastTokenizer
from tokenizers import Tokenizer

from derender.tokenizer.gguf import read_gguf_metadata
from derender.tokenizer.gguf_tokenizer import GgufUnsupported, gguf_vocabulary

FOLDER = os.environ.get("DERENDER_TEST_VOCABS")
PAIRS = Path(__file__).parents[2] / "../shared/data/llama.cpp-vocab"
SEPARATOR = "\n__ggml_vocab_test__\n"

pytestmark = pytest.mark.real


def real(name: str) -> Path:
    if not FOLDER:
        pytest.skip("DERENDER_TEST_VOCABS names no folder of GGUF vocabularies")
    path = Path(FOLDER) / name
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    return path


def pairs(name: str) -> list[tuple[str, list[int]]]:
    """Texts and ids of a vocabulary, from beside the file or from the shared copy."""
    for folder in (Path(str(FOLDER)), PAIRS):
        texts, ids = folder / f"ggml-vocab-{name}.gguf.inp", folder / f"ggml-vocab-{name}.gguf.out"
        if texts.is_file() and ids.is_file():
            rows = [[int(number) for number in line.split()] for line in ids.read_text().splitlines()]
            parts = texts.read_bytes().decode().split(SEPARATOR)
            assert parts[len(rows) :] in ([], [""])
            return list(zip(parts[: len(rows)], rows, strict=True))
    pytest.skip(f"there are no texts and ids of {name}")


@pytest.mark.parametrize(
    "name",
    [
        *("command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "mpt"),
        *("phi-3", "qwen2", "qwen35", "refact", "starcoder"),
    ],
)
def test_ids_are_those_of_llama_cpp(name: str) -> None:
    vocabulary = gguf_vocabulary(read_gguf_metadata(real(f"ggml-vocab-{name}.gguf")))
    spelled = json.dumps(vocabulary.tokenizer_json)
    tokenizer = Tokenizer.from_str(spelled)
    fast = None if name == "falcon" else FastTokenizer.from_json_str(spelled)  # fastokens has no Punctuation
    composes = vocabulary.tokenizer_json["normalizer"] == {"type": "NFC"}
    compared = 0
    for text, wanted in pairs(name):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if composes and not unicodedata.is_normalized("NFC", text):
            # llama.cpp leaves out the NFC of the model's own tokenizer, so its ids are not those of the model.
            assert ids == tokenizer.encode(unicodedata.normalize("NFC", text), add_special_tokens=False).ids
        else:
            assert ids == wanted, text
            compared += 1
        if fast is not None:
            assert list(fast.encode(text, add_special_tokens=False).ids) == ids, text
    assert compared >= 46


def test_a_word_piece_vocabulary() -> None:
    vocabulary = gguf_vocabulary(read_gguf_metadata(real("ggml-vocab-bert-bge.gguf")))
    tokenizer = Tokenizer.from_str(json.dumps(vocabulary.tokenizer_json))
    for text, wanted in pairs("bert-bge"):
        assert tokenizer.encode(text, add_special_tokens=False).ids == wanted, text
    assert tokenizer.encode("Hello").ids == [101, 7592, 102]
    assert vocabulary.eos_token_ids == (102,)


def test_a_unigram_vocabulary() -> None:
    """XLM-R's; ids of its own tokenizer, <s> and </s> around."""
    vocabulary = gguf_vocabulary(read_gguf_metadata(real("ggml-vocab-nomic-bert-moe.gguf")))
    tokenizer = Tokenizer.from_str(json.dumps(vocabulary.tokenizer_json))
    assert tokenizer.encode("Hello world").ids == [0, 35378, 8999, 2]
    assert (vocabulary.bos_token_id, vocabulary.unk_token_id, vocabulary.vocab_size) == (0, 3, 250048)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("aquila", "tokenizer.ggml.pre"),
        ("baichuan", "tokenizer.ggml.scores"),
        ("gpt-neox", "tokenizer.ggml.pre"),
    ],
)
def test_kinds_that_cannot_be_exact_are_refused(name: str, key: str) -> None:
    with pytest.raises(GgufUnsupported, match=key):
        gguf_vocabulary(read_gguf_metadata(real(f"ggml-vocab-{name}.gguf")))


def test_a_whole_model_smollm2() -> None:
    """Ids by llama.cpp itself (llama-server's /tokenize with parse_special and add_special)."""
    vocabulary = gguf_vocabulary(read_gguf_metadata(real("smollm2.gguf")))
    assert (vocabulary.bos_token_id, vocabulary.eos_token_id, vocabulary.pad_token_id) == (1, 2, 2)
    assert vocabulary.eos_token_ids == (2, 0)
    assert (vocabulary.add_bos, vocabulary.context_length, vocabulary.vocab_size) == (False, 8192, 49152)
    assert "<|im_start|>" in vocabulary.chat_templates["default"]
    tokenizer = Tokenizer.from_str(json.dumps(vocabulary.tokenizer_json))
    assert tokenizer.encode("<|im_start|>user\nHi 42<|im_end|>\n").ids == SMOLLM2_IDS


SMOLLM2_IDS = [1, 4093, 198, 26843, 216, 36, 34, 2, 198]
