"""Calls that are written as Python: `[name(key=literal, …), …]`, in brackets or one a line."""

from __future__ import annotations

import re
from typing import Any, Literal

from derender.formats.table import PythonCall
from derender.parser.json_scan import enders
from derender.parser.json_text import quoted
from derender.parser.marks import Marks
from derender.parser.python_text import escape, literal
from derender.parser.reader import Reader
from derender.parser.shape import Shape, checked, must
from derender.parser.sink import Sink

Phase = Literal[
    "open", "next", "name", "parenthesis", "argument", "key", "equals", "value", "quote", "string", "scalar", "colon",
    "item", "entry", "after",
]  # fmt: skip
_BLANKS = re.compile(r"\s*")
_SEPARATORS = re.compile(r"[\s,;]*")
_WORD = re.compile(r"[\w.\-]*")
_STOPS = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}
_CLOSERS = {"[": "]", "(": ")", "{": "}"}
_LONGEST_WORD = 256
_LONGEST_SCALAR = 4096
_DEEPEST = 128
_QUOTE = re.compile(r"""r?(?:"|'|\"{3}|'{3})""")


class PythonCallState(Shape, frozen=True):
    """The state of a `PythonCallReader`."""

    phase: Phase
    name: str
    key: str
    held: str
    stack: str
    quote: str
    any: bool
    begun: bool
    fresh: bool
    entry: bool

    def __post_init__(self) -> None:
        phase, held, top = self.phase, self.held, self.stack[-1:]
        must("name", _WORD.fullmatch(self.name) is not None)
        must("key", _WORD.fullmatch(self.key) is not None)
        if phase in ("name", "parenthesis", "key", "equals"):
            must("held", _WORD.fullmatch(held) is not None)
        must("stack", len(self.stack) <= _DEEPEST and not self.stack.strip("[({"))
        if phase in ("item", "entry"):
            must("stack", bool(top) and (phase == "entry") == (top == "{"))
        must("entry", not self.entry or top == "{")
        if phase == "quote":
            must("quote", self.quote in ("", "r"))
        elif phase == "string":
            must("quote", _QUOTE.fullmatch(self.quote) is not None)


