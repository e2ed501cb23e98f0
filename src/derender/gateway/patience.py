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

    `wait` costs some assignments; one timer serves all waits of an answer. After the first word, time in which nobody
    waits for the engine (a client that takes its answer slowly) does not count. A context manager: leaving it ends the
    timer.
    """

    def __init__(self, *, first: float, between: float, total: float, name: str = "the engine") -> None:
        self._limit = first
        self._between = between
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._end = self._since + total
        self._spoke = False
        self._task: asyncio.Task[object] | None = None
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

    async def wait(self, work: Awaitable[T], *, word: bool = True) -> T:
        """The result of `work`. Raises `EngineTimeout` when it does not come in time.

        `word` False: what comes is no word of the answer yet. Servers send a stream's head before they have anything
        to put into it.
        """
        if self._spoke:
            self._since = self._loop.time()
        self._task = asyncio.current_task()
        try:
            result = await work
        except asyncio.CancelledError:
            if self._expired is None or _uncancelled() > 0:
                raise  # somebody else wants the end, too
            raise EngineTimeout(self._expired) from None
        finally:
            self._task = None
        if word and not self._spoke:
            self._spoke, self._limit = True, self._between
            self._arm(min(self._loop.time() + self._between, self._end))  # it was set for the first word
        return result

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        # Where nobody waits, it is looked at again soon.
        due = now + min(self._limit, 1.0) if self._task is None and self._spoke else self._since + self._limit
        if now >= self._end:
            self._expire(f"{self._name} did not end its answer in time")
        elif now >= due:
            self._expire(f"{self._name} did not say anything for {self._limit:g} seconds")
        else:
            self._arm(min(due, self._end))

    def _expire(self, message: str) -> None:
        task = self._task
        if task is None or _cancelling(task):  # told at the next wait, if there is one
            self._arm(self._loop.time() + 0.5)
            return
        self._expired = message
        task.cancel()


def _cancelling(task: asyncio.Task[object]) -> bool:
    """Whether somebody has asked for the task's end (before Python 3.11 that cannot be known)."""
    cancelling = getattr(task, "cancelling", None)
    return cancelling is not None and cancelling() > 0


def _uncancelled() -> int:
    """Takes back the cancellation that was ours; how many are left (before Python 3.11 they are not counted)."""
    uncancel = getattr(asyncio.current_task(), "uncancel", None)
    return uncancel() if uncancel is not None else 0
