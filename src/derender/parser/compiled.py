"""An output format made ready for one vocabulary: literals resolved to marker characters, searches compiled."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from derender.formats.table import (
    Calls,
    JsonMembers,
    JsonValue,
    KeyValues,
    NestedElements,
    OutputFormat,
    Parameters,
    PythonCall,
    Reopen,
    Tags,
)
from derender.parser.coerce import ToolSchemas
from derender.parser.marks import Marks, Partial
from derender.parser.members import MembersReader
from derender.parser.parameters import ParametersReader
from derender.parser.reader import Reader
from derender.parser.value import ValueReader
from derender.tokenizer import Tokenizer

_IN_PATTERN = re.compile("«(.*?)»", re.DOTALL)


class Search:
    """Finds the first of some literals in marked text, and what at its end may still become one."""

    __slots__ = ("kinds", "partial", "pattern")

    def __init__(self, kinds: Iterable[tuple[str, str]]) -> None:
        """`kinds`: literals, each with what it means; of several meanings the first counts."""
        self.kinds: dict[str, str] = {}
        for literal, kind in kinds:
            if literal:
                self.kinds.setdefault(literal, kind)
        ordered = sorted(self.kinds, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, ordered)) or "(?!)")
        self.partial = Partial(ordered)


class Grammar:
    """One way of writing calls."""

    def __init__(self, table: Calls, marks: Marks) -> None:
        self.table = table
        self.section_open = _literals(table.section, marks, "open")
        self.section_close = _literals(table.section, marks, "close")
        self.call_open = _literals(table.call, marks, "open")
        self.call_close = _literals(table.call, marks, "close")
        if table.call is None:
            body = table.body
            self.call_open = ("[",) if isinstance(body, JsonMembers) and body.array else ("{",)
        self.bare_body = table.call is None
        self.header = re.compile(marks.pattern(table.header), re.DOTALL) if table.header else None
        self.closers = (*self.call_close, *self.section_close)
        self.body_closers = self.closers if self.closers else ()
        body_close = (marks.literal(table.body.close),) if isinstance(table.body, Parameters) else ()
        self.strays = (*self.call_close, *body_close)
        """Closers that mean nothing outside a call."""
        self.in_section = Search(
            [
                *((literal, "call") for literal in self.call_open),
                *((literal, "close") for literal in self.section_close),
                *((literal, "drop") for literal in self.strays),
            ]
        )

    def reader(self, marks: Marks, schemas: ToolSchemas, *, tool: str) -> Reader:
        """A reader for the body of one call."""
        body = self.table.body
        if isinstance(body, JsonMembers):
            return MembersReader(body, marks, self.closers)
        if isinstance(body, JsonValue):
            return ValueReader(body, marks, self.closers)
        if isinstance(body, Parameters):
            return ParametersReader(body, marks, self.closers, schemas, tool=tool)
        raise NotImplementedError(type(body).__name__)


class CompiledFormat:
    """A format for a vocabulary. Made once per model; safe to share."""

    def __init__(self, table: OutputFormat, tokenizer: Tokenizer) -> None:
        self.table = table
        self.marks = Marks(tokenizer, _all_literals(table), end_of_turn=table.end_of_turn)
        self.grammars = [Grammar(calls, self.marks) for calls in table.calls]
        reasoning = table.reasoning
        opens = _literals(reasoning.tags if reasoning else None, self.marks, "open")
        closes = _literals(reasoning.tags if reasoning else None, self.marks, "close")
        calls = [
            (
                literal,
                f"call {n}" if not grammar.section_open or literal not in grammar.section_open else f"section {n}",
            )
            for n, grammar in enumerate(self.grammars)
            for literal in _openers(grammar)
        ]
        answer = [
            (literal, "drop") for side in ("open", "close") for literal in _literals(table.answer, self.marks, side)
        ]
        duplicates = reasoning.duplicates if reasoning else Reopen.LITERAL
        strays = [(c, "drop") for grammar in self.grammars for c in (*grammar.closers, *grammar.strays)]
        calls += strays
        in_content: list[tuple[str, str]] = [*calls, *answer]
        in_reasoning = [(literal, "end") for literal in closes]
        if reasoning is not None:
            if duplicates is Reopen.REOPEN:
                in_content += [(literal, "reason") for literal in opens]
            if duplicates is not Reopen.LITERAL:
                in_content += [(literal, "drop") for literal in closes]
                in_reasoning += [(literal, "drop") for literal in opens]
            if reasoning.ended_by_call:
                in_reasoning += [pair for pair in calls if pair not in strays]
        self.content = Search(in_content)
        self.content_without_calls = Search([pair for pair in in_content if pair not in calls])
        self.opening = Search([*in_content, *((literal, "reason") for literal in opens)])
        """In content before anything visible: the model may open reasoning by itself."""
        self.opening_without_calls = Search([pair for pair in self.opening.kinds.items() if pair not in calls])
        self.reasoning = Search(in_reasoning)


def _openers(grammar: Grammar) -> tuple[str, ...]:
    if grammar.section_open and not grammar.table.bare:
        return grammar.section_open
    return (*grammar.section_open, *grammar.call_open)


def _literals(pair: Tags | None, marks: Marks, side: str) -> tuple[str, ...]:
    return tuple(marks.literal(text) for text in getattr(pair, side)) if pair is not None else ()


def _all_literals(table: OutputFormat) -> Iterator[str]:
    """Every literal of a table, those in patterns too."""

    def walk(value: object) -> Iterator[str]:
        if isinstance(value, str):
            found = _IN_PATTERN.findall(value)
            yield from found or [value]
        elif isinstance(value, tuple):
            for one in value:
                yield from walk(one)
        elif isinstance(
            value, (Tags, Calls, JsonValue, Parameters, KeyValues, NestedElements, JsonMembers, PythonCall)
        ):
            for name in value.__struct_fields__:
                if name not in ("name", "ids", "structural_tag"):
                    yield from walk(getattr(value, name))

    for part in (table.reasoning.tags if table.reasoning else None, table.answer, *table.calls, table.turn_starts):
        yield from walk(part)
