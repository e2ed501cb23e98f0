"""Make a Hugging Face tokenizer (the dict of a tokenizer.json) from the metadata of a GGUF file.

A GGUF file holds tokens, types, merges or scores, and the name of a way to cut text (`tokenizer.ggml.pre`). The rest
is knowledge about model families, and stands here as a table. An entry is here only where the rule of the
family's own published tokenizer is known; any other name is refused, because a guess would give ids that look right
and are wrong. Where llama.cpp (src/llama-vocab.cpp) only comes near that rule, as with NFC, which it leaves out, the
family's own rule is taken: it is what the model was trained with and what other servers do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Values of tokenizer.ggml.token_type."""

# fmt: off
_END_OF_TURN = frozenset((
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "</s>",
    "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
    "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
))
# fmt: on
"""Texts that end generation wherever they are a control or user-defined token, as in llama.cpp."""

_T = TypeVar("_T")
_Part = dict[str, Any]


class GgufUnsupported(ValueError):
    """No exact tokenizer can be made from this metadata; the message names the key in one line."""


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
    architecture = _get(metadata, "general.architecture", str)
    if architecture is None:
        raise GgufUnsupported("general.architecture is missing")
    tokens = _Tokens.read(metadata)
    kind = _get(metadata, "tokenizer.ggml.model", str)
    if kind == "gpt2":
        family = _family(metadata)
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
    else:
        raise GgufUnsupported(f"tokenizer.ggml.model {kind!r} is not supported (supported: gpt2, llama, gemma4)")

    bos = _token_id(metadata, "bos", tokens, bos)
    eos = _token_id(metadata, "eos", tokens, eos)
    add_bos = _or(_get(metadata, "tokenizer.ggml.add_bos_token", bool), add_bos)
    add_eos = _or(_get(metadata, "tokenizer.ggml.add_eos_token", bool), False)
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
        context_length=_get(metadata, f"{architecture}.context_length", int),
        vocab_size=len(tokens.texts),
        name=_get(metadata, "general.name", str),
        architecture=architecture,
    )


# ---- The ways to cut text ------------------------------------------------------------------------------------------


def _split(regex: str) -> _Part:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


_BYTES: _Part = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES_ONLY: _Part = {**_BYTES, "use_regex": False}
_DIGITS: _Part = {"type": "Digits", "individual_digits": True}
_DIGIT_RUNS: _Part = {"type": "Digits", "individual_digits": False}
_PUNCTUATION: _Part = {"type": "Punctuation", "behavior": "Contiguous"}

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?%s+|\p{N}%s"
    r"| ?[^\s%s\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CASED_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_LETTERS_OF_DEEPSEEK_LLM = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ"
    "-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-"
    "ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_EAST_ASIAN = "[一-龥ࠀ-一가-퟿]+"


@dataclass(frozen=True)
class _Family:
    """How byte-level vocabularies with one tokenizer.ggml.pre cut text."""

    steps: tuple[_Part, ...]
    nfc: bool = False
    whole_words: bool = False
    """A word that is a token is that token, whatever the merges say (tiktoken's rule; `ignore_merges`)."""
    add_bos: bool = False
    """What llama.cpp does where tokenizer.ggml.add_bos_token is missing."""


_LLAMA3 = _Family((_split(_WORDS % (r"\p{L}", "{1,3}", r"\p{L}")), _BYTES_ONLY), whole_words=True, add_bos=True)
_GLM4 = _Family(_LLAMA3.steps, whole_words=True)
_DIGITS_THEN_GPT2 = _Family((_DIGITS, _BYTES))
_FAMILIES: dict[str, _Family] = {
    "gpt-2": _Family((_BYTES,)),
    "mpt": _Family((_BYTES,), nfc=True),
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "refact": _DIGITS_THEN_GPT2,
    "command-r": _Family((_DIGITS, _BYTES), nfc=True),
    "falcon": _Family((_PUNCTUATION, _BYTES, _DIGIT_RUNS, _split("[0-9][0-9][0-9]"))),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "glm4": _GLM4,
    "chatglm-bpe": _GLM4,
    "qwen2": _Family((_split(_WORDS % (r"\p{L}", "", r"\p{L}")), _BYTES_ONLY), nfc=True),
    "qwen35": _Family((_split(_WORDS % (r"[\p{L}\p{M}]", "", r"\p{L}\p{M}")), _BYTES_ONLY), nfc=True),
    "deepseek-llm": _Family(
        (
            _split("[\r\n]"),
            _split(rf"\s?[{_LETTERS_OF_DEEPSEEK_LLM}]+"),
            _split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            _split(r"\s+$"),
            _split(_EAST_ASIAN),
            _DIGITS,
            _BYTES_ONLY,
        )
    ),
    "deepseek-coder": _Family(
        (
            _split("[\r\n]"),
            _split(r"\s?\p{L}+"),
            _split(r"\s?\p{P}+"),
            _split(_EAST_ASIAN),
            _DIGITS,
            _BYTES_ONLY,
        )
    ),
    "deepseek-v3": _Family(
        (
            _split(r"\p{N}{1,3}"),
            _split("[一-龥\u3040-ゟ゠-ヿ]+"),
            _split(
                "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
            ),
            _BYTES_ONLY,
        )
    ),
    "tekken": _Family((_split(_CASED_WORDS % ("", "", "")), _BYTES_ONLY), whole_words=True, add_bos=True),
    "gpt-4o": _Family((_split(_CASED_WORDS % (_CONTRACTION, _CONTRACTION, "{1,3}")), _BYTES_ONLY), whole_words=True),
}


