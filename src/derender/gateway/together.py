"""Several pieces of work at once, of which none outlives the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, TypeVar

from derender.engines.owned import Owned

T = TypeVar("T")

_HELD = 8  # items of one source that wait to be taken: what more it has waits at the source

_AGAIN_SECONDS = 1.0
"""After how long a task is cancelled again: a wait that ends just as it is cancelled may swallow that
(python/cpython#86296)."""


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in order. The first error, or a cancellation, ends all the others before it is raised."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:  # in order, so that of several errors the same one is told
            if task in done and (error := task.exception()) is not None:
                raise error
        return [task.result() for task in tasks]
    finally:
        await _end(tasks)


def merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """The items of all sources as they come, each with its source's number.

    An error of one ends all. At its end, however it comes, all sources are closed.
    """

    async def end() -> None:
        for source in sources:
            await source.aclose()

    return Owned(_merged(sources), end=end)


async def _merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    if len(sources) == 1:
        source = sources[0]
        try:
            async for item in source:
                yield 0, item
        finally:
            await source.aclose()
        return
    queue: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue(_HELD)

    async def pump(number: int, source: AsyncGenerator[T, None]) -> None:
        try:
            async for item in source:
                await queue.put((number, item))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)
        finally:
            await source.aclose()

    tasks = [asyncio.ensure_future(pump(number, source)) for number, source in enumerate(sources)]
    running = len(tasks)
    try:
        while running:
            got = await queue.get()
            if got is None:
                running -= 1
            elif isinstance(got, BaseException):
                raise got
            else:
                yield got
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Ends tasks, and waits for their end. What else they raised is known to nobody, and need not be."""
    for task in tasks:
        task.add_done_callback(_looked_at)
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN_SECONDS)


def _looked_at(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
