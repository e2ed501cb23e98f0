"""The piece table: token id → the exact bytes of that token.

Text is the UTF-8 of the joined pieces, so nothing downstream ever decodes a window or compares decodes. How a
vocabulary entry spells its bytes is read from the `decoder` of tokenizer.json: byte-level BPE writes each byte as a
printable character, sentencepiece writes a blank as U+2581 and lone bytes as `<0xNN>`. Added tokens are spelled as
they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from derender.tokenizer.files import TokenizerBroken, TokenizerSpec


def _byte_characters() -> dict[int, int]:
    """Code point → byte of GPT-2's byte-level alphabet: printable Latin-1 stands for itself, the rest from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {b: b for b in printable} | {0x100 + i: b for i, b in enumerate(others)}


class _ByteAlphabet(dict[int, int]):
    def __missing__(self, character: int) -> int:
        return 0xFFFF  # not in the alphabet: makes the Latin-1 step fail


_ALPHABET = _ByteAlphabet(_byte_characters())
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Spelling:
    """How vocabulary entries spell bytes.

    `strips_leading_blank`: text that begins a sequence loses one blank (sentencepiece's dummy prefix).
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
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
        for old, new in self.replacements:
            token = token.replace(old, new)
        return token.encode("utf-8")


def spelling(decoder: dict[str, Any] | None) -> Spelling:
    """The spelling that a tokenizer.json's `decoder` undoes. Raises `TokenizerBroken` for one that is not known."""
    byte_level = byte_fallback = strips = False
    replacements: list[tuple[str, str]] = []
    for step in _steps(decoder):
        match step.get("type"):
            case "ByteLevel":
                byte_level = True
            case "ByteFallback":
                byte_fallback = True
            case "Fuse":
                pass  # joins the tokens, as the table does
            case "Replace" if isinstance(old := step.get("pattern", {}).get("String"), str):
                replacements.append((old, step.get("content", "")))
            case "Strip" if (step.get("content"), step.get("start"), step.get("stop")) == (" ", 1, 0):
                strips = True
            case "Metaspace":
                replacements.append((step.get("replacement", "▁"), " "))
                strips = step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True)
            case other:
                raise TokenizerBroken(f"tokenizer.json has a decoder that is not supported: {other} {step}")
    return Spelling(
        byte_level=byte_level,
        byte_fallback=byte_fallback,
        replacements=tuple(replacements),
        strips_leading_blank=bool(strips),
    )


def _steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
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
        table[added.id] = added.content.encode("utf-8")
    return table