def _family(metadata: Mapping[str, Any]) -> _Family:
    pre = _get(metadata, "tokenizer.ggml.pre", str)
    if pre is None:
        raise GgufUnsupported("tokenizer.ggml.pre is missing: how this vocabulary cuts text is not known")
    family = _FAMILIES.get(pre)
    if family is None:
        raise GgufUnsupported(f"tokenizer.ggml.pre {pre!r} is not supported (supported: {', '.join(_FAMILIES)})")
    return family


# ---- Tokens --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tokens:
    """The tokens of a file and their types; the index is the id."""

    texts: list[str]
    types: list[int]
    vocabulary: dict[str, int]
    """Ids by text, without padding."""

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> _Tokens:
        texts = _list(metadata, "tokenizer.ggml.tokens", str)
        types = _list(metadata, "tokenizer.ggml.token_type", int)
        if not texts or len(types) != len(texts):
            raise GgufUnsupported(f"tokenizer.ggml.token_type has {len(types)} items for {len(texts)} tokens")
        # An empty text cannot be told from another one, nor ever be found; llama.cpp names it like this.
        texts = [text or f"[EMPTY_{number}]" for number, text in enumerate(texts)]
        vocabulary = {text: number for number, text in enumerate(texts)}
        if len(vocabulary) != len(texts):
            raise GgufUnsupported("tokenizer.ggml.tokens holds the same token twice")
        # Rows that only fill up the embedding: the converters write "[PAD<id>]" there, as unused, user-defined or
        # unknown. The model never saw them, and the same text in a prompt is not that token.
        for number, kind in enumerate(types):
            if kind != NORMAL and texts[number] == f"[PAD{number}]":
                del vocabulary[texts[number]]
        return cls(texts, types, vocabulary)

    def added(self, *, strips_right: bool) -> list[_Part]:
        """The tokens that are found in the text before it is cut; they may take the white space after them along."""
        return [
            {
                "id": number,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": strips_right and text not in ("<unk>", "<s>", "<|endoftext|>"),
                "normalized": False,
                "special": self.types[number] != USER_DEFINED,
            }
            for text, number in self.vocabulary.items()
            if self.types[number] in (UNKNOWN, CONTROL, USER_DEFINED)
        ]


def _is_phi3(metadata: Mapping[str, Any], architecture: str) -> bool:
    """Whether special tokens take the white space after them along. No key says so; llama.cpp goes by the name, too."""
    name = (_get(metadata, "general.name", str) or "").lower()
    return architecture == "phi3" or "phi-3" in name or "phi3" in name


# ---- Models --------------------------------------------------------------------------------------------------------


def _byte_level(metadata: Mapping[str, Any], tokens: _Tokens, family: _Family) -> _Part:
    """A byte-level BPE: every byte is a letter, so nothing is unknown."""
    return {
        "normalizer": {"type": "NFC"} if family.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(family.steps)},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _bpe(tokens.vocabulary, _merges(metadata, tokens), ignore_merges=family.whole_words),
    }


def _spaced(merges: list[tuple[str, str]], tokens: _Tokens, *, prefix: bool) -> _Part:
    """A BPE over characters with "▁" for the space, and bytes where a character is no token.

    `prefix` puts a space before the text, and before the text after each added token.
    """
    if missing := [name for name in _BYTE_TOKENS if name not in tokens.vocabulary]:
        raise GgufUnsupported(f"tokenizer.ggml.tokens lacks the byte token {missing[0]}")
    space: _Part = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    normalizers = [{"type": "Prepend", "prepend": "▁"}, space] if prefix else [space]
    decoders: list[_Part] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(tokens.vocabulary, merges, byte_fallback=True),
    }


_BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))


def _bpe(
    vocabulary: dict[str, int],
    merges: list[tuple[str, str]],
    *,
    ignore_merges: bool = False,
    byte_fallback: bool = False,
) -> _Part:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": vocabulary,
        "merges": merges,
    }


def _merges(metadata: Mapping[str, Any], tokens: _Tokens) -> list[tuple[str, str]]:
    """The merges of the file, best first. The first of two equal ones counts, as in llama.cpp."""
    vocabulary = tokens.vocabulary
    merges: dict[tuple[str, str], None] = {}
    for merge in _list(metadata, "tokenizer.ggml.merges", str):
        # The space between the halves is never the first letter, so the left half may begin with one.
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut < 0 or left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise GgufUnsupported(f"tokenizer.ggml.merges holds {merge!r}, which is no merge of known tokens")
        merges[left, right] = None
    return list(merges)


# ---- Vocabularies of sentencepiece: scores instead of merges -------------------------------------------------------


