"""Stop strings, found in visible content. A tokens-only engine cannot see them (vllm#57052).

All is linear in the text and in the stop strings, whatever they are: text comes token by token, so that looking again
at what is held back would be quadratic (a stop string of a million "a" against a text of "a").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class _Needle:
    """One stop string, and how much of it the text so far ends with (Knuth–Morris–Pratt)."""

    __slots__ = ("_borders", "begun", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.begun = 0
        """Characters of the stop string that the text ends with, never all of them."""
        self._borders = [0]  # of prefixes, as far as they were needed: the longest end that is a beginning

    def feed(self, text: str, *, live: bool) -> int:
        """Read on. The position after the first match in `text`, -1 for none (always where not `live`)."""
        stop = self.stop
        length = len(stop)
        begun = self.begun
        position, size = 0, len(text)
        while position < size:
            if not begun:
                position = text.find(stop[0], position)
                if position < 0:
                    break
                begun = 1
            else:
                character = text[position]
                while begun and character != stop[begun]:
                    begun = self._border(begun)
                begun += character == stop[begun]
            position += 1
            if begun == length:
                if live:
                    return position
                begun = self._border(begun)
        self.begun = begun
        return -1

    def _border(self, size: int) -> int:
        """The longest proper end of the stop string's first `size` characters that is a beginning of it."""
        borders, stop = self._borders, self.stop
        while len(borders) < size:
            border, character = borders[-1], stop[len(borders)]
            while border and character != stop[border]:
                border = borders[border - 1]
            borders.append(border + (character == stop[border]))
        return borders[size - 1]


class StopMatcher:
    """Looks for stop strings in text that comes in pieces.

    The match that is complete first wins; of several that end at the same character, the longest. What is held back
    is only a suffix that may still become a stop string, so text that was given out is never part of a match.
    """

    __slots__ = ("_keep", "_needles", "_offset", "_parts", "_size", "matched")

    def __init__(self, stops: Sequence[str], *, keep: bool, held: str = "") -> None:
        self._needles = [_Needle(stop) for stop in stops]
        self._keep = keep
        self._parts: deque[str] = deque()  # what is held back, but for the first characters of the first part
        self._offset = 0
        self._size = 0
        self.matched: str | None = None
        """The stop string that was found. Nothing may be pushed afterwards."""
        if held:
            self._parts.append(held)
            self._size = len(held)
            for needle in self._needles:
                needle.feed(held, live=False)

    @property
    def held(self) -> str:
        """The text that is held back."""
        return "".join(self._parts)[self._offset :]

    def also(self, stop: str) -> None:
        """Look for one more stop string from here on: the one that the engine says it stopped at."""
        if stop and all(stop != needle.stop for needle in self._needles):
            needle = _Needle(stop)
            needle.feed(self.held, live=False)
            self._needles.append(needle)

    def push(self, text: str, *, live: bool = True) -> str:
        """The text that may be given out.

        `live` false: nothing matches yet (fewer than min_tokens tokens), but a match may still begin in this text.
        """
        found: tuple[int, int, str] | None = None
        keep = 0
        for needle in self._needles:
            end = needle.feed(text, live=live)
            if end >= 0:
                match = (end, -len(needle.stop), needle.stop)
                found = match if found is None else min(found, match)
            elif needle.begun > keep:
                keep = needle.begun
        if found is not None:
            end, minus_length, self.matched = found
            end += self._size
            self._add(text)
            text = self._take(end if self._keep else end + minus_length)
            self._clear()
            return text
        if not (keep or self._size):
            return text
        self._add(text)
        return self._take(self._size - keep)

    def finish(self) -> str:
        """What was held back: it became no stop string."""
        text = self.held
        self._clear()
        return text

    def _add(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)

    def _clear(self) -> None:
        self._parts.clear()
        self._offset = self._size = 0

    def _take(self, count: int) -> str:
        """The first `count` characters of what is held, held no longer."""
        self._size -= count
        taken: list[str] = []
        while count:
            part = self._parts[0]
            left = len(part) - self._offset
            if count < left:
                taken.append(part[self._offset : self._offset + count])
                self._offset += count
                break
            taken.append(part[self._offset :] if self._offset else part)
            self._parts.popleft()
            self._offset = 0
            count -= left
        return "".join(taken)
