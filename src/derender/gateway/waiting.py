"""Who waits for an engine, in the order in which they came."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from derender.gateway.backends import Backend
from derender.gateway.settings import Role
from derender.protocol.errors import ApiError

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Want:
    """What a request asks of a pool: an engine of a model in one role, none of `exclude`, with room for `need` tokens,
    prompt and output together."""

    model: str
    role: Role
    token_ids: Sequence[int] = ()
    exclude: Collection[Backend] = ()
    need: int = 0

    @property
    def line(self) -> tuple[str, Role]:
        """Where it waits: with all that are for the same engines."""
        return self.model, self.role


@dataclass(eq=False, slots=True)
class Waiter(Generic[P]):
    """One that waits; `given` gets its place, or the error that refuses it."""

    number: int
    want: Want
    given: asyncio.Future[P] = field(repr=False)


class Waiting(Generic[P]):
    """All that wait, in lines: one for each model and role.

    `give` gives a place, or None where one may come free, or raises an `ApiError` where none will. `narrow` tells
    whether others of a want's line may be given what it cannot have.
    """

    def __init__(self, *, give: Callable[[Want], P | None], narrow: Callable[[Want], bool]) -> None:
        self._give = give
        self._narrow = narrow
        self._numbers = itertools.count()
        self._lines: dict[tuple[str, Role], OrderedDict[int, Waiter[P]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Waiter[P]]:
        return itertools.chain.from_iterable(line.values() for line in self._lines.values())

    def join(self, want: Want, /) -> Waiter[P]:
        """Waits at the end of its line."""
        waiter: Waiter[P] = Waiter(next(self._numbers), want, asyncio.get_running_loop().create_future())
        self._lines.setdefault(want.line, OrderedDict())[waiter.number] = waiter
        self._count += 1
        return waiter

    def leave(self, waiter: Waiter[P], /) -> None:
        """Waits no more; calls after the first do nothing."""
        line = self._lines.get(waiter.want.line)
        if line is not None and line.pop(waiter.number, None) is not None:
            self._count -= 1
            if not line:
                del self._lines[waiter.want.line]

    def refuse(self, waiter: Waiter[P], error: ApiError, /) -> None:
        """Ends a wait with an error."""
        if not waiter.given.done():
            waiter.given.set_exception(error)
        self.leave(waiter)

    def refuse_all(self, error: Callable[[], ApiError], /) -> None:
        """Ends all waits."""
        for waiter in list(self):
            self.refuse(waiter, error())

    def refuse_lost(self, lost: Callable[[Want], ApiError | None], /) -> None:
        """Ends the waits for what will not come: those for which `lost` gives an error.

        Of those in a line that exclude no engine, the one that needs most room is asked first: what it may have, the
        others may.
        """
        for line in list(self._lines.values()):
            largest = max((one.want for one in line.values() if not one.want.exclude), key=_need, default=None)
            some = largest is not None and lost(largest) is not None
            for waiter in list(line.values()):
                if (some or waiter.want.exclude) and (error := lost(waiter.want)) is not None:
                    self.refuse(waiter, error)

    def dispatch(self) -> None:
        """Gives what is free to those who wait, in the order in which they came, whatever model they wait for.

        A line is left at the first that gets nothing, unless it asks for more than the others do: those that exclude
        engines, or need room that not all have, may be passed by the next.
        """
        heads: list[tuple[int, Waiter[P], _Rest[P]]] = []
        for line in self._lines.values():
            rest = _Rest(iter(line.values()))
            heads.extend((waiter.number, waiter, rest) for waiter in itertools.islice(rest, 1))
        heapq.heapify(heads)
        done: list[Waiter[P]] = []
        while heads:
            _, waiter, rest = heads[0]
            if waiter.given.done() or self._serve(waiter):
                done.append(waiter)
            elif not self._narrow(waiter.want):
                heapq.heappop(heads)
                continue
            else:
                rest.missed(waiter.want)
            following = next(rest, None)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following.number, following, rest))
        for waiter in done:
            self.leave(waiter)

    def _serve(self, waiter: Waiter[P]) -> bool:
        """Gives a waiter its place or its refusal; whether it had either."""
        try:
            place = self._give(waiter.want)
        except ApiError as error:
            waiter.given.set_exception(error)
            return True
        if place is not None:
            waiter.given.set_result(place)
        return place is not None


class _Rest(Iterator[Waiter[P]]):
    """The rest of a line, without those that need at least as much room as one that got nothing."""

    def __init__(self, waiters: Iterator[Waiter[P]]) -> None:
        self._waiters = waiters
        self._limit: int | None = None

    def __next__(self) -> Waiter[P]:
        limit = self._limit
        if limit is None:
            return next(self._waiters)
        for waiter in self._waiters:
            if waiter.want.need < limit or waiter.want.exclude:
                return waiter
        raise StopIteration

    def missed(self, want: Want) -> None:
        """Nothing was free for this one. It was served last, so that nobody with a larger need gets anything."""
        if not want.exclude and (self._limit is None or want.need < self._limit):
            self._limit = want.need


def _need(want: Want) -> int:
    return want.need
