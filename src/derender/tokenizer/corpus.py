"""Strings on which the fast encoder must equal the reference before it is used: what goes wrong first in practice."""

from __future__ import annotations

from collections.abc import Iterable

_BASE = (
    "",
    " ",
    "  ",
    "\n",
    "\n\n \n",
    "\t\t\r\n",
    "Hello world",
    " Hello world",
    "Hello  world   again    .",
    "hello HELLO HeLLo hELLO",
    "don't can't we'll I'D THEY'RE it's y'all'd've",
    "The year 2024, 1234567890, 3.14159, 1,000,000 and 0xFF",
    "a1b2c3 12345678901234567890 ½ ² ٣ 四",
    "foo_bar fooBar FooBar foo-bar foo.bar(baz)[0] -> {x: y}",
    "def f(x):\n    return x ** 2  # a comment\n\n\nclass A:\n\tpass\n",
    '{"a": [1, 2.5, null, true], "b": {"c": "d\\n\\u00e9"}}',
    "https://example.org/a/b?c=d&e=f#g user@example.org",
    "Zürich café naïve ﬁ Å Å e\u0301 o\u0308 ǅ ß ẞ İ ı",
    "今天天气很好。日本語のテスト、カタカナ。한국어 시험 삼겹살",
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดีชาวโลก",
    "😀😃 👩‍👩‍👧‍👦 🇫🇷🇩🇪 👍🏽 🏳️‍🌈 ❤️ ☃",
    "\u00a0\u2003\u3000\u200b\ufeff\u200d\u2028\u2029x\u0085",
    "\x00\x01\x1f\x7f\x80\x9f",
    "\U0001f9ff\U000e0041\U0010ffff\ufffd",
    "ＡＢＣ１２３ ﷺ ㍿ ①②",
    "!!!???...,,,;;; -- --- ——— «» “” ‘’ ``''",
    "a" * 300,
    " " * 70 + "x",
    "\n" * 40,
    "ab " * 200,
    "=" * 100 + "#" * 50 + "-" * 30,
    "word\u0301 \u0301 \u0301a",
    " \u180ea \u180e5\n \u180ex",
    "Ünïcödé ÀÈÌ\nmixed\r\nlines\rhere ",
    "▁ ▁a a▁b <0x41> <unk> <s> </s> Ġ Ċ",
    "<|im_start|>system\nYou are.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
    "<think>\nhm\n</think>\n\n<tool_call>\n{}\n</tool_call>",
)


def verification_corpus(special: Iterable[str]) -> list[str]:
    """The built-in strings, and each of the model's own added tokens (64 at most) glued to text and to blanks."""
    own = list(special)[:64]
    glued = [form for token in own for form in (token, f"a{token}b", f" {token} ", f"{token}{token}", f"\n{token}\n x")]
    return [*_BASE, *glued, "".join(own) + " end"]
