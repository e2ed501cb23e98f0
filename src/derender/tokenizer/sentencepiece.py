"""A sentencepiece `.model` as a tokenizer.json: BPE, with or without byte fallback, and Unigram.

Alone, the file is followed as sentencepiece itself follows it. Where a tokenizer_config.json stands beside it, its
options (legacy, add_prefix_space, add_bos_token, …) say how text is framed, as transformers reads them.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from derender.tokenizer.byte_level import added_token, asked_frame
from derender.tokenizer.files import TokenizerBroken
from derender.tokenizer.score_merges import ScoresUnsupported, merges_of_scores
from derender.tokenizer.sentencepiece_file import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencePieceFile,
    read_sentencepiece,
)
from derender.tokenizer.spaced import BYTE_TOKENS, Part, bpe, metaspace, spaced_decoder, squeezed

# fmt: off
_RENUMBERED = frozenset((
    "AlbertTokenizer", "BarthezTokenizer", "BigBirdTokenizer", "CamembertTokenizer", "DebertaV2Tokenizer",
    "GemmaTokenizer", "MBart50Tokenizer", "MBartTokenizer", "NllbTokenizer", "PegasusTokenizer", "PLBartTokenizer",
    "ReformerTokenizer", "RemBertTokenizer", "SeamlessM4TTokenizer", "UdopTokenizer", "XGLMTokenizer",
    "XLMRobertaTokenizer", "XLNetTokenizer", "M2M100Tokenizer", "Speech2TextTokenizer", "MarianTokenizer",
))
# fmt: on
"""Classes whose ids or marks are not those of the file: code knows them, not data."""
_T5_EXTRA_IDS = 100


def sentencepiece_tree(data: bytes, config: Mapping[str, Any]) -> tuple[Part, dict[str, Any]]:
    """The tree of a tokenizer.json, and what the file adds to the tokenizer_config. Raises `TokenizerBroken`."""
    file = read_sentencepiece(data)
    named = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    if named in _RENUMBERED:
        raise TokenizerBroken(
            f"the sentencepiece ids of {named} are not those of its file; convert it to tokenizer.json"
        )
    _refuse(file)
    texts, types = file.texts, file.types
    vocabulary = {text: number for number, text in enumerate(texts)}
    if len(vocabulary) != len(texts):
        raise TokenizerBroken("the sentencepiece model holds the same piece twice")
    scheme = _prepend_scheme(file, config)
    if file.model_type == BPE:
        model = bpe(
            vocabulary,
            _merges(file, vocabulary),
            byte_fallback=file.byte_fallback,
            unk_token=texts[types.index(UNKNOWN)],
        )
    else:
        model = {
            "type": "Unigram",
            "unk_id": types.index(UNKNOWN),
            "vocab": [[text, score] for text, score in zip(texts, _scores(file), strict=True)],
            "byte_fallback": file.byte_fallback,
        }
    added = [
        added_token(number, text, special=types[number] != USER_DEFINED)
        for text, number in vocabulary.items()
        if types[number] in (CONTROL, USER_DEFINED, UNKNOWN)
    ]
    if named == "T5Tokenizer":
        added += _sentinels(model, config)
    tree = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(file, prefix=scheme != "never")},
        # Where the blanks of the start are dropped, the library no longer sees that a text is the first.
        "pre_tokenizer": metaspace(
            "never" if file.remove_extra_whitespaces else scheme,
            split=file.model_type == UNIGRAM and not _spans_words(texts),
        ),
        "post_processor": _frame(file, named, config, vocabulary),
        "decoder": spaced_decoder(byte_fallback=file.byte_fallback, strips=scheme != "never"),
        "model": model,
    }
    return tree, _names(file)


def sentencepiece_kind(data: bytes) -> str:
    """What a file is, for people. Raises `TokenizerBroken`."""
    return {UNIGRAM: "Unigram", BPE: "BPE"}.get(read_sentencepiece(data).model_type, "of another kind")


def blank_first(data: bytes, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Beginnings of a text before which sentencepiece puts its blank though `tokenizers` does not; empty where a
    tokenizer_config says that transformers' way is the model's."""
    if config.get("tokenizer_class"):
        return ()
    file = read_sentencepiece(data)
    if not file.add_dummy_prefix or file.remove_extra_whitespaces:
        return ()
    own = [text for text, kind in zip(file.texts, file.types, strict=True) if kind == USER_DEFINED]
    return (" ", "▁", *own)


