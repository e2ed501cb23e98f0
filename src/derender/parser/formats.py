"""One model's output format in its variants: what is read natively, and what a guided engine may write instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from derender.formats.table import Calls, JsonMembers, JsonValue, OutputFormat
from derender.parser.compiled import CompiledFormat
from derender.tokenizer import Tokenizer

REQUIRED = Calls(body=JsonMembers(arguments=("parameters", "arguments"), array=True), start_only=True)
"""`tool_choice: required` without a native constraint: a JSON array of calls, and nothing else."""

NAMED = Calls(body=JsonValue(), start_only=True, named=True)
"""A named tool without a native constraint: its arguments, and nothing else."""


@dataclass(frozen=True)
class Formats:
    """A format compiled for a vocabulary, once per way of asking for tools.

    `complete`: a call is given only when it is whole. `trim`: white space at the ends of a region belongs to nothing.
    `defaults`: the server's own chat_template_kwargs.
    """

    table: OutputFormat
    tokenizer: Tokenizer
    complete: bool = False
    trim: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "trim", self.trim or self.table.trim)
        native = CompiledFormat(self.table, self.tokenizer)
        object.__setattr__(self, "_by_choice", {"none": native, "auto": native})
        if self.table.calls:
            for choice, guided in (("required", REQUIRED), ("named", NAMED)):
                both = self.table.replace(calls=(*self.table.calls, guided))
                self._by_choice[choice] = CompiledFormat(both, self.tokenizer)
        else:
            self._by_choice.update(required=native, named=native)

    _by_choice: dict[str, CompiledFormat] = field(init=False, repr=False, compare=False)

    def compiled(self, choice: Literal["none", "auto", "required", "named"]) -> CompiledFormat:
        """The format to read an answer with, by its tool choice."""
        return self._by_choice[choice]

    @property
    def native(self) -> CompiledFormat:
        """The format without what only a guided engine writes."""
        return self._by_choice["auto"]
