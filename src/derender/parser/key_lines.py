"""Calls whose arguments are lines: `key: value`."""

from __future__ import annotations

import functools
import re
from typing import Any, Literal, NamedTuple

from derender.formats.table import KeyLines, Typing
from derender.parser.coerce import STRING, ToolSchemas
from derender.parser.json_text import quoted
from derender.parser.marks import Marks, Partial
from derender.parser.reader import Reader
from derender.parser.shape import Count, Plain, Shape, checked
from derender.parser.sink import Sink
from derender.parser.typed import typed

Phase = Literal["key", "start", "value"]


class KeyLinesState(Shape, frozen=True):
    """The state of a `KeyLinesReader`."""

    phase: Phase
    tool: Plain
    count: Count
    key: Plain
    plain: bool
    held: str


class Stops(NamedTuple):
    """What ends a piece of a line, the longest first, and what may still become that."""

    pattern: re.Pattern[str]
    partial: Partial


@functools.lru_cache(maxsize=64)
def stops(literals: tuple[str, ...]) -> Stops:
    """`Stops`, made once for each set of literals."""
    ordered = sorted(literals, key=len, reverse=True)
    return Stops(re.compile("|".join(map(re.escape, ordered))), Partial(ordered))


class KeyLinesReader(Reader):
    """Reads lines until a closer of the call, wherever in a line it stands.

    A value that can be nothing but a string is given out as it comes, any other when its line ends. `phase`: in a
    "key", which may prove to be a line that is none; at the "start" of a value; in a "value".
    """

    __slots__ = (
        "_in_key", "_in_value", "_lines", "_pairs", "_schemas", "_table", "count", "held", "key", "phase", "plain",
        "tool",
    )  # fmt: skip

    def __init__(
        self, table: KeyLines, marks: Marks, closers: tuple[str, ...], schemas: ToolSchemas, *, tool: str
    ) -> None:
        super().__init__(marks, closers)
        self._table = table
        self._schemas = schemas
        # Written in letters as well, should a vocabulary have it as a token too.
        self._lines, self._pairs = (table.line, marks.literal(table.line)), (table.pair, marks.literal(table.pair))
        self._in_key = stops((*self._pairs, *self._lines, *closers))
        self._in_value = stops((*self._lines, *closers))
        self.tool = tool
        self.phase: Phase = "key"
        self.count = 0
        self.key = ""
        self.plain = False  # whether the value is given out as it comes
        self.held: list[str] = []  # of a key or value: all that waits, or white space that may be framing

    def feed(self, text: str, at: int, sink: Sink) -> int:
        """Read on from `at`; the place up to which the text was taken."""
        while at < len(text) and self.status == "open":
            before = at, self.phase
            at = getattr(self, f"_{self.phase}")(text, at, sink)
            if (at, self.phase) == before:
                break
        return at

    def _next(self, text: str, at: int, stops: Stops) -> tuple[int, str]:
        """What ends a piece, and its place; "" and the place up to which nothing does for certain."""
        found = stops.pattern.search(text, at)
        sure = len(text) - stops.partial.held(text, at)
        return (found.start(), found[0]) if found is not None and found.start() < sure else (sure, "")

    def _key(self, text: str, at: int, sink: Sink) -> int:
        stop, literal = self._next(text, at, self._in_key)
        if not literal:
            self.held.append(text[at:stop])
            return stop
        if literal in self._pairs:
            key = self.marks.spell("".join(self.held) + text[at:stop])
            self._begin_value(key.strip() if self._table.trim else key, sink)
        elif literal not in self._lines:
            self._close(sink)
            return stop
        self.held = []
        return stop + len(literal)

    def _begin_value(self, key: str, sink: Sink) -> None:
        self.key, self.phase = key, "start"
        self.plain = self._table.typing is Typing.SCHEMA and self._schemas.types(self.tool, key) == STRING
        sink.arguments((", " if self.count else "{") + quoted(key) + ": " + ('"' if self.plain else ""))
        self.count += 1

    def _start(self, text: str, at: int, sink: Sink) -> int:
        """Pass over the blanks before a value."""
        blank = self._table.trim
        while blank and at < len(text) and text[at].isspace() and not self._in_value.pattern.match(text, at):
            if self._in_value.partial.held(text, at) == len(text) - at:
                return at
            at += 1
        if at < len(text):
            self.phase = "value"
        return at

    def _value(self, text: str, at: int, sink: Sink) -> int:
        stop, literal = self._next(text, at, self._in_value)
        self._give(text[at:stop], sink)
        if not literal:
            return stop
        self._end_value(sink)
        if literal not in self._lines:
            self._close(sink)
            return stop
        return stop + len(literal)

    def _give(self, piece: str, sink: Sink) -> None:
        self.held.append(piece)
        if not self.plain or (self._table.trim and not piece.strip()):
            return
        piece = "".join(self.held)
        body = piece.rstrip() if self._table.trim else piece
        self.held = [piece[len(body) :]] if len(body) < len(piece) else []
        sink.arguments(quoted(self.marks.spell(body))[1:-1])

    def _end_value(self, sink: Sink) -> None:
        if self.plain:
            sink.arguments('"')
        else:
            text = self.marks.spell("".join(self.held))
            text = text.strip() if self._table.trim else text
            sink.arguments(typed(text, self._table.typing, self._schemas.types(self.tool, self.key)))
        self.phase, self.held = "key", []

    def _close(self, sink: Sink) -> None:
        sink.arguments("}" if self.count else "{}")
        self.status, self.ended = "done", True

    def finish(self, text: str, at: int, sink: Sink) -> None:
        """The output ends inside the call: what was given of it stays. What waits may be part of a closer."""

    def state(self) -> list[Any]:
        """For the snapshot."""
        return [self.phase, self.tool, self.count, self.key, self.plain, "".join(self.held)]

    def restore(self, state: list[Any]) -> None:
        """The inverse of `state`."""
        now = checked(KeyLinesState, state)
        self.phase, self.tool, self.count, self.key, self.plain = now.phase, now.tool, now.count, now.key, now.plain
        self.held = [now.held] if now.held else []
