"""Markers in the text: a marker that is one token of the vocabulary stands as one character that no text has.

Ids become one string in which each such token is a lone surrogate. Decoded UTF-8 never holds one, so the same spelling
made of ordinary tokens stays text, and everything downstream works on plain strings: a marker is found by its
character where the vocabulary has it, by its letters where it has not.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from typing import Any

from derender.tokenizer import Tokenizer

_FIRST, _LAST = 0xD800, 0xDFFF
_DEEPEST = 8  # lists in lists of a reader's state
MARK = re.compile("[\ud800-\udfff]")
_LITERAL = re.compile("«(.*?)»", re.DOTALL)
_decode = codecs.utf_8_decode


class Marks:
    """The marker tokens that one format has in one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, literals: Iterable[str], *, end_of_turn: Iterable[str]) -> None:
        self.tokenizer = tokenizer
        wanted = list(literals)
        added = sorted(tokenizer.added_tokens, key=lambda token: -len(token.content))
        used = [token for token in added if token.content and any(token.content in text for text in wanted)]
        ends = frozenset(end_of_turn)
        # Other special tokens too: they are no text of the answer, but they are data in a call's arguments.
        used += [token for token in added if token.special and token.content not in ends and token not in used]
        used = used[: _LAST - _FIRST]
        self.characters: dict[int, str] = {token.id: chr(_FIRST + n) for n, token in enumerate(used)}
        """Token id → its character."""
        self.spelled: dict[int, str] = {_FIRST + n: token.content for n, token in enumerate(used)}
        """Code point of a character → the marker's spelling, for str.translate."""
        self.visible: dict[int, str] = {
            _FIRST + n: "" if token.special else token.content for n, token in enumerate(used)
        }
        """The same with special tokens empty."""
        self._by_text = [(token.content, self.characters[token.id]) for token in used]
        self.texts: dict[int, str] = {}
        """Texts of ordinary tokens that are whole characters, as they are met."""
        self.shown_texts: dict[int, str] = {}
        """The same where special tokens are shown."""
        self.end_ids = frozenset(i for text in ends if (i := _added_id(tokenizer, text)) is not None)

    def literal(self, text: str) -> str:
        """A literal as it stands in marked text: tokens of the vocabulary in it as their characters."""
        for content, character in self._by_text:
            text = text.replace(content, character)
        return text

    def pattern(self, source: str) -> str:
        """A table's pattern as a regular expression over marked text."""
        return _LITERAL.sub(lambda found: re.escape(self.literal(found[1])), source)

    def spell(self, text: str) -> str:
        """Marked text with every marker spelled out: it is data."""
        return text if text.isascii() or MARK.search(text) is None else text.translate(self.spelled)

    def show(self, text: str, *, special: bool) -> str:
        """Marked text as visible text; special tokens are left out unless `special`."""
        if text.isascii() or MARK.search(text) is None:
            return text
        return text.translate(self.spelled if special else self.visible)


def _added_id(tokenizer: Tokenizer, text: str) -> int | None:
    return next((token.id for token in tokenizer.added_tokens if token.content == text), None)


