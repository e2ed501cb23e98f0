"""What all call readers share."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from derender.parser.marks import Marks
from derender.parser.sink import Sink


class Reader:
    """Reads the body of a call wrapper, piece by piece.

    `status`: "open" while there is more to read; "done" when the body has ended well; "broken" when it ended after a
    name was known and cannot go on; "failed" when it is no call. `ended` is set when one call of the body is whole (an
    array has several); the engine takes it back. `closers` are the markers that end the wrapper. `over` is set when the
    output ends with the text that is fed.
    """

    __slots__ = ("closers", "ended", "id", "marks", "over", "status")

    marked: ClassVar[bool] = True
    """Whether texts of its state may have marker characters."""

    def __init__(self, marks: Marks, closers: tuple[str, ...]) -> None:
        self.marks = marks
        self.closers = closers
        self.status: Literal["open", "done", "broken", "failed"] = "open"
        self.ended = False
        self.over = False
        self.id: str | None = None

    def closes(self, text: str, at: int) -> bool:
        """Whether a closer stands at a place."""
        return any(text.startswith(closer, at) for closer in self.closers)

    def feed(self, text: str, at: int, sink: Sink) -> int:
        """Read on; the place up to which the text was taken. The engine comes again with the rest and more."""
        raise NotImplementedError

    def finish(self, text: str, at: int, sink: Sink) -> None:
        """The output ends here: give out what may still be given of the call in work. `text[at:]` was not taken."""

    def state(self) -> list[Any]:
        """For the snapshot: a list of numbers, strings and lists."""
        raise NotImplementedError

    def restore(self, state: list[Any]) -> None:
        """The inverse of `state`; raises ValueError for what it cannot have given, or a later push could not bear."""
        raise NotImplementedError
