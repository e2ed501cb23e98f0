"""Clients that leave, and clients that are slow: the engine is told, once, and nothing is held for them."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import pytest
from tests.gateway.faulty_engine import (
    ABORT,
    IDS,
    Ask,
    Connection,
    FaultyEngine,
    choice,
    chunk,
    chunks,
    hang,
    until,
)
from tests.gateway.under_test import CHAT, COMPLETIONS, SHAPES, body, check, gate, run, texts
from tests.server.asgi_client import Call


async def after_head(ask: Ask, to: Connection) -> None:
    await to.head(kind="text/event-stream" if ask.streams else "application/json")
    await asyncio.Event().wait()


async def in_the_middle(ask: Ask, to: Connection) -> None:
    await to.head()
    for one in chunks(ask)[: 2 * ask.choices]:
        await to.event(one)
    await asyncio.Event().wait()


class Slow(Call):
    """A client that takes nothing from its `takes`-th message on, until it is told to."""

    takes = 4

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.goes_on = asyncio.Event()

    async def send(self, message: dict[str, Any]) -> None:
        await super().send(message)
        if len(self.answer.chunks) >= self.takes:
            await self.goes_on.wait()


async def told(engine: FaultyEngine, count: int) -> None:
    """The engine has been told to abort each of `count` requests once, and has seen their connections closed."""
    ids = {ask.id for ask in engine.asked}
    assert len(ids) == count
    await until(lambda: set(engine.aborts) == ids, what=f"aborted: {engine.aborts}, asked: {ids}")
    await until(lambda: engine.left == ids, what=f"left: {engine.left}, asked: {ids}")
    assert set(engine.aborts.values()) == {1}


@pytest.mark.parametrize("behave", [hang, after_head, in_the_middle])
def test_an_engine_is_told_once_when_the_client_leaves(behave: Any) -> None:
    async def main() -> None:
        async with FaultyEngine(lambda ask: behave) as engine, gate(engine) as one:
            legs, running = 0, []
            for path, stream, n, prompts in SHAPES:
                if behave is in_the_middle and not stream:
                    continue
                call = one.call(path, body(path, stream=stream, n=n, prompts=prompts))
                running.append((call, asyncio.ensure_future(one.run(call))))
                legs += prompts
            await until(lambda: len(engine.asked) == legs)
            if behave is in_the_middle:
                await until(lambda: all(call.answer.chunks for call, _ in running))
            assert not engine.aborts
            clock = asyncio.get_running_loop().time
            left = clock()
            for call, _ in running:
                call.gone.set()
            await told(engine, legs)
            assert clock() - left < 5  # a second, on a machine that does nothing else
            await asyncio.gather(*(task for _, task in running))

    run(main)


def test_a_client_that_leaves_while_it_waits_for_an_engine_is_never_sent_to_one() -> None:
    from derender.gateway.settings import PoolSettings

    async def main() -> None:
        pool = PoolSettings(concurrency=1, probe_seconds=3600)
        async with FaultyEngine(lambda ask: hang) as engine, gate(engine, pool=pool) as one:
            first = one.call(CHAT, body(CHAT, stream=True))
            second = one.call(COMPLETIONS, body(COMPLETIONS))
            running = [asyncio.ensure_future(one.run(call)) for call in (first, second)]
            await until(lambda: one.gateway.pool.waiting == 1 and len(engine.asked) == 1)
            second.gone.set()
            await until(lambda: one.gateway.pool.waiting == 0)
            first.gone.set()
            await asyncio.gather(*running)
            await told(engine, 1)

    run(main)


async def much(ask: Ask, to: Connection) -> None:
    """Far more bytes than connections hold, in as many events as the answer has tokens."""
    await to.head()
    most = ask.body["sampling_params"]["max_tokens"]
    for number in range(most):
        finish = "length" if number == most - 1 else None
        for index in range(ask.choices):
            await to.event({**chunk(ask, choice(index, [104], finish=finish)), "padding": "x" * 50_000})
    await to.event(b"[DONE]")
    await to.end()


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize(("path", "prompts"), [(CHAT, 1), (COMPLETIONS, 2)])
def test_an_engine_is_not_read_faster_than_its_client(path: str, prompts: int, leaves: bool) -> None:
    tokens = 800  # 40 MB for each prompt

    async def main() -> None:
        sent: list[Connection] = []

        async def behave(ask: Ask, to: Connection) -> None:
            sent.append(to)
            await much(ask, to)

        async with FaultyEngine(lambda ask: behave) as engine, gate(engine) as one:
            asked = body(path, stream=True, prompts=prompts, max_tokens=tokens)
            call = one.call(path, asked, kind=Slow)
            assert isinstance(call, Slow)
            running = asyncio.ensure_future(one.run(call))
            await until(lambda: len(call.answer.chunks) >= Slow.takes)
            before = -1
            while before != (now := sum(to.sent for to in sent)):  # until it stands still
                before = now
                await asyncio.sleep(0.1)
            # What the kernel's buffers of both ends of a connection may hold.
            assert now < prompts * 25 << 20, now
            assert len(call.answer.chunks) == Slow.takes
            if leaves:
                call.gone.set()
                await told(engine, prompts)
                await running
            else:
                call.goes_on.set()
                got = await running
                assert check(got, path, asked) is None
                assert not engine.aborts

    run(main)


def test_a_thousand_clients_leave_at_once() -> None:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    count = min(1000, (files - 200) // 2)

    async def main() -> None:
        async with FaultyEngine(lambda ask: in_the_middle) as engine, gate(engine) as one:
            calls = [one.call(CHAT, body(CHAT, stream=True)) for _ in range(count)]
            running = [asyncio.ensure_future(one.run(call)) for call in calls]
            await until(lambda: all(call.answer.chunks for call in calls), seconds=40)
            for call in calls:
                call.gone.set()
            await told(engine, count)
            assert engine.abort_posts < count / 4, "each abort was a request of its own"
            await asyncio.gather(*running)

    run(main)


def test_aborts_reach_an_engine_that_was_gone_for_a_while() -> None:
    """A failed connection does not mean that the engine has no such route."""

    async def main() -> None:
        async with FaultyEngine(lambda ask: in_the_middle) as engine, gate(engine) as one:
            for turn in range(2):
                call = one.call(CHAT, body(CHAT, stream=True))
                running = asyncio.ensure_future(one.run(call))
                await until(lambda call=call: bool(call.answer.chunks))
                if turn == 0:
                    await engine.kill()
                    call.gone.set()
                    await running
                    await asyncio.sleep(0.05)
                    await engine.start()
                else:
                    call.gone.set()
                    await running
                    await until(lambda: set(engine.aborts) == {engine.asked[-1].id})

    run(main)


def test_an_engine_without_the_route_is_asked_by_the_older_one() -> None:
    class Older(FaultyEngine):
        async def _serve(self, path: str, *rest: Any) -> None:
            await super()._serve({ABORT: "/nowhere", "/abort_requests": ABORT}.get(path, path), *rest)

    async def main() -> None:
        async with Older(lambda ask: in_the_middle) as engine, gate(engine) as one:
            for _ in range(2):
                call = one.call(CHAT, body(CHAT, stream=True))
                running = asyncio.ensure_future(one.run(call))
                await until(lambda call=call: bool(call.answer.chunks))
                call.gone.set()
                await running
            await told(engine, 2)

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_work_at_the_engine(stream: bool) -> None:
    async def never(ask: Ask, to: Connection) -> None:
        await to.head()
        for one in IDS[:-1]:
            await to.event(chunk(ask, *(choice(index, [one]) for index in range(ask.choices))))
        await asyncio.Event().wait()

    async def main() -> None:
        async with FaultyEngine(lambda ask: never) as engine, gate(engine) as one:
            for path in (CHAT, COMPLETIONS):
                asked = body(path, stream=stream, n=2, stop=["wor"])
                got = await one.ask(path, asked)
                assert check(got, path, asked) is None
                assert texts(got, path) == {0: "hello ", 1: "hello "}
            await told(engine, 2)

    run(main)


def test_ended_streams_are_not_aborted_and_leave_their_connection() -> None:
    async def main() -> None:
        async with FaultyEngine() as engine, gate(engine) as one:
            before = engine.connections
            for _ in range(5):
                asked = body(CHAT, stream=True)
                assert check(await one.ask(CHAT, asked), CHAT, asked) is None
            assert not engine.aborts
            assert not engine.left
            assert engine.connections - before <= 1

    run(main)


def test_a_late_end_of_an_answer_costs_nobody_time() -> None:
    """A client has its answer when the engine's `[DONE]` has come, whenever the engine ends the body."""

    async def behave(ask: Ask, to: Connection) -> None:
        await to.head()
        for one in chunks(ask):
            await to.event(one)
        await to.event(b"[DONE]")
        await asyncio.Event().wait()

    async def main() -> None:
        async with FaultyEngine(lambda ask: behave) as engine, gate(engine) as one:
            asked = body(CHAT, stream=True)
            got = await asyncio.wait_for(one.ask(CHAT, asked), 10)
            assert check(got, CHAT, asked) is None
            await one.calm()
            assert not engine.aborts

    run(main)


_MUCH = 100 << 20


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_a_hundred_megabytes_is_given_up(stream: bool) -> None:
    """With little of it held, and none of it read on."""

    async def main() -> None:
        sent: list[Connection] = []

        async def behave(ask: Ask, to: Connection) -> None:
            sent.append(to)
            await to.head(kind="text/event-stream" if ask.streams else "application/json")
            await to.chunk(b'data: {"x": "' if ask.streams else b'{"x": "')
            for _ in range(_MUCH >> 16):
                await to.chunk(b"x" * (1 << 16))

        async with FaultyEngine(lambda ask: behave) as engine, gate(engine) as one:
            asked = body(CHAT, stream=stream)
            error = check(await one.ask(CHAT, asked), CHAT, asked)
            assert error is not None
            assert error["code"] == 502
            assert sent[0].sent < _MUCH / 2

    run(main)
