"""tokenizer_config.json over tokenizer.json: ids as transformers 5.19 gives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.tokenizer.makers import write
from tests.vocabularies import byte_fallback_json, byte_level, byte_level_json

from derender.tokenizer import Tokenizer

NEXT = 381
"""The first id after the small byte-level vocabulary."""
FLAGS = {"single_word": False, "normalized": False, "special": True}


def load(directory: Path, text: str, config: dict[str, Any], **files: Any) -> Tokenizer:
    return Tokenizer.from_directory(write(directory, tokenizer__json=text, tokenizer_config__json=config, **files))


def plain(text: str) -> list[int]:
    return byte_level().encode(text)


@pytest.mark.parametrize(
    ("config", "text", "ids"),
    [
        ({"bos_token": "<new>"}, "<new>a", [NEXT, *plain("a")]),
        ({"bos_token": "<new>", "eos_token": "<other>"}, "<other><new>", [NEXT + 1, NEXT]),
        ({"additional_special_tokens": ["<more>", "<think>"]}, "<more><think>", [NEXT, *plain("<think>")]),
        ({"extra_special_tokens": ["<x1>", "<x2>"]}, "<x2><x1>", [NEXT + 1, NEXT]),
        ({"extra_special_tokens": {"image": "<x1>"}, "boi_token": "<x2>"}, "<x1><x2>", [NEXT + 1, NEXT]),
        (
            {"added_tokens_decoder": {"1": {"content": "<|im_start|>", "lstrip": True, "rstrip": True, **FLAGS}}},
            "a \n<|im_start|>  b",
            [*plain("a"), 1, *plain("b")],
        ),
        (
            {"pad_token": {"__type": "AddedToken", "content": "<p>", "lstrip": True, **FLAGS}},
            "a  <p>",
            [*plain("a"), NEXT],
        ),
        ({"bos_token": "Hello"}, "aHello", [*plain("a"), *plain("Hello")]),
    ],
)
def test_tokens_that_the_config_names_or_lists(
    tmp_path: Path, config: dict[str, Any], text: str, ids: list[int]
) -> None:
    assert byte_level().vocab_size == NEXT
    assert load(tmp_path, byte_level_json(), config).encode(text) == ids


def test_a_named_token_is_special_even_where_it_is_a_plain_token(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, byte_level_json(), {"bos_token": "Hello"})
    assert tokenizer.token_id("Hello") in tokenizer.special_ids


def test_added_tokens_json_counts_without_a_list_in_the_config(tmp_path: Path) -> None:
    files = {"added_tokens__json": {"<extra>": NEXT}}
    assert load(tmp_path / "a", byte_level_json(), {}, **files).encode("<extra>") == [NEXT]
    listed: dict[str, Any] = {"added_tokens_decoder": {}}
    assert load(tmp_path / "b", byte_level_json(), listed, **files).encode("<extra>") == plain("<extra>")


def test_special_tokens_map_changes_the_config_without_a_list(tmp_path: Path) -> None:
    files = {"special_tokens_map__json": {"eos_token": {"content": "<x1>", "lstrip": True, **FLAGS}}}
    tokenizer = load(tmp_path, byte_level_json(), {"eos_token": "<|im_end|>"}, **files)
    assert tokenizer.encode("a <x1>") == [*plain("a"), NEXT]
    assert tokenizer.special_tokens["eos_token"] == "<x1>"


def test_special_tokens_can_be_split(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, byte_level_json(), {"split_special_tokens": True})
    assert tokenizer.encoder.name == "tokenizers"
    assert "split_special_tokens" in tokenizer.encoder.reason
    assert 2 not in tokenizer.encode("<|im_end|>")
    assert tokenizer.encode("<think>") == plain("<think>")  # not special


def test_bos_is_the_post_processors_to_add(tmp_path: Path) -> None:
    config = {"add_bos_token": True, "add_eos_token": True, "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert load(tmp_path, byte_level_json(), config).encode("a", add_special_tokens=True) == plain("a")


@pytest.mark.parametrize(
    ("config", "model_type", "text", "ids"),
    [
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, "llama", "a</s>a", [261, 264, 2, 261, 264]),
        ({"tokenizer_class": "LlamaTokenizer"}, "llama", "a</s>a", [261, 264, 2, 264]),
        ({"tokenizer_class": "LlamaTokenizerFast", "legacy": True}, "llama", "a</s>a", [261, 264, 2, 261, 264]),
        ({"tokenizer_class": "LlamaTokenizerFast", "legacy": True}, "llama", " a", [261, 264]),
        ({"tokenizer_class": "LlamaTokenizerFast", "add_prefix_space": False}, "llama", "a", [264]),
        ({"tokenizer_class": "LlamaTokenizerFast"}, "mistral", " a", [261, 261, 264]),
    ],
)
def test_the_llama_class_cuts_anew(
    tmp_path: Path, config: dict[str, Any], model_type: str, text: str, ids: list[int]
) -> None:
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **config}
    tokenizer = load(tmp_path, byte_fallback_json(), named, config__json={"model_type": model_type})
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode([261, 264]) == ("a" if config.get("add_prefix_space", True) else " a")


def test_gpt2_with_a_blank_first(tmp_path: Path) -> None:
    config = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}
    assert load(tmp_path / "a", byte_level_json(), config).encode("Hello") == plain(" Hello")
    assert load(tmp_path / "b", byte_level_json(), {**config, "tokenizer_class": "X"}).encode("Hello") == plain("Hello")


def test_a_file_without_a_decoder_is_joined_with_blanks(tmp_path: Path) -> None:
    """A WordLevel tokenizer."""
    tree = {
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "[UNK]", "lstrip": False, "rstrip": False, **FLAGS}],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "the": 1, "cat": 2}, "unk_token": "[UNK]"},
    }
    tokenizer = load(tmp_path, json.dumps(tree), {})
    assert tokenizer.encode("the dog cat") == [1, 0, 2]
    assert tokenizer.decode([1, 2]) == "the cat"
    assert tokenizer.decode([1, 0, 2], skip_special_tokens=True) == "the cat"
