"""Where long work runs, so that the event loop stays free: a few threads and a bound on what waits for them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from derender.protocol.errors import Unavailable

T = TypeVar("T")

INLINE_BYTES = 65536
"""Bodies up to this size are worked on in the event loop. 64 KiB of chat take about 1 ms there; handing work to a
thread and back costs about 0.1 ms, five times the work of a short chat."""

INLINE_DERENDER_BYTES = 4 * INLINE_BYTES
"""The same for answers to derender, whose bytes are numbers more than text: 256 KiB, the logprobs of 800 tokens with
five alternatives, take about 2 ms."""

MAX_THREADS = 4
"""Encoding releases the interpreter lock, the rest does not, so more threads only make the event loop wait longer:
it waits for each of them up to the interpreter's switch interval."""

ALONE_BYTES = 4 << 20
"""Larger bodies are worked on one at a time. Reading or writing JSON holds the interpreter lock from start to end,
about 1.5 ms for each MiB: of several such threads the event loop would have to wait for all."""

MAX_WAITING_BYTES = 1 << 30
"""Bodies in work or waiting, in bytes. Beyond it new ones are told to come again (503)."""


class WorkPool:
    """Runs functions in threads. `workers`: how many at once."""

    def __init__(self, *, workers: int | None = None, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        threads = workers or min(MAX_THREADS, os.cpu_count() or 1)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="derender-work")
        self._alone = ThreadPoolExecutor(1, thread_name_prefix="derender-alone")
        self._foreign = ThreadPoolExecutor(threads, thread_name_prefix="derender-foreign")
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting_bytes = 0
        self._closed = False

    async def run(self, function: Callable[[], T], *, size: int, foreign: bool = False, alone: bool = False) -> T:
        """`function()` in a thread. `size`: bytes that it holds. Raises what it raises, and `Unavailable` when full.

        `alone`: it holds the interpreter's lock for as long as a large body.

        `foreign`: it waits for code of the caller's, which may take as long as it is let, and is stopped when this is
        cancelled; the others wait for none of it.
        """
        if self._closed:
            raise Unavailable("the server is shutting down")
        if self._waiting_bytes and self._waiting_bytes + size > self._max_waiting_bytes:
            raise Unavailable("the server has too much work waiting; try again later")
        self._waiting_bytes += size
        alone = alone or size > ALONE_BYTES
        executor = self._foreign if foreign else self._alone if alone else self._executor
        loop = asyncio.get_running_loop()
        try:
            return await (_stoppable(executor, function) if foreign else loop.run_in_executor(executor, function))
        finally:
            self._waiting_bytes -= size

    async def close(self) -> None:
        """Ends the threads; what still waits is dropped."""
        self._closed = True
        for executor in (self._executor, self._alone, self._foreign):
            executor.shutdown(wait=False, cancel_futures=True)


async def _stoppable(executor: ThreadPoolExecutor, function: Callable[[], T]) -> T:
    from derender.template.limited import Asker  # a server without templates does without Jinja

    asker = Asker()
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, asker.run, function)
    except asyncio.CancelledError:
        asker.leave()
        raise
