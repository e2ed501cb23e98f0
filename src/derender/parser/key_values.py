"""Calls whose arguments are `{key: value, …}` with bare keys, strings between fences, and bare scalars."""

from __future__ import annotations

import re
from typing import Any, Literal

from derender.formats.table import KeyValues
from derender.parser.json_text import is_json, quoted
from derender.parser.marks import Marks, Partial
from derender.parser.reader import Reader
from derender.parser.shape import Shape, checked, must
from derender.parser.sink import Sink

Phase = Literal["open", "key", "name", "fenced", "colon", "value", "item", "string", "bare"]
_BLANKS = re.compile(r"\s*")
_SEPARATORS = re.compile(r"[\s,]*")
_STACK = re.compile(r"(?:[{(][{\[]*)?")
_WORDS = {"true": "true", "True": "true", "false": "false", "False": "false", "null": "null", "None": "null"}
_PAIRS = {"{": "}", "[": "]", "(": "}"}
_DEEPEST = 256


class KeyValuesState(Shape, frozen=True):
    """The state of a `KeyValuesReader`."""

    stack: str
    phase: Phase
    fresh: bool
    held: str

    def __post_init__(self) -> None:
        must("stack", len(self.stack) <= _DEEPEST and _STACK.fullmatch(self.stack) is not None)
        must("phase", (self.phase == "open") == (not self.stack))
        if self.phase in ("item", "key", "name", "fenced", "colon"):
            must("phase", (self.phase == "item") == (self.stack[-1] == "["))


