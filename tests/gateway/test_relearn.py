"""An engine that is another one than before: restarted between two probes, or behind an address of many."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.gateway.fakes import FakeEngine, Fleet, at_once, outcome, settled
from tests.gateway.faulty_engine import Ask, Behaviour, Connection, FaultyEngine, refusal, right, until
from tests.gateway.under_test import CHAT, body, gate, run

from derender.engines.base import Capabilities
from derender.engines.errors import EngineFailed, EngineRefused
from derender.gateway.settings import PoolSettings


def test_the_next_probe_sees_another_model(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("x", "y", length=4096))
        pool = fleet.pool(probe_seconds=5)
        await pool.start()
        [backend] = pool.backends
        assert await outcome(pool.take("z")) == "no engine serves this model"
        fleet["a"].names, fleet["a"].length, fleet["a"].able = ("x", "z"), 2048, Capabilities(bad_words=True)
        fleet["a"].asked.clear()
        await asyncio.sleep(6.5)
        assert fleet["a"].asked == ["health", "models", "probe"]
        assert backend.max_model_len == 2048
        assert pool.capabilities("z") == Capabilities(bad_words=True)
        (await pool.take("z")).release()
        assert await outcome(pool.take("y")) == "no engine serves this model"
        await asyncio.sleep(60)
        assert fleet["a"].asked.count("probe") == 1
        await pool.aclose()

    with caplog.at_level(logging.INFO, logger="derender.gateway"):
        at_once(main)
    assert caplog.messages == [
        "engine http://a:8000 is up: serves x, y",
        "engine http://a:8000 has changed: serves x (2048 tokens), z (2048 tokens), served x (4096 tokens), "
        "y (4096 tokens)",
    ]


def test_after_a_failed_probe_capabilities_are_learned_again() -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("m"))
        pool = fleet.pool(probe_seconds=5, failures=3)
        await pool.start()
        fleet["a"].up = False
        await asyncio.sleep(6.5)
        assert pool.ready(["m"])
        fleet["a"].up, fleet["a"].able = True, Capabilities(stop_strings=True)
        await asyncio.sleep(6.5)
        assert pool.capabilities("m") == Capabilities(stop_strings=True)
        assert fleet["a"].asked.count("probe") == 2
        await pool.aclose()

    at_once(main)


@pytest.mark.parametrize(("status", "looks"), [(400, True), (404, True), (422, False)])
def test_a_refusal_is_a_reason_to_look_at_most_once_a_second(status: int, looks: bool) -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("m"))
        pool = fleet.pool(probe_seconds=1000)
        await pool.start()
        fleet["a"].names = ("n",)
        fleet["a"].asked.clear()
        await asyncio.sleep(1)
        for _ in range(100):
            (await pool.take("m")).release(EngineRefused("no", status=status))
            await asyncio.sleep(0.05)
        assert fleet["a"].asked.count("health") == (5 if looks else 0)
        assert list(pool.backends[0].served) == (["n"] if looks else ["m"])
        await pool.aclose()

    at_once(main)


def test_an_engine_that_is_healthy_but_does_not_tell_its_models_stays_up() -> None:
    class Silent(FakeEngine):
        silent = False

        async def models(self):  # type: ignore[no-untyped-def]
            if self.silent:
                raise EngineFailed("the engine does not tell its models")
            return await super().models()

    async def main() -> None:
        engine = Silent("m", length=77)
        fleet = Fleet(a=engine)
        pool = fleet.pool(probe_seconds=1, failures=1)
        await pool.start()
        engine.silent = True
        await asyncio.sleep(20)
        assert pool.ready(["m"])
        assert pool.backends[0].served == {"m": 77}
        await pool.aclose()

    at_once(main)


def test_who_waits_is_refused_where_the_new_model_is_another() -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("x", "y"))
        pool = fleet.pool(probe_seconds=1, concurrency=1)
        await pool.start()
        with await pool.take("x"):
            late = asyncio.ensure_future(outcome(pool.take("x")))
            await settled()
            fleet["a"].names = ("y", "z")
            await asyncio.sleep(1.5)
            assert late.result() == "no engine serves this model"
        await pool.aclose()

    at_once(main)


@pytest.mark.parametrize("names", [("first", "first"), ("first", "second")])
def test_a_restart_that_no_probe_saw_costs_a_refusal_at_most(names: tuple[str, str]) -> None:
    """The engine comes back with a shorter context, or under another name, and refuses what is not for it."""

    def of(engine: FaultyEngine) -> Behaviour:
        async def behave(ask: Ask, to: Connection) -> None:
            asked = len(ask.body["token_ids"]) + ask.body["sampling_params"]["max_tokens"]
            if ask.body["model"] != engine.name or asked > (engine.length or 0):
                await to.json(refusal("no", status=400), status=400)
            else:
                await right(ask, to)

        return behave

    async def main() -> None:
        engine = FaultyEngine(name=names[0], length=512)
        engine.behave = lambda ask: of(engine)
        settings = PoolSettings(failures=3, probe_seconds=3600)
        asked = body(CHAT)
        del asked["max_tokens"]
        async with engine, gate(engine, pool=settings) as gateway:
            assert (await gateway.ask(CHAT, asked)).status == 200
            engine.name, engine.length = names[1], 128
            await asyncio.sleep(1.1)
            answer = await gateway.ask(CHAT, asked)
            assert answer.status == 400
            [backend] = gateway.gateway.pool.backends
            await until(lambda: backend.served == {names[1]: 128})
            assert (await gateway.ask(CHAT, asked)).status == 200
            sent: Ask = engine.asked[-1]
            assert len(sent.body["token_ids"]) + sent.body["sampling_params"]["max_tokens"] == 128

    run(main)