def _sentencepiece(metadata: Mapping[str, Any], tokens: _Tokens, architecture: str) -> _Part:
    """Joins of the two neighbours whose token scores best, leftmost first: as merges, that needs distinct scores."""
    if architecture.startswith("gemma"):
        # Its scores are not the order of its merges, and its runs of spaces are spelled otherwise in the file.
        raise GgufUnsupported(
            f"tokenizer.ggml.model 'llama' of {architecture} is not supported: its scores do not order it"
        )
    if any(kind == USER_DEFINED and " " in text for kind, text in zip(tokens.types, tokens.texts, strict=True)):
        raise GgufUnsupported("tokenizer.ggml.model 'llama' with user-defined tokens that hold spaces is not supported")
    prefix = _or(_get(metadata, "tokenizer.ggml.add_space_prefix", bool), True)
    if _get(metadata, "tokenizer.ggml.remove_extra_whitespaces", bool):
        raise GgufUnsupported(
            "tokenizer.ggml.remove_extra_whitespaces is not supported with tokenizer.ggml.model 'llama'"
        )
    return _spaced(_merges_of_scores(metadata, tokens), tokens, prefix=prefix)


_LONGEST_TOKEN = 512
"""Every cut of every token is tried, so a longer one (none is known) would only cost time."""


def _merges_of_scores(metadata: Mapping[str, Any], tokens: _Tokens) -> list[tuple[str, str]]:
    scores = _list(metadata, "tokenizer.ggml.scores", (int, float))
    if len(scores) != len(tokens.texts):
        raise GgufUnsupported(f"tokenizer.ggml.scores has {len(scores)} items for {len(tokens.texts)} tokens")
    if any(score != score for score in scores):
        raise GgufUnsupported("tokenizer.ggml.scores holds a score that is no number")
    if max(map(len, tokens.texts)) > _LONGEST_TOKEN:
        raise GgufUnsupported(f"tokenizer.ggml.tokens holds a token longer than {_LONGEST_TOKEN} characters")
    types = tokens.types
    joined = {text: number for text, number in tokens.vocabulary.items() if types[number] in (NORMAL, USER_DEFINED)}
    by_score: defaultdict[float, list[str]] = defaultdict(list)
    halves: dict[str, list[tuple[str, str]]] = {}
    for text, number in tokens.vocabulary.items():
        cuts = ((text[:at], text[at:]) for at in range(1, len(text)))
        known = [cut for cut in cuts if cut[0] in joined and cut[1] in joined]
        if known and types[number] == UNUSED:
            raise GgufUnsupported(f"tokenizer.ggml.token_type marks {text!r} unused, though tokens join to it")
        if known and text in joined:
            known.sort(key=lambda cut: (joined[cut[0]], joined[cut[1]]))
            halves[text] = known
            by_score[float(scores[number])].append(text)
    merges: list[tuple[str, str]] = []
    for score in sorted(by_score, reverse=True):
        texts = by_score[score]
        if len(texts) > 1:
            # Equal scores join the leftmost pair, whatever its token: no order of merges says that, except for runs of
            # one letter (the runs of spaces of Llama 2 and Mistral), where it means the longest run first.
            if any(len(set(text)) > 1 for text in texts):
                raise GgufUnsupported(f"tokenizer.ggml.scores is {score} for both {texts[0]!r} and {texts[1]!r}")
            texts = sorted(texts, key=len, reverse=True)
        merges += (cut for text in texts for cut in halves[text])
    return merges


# ---- Special tokens and templates ----------------------------------------------------------------------------------


def _frame(tokens: _Tokens, *, bos: int | None, eos: int | None) -> _Part | None:
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


def _end_ids(metadata: Mapping[str, Any], tokens: _Tokens, eos: int | None) -> tuple[int, ...]:
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


def _token_id(metadata: Mapping[str, Any], name: str, tokens: _Tokens, default: int | None) -> int | None:
    """The id of a special token. One outside the vocabulary counts as not stated, as in llama.cpp."""
    for number in (_get(metadata, f"tokenizer.ggml.{name}_token_id", int), default):
        if number is not None and 0 <= number < len(tokens.texts):
            return number
    return None


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """By name. tokenizer.chat_templates only lists the names, and adds nothing to the keys themselves."""
    start = "tokenizer.chat_template."
    found = {key.removeprefix(start): _get(metadata, key, str) for key in metadata if key.startswith(start)}
    main = _get(metadata, "tokenizer.chat_template", str)
    named = {name: text for name, text in found.items() if text is not None}
    return named if main is None else {**named, "default": main}


# ---- Values of metadata --------------------------------------------------------------------------------------------


def _get(metadata: Mapping[str, Any], key: str, kind: type[_T]) -> _T | None:
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise GgufUnsupported(f"{key} is not of type {kind.__name__}")
    return value


def _list(metadata: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> list[Any]:
    values = metadata.get(key)
    if values is None:
        raise GgufUnsupported(f"{key} is missing")
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise GgufUnsupported(f"{key} is not an array of the right type")
    return values


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value
