"""The parser: token ids in, events out, for every output format by its table.

One incremental engine for reasoning, content and calls. It never raises on model output, always finds back to content,
holds back only what may still change, takes linear time, and its state goes into a small snapshot. Batch is one push.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from derender.parser.coerce import ToolSchemas
from derender.parser.compiled import CompiledFormat, Grammar, Search
from derender.parser.events import ContentText, Event, ReasoningText
from derender.parser.marks import MARK, Lexer, pack, unpack
from derender.parser.reader import Reader
from derender.parser.sink import Sink

HEADER = "header:"
_LONGEST_HEADER = 4096
_BLANKS = re.compile(r"\s*")
_LONGEST_CITATION = 256
_BETWEEN = " \t\r\n,;"  # may stand between the calls of a section
_PLACES = frozenset(
    ("content", "reasoning", "section", "header", "body", "close", "junk", "noise", "message", "skipped")
)


@dataclass(frozen=True, kw_only=True)
class ParserOptions:
    """How to read one output.

    `start`: the region it begins in; for a format of messages, `HEADER` and what the prompt has of the first header.
    `calls`: whether calls are read at all. `complete`: whether a call is given only when it is whole. `trim`: whether
    white space at the ends of a region belongs to nothing. `show_special`: whether special tokens that are no markers
    are visible. `strip_blank`: whether a leading blank is dropped. `name`: of the tool that the request demands.
    """

    start: str = "content"
    calls: bool = True
    complete: bool = False
    trim: bool = False
    show_special: bool = False
    strip_blank: bool = False
    name: str = ""


class FormatParser:
    """Reads one output. `reasoning_tokens` tells for each token, in order, whether it was reasoning."""

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
        self._where = options.start if compiled.chain is None else "message"
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
        reasoning = compiled.table.reasoning
        thinks = compiled.chain is None and reasoning is not None and reasoning.start == "reasoning"
        self._off = int(thinks and options.start == "content")
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

    # ------------------------------------------------------------------------------------------ the three verbs

    def push(self, ids: Sequence[int]) -> list[Event]:
        """The events that these ids complete."""
        text, ends = self._lexer.read(ids)
        size = len(self._text)
        self._ends = [size + end for end in ends] if size else ends
        self._text += text
        events = self._run(end=False)
        # A token that is held back in part belongs to the region in which it is held.
        self.regions += [self._where == "reasoning"] * len(self._ends)
        self._ends = []
        return events

    def finish(self) -> list[Event]:
        """The events of what was held back. Nothing may be pushed afterwards."""
        self._text += self._lexer.finish()
        return self._run(end=True)

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
        try:
            where, region, grammar, sectioned, text, raw, opener, space, said, content, *more = state
            answer, calls, prefix, off, sink, reader, tool, strip, pending = more
            if where not in _PLACES or not -1 <= grammar < len(self._compiled.grammars):
                raise ValueError("no such place")
            if where in ("message", "skipped") and self._compiled.chain is None:
                raise ValueError("no messages in this format")
            if region not in ("content", "reasoning"):
                raise ValueError("no such region")
            self._where, self._region, self._grammar, self._sectioned = where, region, grammar, bool(sectioned)
            self._text, self._raw, self._space = str(unpack(text)), str(unpack(raw)), str(space)
            self._opener = str(unpack(opener))
            self._said, self._content, self._calls = bool(said), bool(content), bool(calls)
            self._prefix = bool(prefix) and self._has_prefix
            self._answer, self._off = bool(answer), int(off)
            self._sink.restore(unpack(sink))
            if reader is not None:
                if grammar < 0:
                    raise ValueError("a reader without a grammar")
                self._reader = self._compiled.grammars[grammar].reader(self._marks, self._schemas, tool=str(tool))
                self._reader.restore(unpack(reader))
            elif where == "body":
                raise ValueError("no reader")
            self._lexer.strip = bool(strip)
            self._lexer.pending = bytes(pending)
        except (TypeError, IndexError, AttributeError, OverflowError) as error:
            raise ValueError("not a parser's state") from error

    # --------------------------------------------------------------------------------------------- the regions

    @property
    def calls_ended(self) -> int:
        """How many calls are complete."""
        return self._sink.ended

    def take_regions(self) -> list[bool]:
        """For the tokens settled since the last time: whether each was reasoning."""
        taken, self.regions = self.regions, []
        return taken

    def _run(self, *, end: bool) -> list[Event]:
        text, at = self._text, 0
        while True:
            before = at, self._where, self._grammar
            at = getattr(self, f"_in_{self._where}")(text, at, end)
            self._settle(at, reasoning=before[1] == "reasoning")
            if self._again:
                self._ends = [one - at + len(self._again) for one in self._ends[self._settled :]]
                self._settled = 0
                text, at, self._again = self._again + text[at:], 0, ""
            elif (at, self._where, self._grammar) == before or at >= len(text):
                break
        if end:
            self._end(text[at:])
            self._settle(len(text), reasoning=self._where == "reasoning")
            at = len(text)
        self._text = text[at:]
        self._ends = [one - at for one in self._ends[self._settled :]]
        self._settled = 0
        events, self._events[:] = list(self._events), []
        return events

    def _settle(self, at: int, *, reasoning: bool) -> None:
        ends, n = self._ends, self._settled
        while n < len(ends) and ends[n] <= at:
            n += 1
        self.regions += [reasoning] * (n - self._settled)
        self._settled = n

    def _end(self, rest: str) -> None:
        """The output ends, with `rest` not taken."""
        match self._where:
            case "content":
                self._say(rest)
                self._leave_content("end")
            case "reasoning":
                self._think(rest)
                reasoning = self._compiled.table.reasoning
                if self._space and self._said and not (reasoning is not None and reasoning.strip):
                    self._events.append(ReasoningText(self._space))  # it was cut: this is no end of it
                self._leave_reasoning()
            case "header":
                self._verbatim(self._raw + rest)
            case "body":
                assert self._reader is not None
                if self._sink.name is None or self._options.complete:
                    self._verbatim(self._raw + rest)
                    self._sink.drop()
                else:
                    self._reader.finish(rest, 0, self._sink)
                    self._sink.leave()
            case "junk":
                self._verbatim(rest)
            case "section":
                kinds = self._now().in_section.kinds
                cut = any(k in ("close", "drop") and text.startswith(rest.strip()) for text, k in kinds.items())
                if (self._raw + rest).strip() and not (cut and not self._raw):  # the beginning of a closer is no text
                    self._verbatim(self._raw + rest)
        self._raw = self._space = ""

    def _in_content(self, text: str, at: int, end: bool) -> int:
        compiled, calls = self._compiled, self._options.calls
        if calls and not self._calls:
            search = compiled.message
        elif (self._said or self._content) and not self._off:
            search = compiled.content if calls else compiled.content_without_calls
        else:
            search = compiled.opening if calls else compiled.opening_without_calls
        found = search.find(text, at, end=end)
        if found is None:
            return self._before_partial(text, at, end, search, self._say)
        kind = search.kinds[found[0]]
        name, _, number = kind.partition(" ")
        if (
            number
            and self._compiled.grammars[int(number)].table.start_only
            and (self._content or self._said or (self._space + text[at : found.start()]).strip())
        ):
            self._say(text[at : found.end()])
            return found.end()
        self._say(text[at : found.start()])
        if self._off and (name == "reason" or (self._off == 2 and compiled.reasoning.kinds.get(found[0]) == "end")):
            self._off = 2 if name == "reason" else 1
            self._say(found[0])
            return found.end()
        if name == "reason" and self._said and found[0] not in compiled.content.kinds:
            self._say(found[0])  # something visible came before it: it opens nothing
            return found.end()
        if name == "drop":
            return found.end()
        if name in ("answer", "answered"):
            self._mark_answer(found[0], opens=name == "answer")
            return found.end()
        if name == "cited":
            return self._skip_citation(text, found, end)
        if name in ("message", "inner"):
            self._leave_content("message")
            return self._next_message(found.end() if name == "message" else found.start())
        self._leave_content("reason" if name == "reason" else "call")
        if name == "reason":
            self._where, self._said, self._prefix = "reasoning", False, self._has_prefix
        else:
            self._enter(name, int(number), found[0])
            if name == "call" and self._compiled.grammars[int(number)].bare_body:
                return found.start()
        return found.end()

    def _mark_answer(self, marker: str, *, opens: bool) -> None:
        """A marker of the answer was met; one that is written in letters is text where it means nothing."""
        if (self._said if opens else not self._answer) and MARK.sub("", marker):
            self._say(marker)
            return
        if not opens:
            self._leave_content("answer")
        self._space, self._answer = "", opens

    def _skip_citation(self, text: str, found: re.Match[str], end: bool) -> int:
        """Pass over the end of a citation; the place behind it."""
        stop = text.find(">", found.end(), found.end() + _LONGEST_CITATION)
        if stop >= 0:
            return stop + 1
        if not end and len(text) - found.end() < _LONGEST_CITATION:
            return found.start()
        self._say(found[0])
        return found.end()

    def _in_reasoning(self, text: str, at: int, end: bool) -> int:
        search = self._compiled.reasoning if self._said else self._compiled.reasoning_begins
        if not self._said and self._compiled.bare_starts and self._options.calls:
            begin = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
            for guided in self._compiled.bare_starts:
                if text.startswith(self._compiled.grammars[guided].call_open, begin):
                    self._enter("call", guided, "")
                    self._region = "reasoning"
                    return begin
        found = search.find(text, at, end=end)
        if found is None:
            return self._before_partial(text, at, end, search, self._think)
        name, _, number = search.kinds[found[0]].partition(" ")
        self._think(text[at : found.start()])
        if name == "drop":
            if self._said and found[0] not in self._compiled.reasoning.kinds:
                self._think(found[0])  # an opener behind the first words is text
            return found.end()
        self._leave_reasoning()
        if name in ("message", "inner"):
            return self._next_message(found.end() if name == "message" else found.start())
        if number and not self._options.calls:  # it ends the reasoning all the same, and is text
            self._where = "content"
            self._say(found[0])
            return found.end()
        if name in ("end", "answer"):
            self._where, self._answer = "content", name == "answer"
        else:
            self._enter(name, int(number), found[0])
        return found.end()

    def _next_message(self, at: int) -> int:
        """A message has ended; what follows is the next one's header."""
        self._where, self._raw = "message", ""
        return at

    def _in_message(self, text: str, at: int, end: bool) -> int:
        """In a header, which is no text. Only a guided engine may leave it out."""
        chain = self._compiled.chain
        assert chain is not None
        if self._opened and self._raw == self._head:
            self._begin_message(self._head)
            return at
        if self._raw.rstrip() == self._head.rstrip() and self._options.calls:
            begin = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
            for guided in self._compiled.bare_starts:
                if text.startswith(self._compiled.grammars[guided].call_open, begin):
                    self._enter("call", guided, "")
                    return begin
        found = chain.header.pattern.search(text, at)
        stop = found.end() if found is not None else len(text) - (0 if end else chain.header.partial.held(text, at))
        header = (self._raw + text[at:stop])[:_LONGEST_HEADER]
        if found is None:
            self._raw = header
        elif chain.header.kinds[found[0]] == "body":
            self._begin_message(header)
        else:
            self._raw = ""
        return stop

    def _begin_message(self, header: str) -> None:
        """A header is whole: what its message is."""
        assert self._compiled.chain is not None
        region, name = self._compiled.chain.kind(header)
        self._raw, self._said, self._calls = "", False, region == "calls"
        if region == "call" and self._options.calls and self._compiled.grammars:
            self._grammar, self._sectioned, self._region = 0, False, "content"
            self._where, self._reader = "body", self._now().reader(self._marks, self._schemas, tool=name)
            if name:
                self._sink.begin(self._marks.spell(name))
        elif region in ("reasoning", "nothing"):
            self._where = "reasoning" if region == "reasoning" else "skipped"
        else:
            self._where = "content"

    def _in_skipped(self, text: str, at: int, end: bool) -> int:
        """In a message that is left out."""
        chain = self._compiled.chain
        assert chain is not None
        found = chain.skipped.pattern.search(text, at)
        if found is None:
            return len(text) - (0 if end else chain.skipped.partial.held(text, at))
        return self._next_message(found.end() if chain.skipped.kinds[found[0]] == "message" else found.start())

    def _before_partial(self, text: str, at: int, end: bool, search: Search, give: Any) -> int:
        """Give out what can be no part of a marker."""
        stop = len(text) if end else len(text) - search.partial.held(text, at)
        give(text[at:stop])
        return stop

    def _say(self, text: str) -> None:
        """Visible text, white space that may be framing held back."""
        text = self._space + self._marks.show(text, special=self._options.show_special)
        self._space = ""
        if not self._said:
            if not text.strip(self._compiled.between if self._sink.index else None):
                self._space = text
                return
            self._said = self._content = True
            if self._options.trim:
                body = text.lstrip()
                text = body if self._frames(text[: len(text) - len(body)]) or not self._sink.index else text
        if self._options.trim or any(g.table.strip for g in self._compiled.grammars):
            body = text.rstrip()
            self._space, text = text[len(body) :], body
        if text:
            self._events.append(ContentText(text))

    def _frames(self, space: str) -> bool:
        """Whether white space between content and a call is framing: a line's end, or all of it by the table."""
        return "\n" in space or any(grammar.table.strip for grammar in self._compiled.grammars)

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
        text = self._space + self._marks.show(text, special=self._options.show_special)
        self._space = ""
        reasoning = self._compiled.table.reasoning
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

    # ----------------------------------------------------------------------------------------------- the calls

    def _enter(self, name: str, number: int, marker: str) -> None:
        """A call's or section's opener was met."""
        self._grammar, self._region = number, "content"
        grammar = self._now()
        if name == "section":
            self._where, self._sectioned, self._raw, self._said = "section", True, marker, False
            return
        self._sectioned = False
        self._opener = marker or grammar.call_open[0]
        self._begin("" if grammar.bare_body else marker)

    def _now(self) -> Grammar:
        return self._compiled.grammars[self._grammar]

    def _begin(self, raw: str) -> None:
        """A call begins; `raw` is what was written of it."""
        grammar = self._now()
        self._raw += raw
        if grammar.table.named:
            self._sink.begin(self._options.name)
        if grammar.header is not None:
            self._where, self._reader = "header", None
        else:
            self._where, self._reader = (
                "body",
                grammar.reader(self._marks, self._schemas, tool="", sectioned=self._sectioned),
            )

    def _in_section(self, text: str, at: int, end: bool) -> int:
        grammar = self._now()
        begin = at
        while not self._said and at < len(text) and text[at] in _BETWEEN:
            at += 1  # framing, unless text stands here already
        if self._raw and len(self._raw) < _LONGEST_HEADER:
            self._raw += text[begin:at]  # or text, should the output end before a name is known
        if at == len(text):
            return at
        search = grammar.in_section
        found = search.find(text, at, end=end)
        stop = found.start() if found is not None else len(text) - search.partial.held(text, at)
        if stop > at and grammar.table.noise:
            self._raw = ""
            return stop
        if stop > at:  # something else stands in the section: it is text
            cut = self._raw if end else ""  # the end of the output in a marker: all of it is text
            self._raw = ""
            self._verbatim(cut + text[at:stop])
            return stop
        if found is None:
            return at
        if search.kinds[found[0]] == "drop":
            return found.end()
        if search.kinds[found[0]] == "end":
            self._where, self._sectioned, self._raw, self._said = "content", False, "", False
            return found.start()
        if search.kinds[found[0]] == "close":
            self._where, self._sectioned, self._raw, self._said = "content", False, "", False
            return found.end()
        if search.kinds[found[0]].startswith("other"):
            self._grammar = int(search.kinds[found[0]].split()[1])
            grammar = self._now()
        self._opener = found[0]
        self._begin("" if grammar.bare_body else found[0])
        return found.start() if grammar.bare_body else found.end()

    def _in_header(self, text: str, at: int, end: bool) -> int:
        grammar = self._now()
        assert grammar.header is not None
        closer = grammar.enders.pattern.search(text, at, at + _LONGEST_HEADER)
        found = grammar.header.match(text, at, closer.end() if closer is not None else at + _LONGEST_HEADER)
        if found is not None:
            groups = found.groupdict()
            name = self._marks.spell(groups["name"]).strip()
            if name:
                self._raw = self._raw + found[0] if self._options.complete else ""
                self._opener = ""
                self._sink.begin(name, id=groups.get("id"))
                self._where, self._reader = (
                    "body",
                    grammar.reader(self._marks, self._schemas, tool=name, sectioned=self._sectioned),
                )
                return found.end()
        elif len(text) - at < _LONGEST_HEADER and closer is None:
            return at
        if self._sectioned and grammar.table.noise:
            self._sink.drop()
            self._raw, self._opener, self._reader, self._where = "", "", None, "noise"
            return at
        return self._fail(text, at, at)

    def _in_body(self, text: str, at: int, end: bool) -> int:
        reader, sink = self._reader, self._sink
        assert reader is not None
        reader.over = end
        to = reader.feed(text, at, sink)
        if sink.name is None or self._options.complete:
            self._raw += text[at:to]
        else:
            self._raw = ""
        if reader.status == "failed":
            return self._fail(text, to, to)
        if reader.ended:
            reader.ended = False
            self._opener = ""
            if not sink.end():
                return self._fail(text, to, to)
            self._raw = ""
        if reader.status != "open":
            self._where = "close"
            if sink.name is None:
                self._raw = ""
        return to

    def _fail(self, text: str, at: int, to: int) -> int:
        """What was read is no call: another way of writing calls may read it, else it is content.

        In a wrapper with an end, the rest up to that is content too.
        """
        self._sink.drop()
        other = self._compiled.others.get((self._grammar, self._opener))
        if other is not None and not (self._compiled.grammars[other].table.start_only and self._content):
            return self._begin_again(other, self._raw + text[at:to], to)
        if self._region == "reasoning":
            self._think(self._marks.spell(self._raw + text[at:to]))
        else:
            self._verbatim(self._raw + text[at:to])
        self._raw = self._opener = ""
        self._reader = None
        self._where = "junk" if self._now().closers and not self._now().bare_body else self._region
        return to

    def _begin_again(self, number: int, raw: str, to: int) -> int:
        """Read a call's body from its beginning by another grammar that has the same opener."""
        self._grammar = number
        body = raw.index(self._opener) + (0 if self._now().bare_body else len(self._opener))
        self._raw, self._reader = raw[:body], None
        self._begin("")
        size = len(raw) - body
        if size <= to:
            return to - size
        self._again = raw[body:]
        return to

    def _in_junk(self, text: str, at: int, end: bool) -> int:
        """Text up to the end of a wrapper that holds no call, or to the next opener."""
        grammar, give = self._now(), self._verbatim if self._where == "junk" else _drop
        search = grammar.junk
        found = search.find(text, at, end=end)
        if found is None:
            stop = len(text) if end else len(text) - search.partial.held(text, at)
            give(text[at:stop])
            return stop
        kind = search.kinds[found[0]]
        if found[0] in grammar.ends:
            give(text[at : found.start()])
            self._where = "content"
            return found.start()
        if kind == "close":
            give(text[at : found.end()])
            self._where = "section" if self._sectioned and found[0] in grammar.call_close else "content"
            return found.end()
        give(text[at : found.start()])
        self._said = False
        self._enter("section" if kind == "section" else "call", self._grammar, found[0])
        return found.end()

    _in_noise = _in_junk
    """The same for what belongs to nothing."""

    def _tail_is_text(self) -> None:
        """Behind a call's body no closer follows: what was passed over is text."""
        if self._sectioned:
            self._verbatim(self._raw.lstrip(_BETWEEN))
        else:
            self._say(self._raw)

    def _in_close(self, text: str, at: int, end: bool) -> int:
        """Behind a call's body: its closer, and the framing before it."""
        grammar = self._now()
        if self._sink.name is not None:  # the body broke off: what follows up to the closer belongs to nothing
            found = grammar.enders.pattern.search(text, at)
            stop = found.start() if found is not None else len(text)
            if found is None and not end:
                stop -= grammar.enders.partial.held(text, at)
            if self._options.complete:
                self._raw += text[at:stop]
            if found is None and not end:
                return stop
            at = stop
            if not self._sink.end():
                return self._fail(text, at, at)
        else:
            found = grammar.tail.match(text, at)
            assert found is not None
            stop = found.end()
            if grammar.tails and not end and len(text) - stop == grammar.tail_partial.held(text, stop):
                if found.lastindex is None and stop > at:  # what was passed is kept for the case that no closer follows
                    self._raw += text[at:stop]
                    return stop
                return at
            if found.lastindex is not None or text.startswith(grammar.closers, stop):
                at = stop
            elif self._raw:
                self._where, self._said = "section" if self._sectioned else "content", False
                self._tail_is_text()
                self._reader, self._raw = None, ""
                return at
        for closer in grammar.call_close:
            if text.startswith(closer, at):
                at += len(closer)
                break
        self._reader, self._raw = None, ""
        self._where, self._said = "section" if self._sectioned else "content", False
        return at


def _drop(text: str) -> None:
    """Text that belongs to nothing."""
