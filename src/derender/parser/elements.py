"""Calls whose arguments are elements named by their keys, nested for objects and lists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from derender.formats.table import NestedElements
from derender.parser.coerce import STRING, ToolSchemas, coerce
from derender.parser.json_scan import enders
from derender.parser.json_text import quoted
from derender.parser.marks import Marks, Partial
from derender.parser.reader import Reader
from derender.parser.shape import Count, Plain, Shape, checked, must
from derender.parser.sink import Sink

_LONGEST_TAG = 260
_DEEPEST = 128
Phase = Literal["between", "value", "streamed"]


class ElementState(Shape, frozen=True):
    """An open element: its name, its text, and its children's names and values."""

    name: Plain
    text: str
    children: list[tuple[Plain, Plain]]


class NestedElementsState(Shape, frozen=True):
    """The state of a `NestedElementsReader`. `waiting`: nothing, or a name and its values."""

    phase: Phase
    tool: Plain
    count: Count
    stack: Annotated[list[ElementState], Meta(max_length=_DEEPEST)]
    waiting: Annotated[list[Plain | list[Plain]], Meta(max_length=2)]

    def __post_init__(self) -> None:
        size = len(self.stack)
        must("stack", size == 1 if self.phase == "streamed" else (size == 0) == (self.phase == "between"))
        must("waiting", [type(one) for one in self.waiting] in ([], [str, list]) and [] not in self.waiting)


class _Element(NamedTuple):
    """An open element: what was said in it beside its children, and those as JSON by name."""

    name: str
    text: list[str]
    children: list[tuple[str, str]]


