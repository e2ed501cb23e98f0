"""Engines with all faults at once and clients that leave at any time; requests ended at each of their steps.

`DERENDER_TEST_FUZZ`: how many random runs, each of several requests; a failure tells its seed.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine, Generator
from typing import Any
from zlib import crc32

import pytest
from tests.gateway.faults import FAULTS, TEXT
from tests.gateway.faulty_engine import Ask, Behaviour, Connection, FaultyEngine, choice, chunk, right, until
from tests.gateway.under_test import CHAT, COMPLETIONS, SHAPES, Gate, body, check, fault_of, gate, named, run, texts
from tests.server.asgi_client import Call

from derender.gateway.settings import PoolSettings

RUNS = int(os.environ.get("DERENDER_TEST_FUZZ", "200"))
_SEEDS_OF_A_GATE = 50
_COSTLY = {"compressed_bomb", "answer_too_large", "never_ends", "refusal_without_end", "head_of_a_megabyte", "large"}
_LEFT_ALONE = ("429", "503")  # whoever says that it has too much to do is given nothing for a second
_QUICK = [
    name
    for name, fault in FAULTS.items()
    if name not in _COSTLY
    and not fault.fields
    and not (name.startswith("status") and not name.endswith("json"))
    and not any(status in name for status in _LEFT_ALONE)
]


class Unsteady(Call):
    """A client that takes its answer in fits and starts."""

    pace = random.Random(0)

    async def send(self, message: dict[str, Any]) -> None:
        await super().send(message)
        if self.pace.random() < 0.1:
            await asyncio.sleep(0.002)


async def _one(one: Gate, rng: random.Random, number: int) -> None:
    path, stream, n, prompts = rng.choice(SHAPES)
    stop = ["wor"] if rng.random() < 0.3 else None
    asked = body(path, stream=stream, n=n, prompts=prompts, stop=stop)
    fault = rng.choice(_QUICK) if rng.random() < 0.7 else "right"
    call = one.call(path, asked, request_id=named(fault, number), kind=rng.choice((Call, Unsteady)))
    running = asyncio.ensure_future(one.run(call))
    leaves = rng.random() < 0.5 or (fault in FAULTS and FAULTS[fault].slow)
    if leaves:
        await asyncio.sleep(rng.choice((0, 0, 0.001, 0.005, 0.02)))
        call.gone.set()
    await running
    if not leaves:
        error = check(call.answer, path, asked)
        if fault == "right" and stop is None and error is None:
            assert texts(call.answer, path) == dict.fromkeys(range(n * prompts), TEXT)


@pytest.mark.parametrize("start", range(0, RUNS, _SEEDS_OF_A_GATE))
def test_any_faults_and_clients_together(start: int) -> None:
    async def main() -> None:
        def behave(ask: Ask) -> Behaviour:
            name = fault_of(ask.id)
            # Whatever the fault, another engine may do it right.
            return right if name == "right" or crc32(ask.id.encode()) % 3 == 0 else FAULTS[name].behave

        pool = PoolSettings(failures=5, cooldown_seconds=0.02, probe_seconds=0.05, concurrency=4, queue=50)
        async with FaultyEngine(behave) as a, FaultyEngine(behave) as b, gate(a, b, pool=pool) as one:
            for seed in range(start, min(start + _SEEDS_OF_A_GATE, RUNS)):
                rng = random.Random(seed)
                try:
                    await asyncio.gather(*(_one(one, rng, number) for number in range(rng.randint(1, 8))))
                    await one.calm()
                except BaseException:
                    print(f"seed {seed}")
                    raise
                for engine in (a, b):
                    twice = [name for name, count in engine.aborts.items() if count > 1]
                    assert not twice, f"seed {seed}: aborted twice: {twice}"

    run(main)


# ------------------------------------------------------------------------------------------- ended at each step


class Stepped(Coroutine[Any, Any, Any]):
    """A task's work, of which each step is counted."""

    def __init__(self, work: Coroutine[Any, Any, Any], step: Callable[[], None]) -> None:
        self._work = work
        self._step = step
        self.__qualname__ = self.__name__ = getattr(work, "__qualname__", "work")

    def send(self, value: Any) -> Any:
        self._step()
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        self._step()
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()

    def __repr__(self) -> str:
        return repr(self._work)


async def slow_right(ask: Ask, to: Connection) -> None:
    """An answer in parts that come apart."""
    if not ask.streams:
        await asyncio.sleep(0)
        await right(ask, to)
        return
    await to.head()
    for number in range(4):
        await asyncio.sleep(0)
        for index in range(ask.choices):
            await to.event(chunk(ask, choice(index, [104], finish="stop" if number == 3 else None)))
    await to.event(b"[DONE]")
    await to.end()


@pytest.mark.parametrize("ends", ["leaves", "cancelled"])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"stream": True}),
        (CHAT, {"stream": False}),
        (CHAT, {"stream": False, "stop": ["x"]}),
        (COMPLETIONS, {"stream": True, "prompts": 2}),
        (COMPLETIONS, {"stream": False, "prompts": 2}),
        (COMPLETIONS, {"stream": True, "echo": True, "logprobs": 1}),
    ],
)
def test_a_request_that_ends_at_any_step_leaves_nothing(path: str, fields: dict[str, Any], ends: str) -> None:
    """A step is each time that a task goes on; just before it the client leaves, or the server cancels the request."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        asked = body(path, **fields)
        async with FaultyEngine(lambda ask: slow_right) as engine, gate(engine) as one:
            tasks = asyncio.all_tasks()
            at = 0
            while True:
                at += 1
                call = one.call(path, asked)
                steps = 0
                running: list[asyncio.Task[Any]] = []

                def step(at: int = at, call: Call = call, running: list[asyncio.Task[Any]] = running) -> None:
                    nonlocal steps
                    steps += 1
                    if steps == at:
                        if ends == "leaves":
                            call.gone.set()
                        elif running:
                            running[0].cancel()

                def stepped(
                    loop: asyncio.AbstractEventLoop, work: Any, step: Callable[[], None] = step, **options: Any
                ) -> asyncio.Task[Any]:
                    return asyncio.Task(Stepped(work, step), loop=loop, **options)

                loop.set_task_factory(stepped)
                running.append(asyncio.ensure_future(one.app(call.scope, call.receive, call.send)))
                await asyncio.wait(running, timeout=20)
                loop.set_task_factory(None)
                assert running[0].done(), f"step {at}: it hangs"
                if not running[0].cancelled():
                    running[0].result()
                try:
                    await one.calm()
                    await until(lambda: not _others(tasks))
                except AssertionError as error:
                    raise AssertionError(f"step {at}: {error}; tasks: {_others(tasks)}") from error
                assert set(engine.aborts.values()) <= {1}, f"step {at}: {engine.aborts}"
                if steps < at:
                    break
            assert at > 10
            loop.set_task_factory(None)

    run(main)


def _others(tasks: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    return {one for one in asyncio.all_tasks() - tasks if "FaultyEngine" not in repr(one) and one is not _this()}


def _this() -> asyncio.Task[Any] | None:
    return asyncio.current_task()
