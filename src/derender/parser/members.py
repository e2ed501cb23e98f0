"""Calls that are JSON objects: `{"name": …, "arguments": {…}}`, one, or several in an array."""

from __future__ import annotations

import json
import re
from typing import Any

from derender.formats.table import JsonMembers
from derender.parser.json_scan import JsonScan
from derender.parser.marks import Marks
from derender.parser.reader import Reader
from derender.parser.sink import Sink

PHASES = frozenset(("open", "next", "member", "key", "colon", "value", "name", "id", "args", "text", "bare", "skip"))
_BLANKS = re.compile(r"[ \t\r\n]*")
_SEPARATORS = re.compile(r"[ \t\r\n,;]*")
_STRING_STOP = re.compile(r'["\\]')


class MembersReader(Reader):
    """Reads one object, or an array of them.

    `phase` is what comes next: "open", "next" (element of the array), "member", "key", "colon", "value", "name", "id",
    "args", "text" (arguments in a string), "bare" (arguments that are no container), "skip".
    """

    __slots__ = ("_table", "before", "held", "key", "named", "phase", "scan")

    def __init__(self, table: JsonMembers, marks: Marks, closers: tuple[str, ...]) -> None:
        super().__init__(marks, closers)
        self._table = table
        self.phase = "open"
        self.held = ""  # a string or scalar that is not whole yet
        self.key = ""
        self.before = ""  # arguments that came before the name
        self.named = False
        self.scan = JsonScan(closers)

    def feed(self, text: str, at: int, sink: Sink) -> int:
        """Read on from `at`; the place up to which the text was taken."""
        size = len(text)
        while at < size and self.status == "open" and not self.ended:
            at = getattr(self, f"_{self.phase}")(text, at, sink)
        return at

    def _open(self, text: str, at: int, sink: Sink) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at < len(text):
            if text[at] == "[" and self._table.array:
                self.phase = "next"
                return at + 1
            return self._object(text, at)
        return at

    def _object(self, text: str, at: int) -> int:
        if text[at] != "{":
            self.status = "failed"
            return at
        self.phase, self.named, self.before = "member", False, ""
        return at + 1

    def _next(self, text: str, at: int, sink: Sink) -> int:
        at = _SEPARATORS.match(text, at).end()  # type: ignore[union-attr]
        if at < len(text):
            if text[at] == "]":
                self.status = "done"
                return at + 1
            if self.closes(text, at):
                self.status = "done"
                return at
            return self._object(text, at)
        return at

    def _member(self, text: str, at: int, sink: Sink) -> int:
        at = _SEPARATORS.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            return at
        if text[at] == '"':
            self.phase, self.held = "key", ""
            return at + 1
        if text[at] == "}":
            if not self.named:
                self.status = "failed"
                return at + 1
            self.ended = True
            if self._table.array:
                self.phase = "next"
            else:
                self.status = "done"
            return at + 1
        self.status = "failed"
        return at

    def _string(self, text: str, at: int) -> tuple[int, str | None]:
        """Collect a string behind its opening quote; its value once it is whole."""
        while True:
            found = _STRING_STOP.search(text, at)
            if self.held.endswith("\\") and (len(self.held) - len(self.held.rstrip("\\"))) % 2:
                self.held += text[at]
                at += 1
                if at >= len(text):
                    return at, None
                continue
            if found is None:
                self.held += text[at:]
                return len(text), None
            if found[0] == "\\":
                self.held += text[at : found.end()]
                at = found.end()
                if at >= len(text):
                    return at, None
                continue
            self.held += text[at : found.start()]
            return found.end(), self._decoded(self.held)

    def _decoded(self, body: str) -> str:
        body = self.marks.spell(body)
        try:
            value = json.loads(f'"{body}"', strict=False)
        except ValueError:
            return body
        return str(value)

    def _key(self, text: str, at: int, sink: Sink) -> int:
        at, key = self._string(text, at)
        if key is not None:
            self.key, self.phase, self.held = key, "colon", ""
            if self._table.name is None and not self.named:
                self._name_known(key, sink)
        return at

    def _colon(self, text: str, at: int, sink: Sink) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at < len(text):
            if text[at] != ":":
                self.status = "failed"
                return at
            self.phase = "value"
            return at + 1
        return at

    def _value(self, text: str, at: int, sink: Sink) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            return at
        table, self.held = self._table, ""
        if table.name is not None and self.key in (table.name, table.id) and text[at] == '"':
            self.phase = "name" if self.key == table.name else "id"
            return at + 1
        self.scan = JsonScan(self.closers)
        if table.name is None or self.key in table.arguments:
            if text[at] == '"':
                self.phase = "text"
                return at + 1
            self.phase = "args" if text[at] in "{[" else "bare"
        else:
            self.phase = "skip"
        return at

    def _name(self, text: str, at: int, sink: Sink) -> int:
        at, name = self._string(text, at)
        if name is not None:
            self.phase = "member"
            if not name.strip():
                self.status = "failed"
            elif not self.named:
                self._name_known(name, sink)
        return at

    def _id(self, text: str, at: int, sink: Sink) -> int:
        at, value = self._string(text, at)
        if value is not None:
            self.id, self.phase = value, "member"
        return at

    def _name_known(self, name: str, sink: Sink) -> None:
        self.named = True
        sink.begin(name, id=self.id)
        sink.arguments(self.before)
        self.before = ""

    def _give(self, text: str, sink: Sink) -> None:
        text = self.marks.spell(text)
        if self.named:
            sink.arguments(text)
        else:
            self.before += text

    def _args(self, text: str, at: int, sink: Sink) -> int:
        end = self.scan.feed(text, at)
        self._give(text[at:end], sink)
        return self._after_value(end)

    def _after_value(self, at: int) -> int:
        if self.scan.broken:
            self.status = "broken" if self.named else "failed"
        elif self.scan.done:
            self.phase = "member"
        return at

    def _text(self, text: str, at: int, sink: Sink) -> int:
        """Arguments given as a JSON string: decoded once, if what comes out is an object."""
        at, value = self._string(text, at)
        if value is not None:
            self.phase = "member"
            inner = value.strip()
            self._give(
                inner if inner.startswith("{") else json.dumps(value, ensure_ascii=False) if inner else "{}", sink
            )
        return at

    def _bare(self, text: str, at: int, sink: Sink) -> int:
        end = self.scan.feed(text, at)
        self.held += text[at:end]
        if self.scan.done and not self.scan.broken:
            value = self.held.strip()
            self._give("{}" if value in ("null", "") else value, sink)
        return self._after_value(end)

    def _skip(self, text: str, at: int, sink: Sink) -> int:
        return self._after_value(self.scan.feed(text, at))

    def state(self) -> list[Any]:
        """For the snapshot."""
        return [
            self.phase, self.held, self.key, self.before, self.named, self.id, self.scan.stack, self.scan.where,
        ]  # fmt: skip

    def restore(self, state: list[Any]) -> None:
        """The inverse of `state`."""
        self.phase, self.held, self.key, self.before, self.named, self.id, stack, where = state
        if self.phase not in PHASES:
            raise ValueError("no such phase")
        self.scan = JsonScan(self.closers, state=(stack, where))
