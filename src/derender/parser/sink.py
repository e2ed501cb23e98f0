"""Where readers put what they find of a call, and what becomes of it.

`incremental`: a call begins once its name is known and its arguments follow as they come. `complete`: it is given
whole, when it is closed and its arguments are JSON; text that never becomes a call is content.
"""

from __future__ import annotations

import json
from typing import Any

from derender.parser.events import Event, ToolCallArguments, ToolCallBegin, ToolCallEnd
from derender.parser.shape import Count, Shape, checked, must


class SinkState(Shape, frozen=True):
    """The state of a `Sink`; no text in it has a marker character."""

    index: Count
    name: str | None
    id: str | None
    held: str
    given: bool
    silent: bool
    ended: Count

    def __post_init__(self) -> None:
        must("ended", self.ended <= self.index)
        must("name", self.name is not None or not (self.id or self.held or self.given or self.silent))


class Sink:
    """The calls of one output. `index` is that of the call in work, or of the next one."""

    __slots__ = ("_held", "_silent", "complete", "ended", "events", "given", "id", "index", "name")

    def __init__(self, events: list[Event], *, complete: bool) -> None:
        self.events = events
        self.complete = complete
        self.index = 0
        self.name: str | None = None
        self.id: str | None = None
        self._held: list[str] = []
        self._silent = False
        self.given = False
        """Whether the call in work has arguments already."""
        self.ended = 0
        """How many calls were closed."""

    def begin(self, name: str, *, id: str | None = None, silent: bool = False) -> None:
        """The name of the call is known. `silent`: it is one that stands for no call, and nothing is given of it."""
        self.name = name.strip()
        self.id = id
        self.given = False
        self._held = []
        self._silent = silent
        if not self.complete and not silent:
            self.events.append(ToolCallBegin(self.index, self.name, id))

    def arguments(self, text: str) -> None:
        """The next characters of the arguments."""
        if not text or self._silent:
            return
        self.given = True
        if self.complete:
            self._held.append(text)
        else:
            self.events.append(ToolCallArguments(self.index, text))

    def end(self) -> bool:
        """The call is closed. False: it proved to be none, and what the model wrote of it is text."""
        if self._silent:
            self.drop()
            return True
        if not self.given:
            self.arguments("{}")
        if self.complete:
            arguments = "".join(self._held)
            if not _is_json(arguments):
                self.drop()
                return False
            self.events.append(ToolCallBegin(self.index, self.name or "", self.id))
            self.events.append(ToolCallArguments(self.index, arguments))
        self.events.append(ToolCallEnd(self.index))
        self.ended += 1
        self.index += 1
        self.drop()
        return True

    def leave(self) -> None:
        """The output ended inside the call: what was given of it stays as it is."""
        if self.name is not None and not self._silent:
            self.index += 1
        self.drop()

    def drop(self) -> None:
        """Forget the call in work."""
        self.name = self.id = None
        self._held = []
        self.given = self._silent = False

    def state(self) -> list[Any]:
        """For the snapshot."""
        return [self.index, self.name, self.id, "".join(self._held), self.given, self._silent, self.ended]

    def restore(self, state: Any) -> None:
        """The inverse of `state`; raises ValueError."""
        now = checked(SinkState, state)
        self.index, self.name, self.id, self.ended = now.index, now.name, now.id, now.ended
        self.given, self._silent = now.given, now.silent
        self._held = [now.held] if now.held else []


def _is_json(text: str) -> bool:
    """Whether text is JSON, which knows no `NaN`, and numbers of any length."""
    try:
        json.loads(text, parse_constant=_refuse, parse_int=len)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> Any:
    raise ValueError(name)
