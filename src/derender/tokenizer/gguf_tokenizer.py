"""Make a Hugging Face tokenizer (the dict of a tokenizer.json) from the metadata of a GGUF file.

A GGUF file holds tokens, types, merges or scores, and the name of a way to cut text (`tokenizer.ggml.pre`, see
gguf_families.py). What is not known exactly is refused.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from derender.tokenizer.gguf_families import GgufFamily, gguf_family
from derender.tokenizer.gguf_metadata import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    GgufTokens,
    GgufUnsupported,
    get_list,
    get_value,
    or_default,
)
from derender.tokenizer.score_merges import ScoresUnsupported, merges_of_scores
from derender.tokenizer.spaced import BYTE_TOKENS, SPACE_TO_MARK, bpe, metaspace, spaced_decoder, squeezed

__all__ = [
    "BYTE",
    "CONTROL",
    "NORMAL",
    "UNKNOWN",
    "UNUSED",
    "USER_DEFINED",
    "GgufUnsupported",
    "GgufVocabulary",
    "gguf_vocabulary",
]

# fmt: off
_END_OF_TURN = frozenset((
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "</s>",
    "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
    "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
))
# fmt: on
"""Texts that end generation wherever they are a control or user-defined token, as in llama.cpp."""

_Part = dict[str, Any]


@dataclass(frozen=True)
class GgufVocabulary:
    """What a GGUF file says about text and ids."""

    tokenizer_json: dict[str, Any]
    """For `tokenizers.Tokenizer.from_str(json.dumps(...))`; it adds BOS and EOS exactly where add_bos, add_eos say."""
    chat_templates: dict[str, str]
    """By name; "default" is tokenizer.chat_template."""
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    unk_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """Every id that ends generation: EOS first, then end of turn and of message, then those known by their text."""
    add_bos: bool
    add_eos: bool
    context_length: int | None
    vocab_size: int
    """Rows of the embedding, padding included."""
    name: str | None
    architecture: str


def gguf_vocabulary(metadata: Mapping[str, Any]) -> GgufVocabulary:
    """The tokenizer, the special ids and the chat templates that the metadata of a GGUF file describes.

    Raises GgufUnsupported where tokenizer.ggml.model or tokenizer.ggml.pre is one that cannot be followed exactly, or
    where a key that is needed is missing or malformed.
    """
    architecture = get_value(metadata, "general.architecture", str)
    if architecture is None:
        raise GgufUnsupported("general.architecture is missing")
    tokens = GgufTokens.read(metadata)
    kind = get_value(metadata, "tokenizer.ggml.model", str)
    if kind == "gpt2":
        family = gguf_family(metadata)
        parts = _byte_level(metadata, tokens, family)
        bos, eos, unk, add_bos = None, None, None, family.add_bos
    elif kind == "gemma4":
        parts = _spaced(_merges(metadata, tokens), tokens, prefix=False)
        # llama.cpp adds BOS for Gemma 4 whatever the file says (ggml-org/llama.cpp#21500).
        bos, eos, unk, add_bos = None, None, None, True
        metadata = {**metadata, "tokenizer.ggml.add_bos_token": True}
    elif kind == "llama":
        parts = _sentencepiece(metadata, tokens, architecture)
        # Defaults of llama.cpp for this kind, for files that do not state them.
        bos, eos, unk, add_bos = 1, 2, 0, True
    elif kind == "t5":
        parts = _unigram(metadata, tokens)
        bos, eos, unk, add_bos = None, 1, 2, False
    elif kind == "bert":
        parts, tokens = _word_piece(metadata, tokens)
        bos, eos, unk, add_bos = _token_id(metadata, "cls", tokens, 101), None, 100, True
        # The key's name is misspelled in files of all ages.
        ends = _token_id(metadata, "seperator", tokens, _token_id(metadata, "separator", tokens, 102))
        metadata = {**metadata, "tokenizer.ggml.eos_token_id": ends, "tokenizer.ggml.add_eos_token": True}
    else:
        raise GgufUnsupported(
            f"tokenizer.ggml.model {kind!r} is not supported (supported: gpt2, llama, gemma4, t5, bert)"
        )

    bos = _token_id(metadata, "bos", tokens, bos)
    eos = _token_id(metadata, "eos", tokens, eos)
    add_bos = or_default(get_value(metadata, "tokenizer.ggml.add_bos_token", bool), add_bos)
    add_eos = or_default(get_value(metadata, "tokenizer.ggml.add_eos_token", bool), False)
    tokenizer_json = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tokens.added(strips_right=kind == "llama" and _is_phi3(metadata, architecture)),
        **parts,
        "post_processor": _frame(tokens, bos=bos if add_bos else None, eos=eos if add_eos else None),
    }
    if (add_bos and bos is None) or (add_eos and eos is None):
        raise GgufUnsupported("tokenizer.ggml.add_bos_token or add_eos_token is true, but that token's id is missing")
    return GgufVocabulary(
        tokenizer_json=tokenizer_json,
        chat_templates=_chat_templates(metadata),
        bos_token_id=bos,
        eos_token_id=eos,
        pad_token_id=_token_id(metadata, "padding", tokens, None),
        unk_token_id=_token_id(metadata, "unknown", tokens, unk),
        eos_token_ids=_end_ids(metadata, tokens, eos),
        add_bos=add_bos,
        add_eos=add_eos,
        context_length=get_value(metadata, f"{architecture}.context_length", int),
        vocab_size=len(tokens.texts),
        name=get_value(metadata, "general.name", str),
        architecture=architecture,
    )


def _is_phi3(metadata: Mapping[str, Any], architecture: str) -> bool:
    """Whether special tokens take the white space after them along. No key says so; llama.cpp goes by the name, too."""
    name = (get_value(metadata, "general.name", str) or "").lower()
    return architecture == "phi3" or "phi-3" in name or "phi3" in name


# ---- Models --------------------------------------------------------------------------------------------------------


def _byte_level(metadata: Mapping[str, Any], tokens: GgufTokens, family: GgufFamily) -> _Part:
    """A byte-level BPE: every byte is a letter, so nothing is unknown."""
    return {
        "normalizer": {"type": "NFC"} if family.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(family.steps)},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": bpe(tokens.vocabulary, _merges(metadata, tokens), ignore_merges=family.whole_words),
    }


def _spaced(merges: list[tuple[str, str]], tokens: GgufTokens, *, prefix: bool) -> _Part:
    """A BPE over characters with "▁" for the space, and bytes where a character is no token.

    `prefix` puts a space before the text, and before the text after each added token.
    """
    if missing := [name for name in BYTE_TOKENS if name not in tokens.vocabulary]:
        raise GgufUnsupported(f"tokenizer.ggml.tokens lacks the byte token {missing[0]}")
    normalizers = [{"type": "Prepend", "prepend": "▁"}, SPACE_TO_MARK] if prefix else [SPACE_TO_MARK]
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": spaced_decoder(byte_fallback=True, strips=prefix),
        "model": bpe(tokens.vocabulary, merges, byte_fallback=True),
    }


def _merges(metadata: Mapping[str, Any], tokens: GgufTokens) -> list[tuple[str, str]]:
    """The merges of the file, best first. The first of two equal ones counts, as in llama.cpp."""
    vocabulary = tokens.vocabulary
    merges: dict[tuple[str, str], None] = {}
    for merge in get_list(metadata, "tokenizer.ggml.merges", str):
        # The space between the halves is never the first letter, so the left half may begin with one.
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut < 0 or left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise GgufUnsupported(f"tokenizer.ggml.merges holds {merge!r}, which is no merge of known tokens")
        merges[left, right] = None
    return list(merges)


# ---- Vocabularies of sentencepiece: scores instead of merges -------------------------------------------------------


def _sentencepiece(metadata: Mapping[str, Any], tokens: GgufTokens, architecture: str) -> _Part:
    """Joins of the two neighbours whose token scores best, leftmost first: as merges, that needs distinct scores."""
    if architecture.startswith("gemma"):
        # Its scores are not the order of its merges, and its runs of spaces are spelled otherwise in the file.
        raise GgufUnsupported(
            f"tokenizer.ggml.model 'llama' of {architecture} is not supported: its scores do not order it"
        )
    if any(kind == USER_DEFINED and " " in text for kind, text in zip(tokens.types, tokens.texts, strict=True)):
        raise GgufUnsupported("tokenizer.ggml.model 'llama' with user-defined tokens that hold spaces is not supported")
    prefix = or_default(get_value(metadata, "tokenizer.ggml.add_space_prefix", bool), True)
    if get_value(metadata, "tokenizer.ggml.remove_extra_whitespaces", bool):
        raise GgufUnsupported(
            "tokenizer.ggml.remove_extra_whitespaces is not supported with tokenizer.ggml.model 'llama'"
        )
    return _spaced(_merges_of_scores(metadata, tokens), tokens, prefix=prefix)


def _merges_of_scores(metadata: Mapping[str, Any], tokens: GgufTokens) -> list[tuple[str, str]]:
    types, key = tokens.types, "tokenizer.ggml.scores"
    scores = _scores(metadata, tokens)
    joined = {text for text, number in tokens.vocabulary.items() if types[number] in (NORMAL, USER_DEFINED)}
    unused = {text for text, number in tokens.vocabulary.items() if types[number] == UNUSED}
    try:
        return merges_of_scores(tokens.vocabulary, scores, joined=joined, unused=unused)
    except ScoresUnsupported as error:
        raise GgufUnsupported(f"{key} {error}") from None


def _scores(metadata: Mapping[str, Any], tokens: GgufTokens) -> list[float]:
    scores = get_list(metadata, "tokenizer.ggml.scores", (int, float))
    if len(scores) != len(tokens.texts):
        raise GgufUnsupported(f"tokenizer.ggml.scores has {len(scores)} items for {len(tokens.texts)} tokens")
    return scores


# ---- Unigram and WordPiece -----------------------------------------------------------------------------------------


def _unigram(metadata: Mapping[str, Any], tokens: GgufTokens) -> _Part:
    """T5's and XLM-R's vocabularies, which llama.cpp calls t5."""
    if UNKNOWN not in tokens.types or len(tokens.vocabulary) != len(tokens.texts):
        raise GgufUnsupported("tokenizer.ggml.token_type has no unknown token, or tokens are padding")
    steps: list[_Part] = []
    charsmap = get_list(metadata, "tokenizer.ggml.precompiled_charsmap", int, needed=False)
    if charsmap:
        try:
            data = bytes(byte & 0xFF for byte in charsmap)
        except ValueError:
            raise GgufUnsupported("tokenizer.ggml.precompiled_charsmap holds what is no byte") from None
        steps.append({"type": "Precompiled", "precompiled_charsmap": b64encode(data).decode("ascii")})
    if or_default(get_value(metadata, "tokenizer.ggml.remove_extra_whitespaces", bool), False):
        steps += squeezed()
    prefix = or_default(get_value(metadata, "tokenizer.ggml.add_space_prefix", bool), True)
    scores = _scores(metadata, tokens)
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": metaspace("always" if prefix else "never", split=True),
        "decoder": spaced_decoder(byte_fallback=False, strips=prefix),
        "model": {
            "type": "Unigram",
            "unk_id": tokens.types.index(UNKNOWN),
            "vocab": [[text, score] for text, score in zip(tokens.texts, scores, strict=True)],
            "byte_fallback": False,
        },
    }


def _word_piece(metadata: Mapping[str, Any], tokens: GgufTokens) -> tuple[_Part, GgufTokens]:
    """BERT's vocabulary. The file marks what begins a word, WordPiece what goes on one; llama.cpp, and so every file of
    this kind, takes text without case and accents."""

    def spelled(text: str) -> str:
        if text.startswith("▁"):
            return text[1:]
        return text if text.startswith("[") and text.endswith("]") else "##" + text

    texts = [spelled(text) if kind == NORMAL else text for text, kind in zip(tokens.texts, tokens.types, strict=True)]
    vocabulary = {text: number for number, text in enumerate(texts)}
    unknown = _token_id(metadata, "unknown", tokens, None)
    if unknown is None or len(vocabulary) != len(texts):
        raise GgufUnsupported("tokenizer.ggml.tokens holds a word twice, or tokenizer.ggml.unknown_token_id is missing")
    parts: _Part = {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": texts[unknown],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }
    return parts, GgufTokens(texts, tokens.types, vocabulary)


# ---- Special tokens and templates ----------------------------------------------------------------------------------


def _frame(tokens: GgufTokens, *, bos: int | None, eos: int | None) -> _Part | None:
    """The post-processor that puts BOS before and EOS after a text."""
    if bos is None and eos is None:
        return None

    def step(number: int | None, type_id: int) -> list[_Part]:
        return [] if number is None else [{"SpecialToken": {"id": tokens.texts[number], "type_id": type_id}}]

    def framed(name: str, type_id: int) -> list[_Part]:
        return [*step(bos, type_id), {"Sequence": {"id": name, "type_id": type_id}}, *step(eos, type_id)]

    used = {number: tokens.texts[number] for number in (bos, eos) if number is not None}
    return {
        "type": "TemplateProcessing",
        "single": framed("A", 0),
        "pair": [*framed("A", 0), *framed("B", 1)],
        "special_tokens": {text: {"id": text, "ids": [number], "tokens": [text]} for number, text in used.items()},
    }


def _end_ids(metadata: Mapping[str, Any], tokens: GgufTokens, eos: int | None) -> tuple[int, ...]:
    stated = [eos, *(_token_id(metadata, name, tokens, None) for name in ("eot", "eom"))]
    known = {
        text: number
        for number, text in enumerate(tokens.texts)
        if text in _END_OF_TURN and tokens.types[number] in (CONTROL, USER_DEFINED)
    }
    # In harmony <|end|> ends a message, not the turn; in Gemma 4 </s> is plain text (llama.cpp knows both so).
    if known.keys() >= {"<|return|>", "<|call|>"} or known.keys() >= {"<|flush|>", "<|calls|>"}:
        known.pop("<|end|>", None)
    if "<|tool_response>" in known:
        known.pop("</s>", None)
    return tuple(dict.fromkeys(number for number in (*stated, *known.values()) if number is not None))


def _token_id(metadata: Mapping[str, Any], name: str, tokens: GgufTokens, default: int | None) -> int | None:
    """The id of a special token. One outside the vocabulary counts as not stated, as in llama.cpp."""
    for number in (get_value(metadata, f"tokenizer.ggml.{name}_token_id", int), default):
        if number is not None and 0 <= number < len(tokens.texts):
            return number
    return None


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """By name. tokenizer.chat_templates only lists the names, and adds nothing to the keys themselves."""
    start = "tokenizer.chat_template."
    found = {key.removeprefix(start): get_value(metadata, key, str) for key in metadata if key.startswith(start)}
    main = get_value(metadata, "tokenizer.chat_template", str)
    named = {name: text for name, text in found.items() if text is not None}
    return named if main is None else {**named, "default": main}


# ---- Values of metadata --------------------------------------------------------------------------------------------