class PythonCallReader(Reader):
    """Reads a list of calls; arguments come out as JSON, strings as they come, other scalars when they are whole.

    A call begins with its first value: until then, what is no call with keywords alone is refused. An expression that
    comes later breaks the call off. `phase`: what comes next. `begun`: whether the call in work was announced.
    `stack`: the open brackets of its value. `fresh`: nothing stands in the innermost bracket yet. `entry`: the scalar
    or string in work is a dictionary's key. `quote`: what ends the string, `r` before it where it is a raw one.
    """

    __slots__ = (
        "_enders", "_out", "_scalar_ends", "_table", "any", "begun", "entry", "fresh", "held", "key", "name", "phase",
        "quote", "stack",
    )  # fmt: skip

    def __init__(self, table: PythonCall, marks: Marks, closers: tuple[str, ...]) -> None:
        super().__init__(marks, closers)
        self._table = table
        self._enders = enders(closers)
        ends = "".join(f"|{re.escape(text)}" for text in sorted(closers, key=len, reverse=True))
        self._scalar_ends = re.compile(r"[,()\[\]{}\"':=]" + ends)
        self._out: list[str] = []
        self.phase: Phase = "open"
        self.name = ""
        self.key = ""
        self.held = ""  # a word or scalar that is not whole yet
        self.stack = ""
        self.quote = ""
        self.any = self.begun = self.fresh = self.entry = False

    def feed(self, text: str, at: int, sink: Sink) -> int:
        """Read on from `at`; the place up to which the text was taken."""
        while at < len(text) and self.status == "open" and not self.ended:
            before = at, self.phase
            at = getattr(self, f"_{self.phase}")(text, at, sink)
            if (at, self.phase) == before:
                break
        self._give(sink)
        return at

    def _give(self, sink: Sink) -> None:
        sink.arguments("".join(self._out))
        self._out = []

    def _refuse(self, at: int) -> int:
        """This is no call, or no longer one."""
        self.status = "broken" if self.begun else "failed"
        return at

    # ----------------------------------------------------------------------------------------------- the list

    def _open(self, text: str, at: int, sink: Sink) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at < len(text):
            if text[at] == "[":
                at += 1
            elif self._table.brackets and not self.closers:
                return self._refuse(at)
            self.phase = "next"
        return at

    def _next(self, text: str, at: int, sink: Sink) -> int:
        at = _SEPARATORS.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text) or self._enders.may(text, at):
            return at
        if self._enders.at(text, at):
            self.status = "done"
        elif text[at] == "]":
            if not self.any and not self.closers:
                return self._refuse(at)
            at += 1
            if self._table.brackets:
                self.status = "done"
        else:
            self.phase, self.held = "name", ""
        return at

    def _word(self, text: str, at: int, then: Phase) -> int:
        """A name or key."""
        end = _WORD.match(text, at).end()  # type: ignore[union-attr]
        self.held += text[at:end]
        if not self.held or self.held[0] in "0123456789.-" or len(self.held) > _LONGEST_WORD:
            return self._refuse(end)
        if end < len(text):
            self.phase = then
        return end

    def _name(self, text: str, at: int, sink: Sink) -> int:
        return self._word(text, at, "parenthesis")

    def _parenthesis(self, text: str, at: int, sink: Sink) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            return at
        if text[at] != "(":
            return self._refuse(at)
        self.name, self.held, self.stack, self.fresh = self.held, "", "", True
        self.phase = "argument"
        return at + 1

    # ------------------------------------------------------------------------------------------- the arguments

    def _argument(self, text: str, at: int, sink: Sink) -> int:
        at = _SEPARATORS.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text) or self._enders.may(text, at):
            return at
        if text[at] in ")]" or self._enders.at(text, at):
            return self._end(text, at, sink)
        self.phase, self.held = "key", ""
        return at

    def _key(self, text: str, at: int, sink: Sink) -> int:
        return self._word(text, at, "equals")

    def _equals(self, text: str, at: int, sink: Sink) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            return at
        if text[at] != "=":
            return self._refuse(at)
        self.key, self.held, self.entry = self.held, "", False
        self.phase = "value"
        return at + 1

    def _begin(self, sink: Sink) -> None:
        if not self.begun:
            self.begun = self.any = True
            sink.begin(self.name)
            self._out.append("{")

    def _begin_value(self, sink: Sink) -> None:
        """A value begins for certain: give out what stands before it."""
        self._begin(sink)
        if not self.entry and not self.stack:
            self._out.append(("" if self.fresh else ", ") + quoted(self.key) + ": ")
        elif (self.entry or self.stack[-1] != "{") and not self.fresh:
            self._out.append(", ")
        self.fresh = False

    def _end(self, text: str, at: int, sink: Sink) -> int:
        """The call is closed, by its parenthesis, or by what closes more than that."""
        self._begin(sink)
        for bracket in reversed(self.stack):
            self._out.append("}" if bracket == "{" else "]")
        self._out.append("}")
        self._give(sink)
        self.stack, self.held, self.begun, self.ended, self.phase = "", "", False, True, "next"
        return at + (text[at] == ")")

    # ---------------------------------------------------------------------------------------------- the values

    def _value(self, text: str, at: int, sink: Sink) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text) or self._enders.may(text, at):
            return at
        character = text[at]
        if character in "\"'":
            self.phase, self.quote = "quote", ""
        elif character in _CLOSERS and not self.entry:
            if len(self.stack) >= _DEEPEST:
                return self._refuse(at)
            self._begin_value(sink)
            self.stack += character
            self.fresh = True
            self.phase = "entry" if character == "{" else "item"
            self._out.append("{" if character == "{" else "[")
            return at + 1
        else:
            self.phase, self.held = "scalar", ""
        return at

    def _quote(self, text: str, at: int, sink: Sink) -> int:
        """One quote, or three."""
        mark = text[at]
        if mark not in _STOPS:
            return self._refuse(at)
        start = text[at : at + 3]
        if len(start) < 3 and start == mark * len(start):
            return at
        mark = mark * 3 if start == mark * 3 else mark
        self._begin_value(sink)
        self._out.append('"')
        self.quote += mark
        self.phase = "string"
        return at + len(mark)

    def _string(self, text: str, at: int, sink: Sink) -> int:
        mark, raw = self.quote.lstrip("r"), self.quote[0] == "r"
        stops = _STOPS[mark[0]]
        while True:
            found = stops.search(text, at)
            end = found.start() if found is not None else len(text)
            self._out.append(quoted(self.marks.spell(text[at:end]))[1:-1])
            at = end
            if found is None:
                return at
            if found[0] == "\\":
                if raw:
                    if at + 1 == len(text):
                        return at
                    self._out.append(quoted(self.marks.spell(text[at : at + 2]))[1:-1])
                    at += 2
                    continue
                escaped = escape(text, at)
                if escaped is None:
                    return at
                piece, at = escaped
                self._out.append(piece)
            elif text.startswith(mark, at):
                self._out.append('"')
                self.phase = "colon" if self.entry else "after"
                return at + len(mark)
            elif mark.startswith(text[at : at + 3]):
                return at
            else:
                self._out.append(quoted(mark[0])[1:-1])
                at += 1

    def _scalar(self, text: str, at: int, sink: Sink) -> int:
        found = self._scalar_ends.search(text, at)
        end = found.start() if found is not None else len(text) - self._enders.partial.held(text, at)
        self.held += text[at:end]
        if len(self.held) > _LONGEST_SCALAR:
            return self._refuse(end)
        if found is None:
            return end
        word = self.marks.spell(self.held).strip()
        if found[0] in "\"'":
            if word not in ("r", "R", "u", "U"):
                return self._refuse(end)
            self.phase, self.quote, self.held = "quote", "r" if word in "rR" else "", ""
            return end
        value = literal(word)
        if found[0] in "([{=" or (found[0] == ":") != self.entry or (value is None and not (self.entry and word)):
            return self._refuse(end)
        self._begin_value(sink)
        self._out.append(quoted(value or word) if self.entry else value or "")
        self.held = ""
        self.phase = "colon" if self.entry else "after"
        return end

    def _after(self, text: str, at: int, sink: Sink) -> int:
        """Behind a value: a comma, or what closes the bracket, or more than that."""
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text) or self._enders.may(text, at):
            return at
        if self._enders.at(text, at):
            return self._end(text, at, sink)
        if text[at] == ",":
            self.phase = "item" if self.stack else "argument"
            if self.stack and self.stack[-1] == "{":
                self.phase = "entry"
            return at + 1
        return self._closed(text, at, sink)

    def _closed(self, text: str, at: int, sink: Sink) -> int:
        if not self.stack:
            return self._end(text, at, sink) if text[at] in ")]" else self._refuse(at)
        if text[at] != _CLOSERS[self.stack[-1]]:
            return self._refuse(at)
        self._out.append("}" if self.stack[-1] == "{" else "]")
        self.stack, self.fresh, self.entry = self.stack[:-1], False, False
        self.phase = "after"
        return at + 1

    def _item(self, text: str, at: int, sink: Sink) -> int:
        """In a list or tuple: a value, or its end."""
        return self._member(text, at, sink, entry=False)

    def _entry(self, text: str, at: int, sink: Sink) -> int:
        """In a dictionary: a key, or its end."""
        return self._member(text, at, sink, entry=True)

    def _member(self, text: str, at: int, sink: Sink, *, entry: bool) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text) or self._enders.may(text, at):
            return at
        if self._enders.at(text, at):
            return self._end(text, at, sink)
        if text[at] in "])}":
            return self._closed(text, at, sink)
        self.phase, self.entry = "value", entry
        return at

    def _colon(self, text: str, at: int, sink: Sink) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            return at
        if text[at] != ":":
            return self._refuse(at)
        self._out.append(": ")
        self.phase, self.entry = "value", False
        return at + 1

    def state(self) -> list[Any]:
        """For the snapshot."""
        return [
            self.phase, self.name, self.key, self.held, self.stack, self.quote, self.any, self.begun, self.fresh,
            self.entry,
        ]  # fmt: skip

    def restore(self, state: list[Any]) -> None:
        """The inverse of `state`."""
        now = checked(PythonCallState, state)
        self.phase, self.name, self.key, self.held, self.stack = now.phase, now.name, now.key, now.held, now.stack
        self.quote, self.any, self.begun, self.fresh, self.entry = now.quote, now.any, now.begun, now.fresh, now.entry
