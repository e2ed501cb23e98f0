"""How long an engine may say nothing: a clock that is looked at once in a while, not set anew for each chunk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import TypeVar

from derender.engines.errors import EngineTimeout

T = TypeVar("T")


class Patience:
    """Bounds waits for one engine: `first` seconds until its first word, `between` after that, `total` for all.

    `wait` costs two assignments; one timer serves all waits of an answer. Time in which nobody waits for the engine (a
    client that takes its answer slowly) does not count. A context manager: leaving it ends the timer.
    """

    def __init__(self, *, first: float, between: float, total: float, name: str = "the engine") -> None:
        self._limit = first
        self._between = between
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + total
        self._task: asyncio.Task[object] | None = None
        self._since = 0.0
        self._expired: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Patience:
        self._arm(min(self._loop.time() + self._limit, self._end))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def wait(self, work: Awaitable[T]) -> T:
        """The result of `work`. Raises `EngineTimeout` when it does not come in time."""
        self._since = self._loop.time()
        self._task = asyncio.current_task()
        try:
            result = await work
        except asyncio.CancelledError:
            if self._expired is None:
                raise
            _uncancel()
            raise EngineTimeout(self._expired) from None
        finally:
            self._task = None
        self._limit = self._between
        return result

    def _arm(self, at: float) -> None:
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        # Where nobody waits, it is looked at again soon.
        due = now + min(self._limit, 1.0) if self._task is None else self._since + self._limit
        if now >= self._end:
            self._expire(f"{self._name} did not end its answer in time")
        elif now >= due:
            self._expire(f"{self._name} did not say anything for {self._limit:g} seconds")
        else:
            self._arm(min(due, self._end))

    def _expire(self, message: str) -> None:
        if self._task is None:  # the total is over while the client takes its time: told at the next wait
            self._arm(self._loop.time() + 0.5)
            return
        self._expired = message
        self._task.cancel()


def _uncancel() -> None:
    """Takes back the cancellation that was ours (Python 3.11 and later count them)."""
    task = asyncio.current_task()
    uncancel = getattr(task, "uncancel", None)
    if uncancel is not None:
        uncancel()