class KeyValuesReader(Reader):
    """Reads one object, nested objects and lists in it, as JSON.

    A string is given out as it comes, a bare scalar once it is whole: a number, true, false or null is itself, anything
    else a string. A closer of the call closes what is open. `stack`: the open brackets. `phase`: "open" before the
    object; before a "key", in its bare "name" or "fenced", before its "colon"; before a "value", before an "item" of a
    list, in a "string" or "bare" scalar. `fresh`: nothing stands in the innermost bracket yet.
    """

    __slots__ = ("_fence", "_fences", "_out", "_stops", "fresh", "held", "partial", "phase", "stack")

    def __init__(self, table: KeyValues, marks: Marks, closers: tuple[str, ...]) -> None:
        super().__init__(marks, closers)
        self._fence = marks.literal(table.fence)
        self._fences = Partial((self._fence,))
        self.partial = Partial((self._fence, *closers))
        ends = "".join(f"|{re.escape(text)}" for text in sorted((self._fence, *closers), key=len, reverse=True))
        self._stops = {
            "name": re.compile(r"[:,{}\[\]]" + ends),
            "bare": re.compile(r"[,}\]]" + ends),
            "name(": re.compile(r"[:,{}\[\])]" + ends),
            "bare(": re.compile(r"[,}\])]" + ends),
        }
        self._out: list[str] = []
        self.stack = ""
        self.phase: Phase = "open"
        self.fresh = True
        self.held: list[str] = []  # a key or bare scalar that is not whole yet

    def feed(self, text: str, at: int, sink: Sink) -> int:
        """Read on from `at`; the place up to which the text was taken."""
        while at < len(text) and self.status == "open":
            before = at, self.phase
            at = getattr(self, f"_{self.phase}")(text, at)
            if (at, self.phase) == before:
                break
        sink.arguments("".join(self._out))
        self._out = []
        return at

    def _unsure(self, text: str, at: int) -> bool:
        """Whether what is left may still become a fence or closer."""
        return at == len(text) or self.partial.held(text, at) == len(text) - at

    def _open(self, text: str, at: int) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if self._unsure(text, at):
            return at
        if text[at] in "{(":
            self._push(text[at])
            return at + 1
        if self.closes(text, at):
            return self._close(at)
        self.status = "broken"
        return at

    def _push(self, bracket: str) -> None:
        self.stack += bracket
        self.fresh = True
        self.phase = "item" if bracket == "[" else "key"
        self._out.append("[" if bracket == "[" else "{")

    def _close(self, at: int, down_to: int = 0) -> int:
        """Close the open brackets down to a depth."""
        for bracket in reversed(self.stack[down_to:]):
            self._out.append(_PAIRS[bracket])
        self.stack = self.stack[:down_to]
        if not self.stack:
            self.status, self.ended, self.phase = "done", True, "open"
        else:
            self._next()
        return at

    def _next(self) -> None:
        """A value is whole."""
        self.fresh, self.held = False, []
        self.phase = "item" if self.stack[-1] == "[" else "key"

    def _bracket(self, text: str, at: int) -> int | None:
        """The place behind a closing bracket, all closed that it closes; None where there is none."""
        character = text[at]
        if character not in "}])" or (character == ")" and self.stack[0] != "("):
            return None
        opener = {"}": "{", "]": "[", ")": "("}[character]
        depth = self.stack.rfind(opener)
        if depth < 0 and character == "}":
            depth = self.stack.find("(")
        return at + 1 if depth < 0 else self._close(at + 1, depth)

    def _ends(self, text: str, at: int) -> int | None:
        """Between values: what closes brackets, or the call."""
        if self.closes(text, at):
            return self._close(at)
        return self._bracket(text, at)

    def _key(self, text: str, at: int) -> int:
        at = _SEPARATORS.match(text, at).end()  # type: ignore[union-attr]
        if self._unsure(text, at):
            return at
        ended = self._ends(text, at)
        if ended is not None:
            return ended
        if text.startswith(self._fence, at):
            self.phase = "fenced"
            return at + len(self._fence)
        self.phase = "name"
        return at

    def _name(self, text: str, at: int) -> int:
        stop = self._collect(text, at, "name")
        if stop is None:
            return len(text) - self.partial.held(text, at)
        if text[stop] in ":{[":
            key = "".join(self.held).strip()
            self._key_known(key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key)
            return stop + (text[stop] == ":")
        self.phase, self.held = "key", []  # a word that is no key of anything
        return stop

    def _collect(self, text: str, at: int, what: str) -> int | None:
        """Keep text up to what ends a bare key or value; the place of that."""
        found = self._stops[what + "(" if self.stack[0] == "(" else what].search(text, at)
        end = found.start() if found is not None else len(text) - self.partial.held(text, at)
        self.held.append(text[at:end])
        return end if found is not None else None

    def _fenced(self, text: str, at: int) -> int:
        found = text.find(self._fence, at)
        end = found if found >= 0 else len(text) - self._fences.held(text, at)
        self.held.append(text[at:end])
        if found < 0:
            return end
        self.phase = "colon"
        return end + len(self._fence)

    def _colon(self, text: str, at: int) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at < len(text):
            self._key_known("".join(self.held))
            at += text[at] == ":"
        return at

    def _key_known(self, key: str) -> None:
        self._out.append(("" if self.fresh else ", ") + quoted(self.marks.spell(key)) + ": ")
        self.phase, self.held, self.fresh = "value", [], False

    def _item(self, text: str, at: int) -> int:
        at = _SEPARATORS.match(text, at).end()  # type: ignore[union-attr]
        if self._unsure(text, at):
            return at
        ended = self._ends(text, at)
        if ended is not None:
            return ended
        if not self.fresh:
            self._out.append(", ")
        self.phase = "value"
        return at

    def _value(self, text: str, at: int) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if self._unsure(text, at):
            return at
        if text.startswith(self._fence, at):
            self.phase = "string"
            self._out.append('"')
            return at + len(self._fence)
        if text[at] in "{[":
            if len(self.stack) >= _DEEPEST:
                self.status = "broken"
                return at
            self._push(text[at])
            return at + 1
        self.phase = "bare"
        return at

    def _string(self, text: str, at: int) -> int:
        found = text.find(self._fence, at)
        end = found if found >= 0 else len(text) - self._fences.held(text, at)
        self._out.append(quoted(self.marks.spell(text[at:end]))[1:-1])
        if found < 0:
            return end
        self._out.append('"')
        self._next()
        return end + len(self._fence)

    def _bare(self, text: str, at: int) -> int:
        stop = self._collect(text, at, "bare")
        if stop is None:
            return len(text) - self.partial.held(text, at)
        self._out.append(_scalar(self.marks.spell("".join(self.held)).strip()))
        self._next()
        return stop

    def finish(self, text: str, at: int, sink: Sink) -> None:
        """The output ends inside the call: what was held back of a string is given out."""
        if self.phase == "string":
            sink.arguments(quoted(self.marks.spell(text[at:]))[1:-1])

    def state(self) -> list[Any]:
        """For the snapshot."""
        return [self.stack, self.phase, self.fresh, "".join(self.held)]

    def restore(self, state: list[Any]) -> None:
        """The inverse of `state`."""
        now = checked(KeyValuesState, state)
        self.stack, self.phase, self.fresh = now.stack, now.phase, now.fresh
        self.held = [now.held] if now.held else []


def _scalar(text: str) -> str:
    """A bare value as JSON."""
    word = _WORDS.get(text)
    if word is not None:
        return word
    return text if is_json(text) else quoted(text)
