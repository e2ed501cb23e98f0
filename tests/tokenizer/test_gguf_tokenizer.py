"""From the metadata of a GGUF file to a tokenizer: small vocabularies made here, with ids worked out by hand."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from fastokens import Tokenizer as FastTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from derender.tokenizer.gguf_tokenizer import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    GgufUnsupported,
    GgufVocabulary,
    gguf_vocabulary,
)

KEY = "tokenizer.ggml."


def letters() -> list[str]:
    """The 256 letters of byte-level BPE, by byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256)]


MERGES = ["Ġ t", "Ġt h", "1 2", "12 3", "C 3", "Ã ©", "Ġ Ġ"]
JOINED = ["Ġt", "Ġth", "12", "123", "C3", "Ã©", "ĠĠ"]


def byte_level(pre: str | None = "gpt-2", extra: dict[str, int] | None = None, **more: Any) -> dict[str, Any]:
    """Ids 0 to 255 are the bytes, 256 to 262 the joined tokens, and `extra` (text: type) follows."""
    extra = extra or {}
    metadata = {
        "general.architecture": "llama",
        KEY + "model": "gpt2",
        KEY + "pre": pre,
        KEY + "tokens": [*letters(), *JOINED, *extra],
        KEY + "token_type": [NORMAL] * (256 + len(JOINED)) + list(extra.values()),
        KEY + "merges": MERGES,
    }
    metadata |= {KEY + name: value for name, value in more.items()}
    return {key: value for key, value in metadata.items() if value is not None}


PIECES = {"▁": -9.0, "a": -8.0, "b": -7.0, "ab": -2.0, "▁a": -1.0, "ba": -3.0, "bab": -4.0}


def sentencepiece(
    pieces: dict[str, float] | None = None, extra: dict[str, int] | None = None, **more: Any
) -> dict[str, Any]:
    """Ids 0 to 2 are <unk>, <s>, </s>, 3 to 258 the bytes, from 259 the pieces, and `extra` (text: type) follows."""
    pieces, extra = PIECES if pieces is None else pieces, extra or {}
    hexed = [f"<0x{byte:02X}>" for byte in range(256)]
    metadata = {
        "general.architecture": "llama",
        KEY + "model": "llama",
        KEY + "tokens": ["<unk>", "<s>", "</s>", *hexed, *pieces, *extra],
        KEY + "scores": [0.0] * 259 + list(pieces.values()) + [-1000.0] * len(extra),
        KEY + "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), *extra.values()],
    }
    return metadata | {KEY + name: value for name, value in more.items()}


def encode(vocabulary: GgufVocabulary, text: str, *, special: bool = False, fast: bool = True) -> list[int]:
    """Ids by tokenizers; fastokens has to agree, but where it cannot load the tokenizer."""
    spelled = json.dumps(vocabulary.tokenizer_json)
    ids: list[int] = Tokenizer.from_str(spelled).encode(text, add_special_tokens=special).ids
    if fast:
        assert list(FastTokenizer.from_json_str(spelled).encode(text, add_special_tokens=special).ids) == ids
    return ids


def decode(vocabulary: GgufVocabulary, ids: list[int]) -> str:
    text: str = Tokenizer.from_str(json.dumps(vocabulary.tokenizer_json)).decode(ids, skip_special_tokens=False)
    return text


# ---- Byte-level vocabularies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pre", "text", "ids"),
    [
        ("gpt-2", " th", [257]),
        ("gpt-2", "123", [259]),
        ("gpt-2", "e\u0301", [101, 204, 129]),
        ("mpt", "e\u0301", [261]),
        ("mpt", "123", [259]),
        ("smollm", "123", [49, 50, 51]),
        ("starcoder", "123", [49, 50, 51]),
        ("refact", "123", [49, 50, 51]),
        ("smollm", "C3", [67, 51]),
        ("command-r", "123", [49, 50, 51]),
        ("command-r", "e\u0301", [261]),
        ("falcon", "1231", [259, 49]),
        ("falcon", "+123", [43, 259]),
        ("llama-bpe", "1231", [259, 49]),
        ("llama3", "1231", [259, 49]),
        ("llama-v3", "C3", [67, 51]),
        ("glm4", "1231", [259, 49]),
        ("chatglm-bpe", "1231", [259, 49]),
        ("qwen2", "123", [49, 50, 51]),
        ("qwen2", "e\u0301", [261]),
        ("qwen35", "123", [49, 50, 51]),
        ("qwen35", "e\u0301", [261]),
        ("deepseek-llm", "123", [49, 50, 51]),
        ("deepseek-coder", "123", [49, 50, 51]),
        ("deepseek-v3", "1231", [259, 49]),
        ("deepseek-v3", "e\u0301", [101, 204, 129]),
        ("tekken", "123", [49, 50, 51]),
        ("gpt-4o", "1231", [259, 49]),
    ],
)
def test_each_family_cuts_in_its_own_way(pre: str, text: str, ids: list[int]) -> None:
    vocabulary = gguf_vocabulary(byte_level(pre, add_bos_token=False))
    assert encode(vocabulary, text, fast=pre != "falcon") == ids  # fastokens has no Punctuation


