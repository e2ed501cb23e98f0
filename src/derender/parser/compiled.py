"""An output format made ready for one vocabulary: literals resolved to marker characters, searches compiled."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from derender.formats.table import (
    Calls,
    JsonMembers,
    JsonValue,
    KeyLines,
    KeyValues,
    Message,
    Messages,
    NestedElements,
    OutputFormat,
    Parameters,
    PythonCall,
    Reopen,
    Tags,
)
from derender.parser.coerce import ToolSchemas
from derender.parser.elements import NestedElementsReader
from derender.parser.json_scan import enders
from derender.parser.key_lines import KeyLinesReader
from derender.parser.key_values import KeyValuesReader
from derender.parser.marks import MARK, Marks, Partial
from derender.parser.members import MembersReader
from derender.parser.merged import MergedParametersReader
from derender.parser.parameters import ParametersReader
from derender.parser.python_call import PythonCallReader
from derender.parser.reader import Reader
from derender.parser.structure import Frame, Structure
from derender.parser.value import ValueReader
from derender.tokenizer import Tokenizer

_IN_PATTERN = re.compile("«(.*?)»", re.DOTALL)
_BLANK = " \t\r\n\f\v"


class Search:
    """Finds the first of some literals in marked text, and what at its end may still become one."""

    __slots__ = ("_growing", "kinds", "partial", "pattern")

    def __init__(self, kinds: Iterable[tuple[str, str]]) -> None:
        """`kinds`: literals, each with what it means; of several meanings the first counts."""
        self.kinds: dict[str, str] = {}
        for literal, kind in kinds:
            if literal:
                self.kinds.setdefault(literal, kind)
        ordered = sorted(self.kinds, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, ordered)) or "(?!)")
        self.partial = Partial(ordered)
        self._growing = frozenset(
            text for text in ordered for other in ordered if other != text and other.startswith(text)
        )

    def find(self, text: str, at: int, *, end: bool) -> re.Match[str] | None:
        """The first literal; None also where one that begins before it, or is longer, may still come. `end`: nothing
        follows the text."""
        found = self.pattern.search(text, at)
        if found is None or end or len(text) - found.start() > self.partial.longest:
            return found
        held = len(text) - self.partial.held(text, at)
        if held < found.start() or (held == found.start() and found[0] in self._growing):
            return None  # one that begins before it counts, as does a longer one
        return found


class Chain:
    """Messages with headers. `ends`: what ends a body; "inner" for a marker that belongs to the next header."""

    def __init__(self, table: Messages, marks: Marks) -> None:
        opens, closes, bodies, inner = (
            tuple(map(marks.literal, texts)) for texts in (table.open, table.close, table.body, table.inner)
        )
        self.ends = [*((text, "message") for text in (*opens, *closes)), *((text, "inner") for text in inner)]
        self.skipped = Search(self.ends)
        self.header = Search([*((text, "body") for text in bodies), *((text, "open") for text in (*opens, *closes))])
        self._kinds = [(re.compile(marks.pattern(one.header), re.DOTALL), one.region) for one in table.kinds]

    def kind(self, header: str) -> tuple[str, str]:
        """What the body is that follows a header, and the name of the call in it where the header has one."""
        for pattern, region in self._kinds:
            found = pattern.search(header)
            if found is not None:
                return region, found.groupdict().get("name") or ""
        return "nothing", ""


class Grammar:
    """One way of writing calls. `ends`: what ends the message that it stands in, for a format of messages."""

    def __init__(self, table: Calls, marks: Marks, ends: tuple[str, ...] = ()) -> None:
        self.table = table
        self.section_open = _literals(table.section, marks, "open")
        self.section_close = _literals(table.section, marks, "close")
        self.call_open = _literals(table.call, marks, "open")
        self.call_close = _literals(table.call, marks, "close")
        if table.call is None:
            body = table.body
            listed = isinstance(body, PythonCall) or (isinstance(body, JsonMembers) and body.array)
            self.call_open = ("[",) if listed else ("{",)
        self.bare_body = table.call is None
        fenced = isinstance(table.body, JsonMembers) and bool(table.body.fence)
        self.unmarked = fenced or (self.bare_body and table.section is None and (table.start_only or not ends))
        """Whether what announces a call may as well begin an answer."""
        self.header = re.compile(marks.pattern(table.header), re.DOTALL) if table.header else None
        self.ends = ends
        self.closers = (*self.call_close, *self.section_close, *ends)
        may_be = {"header": table.header, "junk": self.closers and not self.bare_body, "noise": table.noise}
        self.places = frozenset(("body", "close", *(place for place, may in may_be.items() if may)))
        """Where in a call the parser may be."""
        self.structure: Structure | None = None
        body_close: tuple[str, ...] = ()
        if isinstance(table.body, Parameters):
            frame = Frame(self.call_open, self.call_close, self.section_open, self.section_close, ends)
            self.structure = Structure(table.body, marks, frame)
            body_close = (self.structure.close,)
        self.strays = (*self.call_close, *body_close)
        """Closers that mean nothing outside a call."""
        self.enders = enders((*self.closers, *self.section_open, *(() if self.bare_body else self.call_open)))
        """What ends a call wherever it stands outside a string: closers, and openers of the next."""
        self.in_section = Search(
            [
                *((literal, "call") for literal in self.call_open),
                *((literal, "close") for literal in self.section_close),
                *((literal, "drop") for literal in (*self.strays, *self.section_open)),
                *((literal, "end") for literal in ends),
            ]
        )

        fence = _closing_fence(table)
        self.tail = re.compile(rf"[ \t\r\n}}\]]*(?:({re.escape(fence) or '(?!)'})[ \t\r\n]*)?")
        """What may stand between a call's body and its closer, and means nothing; group 1 is a closing fence."""
        self.tails = (*self.closers, *([fence] if fence else []))
        """What may follow behind it."""
        self.tail_partial = Partial(self.tails)
        self.junk = Search(
            [
                *((literal, "close") for literal in self.closers),
                *((literal, "section") for literal in self.section_open),
                *((literal, "call") for literal in self.call_open),
            ]
        )
        """In a wrapper that holds no call."""

    def reader(self, marks: Marks, schemas: ToolSchemas, *, tool: str, sectioned: bool = False) -> Reader:
        """A reader for the body of one call. `sectioned`: the call stands in a section, which has its own closer."""
        body = self.table.body
        if isinstance(body, JsonMembers):
            return MembersReader(body, marks, self.enders.literals, unmarked=self.unmarked)
        if isinstance(body, JsonValue):
            return ValueReader(body, marks, self.enders.literals)
        if isinstance(body, KeyLines):
            return KeyLinesReader(body, marks, self.closers, schemas, tool=tool)
        if isinstance(body, KeyValues):
            return KeyValuesReader(body, marks, self.closers)
        if isinstance(body, NestedElements):
            return NestedElementsReader(body, marks, self.enders.literals, schemas, tool=tool)
        if isinstance(body, PythonCall):
            return PythonCallReader(body, marks, self.closers)
        if self.structure is not None:
            kind = MergedParametersReader if isinstance(body, Parameters) and body.merge else ParametersReader
            return kind(self.structure, marks, self.closers, schemas, tool=tool, sectioned=sectioned)
        raise NotImplementedError(type(body).__name__)


