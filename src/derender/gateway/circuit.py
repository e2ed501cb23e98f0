"""Whether an engine may be tried, by what became of the requests and probes before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

CircuitState = Literal["closed", "open", "half-open"]


def loop_time() -> float:
    """The event loop's clock, in seconds."""
    return asyncio.get_running_loop().time()


class Circuit:
    """Whether an engine may be tried: closed (yes), open (not until the cooldown is over), half-open (once).

    `failures` requests, or as many probes, that fail in a row open it. They are counted apart: an engine may well
    answer its health route and fail every request. For the same reason a probe that succeeds closes the circuit but
    leaves the requests' count one short of opening it again. What was begun before the circuit last opened says
    nothing of the engine as it is now, and is not counted.
    """

    def __init__(self, *, failures: int, cooldown: float, now: Callable[[], float] = loop_time) -> None:
        self._limit = max(1, failures)
        self._cooldown = cooldown
        self._now = now
        self._failed_requests = 0
        self._failed_probes = 0
        self._until: float | None = None
        self._trial = False
        self._probing = False
        self._epoch = 0

    @property
    def state(self) -> CircuitState:
        """What it is now."""
        if self._until is None:
            return "closed"
        return "half-open" if self._now() >= self._until else "open"

    @property
    def closed(self) -> bool:
        """Whether it is closed; costs no look at the clock."""
        return self._until is None

    @property
    def passes(self) -> bool:
        """Whether a request may go through now."""
        if self._until is None:
            return True
        return not self._trial and not self._probing and self._now() >= self._until

    @property
    def seconds_left(self) -> float:
        """Until a probe may try the engine; 0 where one may now."""
        return 0.0 if self._until is None else max(0.0, self._until - self._now())

    def enter(self) -> int:
        """A request goes through; `leave` takes what this returns."""
        if self._until is not None:
            self._trial = True
        return self._epoch

    def leave(self, entered: int, /, *, ok: bool | None) -> None:
        """A request has ended; `ok` None: in a way that says nothing of the engine's health."""
        if entered != self._epoch:
            return
        self._trial = False
        if ok:
            self._failed_requests = self._failed_probes = 0
            self._until = None
        elif ok is False:
            self._failed_requests = min(self._failed_requests + 1, self._limit)
            if self._until is not None or self._failed_requests >= self._limit:
                self._open()

    def begin_probe(self) -> int:
        """A probe begins; `end_probe` takes what this returns. Until then no request may try a half-open circuit."""
        self._probing = True
        return self._epoch

    def end_probe(self, begun: int, /, *, ok: bool | None) -> None:
        """A probe has ended; `ok` None: before it found out anything."""
        self._probing = False
        if begun != self._epoch:
            return
        if ok:
            self._failed_probes = 0
            if self._until is not None:
                self._failed_requests = min(self._failed_requests, self._limit - 1)
                self._until = None
                self._trial = False
        elif ok is False:
            self._failed_probes = min(self._failed_probes + 1, self._limit)
            if self._until is not None or self._failed_probes >= self._limit:
                self._open()

    def _open(self) -> None:
        self._until = self._now() + self._cooldown
        self._trial = False
        self._epoch += 1
