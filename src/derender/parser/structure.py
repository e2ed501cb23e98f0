"""What stands around the values of parameters, and the look ahead that tells a closer from the same letters in a value.

Formats with parameters in tags know no escaping: a file that is written through a call may hold the tags themselves. A
closer counts where, after blanks, only what may follow one comes: another parameter, or the call's real end, which is
a closer that the section's closer, another call or the end of the output follows. All looks ahead are bounded.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from derender.formats.table import Parameters
from derender.parser.marks import Marks, Partial

LONGEST_OPENER = 512
"""Characters that may be waited for until a parameter's opener is whole. Patterns in tables must match within them."""

_LONGEST_HEAD = 128
_MOST_CLOSERS = 8  # in a row; more of them are data: each is looked at once for each before it
_BLANKS = re.compile(r"\s{0,256}")


class Frame(NamedTuple):
    """The markers around a call's body, in marked text. `ends`: what ends the message that it stands in."""

    call_open: tuple[str, ...]
    call_close: tuple[str, ...]
    section_open: tuple[str, ...]
    section_close: tuple[str, ...]
    ends: tuple[str, ...] = ()


class Ahead(Enum):
    """What comes next."""

    PARAMETER = "parameter"
    VALUE_CLOSE = "value close"
    CALL_CLOSE = "call close"
    SECTION_CLOSE = "section close"
    OPENER = "opener"
    """Another call or section begins."""

    END = "end"
    """The output ends, perhaps in the middle of one of these; or blanks without end come."""

    OTHER = "other"
    WAIT = "wait"
    """It cannot be told yet."""


Verdict = bool | None
"""Whether something ends a value; None: it cannot be told yet."""