def test_combining_marks_stay_with_letters_in_qwen35_only() -> None:
    """U+0301 after a consonant has no composed form, so NFC leaves it."""
    extra = {"xÌ": NORMAL, "xÌģ": NORMAL}
    merges = [*MERGES, "x Ì", "xÌ ģ"]
    joined = gguf_vocabulary(byte_level("qwen35", extra, merges=merges))
    parted = gguf_vocabulary(byte_level("qwen2", extra, merges=merges))
    assert encode(joined, "x\u0301") == [264]
    assert encode(parted, "x\u0301") == [120, 204, 129]


@pytest.mark.parametrize(("pre", "ids"), [("llama-bpe", [263]), ("tekken", [263]), ("gpt-2", [122, 122])])
def test_a_word_that_is_a_token_needs_no_merges_in_tiktoken_families(pre: str, ids: list[int]) -> None:
    vocabulary = gguf_vocabulary(byte_level(pre, {"zz": NORMAL}, add_bos_token=False))
    assert encode(vocabulary, "zz") == ids


def test_the_first_of_two_equal_merges_counts() -> None:
    vocabulary = gguf_vocabulary(byte_level(extra={"ab": NORMAL, "bc": NORMAL}, merges=["a b", "b c", "a b"]))
    assert encode(vocabulary, "abc") == [263, 99]


def test_types_decide_what_is_found_in_the_text_and_what_is_special() -> None:
    extra = {"<|s|>": CONTROL, "<think>": USER_DEFINED, "<unk>": UNKNOWN, "<never>": UNUSED, "<plain>": NORMAL}
    vocabulary = gguf_vocabulary(byte_level(extra=extra))
    assert encode(vocabulary, "<|s|><think>1<unk>") == [263, 264, 49, 265]
    assert encode(vocabulary, "<never>") == list(b"<never>")
    assert encode(vocabulary, "<plain>") == list(b"<plain>")
    added = {token["content"]: token["special"] for token in vocabulary.tokenizer_json["added_tokens"]}
    assert added == {"<|s|>": True, "<think>": False, "<unk>": True}


def test_rows_that_only_fill_up_the_embedding_are_no_tokens() -> None:
    extra = {"[PAD7]": USER_DEFINED, "</end>": CONTROL, "[PAD265]": UNUSED, "[PAD266]": USER_DEFINED}
    vocabulary = gguf_vocabulary(byte_level(extra=extra))
    assert vocabulary.vocab_size == 267
    assert encode(vocabulary, "[PAD265]") == list(b"[PAD265]")
    assert encode(vocabulary, "[PAD266]") == list(b"[PAD266]")
    assert encode(vocabulary, "[PAD7]</end>") == [263, 264]


def test_ids_after_such_a_row_keep_their_place() -> None:
    vocabulary = gguf_vocabulary(byte_level(extra={"[PAD263]": UNUSED, "</end>": CONTROL}))
    assert encode(vocabulary, "a</end>", fast=False) == [97, 264]  # fastokens wants a vocabulary without holes


def test_every_byte_comes_back() -> None:
    vocabulary = gguf_vocabulary(byte_level("qwen2"))
    text = " the 123 \x00\x7f\u00ad é 漢字 🙂\n"
    assert decode(vocabulary, encode(vocabulary, text)) == text


@pytest.mark.parametrize(
    ("pre", "stated", "ids"),
    [
        ("gpt-2", None, [97]),
        ("gpt-2", True, [263, 97]),
        ("llama-bpe", None, [263, 97]),
        ("llama-bpe", False, [97]),
        ("tekken", None, [263, 97]),
    ],
)
def test_bos_is_added_where_the_file_or_the_family_says(pre: str, stated: bool | None, ids: list[int]) -> None:
    vocabulary = gguf_vocabulary(byte_level(pre, {"<s>": CONTROL}, bos_token_id=263, add_bos_token=stated))
    assert encode(vocabulary, "a", special=True) == ids
    assert encode(vocabulary, "a") == [97]
    assert vocabulary.add_bos is (len(ids) == 2)


