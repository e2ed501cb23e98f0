"""Long prompts in segments, so that a growing chat is encoded for its new text only.

A tokenizer looks for its special tokens first and works on what is between them, each part for itself. So a text that
is cut before special tokens gives the same ids as the whole. The ids of segments are kept, within bounds: a chat that
comes again with one more turn has them all but the last.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import pairwise

from derender.tokenizer.files import AddedToken

LONG = 8192
"""Characters of a text from which on it is cut. Shorter ones are encoded in little more time than a lookup takes."""

_SEGMENT = 2048  # characters that a segment has at least
_ENTRY = 250  # bytes that an entry takes besides its ids
_CHECKS = 4  # long texts whose ids are compared with those of the whole, before segments are relied on


class SegmentedEncoder:
    """Encodes texts with a cache of their segments. Safe to use from several threads.

    `encode` gives the ids of any text without special tokens around it. `boundaries` are the added tokens before which
    a text may be cut; of those only such are taken as are always found where they are spelled. `max_bytes` bounds the
    cache.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        *,
        boundaries: Iterable[str],
        added: Iterable[AddedToken],
        max_bytes: int,
    ) -> None:
        tokens = list(added)
        wanted = set(boundaries)
        self._encode = encode
        self._boundaries = [one.content for one in tokens if one.content in wanted and _cuts(one, tokens)]
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, array[int]] = OrderedDict()  # by a segment's SHA-256, to hold no texts
        self._lock = threading.Lock()
        self._unchecked = _CHECKS
        self.bytes = 0
        """What the cache takes."""
        self.hits = self.misses = 0
        """Characters of long texts that were found in it, and that were not."""
        self.fault = ""
        """Why nothing is cut any more; empty where all is well."""

    @property
    def on(self) -> bool:
        """Whether long texts are cut."""
        return bool(self._boundaries) and self._max_bytes > 0 and not self.fault

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        if len(text) < LONG or not self.on:
            return self._encode(text)
        cuts = self._cuts(text)
        ids: list[int] = []
        for start, end in pairwise(cuts):
            ids += self._segment(text[start:end])
        return self._checked(text, ids) if self._unchecked else ids

    def _segment(self, text: str) -> Iterable[int]:
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                self.hits += len(text)
                return found
            self.misses += len(text)
        ids = self._encode(text)
        made = array("I", ids)
        if _size(made) <= self._max_bytes:
            with self._lock:
                if key not in self._kept:
                    self._kept[key] = made
                    self.bytes += _size(made)
                while self.bytes > self._max_bytes:
                    _, old = self._kept.popitem(last=False)
                    self.bytes -= _size(old)
        return ids

    def _cuts(self, text: str) -> list[int]:
        """Where segments begin, and the end: from the beginning on, the first boundary behind enough characters."""
        cuts = [0]
        following = dict.fromkeys(self._boundaries, 0)
        while following:
            least = cuts[-1] + _SEGMENT
            for token, place in list(following.items()):
                if place < least:
                    place = text.find(token, least)
                    if place < 0:
                        del following[token]
                        continue
                    following[token] = place
            if following:
                cuts.append(min(following.values()))
        cuts.append(len(text))
        return cuts

    def _checked(self, text: str, ids: list[int]) -> list[int]:
        """The ids of the whole text, for the first few; from a difference on nothing is cut."""
        whole = self._encode(text)
        self._unchecked -= 1
        if whole != ids:
            self.fault = "the ids of segments are not those of the whole text"
            with self._lock:
                self._kept.clear()
                self.bytes = 0
        return whole


def _cuts(token: AddedToken, others: Iterable[AddedToken]) -> bool:
    """Whether a token is found wherever it is spelled, and takes nothing of what is around it."""
    if not token.content or token.lstrip or token.rstrip or token.single_word or token.normalized:
        return False
    return not any(_hides(one, token.content) for one in others if one.content and one.content != token.content)


def _hides(other: AddedToken, content: str) -> bool:
    """Whether another token may begin before a spelling of this one and end in it, or be a longer spelling, or take
    white space that this one begins with."""
    text = other.content
    if content in text or (other.rstrip and content[0].isspace()):
        return True
    return any(text.endswith(content[:size]) for size in range(1, min(len(content), len(text) - 1) + 1))


def _size(ids: array[int]) -> int:
    return ids.itemsize * len(ids) + _ENTRY
