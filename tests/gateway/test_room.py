"""Engines of one model whose contexts are of different lengths: who has room, who waits, who is refused."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.fakes import FakeEngine, Fleet, at_once, now, outcome, settled, spec, url
from tests.gateway.faulty_engine import FaultyEngine
from tests.gateway.under_test import CHAT, COMPLETIONS, STEADY, gate, run

from derender.engines.errors import EngineFailed
from derender.gateway.pool import EnginePool, Lease, NoRoom
from derender.gateway.settings import Policy


def waiting(pool: EnginePool, need: int) -> asyncio.Task[Lease | str]:
    return asyncio.get_running_loop().create_task(outcome(pool.take("m", need=need)))


def short_and_long() -> Fleet:
    return Fleet(a=FakeEngine("m", length=100), b=FakeEngine("m", length=1000))


@pytest.mark.parametrize("policy", ["least-loaded", "round-robin", "prefix"])
def test_only_engines_with_room_are_chosen(policy: Policy) -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("m", length=100), b=FakeEngine("m", length=1000), c=FakeEngine("m", length=None))
        pool = fleet.pool(policy=policy)
        await pool.start()

        async def names(need: int) -> set[str]:
            found = set()
            for number in range(60):
                with await pool.take("m", need=need, token_ids=[number] * 32) as lease:
                    found.add(lease.backend.name[7])
            return found

        assert await names(0) == await names(100) == {"a", "b", "c"}
        assert await names(101) == await names(1000) == {"b", "c"}
        assert await names(1001) == {"c"}
        pool.set_specs([spec("a"), spec("b")])
        with pytest.raises(NoRoom) as refused:
            await pool.take("m", need=1001)
        assert refused.value.longest == 1000
        await pool.aclose()

    at_once(main)


def test_where_the_long_one_is_down_or_not_known_there_is_hope() -> None:
    async def main() -> None:
        fleet = short_and_long()
        fleet.unreachable.add(url("b"))
        pool = fleet.pool(failures=1, probe_seconds=1, cooldown_seconds=1)
        await pool.start()
        down = "no engine is up for so long a request to this model"
        assert await outcome(pool.take("m", need=500)) == down
        (await pool.take("m", need=100)).release()
        fleet.unreachable.clear()
        await asyncio.sleep(2)
        lease = await pool.take("m", need=500)
        lease.release(EngineFailed("broke off"))
        assert await outcome(pool.take("m", need=500)) == down
        with pytest.raises(NoRoom):
            await pool.take("m", need=5000)
        (await pool.take("m")).release()
        await asyncio.sleep(3)
        assert await outcome(pool.take("m", need=500, exclude=[lease.backend])) == "no other engine serves this model"
        await pool.aclose()

    at_once(main)


def test_who_needs_the_long_one_does_not_hold_up_the_others() -> None:
    async def main() -> None:
        pool = short_and_long().pool(concurrency=1)
        await pool.start()
        held = [await pool.take("m", need=500), await pool.take("m")]
        long, longer, short = waiting(pool, 500), waiting(pool, 900), waiting(pool, 50)
        await settled()
        held[1].release()  # the short engine
        await settled()
        assert short.result().backend.max_model_len == 100  # type: ignore[union-attr]
        assert not long.done()
        held[0].release()
        await settled()
        lease = long.result()
        assert isinstance(lease, Lease)
        assert not longer.done()
        lease.release()
        for task in (longer, short):
            (await task).release()  # type: ignore[union-attr]
        assert pool.waiting == 0
        await pool.aclose()

    at_once(main)


def test_those_who_came_first_get_the_long_one_first() -> None:
    async def main() -> None:
        pool = short_and_long().pool(concurrency=1)
        await pool.start()
        held = [await pool.take("m", need=500), await pool.take("m")]
        short, long = waiting(pool, 50), waiting(pool, 500)
        await settled()
        held[0].release()
        await settled()
        assert short.result().backend.max_model_len == 1000  # type: ignore[union-attr]
        assert not long.done()
        short.result().release()  # type: ignore[union-attr]
        (await long).release()  # type: ignore[union-attr]
        held[1].release()
        await pool.aclose()

    at_once(main)


def test_who_waits_is_refused_when_the_long_one_has_gone() -> None:
    async def main() -> None:
        fleet = short_and_long()
        pool = fleet.pool(concurrency=1, failures=1, probe_seconds=1)
        await pool.start()
        held = [await pool.take("m", need=500), await pool.take("m")]
        longs = [waiting(pool, 500), waiting(pool, 600)]
        short = waiting(pool, 50)
        await settled()
        began = now()
        held[0].release(EngineFailed("broke off"))
        assert [await one for one in longs] == ["no engine is up for so long a request to this model"] * 2
        assert now() == began
        held[1].release()
        (await short).release()  # type: ignore[union-attr]
        await pool.aclose()

    at_once(main)


def test_who_waits_for_an_engine_that_came_back_shorter_is_told_so() -> None:
    async def main() -> None:
        fleet = short_and_long()
        pool = fleet.pool(concurrency=1, probe_seconds=1)
        await pool.start()
        held = await pool.take("m", need=500)
        late = waiting(pool, 500)
        await settled()
        fleet["b"].length = 200
        with pytest.raises(NoRoom) as refused:
            await late
        assert refused.value.longest == 200
        held.release()
        await pool.aclose()

    at_once(main)


@pytest.mark.parametrize("seed", range(20))
def test_nobody_waits_beside_a_free_engine_with_room(seed: int) -> None:
    """And nobody gets one past another who came before and could have had it."""

    async def main() -> None:
        rng = random.Random(seed)
        fleet = Fleet(**{name: FakeEngine("m", length=100 * 2**number) for number, name in enumerate("abcd")})
        pool = fleet.pool(concurrency=2, queue_seconds=10**6, queue=10**6)
        await pool.start()
        waits: dict[int, int] = {}

        async def client(number: int) -> None:
            need = rng.choice((10, 100, 150, 200, 399, 400, 500, 800))
            waits[number] = need
            with await pool.take("m", need=need) as lease:
                del waits[number]
                longest = lease.backend.max_model_len or 0
                assert longest >= need
                assert not [one for one, other in waits.items() if one < number and other <= longest]
                await asyncio.sleep(rng.random())

        async def watch() -> None:
            while True:
                free = max((one.max_model_len or 0 for one in pool.backends if one.has_room), default=0)
                assert not waits or min(waits.values()) > free
                await asyncio.sleep(0.05)
                await settled()

        watching = asyncio.ensure_future(watch())
        tasks = []
        for number in range(200):
            tasks.append(asyncio.ensure_future(client(number)))
            await settled()
            await asyncio.sleep(rng.choice((0, 0, 0.05)))
        await asyncio.gather(*tasks)
        assert not watching.done()
        watching.cancel()
        await asyncio.wait([watching])
        await pool.aclose()

    at_once(main)


# ------------------------------------------------------------------------------------------------- over the wire


def asked(path: str, prompt: int, **fields: Any) -> dict[str, Any]:
    """A request whose prompt has that many tokens, one for each byte."""
    if path == COMPLETIONS:
        return {"model": "tiny", "prompt": "x" * prompt, **fields}
    frame = len(b"user\n") + 3 + len(b"assistant\n")
    return {"model": "tiny", "messages": [{"role": "user", "content": "x" * (prompt - frame)}], **fields}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_same_request_has_the_same_answer_every_time(path: str, stream: bool) -> None:
    async def main() -> None:
        turns = replace(STEADY, policy="round-robin")  # so that each is asked in eight times, and not only likely so
        async with (
            FaultyEngine(length=64) as short,
            FaultyEngine(length=200) as long,
            gate(short, long, pool=turns) as gateway,
        ):

            async def statuses(prompt: int, **fields: Any) -> set[int]:
                return {
                    (await gateway.ask(path, asked(path, prompt, stream=stream, **fields))).status for _ in range(8)
                }

            assert await statuses(60, max_tokens=12) == {200}
            assert not short.asked
            assert {len(one.body["token_ids"]) for one in long.asked} == {60}
            assert await statuses(188, max_tokens=12) == {200}
            assert not short.asked
            assert await statuses(189, max_tokens=12) == {400}
            assert await statuses(200, max_tokens=1) == {400}
            assert await statuses(40, max_tokens=12) == {200}
            assert short.asked
            answer = await gateway.ask(path, asked(path, 189, stream=stream, max_tokens=12))
            assert answer.error["message"] == (
                "The prompt has 189 tokens and 12 are asked for; the engine's maximum context length is 200."
            )
            assert answer.error["param"] == ("messages" if path == CHAT else "prompt")

    run(main)


def test_without_a_bound_the_output_gets_what_is_left() -> None:
    async def main() -> None:
        async with FaultyEngine(length=64) as short, FaultyEngine(length=200) as long, gate(short, long) as gateway:
            for _ in range(20):
                assert (await gateway.ask(CHAT, asked(CHAT, 50))).status == 200
            for engine, left in ((short, 14), (long, 150)):
                assert {one.body["sampling_params"]["max_tokens"] for one in engine.asked} == {left}
            assert (await gateway.ask(CHAT, asked(CHAT, 188))).status == 200
            answer = await gateway.ask(CHAT, asked(CHAT, 200))
            assert answer.status == 400
            assert answer.error["message"] == "The prompt has 200 tokens; the engine's maximum context length is 200."

    run(main)