def test_eos_is_added_where_the_file_says() -> None:
    extra = {"<s>": CONTROL, "</s>": CONTROL}
    more = {"bos_token_id": 263, "eos_token_id": 264, "add_bos_token": True, "add_eos_token": True}
    vocabulary = gguf_vocabulary(byte_level(extra=extra, **more))
    assert encode(vocabulary, "a", special=True) == [263, 97, 264]
    assert (vocabulary.add_bos, vocabulary.add_eos) == (True, True)


# ---- Vocabularies of sentencepiece ---------------------------------------------------------------------------------


def test_neighbours_are_joined_by_score() -> None:
    vocabulary = gguf_vocabulary(sentencepiece())
    assert encode(vocabulary, "ab") == [263, 261]  # ▁a (-1) before ab (-2)
    assert encode(vocabulary, "bab") == [259, 265]  # ab (-2) before ba (-3), then bab
    assert encode(vocabulary, "bba") == [259, 261, 264]


def test_what_is_no_token_is_spelled_in_bytes() -> None:
    vocabulary = gguf_vocabulary(sentencepiece())
    assert encode(vocabulary, "é\n") == [259, 3 + 0xC3, 3 + 0xA9, 3 + 0x0A]
    assert decode(vocabulary, encode(vocabulary, "é\n")) == "é\n"


def test_bos_and_ids_default_as_in_llama_cpp() -> None:
    vocabulary = gguf_vocabulary(sentencepiece())
    assert (vocabulary.bos_token_id, vocabulary.eos_token_id, vocabulary.unk_token_id) == (1, 2, 0)
    assert (vocabulary.add_bos, vocabulary.add_eos) == (True, False)
    assert encode(vocabulary, "a", special=True) == [1, 263]


def test_a_space_goes_before_the_text_and_after_each_added_token() -> None:
    vocabulary = gguf_vocabulary(sentencepiece())
    assert encode(vocabulary, "a</s>a") == [263, 2, 263]
    assert encode(vocabulary, " a") == [259, 263]
    assert encode(vocabulary, "") == []
    assert decode(vocabulary, [263]) == "a"


def test_no_space_is_put_before_where_the_file_says_so() -> None:
    vocabulary = gguf_vocabulary(sentencepiece(add_space_prefix=False))
    assert encode(vocabulary, "a") == [260]
    assert encode(vocabulary, " a") == [263]
    assert decode(vocabulary, [263]) == " a"


def test_runs_of_one_letter_may_share_a_score() -> None:
    """Llama 2 and Mistral: all runs of spaces score -1e9, and the leftmost pair joins first."""
    runs = {"▁": -9.0, "x": -8.0, "▁▁": -1e9, "▁▁▁": -1e9, "▁▁▁▁": -1e9}
    vocabulary = gguf_vocabulary(sentencepiece(runs, add_space_prefix=False))
    by_length = {1: 259, 2: 261, 3: 262, 4: 263}
    for length in range(1, 30):
        whole, rest = divmod(length, 4)
        assert encode(vocabulary, " " * length) == [263] * whole + ([by_length[rest]] if rest else [])


def test_white_space_after_a_special_token_of_phi3_belongs_to_it() -> None:
    extra = {"<|user|>": CONTROL, "<|endoftext|>": CONTROL}
    other = gguf_vocabulary(sentencepiece(extra=extra))
    phi3 = gguf_vocabulary(sentencepiece(extra=extra) | {"general.architecture": "phi3"})
    named = gguf_vocabulary(sentencepiece(extra=extra) | {"general.name": "My Phi-3 tune"})
    assert encode(other, "<|user|> \na") == [266, 259, 259, 13, 260]
    assert encode(phi3, "<|user|> \na") == [266, 263]
    assert encode(named, "<|user|> \na") == [266, 263]
    assert encode(phi3, "<|endoftext|> a") == [267, 259, 263]


