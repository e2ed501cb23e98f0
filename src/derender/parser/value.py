"""Calls whose body is their arguments: one JSON value behind a header."""

from __future__ import annotations

from typing import Any

from derender.formats.table import JsonValue
from derender.parser.json_scan import JsonScan
from derender.parser.marks import Marks
from derender.parser.reader import Reader
from derender.parser.sink import Sink


class ValueReader(Reader):
    """Passes one JSON value on as the model wrote it. `phase`: "open" before it, "value" in it."""

    __slots__ = ("_fence", "phase", "scan")

    def __init__(self, table: JsonValue, marks: Marks, closers: tuple[str, ...]) -> None:
        super().__init__(marks, closers)
        self._fence = tuple(marks.literal(text) for text in table.fence)
        self.phase = "open"
        self.scan = JsonScan(closers)

    def feed(self, text: str, at: int, sink: Sink) -> int:
        """Read on from `at`; the place up to which the text was taken."""
        if self.phase == "open":
            while at < len(text) and text[at].isspace():
                at += 1
            if at == len(text):
                return at
            if self.closes(text, at):
                sink.arguments("{}")
                self.status, self.ended = "done", True
                return at
            if any(closer.startswith(text[at:]) for closer in self.closers):
                return at
            self.phase = "value"
        end = self.scan.feed(text, at)
        sink.arguments(self.marks.spell(text[at:end]))
        if self.scan.done:
            self.status = "broken" if self.scan.broken else "done"
            self.ended = True
        return end

    def state(self) -> list[Any]:
        """For the snapshot."""
        return [self.phase, self.scan.stack, self.scan.where]

    def restore(self, state: list[Any]) -> None:
        """The inverse of `state`."""
        self.phase, stack, where = state
        if self.phase not in ("open", "value"):
            raise ValueError("no such phase")
        self.scan = JsonScan(self.closers, state=(stack, where))
