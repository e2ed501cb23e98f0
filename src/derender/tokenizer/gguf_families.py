"""How the byte-level vocabularies of GGUF files cut text, by `tokenizer.ggml.pre`.

An entry is here only where the rule of the family's own published tokenizer is known; any other name is refused,
because a guess would give ids that look right and are wrong. Where llama.cpp (src/llama-vocab.cpp) only comes near that
rule, as with NFC, which it leaves out, the family's own rule is taken: it is what the model was trained with and what
other servers do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from derender.tokenizer.gguf_metadata import GgufUnsupported, get_value

_Part = dict[str, Any]


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
class GgufFamily:
    """How byte-level vocabularies with one tokenizer.ggml.pre cut text."""

    steps: tuple[_Part, ...]
    nfc: bool = False
    whole_words: bool = False
    """A word that is a token is that token, whatever the merges say (tiktoken's rule; `ignore_merges`)."""
    add_bos: bool = False
    """What llama.cpp does where tokenizer.ggml.add_bos_token is missing."""


_LLAMA3 = GgufFamily((_split(_WORDS % (r"\p{L}", "{1,3}", r"\p{L}")), _BYTES_ONLY), whole_words=True, add_bos=True)
_GLM4 = GgufFamily(_LLAMA3.steps, whole_words=True)
_DIGITS_THEN_GPT2 = GgufFamily((_DIGITS, _BYTES))
_FAMILIES: dict[str, GgufFamily] = {
    "gpt-2": GgufFamily((_BYTES,)),
    "mpt": GgufFamily((_BYTES,), nfc=True),
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "refact": _DIGITS_THEN_GPT2,
    "command-r": GgufFamily((_DIGITS, _BYTES), nfc=True),
    "falcon": GgufFamily((_PUNCTUATION, _BYTES, _DIGIT_RUNS, _split("[0-9][0-9][0-9]"))),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "glm4": _GLM4,
    "chatglm-bpe": _GLM4,
    "qwen2": GgufFamily((_split(_WORDS % (r"\p{L}", "", r"\p{L}")), _BYTES_ONLY), nfc=True),
    "qwen35": GgufFamily((_split(_WORDS % (r"[\p{L}\p{M}]", "", r"\p{L}\p{M}")), _BYTES_ONLY), nfc=True),
    "deepseek-llm": GgufFamily(
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
    "deepseek-coder": GgufFamily(
        (
            _split("[\r\n]"),
            _split(r"\s?\p{L}+"),
            _split(r"\s?\p{P}+"),
            _split(_EAST_ASIAN),
            _DIGITS,
            _BYTES_ONLY,
        )
    ),
    "deepseek-v3": GgufFamily(
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
    "tekken": GgufFamily((_split(_CASED_WORDS % ("", "", "")), _BYTES_ONLY), whole_words=True, add_bos=True),
    "gpt-4o": GgufFamily((_split(_CASED_WORDS % (_CONTRACTION, _CONTRACTION, "{1,3}")), _BYTES_ONLY), whole_words=True),
}


def gguf_family(metadata: Mapping[str, Any]) -> GgufFamily:
    """The family of a file. Raises GgufUnsupported."""
    pre = get_value(metadata, "tokenizer.ggml.pre", str)
    if pre is None:
        raise GgufUnsupported("tokenizer.ggml.pre is missing: how this vocabulary cuts text is not known")
    family = _FAMILIES.get(pre)
    if family is None:
        raise GgufUnsupported(f"tokenizer.ggml.pre {pre!r} is not supported (supported: {', '.join(_FAMILIES)})")
    return family
