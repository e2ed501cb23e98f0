"""Stop strings, found in visible content. A tokens-only engine cannot see them (vllm#57052)."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Looks for stop strings in text that comes in pieces.

    The match that is complete first wins; of several that end at the same character, the longest. What is held back
    is only a suffix that may still become a stop string, so text that was given out is never part of a match.
    """

    __slots__ = ("_held", "_keep", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, keep: bool, held: str = "") -> None:
        self._stops = tuple(stops)
        self._keep = keep
        self._held = held
        self.matched: str | None = None
        """The stop string that was found. Nothing may be pushed afterwards."""

    @property
    def held(self) -> str:
        """The text that is held back."""
        return self._held

    def also(self, stop: str) -> None:
        """Look for one more stop string from here on: the one that the engine says it stopped at."""
        if stop and stop not in self._stops:
            self._stops = (*self._stops, stop)

    def push(self, text: str, *, live: bool = True) -> str:
        """The text that may be given out.

        `live` false: nothing matches yet (fewer than min_tokens tokens), but a match may still begin in this text.
        """
        buffer = self._held + text
        if live and text:
            found: tuple[int, int, str] | None = None
            for stop in self._stops:  # a match ends in the new text, else it would have been found before
                start = buffer.find(stop, max(0, len(self._held) - len(stop) + 1))
                if start >= 0:
                    candidate = (start + len(stop), start, stop)
                    if found is None or candidate[:2] < found[:2]:
                        found = candidate
            if found is not None:
                end, start, self.matched = found
                self._held = ""
                return buffer[: end if self._keep else start]
        keep = self._may_begin(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def finish(self) -> str:
        """What was held back: it became no stop string."""
        text, self._held = self._held, ""
        return text

    def _may_begin(self, buffer: str) -> int:
        """The length of the longest suffix that is a proper prefix of a stop string."""
        return max((_overlap(buffer, stop) for stop in self._stops), default=0)


def _overlap(text: str, stop: str) -> int:
    """The longest suffix of `text` that is a proper prefix of `stop`, in linear time (Knuth–Morris–Pratt)."""
    size = min(len(text), len(stop) - 1)
    if not size:
        return 0
    tail = text[len(text) - size :]
    if size <= 32:  # the usual case: a few comparisons in C
        return next((n for n in range(size, 0, -1) if stop.startswith(tail[size - n :])), 0)
    fallback = [0] * size
    n = 0
    for i in range(1, size):
        while n and stop[i] != stop[n]:
            n = fallback[n - 1]
        n += stop[i] == stop[n]
        fallback[i] = n
    n = 0
    for i, character in enumerate(tail):
        while n and character != stop[n]:
            n = fallback[n - 1]
        n += character == stop[n]
        if n == size and i + 1 < size:
            n = fallback[n - 1]
    return n
