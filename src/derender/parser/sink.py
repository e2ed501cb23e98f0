"""Where readers put what they find of a call, and what becomes of it.

`incremental`: a call begins once its name is known and its arguments follow as they come. `complete`: it is given
whole, when it is closed and its arguments are JSON; text that never becomes a call is content.
"""

from __future__ import annotations

import json
from typing import Any

from derender.parser.events import ContentText, Event, ToolCallArguments, ToolCallBegin, ToolCallEnd


class Sink:
    """The calls of one output. `index` is that of the call in work, or of the next one."""

    __slots__ = ("arguments_held", "complete", "ended", "events", "given", "id", "index", "name")

    def __init__(self, events: list[Event], *, complete: bool) -> None:
        self.events = events
        self.complete = complete
        self.index = 0
        self.name: str | None = None
        self.id: str | None = None
        self.arguments_held = ""
        self.given = False
        """Whether the call in work has arguments already."""
        self.ended = 0
        """How many calls were closed."""

    def begin(self, name: str, *, id: str | None = None) -> None:
        """The name of the call is known."""
        self.name = name.strip()
        self.id = id
        self.given = False
        self.arguments_held = ""
        if not self.complete:
            self.events.append(ToolCallBegin(self.index, self.name, id))

    def arguments(self, text: str) -> None:
        """The next characters of the arguments."""
        if not text:
            return
        self.given = True
        if self.complete:
            self.arguments_held += text
        else:
            self.events.append(ToolCallArguments(self.index, text))

    def end(self, raw: str) -> None:
        """The call is closed. `raw` is all that the model wrote of it, for the case that it is none."""
        if not self.given:
            self.arguments("{}")
        if self.complete:
            if not _is_json(self.arguments_held):
                self.drop()
                self.events.append(ContentText(raw))
                return
            self.events.append(ToolCallBegin(self.index, self.name or "", self.id))
            self.events.append(ToolCallArguments(self.index, self.arguments_held))
        self.events.append(ToolCallEnd(self.index))
        self.ended += 1
        self.index += 1
        self.drop()

    def leave(self) -> None:
        """The output ended inside the call: what was given of it stays as it is."""
        if self.name is not None:
            self.index += 1
        self.drop()

    def drop(self) -> None:
        """Forget the call in work."""
        self.name = self.id = None
        self.arguments_held = ""
        self.given = False

    def state(self) -> list[Any]:
        """For the snapshot."""
        return [self.index, self.name, self.id, self.arguments_held, self.given, self.ended]

    def restore(self, state: list[Any]) -> None:
        """The inverse of `state`; raises ValueError."""
        self.index, self.name, self.id, self.arguments_held, self.given, self.ended = state


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
