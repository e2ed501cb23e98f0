"""Hostile bodies for the generate server, and clients that leave: 400 that names the field, no slot lost."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.engines.scripted import CONTEXT, LIMITS, VOCAB, ScriptedBackend, until
from tests.server.asgi_client import JSON, Answer, Call
from tests.server.hostile import WRONG, changed, fits, is_json, mutated, places
from tests.server.test_fuzz_bodies import PATIENCE, TIMES

from derender.engines import scheduler
from derender.engines.gbnf import GrammarError, lark_of_gbnf
from derender.engines.llamacpp import LlamaCppEngine
from derender.protocol.generate import GenerateRequest
from derender.server.generate import build_generate_app
from derender.server.http import App

PATH = "/inference/v1/generate"
BASE: dict[str, Any] = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 2}}


def with_engine(
    work: Callable[[App, LlamaCppEngine], Coroutine[Any, Any, None]], backend: ScriptedBackend | None = None
) -> None:
    """Runs `work` with an application over a scripted engine, which must be idle and clean at the end."""

    async def main() -> None:
        used = backend or ScriptedBackend()
        engine = LlamaCppEngine(used, LIMITS, root="toy.gguf")
        try:
            await work(build_generate_app(engine), engine)
            await asyncio.wait_for(until(engine, lambda load: load.running + load.waiting == 0), PATIENCE)
            assert used.open_samplers == 0
        finally:
            if used.steps is not None:
                used.steps.release(1_000_000)
            await engine.aclose()

    asyncio.run(main())


def posted(body: bytes | Any, *, path: str = PATH, **options: Any) -> Call:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Call("POST", path, parts=[data], headers=[JSON, ("content-length", str(len(data)))], **options)


async def ask(app: App, body: bytes | Any) -> Answer:
    one = posted(body)
    await asyncio.wait_for(app(one.scope, one.receive, one.send), PATIENCE)
    answer = one.answer
    assert answer.complete
    assert answer.status in (200, 400, 404), (body, answer.body[:300])
    if answer.status != 200:
        assert answer.error["message"]
    return answer


def test_a_wrong_value_at_any_place_is_told_by_its_place() -> None:
    rng = random.Random(3)

    async def work(app: App, engine: LlamaCppEngine) -> None:
        for place in places(GenerateRequest):
            if not place.path or place.path == ("stream",):
                continue
            for value in rng.sample(WRONG, min(len(WRONG), int(6 * TIMES))):
                answer = await ask(app, changed(GenerateRequest, BASE, place.path, value))
                if not is_json(value):
                    assert answer.status == 400
                elif not fits(value, place.type):
                    assert answer.status == 400, (place.path, value)
                    assert answer.error["param"].startswith("body"), (place.path, value)

    with_engine(work)


def test_damaged_bodies() -> None:
    rng = random.Random(4)
    full = json.dumps({**BASE, "stream": False, "sampling_params": {"max_tokens": 2, "n": 2, "seed": 1, "logprobs": 1}})

    async def work(app: App, engine: LlamaCppEngine) -> None:
        for _ in range(int(300 * TIMES)):
            one = posted(mutated(full.encode(), rng))
            await asyncio.wait_for(app(one.scope, one.receive, one.send), PATIENCE)
            assert one.answer.status in (200, 400, 404), one.answer.body[:300]

    with_engine(work)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"token_ids": [5, VOCAB]}, "token_ids"),
        ({"token_ids": [2**31]}, "token_ids"),
        ({"token_ids": [2**63]}, "token_ids"),
        ({"token_ids": [2**64]}, "token_ids"),
        ({"token_ids": [5] * (CONTEXT + 1)}, "token_ids"),
        ({"token_ids": [5] * 1_000_000}, "token_ids"),
        ({"sampling_params": {"n": 16385}}, "n"),
        ({"sampling_params": {"top_k": 2**31}}, "top_k"),
        ({"sampling_params": {"seed": 2**63}}, "seed"),
        ({"sampling_params": {"allowed_token_ids": [1] * 1000}}, "allowed_token_ids"),
        ({"sampling_params": {"stop_token_ids": [1] * 1000}}, "stop_token_ids"),
        ({"sampling_params": {"structured_outputs": {"grammar": 'root ::= "a"**'}}}, "structured_outputs.grammar"),
        ({"sampling_params": {"structured_outputs": {"grammar": "x" * 70_000}}}, "structured_outputs.grammar"),
        ({"features": {"mm_hashes": {" - at `$[" + "9" * 5000 + "]`": ["a"]}, "mm_placeholders": {}}}, "body.features"),
    ],
)
def test_what_is_refused_names_its_place(fields: dict[str, Any], param: str) -> None:
    async def work(app: App, engine: LlamaCppEngine) -> None:
        assert (await ask(app, {**BASE, **fields})).error["param"] == param

    with_engine(work)


def test_a_grammar_of_repetitions_takes_no_time() -> None:
    started = time.monotonic()
    with pytest.raises(GrammarError):
        lark_of_gbnf('root ::= "a"' + "*" * 60_000)
    assert lark_of_gbnf('root ::= ("a"*)*').startswith("start: ")
    assert time.monotonic() - started < 2


def test_more_choices_than_can_wait_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "MAX_WAITING", 100)
    body = {**BASE, "sampling_params": {"max_tokens": 2, "n": 80}}

    async def work(app: App, engine: LlamaCppEngine) -> None:
        calls = [posted(body) for _ in range(3)]
        await asyncio.gather(*[app(one.scope, one.receive, one.send) for one in calls])
        statuses = sorted(one.answer.status for one in calls)
        assert statuses[0] == 200
        assert statuses[-1] == 503
        for one in calls:
            if one.answer.status == 503:
                assert one.answer.error["type"] == "ServiceUnavailableError"
            else:
                assert len(one.answer.json["choices"]) == 80

    with_engine(work)


def test_a_request_of_many_choices_leaves_the_event_loop_free() -> None:
    body = {**BASE, "sampling_params": {"max_tokens": 1, "n": 16384}}

    async def work(app: App, engine: LlamaCppEngine) -> None:
        one = posted(body, leaves=True)
        task = asyncio.create_task(app(one.scope, one.receive, one.send))
        worst, last = 0.0, time.perf_counter()
        while not task.done():
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            worst, last = max(worst, now - last), now
        assert worst < 1.0  # a stall of a tenth of that is told by the load test; this one runs on busy machines

    with_engine(work)


def test_a_storm_of_requests_aborts_and_departures_loses_no_slot() -> None:
    rng = random.Random(5)
    backend = ScriptedBackend(slots=4)

    async def one_client(app: App, number: int) -> None:
        stream = rng.random() < 0.5
        params = {"max_tokens": rng.choice((1, 3, 50)), "n": rng.choice((1, 1, 5))}
        body = {**BASE, "request_id": f"r{number % 7}", "stream": stream, "sampling_params": params}
        one = posted(body)
        task = asyncio.create_task(app(one.scope, one.receive, one.send))
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)
        match rng.randrange(3):
            case 0:
                one.gone.set()
            case 1:
                abort = posted({"request_ids": [f"r{rng.randrange(7)}"]}, path="/abort_requests")
                await app(abort.scope, abort.receive, abort.send)
                assert abort.answer.status == 200
        await asyncio.wait_for(task, PATIENCE)
        assert one.answer.status in (0, 200, 499)

    async def work(app: App, engine: LlamaCppEngine) -> None:
        for _ in range(int(5 * TIMES)):
            await asyncio.gather(*[one_client(app, number) for number in range(40)])

    with_engine(work, backend)


def test_aborts_of_unknown_requests_cost_nothing_while_many_wait() -> None:
    steps = threading.Semaphore(0)
    backend = ScriptedBackend(slots=1, steps=steps)

    async def work(app: App, engine: LlamaCppEngine) -> None:
        one = posted({**BASE, "request_id": "big", "sampling_params": {"max_tokens": 50, "n": 16000}})
        task = asyncio.create_task(app(one.scope, one.receive, one.send))
        await asyncio.wait_for(until(engine, lambda load: load.waiting > 15000), PATIENCE)
        started = time.monotonic()
        for number in range(200):
            await engine.abort([f"unknown-{number}"])
        assert time.monotonic() - started < 1
        await engine.abort(["big"])
        steps.release(1000)
        await asyncio.wait_for(task, PATIENCE)
        assert {choice["finish_reason"] for choice in one.answer.json["choices"]} == {"abort"}

    with_engine(work, backend)