def _refuse(file: SentencePieceFile) -> None:
    if file.model_type not in (BPE, UNIGRAM):
        raise TokenizerBroken(
            f"the sentencepiece model is of kind {file.model_type}: only Unigram and BPE are supported"
        )
    if file.whitespace_as_suffix or not file.escape_whitespaces:
        raise TokenizerBroken("the sentencepiece model writes blanks after words or as they are: not supported")
    if file.byte_fallback:
        known = {text for text, kind in zip(file.texts, file.types, strict=True) if kind == BYTE}
        if missing := [token for token in BYTE_TOKENS if token not in known]:
            raise TokenizerBroken(f"the sentencepiece model lacks the byte token {missing[0]}")
    if any(k == USER_DEFINED and (" " in t or "▁" in t) for t, k in zip(file.texts, file.types, strict=True)):
        raise TokenizerBroken(
            "the sentencepiece model has user-defined pieces with blanks, which no tokenizer.json can say; "
            "use the model's own tokenizer.json"
        )
    if file.remove_extra_whitespaces and USER_DEFINED in file.types:
        raise TokenizerBroken(
            "the sentencepiece model drops blanks and has user-defined pieces: what it does beside them no "
            "tokenizer.json can say; use the model's own tokenizer.json"
        )


def _merges(file: SentencePieceFile, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    types = file.types
    joined = {text for text, number in vocabulary.items() if types[number] == NORMAL}
    unused = {text for text, number in vocabulary.items() if types[number] == UNUSED}
    try:
        return merges_of_scores(vocabulary, file.scores, joined=joined, unused=unused)
    except ScoresUnsupported as error:
        raise TokenizerBroken(f"the sentencepiece model cannot be followed exactly: a score {error}") from None


def _scores(file: SentencePieceFile) -> list[float]:
    """The scores of a Unigram model. Byte tokens are never found in text, but only where nothing else fits: the library
    knows no such thing, so they get a score that any other reading of their spelling beats."""
    scores = list(file.scores)
    lowest = min((score for score, kind in zip(scores, file.types, strict=True) if kind == NORMAL), default=0.0)
    for number, kind in enumerate(file.types):
        if kind == BYTE:
            scores[number] = len("<0x00>") * (lowest - 11.0)
    return scores


def _prepend_scheme(file: SentencePieceFile, config: Mapping[str, Any]) -> str:
    asked = config.get("add_prefix_space")
    if not (file.add_dummy_prefix if asked is None else asked):
        return "never"
    return "always" if config.get("legacy") else "first"


def _spans_words(texts: list[str]) -> bool:
    return any("▁" in text[1:].lstrip("▁") or (text != "▁" and text.startswith("▁▁")) for text in texts)


def _normalizers(file: SentencePieceFile, *, prefix: bool) -> list[Part]:
    steps: list[Part] = []
    if file.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": b64encode(file.charsmap).decode("ascii")})
    if file.remove_extra_whitespaces:
        steps += squeezed()
        steps += [{"type": "Prepend", "prepend": "▁"}] if prefix else []
    return steps


def _sentinels(model: Part, config: Mapping[str, Any]) -> list[Part]:
    """T5's <extra_id_99> … <extra_id_0>, which its class puts after the file's pieces."""
    count = config.get("extra_ids", _T5_EXTRA_IDS)
    if not isinstance(count, int) or not 0 <= count <= 1000:
        raise TokenizerBroken(f"tokenizer_config.json: extra_ids is {count!r}")
    first = len(model["vocab"])
    texts = [f"<extra_id_{number}>" for number in range(count - 1, -1, -1)]
    model["vocab"] += [[text, 0.0] for text in texts]
    return [added_token(first + at, text) for at, text in enumerate(texts)]


def _frame(file: SentencePieceFile, named: str, config: Mapping[str, Any], ids: Mapping[str, int]) -> Part | None:
    """A BPE begins with BOS where it has one, as the models of this kind were trained; T5 ends with EOS."""
    before, after = [], []
    if named == "T5Tokenizer":
        after = [(file.eos_id, file.texts[file.eos_id])]
    elif file.model_type == BPE and 0 <= file.bos_id < len(file.texts):
        before = [(file.bos_id, file.texts[file.bos_id])]
    return asked_frame({**_names(file), **config}, ids, before=before, after=after)


def _names(file: SentencePieceFile) -> dict[str, Any]:
    ids = {"bos_token": file.bos_id, "eos_token": file.eos_id, "unk_token": file.unk_id, "pad_token": file.pad_id}
    return {name: file.texts[number] for name, number in ids.items() if 0 <= number < len(file.texts)}
