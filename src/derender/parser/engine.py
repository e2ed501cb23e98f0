"""The parser: token ids in, events out, for every output format by its table.

One incremental engine for reasoning, content and calls. It never raises on model output, always finds back to content,
holds back only what may still change, takes linear time, and its state goes into a small snapshot. Batch is one push.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from derender.parser.calls import LONGEST_HEADER, CallPlaces
from derender.parser.compiled import Search
from derender.parser.events import Event, ReasoningText, joined
from derender.parser.marks import MARK
from derender.parser.state import HEADER, ParserOptions

__all__ = ["HEADER", "FormatParser", "ParserOptions"]

_BLANKS = re.compile(r"\s*")
_LONGEST_CITATION = 256


class FormatParser(CallPlaces):
    """Reads one output: push ids, finish; snapshot at any place, and restore."""

    # ------------------------------------------------------------------------------------------ the three verbs

    def push(self, ids: Sequence[int]) -> list[Event]:
        """The events that these ids complete."""
        text, ends = self._lexer.read(ids)
        ending = self._options.ending
        if len({0, *ends}) > len(ends) and ending.isdisjoint(ids):
            return self._take(text, ends)
        # A token without text, and one that ends the output unless another follows, belong to the region that the
        # tokens before them lead to: this is all that a stream knows when it gives them out.
        events: list[Event] = []
        first = begin = before = 0
        for n, end in enumerate(ends):
            if end == before or ids[n] in ending:
                events += self._take(text[begin:before], [one - begin for one in ends[first:n]])
                self.regions.append(self.reasoning)
                first, begin = n + 1, before
            before = end
        events += self._take(text[begin:], [one - begin for one in ends[first:]])
        return joined(events)

    def _take(self, text: str, ends: list[int]) -> list[Event]:
        """The events that this text completes, in which tokens end at `ends`."""
        size = len(self._text)
        self._ends = [size + end for end in ends] if size else ends
        self._text += text
        events = self._run(end=False)
        # A token that is held back in part belongs to the region in which it is held.
        self.regions += [self.reasoning] * len(self._ends)
        self._ends = []
        return events

    def finish(self) -> list[Event]:
        """The events of what was held back. Nothing may be pushed afterwards."""
        self._text += self._lexer.finish()
        return self._run(end=True)

    # --------------------------------------------------------------------------------------------- the regions

    @property
    def calls_ended(self) -> int:
        """How many calls are complete."""
        return self._sink.ended

    @property
    def reasoning(self) -> bool:
        """Whether the output is in reasoning now."""
        return self._where == "reasoning"

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
        self._raw = self._space = self._opener = ""

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
            and (self._content or self._said or (self._space + self._visible(text[at : found.start()])).strip())
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
        header = (self._raw + text[at:stop])[:LONGEST_HEADER]
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
        self._raw, self._opener, self._said, self._calls = "", "", False, region == "calls"
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

    def _before_partial(self, text: str, at: int, end: bool, search: Search, give: Callable[[str], None]) -> int:
        """Give out what can be no part of a marker."""
        stop = len(text) if end else len(text) - search.partial.held(text, at)
        give(text[at:stop])
        return stop
