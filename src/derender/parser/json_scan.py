"""An incremental JSON scanner: finds where a value ends and passes its characters through as they are.

Lenient on purpose: it follows brackets and strings and nothing else, since a model's arguments are passed on as the
model wrote them. A marker inside a string is data; outside one it ends a broken value.
"""

from __future__ import annotations

import functools
import re
from typing import Literal

from derender.parser.marks import MARK, Partial
from derender.parser.shape import must

_IN_STRING = re.compile(r'["\\]')
_BLANK = " \t\r\n"
_DEEPEST = 4096
_HEX = frozenset("0123456789abcdefABCDEF")
_HELD_ESCAPE = re.compile(r"(?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"'}


class Enders:
    """The literals that end a call wherever they stand outside a string."""

    __slots__ = ("literals", "outside", "partial", "pattern", "scalar")

    def __init__(self, literals: tuple[str, ...]) -> None:
        self.literals = literals
        ordered = [re.escape(text) for text in sorted(literals, key=len, reverse=True)]
        texts = [re.escape(text) for text in literals if len(text) > 1]
        self.pattern = re.compile("|".join(ordered) or "(?!)")
        self.outside = re.compile("|".join([r'["{}\[\]\ud800-\udfff]', *texts]))
        self.scalar = re.compile("|".join([r"[,}\]\s\ud800-\udfff]", *texts]))
        self.partial = Partial(literals)

    def at(self, text: str, at: int) -> bool:
        """Whether one of them stands at a place."""
        return text.startswith(self.literals, at)

    def may(self, text: str, at: int) -> bool:
        """Whether the rest of the text is the beginning of one of them."""
        return 0 < len(text) - at == self.partial.held(text, at)

    def rest(self, text: str, at: int) -> tuple[int, bool]:
        """Up to where broken text goes on for certain, and whether it ends there."""
        found = self.pattern.search(text, at)
        return (found.start(), True) if found is not None else (len(text) - self.partial.held(text, at), False)


class Rest:
    """Broken text up to what ends its call. `held`: white space that may be its last, and then belongs to nothing."""

    __slots__ = ("_enders", "held")

    def __init__(self, closers: tuple[str, ...], held: str = "") -> None:
        self._enders = enders(closers)
        self.held = held

    @staticmethod
    def check(held: str) -> None:
        """Raises ValueError for what it cannot hold."""
        must("rest", not held.strip(_BLANK))

    def feed(self, text: str, at: int) -> tuple[int, str, bool]:
        """The place up to which the text was taken, what it adds to the broken text, and whether that ends there."""
        end, over = self._enders.rest(text, at)
        body = text[at:end].rstrip(_BLANK)
        blank = text[at + len(body) : end]
        if body:
            body, self.held = self.held + body, blank
        else:
            held, self.held = self.held, ""
            held += blank  # in place: nothing else has it
            self.held = held
        return end, body, over


@functools.lru_cache(maxsize=256)
def enders(literals: tuple[str, ...]) -> Enders:
    """`Enders`, made once for each set of literals."""
    return Enders(literals)


ScanPlace = Literal["", "v", "s", "e", "n", ".", "!"]


class JsonScan:
    """The state of one value: the open brackets, and whether the end is inside a string (and behind a backslash).

    `stack` is the open brackets; `where` is "" before the value, "v" outside strings, "s" in a string, "e" behind a
    backslash, "n" in a scalar, "." after the value, "!" where it broke.
    """

    __slots__ = ("_enders", "stack", "where")

    def __init__(self, closers: tuple[str, ...] = (), *, state: tuple[str, ScanPlace] = ("", "")) -> None:
        self._enders = enders(closers)
        self.stack: str = state[0]
        self.where: ScanPlace = state[1]

    @staticmethod
    def check(stack: str, where: ScanPlace) -> None:
        """Raises ValueError for a state that no value has."""
        must("stack", len(stack) <= _DEEPEST and not stack.strip("{["))
        must("where", bool(stack) if where == "v" else not stack or where in ("s", "e", "!"))

    @property
    def done(self) -> bool:
        """Whether the value has ended."""
        return self.where in (".", "!")

    @property
    def broken(self) -> bool:
        """Whether it ended at a marker, by brackets that do not match, or nested too deep."""
        return self.where == "!"

    def feed(self, text: str, at: int) -> int:
        """Scan on from `at`; the place up to which the text belongs to the value. `done` tells whether it ended.

        What may still become a closer is not taken: it has to be given again, with more.
        """
        size = len(text)
        while at < size:
            match self.where:
                case "":
                    character = text[at]
                    if character in _BLANK:
                        at += 1
                    elif character in '{["':
                        self.where = "v"
                    elif MARK.match(character) or character in ",}]:" or self._enders.at(text, at):
                        self.where = "!"
                        return at
                    elif self._enders.may(text, at):
                        return at
                    else:
                        self.where = "n"
                case "s":
                    found = _IN_STRING.search(text, at)
                    if found is None:
                        return size
                    at = found.end()
                    if found[0] == "\\":
                        self.where = "e"
                    else:
                        self.where = "v" if self.stack else "."
                        if not self.stack:
                            return at
                case "e":
                    at += 1
                    self.where = "s"
                case "n":
                    found = self._enders.scalar.search(text, at)
                    if found is None:
                        return size - self._enders.partial.held(text, at)
                    self.where = "."
                    return found.start()
                case "v":
                    found = self._enders.outside.search(text, at)
                    if found is None:
                        return size - self._enders.partial.held(text, at)
                    at = self._token(found)
                case _:
                    return at
        return at

    def _token(self, found: re.Match[str]) -> int:
        token = found[0]
        if token == '"':
            self.where = "s"
        elif token in ("{", "[") and len(self.stack) < _DEEPEST:
            self.stack += token
        elif token in ("}", "]") and self.stack[-1:] == ("{" if token == "}" else "["):
            self.stack = self.stack[:-1]
            if not self.stack:
                self.where = "."
        else:
            self.where = "!"
            return found.start()
        return found.end()


class JsonString:
    """Decodes one JSON string behind its opening quote, as it comes.

    `held` is an escape that is not whole, or the first half of a surrogate pair. A half without its other half is
    U+FFFD, an escape that JSON does not have stays as written. `done` when the closing quote was met.
    """

    __slots__ = ("done", "held")

    def __init__(self, held: str = "") -> None:
        self.held = held
        self.done = False

    @staticmethod
    def check(held: str) -> None:
        """Raises ValueError for what is no part of an escape."""
        must("string", not held or _HELD_ESCAPE.fullmatch(held) is not None)

    def feed(self, text: str, at: int) -> tuple[int, str]:
        """Read on from `at`: the place up to which the text was taken, and what it says."""
        parts: list[str] = []
        size = len(text)
        while at < size and not self.done:
            if self.held:
                at = self._escape(text[at], at, parts)
                continue
            found = _IN_STRING.search(text, at)
            if found is None:
                parts.append(text[at:])
                return size, "".join(parts)
            parts.append(text[at : found.start()])
            at = found.end()
            if found[0] == "\\":
                self.held = "\\"
            else:
                self.done = True
        return at, "".join(parts)

    def _escape(self, character: str, at: int, parts: list[str]) -> int:
        """One character of an escape; the place behind it, or its own where it belongs to the escape no more."""
        start = 6 if len(self.held) > 6 else 0  # behind the first half of a pair
        size = len(self.held) - start
        if len(self.held) == 6:
            if character == "\\":
                self.held += character
                return at + 1
            parts.append("\ufffd")
            self.held = ""
            return at
        if (character == "u" and size == 1) or (character in _HEX and size > 1):
            self.held += character
            if size == 5:
                self._unit(int(self.held[start + 2 :], 16), start, parts)
            return at + 1
        if start:
            parts.append("\ufffd")
            self.held = self.held[6:]
        elif size == 1:
            parts.append(_ESCAPES.get(character, "\\" + character))
            self.held = ""
            return at + 1
        else:
            parts.append(self.held)
            self.held = ""
        return at

    def _unit(self, unit: int, start: int, parts: list[str]) -> None:
        """One `\\uXXXX` is whole."""
        low = 0xDC00 <= unit < 0xE000
        if start and low:
            high = int(self.held[2:6], 16)
            parts.append(chr(0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00)))
        elif start:
            parts.append("\ufffd")
        if 0xD800 <= unit < 0xDC00:
            self.held = self.held[-6:]
            return
        if not (start and low):
            parts.append("\ufffd" if low else chr(unit))
        self.held = ""
