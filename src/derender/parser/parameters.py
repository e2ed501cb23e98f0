"""Calls whose arguments are a list of parameters in tags: `<parameter=key>value</parameter>` and its kin."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from derender.formats.table import Typing
from derender.parser.coerce import STRING, ToolSchemas, coerce
from derender.parser.json_text import is_json, quoted
from derender.parser.marks import Marks
from derender.parser.reader import Reader
from derender.parser.schema import named_types
from derender.parser.shape import Count, Plain, Shape, checked, must
from derender.parser.sink import Sink
from derender.parser.structure import Ahead, Structure, Verdict
from derender.parser.typed import typed

_BLANKS = re.compile(r"\s*")
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_ENTITY = re.compile(r"&(?:(lt|gt|amp|quot|apos)|#([0-9]{1,7})|#x([0-9a-fA-F]{1,6}));")
_ENTITIES = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_LONGEST_ENTITY = 10
Phase = Literal["between", "start", "value", "raw"]
Kind = Literal["", "text", "typed", "json", "wrapped"]


class ParametersState(Shape, frozen=True):
    """The state of a `ParametersReader`."""

    phase: Phase
    tool: Plain
    count: Count
    seen: list[Plain]
    key: Plain
    kind: Kind
    type: str
    depth: Count
    raw: bool
    held: str
    sectioned: bool

    def __post_init__(self) -> None:
        must("seen", len(set(self.seen)) == len(self.seen))
        must("kind", bool(self.kind) or self.phase == "between")


class ParametersReader(Reader):
    """Reads parameters until a closer of the call.

    A value that can be nothing but a string is given out as it comes; any other waits for its closer and is typed by
    the tool's schema, or by what its opener says. `phase`: "between" parameters, at the "start" of a value, in a
    "value", or in a "raw" part of one (CDATA).
    """

    __slots__ = (
        "_schemas", "_structure", "_table", "count", "depth", "held", "key", "kind", "phase", "raw", "sectioned",
        "seen", "tool", "type",
    )  # fmt: skip

    def __init__(
        self,
        structure: Structure,
        marks: Marks,
        closers: tuple[str, ...],
        schemas: ToolSchemas,
        *,
        tool: str,
        sectioned: bool,
    ) -> None:
        super().__init__(marks, closers)
        self._structure = structure
        self._table = structure.table
        self._schemas = schemas
        self.tool = tool
        self.sectioned = sectioned
        self.phase: Phase = "between"
        self.count = 0
        self.seen: dict[str, None] = {}  # keys so far, of those that the tool has, in their order
        self.key = ""
        self.kind: Kind = ""  # "text": given out as it comes; "typed": by the schema; "json"; "wrapped": all arguments
        self.type = ""  # what the opener says of the type
        self.depth = 0  # openers in this value that are data and whose closers are to come
        self.raw = False  # whether the value has a raw part: what is around it is framing
        self.held: list[str] = []  # of a value: all that waits, or white space that may be framing

    def feed(self, text: str, at: int, sink: Sink) -> int:
        """Read on from `at`; the place up to which the text was taken."""
        while at < len(text) and self.status == "open":
            before = at, self.phase
            at = getattr(self, f"_{self.phase}")(text, at, sink)
            if (at, self.phase) == before:
                break
        return at

    # ------------------------------------------------------------------------------------------ around the values

    def _between(self, text: str, at: int, sink: Sink) -> int:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            return at
        structure = self._structure
        kind, to = structure.ahead(text, at, over=self.over)
        if kind in (Ahead.CALL_CLOSE, Ahead.SECTION_CLOSE, Ahead.OPENER) or (kind is Ahead.END and to > at):
            self._close(sink)
            return at
        if kind is Ahead.VALUE_CLOSE:
            return to
        found = structure.opener(text, at) if kind is Ahead.PARAMETER else None
        if found is not None:
            self._begin_value(found, sink)
            return found.end()
        if structure.becomes_opener(text, at) or kind in (Ahead.WAIT, Ahead.END):
            return at
        return structure.next_mark(text, at + 1)  # what is neither is passed over

    def _begin_value(self, found: re.Match[str], sink: Sink) -> None:
        groups = found.groupdict()
        key = self.marks.spell(groups["key"]).strip()
        if self._table.entities:
            key = _decoded(key)
        known = self._schemas.keys(self.tool)
        self.type = (groups.get("type") or "").strip()
        self.key, self.phase, self.depth, self.raw, self.held = key, "start", 0, False, []
        if self._table.typing is not Typing.SCHEMA and not self.type:
            self.kind = "text" if groups.get("string") == "true" else "json"
        else:
            self.kind = "text" if self._types() == STRING else "typed"
        if not self.count and key in self._table.wrappers and known and key not in known:
            self.kind = "wrapped"
            return
        if key in known and key not in self.seen:
            self.seen[key] = None
        self._begin_argument(sink)

    def _begin_argument(self, sink: Sink) -> None:
        sink.arguments((", " if self.count else "{") + quoted(self.key) + ": " + ('"' if self.kind == "text" else ""))
        self.count += 1

    def _types(self) -> frozenset[str]:
        return named_types(self.type) if self.type else self._schemas.types(self.tool, self.key)

    def _close(self, sink: Sink) -> None:
        sink.arguments("}" if self.count else "{}")
        self.status, self.ended = "done", True

    # ----------------------------------------------------------------------------------------------- in a value

    def _start(self, text: str, at: int, sink: Sink) -> int:
        """Pass over the framing before a value."""
        if self._table.newline:
            at += text[at] == "\n"
        elif self._table.trim:
            at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
            if at == len(text):
                return at
        self.phase = "value"
        return at

    def _value(self, text: str, at: int, sink: Sink) -> int:
        structure, begin = self._structure, at
        while True:
            found = structure.in_value.search(text, at)
            if found is None:
                end = max(at, len(text) - structure.held(text, at))
                self._give(text[begin:end], sink)
                return end
            if found[0] == _CDATA and self._table.xml:
                self._give(text[begin : found.start()], sink)
                self._begin_raw(sink)
                return found.end()
            verdict = self._ends(text, found)
            if verdict is not False:
                self._give(text[begin : found.start()], sink)
            if verdict is None:
                return found.start()
            if verdict:
                closed = structure.kind(found[0]) is Ahead.VALUE_CLOSE
                end = found.end() if closed else found.start()
                last = self.kind == "wrapped" and structure.ahead(text, end, over=self.over)[0] is not Ahead.PARAMETER
                self._end_value(sink, last=last)
                return end
            at = found.end()

    def _ends(self, text: str, found: re.Match[str]) -> Verdict:
        """Whether a tag in a value ends it. Counts those that are data."""
        structure, over = self._structure, self.over
        match structure.kind(found[0]):
            case Ahead.CALL_CLOSE:
                return structure.ends_call(text, found.end(), over=over)
            case Ahead.SECTION_CLOSE:
                return structure.ends_section(text, found.end(), over=over)
            case Ahead.VALUE_CLOSE:
                verdict = self._closes(text, found.end())
                if verdict is False and self.depth:
                    self.depth -= 1
                return verdict
            case _:
                verdict = self._plausible(text, found.start())
                if verdict is None or (verdict and self._table.unclosed):
                    return verdict
                self.depth += structure.opener(text, found.start()) is not None
                return False

    def _closes(self, text: str, at: int) -> Verdict:
        """Whether a value's closer that ends here is one."""
        if self._table.first:
            return True
        kind, to = self._structure.ahead(text, at, over=self.over)
        if self.depth and kind is Ahead.VALUE_CLOSE:
            return False
        if self.depth and kind is Ahead.PARAMETER:
            return self._plausible(text, to)
        return self._structure.after_close(text, at, over=self.over, sectioned=self.sectioned)

    def _plausible(self, text: str, at: int) -> Verdict:
        """Whether the opener that begins here is that of another parameter of the tool."""
        found = self._structure.opener(text, at)
        if found is None:
            return None if self._structure.becomes_opener(text, at) and not self.over else False
        known = self._schemas.keys(self.tool)
        key = self.marks.spell(found["key"]).strip()
        return not known or (key in known and key not in self.seen)

    def _begin_raw(self, sink: Sink) -> None:
        """A raw part begins: white space before it is framing, and what was said before stays."""
        before = "".join(self.held)
        self.held, self.raw, self.phase = [], True, "raw"
        if self.kind == "text":
            self._say(before.rstrip(), sink)
        elif before.strip():
            self.held = [before.strip()]

    def _raw(self, text: str, at: int, sink: Sink) -> int:
        found = text.find(_CDATA_END, at)
        end = found
        if found < 0:
            end = len(text) - next(n for n in (2, 1, 0) if text.endswith(_CDATA_END[:n]))
            end = max(end, at)
        part = self.marks.spell(text[at:end])
        if self.kind == "text":
            sink.arguments(quoted(part)[1:-1])
        elif part:
            self.held.append(part)
        if found < 0:
            return end
        self.phase = "start"
        return found + len(_CDATA_END)

    def _give(self, piece: str, sink: Sink) -> None:
        """A value's next characters: what may yet be framing is kept back."""
        if not piece:
            return
        if self.kind != "text" or (self._table.trim and not self._table.newline and piece.isspace()):
            self.held.append(piece)
            return
        piece = "".join(self.held) + piece
        keep = 0
        if self._table.newline:
            keep = int(piece.endswith("\n"))
        elif self._table.trim:
            keep = len(piece) - len(piece.rstrip())
        if self._table.xml:
            keep = max(keep, _unfinished_entity(piece))
        self.held = [piece[len(piece) - keep :]] if keep else []
        self._say(piece[: len(piece) - keep], sink)

    def _say(self, text: str, sink: Sink) -> None:
        text = self.marks.spell(text)
        sink.arguments(quoted(_decoded(text) if self._table.xml else text)[1:-1])

    def _end_value(self, sink: Sink, *, last: bool) -> None:
        held, self.held, self.phase = "".join(self.held), [], "between"
        if self.kind == "text":
            rest = held.removesuffix("\n") if self._table.newline else held.rstrip() if self._table.trim else held
            self._say(rest, sink)
            sink.arguments('"')
            return
        text = self._unframed(held)
        if self.kind == "wrapped":
            if last and self._unwrap(text, sink):
                return
            self.kind = "json" if self._table.typing is not Typing.SCHEMA else "typed"
            self._begin_argument(sink)
        if self.kind == "json":
            sink.arguments(typed(text, self._table.typing, self._types()))
        else:
            sink.arguments(coerce(text, self._types()))

    def _unframed(self, held: str) -> str:
        """A whole value as text."""
        text = self.marks.spell(held)
        if self._table.newline:
            text = text.removesuffix("\n")
        elif self._table.trim and not self.raw:
            text = text.strip()
        return _decoded(text) if self._table.xml and not self.raw else text

    def _unwrap(self, text: str, sink: Sink) -> bool:
        """Give a lone parameter's object as the call's arguments, if all its keys are parameters of the tool."""
        text = text.strip()
        if not is_json(text) or not text.startswith("{"):
            return False
        keys = json.loads(text).keys()
        if not keys <= self._schemas.keys(self.tool):
            return False
        sink.arguments(text)
        self.status, self.ended = "done", True
        return True

    def finish(self, text: str, at: int, sink: Sink) -> None:
        """The output ends inside the call: what was given of it stays. What waits may be part of a closer."""

    def state(self) -> list[Any]:
        """For the snapshot."""
        return [
            self.phase, self.tool, self.count, list(self.seen), self.key, self.kind, self.type, self.depth, self.raw,
            "".join(self.held), self.sectioned,
        ]  # fmt: skip

    def restore(self, state: list[Any]) -> None:
        """The inverse of `state`."""
        now = checked(ParametersState, state)
        must("raw", self._table.xml or not now.raw)
        self.phase, self.tool, self.count, self.seen = now.phase, now.tool, now.count, dict.fromkeys(now.seen)
        self.key, self.kind, self.type, self.depth = now.key, now.kind, now.type, now.depth
        self.raw, self.sectioned = now.raw, now.sectioned
        self.held = [now.held] if now.held else []


def _decoded(text: str) -> str:
    """Text with XML's entities as the characters that they stand for."""
    return _ENTITY.sub(_character, text) if "&" in text else text


def _character(found: re.Match[str]) -> str:
    if found[1]:
        return _ENTITIES[found[1]]
    code = int(found[2]) if found[2] else int(found[3], 16)
    return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else found[0]


def _unfinished_entity(text: str) -> int:
    """How many characters at a text's end may be the beginning of an entity."""
    start = text.rfind("&", max(0, len(text) - _LONGEST_ENTITY))
    return len(text) - start if start >= 0 and ";" not in text[start:] else 0
