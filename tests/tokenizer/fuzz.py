"""Strings that take tokenizers apart: every plane of Unicode, code, runs of blanks, spellings of special tokens."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

COUNT = int(os.environ.get("DERENDER_TEST_FUZZ", "500"))
"""Strings for each vocabulary; 30000 for a full run."""

# ruff: noqa: E501
# fmt: off
_BLANKS = (" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\t\t", " \n", "\n ", "\u00a0", "\u3000", "\u2003", "\u200b",
           "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\u1680", "\u202f", "\ufeff", "\u180e", "\x1c", " " * 13)
_WORDS = ("the", "The", "THE", "hello", "world", "ing", "don't", "I'LL", "it'S", "they've", "tokenizer", "naïve", "café",
          "Straße", "ΣΑΣ", "İstanbul", "ﬁn", "привет", "мир", "こんにちは", "世界", "東京都", "안녕하세요", "مرحبا", "שלום",
          "नमस्ते", "สวัสดี", "ꜱ", "ǅ", "ſ'ſ", "x'ſ", "K", "Å", "①", "½", "٣٤٥", "²³", "Ⅻ", "㍿")
_CODE = ("def f(x):\n    return x**2", "for (int i=0;i<n;++i){", "}\n\n\n", "a->b", "x != y && z", "#include <stdio.h>",
         "https://example.org/a?b=c&d=%20e", "{\"a\": [1, 2.5, null]}", "\\ud800", "\\u00e9", "\\n", "SELECT * FROM t;",
         "    \t  if", "===", "------", "//////", "'''", "\"\"\"", "$x^2$", "<div class=\"a\">", "0x1F", "1e-9", "1,234,567.89")
_MARKS = ("\u0301", "\u0300\u0323", "\u20dd", "\ufe0f", "\u200d", "\U0001f3fd", "\u093c", "\u0e31", "\u1ab0")
_EMOJI = ("😀", "👩\u200d👩\u200d👧", "🇫🇷", "👍🏽", "🏳️\u200d🌈", "❤️", "☃", "🤷🏿\u200d♂️")
_ODD = ("\x00", "\x01", "\x7f", "\x9f", "\ufffd", "\uffff", "\ufdd0", "\U0010ffff", "\U0001ffff", "\ue000", "\U000e0041",
        "▁", "▁▁", " ▁", "Ġ", "Ċ", "âĢľ", "##", "##a", "</w>", "<0x41>", "<0xE2>", "<unk>", "[UNK]", "\u2581a")
# fmt: on
_PLANES = ((0x20, 0x7F), (0xA0, 0x250), (0x250, 0x800), (0x800, 0x3000), (0x3000, 0xA000), (0xA000, 0xD800))
_HIGH = (
    (0xE000, 0x10000),
    (0x10000, 0x12000),
    (0x16000, 0x1B000),
    (0x1D000, 0x20000),
    (0x20000, 0x32000),
    (0xE0000, 0x110000),
)


def strings(count: int, *, special: Sequence[str] = (), seed: int = 1) -> list[str]:
    """`count` strings, the same for a seed; `special` spellings stand in every fifth or so."""
    draw = random.Random(seed)
    own = list(special)
    return [_string(draw, own) for _ in range(count)]


def _string(draw: random.Random, special: list[str]) -> str:
    parts = []
    for _ in range(draw.choice((1, 2, 3, 5, 8, 13, 21))):
        match draw.randrange(12):
            case 0 | 1 | 2:
                parts.append(draw.choice(_WORDS))
            case 3 | 4:
                parts.append(draw.choice(_BLANKS))
            case 5:
                parts.append(draw.choice(_CODE))
            case 6:
                parts.append(draw.choice(_MARKS) if draw.random() < 0.6 else draw.choice(_EMOJI))
            case 7:
                parts.append(draw.choice(_ODD))
            case 8:
                parts.append(_letters(draw, _PLANES if draw.random() < 0.7 else _HIGH))
            case 9:
                parts.append(str(draw.randrange(10 ** draw.randrange(1, 12))))
            case 10:
                parts.append(draw.choice(" \n\taA0.-=▁") * draw.randrange(1, 40))
            case _:
                parts.append(draw.choice(special) if special and draw.random() < 0.5 else " " + draw.choice(_WORDS))
    return "".join(parts)


def _letters(draw: random.Random, planes: Sequence[tuple[int, int]]) -> str:
    low, high = draw.choice(planes)
    return "".join(chr(draw.randrange(low, high)) for _ in range(draw.randrange(1, 8)))
