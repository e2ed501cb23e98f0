"""An incremental JSON scanner: finds where a value ends and passes its characters through as they are.

Lenient on purpose: it follows brackets and strings and nothing else, since a model's arguments are passed on as the
model wrote them. A marker inside a string is data; outside one it ends a broken value.
"""

from __future__ import annotations

import re

from derender.parser.marks import MARK

_IN_STRING = re.compile(r'["\\]')
_BLANK = " \t\r\n"
_SCALAR_END = re.compile(r"[,}\]\s\ud800-\udfff]")
_DEEPEST = 512


class JsonScan:
    """The state of one value: the open brackets, and whether the end is inside a string (and behind a backslash).

    `stack` is the open brackets; `where` is "" before the value, "v" outside strings, "s" in a string, "e" behind a
    backslash, "n" in a scalar, "." after the value, "!" where it broke.
    """

    __slots__ = ("_outside", "closers", "stack", "where")

    def __init__(self, closers: tuple[str, ...] = (), *, state: tuple[str, str] = ("", "")) -> None:
        self.closers = closers
        texts = [re.escape(text) for text in closers if len(text) > 1]
        self._outside = re.compile("|".join([r'["{}\[\]\ud800-\udfff]', *texts]))
        self.stack, self.where = state

    @property
    def done(self) -> bool:
        """Whether the value has ended."""
        return self.where in (".", "!")

    @property
    def broken(self) -> bool:
        """Whether it ended at a marker, or by brackets that do not match."""
        return self.where == "!"

    @property
    def in_string(self) -> bool:
        """Whether the end of what was seen is inside a string, where markers are data."""
        return self.where in ("s", "e")

    def feed(self, text: str, at: int) -> int:
        """Scan on from `at`; the place up to which the text belongs to the value. `done` tells whether it ended."""
        size = len(text)
        while at < size:
            match self.where:
                case "":
                    character = text[at]
                    if character in _BLANK:
                        at += 1
                    elif character in '{["':
                        self.where = "v"
                    elif MARK.match(character) or character in ",}]:":
                        self.where = "!"
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
                    found = _SCALAR_END.search(text, at)
                    if found is None:
                        return size
                    self.where = "."
                    return found.start()
                case "v":
                    found = self._outside.search(text, at)
                    if found is None:
                        return size
                    token = found[0]
                    if token == '"':
                        self.where = "s"
                    elif token in "{[":
                        if len(self.stack) >= _DEEPEST:
                            self.where = "!"
                            return found.start()
                        self.stack += token
                    elif token in "}]":
                        if not self.stack or self.stack[-1] != ("{" if token == "}" else "["):
                            self.where = "!"
                            return found.start()
                        self.stack = self.stack[:-1]
                        if not self.stack:
                            self.where = "."
                            return found.end()
                    else:
                        self.where = "!"
                        return found.start()
                    at = found.end()
                case _:
                    return at
        return at
