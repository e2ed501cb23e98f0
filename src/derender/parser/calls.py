"""The parser's places in and around calls: section, header, body, closer, and what proves to be no call."""

from __future__ import annotations

from derender.parser.compiled import Grammar
from derender.parser.state import ParserState

LONGEST_HEADER = 4096
_BETWEEN = " \t\r\n,;"  # may stand between the calls of a section


class CallPlaces(ParserState):
    """A method for each place: takes text from `at` on, gives out events, and returns where it stopped."""

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

    def _keep(self, text: str) -> None:
        """Keep more of what was written of a call, in time that is linear in it."""
        raw, self._raw = self._raw, ""
        raw += text  # in place: nothing else has it
        self._raw = raw

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
        if self._raw and len(self._raw) < LONGEST_HEADER:
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
        closer = grammar.enders.pattern.search(text, at, at + LONGEST_HEADER)
        found = grammar.header.match(text, at, closer.end() if closer is not None else at + LONGEST_HEADER)
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
        elif len(text) - at < LONGEST_HEADER and closer is None:
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
            self._keep(text[at:to])
        else:
            self._raw = self._opener = ""
        if reader.status == "failed":
            return self._fail(text, to, to)
        if reader.ended:
            reader.ended = False
            self._opener = ""
            if not sink.end():
                return self._fail(text, to, to)
            self._raw = ""
        if reader.status != "open":
            self._where, self._reader = "close", None
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
                self._keep(text[at:stop])
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
                    self._keep(text[at:stop])
                    return stop
                return at
            if found.lastindex is not None or text.startswith(grammar.closers, stop):
                at = stop
            elif self._raw:
                self._where, self._said = "section" if self._sectioned else "content", False
                self._tail_is_text()
                self._raw = ""
                return at
        for closer in grammar.call_close:
            if text.startswith(closer, at):
                at += len(closer)
                break
        self._raw = ""
        self._where, self._said = "section" if self._sectioned else "content", False
        return at


def _drop(text: str) -> None:
    """Text that belongs to nothing."""
