"""Parameters of which a key may come more than once, its values being one list then."""

from __future__ import annotations

from typing import Any

from derender.parser.coerce import STRING
from derender.parser.json_text import quoted
from derender.parser.parameters import ParametersReader
from derender.parser.shape import Plain, Shape, checked
from derender.parser.sink import Sink
from derender.parser.typed import typed


class MergedState(Shape, frozen=True):
    """The state of a `MergedParametersReader`."""

    parameters: list[Any]
    values: list[tuple[Plain, Plain]]


class MergedParametersReader(ParametersReader):
    """Reads parameters as `ParametersReader` does, and gives the arguments when the call ends: until then, any value
    may prove to be the first of a list."""

    __slots__ = ("values",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.values: list[tuple[str, str]] = []  # a key and the text of a value each

    def _begin_argument(self, sink: Sink) -> None:
        self.kind = "typed"  # all of it waits
        self.count += 1

    def _end_value(self, sink: Sink, *, last: bool) -> None:
        self.values.append((self.key, self._unframed("".join(self.held))))
        self.held, self.phase = [], "between"

    def _close(self, sink: Sink) -> None:
        sink.arguments(self._merged() + "}")
        self.status, self.ended = "done", True

    def _merged(self) -> str:
        """All arguments, without the last bracket."""
        values: dict[str, list[str]] = {}
        for key, text in self.values:
            values.setdefault(key, []).append(text)
        return "{" + ", ".join(f"{quoted(key)}: {self._one(key, texts)}" for key, texts in values.items())

    def _one(self, key: str, texts: list[str]) -> str:
        types, typing = self._schemas.types(self.tool, key), self._table.typing
        if len(texts) == 1:
            return typed(texts[0], typing, types)
        # A list that the schema wants is there already: its elements are as they were read.
        items = [typed(text, typing, STRING if "array" in types else types) for text in texts]
        if items[0].startswith("["):  # the first value is a list, and the others come behind its elements
            first, *items = items
            inner = first.strip()[1:-1].strip()
            items = [inner, *items] if inner else items
        return f"[{', '.join(items)}]"

    def finish(self, text: str, at: int, sink: Sink) -> None:
        """The output ends inside the call: the values that are whole are given."""
        if self.values:
            sink.arguments(self._merged())

    def state(self) -> list[Any]:
        """For the snapshot."""
        return [super().state(), self.values]

    def restore(self, state: list[Any]) -> None:
        """The inverse of `state`."""
        now = checked(MergedState, state)
        super().restore(now.parameters)
        self.values = now.values
