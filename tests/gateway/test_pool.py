"""The pool: who gets an engine, who waits, who is refused."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Collection

import pytest
from tests.gateway.fakes import FakeEngine, Fleet, States, at_once, now, outcome, settled, spec, url

from derender.engines.base import Capabilities
from derender.engines.errors import EngineFailed, EngineRefused, EngineTimeout
from derender.gateway.backends import Backend
from derender.gateway.meter import NoMeter
from derender.gateway.pool import EnginePool, Lease, meet
from derender.gateway.settings import EngineSpec, Policy, PoolSettings, Role
from derender.gateway.waiting import Want
from derender.protocol.errors import Unavailable

DOWN = "no engine is up for this model"
NONE = "no engine serves this model"
NO_OTHER = "no other engine serves this model"
FULL = "too many requests wait for an engine"
LATE = "no engine came free in time"
ENDS = "the server is shutting down"


def waiting(pool: EnginePool, model: str = "m", **options: object) -> asyncio.Task[Lease | str]:
    return asyncio.get_running_loop().create_task(outcome(pool.take(model, **options)))  # type: ignore[arg-type]


async def lease_of(task: asyncio.Task[Lease | str]) -> Lease:
    result = await task
    assert isinstance(result, Lease), result
    return result


# ------------------------------------------------------------------------------------------------------------ life


def test_start_knows_all_engines_and_aclose_leaves_nothing() -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("m"), b=FakeEngine("m"))
        pool = fleet.pool()
        assert not pool.ready(["m"])
        assert pool.capabilities("m") is None
        await pool.start()
        assert [backend.name for backend in pool.backends] == [url("a"), url("b")]
        assert all(backend.up for backend in pool.backends)
        assert pool.ready(["m"])
        await pool.aclose()
        await pool.aclose()
        assert pool.backends == []
        assert (fleet["a"].closed, fleet["b"].closed) == (1, 1)
        assert await outcome(pool.take("m")) == ENDS
        pool.set_specs([spec("a")])
        assert pool.backends == []

    at_once(main)


def test_aclose_without_start() -> None:
    async def main() -> None:
        pool = Fleet(a=FakeEngine("m")).pool()
        await pool.aclose()
        await pool.start()
        assert pool.backends == []

    at_once(main)


def test_engines_that_are_down_or_hang_at_the_start_come_later() -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("m"), b=FakeEngine("m", up=False), c=FakeEngine("m"), d=FakeEngine("m"))
        fleet.unreachable.add(url("b"))
        fleet["c"].hangs = True
        fleet["d"].broken = RuntimeError("a bug of the client")
        pool = fleet.pool(probe_seconds=2)
        began = now()
        await pool.start()
        assert now() - began < 16
        assert [backend.up for backend in pool.backends] == [True, False, False, False]
        fleet.unreachable.clear()
        fleet["b"].up, fleet["c"].hangs, fleet["d"].broken = True, False, None
        await asyncio.sleep(10)
        assert all(backend.up for backend in pool.backends)
        await pool.aclose()

    at_once(main)


def test_a_slow_probe_does_not_hold_the_start() -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("m"))
        fleet["a"].hangs = True
        pool = fleet.pool()
        task = asyncio.get_running_loop().create_task(pool.start())
        await settled()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await pool.aclose()

    at_once(main)


def test_aclose_refuses_who_waits_and_late_releases_do_nothing() -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("m"))
        pool = fleet.pool(concurrency=1)
        await pool.start()
        lease = await pool.take("m")
        task = waiting(pool)
        await settled()
        await pool.aclose()
        assert await task == ENDS
        lease.release(EngineFailed("gone", overloaded=True))
        assert lease.backend.running == 0
        assert fleet["a"].closed == 1

    at_once(main)


# ---------------------------------------------------------------------------------------------------------- leases


def test_leases_are_counted_and_released_once() -> None:
    async def main() -> None:
        meter = States()
        pool = Fleet(a=FakeEngine("m")).pool(meter=meter)
        await pool.start()
        one, two = await pool.take("m"), await pool.take("m")
        assert one.backend is two.backend
        assert one.backend.running == 2
        one.release()
        one.release(EngineFailed("late"))
        assert two.backend.running == 1
        two.release()
        assert two.backend.running == 0
        assert [told[2] for told in meter.told[-4:]] == [1, 2, 1, 0]
        await pool.aclose()

    at_once(main)


def test_a_lease_as_a_context() -> None:
    async def main() -> None:
        pool = Fleet(a=FakeEngine("m")).pool(failures=1, cooldown_seconds=5, probe_seconds=1000)
        await pool.start()
        with await pool.take("m") as lease:
            assert lease.backend.running == 1
        assert lease.backend.running == 0
        with pytest.raises(EngineFailed), await pool.take("m"):
            raise EngineFailed("gone")
        assert not lease.backend.up
        await asyncio.sleep(5)
        with pytest.raises(asyncio.CancelledError), await pool.take("m"):
            raise asyncio.CancelledError
        assert not lease.backend.up  # the client left: that says nothing of the engine
        with await pool.take("m"):
            pass
        assert lease.backend.up
        await pool.aclose()

    at_once(main)


def test_excluded_engines_are_never_given() -> None:
    async def main() -> None:
        pool = Fleet(a=FakeEngine("m"), b=FakeEngine("m")).pool(concurrency=1)
        await pool.start()
        first = await pool.take("m")
        second = await pool.take("m", exclude=[first.backend])
        assert second.backend is not first.backend
        assert await outcome(pool.take("m", exclude=[first.backend, second.backend])) == NO_OTHER
        retry = waiting(pool, exclude=[first.backend])
        plain = waiting(pool)
        await settled()
        first.release()
        assert (await lease_of(plain)).backend is first.backend  # the one before it cannot use this engine
        assert not retry.done()
        second.release()
        assert (await lease_of(retry)).backend is second.backend
        (await plain).release()  # type: ignore[union-attr]
        (await retry).release()  # type: ignore[union-attr]
        await pool.aclose()

    at_once(main)


# --------------------------------------------------------------------------------------------- which engines, what


def test_engines_by_model() -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("x", "y"), b=FakeEngine("y"), c=FakeEngine("other"), d=FakeEngine("x", "y"))
        pool = fleet.pool(spec("a"), spec("b"), spec("c", models=("x", "z")), spec("d", models=("y", "w")))
        await pool.start()

        async def names(model: str) -> set[str]:
            found = set()
            for _ in range(40):
                with await pool.take(model) as lease:
                    found.add(lease.backend.name[7])
            return found

        assert await names("x") == {"a", "c"}  # c under its only name, as its spec says that it is for x
        assert await names("y") == {"a", "b", "d"}
        assert await names("z") == {"c"}
        assert await names("unheard") == {"b"}  # the one that serves a single name, for whatever it is asked
        pool.set_specs([spec("a"), spec("d", models=("y", "w"))])
        assert await outcome(pool.take("w")) == NONE
        assert await outcome(pool.take("unheard")) == NONE
        assert not pool.ready(["y", "w"])
        await pool.aclose()

    at_once(main)


def test_of_several_models_none_is_asked_of_an_engine_with_another_name() -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("x"), b=FakeEngine("y", up=False))
        pool = fleet.pool(models=["x", "y"])
        await pool.start()
        assert await outcome(pool.take("y")) == DOWN
        assert not pool.ready(["y"])
        assert pool.ready(["x"])
        await pool.aclose()

    at_once(main)


def test_roles() -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("m"), p=FakeEngine("m"), d=FakeEngine("m"))
        pool = fleet.pool(spec("a"), spec("p", role="prefill"), spec("d", role="decode"))
        await pool.start()
        assert pool.splits("m")
        for role, name in (("any", "a"), ("prefill", "p"), ("decode", "d")):
            for _ in range(5):
                with await pool.take("m", role=role) as lease:  # type: ignore[arg-type]
                    assert lease.backend.name == url(name) + ("" if role == "any" else f" ({role})")
        pool.set_specs([spec("p", role="prefill"), spec("d", role="decode")])
        assert pool.ready(["m"])
        assert await outcome(pool.take("m")) == NONE
        pool.set_specs([spec("p", role="prefill")])
        assert not pool.splits("m")
        assert not pool.ready(["m"])
        await pool.aclose()

    at_once(main)


def test_splits_and_ready_when_one_side_is_down() -> None:
    async def main() -> None:
        fleet = Fleet(p=FakeEngine("m"), d=FakeEngine("m", up=False))
        pool = fleet.pool(spec("p", role="prefill"), spec("d", role="decode"))
        await pool.start()
        assert pool.splits("m")
        assert not pool.ready(["m"])
        assert await outcome(pool.take("m", role="decode")) == "no decode engine is up for this model"
        await pool.aclose()

    at_once(main)


@pytest.mark.parametrize("down", ["p", "d"])
def test_a_split_is_ready_with_both_sides_whatever_else_there_is(down: str) -> None:
    async def main() -> None:
        able = Capabilities(stop_strings=True)
        fleet = Fleet(a=FakeEngine("m"), p=FakeEngine("m", able=able), d=FakeEngine("m", able=able))
        pool = fleet.pool(
            spec("a"), spec("p", role="prefill"), spec("d", role="decode"), probe_seconds=1, failures=1,
            cooldown_seconds=60,  # once it is over, one request may try the engine
        )  # fmt: skip
        await pool.start()
        assert pool.ready(["m"])
        assert pool.capabilities("m") == able  # the engine for everything gets nothing
        fleet[down].up = False
        await asyncio.sleep(3)
        assert not pool.ready(["m"])
        role: Role = "prefill" if down == "p" else "decode"
        assert await outcome(pool.take("m", role=role)) == f"no {role} engine is up for this model"
        fleet[down].up = True
        await asyncio.sleep(70)
        assert pool.ready(["m"])
        await pool.aclose()

    at_once(main)


def test_capabilities_are_those_of_all_engines_that_are_up() -> None:
    async def main() -> None:
        strong = Capabilities(stop_strings=True, structured_outputs=frozenset({"json", "regex"}), max_logprobs=-1)
        weak = Capabilities(stop_strings=True, bad_words=True, structured_outputs=frozenset({"json"}), max_logprobs=5)
        fleet = Fleet(a=FakeEngine("m", able=strong), b=FakeEngine("m", able=weak), c=FakeEngine("n", able=weak))
        pool = fleet.pool(failures=1, probe_seconds=1, cooldown_seconds=1)
        await pool.start()
        both = Capabilities(stop_strings=True, structured_outputs=frozenset({"json"}), max_logprobs=5)
        assert pool.capabilities("m") == both
        assert pool.capabilities("n") == weak
        pool.set_specs([spec("a"), spec("b"), spec("c", models=("n",))])
        assert pool.capabilities("m") == both
        fleet["b"].up = False
        await asyncio.sleep(3)
        assert pool.capabilities("m") == strong
        fleet["a"].up = False
        await asyncio.sleep(3)
        assert pool.capabilities("m") == both  # none is up: of those that were
        await pool.aclose()

    at_once(main)


def test_meet() -> None:
    one = Capabilities(
        stop_strings=True, prompt_logprobs=True, bad_words=True, multimodal=True, kv_transfer=True, text_output=True,
        structured_outputs=frozenset({"json"}), max_logprobs=-1, max_n=None,
    )  # fmt: skip
    assert meet([one]) == one
    assert meet([one, Capabilities(max_logprobs=20, max_n=4)]) == Capabilities(max_logprobs=20, max_n=4)
    assert meet([Capabilities(max_logprobs=20, max_n=4), Capabilities(max_logprobs=0, max_n=8)]).max_n == 4


@pytest.mark.parametrize("policy", ["least-loaded", "round-robin", "prefix"])
def test_policies_are_applied(policy: Policy) -> None:
    async def main() -> None:
        pool = Fleet(a=FakeEngine("m"), b=FakeEngine("m"), c=FakeEngine("m")).pool(policy=policy)
        await pool.start()
        leases = [await pool.take("m", token_ids=[7] * 64) for _ in range(9)]
        loads = sorted(backend.running for backend in pool.backends)
        assert loads == {"least-loaded": [3, 3, 3], "round-robin": [3, 3, 3], "prefix": [0, 0, 9]}[policy] or (
            policy == "least-loaded" and loads[2] <= 4
        )
        for lease in leases:
            lease.release()
        await pool.aclose()

    at_once(main)


# ---------------------------------------------------------------------------------------------------------- health


def test_a_failing_engine_gets_nothing_until_its_cooldown_is_over(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        meter = States()
        pool = Fleet(a=FakeEngine("m")).pool(meter=meter, failures=2, cooldown_seconds=10, probe_seconds=1000)
        await pool.start()
        for _ in range(2):
            (await pool.take("m")).release(EngineFailed("broke off"))
        with pytest.raises(Unavailable) as refused:
            await pool.take("m")
        assert refused.value.message == DOWN
        assert refused.value.retry_after == 10
        assert refused.value.status == 503
        await asyncio.sleep(9.5)
        assert await outcome(pool.take("m")) == DOWN
        await asyncio.sleep(0.5)
        trial = await pool.take("m")
        assert await outcome(pool.take("m")) == DOWN  # one at a time
        trial.release(EngineTimeout("slow"))
        assert await outcome(pool.take("m")) == DOWN
        await asyncio.sleep(10)
        (await pool.take("m")).release()
        leases = [await pool.take("m") for _ in range(3)]
        for lease in leases:
            lease.release(EngineRefused("no", status=400))
        assert pool.ready(["m"])
        ups = [told[1] for told in meter.told]
        assert [ups[0], *(up for up, before in zip(ups[1:], ups, strict=False) if up != before)] == [True, False, True]
        await pool.aclose()

    with caplog.at_level(logging.INFO, logger="derender.gateway"):
        at_once(main)
    assert [record.getMessage() for record in caplog.records] == [
        "engine http://a:8000 is up: serves m",
        "engine http://a:8000 is down: broke off",
        "engine http://a:8000 is up: serves m",
    ]


def test_probes_take_an_engine_down_and_up_and_each_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("m"))
        pool = fleet.pool(EngineSpec(url="http://user:secret@a:8000"), failures=3, cooldown_seconds=5, probe_seconds=1)
        fleet.engines["http://user:secret@a:8000"] = fleet["a"]
        await pool.start()
        fleet["a"].up = False
        await asyncio.sleep(60)
        assert await outcome(pool.take("m")) == DOWN
        fleet["a"].up = True
        await asyncio.sleep(7)
        (await pool.take("m")).release()
        await pool.aclose()

    with caplog.at_level(logging.INFO, logger="derender.gateway"):
        at_once(main)
    assert [record.getMessage() for record in caplog.records] == [
        "engine http://a:8000 is up: serves m",
        "engine http://a:8000 is down: the engine is down",
        "engine http://a:8000 is up: serves m",
    ]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]


def test_who_waits_is_refused_when_the_last_engine_goes_down() -> None:
    async def main() -> None:
        pool = Fleet(a=FakeEngine("m"), b=FakeEngine("n")).pool(failures=1, concurrency=1, models=("m", "n"))
        await pool.start()
        lease, other = await pool.take("m"), await pool.take("n")
        task, patient = waiting(pool), waiting(pool, "n")
        await settled()
        began = now()
        lease.release(EngineFailed("broke off"))
        assert await task == DOWN
        assert now() == began
        assert not patient.done()
        other.release()
        (await lease_of(patient)).release()
        await pool.aclose()

    at_once(main)


def test_who_waits_for_a_half_open_engine_goes_alone() -> None:
    async def main() -> None:
        pool = Fleet(a=FakeEngine("m")).pool(failures=1, cooldown_seconds=5, probe_seconds=1000)
        await pool.start()
        (await pool.take("m")).release(EngineFailed("broke off"))
        await asyncio.sleep(5)
        (await pool.take("m")).release(EngineFailed("busy", overloaded=True))
        first, second = waiting(pool), waiting(pool)
        await asyncio.sleep(0.9)
        assert not second.done()
        await asyncio.sleep(0.2)
        lease = await lease_of(first)
        assert await second == DOWN
        lease.release()
        assert pool.ready(["m"])
        await pool.aclose()

    at_once(main)


def test_an_overloaded_engine_rests_for_a_second() -> None:
    async def main() -> None:
        pool = Fleet(a=FakeEngine("m"), b=FakeEngine("m")).pool(failures=1)
        await pool.start()
        lease = await pool.take("m")
        lease.release(EngineFailed("too much", overloaded=True))
        assert lease.backend.up
        for _ in range(20):
            with await pool.take("m") as other:
                assert other.backend is not lease.backend
        began = now()
        last = await pool.take("m", exclude=[other.backend])
        assert last.backend is lease.backend
        assert 0.9 < now() - began < 1.1
        last.release()
        await pool.aclose()

    at_once(main)


# ---------------------------------------------------------------------------------------------------------- queue


def test_the_queue_is_first_come_first_served() -> None:
    async def main() -> None:
        pool = Fleet(a=FakeEngine("m")).pool(concurrency=2)
        await pool.start()
        order: list[int] = []

        async def client(number: int) -> None:
            with await pool.take("m") as lease:
                order.append(number)
                assert lease.backend.running <= 2
                await asyncio.sleep(1)

        began = now()
        await asyncio.gather(*(client(number) for number in range(50)))
        assert order == list(range(50))
        assert now() - began == pytest.approx(25)
        assert pool.waiting == 0
        await pool.aclose()

    at_once(main)


def test_models_on_one_engine_take_turns_in_the_order_of_their_requests() -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("x", "y"), b=FakeEngine("y"))
        pool = fleet.pool(concurrency=1)
        await pool.start()
        order: list[str] = []

        async def client(name: str, model: str) -> None:
            with await pool.take(model) as lease:
                order.append(f"{name}@{lease.backend.name[7]}")
                await asyncio.sleep(1)

        held = [await pool.take("x"), await pool.take("y")]
        assert [lease.backend.name for lease in held] == [url("a"), url("b")]
        tasks = [
            asyncio.get_running_loop().create_task(client(f"{model}{number}", model))
            for number, model in enumerate("xyxyyx")
        ]
        await settled()
        held[1].release()  # b serves y only: the first y goes before the first x
        await settled()
        assert order == ["y1@b"]
        held[0].release()
        await asyncio.gather(*tasks)
        assert order == ["y1@b", "x0@a", "y3@b", "x2@a", "y4@b", "x5@a"] or order == [
            "y1@b", "x0@a", "x2@a", "y3@b", "y4@a", "x5@a"
        ]  # fmt: skip
        await pool.aclose()

    at_once(main)


def test_no_later_model_starves_an_earlier_one() -> None:
    async def main() -> None:
        pool = Fleet(a=FakeEngine("x", "y")).pool(concurrency=1, queue_seconds=5)
        await pool.start()
        stop = False

        async def flood() -> None:
            while not stop:
                with await pool.take("y"):
                    await asyncio.sleep(0.5)

        floods = [asyncio.get_running_loop().create_task(flood()) for _ in range(5)]
        await asyncio.sleep(3)
        began = now()
        with await pool.take("x"):
            assert now() - began <= 3.0  # after the one that runs and the four that wait
        stop = True
        await asyncio.gather(*floods)
        await pool.aclose()

    at_once(main)


def test_an_engine_whose_cooldown_is_over_goes_to_who_waited_first() -> None:
    async def main() -> None:
        pool = Fleet(a=FakeEngine("m"), b=FakeEngine("m")).pool(
            concurrency=1, failures=1, cooldown_seconds=5, probe_seconds=1000
        )
        await pool.start()
        held = await pool.take("m")
        broken = await pool.take("m")
        broken.release(EngineFailed("broke off"))
        early = waiting(pool)
        await asyncio.sleep(5)
        late = waiting(pool)
        trial = await lease_of(early)
        assert trial.backend is broken.backend
        assert not late.done()
        held.release()
        (await lease_of(late)).release()
        trial.release()
        await pool.aclose()

    at_once(main)


def test_the_queue_is_bounded_in_number_and_time() -> None:
    async def main() -> None:
        pool = Fleet(a=FakeEngine("m")).pool(concurrency=1, queue=2, queue_seconds=3)
        await pool.start()
        lease = await pool.take("m")
        first = waiting(pool)
        await asyncio.sleep(1)
        second = waiting(pool)
        await settled()
        assert pool.waiting == 2
        assert await outcome(pool.take("m")) == FULL
        await asyncio.sleep(1.9)
        assert not first.done()
        await asyncio.sleep(0.2)
        assert first.result() == LATE
        assert not second.done()
        third = waiting(pool)
        await settled()
        assert pool.waiting == 2
        lease.release()
        lease = await lease_of(second)
        assert not third.done()
        lease.release()
        (await lease_of(third)).release()
        await pool.aclose()

    at_once(main)


def test_without_a_queue_nobody_waits() -> None:
    async def main() -> None:
        pool = Fleet(a=FakeEngine("m")).pool(concurrency=1, queue=0)
        await pool.start()
        with await pool.take("m"):
            assert await outcome(pool.take("m")) == FULL
        (await pool.take("m")).release()
        await pool.aclose()

    at_once(main)


@pytest.mark.parametrize("granted", [False, True])
def test_a_cancelled_waiter_leaks_nothing(granted: bool) -> None:
    async def main() -> None:
        pool = Fleet(a=FakeEngine("m")).pool(concurrency=1)
        await pool.start()
        lease = await pool.take("m")
        first, second = waiting(pool), waiting(pool)
        await settled()
        if granted:
            lease.release()  # gives the place to the first, which is cancelled before it runs again
            first.cancel()
        else:
            first.cancel()
            lease.release()
        await asyncio.wait([first])
        assert first.cancelled()
        got = await lease_of(second)
        assert got.backend.running == 1
        got.release()
        assert got.backend.running == 0
        assert pool.waiting == 0
        await pool.aclose()

    at_once(main)


def test_an_engine_that_comes_up_serves_who_waits() -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("m"), b=FakeEngine("m", up=False))
        pool = fleet.pool(concurrency=1, probe_seconds=1)
        await pool.start()
        lease = await pool.take("m")
        task = waiting(pool)
        await settled()
        fleet["b"].up = True
        assert (await lease_of(task)).backend.name == url("b")
        lease.release()
        (await task).release()  # type: ignore[union-attr]
        await pool.aclose()

    at_once(main)


# -------------------------------------------------------------------------------------------------------- set_specs


def test_specs_come_and_go(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        meter = States()
        fleet = Fleet(a=FakeEngine("m"), b=FakeEngine("m"), c=FakeEngine("m"))
        pool = fleet.pool(spec("a"), spec("b"), spec("a"), meter=meter)
        await pool.start()
        a, b = pool.backends
        held = await pool.take("m", exclude=[a])
        pool.set_specs([spec("c"), spec("a")])
        assert [backend.name for backend in pool.backends] == [url("c"), url("a")]
        assert pool.backends[1] is a
        await settled()
        for _ in range(10):
            with await pool.take("m") as lease:
                assert lease.backend is not b
        await asyncio.sleep(60)
        assert fleet["b"].closed == 0
        assert held.backend is b
        held.release()
        await settled()
        assert fleet["b"].closed == 1
        assert fleet["a"].asked.count("probe") == 1  # unchanged: not learnt again
        assert [told for told in meter.told if told[0] == url("b")][-1] == (url("b"), False, 0)
        pool.set_specs([])
        await settled()
        assert (fleet["a"].closed, fleet["c"].closed) == (1, 1)
        assert await outcome(pool.take("m")) == NONE
        await pool.aclose()
        assert [fleet[name].closed for name in "abc"] == [1, 1, 1]

    with caplog.at_level(logging.INFO, logger="derender.gateway"):
        at_once(main)
    assert "engine http://b:8000 is taken out with 1 requests left" in caplog.messages


def test_taking_the_last_engine_out_refuses_who_waits() -> None:
    async def main() -> None:
        pool = Fleet(a=FakeEngine("m")).pool(concurrency=1)
        await pool.start()
        lease = await pool.take("m")
        task = waiting(pool)
        await settled()
        pool.set_specs([])
        assert await task == NONE
        lease.release()
        await pool.aclose()

    at_once(main)


def test_an_engine_with_a_new_key_is_told_in_place_of_the_old() -> None:
    async def main() -> None:
        meter = States()
        fleet = Fleet(a=FakeEngine("m"))
        pool = fleet.pool(spec("a", api_key="old"), meter=meter)
        await pool.start()
        lease = await pool.take("m")
        old, fleet.engines[url("a")] = fleet["a"], FakeEngine("m")
        pool.set_specs([spec("a", api_key="new")])
        await settled()
        assert pool.ready(["m"])
        lease.release()
        await settled()
        assert old.closed == 1
        assert fleet["a"].closed == 0
        assert meter.told[-1] == (url("a"), True, 0)
        await pool.aclose()

    at_once(main)


def test_an_engine_that_cannot_be_closed(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(FakeEngine):
        async def aclose(self) -> None:
            raise RuntimeError("no")

    async def main() -> None:
        pool = Fleet(a=Stuck("m"), b=FakeEngine("m")).pool()
        await pool.start()
        pool.set_specs([spec("b")])
        await settled()
        assert pool.ready(["m"])
        await pool.aclose()

    at_once(main)
    assert caplog.messages == ["engine http://a:8000 could not be closed: its client failed: RuntimeError: no"]


def test_an_engine_taken_out_while_it_connects() -> None:
    async def main() -> None:
        fleet = Fleet(a=FakeEngine("m"))
        fleet["a"].hangs = True
        pool = fleet.pool()
        start = asyncio.get_running_loop().create_task(pool.start())
        await settled()
        pool.set_specs([])
        await settled()
        assert fleet["a"].closed == 1
        await start
        await pool.aclose()

    at_once(main)


# ------------------------------------------------------------------------------------------------- random schedules


class Fair(EnginePool):
    """Sees that nothing is given past one that came before and could have had it."""

    def _give(self, want: Want) -> Lease | None:
        lease = super()._give(want)
        if lease is not None:
            number = next((one.number for one in self._waiting if one.want is want), None)
            for waiter in self._waiting:
                if number is None or waiter.number >= number or waiter.given.done():
                    continue
                if lease.backend not in waiter.want.exclude and lease.backend.fits(waiter.want.need):
                    assert lease.backend not in self._serving(*waiter.want.line)
        return lease


class Storm:
    """Clients that come, wait, leave and fail at random, and a look at what the pool gave at every step."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.limit = self.rng.choice((1, 2, 3))
        self.fleet = Fleet(a=FakeEngine("x", "y"), b=FakeEngine("y", "z"), c=FakeEngine("x", "z"), d=FakeEngine("z"))
        self.specs = [spec(name, role="decode" if name == "d" else "any") for name in "abcd"]
        policies: tuple[Policy, ...] = ("least-loaded", "round-robin", "prefix")
        self.patient = self.rng.random() < 0.5
        self.pool = Fair(
            self.specs,
            settings=PoolSettings(
                concurrency=self.limit,
                queue=self.rng.choice((5, 1000)),
                queue_seconds=1000.0 if self.patient else 2.0,
                policy=self.rng.choice(policies),
                failures=2,
                cooldown_seconds=3,
                probe_seconds=2,
            ),
            connect=self.fleet.connect,
            meter=NoMeter(),
            rng=random.Random(seed),
        )
        self.held: Counter[Backend] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.healthy = True

    async def client(self, number: int) -> None:
        rng = self.rng
        model = rng.choice("xyz")
        roles: tuple[Role, ...] = ("any", "any", "any", "decode")
        role = rng.choice(roles)
        tried: list[Backend] = rng.sample(self.pool.backends, 1) if rng.random() < 0.2 and self.pool.backends else []
        try:
            lease = await self.pool.take(model, role=role, token_ids=[number % 7] * 32, exclude=tried)
        except Unavailable as error:
            self.outcomes[error.message] += 1
            return
        self.outcomes["given"] += 1
        self.check(lease, tried)
        try:
            await asyncio.sleep(rng.choice((0, 0.1, 0.5, 2)))
        finally:
            self.held[lease.backend] -= 1
            fate = rng.random() if not self.healthy else 1.0
            failure = (
                EngineFailed("broke") if fate < 0.2 else EngineFailed("busy", overloaded=True) if fate < 0.3 else None
            )
            for _ in range(rng.choice((1, 1, 2))):
                lease.release(failure)

    def check(self, lease: Lease, tried: Collection[Backend]) -> None:
        backend = lease.backend
        assert backend not in tried
        self.held[backend] += 1
        assert self.held[backend] <= backend.running  # a place that was given may not be taken up yet
        for one in self.held:
            assert 0 <= one.running <= self.limit

    async def run(self, *, count: int, faults: bool) -> None:
        rng = self.rng
        self.healthy = not faults
        await self.pool.start()
        tasks: list[asyncio.Task[None]] = []
        for number in range(count):
            tasks.append(asyncio.get_running_loop().create_task(self.client(number)))
            await asyncio.sleep(rng.choice((0, 0, 0, 0.05, 0.3)))
            fate = rng.random()
            if fate < 0.08:
                victim = rng.choice(tasks)
                if not victim.done():
                    victim.cancel()
                    self.outcomes["cancelled"] += 1
            elif faults and fate < 0.12:
                engine = rng.choice(list(self.fleet.engines.values()))
                engine.up = not engine.up
            elif faults and fate < 0.14:
                self.swap()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for one in results:
            if isinstance(one, BaseException) and not isinstance(one, asyncio.CancelledError):
                raise one
        assert self.pool.waiting == 0
        assert not list(self.pool._waiting)
        assert all(backend.running == 0 for backend in self.held)
        assert not any(self.held.values())
        await self.pool.aclose()

    def swap(self) -> None:
        """Takes an engine out, or one in; a connection that was closed is made anew."""
        kept = [one for one in self.specs if self.rng.random() < 0.8]
        current = {backend.spec for backend in self.pool.backends}
        for one in kept:
            if one not in current:
                old = self.fleet.engines[one.url]
                self.fleet.engines[one.url] = FakeEngine(*old.names, up=old.up)
        self.pool.set_specs(kept)


@pytest.mark.parametrize("seed", range(60))
def test_random_schedules(seed: int) -> None:
    storm = Storm(seed)
    at_once(lambda: storm.run(count=150, faults=False))
    assert storm.outcomes[DOWN] == 0
    if storm.patient:
        assert storm.outcomes[LATE] == 0


@pytest.mark.parametrize("seed", range(60))
def test_random_schedules_with_faults(seed: int) -> None:
    at_once(lambda: Storm(1000 + seed).run(count=150, faults=True))


def test_the_schedules_reach_all_outcomes() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1000, 1020):
        storm = Storm(seed)
        at_once(lambda storm=storm: storm.run(count=150, faults=True))  # type: ignore[misc]
        seen += storm.outcomes
    assert {"given", "cancelled", DOWN, NONE, NO_OTHER, FULL, LATE} <= set(seen)