class Lexer:
    """Ids → marked text, incrementally. Ends of turn vanish; other special tokens too, unless they are to be shown."""

    __slots__ = ("_ends", "_known", "_marks", "_pieces", "pending", "strip")

    def __init__(self, marks: Marks, *, show_special: bool, strip: bool = False, pending: bytes = b"") -> None:
        tokenizer = marks.tokenizer
        self._marks = marks.characters
        self._pieces = tokenizer.pieces if show_special else tokenizer.visible_pieces
        self._ends = marks.end_ids
        self._known = marks.shown_texts if show_special else marks.texts
        self.pending = pending
        self.strip = strip

    def read(self, ids: Sequence[int]) -> tuple[str, list[int]]:
        """The marked text that these ids complete, and where in it each of them ends."""
        marks, ends, pieces, known = self._marks, self._ends, self._pieces, self._known
        parts: list[str] = []
        stops: list[int] = []
        size = 0
        for token_id in ids:
            if self.pending or self.strip:
                text = self._one(token_id)
            else:
                text = known.get(token_id, "")
                if not text:
                    text = self._one(token_id)
                    if not self.pending and token_id not in marks and token_id not in ends and pieces[token_id]:
                        known[token_id] = text
            parts.append(text)
            size += len(text)
            stops.append(size)
        return "".join(parts), stops

    def push(self, ids: Sequence[int]) -> str:
        """The marked text that these ids complete."""
        return self.read(ids)[0]

    def _one(self, token_id: int) -> str:
        if token_id in self._ends:
            return ""
        mark = self._marks.get(token_id)
        if mark is None:
            return self._text(self._pieces[token_id], final=False)
        text = self._text(b"", final=True)
        self.strip = False
        return text + mark

    def finish(self) -> str:
        """The rest: U+FFFD for an unfinished character."""
        return self._text(b"", final=True)

    def _text(self, data: bytes, *, final: bool) -> str:
        data = self.pending + data
        text, used = _decode(data, "replace", final)
        self.pending = data[used:]
        if self.strip and text:
            self.strip = False
            return text.removeprefix(" ")
        return text


class Partial:
    """Tells how much of the end of a text may still become one of some literals."""

    __slots__ = ("_ends", "_starts", "longest")

    def __init__(self, literals: Iterable[str]) -> None:
        self._starts = frozenset(text[:n] for text in literals for n in range(1, len(text)))
        self._ends = frozenset(start[-1] for start in self._starts)
        self.longest = max(map(len, self._starts), default=0)
        """The most characters that `held` tells."""

    def held(self, text: str, start: int = 0) -> int:
        """The length of the longest end of `text[start:]` that is the beginning of a literal, not all of it."""
        if not text or text[-1] not in self._ends:
            return 0
        size = len(text)
        for n in range(min(self.longest, size - start), 0, -1):
            if text[size - n :] in self._starts:
                return n
        return 0


def pack(value: Any) -> Any:
    """A state as JSON can carry it: strings with marker characters become lists `[0, text, code, text, …]`."""
    if isinstance(value, str):
        if value.isascii() or MARK.search(value) is None:
            return value
        parts: list[Any] = [0]
        at = 0
        for found in MARK.finditer(value):
            parts += [value[at : found.start()], ord(found[0]) - _FIRST]
            at = found.end()
        return [*parts, value[at:]]
    if isinstance(value, (list, tuple)):
        return [1, *map(pack, value)]
    return value


def unpack(value: Any, codes: int, depth: int = _DEEPEST) -> Any:
    """The inverse of `pack`, for text that has markers of codes below `codes`; 0 for text that has none.

    Raises ValueError for what `pack` cannot have made.
    """
    if not isinstance(value, list):
        return unpack_text(value, 0) if isinstance(value, str) else value
    kind = value[0] if value else None
    if type(kind) is not int or kind not in (0, 1) or not depth:
        raise ValueError("not a packed value")
    if kind == 0:
        return unpack_text(value, codes)
    members = value[1:]
    for n, one in enumerate(members):
        if isinstance(one, list) or (isinstance(one, str) and not one.isascii()):
            members[n] = unpack(one, codes, depth - 1)
    return members


def unpack_text(value: Any, codes: int) -> str:
    """The same for what is one text."""
    if isinstance(value, str):
        if not value.isascii() and MARK.search(value) is not None:
            raise ValueError("a marker among the letters")
        return value
    if not isinstance(value, list) or len(value) < 4 or len(value) % 2 or type(value[0]) is not int or value[0] != 0:
        raise ValueError("not a packed text")
    parts: list[str] = []
    for n, part in enumerate(value[1:]):
        if n % 2 == 0 and isinstance(part, str) and (part.isascii() or MARK.search(part) is None):
            parts.append(part)
        elif n % 2 and type(part) is int and 0 <= part < codes:
            parts.append(chr(_FIRST + part))
        else:
            raise ValueError("not a packed text")
    return "".join(parts)
