"""An iterator that owns what has to be ended, whether anybody begins to take from it or not."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def _at_once(item: T) -> T:
    return item


class Owned(AsyncGenerator[T, None]):
    """`items`, which end what they own when they are over or closed. Where they are closed before anybody has begun to
    take them, `end` is called instead: nothing of a generator that never began runs, not even its `finally`.

    `first`: items that go before them, which have been taken from them already.
    """

    __slots__ = ("_begun", "_end", "_first", "_items")

    def __init__(
        self, items: AsyncGenerator[T, None], *, end: Callable[[], Awaitable[None]], first: Sequence[T] = ()
    ) -> None:
        self._items = items
        self._end = end
        self._first = deque(first)
        self._begun = False

    def __aiter__(self) -> Owned[T]:
        return self

    def __anext__(self) -> Any:
        self._begun = True
        if self._first:
            return _at_once(self._first.popleft())
        return self._items.__anext__()

    def asend(self, value: None, /) -> Any:
        return self.__anext__()

    def athrow(self, *error: Any) -> Any:
        self._begun = True
        return self._items.athrow(*error)

    async def aclose(self) -> None:
        begun, self._begun = self._begun, True
        self._first.clear()
        try:
            await self._items.aclose()
        finally:
            if not begun:
                await self._end()


def one_by_one(several: AsyncGenerator[list[T], None]) -> AsyncGenerator[T, None]:
    """The items of lists, which it ends."""
    return Owned(_one_by_one(several), end=several.aclose)


async def _one_by_one(several: AsyncGenerator[list[T], None]) -> AsyncGenerator[T, None]:
    try:
        async for items in several:
            for item in items:
                yield item
    finally:
        await several.aclose()
