"""The detokenizer: ids → text, incrementally, never losing or inventing a byte.

At most 3 bytes (the start of a character) are held back; broken bytes become U+FFFD as soon as they are known to be
broken; `finish` gives one U+FFFD for an unfinished character. Batch is one push and finish, so that a stream joined
equals the batch for every split (ai-dynamo/dynamo#12630, vllm#47161).
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

_decode = codecs.utf_8_decode


class Detokenizer:
    """Turns the pieces of one sequence into text.

    `pieces` is the table to read: the visible one, in which special tokens are empty, or the full one. The caller
    guarantees that every id is in it. `strip_blank`: the first character of the whole text is dropped if it is a blank
    (sentencepiece, when the text does not continue a prompt).
    """

    __slots__ = ("_pending", "_pieces", "_strip")

    def __init__(self, pieces: Sequence[bytes], *, strip_blank: bool = False, pending: bytes = b"") -> None:
        self._pieces = pieces
        self._strip = strip_blank
        self._pending = pending

    @property
    def pending(self) -> bytes:
        """The bytes of an unfinished character, at most 3."""
        return self._pending

    @property
    def strips_blank(self) -> bool:
        """Whether nothing was given out yet and a leading blank would be dropped."""
        return self._strip

    def restore(self, *, strip_blank: bool, pending: Sequence[int]) -> None:
        """Go on from a state. Raises ValueError for bytes that are not the start of one character."""
        self._strip, self._pending = strip_blank, unfinished(list(pending))

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids complete."""
        pieces = self._pieces
        data = pieces[ids[0]] if len(ids) == 1 else b"".join([pieces[i] for i in ids])
        if self._pending:
            data = self._pending + data
        if data.isascii():
            self._pending = b""
            return self._stripped(data.decode("ascii"))
        text, used = _decode(data, "replace", False)
        self._pending = data[used:]
        return self._stripped(text)

    def finish(self) -> str:
        """What is left: one U+FFFD for an unfinished character, else nothing."""
        text = _decode(self._pending, "replace", True)[0]
        self._pending = b""
        return self._stripped(text)

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


def unfinished(value: Any) -> bytes:
    """The bytes of an unfinished character, from a state's list of them: whatever else stood there would be told as the
    model's text. Raises ValueError for anything else."""
    if not isinstance(value, list) or len(value) > 3 or not all(type(byte) is int for byte in value):
        raise ValueError("not an unfinished character")
    data = bytes(value)
    text, used = _decode(data, "replace", False)
    if text or used:
        raise ValueError("not an unfinished character")
    return data
