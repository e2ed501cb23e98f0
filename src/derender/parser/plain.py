"""The parser of a model without an output format: all that is visible is content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from derender.parser.events import ContentText, Event
from derender.tokenizer import Detokenizer


class PlainParser:
    """Ids in, content events out. Its state is its detokenizer's."""

    __slots__ = ("_detokenizer",)

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer

    def push(self, ids: Sequence[int]) -> list[Event]:
        """The events that these ids complete."""
        text = self._detokenizer.push(ids)
        return [ContentText(text)] if text else []

    def finish(self) -> list[Event]:
        """The events of what was held back. Nothing may be pushed afterwards."""
        text = self._detokenizer.finish()
        return [ContentText(text)] if text else []

    def snapshot(self) -> list[Any]:
        """The state: whether a leading blank is still dropped, then the bytes of an unfinished character."""
        return [self._detokenizer.strips_blank, *self._detokenizer.pending]

    def restore(self, state: Any) -> None:
        """Go on from a snapshot. Raises ValueError for one that this parser cannot have made."""
        if not isinstance(state, list) or not state or type(state[0]) is not bool:
            raise ValueError("not a parser's state")
        self._detokenizer.restore(strip_blank=state[0], pending=state[1:])

    @property
    def calls_ended(self) -> int:
        """How many calls are complete: there are none."""
        return 0

    @property
    def reasoning(self) -> bool:
        """Whether the output is in reasoning now: it never is."""
        return False

    def take_regions(self) -> list[bool]:
        """For the tokens since the last time: none was reasoning."""
        return []
