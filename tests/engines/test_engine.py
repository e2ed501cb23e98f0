"""The engine's verbs over a scripted backend: whole answers, streams, usage, aborts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.engines.scripted import CONTEXT, LIMITS, ScriptedBackend, until

from derender.engines.base import EngineModel
from derender.engines.llamacpp import LlamaCppEngine
from derender.protocol.common import Usage
from derender.protocol.errors import BadRequest, Unavailable
from derender.protocol.generate import GenerateChunk, GenerateRequest


def asked(prompt: Any = (5, 6, 7), *, params: dict[str, Any] | None = None, **fields: Any) -> GenerateRequest:
    body = {"token_ids": list(prompt), "sampling_params": {"max_tokens": 3, **(params or {})}, **fields}
    return msgspec.convert(body, GenerateRequest)


def run(act: Callable[[LlamaCppEngine], Awaitable[Any]], backend: ScriptedBackend | None = None) -> Any:
    async def main() -> Any:
        engine = LlamaCppEngine(backend or ScriptedBackend(), LIMITS, root="toy.gguf")
        try:
            return await asyncio.wait_for(act(engine), 10)
        finally:
            await engine.aclose()

    return asyncio.run(main())


def by_choice(prompt: Any, sampling: Any, sampled: int) -> int:
    return (sampling.seed * 10 + sampled) % 100


async def chunks_of(engine: LlamaCppEngine, request: GenerateRequest) -> list[GenerateChunk]:
    return [chunk async for chunk in await engine.stream(request)]


def test_a_whole_answer():
    answer = run(lambda engine: engine.generate(asked(request_id="mine", return_token_ids=True)))
    assert answer.request_id == "mine"
    assert answer.model == "toy"
    assert answer.prompt_token_ids == [5, 6, 7]
    assert answer.usage == Usage(prompt_tokens=3, completion_tokens=3, total_tokens=6)
    (choice,) = answer.choices
    assert (choice.index, choice.token_ids, choice.finish_reason, choice.stop_reason, choice.logprobs) == (
        0,
        [10, 11, 12],
        "length",
        None,
        None,
    )


def test_an_answer_without_an_id_of_its_own_gets_one_and_no_prompt_unasked():
    answer = run(lambda engine: engine.generate(asked(model="toy-2")))
    assert answer.request_id.startswith("generate-tokens-")
    assert len(answer.request_id) == len("generate-tokens-") + 32
    assert answer.prompt_token_ids is None
    assert answer.model == "toy-2"


def test_choices_are_in_order_with_logprobs_of_their_own():
    request = asked(params={"n": 3, "seed": 2, "logprobs": 1})
    answer = run(lambda engine: engine.generate(request), ScriptedBackend(by_choice))
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.token_ids for choice in answer.choices] == [[20, 21, 22], [30, 31, 32], [40, 41, 42]]
    for choice in answer.choices:
        assert [entry.token_id for entry in choice.logprobs.content] == choice.token_ids
    assert answer.usage.completion_tokens == 9


def test_a_stream_joined_is_the_whole_answer():
    request = asked(params={"n": 3, "seed": 2, "logprobs": 0}, return_token_ids=True)
    chunks = run(lambda engine: chunks_of(engine, request), ScriptedBackend(by_choice))
    joined: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for chunk in chunks:
        (choice,) = chunk.choices
        joined[choice.index] += choice.token_ids
        assert [entry.token_id for entry in choice.logprobs.content] == choice.token_ids
        assert chunk.usage is None
    assert joined == {0: [20, 21, 22], 1: [30, 31, 32], 2: [40, 41, 42]}
    assert [chunk.prompt_token_ids for chunk in chunks] == [[5, 6, 7]] + [None] * 8
    assert len({chunk.request_id for chunk in chunks}) == 1


def test_usage_of_a_stream():
    request = asked(stream_options={"include_usage": True})
    chunks = run(lambda engine: chunks_of(engine, request))
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * 3
    assert chunks[-1].choices == []
    assert chunks[-1].usage == Usage(prompt_tokens=3, completion_tokens=3, total_tokens=6)


def test_continuous_usage_counts_each_choice_and_needs_include_usage():
    options = {"include_usage": True, "continuous_usage_stats": True}
    request = asked(params={"n": 2, "seed": 1}, stream_options=options)
    chunks = run(lambda engine: chunks_of(engine, request), ScriptedBackend(by_choice))
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.choices and chunk.choices[0].index == 1] == [
        1,
        2,
        3,
    ]
    assert chunks[-1].usage.completion_tokens == 6
    request = asked(stream_options={"continuous_usage_stats": True})
    assert all(chunk.usage is None for chunk in run(lambda engine: chunks_of(engine, request)))


def test_stream_interval_sends_the_first_token_then_several_then_the_end():
    request = asked(params={"max_tokens": 8, "stream_interval": 3})
    chunks = run(lambda engine: chunks_of(engine, request))
    assert [chunk.choices[0].token_ids for chunk in chunks] == [[10], [11, 12, 13], [14, 15, 16], [17]]


def test_a_stream_is_refused_before_it_begins():
    async def act(engine: LlamaCppEngine) -> None:
        with pytest.raises(BadRequest):
            await engine.stream(asked(params={"stop": ["x"]}))
        with pytest.raises(BadRequest, match=r"structured_outputs\.regex cannot be applied"):
            await engine.stream(asked(params={"structured_outputs": {"regex": "bad"}}))

    run(act)


def test_abort_by_id_ends_batch_and_stream():
    steps = threading.Semaphore(4)

    async def act(engine: LlamaCppEngine) -> None:
        whole = asyncio.ensure_future(engine.generate(asked(params={"max_tokens": 50}, request_id="a")))
        stream = await engine.stream(asked(params={"max_tokens": 50}, request_id="b"))
        first = await stream.__anext__()
        assert first.choices[0].token_ids == [10]
        await engine.abort(["a", "b"])
        steps.release(1000)
        choice = (await whole).choices[0]
        assert choice.finish_reason == "abort"
        assert choice.token_ids == list(range(10, 10 + len(choice.token_ids)))
        rest = [chunk async for chunk in stream]
        assert (rest[-1].choices[0].finish_reason, rest[-1].choices[0].token_ids) == ("abort", [])
        assert (await engine.load()).running == 0

    run(act, ScriptedBackend(steps=steps))


@pytest.mark.parametrize("way", ["cancel", "close"])
def test_leaving_frees_the_slot(way):
    steps = threading.Semaphore(2)

    async def act(engine: LlamaCppEngine) -> None:
        long = asked(params={"max_tokens": 50, "n": 3, "seed": 1})
        if way == "cancel":
            task = asyncio.ensure_future(engine.generate(long))
            await until(engine, lambda load: load.running > 0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        else:
            stream = await engine.stream(long)
            await stream.__anext__()
            await stream.aclose()
        steps.release(1000)
        assert (await engine.generate(asked())).choices[0].token_ids == [10, 11, 12]
        load = await engine.load()
        assert (load.running, load.waiting) == (0, 0)

    backend = ScriptedBackend(lambda p, s, sampled: 10 + sampled % 80, slots=1, steps=steps)
    run(act, backend)
    assert len(backend.batches) < 30


def test_a_stream_that_nobody_reads_asks_for_nothing():
    async def act(engine: LlamaCppEngine) -> None:
        stream = await engine.stream(asked())
        await stream.aclose()
        assert (await engine.load()).prompt_tokens == 0

    run(act)


def test_health_models_and_capabilities():
    async def act(engine: LlamaCppEngine) -> None:
        await engine.health()
        assert await engine.models() == [
            EngineModel(name=name, max_model_len=CONTEXT, root="toy.gguf") for name in ("toy", "toy-2")
        ]
        assert engine.capabilities.structured_outputs == {"json", "json_object", "regex", "choice", "grammar"}
        assert not engine.capabilities.stop_strings
        await engine.aclose()
        with pytest.raises(Unavailable):
            await engine.health()
        with pytest.raises(Unavailable):
            await engine.generate(asked())

    run(act)
