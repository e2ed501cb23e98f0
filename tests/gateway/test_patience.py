"""Bounds of time, several works at once and iterators that own things: what they do when they are ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.gateway.fakes import at_once, now

from derender.engines.errors import EngineTimeout
from derender.engines.owned import Owned
from derender.gateway.patience import Patience
from derender.gateway.together import merged, together


def test_the_first_word_may_take_longer_than_the_next() -> None:
    async def main() -> None:
        with Patience(first=10, between=1, total=100) as patience:
            await patience.wait(asyncio.sleep(4), word=False)
            await patience.wait(asyncio.sleep(5))
            await patience.wait(asyncio.sleep(0.9))
            with pytest.raises(EngineTimeout, match="for 1 seconds"):
                await patience.wait(asyncio.sleep(1.5))

    at_once(main)


def test_a_silence_after_the_first_word_is_noticed_in_its_time() -> None:
    async def main() -> None:
        began = now()
        with Patience(first=600, between=2, total=3600) as patience:
            await patience.wait(asyncio.sleep(1))
            with pytest.raises(EngineTimeout, match="for 2 seconds"):
                await patience.wait(asyncio.sleep(1000))
        assert now() - began == pytest.approx(3)

    at_once(main)


def test_what_is_no_word_gives_no_more_time() -> None:
    async def main() -> None:
        began = now()
        with Patience(first=10, between=1, total=100) as patience:
            await patience.wait(asyncio.sleep(6), word=False)
            with pytest.raises(EngineTimeout, match="for 10 seconds"):
                await patience.wait(asyncio.sleep(6))
        assert now() - began == pytest.approx(10)

    at_once(main)


def test_time_in_which_nobody_waits_is_not_the_engines() -> None:
    async def main() -> None:
        began = now()
        with Patience(first=10, between=1, total=100) as patience:
            for _ in range(5):
                await patience.wait(asyncio.sleep(0.5))
                await asyncio.sleep(7)
            assert now() - began == pytest.approx(37.5)

    at_once(main)


def test_all_words_together_have_their_time() -> None:
    async def main() -> None:
        with Patience(first=10, between=1, total=100) as patience:
            for _ in range(110):
                await patience.wait(asyncio.sleep(0.9))
            with pytest.raises(EngineTimeout, match="did not end"):
                await patience.wait(asyncio.sleep(1.1))

    at_once(main)


@pytest.mark.parametrize("first", ["timeout", "cancel"])
def test_a_timeout_does_not_swallow_a_cancellation(first: str) -> None:
    """Both at the same moment, in either order."""

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def work() -> None:
            with Patience(first=1, between=1, total=100) as patience:
                try:
                    await patience.wait(asyncio.sleep(50))
                except EngineTimeout:
                    await asyncio.sleep(1000)  # the next engine

        began = now()
        if first == "cancel":
            loop.call_at(began + 1, lambda: task.cancel())
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        if first == "timeout":
            loop.call_at(began + 1, lambda: task.cancel())
        await asyncio.wait([task])
        assert task.cancelled()
        assert now() - began < 2

    at_once(main)


def test_work_that_swallows_its_end_is_ended_again() -> None:
    async def stubborn() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1000)
        await asyncio.sleep(1000)

    async def fails() -> None:
        await asyncio.sleep(1)
        raise ValueError("no")

    async def main() -> None:
        began = now()
        with pytest.raises(ValueError, match="no"):
            await together([stubborn(), fails(), fails()])
        assert now() - began < 10

    at_once(main)


def test_sources_are_closed_though_one_of_them_fails_while_it_is_ended() -> None:
    closed: list[int] = []

    async def many(number: int) -> AsyncGenerator[int, None]:
        try:
            while True:
                await asyncio.sleep(0)
                yield number
        finally:
            closed.append(number)

    async def stubborn() -> AsyncGenerator[int, None]:
        try:
            await asyncio.sleep(1000)
            yield 0
        except asyncio.CancelledError:
            raise ValueError("swallowed") from None
        finally:
            closed.append(9)

    async def main() -> None:
        items = merged([many(0), many(1), stubborn()])
        assert {(await anext(items))[1] for _ in range(20)} == {0, 1}
        began = now()
        await items.aclose()
        assert sorted(closed) == [0, 1, 9]
        assert now() - began < 10

    at_once(main)


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_what_an_iterator_owns_is_ended_once(taken: int) -> None:
    ends: list[str] = []

    async def end() -> None:
        ends.append("end")

    async def items() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            await end()

    async def main() -> None:
        owned: Any = Owned(items(), end=end)
        for _ in range(taken):
            await anext(owned, None)
        await owned.aclose()
        await owned.aclose()
        assert ends == ["end"]
        assert [one async for one in owned] == []

    at_once(main)


@pytest.mark.parametrize("sources", [1, 2])
def test_sources_of_which_nobody_took_are_closed(sources: int) -> None:
    ends: list[int] = []

    def source(number: int) -> Owned[int]:
        async def items() -> AsyncGenerator[int, None]:
            yield number

        async def end() -> None:
            ends.append(number)

        return Owned(items(), end=end)

    async def main() -> None:
        await merged([source(number) for number in range(sources)]).aclose()
        assert ends == list(range(sources))

    at_once(main)
