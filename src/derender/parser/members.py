"""Calls that are JSON objects: `{"name": …, "arguments": {…}}`, one, or several in an array."""

from __future__ import annotations

import re
from typing import Any, Literal

from derender.formats.table import JsonMembers
from derender.parser.json_scan import JsonScan, JsonString, Rest, ScanPlace, enders
from derender.parser.marks import Marks
from derender.parser.reader import Reader
from derender.parser.shape import Count, Shape, checked, must
from derender.parser.sink import Sink

Phase = Literal[
    "open", "next", "member", "key", "colon", "value", "name", "id", "args", "text", "inner", "plain", "bare", "skip",
    "rest", "lost",
]  # fmt: skip
_BLANKS = re.compile(r"[ \t\r\n]*")
_SEPARATORS = re.compile(r"[ \t\r\n,;]*")
_BESIDE = frozenset(("type", "id"))
_LONGEST_KEY = 4096


class MembersState(Shape, frozen=True):
    """The state of a `MembersReader`."""

    phase: Phase
    held: str
    key: str
    before: str
    name: str
    named: bool
    given: bool
    listed: bool
    count: Count
    id: str | None
    stack: str
    where: ScanPlace
    string: str
    rest: str
    depth: Count = 0

    def __post_init__(self) -> None:
        if self.phase == "bare":
            must("held", "null".startswith(self.held))
        elif self.phase == "inner":
            must("held", not self.held.strip())
        must("before", not self.before or not self.named)
        must("name", not self.named or bool(self.name.strip()))
        must("listed", self.listed or self.phase != "next")
        JsonScan.check(self.stack, self.where)
        JsonString.check(self.string)
        Rest.check(self.rest)