class Structure:
    """One table's tags of parameters, ready for one vocabulary."""

    def __init__(self, table: Parameters, marks: Marks, frame: Frame) -> None:
        self.table = table
        self.close = marks.literal(table.close)
        head = marks.literal(table.open)
        self._squeezed = "".join(head.split())
        self._head = re.compile(_loose(head))
        self._opener = re.compile(_loose(head) + marks.pattern(table.key), re.DOTALL)
        self._kinds: dict[str, Ahead] = {}
        for literals, kind in (
            ((self.close,), Ahead.VALUE_CLOSE),
            (frame.section_close, Ahead.SECTION_CLOSE),
            (frame.call_close, Ahead.CALL_CLOSE),
            (frame.ends, Ahead.END),
            ((*frame.call_open, *frame.section_open), Ahead.OPENER),
        ):
            for literal in literals:
                self._kinds.setdefault(literal, kind)
        self._token = _any(self._kinds)
        self._partial = Partial(self._kinds)
        cdata = ("<![CDATA[",) if table.xml else ()
        inside = [*(text for text, kind in self._kinds.items() if kind not in (Ahead.OPENER, Ahead.END)), *cdata]
        ordered = sorted(inside, key=len, reverse=True)
        self.in_value = re.compile("|".join([*map(re.escape, ordered), _loose(head)]))
        """What may end a value, or begin a raw part of it."""
        self._in_value_partial = Partial([*inside])
        self._anything = re.compile("|".join([self._token.pattern, _loose(head)]))

    def kind(self, text: str) -> Ahead:
        """What a match of `in_value` is."""
        return self._kinds.get(text, Ahead.PARAMETER)

    def held(self, text: str, at: int) -> int:
        """How much of the end of a value's text may still become something that ends it."""
        return max(self._in_value_partial.held(text, at), self._held_head(text, at))

    def _held_head(self, text: str, at: int) -> int:
        start = text.rfind(self._squeezed[0], max(at, len(text) - _LONGEST_HEAD))
        return len(text) - start if start >= 0 and self._becomes_head(text, start) else 0

    def opener(self, text: str, at: int) -> re.Match[str] | None:
        """A parameter's whole opener."""
        return self._opener.match(text, at)

    def becomes_opener(self, text: str, at: int) -> bool:
        """Whether what begins here is no opener yet, but may become one."""
        if self._head.match(text, at) is not None:
            return len(text) - at < LONGEST_OPENER
        return self._becomes_head(text, at)

    def _becomes_head(self, text: str, at: int) -> bool:
        if len(text) - at > _LONGEST_HEAD:
            return False
        rest = "".join(text[at:].split())
        return len(rest) < len(self._squeezed) and self._squeezed.startswith(rest)

    def next_mark(self, text: str, at: int) -> int:
        """The next place where a parameter, a closer or an opener stands, or may yet prove to stand."""
        found = self._anything.search(text, at)
        if found is not None:
            return found.start()
        return len(text) - max(self._held_head(text, at), self._partial.held(text, at))

    def ahead(self, text: str, at: int, *, over: bool) -> tuple[Ahead, int]:
        """What comes after blanks, and where it ends (a parameter: where it begins). `over`: the output ends here."""
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            return (Ahead.END if over else Ahead.WAIT), at
        if text[at].isspace():
            return Ahead.END, at
        found = self._token.match(text, at)
        if found is not None:
            return self._kinds[found[0]], found.end()
        if self._head.match(text, at) is not None:
            return Ahead.PARAMETER, at
        if self._partial.held(text, at) == len(text) - at or self._becomes_head(text, at):
            return (Ahead.END if over else Ahead.WAIT), at
        return Ahead.OTHER, at

    def after_close(self, text: str, at: int, *, over: bool, sectioned: bool) -> Verdict:
        """Whether a value's closer that ends at `at` is one, no parameter following."""
        kind, at = self.ahead(text, at, over=over)
        if kind is Ahead.CALL_CLOSE:
            return self._after_call(text, at, over=over, lenient=not sectioned)
        if kind is Ahead.SECTION_CLOSE:
            return self._after_section(text, at, over=over)
        return None if kind is Ahead.WAIT else kind is not Ahead.OTHER

    def ends_call(self, text: str, at: int, *, over: bool) -> Verdict:
        """Whether a call's closer inside a value that ends at `at` ends the call, the value's own one missing."""
        return self._after_call(text, at, over=over, lenient=False)

    def ends_section(self, text: str, at: int, *, over: bool) -> Verdict:
        """The same for the section's closer."""
        kind, _ = self.ahead(text, at, over=over)
        return None if kind is Ahead.WAIT else kind in (Ahead.END, Ahead.OPENER)

    def _after_call(self, text: str, at: int, *, over: bool, lenient: bool) -> Verdict:
        """`lenient`: there is no section whose closer has to come; anything but a value's closer may follow."""
        for _ in range(_MOST_CLOSERS):
            kind, at = self.ahead(text, at, over=over)
            if kind is not Ahead.CALL_CLOSE:
                break
        if kind is Ahead.SECTION_CLOSE:
            return self._after_section(text, at, over=over)
        if kind is Ahead.WAIT:
            return None
        return kind in (Ahead.END, Ahead.OPENER) or (lenient and kind is not Ahead.VALUE_CLOSE)

    def _after_section(self, text: str, at: int, *, over: bool) -> Verdict:
        """A whole call in a value is followed by the value's closer: data."""
        kind, _ = self.ahead(text, at, over=over)
        return None if kind is Ahead.WAIT else kind is not Ahead.VALUE_CLOSE


def _any(literals: dict[str, Ahead]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(literals, key=len, reverse=True))))


def _loose(head: str) -> str:
    """A pattern for an opener's literal part with blanks where a model may write some: `< parameter = `."""
    parts = []
    for n, character in enumerate(head):
        if character.isspace():
            parts.append(r"\s{0,8}")
        elif character == "=":
            parts.append(r"\s{0,8}=\s{0,8}")
        elif character == "<" and n == 0 and len(head) > 1:
            parts.append(r"<\s{0,8}")
        else:
            parts.append(re.escape(character))
    return "".join(parts)