class CompiledFormat:
    """A format for a vocabulary. Made once per model; safe to share."""

    def __init__(self, table: OutputFormat, tokenizer: Tokenizer) -> None:
        self.table = table
        self.marks = Marks(tokenizer, _all_literals(table), end_of_turn=table.end_of_turn)
        self.chain = Chain(table.messages, self.marks) if table.messages is not None else None
        """For a format of messages."""
        ends = self.chain.ends if self.chain is not None else []
        self.grammars = [Grammar(calls, self.marks, tuple(text for text, _ in ends)) for calls in table.calls]
        for n, grammar in enumerate(self.grammars):  # other ways of writing a call in the same section
            if grammar.section_open:
                also = [
                    (literal, f"other {m}")
                    for m, other in enumerate(self.grammars)
                    if m != n and other.section_open == grammar.section_open
                    for literal in other.call_open
                ]
                grammar.in_section = Search([*grammar.in_section.kinds.items(), *also])
        self.others: dict[tuple[int, str], int] = {}
        """Grammar and opener → the grammar that reads what the one refuses: the next one with the same opener."""
        for n, grammar in enumerate(self.grammars):
            for opener in () if grammar.section_open and not grammar.table.bare else grammar.call_open:
                for other in range(n + 1, len(self.grammars)):
                    if opener in self.grammars[other].call_open:
                        self.others[n, opener] = other
                        break
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
            if self.chain is None or not grammar.bare_body or grammar.table.start_only
        ]
        guided = [pair for pair in calls if self.grammars[int(pair[1].split()[1])].table.start_only]
        answer = [
            *((literal, "answer") for literal in _literals(table.answer, self.marks, "open")),
            *((literal, "answered") for literal in _literals(table.answer, self.marks, "close")),
            *((literal, "drop") for literal in _literals(table.citations, self.marks, "open")),
            *((literal, "cited") for literal in _literals(table.citations, self.marks, "close")),
        ]
        self.openers = frozenset(("", *(literal for grammar in self.grammars for literal in grammar.call_open)))
        """Of calls."""
        self.sections = any(grammar.section_open for grammar in self.grammars)
        """Whether calls may stand in one."""
        thinks, chained = reasoning is not None or self.chain is not None, self.chain is not None
        may_be = {"reasoning": thinks, "message": chained, "skipped": chained}
        self.places = frozenset(("content", *(place for place, may in may_be.items() if may)))
        """Where outside of calls the parser may be."""
        self.switchable = not chained and reasoning is not None and reasoning.start == "reasoning"
        """Whether an output may begin with its reasoning turned off."""
        self.strips = any(grammar.table.strip for grammar in self.grammars)
        """Whether white space between content and a call is framing."""
        self.between = "".join((_BLANK, *(grammar.table.separators for grammar in self.grammars)))
        """What may stand between two calls and is no text."""
        duplicates = reasoning.duplicates if reasoning else Reopen.LITERAL
        strays = [
            (text, "drop")
            for grammar in self.grammars
            for text in (*grammar.closers, *grammar.strays)
            if text not in grammar.ends
        ]
        calls += strays
        framing = [(text, "drop") for text in map(self.marks.literal, table.framing) if MARK.search(text)]
        in_content: list[tuple[str, str]] = [*calls, *answer, *framing, *ends]
        in_reasoning = [*((literal, "end") for literal in closes), *ends]
        if reasoning is not None:
            if reasoning.ended_by_answer:
                in_reasoning += [pair for pair in answer if pair[1] == "answer"]
            if duplicates is Reopen.REOPEN:
                in_content += [(literal, "reason") for literal in opens]
            if duplicates is not Reopen.LITERAL:
                in_content += [(literal, "drop") for literal in closes]
                in_reasoning += [(literal, "drop") for literal in opens]
            if reasoning.ended_by_call:
                # Not what may as well be text: a bare bracket, or a call without the section that wraps it.
                in_reasoning += [
                    pair
                    for pair in calls
                    if (number := pair[1].partition(" ")[2])
                    and not self.grammars[int(number)].bare_body
                    and (pair[1].startswith("section") or not self.grammars[int(number)].section_open)
                ]
        self.content = Search(in_content)
        self.message = Search([*guided, *ends])
        """In a message that is no call's: only what a guided engine may write instead of the format's own calls."""
        self.content_without_calls = Search([pair for pair in in_content if pair not in calls])
        self.opening = Search([*in_content, *((literal, "reason") for literal in opens)])
        """In content before anything visible: the model may open reasoning by itself."""
        self.opening_without_calls = Search([pair for pair in self.opening.kinds.items() if pair not in calls])
        self.reasoning = Search(in_reasoning)
        self.reasoning_begins = Search([*in_reasoning, *((literal, "drop") for literal in opens)])
        """In reasoning before anything else: the model may open it once more."""
        self.bare_starts = [n for n, g in enumerate(self.grammars) if g.bare_body and g.table.start_only]
        """Grammars that only a guided engine writes, from the first character on."""


def _closing_fence(table: Calls) -> str:
    if isinstance(table.body, JsonMembers):
        return table.body.fence
    return table.body.fence[1] if isinstance(table.body, JsonValue) else ""


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
            value,
            (
                Tags, Calls, JsonValue, Parameters, KeyLines, KeyValues, NestedElements, JsonMembers, PythonCall,
                Messages, Message,
            ),
        ):  # fmt: skip
            for name in value.__struct_fields__:
                if name in ("header", "key"):  # patterns: only what they mark is a literal
                    yield from _IN_PATTERN.findall(getattr(value, name) or "")
                elif name not in ("name", "ids", "structural_tag", "region", "separators", "no_call", "within"):
                    yield from walk(getattr(value, name))

    reasoning = table.reasoning.tags if table.reasoning else None
    around = (table.citations, table.framing, table.turn_starts)
    for part in (reasoning, table.answer, *table.calls, table.messages, *around):
        yield from walk(part)
