"""The state of one output's parser: made, told as a snapshot, taken up again; and how text is given out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from derender.parser.coerce import ToolSchemas
from derender.parser.compiled import CompiledFormat
from derender.parser.events import ContentText, Event, ReasoningText
from derender.parser.marks import Lexer, pack, unpack, unpack_text
from derender.parser.reader import Reader
from derender.parser.shape import Plain, Shape, checked, must
from derender.parser.sink import Sink
from derender.tokenizer.detokenizer import unfinished

HEADER = "header:"
Place = Literal["content", "reasoning", "section", "header", "body", "close", "junk", "noise", "message", "skipped"]


class ParserSnapshot(Shape, frozen=True):
    """The members of a `ParserState`. Packed texts, and what has a shape of its own, are of any type here."""

    where: Place
    region: Literal["content", "reasoning"]
    grammar: Annotated[int, Meta(ge=-1)]
    sectioned: bool
    text: Any
    raw: Any
    opener: Any
    space: str
    said: bool
    content: bool
    answer: bool
    calls: bool
    prefix: bool
    off: Annotated[int, Meta(ge=0, le=2)]
    sink: Any
    reader: Any
    tool: Plain
    strip: bool
    pending: Annotated[list[Annotated[int, Meta(ge=0, le=255)]], Meta(max_length=3)]

    def __post_init__(self) -> None:
        must("sectioned", self.sectioned or self.where != "section")
        # Older states have the reader behind its body, too.
        must("reader", self.where == "close" or (self.reader is not None) == (self.where == "body"))
        must("tool", not self.tool or self.where in ("body", "close"))


@dataclass(frozen=True, kw_only=True)
class ParserOptions:
    """How to read one output.

    `start`: the region it begins in; for a format of messages, `HEADER` and what the prompt has of the first header.
    `calls`: whether calls are read at all. `complete`: whether a call is given only when it is whole. `trim`: whether
    white space at the ends of a region belongs to nothing. `show_special`: whether special tokens that are no markers
    are visible. `strip_blank`: whether a leading blank is dropped. `name`: of the tool that the request demands.
    `ending`: ids that end the output, unless another follows.
    """

    start: str = "content"
    calls: bool = True
    complete: bool = False
    trim: bool = False
    show_special: bool = False
    strip_blank: bool = False
    name: str = ""
    ending: frozenset[int] = frozenset()


class ParserState:
    """What a parser knows of its output so far. `regions` tells for each token, in order, whether it was reasoning."""

    def __init__(self, compiled: CompiledFormat, options: ParserOptions, schemas: ToolSchemas) -> None:
        self._compiled = compiled
        self._options = options
        self._schemas = schemas
        self._marks = compiled.marks
        self._lexer = Lexer(
            compiled.marks,
            show_special=options.show_special,
            strip=options.strip_blank,
        )
        self._events: list[Event] = []
        self._sink = Sink(self._events, complete=options.complete)
        self._where: str = options.start if compiled.chain is None else "message"
        self._grammar = -1
        self._sectioned = False  # whether the call in work stands in a section
        self._region = "content"  # the region that a call which proves to be none falls back to
        self._opener = ""  # of the call in work, as long as it may still be another way of writing calls
        self._again = ""  # what has to be read again, before the rest of the text
        self._reader: Reader | None = None
        self._text = ""  # what was not taken yet
        self._raw = ""  # what the model wrote of a call that may still prove to be none
        self._space = ""  # white space that is held back
        self._said = False  # whether the region has anything but white space
        self._content = False  # whether there was any content at all
        self._answer = False  # whether the markers of an answer were opened
        self._calls = compiled.chain is None  # whether the format's own calls may stand in this content
        self._off = int(compiled.switchable and options.start == "content")
        """Whether thinking was turned off for this output (1), so that its markers are text; 2 behind an opener."""
        self._has_prefix = compiled.table.reasoning is not None and bool(compiled.table.reasoning.prefix)
        self._prefix = self._has_prefix  # whether the text that begins reasoning may still come
        self._ends: list[int] = []  # where in `_text` the tokens of this push end
        self._settled = 0  # how many of them have their region
        self.regions: list[bool] = []
        """For each token taken since `take_regions`: whether it was reasoning."""
        if compiled.chain is not None:
            self._head = self._marks.literal(options.start.removeprefix(HEADER)) if HEADER in options.start else ""
            self._raw = self._head
            self._opened = compiled.chain.header.pattern.search(self._head) is not None  # the prompt has begun a body

    def snapshot(self) -> list[Any]:
        """The state as JSON-safe values."""
        return [
            self._where,
            self._region,
            self._grammar,
            self._sectioned,
            pack(self._text),
            pack(self._raw),
            pack(self._opener),
            self._space,
            self._said,
            self._content,
            self._answer,
            self._calls,
            self._prefix,
            self._off,
            pack(self._sink.state()),
            pack(self._reader.state()) if self._reader is not None else None,
            getattr(self._reader, "tool", ""),
            self._lexer.strip,
            list(self._lexer.pending),
        ]

    def restore(self, state: Any) -> None:
        """Go on from a snapshot. Raises ValueError for one that this parser cannot have made."""
        now = checked(ParserSnapshot, state)
        compiled, codes = self._compiled, len(self._marks.spelled)
        must("grammar", now.grammar < len(compiled.grammars))
        grammar = compiled.grammars[now.grammar] if now.grammar >= 0 else None
        at_call = grammar is not None and (now.where in grammar.places or now.where == "section")
        must("where", at_call or now.where in compiled.places)
        must("region", now.region in compiled.places)
        must("sectioned", compiled.sections or not now.sectioned)
        must("calls", now.calls or compiled.chain is not None)
        must("prefix", self._has_prefix or not now.prefix)
        must("off", compiled.switchable or not now.off)
        must("space", self._holds(now.space))
        self._where, self._region, self._grammar, self._sectioned = now.where, now.region, now.grammar, now.sectioned
        self._text, self._raw = unpack_text(now.text, codes), unpack_text(now.raw, codes)
        self._space, self._said, self._content, self._answer = now.space, now.said, now.content, now.answer
        self._calls, self._prefix, self._off = now.calls, now.prefix, now.off
        self._sink.restore(unpack(now.sink, 0))
        must("sink", self._sink.name is None or now.where in ("header", "body", "close"))
        self._opener = self._checked_opener(unpack_text(now.opener, codes))
        self._reader = None
        if grammar is not None and now.where == "body":
            reader = grammar.reader(self._marks, self._schemas, tool=now.tool)
            reader.restore(unpack(now.reader, codes if reader.marked else 0))
            must("tool", now.tool == getattr(reader, "tool", ""))
            self._reader = reader
        self._lexer.strip = now.strip
        self._lexer.pending = unfinished(now.pending)

    def _holds(self, space: str) -> bool:
        """Whether this may be held back: white space, what stands between calls, the beginning of a prefix."""
        if not space or space.isspace() or not space.strip(self._compiled.between):
            return True
        reasoning = self._compiled.table.reasoning
        return reasoning is not None and reasoning.prefix.startswith(space)

    def _checked_opener(self, opener: str) -> str:
        """The opener, which is to be found again in what the model wrote, where the call may yet prove to be another's.

        Raises ValueError.
        """
        must("opener", opener in self._compiled.openers)
        named, complete = self._sink.name is not None, self._options.complete
        if self._where == "body" and named and not complete:
            return ""  # what was given out is not read another way; older states have it
        unsure = self._where in ("header", "body") or (self._where == "close" and named and complete)
        if unsure and (self._grammar, opener) in self._compiled.others:
            must("raw", opener in self._raw)
        return opener

    # ------------------------------------------------------------------------------------------ giving out text

    def _visible(self, text: str) -> str:
        """Marked text as the client sees it."""
        return self._marks.show(text, special=self._options.show_special)

    def _hold(self, text: str) -> None:
        """Hold back more white space, in time that is linear in it."""
        space, self._space = self._space, ""
        space += text  # in place: nothing else has it
        self._space = space

    def _say(self, text: str) -> None:
        """Visible text, white space that may be framing held back."""
        text = self._visible(text)
        held = not text.strip(self._compiled.between if self._sink.index and not self._said else None)
        if held and (not self._said or self._options.trim or self._compiled.strips):
            self._hold(text)
            return
        text, self._space = self._space + text, ""
        if not self._said:
            self._said = self._content = True
            if self._options.trim:
                body = text.lstrip()
                text = body if self._frames(text[: len(text) - len(body)]) or not self._sink.index else text
        if self._options.trim or self._compiled.strips:
            body = text.rstrip()
            self._space, text = text[len(body) :], body
        if text:
            self._events.append(ContentText(text))

    def _frames(self, space: str) -> bool:
        """Whether white space between content and a call is framing: a line's end, or all of it by the table."""
        return "\n" in space or self._compiled.strips

    def _leave_content(self, why: str) -> None:
        space, said, ended = self._space, self._said, why == "end"
        self._space, self._said = "", False
        if why == "call" and said and self._options.trim and not self._frames(space):
            why = "end"  # a blank between words
        elif why == "call":
            self._raw = space
        if why == "reason" and said:
            why = "end"  # reasoning in the midst of an answer takes none of its blanks
        framing = why not in ("end", "answer") or (self._options.trim and (ended or why == "answer"))
        framing = framing or (not said and (why == "answer" or self._content or bool(self._sink.index)))
        if space and not framing:
            self._events.append(ContentText(space))

    def _think(self, text: str) -> None:
        text = self._visible(text)
        reasoning = self._compiled.table.reasoning
        if self._said and self._space and not text.strip():
            self._hold(text)
            return
        text, self._space = self._space + text, ""
        if self._prefix and text:
            assert reasoning is not None
            if len(text) < len(reasoning.prefix) and reasoning.prefix.startswith(text):
                self._space = text
                return
            self._prefix, text = False, text.removeprefix(reasoning.prefix)
        if self._options.trim and not self._said:
            text = text.lstrip()
        self._said = self._said or bool(text)
        if self._options.trim or (reasoning is not None and reasoning.strip):
            body = text.rstrip()
            self._space, text = text[len(body) :], body
        if text:
            self._events.append(ReasoningText(text))

    def _leave_reasoning(self) -> None:
        self._space, self._said = "", False

    def _verbatim(self, text: str) -> None:
        """Text that was taken for a call and is none: content, as the model wrote it."""
        text = self._marks.spell(text)
        if text:
            self._said = self._content = True
            self._events.append(ContentText(text))
