"""The piece table: token id → the exact bytes of that token.

Text is the UTF-8 of the joined pieces, so nothing downstream ever decodes a window or compares decodes. How an entry
of the vocabulary spells its bytes is read from the `decoder` of tokenizer.json, which added tokens go through as well:
byte-level BPE writes each byte as a printable character, sentencepiece writes a blank as U+2581 and lone bytes as
`<0xNN>`, WordPiece marks what goes on a word, and where there is no decoder tokens are joined with blanks.

All of them work token by token but for the ends of a text. At its start the blank before the first word is dropped
(`strips_leading_blank`). Two things of the library are left out, as a stream cannot or need not have them: a first
WordPiece token that goes on a word keeps its `##` there, and a first Metaspace token loses all its blanks and not one;
BPEDecoder's last token loses the blank that its word ends with, which a stream has sent by then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from derender.tokenizer.byte_level import byte_characters
from derender.tokenizer.files import TokenizerBroken, TokenizerSpec


class _ByteAlphabet(dict[int, int]):
    def __missing__(self, character: int) -> int:
        return 0xFFFF  # not in the alphabet: makes the Latin-1 step fail


_ALPHABET = _ByteAlphabet(byte_characters())
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CLEANED = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)
"""WordPiece's cleanup, as the tokenizers library does it: on each token."""


@dataclass(frozen=True)
class Spelling:
    """How vocabulary entries spell bytes.

    `word_mark`: what an entry that goes on a word begins with; any other begins with a blank ("" for no such mark: all
    do; None: none does). `strips`: (character, at most so many at the start, at the end) of each entry.
    `strips_leading_blank`: text that begins a sequence loses one blank (sentencepiece's dummy prefix).
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    word_mark: str | None = None
    strips: tuple[tuple[str, int, int], ...] = ()
    strips_leading_blank: bool = False

    def piece(self, token: str) -> bytes:
        """The bytes of one vocabulary entry that is no added token."""
        if self.byte_level:
            try:
                return token.translate(_ALPHABET).encode("latin-1")
            except UnicodeEncodeError:
                return token.encode("utf-8")  # a character outside the alphabet: the entry is plain text
        if self.byte_fallback and (found := _BYTE_TOKEN.fullmatch(token)):
            return bytes((int(found[1], 16),))
        if self.word_mark is not None:
            goes_on = self.word_mark and token.startswith(self.word_mark)
            token = token[len(self.word_mark) :] if goes_on else " " + token
        for old, new in self.replacements:
            token = token.replace(old, new)
        for character, start, end in self.strips:
            token = _stripped(token, character, start, end)
        return token.encode("utf-8")

    def added_piece(self, token: str) -> bytes:
        """The bytes of an added token: its own spelling, gone through the decoder where that gives text."""
        data = self.piece(token)
        if self.byte_level:
            try:
                data.decode("utf-8")
            except UnicodeDecodeError:
                return token.encode("utf-8")
        return data


def _stripped(token: str, character: str, start: int, end: int) -> str:
    while start and token.startswith(character):
        token, start = token[len(character) :], start - 1
    while end and token.endswith(character):
        token, end = token[: -len(character)], end - 1
    return token


def spelling(decoder: dict[str, Any] | None) -> Spelling:
    """The spelling that a tokenizer.json's `decoder` undoes. Raises `TokenizerBroken` for one that is not known."""
    if decoder is None:
        return Spelling(word_mark="", strips_leading_blank=True)
    byte_level = byte_fallback = leading = fused = False
    word_mark: str | None = None
    replacements: list[tuple[str, str]] = []
    strips: list[tuple[str, int, int]] = []
    for step in _steps(decoder):
        match step.get("type"):
            case "ByteLevel":
                byte_level = True
            case "ByteFallback":
                byte_fallback = True
            case "Fuse":
                fused = True  # joins the tokens, as the table does
            case "Replace" if isinstance(old := step.get("pattern", {}).get("String"), str):
                replacements.append((old, step.get("content", "")))
            case "Strip" if fused and (step.get("content"), step.get("start"), step.get("stop")) == (" ", 1, 0):
                leading = True
            case "Strip" if not fused and step.get("content"):
                strips.append((step["content"], int(step.get("start", 0)), int(step.get("stop", 0))))
            case "Metaspace":
                replacements.append((step.get("replacement", "▁"), " "))
                leading = step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True)
            case "WordPiece":
                word_mark, leading = step.get("prefix", "##"), True
                replacements += _CLEANED if step.get("cleanup", True) else ()
            case "BPEDecoder":
                replacements.append((step.get("suffix", "</w>"), " "))
            case "CTC":
                raise TokenizerBroken("tokenizer.json has a CTC decoder: it is for speech, and drops repeated tokens")
            case other:
                raise TokenizerBroken(f"tokenizer.json has a decoder that is not supported: {other} {step}")
    if byte_level and (byte_fallback or replacements or strips or word_mark is not None):
        raise TokenizerBroken("tokenizer.json has a ByteLevel decoder among others, which is not supported")
    return Spelling(
        byte_level=byte_level,
        byte_fallback=byte_fallback,
        replacements=tuple(replacements),
        word_mark=word_mark,
        strips=tuple(strips),
        strips_leading_blank=bool(leading),
    )


def _steps(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder.get("type") == "Sequence":
        for inner in decoder.get("decoders", []):
            yield from _steps(inner)
    else:
        yield decoder


def build_pieces(spec: TokenizerSpec, how: Spelling) -> list[bytes | None]:
    """The table, from id 0 to the highest id; None where the vocabulary has a hole. Raises `TokenizerBroken`."""
    highest = max([*spec.vocab.values(), *(token.id for token in spec.added_tokens)], default=-1)
    if highest < 0 or highest > 16_777_216:
        raise TokenizerBroken(f"tokenizer.json has no usable vocabulary (highest id {highest})")
    table: list[bytes | None] = [None] * (highest + 1)
    piece = how.piece
    for token, i in spec.vocab.items():
        if i < 0:
            raise TokenizerBroken(f"tokenizer.json gives {token!r} the id {i}")
        table[i] = piece(token)
    for added in spec.added_tokens:
        table[added.id] = how.added_piece(added.content)
    return table