class NestedElementsReader(Reader):
    """Reads elements until a closer of the call; only tags behind the mark count.

    An argument whose schema says that it is a string and nothing else is given out as it comes, whatever tags are in
    it. Any other waits until the next argument has another name, since elements of one name are a list. `phase`:
    "between" arguments, in a "value", or in a "streamed" one.
    """

    __slots__ = ("_enders", "_mark", "_partial", "_schemas", "_tag", "count", "phase", "stack", "tool", "waiting")

    def __init__(
        self, table: NestedElements, marks: Marks, closers: tuple[str, ...], schemas: ToolSchemas, *, tool: str
    ) -> None:
        super().__init__(marks, closers)
        self._enders = enders(closers)
        self._mark = marks.literal(table.mark)
        self._partial = Partial((self._mark,))
        self._tag = re.compile(re.escape(self._mark) + r"<(/?)([^<>]{1,256})>")
        self._schemas = schemas
        self.tool = tool
        self.phase: Phase = "between"
        self.count = 0
        self.stack: list[_Element] = []
        self.waiting: tuple[str, list[str]] | None = None  # an argument that may prove to be a list, as JSON

    def feed(self, text: str, at: int, sink: Sink) -> int:
        """Read on from `at`; the place up to which the text was taken."""
        while at < len(text) and self.status == "open":
            found = text.find(self._mark, at)
            end = found if found >= 0 else len(text) - self._partial.held(text, at)
            self._say(text[at:end], sink)
            at = end
            if found < 0:
                return at
            if self._enders.at(text, at):
                self._close(sink)
                return at
            tag = self._tag.match(text, at)
            if tag is None and not self.over and self._becomes_tag(text, at):
                return at
            if tag is None:
                at += len(self._mark)
                self._say(self._mark, sink)
            elif self._takes(tag, sink):
                at = tag.end()
            else:
                self._say(tag[0], sink)
                at = tag.end()
        return at

    def _becomes_tag(self, text: str, at: int) -> bool:
        """Whether what begins with the mark may still become a tag, or a closer of the call."""
        if self._enders.may(text, at):
            return True
        rest = text[at + len(self._mark) : at + _LONGEST_TAG]
        return len(rest) < _LONGEST_TAG - len(self._mark) and (not rest or (rest[0] == "<" and ">" not in rest))

    def _say(self, text: str, sink: Sink) -> None:
        if self.phase == "streamed":
            sink.arguments(quoted(self.marks.spell(text))[1:-1])
        elif self.stack and text:
            self.stack[-1].text.append(text)

    def _takes(self, tag: re.Match[str], sink: Sink) -> bool:
        """Whether a tag is one of the structure, not of a value."""
        name = self.marks.spell(tag[2]).strip()
        if self.phase == "streamed":
            if not tag[1] or name != self.stack[0].name:
                return False
            sink.arguments('"')
            self.stack, self.phase = [], "between"
            return True
        if not tag[1]:
            return self._opens(name, sink)
        if any(element.name == name for element in self.stack):
            while self._pop().name != name:
                pass
            self._settle()
        return True

    def _opens(self, name: str, sink: Sink) -> bool:
        if len(self.stack) >= _DEEPEST:
            return False
        if not self.stack:
            known = self._schemas.properties(self.tool).get(name) is not None
            streamed = known and self._schemas.types(self.tool, name) == STRING
            if self.waiting is not None and (streamed or self.waiting[0] != name):
                self._flush(sink)
            if streamed:
                sink.arguments(self._before(name) + '"')
            self.phase = "streamed" if streamed else "value"
            self.stack.append(_Element(name, [], []))
            return True
        self.stack.append(_Element(name, [], []))
        return True

    def _before(self, name: str) -> str:
        self.count += 1
        return ("{" if self.count == 1 else ", ") + quoted(name) + ": "

    def _pop(self) -> _Element:
        """Close the innermost element: its value goes to the one around it, or waits."""
        schema = self._schema()
        element = self.stack.pop()
        value = self._value(element, schema)
        if self.stack:
            self.stack[-1].children.append((element.name, value))
        elif self.waiting is not None:
            self.waiting[1].append(value)
        else:
            self.waiting = element.name, [value]
        return element

    def _settle(self) -> None:
        if not self.stack:
            self.phase = "between"

    def _flush(self, sink: Sink) -> None:
        if self.waiting is not None:
            name, values = self.waiting
            sink.arguments(self._before(name) + (values[0] if len(values) == 1 else f"[{', '.join(values)}]"))
            self.waiting = None

    def _close(self, sink: Sink) -> None:
        """The call is closed, and what is open in it."""
        if self.phase == "streamed":
            sink.arguments('"')
        else:
            while self.stack:
                self._pop()
            self._flush(sink)
        sink.arguments("}" if self.count else "{}")
        self.stack, self.phase = [], "between"
        self.status, self.ended = "done", True

    # ----------------------------------------------------------------------------------------------- the types

    def _schema(self) -> Any:
        """The schema of the innermost element."""
        tree = self._schemas.tree(self.tool)
        schema: Any = tree.root
        for n, element in enumerate(self.stack):
            types = tree.types(schema) if n else frozenset()
            items = "array" in types and ("object" not in types or element.name == "item")
            schema = tree.items(schema) if items else tree.member(schema, element.name)
        return schema

    def _value(self, element: _Element, schema: Any) -> str:
        """An element as JSON."""
        types = self._schemas.tree(self.tool).types(schema)
        text = self.marks.spell("".join(element.text))
        if not element.children:
            if not text.strip() and types & {"array", "object"} and "string" not in types:
                return "{}" if "object" in types else "[]"
            return coerce(text, types or STRING)
        beside = text.strip()
        if "array" in types and ("object" not in types or all(name == "item" for name, _ in element.children)):
            return f"[{', '.join([*(value for _, value in element.children), *([quoted(beside)] if beside else ())])}]"
        members: dict[str, list[str]] = {}
        for name, value in element.children:
            members.setdefault(name, []).append(value)
        if beside:
            members.setdefault("$text", []).append(quoted(beside))
        return f"{{{', '.join(_joined(members.items()))}}}"

    def finish(self, text: str, at: int, sink: Sink) -> None:
        """The output ends inside the call: what was held back of a string is given out."""
        if self.phase == "streamed":
            sink.arguments(quoted(self.marks.spell(text[at:]))[1:-1])

    def state(self) -> list[Any]:
        """For the snapshot."""
        stack = [[one.name, "".join(one.text), [list(child) for child in one.children]] for one in self.stack]
        waiting = [] if self.waiting is None else [self.waiting[0], self.waiting[1]]
        return [self.phase, self.tool, self.count, stack, waiting]

    def restore(self, state: list[Any]) -> None:
        """The inverse of `state`."""
        now = checked(NestedElementsState, state)
        self.phase, self.tool, self.count = now.phase, now.tool, now.count
        self.stack = [_Element(one.name, [one.text] if one.text else [], one.children) for one in now.stack]
        match now.waiting:
            case [str(name), list(values)]:
                self.waiting = name, values
            case _:
                self.waiting = None


def _joined(members: Iterable[tuple[str, list[str]]]) -> list[str]:
    return [
        f"{quoted(name)}: {values[0] if len(values) == 1 else '[' + ', '.join(values) + ']'}"
        for name, values in members
    ]