class MembersReader(Reader):
    """Reads one object, or an array of them.

    `phase` is what comes next: "open", "next" (element of the array), "member", "key", "colon", "value", "name", "id",
    "args", "text" (arguments in a string, of which only blanks were seen; "inner" where it holds an object and is
    decoded, "plain" where not), "bare" (arguments that may be `null`), "skip" (a member that is none of these),
    "rest" (broken arguments: all up to the call's closer), "lost" (broken elsewhere: nothing up to the closer).

    `unmarked`: no marker announces the call, so that an object may as well be an answer. It is a call only when its
    arguments begin behind its name and it has no foreign members before.
    """

    __slots__ = (
        "_enders", "_table", "_unmarked", "before", "count", "depth", "given", "held", "key", "listed", "name", "named",
        "phase", "rest", "scan", "string",
    )  # fmt: skip
    marked = False

    def __init__(self, table: JsonMembers, marks: Marks, closers: tuple[str, ...], *, unmarked: bool = False) -> None:
        super().__init__(marks, closers)
        self._table = table
        self._enders = enders(closers)
        self._unmarked = unmarked
        self.phase: Phase = "open"
        self.held = ""  # a key, name, id or scalar that is not whole yet
        self.key = ""
        self.before = ""  # arguments that came before the name
        self.name = ""
        self.named = False  # whether the call has begun
        self.given = False  # whether its arguments were met
        self.listed = False  # whether an array was opened
        self.count = 0  # of calls in it
        self.depth = 0  # how many of the members that the name and the arguments stand within are open
        self.scan = JsonScan(closers)
        self.string = JsonString()
        self.rest = Rest(closers)

    def feed(self, text: str, at: int, sink: Sink) -> int:
        """Read on from `at`; the place up to which the text was taken."""
        size = len(text)
        while at < size and self.status == "open" and not self.ended:
            before = at, self.phase
            at = getattr(self, f"_{self.phase}")(text, at, sink)
            if (at, self.phase) == before:
                break
        return at

    def _open(self, text: str, at: int, sink: Sink) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at < len(text):
            if text[at] == "[" and self._table.array:
                self.phase, self.listed = "next", True
                return at + 1
            return self._object(text, at)
        return at

    def _object(self, text: str, at: int) -> int:
        if text[at] != "{":
            self.status = "failed"
            return at
        self.phase, self.named, self.given, self.before, self.name, self.id = "member", False, False, "", "", None
        self.depth = 0
        return at + 1

    def _next(self, text: str, at: int, sink: Sink) -> int:
        at = _SEPARATORS.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text) or self._enders.may(text, at):
            return at
        if text[at] == "]":
            self.status = "done" if self.count or not self._unmarked else "failed"
            return at + 1
        if self._enders.at(text, at):
            self.status = "done"
            return at
        return self._object(text, at)

    def _member(self, text: str, at: int, sink: Sink) -> int:
        at = _SEPARATORS.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            return at
        if text[at] == '"':
            self._begin_string("key")
            return at + 1
        if text[at] == "}":
            if self.depth:
                self.depth -= 1
            elif not self.named:
                self.status = "failed"
            else:
                self._end()
            return at + 1
        if self.named and self.given:  # its end is missing
            if self._enders.may(text, at):
                return at
            self._end()
        else:
            self._break()
        return at

    def _end(self) -> None:
        self.ended = True
        self.count += 1
        if self.listed:
            self.phase = "next"
        else:
            self.status = "done"

    def _break(self) -> None:
        """It does not go on as JSON: no call if there is no name yet, else one whose arguments never came."""
        if self.named:
            self.phase = "lost"
        else:
            self.status = "failed"

    def _begin_string(self, phase: Phase) -> None:
        self.phase, self.held, self.string = phase, "", JsonString()

    def _string(self, text: str, at: int) -> tuple[int, str | None]:
        """Collect a string behind its opening quote; its value once it is whole."""
        at, piece = self.string.feed(text, at)
        self.held += self.marks.spell(piece)
        if len(self.held) > _LONGEST_KEY:
            self._break()
        return at, self.held if self.string.done else None

    def _key(self, text: str, at: int, sink: Sink) -> int:
        at, key = self._string(text, at)
        if key is not None and self.status == "open" and self.phase == "key":
            self.key, self.phase = key, "colon"
            if self._table.name is None and not self.name:
                self._name_known(key, sink)
        return at

    def _colon(self, text: str, at: int, sink: Sink) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at < len(text):
            if text[at] != ":":
                self._break()
                return at
            self.phase = "value"
            return at + 1
        return at

    def _value(self, text: str, at: int, sink: Sink) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            return at
        table, self.held = self._table, ""
        self.scan = JsonScan(self.closers)
        inner = self.depth == len(table.within)
        if not inner and self.key == table.within[self.depth] and text[at] == "{":
            self.depth, self.phase = self.depth + 1, "member"
            return at + 1
        if inner and table.name is not None and self.key == table.name and text[at] == '"' and not self.name:
            self._begin_string("name")
            return at + 1
        if table.id is not None and self.key == table.id and text[at] == '"' and self.id is None:
            self._begin_string("id")
            return at + 1
        named = self.key in table.arguments if table.name is not None else self.key == self.name
        if inner and named and not self.given:
            if self._enders.may(text, at):
                return at
            self.given = True
            if self._unmarked and self.name:
                self._start(sink)
            if text[at] == '"':
                self._begin_string("text")
                return at + 1
            self.phase = "args" if text[at] in "{[" else "bare"
        elif self._unmarked and not self.named and self.key not in _BESIDE:
            self.status = "failed"
        else:
            self.phase = "skip"
        return at

    def _name(self, text: str, at: int, sink: Sink) -> int:
        at, name = self._string(text, at)
        if name is not None and self.status == "open" and self.phase == "name":
            self.phase = "member"
            self._name_known(name, sink)
        return at

    def _id(self, text: str, at: int, sink: Sink) -> int:
        at, value = self._string(text, at)
        if value is not None and self.status == "open" and self.phase == "id":
            self.id, self.phase = value, "member"
        return at

    def _name_known(self, name: str, sink: Sink) -> None:
        if not name.strip():
            self.status = "failed"
            return
        self.name = name
        if not self._unmarked or self.given:
            self._start(sink)

    def _start(self, sink: Sink) -> None:
        """The call begins."""
        self.named = True
        sink.begin(self.name, id=self.id, silent=self.name in self._table.no_call)
        sink.arguments(self.before)
        self.before = ""

    def _hold(self, text: str) -> None:
        """Hold back more, in time that is linear in it."""
        held, self.held = self.held, ""
        held += text  # in place: nothing else has it
        self.held = held

    def _give(self, text: str, sink: Sink) -> None:
        text = self.marks.spell(text)
        if self.named:
            sink.arguments(text)
        else:
            before, self.before = self.before, ""
            before += text  # in place: nothing else has it
            self.before = before

    def _args(self, text: str, at: int, sink: Sink) -> int:
        end = self.scan.feed(text, at)
        self._give(text[at:end], sink)
        return self._after_value(end)

    def _after_value(self, at: int) -> int:
        if self.scan.broken:
            if self.named and self.phase == "skip":
                self.phase = "lost"
            elif self.named:
                self.phase = "rest"
            else:
                self.status = "failed"
        elif self.scan.done:
            self.phase = "member"
        return at

    def _rest(self, text: str, at: int, sink: Sink) -> int:
        at, piece, over = self.rest.feed(text, at)
        self._give(piece, sink)
        if over:
            self.status, self.ended = "done", True
        return at

    def _lost(self, text: str, at: int, sink: Sink) -> int:
        found = self._enders.pattern.search(text, at)
        if found is None:
            return len(text) - self._enders.partial.held(text, at)
        self.status, self.ended = "done", True
        return found.start()

    def _text(self, text: str, at: int, sink: Sink) -> int:
        """Arguments given as a JSON string: decoded once, if what comes out is an object."""
        end, said = self.string.feed(text, at)
        self._hold(text[at:end])
        if said.strip():
            if said.lstrip().startswith("{"):
                self.phase, self.held = "inner", ""
                self._inner_said(said.lstrip(), sink)
            else:
                self.phase = "plain"
                self._give('"' + self.held, sink)
                self.held = ""
        elif self.string.done:
            self._give("{}", sink)
        if self.string.done:
            self.phase = "member"
        return end

    def _inner(self, text: str, at: int, sink: Sink) -> int:
        at, said = self.string.feed(text, at)
        self._inner_said(said, sink)
        if self.string.done:
            self.phase = "member"
        return at

    def _inner_said(self, said: str, sink: Sink) -> None:
        """Give out decoded arguments, but for white space that may be their last."""
        if not (self.string.done or said.strip()):
            self._hold(said)
            return
        said = self.held + said
        body = said.rstrip()
        self.held = "" if self.string.done else said[len(body) :]
        self._give(body, sink)

    def _plain(self, text: str, at: int, sink: Sink) -> int:
        end, _ = self.string.feed(text, at)
        self._give(text[at:end], sink)
        if self.string.done:
            self.phase = "member"
        return end

    def _bare(self, text: str, at: int, sink: Sink) -> int:
        end = self.scan.feed(text, at)
        self.held += text[at:end]
        if not "null".startswith(self.held):
            self.phase = "args"
            self._give(self.held, sink)
        elif self.scan.done:
            self._give("{}" if self.held in ("null", "") else self.held, sink)
        return self._after_value(end)

    def _skip(self, text: str, at: int, sink: Sink) -> int:
        return self._after_value(self.scan.feed(text, at))

    def finish(self, text: str, at: int, sink: Sink) -> None:
        """The output ends here: what might have become a closer belongs to arguments that were begun."""
        if self.phase in ("args", "rest") and text[at:].strip():
            self._give(self.rest.held + text[at:], sink)

    def state(self) -> list[Any]:
        """For the snapshot."""
        return [
            self.phase, self.held, self.key, self.before, self.name, self.named, self.given, self.listed, self.count,
            self.id, self.scan.stack, self.scan.where, self.string.held, self.rest.held,
            *([self.depth] if self.depth else ()),
        ]  # fmt: skip

    def restore(self, state: list[Any]) -> None:
        """The inverse of `state`."""
        now = checked(MembersState, state)
        must("listed", self._table.array or not now.listed)
        must("depth", now.depth <= len(self._table.within))
        self.phase, self.held, self.key, self.before, self.name = now.phase, now.held, now.key, now.before, now.name
        self.named, self.given, self.listed, self.count = now.named, now.given, now.listed, now.count
        self.id, self.depth = now.id, now.depth
        self.scan = JsonScan(self.closers, state=(now.stack, now.where))
        self.string = JsonString(now.string)
        self.rest = Rest(self.closers, now.rest)