def joined_by_hand(scores: dict[str, float], text: str) -> list[str]:
    """The rule itself: the best-scored pair of neighbours, the leftmost of equals, until there is none."""
    parts = list(text)
    while True:
        pairs = [(-scores[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not pairs:
            return parts
        at = min(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.text("ab▁", min_size=2, max_size=4), unique=True, max_size=12),
    st.lists(st.text("ab ", max_size=24), min_size=1, max_size=8),
)
def test_merges_made_of_scores_join_as_scores_do(tokens: list[str], texts: list[str]) -> None:
    scores = {token: -float(rank) for rank, token in enumerate([*tokens, "a", "b", "▁"])}
    vocabulary = gguf_vocabulary(sentencepiece(scores, add_space_prefix=False))
    numbers = {token: 259 + number for number, token in enumerate(scores)}
    for text in texts:
        assert encode(vocabulary, text) == [numbers[part] for part in joined_by_hand(scores, text.replace(" ", "▁"))]


def test_gemma4_has_merges_spaces_and_bytes() -> None:
    metadata = sentencepiece(model="gemma4", merges=["▁ a", "a b"], add_bos_token=False, bos_token_id=1)
    vocabulary = gguf_vocabulary(metadata)
    assert encode(vocabulary, "ab a") == [262, 263]
    assert encode(vocabulary, "é") == [3 + 0xC3, 3 + 0xA9]
    assert encode(vocabulary, "ab", special=True) == [1, 262]
    assert decode(vocabulary, [262, 263]) == "ab a"


# ---- What else a file says -----------------------------------------------------------------------------------------


def test_limits_names_and_templates() -> None:
    metadata = byte_level(padding_token_id=3, unknown_token_id=4) | {
        "general.name": "Tiny",
        "llama.context_length": 2048,
        "tokenizer.chat_template": "main",
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_templates": ["tool_use"],
    }
    vocabulary = gguf_vocabulary(metadata)
    assert vocabulary.name == "Tiny"
    assert vocabulary.architecture == "llama"
    assert vocabulary.context_length == 2048
    assert vocabulary.chat_templates == {"default": "main", "tool_use": "tools"}
    assert (vocabulary.pad_token_id, vocabulary.unk_token_id) == (3, 4)
    assert (vocabulary.bos_token_id, vocabulary.eos_token_id, vocabulary.eos_token_ids) == (None, None, ())


def test_what_a_file_leaves_out_is_none() -> None:
    vocabulary = gguf_vocabulary(byte_level())
    assert (vocabulary.name, vocabulary.context_length, vocabulary.chat_templates) == (None, None, {})


def test_all_ids_that_end_generation() -> None:
    extra = {"<|im_end|>": CONTROL, "<|eom|>": CONTROL, "<eos2>": CONTROL, "<|endoftext|>": CONTROL, "</s>": NORMAL}
    more = {"eos_token_id": 265, "eot_token_id": 263, "eom_token_id": 264}
    assert gguf_vocabulary(byte_level(extra=extra, **more)).eos_token_ids == (265, 263, 264, 266)


def test_the_end_of_a_harmony_message_does_not_end_generation() -> None:
    harmony = {"<|return|>": CONTROL, "<|call|>": CONTROL, "<|end|>": CONTROL}
    assert gguf_vocabulary(byte_level("gpt-4o", harmony)).eos_token_ids == (263, 264)
    phi = {"<|end|>": CONTROL}
    assert gguf_vocabulary(byte_level(extra=phi)).eos_token_ids == (263,)


def test_an_id_outside_the_vocabulary_counts_as_not_stated() -> None:
    vocabulary = gguf_vocabulary(byte_level(padding_token_id=4294967295, bos_token_id=263))
    assert (vocabulary.pad_token_id, vocabulary.bos_token_id) == (None, None)


# ---- Unigram and WordPiece -----------------------------------------------------------------------------------------


def unigram(**more: Any) -> dict[str, Any]:
    """Ids 0 to 2 are <pad>, </s>, <unk>, from 3 the pieces."""
    pieces = {"▁": -3.0, "a": -4.0, "b": -4.0, "▁ab": -2.0, "ab": -5.0}
    metadata = {
        "general.architecture": "t5",
        KEY + "model": "t5",
        KEY + "tokens": ["<pad>", "</s>", "<unk>", *pieces],
        KEY + "scores": [0.0, 0.0, 0.0, *pieces.values()],
        KEY + "token_type": [CONTROL, CONTROL, UNKNOWN, *[NORMAL] * len(pieces)],
        KEY + "eos_token_id": 1,
        KEY + "unknown_token_id": 2,
    }
    return metadata | {KEY + name: value for name, value in more.items()}


def test_a_unigram_vocabulary_takes_the_best_sum() -> None:
    vocabulary = gguf_vocabulary(unigram(remove_extra_whitespaces=True, add_eos_token=True))
    assert encode(vocabulary, " ab  bab", fast=False) == [6, 3, 5, 7]
    assert encode(vocabulary, "a日本", special=True, fast=False) == [3, 4, 2, 1]
    assert decode(vocabulary, [6, 3, 5]) == "ab b"
    plain = gguf_vocabulary(unigram(add_space_prefix=False))
    assert encode(plain, "ab", fast=False) == [7]


def test_a_word_piece_vocabulary_marks_what_goes_on_a_word() -> None:
    words = ["▁play", "ing", "▁.", "[unused0]"]
    metadata = {
        "general.architecture": "bert",
        KEY + "model": "bert",
        KEY + "tokens": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words],
        KEY + "token_type": [CONTROL] * 4 + [NORMAL] * len(words),
        KEY + "cls_token_id": 2,
        KEY + "seperator_token_id": 3,
        KEY + "unknown_token_id": 1,
    }
    vocabulary = gguf_vocabulary(metadata)
    assert encode(vocabulary, "PLÁYING.", fast=False) == [4, 5, 6]
    assert encode(vocabulary, "play x", special=True, fast=False) == [2, 4, 1, 3]
    assert decode(vocabulary, [4, 5, 6]) == "playing."
    assert (vocabulary.bos_token_id, vocabulary.eos_token_ids) == (2, (3,))


# ---- What is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (byte_level("brand-new"), "tokenizer.ggml.pre 'brand-new' is not supported"),
        (byte_level("default"), "tokenizer.ggml.pre 'default' is not supported"),
        (byte_level(None), "tokenizer.ggml.pre is missing"),
        (byte_level(model="rwkv"), "tokenizer.ggml.model 'rwkv' is not supported"),
        (byte_level(model="t5"), "tokenizer.ggml.token_type has no unknown token"),
        (byte_level(model="bert"), "tokenizer.ggml.unknown_token_id is missing"),
        (byte_level(model=None), "tokenizer.ggml.model None is not supported"),
        (byte_level(tokens=None), "tokenizer.ggml.tokens is missing"),
        (byte_level(token_type=None), "tokenizer.ggml.token_type is missing"),
        (byte_level(token_type=[1]), "tokenizer.ggml.token_type has 1 items for 263 tokens"),
        (byte_level(merges=None), "tokenizer.ggml.merges is missing"),
        (byte_level(merges=["a"]), "tokenizer.ggml.merges holds 'a'"),
        (byte_level(merges=["a zz"]), "tokenizer.ggml.merges holds 'a zz'"),
        (byte_level(merges=["a b"]), "tokenizer.ggml.merges holds 'a b'"),
        (byte_level(extra={"12 ": NORMAL}, tokens=["a", "a"], token_type=[1, 1]), "the same token twice"),
        (byte_level(tokens="text"), "tokenizer.ggml.tokens is not an array of the right type"),
        (byte_level(tokens=[1, 2]), "tokenizer.ggml.tokens is not an array of the right type"),
        (byte_level(add_bos_token=1), "tokenizer.ggml.add_bos_token is not of type bool"),
        (byte_level(eos_token_id=True), "tokenizer.ggml.eos_token_id is not of type int"),
        (byte_level(add_bos_token=True), "that token's id is missing"),
        (byte_level("llama-bpe"), "that token's id is missing"),
        ({"tokenizer.ggml.model": "gpt2"}, "general.architecture is missing"),
        (byte_level() | {"llama.context_length": "long"}, "llama.context_length is not of type int"),
        (byte_level() | {"tokenizer.chat_template": 5}, "tokenizer.chat_template is not of type str"),
        (sentencepiece(scores=[0.0]), "tokenizer.ggml.scores has 1 items"),
        (
            sentencepiece({"a": 0.0, "b": 0.0, "ab": -1.0, "ba": -1.0}),
            "tokenizer.ggml.scores is -1.0 for both 'ab' and",
        ),
        (sentencepiece({"a": 0.0, "ab": float("nan")}), "a score that is no number"),
        (sentencepiece({"a": 0.0, "a" * 513: -1.0}), "longer than 512 characters"),
        (sentencepiece(extra={"ab▁a": UNUSED}), "is for 'ab▁a', which is marked unused"),
        (sentencepiece(extra={"  ": USER_DEFINED}), "user-defined tokens that hold spaces"),
        (sentencepiece(remove_extra_whitespaces=True), "tokenizer.ggml.remove_extra_whitespaces"),
        (sentencepiece() | {"general.architecture": "gemma2"}, "tokenizer.ggml.model 'llama' of gemma2"),
        (byte_level(model="llama", scores=[-float(i) for i in range(263)]), "lacks the byte token <0x00>"),
    ],
)
def test_what_cannot_be_exact_is_refused_in_one_line(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(GgufUnsupported) as caught:
        gguf_vocabulary(metadata)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
