"""Several engines of which some fail: who is tried again, who is not, and what a failure costs the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.gateway.faults import FAULTS, TEXT
from tests.gateway.faulty_engine import (
    END,
    IDS,
    Ask,
    Behaviour,
    Connection,
    FaultyEngine,
    answer,
    choice,
    chunk,
    chunks,
    hang,
    right,
    until,
)
from tests.gateway.under_test import CHAT, COMPLETIONS, FEW_SHAPES, body, check, gate, run, texts

from derender.gateway.settings import EngineSpec, PoolSettings

BEFORE_THE_FIRST_TOKEN = [
    "closes_before_head", "dies_after_head", "half_frame_then_end", "nothing_at_all", "garbage_instead_of_json",
    "json_where_a_stream_was_asked", "redirects", "status_500_json", "status_503_html", "status_429_json",
    "status_404_html", "status_401_json", "compressed_wrongly", "answer_too_large",
]  # fmt: skip


def first_of(one: Behaviour, other: Behaviour = right) -> Callable[[Ask], Behaviour]:
    """The first try of each request meets `one`, wherever it goes; all after it `other`."""
    seen: set[str] = set()

    def behave(ask: Ask) -> Behaviour:
        leg = ask.id.rpartition("-")[0]
        if leg in seen:
            return other
        seen.add(leg)
        return one

    return behave


@pytest.mark.parametrize("name", BEFORE_THE_FIRST_TOKEN)
def test_what_fails_before_its_first_token_goes_to_another_engine(name: str) -> None:
    async def main() -> None:
        behave = first_of(FAULTS[name].behave)
        async with FaultyEngine(behave) as a, FaultyEngine(behave) as b, gate(a, b) as one:
            legs = 0
            # An engine that has too much to do is left alone for a second.
            shapes = FEW_SHAPES[::2] if name.startswith(("status_429", "status_503")) else FEW_SHAPES
            for number, (path, stream, n, prompts) in enumerate(shapes):
                asked = body(path, stream=stream, n=n, prompts=prompts)
                got = await one.ask(path, asked, request_id=f"r{number}")
                assert check(got, path, asked) is None, got.body
                assert texts(got, path) == dict.fromkeys(range(n * prompts), TEXT)
                legs += prompts
            assert len(a.asked) + len(b.asked) == 2 * legs

    run(main, seconds=60)


def test_what_fails_after_its_first_token_is_not_tried_again() -> None:
    async def main() -> None:
        behave = first_of(FAULTS["dies_between_chunks"].behave)
        async with FaultyEngine(behave) as a, FaultyEngine(behave) as b, gate(a, b) as one:
            for path in (CHAT, COMPLETIONS):
                asked = body(path, stream=True)
                got = await one.ask(path, asked)
                error = check(got, path, asked)
                assert error is not None
                assert error["code"] == 502
                assert got.status == 200
            assert len(a.asked) + len(b.asked) == 2

    run(main)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_request_with_a_cache_elsewhere_is_not_tried_again(path: str, stream: bool) -> None:
    async def main() -> None:
        behave = first_of(FAULTS["closes_before_head"].behave)
        async with FaultyEngine(behave) as a, FaultyEngine(behave) as b, gate(a, b) as one:
            asked = body(path, stream=stream, kv_transfer_params={"do_remote_prefill": True, "remote_engine_id": "e"})
            got = await one.ask(path, asked)
            assert check(got, path, asked) is not None
            assert got.status == 502
            assert len(a.asked) + len(b.asked) == 1

    run(main)


def test_refusals_are_not_tried_again() -> None:
    async def main() -> None:
        behave = first_of(FAULTS["status_400_json"].behave)
        async with FaultyEngine(behave) as a, FaultyEngine(behave) as b, gate(a, b) as one:
            for stream in (False, True):
                got = await one.ask(CHAT, body(CHAT, stream=stream))
                assert got.status == 400
                assert got.error["message"] == "the engine says no"
            assert len(a.asked) + len(b.asked) == 2

    run(main)


def test_no_more_engines_are_tried_than_set() -> None:
    async def main() -> None:
        fails = FAULTS["status_500_json"].behave
        engines = [FaultyEngine(lambda ask: fails) for _ in range(4)]
        for engine in engines:
            await engine.start()
        async with gate(*engines, retries=2) as one:
            got = await one.ask(CHAT, body(CHAT))
            assert got.status == 502
            assert sorted(len(engine.asked) for engine in engines) == [0, 1, 1, 1]
        for engine in engines:
            await engine.kill()

    run(main)


def test_all_tries_together_have_the_time_of_one_answer() -> None:
    async def main() -> None:
        async with FaultyEngine(lambda ask: hang) as a, FaultyEngine(lambda ask: hang) as b:
            async with gate(a, b, first_seconds=30, total_seconds=0.5) as one:
                for stream in (False, True):
                    got = await asyncio.wait_for(one.ask(CHAT, body(CHAT, stream=stream)), 20)
                    assert got.status == 504
                assert len(a.asked) + len(b.asked) == 2, "there was no time left for a second try"
            async with gate(a, b, first_seconds=0.2, total_seconds=30) as one:
                got = await asyncio.wait_for(one.ask(CHAT, body(CHAT, stream=True)), 20)
                assert got.status == 504
                assert len(a.asked) + len(b.asked) == 4

    run(main)


def test_a_stream_may_wait_for_its_first_token_after_its_head() -> None:
    """Servers send the head before the request leaves their queue: it is no sign that tokens come."""

    async def behave(ask: Ask, to: Connection) -> None:
        await to.head()
        await asyncio.sleep(0.6)
        for one in chunks(ask):
            await to.event(one)
        await to.event(b"[DONE]")
        await to.end()

    async def main() -> None:
        async with (
            FaultyEngine(lambda ask: behave) as engine,
            gate(engine, first_seconds=30, between_seconds=0.3) as one,
        ):
            asked = body(CHAT, stream=True)
            assert check(await one.ask(CHAT, asked), CHAT, asked) is None

    run(main)


def test_the_time_of_a_slow_client_is_not_the_engines() -> None:
    async def main() -> None:
        async with FaultyEngine() as engine, gate(engine, first_seconds=30, between_seconds=0.2) as one:
            asked = body(CHAT, stream=True)
            call = one.call(CHAT, asked)
            send = call.send

            async def slow(message: dict[str, Any]) -> None:
                await asyncio.sleep(0.1)
                await send(message)

            await asyncio.wait_for(one.app(call.scope, call.receive, slow), 30)
            assert check(call.answer, CHAT, asked) is None

    run(main)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["id_beyond_the_vocabulary", "more_than_max_tokens", "one_choice_has_no_end"])
def test_an_engine_that_talks_nonsense_is_counted_and_left_alone(name: str, stream: bool) -> None:
    """Whoever sees that it is nonsense: the client of the engine, the loop, or derender."""

    async def main() -> None:
        pool = PoolSettings(failures=2, cooldown_seconds=60, probe_seconds=3600)
        async with FaultyEngine(lambda ask: FAULTS[name].behave) as engine, gate(engine, pool=pool) as one:
            for _ in range(2):
                asked = body(CHAT, stream=stream)
                assert check(await one.ask(CHAT, asked), CHAT, asked) is not None
            await one.calm()
            assert not one.gateway.pool.backends[0].up
            labels = {"engine": engine.url, "reason": "EngineFailed"}
            assert one.metrics.get_sample_value("derender_gateway_engine_failures_total", labels) == 2
            assert one.metrics.get_sample_value("derender_gateway_aborts_total", {"reason": "client"}) in (None, 0)

    run(main)


# ------------------------------------------------------------------------------------------------ engines that die


def test_a_killed_engine_costs_only_what_had_begun_on_it() -> None:
    going = asyncio.Event()

    async def behave(ask: Ask, to: Connection) -> None:
        await to.head()
        await to.event(chunk(ask, choice(0, [IDS[0]])))
        await going.wait()
        for number, one in enumerate(IDS[1:]):
            await to.event(chunk(ask, choice(0, [one], finish="stop" if number == len(IDS) - 2 else None)))
        await to.event(b"[DONE]")
        await to.end()

    async def unbegun(ask: Ask, to: Connection) -> None:
        await to.head()
        await going.wait()
        for one in chunks(ask):
            await to.event(one)
        await to.event(b"[DONE]")
        await to.end()

    async def main() -> None:
        pool = PoolSettings(failures=3, cooldown_seconds=60, probe_seconds=3600, policy="round-robin")

        def of(ask: Ask) -> Behaviour:
            if going.is_set():
                return right
            return unbegun if "unbegun" in ask.id else behave

        async with FaultyEngine(of) as dies, FaultyEngine(of) as stays, gate(dies, stays, pool=pool) as one:
            asked = body(CHAT, stream=True)
            begun = [one.call(CHAT, asked, request_id=f"begun{number}") for number in range(20)]
            waits = [one.call(CHAT, asked, request_id=f"unbegun{number}") for number in range(20)]
            running = [asyncio.ensure_future(one.run(call)) for call in [*begun, *waits]]
            await until(lambda: all(call.answer.chunks for call in begun))
            await until(lambda: len(dies.asked) + len(stays.asked) == 40)
            lost = {ask.id for ask in dies.asked if "unbegun" not in ask.id}
            assert len(lost) == 10
            on_it = len(dies.asked)
            await dies.kill()
            going.set()
            later = [one.call(CHAT, body(CHAT), request_id=f"later{number}") for number in range(20)]
            await asyncio.gather(*running, *(one.run(call) for call in later))
            for call in later:
                assert check(call.answer, CHAT, body(CHAT)) is None
            failed = [call for call in [*begun, *waits] if check(call.answer, CHAT, asked) is not None]
            assert {call.scope["headers"][1][1] for call in failed} == {
                one.removeprefix("generate-tokens-chatcmpl-").split("-")[0].encode() for one in lost
            }
            assert [backend.up for backend in one.gateway.pool.backends] == [False, True]
            assert len(dies.asked) == on_it, "it is not asked any more"

    run(main)


def test_an_engine_that_fails_is_left_alone_and_comes_back() -> None:
    async def main() -> None:
        bad = {"it": True}
        fails = FAULTS["status_500_json"].behave
        pool = PoolSettings(failures=2, cooldown_seconds=0.3, probe_seconds=3600, policy="round-robin")
        async with (
            FaultyEngine(lambda ask: fails if bad["it"] else right) as engine,
            gate(engine, pool=pool) as one,
        ):
            for _ in range(2):
                assert (await one.ask(CHAT, body(CHAT))).status == 502
            got = await one.ask(CHAT, body(CHAT))
            assert got.status == 503
            assert int(got.headers["retry-after"]) >= 1
            assert len(engine.asked) == 2
            assert (await one.app_ready()).status == 503
            bad["it"] = False
            await until(lambda: one.gateway.pool.backends[0].passes)
            asked = body(CHAT)
            assert check(await one.ask(CHAT, asked), CHAT, asked) is None
            assert (await one.app_ready()).status == 200

    run(main)


def test_engines_come_and_go_under_load() -> None:
    async def slow(ask: Ask, to: Connection) -> None:
        await asyncio.sleep(0.02)
        await right(ask, to)

    async def main() -> None:
        async with FaultyEngine(lambda ask: slow) as a, FaultyEngine(lambda ask: slow) as b, gate(a) as one:
            asked = body(CHAT, stream=True)
            ended = asyncio.Event()

            async def load() -> int:
                count = 0
                while not ended.is_set():
                    got = await one.ask(CHAT, asked)
                    assert check(got, CHAT, asked) is None
                    count += 1
                return count

            workers = [asyncio.ensure_future(load()) for _ in range(8)]
            specs = [EngineSpec(url=engine.url, kind="vllm") for engine in (a, b)]
            for turn in range(6):
                one.gateway.pool.set_specs(specs if turn % 2 == 0 else specs[turn % 4 // 2 :][:1])
                await until(lambda: all(backend.up for backend in one.gateway.pool.backends))
                await asyncio.sleep(0.05)
            ended.set()
            assert sum(await asyncio.gather(*workers)) > 8
            assert len(b.asked) > 0
            assert not a.aborts
            assert not b.aborts

    run(main)


# --------------------------------------------------------------------------------------------- prefill and decode


def test_a_split_fails_as_one_engine_does() -> None:
    """What a prefill engine does wrong is an error of the request, and gives both places back."""

    async def prefills(ask: Ask, to: Connection) -> None:
        assert not ask.streams
        assert ask.body["kv_transfer_params"]["do_remote_decode"]
        await to.json({**answer(ask, [END]), "kv_transfer_params": {"remote_engine_id": "e", "remote_block_ids": [1]}})

    async def forgets(ask: Ask, to: Connection) -> None:
        await to.json(answer(ask, [END]))

    async def main() -> None:
        for behave, statuses in (
            (prefills, {200}),
            (forgets, {502}),
            (FAULTS["dies_before_head"].behave, {502}),
            (FAULTS["status_503_html"].behave, {503}),
            (FAULTS["status_400_json"].behave, {400}),
            (hang, {504}),
        ):
            async with (
                FaultyEngine(lambda ask, behave=behave: behave) as first,
                FaultyEngine() as second,
                gate(first, second, roles=("prefill", "decode"), first_seconds=0.5 if behave is hang else 30) as one,
            ):
                for stream in (False, True):
                    asked = body(CHAT, stream=stream)
                    got = await one.ask(CHAT, asked)
                    check(got, CHAT, asked)
                    assert got.status in statuses, (behave, got.body)
                assert len(second.asked) == (2 if behave is prefills else 0)
                for ask in second.asked:
                    assert ask.body["kv_transfer_params"] == {"remote_engine_id": "e", "remote_block_ids": [1]}

    run(main)
