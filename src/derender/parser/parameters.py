"""Calls whose arguments are a list of parameters in tags: `<parameter=key>value</parameter>` and its kin."""

from __future__ import annotations

import re
from typing import Any

from derender.formats.table import Parameters, Typing
from derender.parser.coerce import STRING, ToolSchemas, coerce, is_json, quoted
from derender.parser.marks import Marks, Partial
from derender.parser.reader import Reader
from derender.parser.sink import Sink

_LONGEST_OPENER = 512  # characters that may be waited for until a parameter's opener is whole


class ParametersReader(Reader):
    """Reads parameters until a closer of the call.

    A value that can be nothing but a string is given out as it comes; any other waits for its closer and is typed by
    the tool's schema. `phase`: "between" parameters, at the "start" of a value, or in a "value".
    """

    __slots__ = ("_ends", "_held_ends", "_open", "_schemas", "_table", "count", "held", "key", "kind", "phase", "tool")

    def __init__(
        self, table: Parameters, marks: Marks, closers: tuple[str, ...], schemas: ToolSchemas, *, tool: str
    ) -> None:
        super().__init__(marks, closers)
        self._table = table
        self._schemas = schemas
        self._open = re.compile(marks.pattern(table.open), re.DOTALL)
        ends = [marks.literal(table.close), *map(marks.literal, table.until), *closers]
        self._ends = re.compile("|".join(re.escape(end) for end in sorted(ends, key=len, reverse=True)))
        self._held_ends = Partial(ends)
        self.tool = tool
        self.phase = "between"
        self.count = 0
        self.key = ""
        self.kind = ""  # "text": a string that is given out as it comes; "typed"; "json": JSON, else a string
        self.held = ""

    def feed(self, text: str, at: int, sink: Sink) -> int:
        """Read on from `at`; the place up to which the text was taken."""
        while at < len(text) and self.status == "open":
            before = at, self.phase
            match self.phase:
                case "between":
                    at = self._between(text, at, sink)
                case "start":
                    at = self._start(text, at, sink)
                case _:
                    at = self._value(text, at, sink)
            if (at, self.phase) == before:
                break
        return at

    def _between(self, text: str, at: int, sink: Sink) -> int:
        while at < len(text) and text[at].isspace():
            at += 1
        if self.closes(text, at):
            self._close(sink)
            return at
        found = self._open.match(text, at)
        if found is not None:
            self._begin_value(found, sink)
            return found.end()
        if len(text) - at < _LONGEST_OPENER:
            return at  # it may still become an opener or a closer
        return at + 1  # what is neither is passed over

    def _begin_value(self, found: re.Match[str], sink: Sink) -> None:
        groups = found.groupdict()
        key = self.marks.spell(groups["key"]).strip()
        if self._table.typing is Typing.ATTRIBUTE:
            self.kind = "text" if groups.get("string") == "true" else "json"
        else:
            self.kind = "text" if self._schemas.types(self.tool, key) == STRING else "typed"
        self.key, self.held, self.phase = key, "", "start"
        sink.arguments((", " if self.count else "{") + quoted(key) + ": " + ('"' if self.kind == "text" else ""))
        self.count += 1

    def _start(self, text: str, at: int, sink: Sink) -> int:
        """Pass over the framing before a value."""
        if self._table.newline:
            at += text[at] == "\n"
        elif self._table.trim:
            while at < len(text) and text[at].isspace():
                at += 1
            if at == len(text):
                return at
        self.phase = "value"
        return at

    def _value(self, text: str, at: int, sink: Sink) -> int:
        found = self._ends.search(text, at)
        end = found.start() if found is not None else len(text) - self._held_ends.held(text, at)
        piece = self.held + text[at:end]
        if self.kind == "text":
            piece = self._streamed(piece, sink, last=found is not None)
        self.held = piece
        if found is None:
            return end
        if self.kind != "text":
            sink.arguments(self._typed(piece))
        else:
            sink.arguments('"')
        self.phase, self.held = "between", ""
        closer = found[0]
        return found.end() if closer == self.marks.literal(self._table.close) else found.start()

    def _streamed(self, piece: str, sink: Sink, *, last: bool) -> str:
        """Give out a string's text; what is kept back is framing if the value ends here."""
        keep = 0
        if self._table.newline:
            keep = int(piece.endswith("\n"))
        elif self._table.trim:
            keep = len(piece) - len(piece.rstrip())
        given = piece[: len(piece) - keep]
        sink.arguments(quoted(self.marks.spell(given))[1:-1])
        return "" if last else piece[len(piece) - keep :]

    def _typed(self, text: str) -> str:
        text = self.marks.spell(text)
        if self._table.newline:
            text = text.removesuffix("\n")
        elif self._table.trim:
            text = text.strip()
        if self.kind == "json":
            return text.strip() if is_json(text) else quoted(text)
        return coerce(text, self._schemas.types(self.tool, self.key))

    def _close(self, sink: Sink) -> None:
        sink.arguments("}" if self.count else "{}")
        self.status, self.ended = "done", True

    def finish(self, text: str, at: int, sink: Sink) -> None:
        """The output ends inside a value: a string's text so far is given out."""
        if self.phase == "value" and self.kind == "text":
            rest = self.held + text[at:]
            if self._table.newline:
                rest = rest.removesuffix("\n")
            sink.arguments(quoted(self.marks.spell(rest))[1:-1])

    def state(self) -> list[Any]:
        """For the snapshot."""
        return [self.phase, self.tool, self.count, self.key, self.kind, self.held]

    def restore(self, state: list[Any]) -> None:
        """The inverse of `state`."""
        self.phase, self.tool, self.count, self.key, self.kind, self.held = state
        if self.phase not in ("between", "start", "value") or self.kind not in ("", "text", "typed", "json"):
            raise ValueError("no such phase")
