"""Calls whose body is their arguments: one JSON value behind a header."""

from __future__ import annotations

from typing import Any, Literal

from derender.formats.table import JsonValue
from derender.parser.json_scan import JsonScan, Rest, ScanPlace, enders
from derender.parser.marks import Marks
from derender.parser.reader import Reader
from derender.parser.shape import Shape, checked
from derender.parser.sink import Sink

Phase = Literal["open", "fenced", "value", "rest"]


class ValueState(Shape, frozen=True):
    """The state of a `ValueReader`."""

    phase: Phase
    stack: str
    where: ScanPlace
    rest: str

    def __post_init__(self) -> None:
        JsonScan.check(self.stack, self.where)
        Rest.check(self.rest)


class ValueReader(Reader):
    """Passes one JSON value on as the model wrote it.

    `phase`: "open" before it, "fenced" before it and behind the fence, "value" in it, "rest" where it broke: what
    follows up to the call's closer belongs to it.
    """

    __slots__ = ("_enders", "_fence", "phase", "rest", "scan")
    marked = False

    def __init__(self, table: JsonValue, marks: Marks, closers: tuple[str, ...]) -> None:
        super().__init__(marks, closers)
        self._fence = marks.literal(table.fence[0])
        self._enders = enders(closers)
        self.phase: Phase = "open"
        self.scan = JsonScan(closers)
        self.rest = Rest(closers)

    def feed(self, text: str, at: int, sink: Sink) -> int:
        """Read on from `at`; the place up to which the text was taken."""
        if self.phase in ("open", "fenced"):
            at = self._before(text, at, sink)
        if self.phase == "value":
            end = self.scan.feed(text, at)
            sink.arguments(self.marks.spell(text[at:end]))
            at = end
            if self.scan.broken:
                self.phase = "rest"
            elif self.scan.done:
                self.status, self.ended = "done", True
        if self.phase == "rest":
            at, piece, over = self.rest.feed(text, at)
            sink.arguments(self.marks.spell(piece))
            if over:
                self.status, self.ended = "done", True
        return at

    def _before(self, text: str, at: int, sink: Sink) -> int:
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return at
        if self._fence and self.phase == "open":
            if text.startswith(self._fence, at):
                self.phase = "fenced"
                return self._before(text, at + len(self._fence), sink)
            if self._fence.startswith(text[at : at + len(self._fence)]):
                return at
        if self._enders.at(text, at):
            sink.arguments("{}")
            self.status, self.ended = "done", True
        elif not self._enders.may(text, at):
            self.phase = "value" if text[at] in "{[" else "rest"
        return at

    def finish(self, text: str, at: int, sink: Sink) -> None:
        """The output ends here: what might have become a closer belongs to a value that was begun."""
        if self.phase in ("value", "rest") and text[at:].strip():
            sink.arguments(self.marks.spell(self.rest.held + text[at:]))

    def state(self) -> list[Any]:
        """For the snapshot."""
        return [self.phase, self.scan.stack, self.scan.where, self.rest.held]

    def restore(self, state: list[Any]) -> None:
        """The inverse of `state`."""
        now = checked(ValueState, state)
        self.phase = now.phase
        self.scan = JsonScan(self.closers, state=(now.stack, now.where))
        self.rest = Rest(self.closers, now.rest)
