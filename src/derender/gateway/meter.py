"""What the loop tells of its work; whoever runs it counts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Protocol

Stage = Literal["render", "queue", "prefill", "first_token", "inter_token", "generate", "derender"]


class Meter(Protocol):
    """Called in the event loop's thread; must not wait or raise. Times are seconds."""

    def stage(self, stage: Stage, seconds: float, /) -> None:
        """One run of a stage; of `inter_token`, one gap between two chunks of an engine."""

    def tokens(self, *, prompt: int = 0, generated: int = 0) -> None:
        """Tokens sent to and taken from engines."""

    def aborted(self, reason: Literal["client", "stop", "timeout", "error", "shutdown"], /) -> None:
        """A request was ended at its engine before its end."""

    def retried(self) -> None:
        """A request that failed before its first token goes to another engine."""

    def failed(self, engine: str, reason: str, /) -> None:
        """An engine failed a request."""

    def engine_state(self, engine: str, *, up: bool, running: int) -> None:
        """What is known of an engine now."""

    def engines(self, names: Collection[str], /) -> None:
        """The engines that there are now; nothing more is told of those that were told of and are not among them."""


class NoMeter:
    """Counts nothing."""

    def stage(self, stage: Stage, seconds: float, /) -> None: ...

    def tokens(self, *, prompt: int = 0, generated: int = 0) -> None: ...

    def aborted(self, reason: str, /) -> None: ...

    def retried(self) -> None: ...

    def failed(self, engine: str, reason: str, /) -> None: ...

    def engine_state(self, engine: str, *, up: bool, running: int) -> None: ...

    def engines(self, names: Collection[str], /) -> None: ...
