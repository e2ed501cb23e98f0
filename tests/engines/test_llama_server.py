"""The client of llama.cpp servers, against a stand-in; `test_llama_server_real.py` has the real one."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.llama_calls import PROMPT, generated, request, run, streamed
from tests.engines.llama_stand_in import EOS, OTHER_EOS, LlamaStandIn

from derender.engines.errors import EngineFailed, EngineRefused
from derender.engines.http import EngineHttp
from derender.engines.llama_server import LlamaServerEngine
from derender.protocol.errors import BadRequest, Unavailable
from derender.protocol.generate import GenerateRequest

# ------------------------------------------------------------------------------------------------------------ answers


def test_a_short_answer_takes_one_request():
    server = LlamaStandIn()
    answer = generated(server, request(outside={"return_token_ids": True}))
    (choice,) = answer.choices
    assert choice.token_ids == [10, 11, 12, 13, 14, 15, 16, 17, 18, EOS]
    assert (choice.finish_reason, choice.stop_reason, choice.logprobs) == ("stop", None, None)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 10, 13)
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert answer.prompt_token_ids == PROMPT
    assert len(server.asked) == 1


def test_a_stream_speaks_soon_and_then_in_steps():
    chunks = streamed(LlamaStandIn(), request())
    assert [chunk.choices[0].token_ids for chunk in chunks[:-1]] == [
        [10],
        [11],
        [12, 13],
        [14, 15, 16, 17],
        [18, EOS],
    ]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 10
    each = streamed(LlamaStandIn(), request(stream_interval=1))
    assert len(each) == 11


@pytest.mark.parametrize(
    ("params", "ids", "end"),
    [
        ({"stop_token_ids": [14, 12]}, [10, 11, 12], ("stop", 12)),
        ({"stop_token_ids": [EOS]}, [10, 11, 12, 13, 14, 15, 16, 17, 18, EOS], ("stop", None)),
        ({"max_tokens": 4}, [10, 11, 12, 13], ("length", None)),
        ({"min_tokens": 4, "stop_token_ids": [12, 15]}, [10, 11, 99, 13, 14, 15], ("stop", 15)),
        ({"min_tokens": 10, "max_tokens": 10}, [10, 11, 12, 13, 14, 15, 16, 17, 18, 99], ("length", None)),
    ],
)
def test_where_an_output_ends(params, ids, end):
    for chosen in (generated(LlamaStandIn(), request(**params)).choices[0], _joined(request(**params))):
        assert (chosen.token_ids, (chosen.finish_reason, chosen.stop_reason)) == (ids, end)


def _joined(asked: GenerateRequest, server: LlamaStandIn | None = None) -> Any:
    choices = [chunk.choices[0] for chunk in streamed(server or LlamaStandIn(), asked)[:-1]]
    assert all(choice.finish_reason is None for choice in choices[:-1])
    ids = [token for choice in choices for token in choice.token_ids or ()]
    return msgspec.structs.replace(choices[-1], token_ids=ids)


def test_an_end_of_turn_that_is_not_the_eos_is_told_by_its_id():
    (choice,) = generated(LlamaStandIn(script=[10, OTHER_EOS]), request()).choices
    assert (choice.finish_reason, choice.stop_reason) == ("stop", OTHER_EOS)


def test_an_ignored_eos_is_a_token_like_others():
    script = [10, EOS, 11, EOS, 12]
    for params in ({}, {"seed": 1}):
        asked = request(ignore_eos=True, max_tokens=5, **params)
        (choice,) = generated(LlamaStandIn(script=script), asked).choices
        assert (choice.token_ids, choice.finish_reason) == (script, "length")


def test_the_end_of_the_context_is_the_end():
    server = LlamaStandIn(script=[10] * 100, context=20)
    for choice in (generated(server, request()).choices[0], _joined(request(), server)):
        assert (choice.token_ids, choice.finish_reason) == ([10] * 17, "length")


def test_logprobs_have_the_sampled_id_first_then_the_best():
    (choice,) = generated(LlamaStandIn(), request(logprobs=2, max_tokens=1)).choices
    (entry,) = choice.logprobs.content
    assert [(one.token_id, one.logprob, one.rank) for one in entry.top_logprobs] == [(10, -0.5, 1), (800, -1.5, 2)]


def test_logprobs_that_the_server_leaves_out_are_asked_for():
    inside = frozenset((11, 12, 15))
    (choice,) = generated(LlamaStandIn(inside=inside), request(logprobs=1)).choices
    assert [entry.token_id for entry in choice.logprobs.content] == choice.token_ids
    assert {entry.logprob for entry in choice.logprobs.content} == {-0.5}
    (plain,) = generated(LlamaStandIn(), request(logprobs=1)).choices
    assert choice.logprobs == plain.logprobs


@settings(max_examples=100)
@given(data=st.data())
def test_a_stream_says_what_the_whole_answer_says(data):
    script = data.draw(st.lists(st.sampled_from([10, 11, 12, EOS]), min_size=40, max_size=40))
    params = data.draw(
        st.fixed_dictionaries(
            {"max_tokens": st.integers(1, 40)},
            optional={
                "seed": st.integers(0, 3),
                "stop_token_ids": st.just([12]),
                "ignore_eos": st.booleans(),
                "stream_interval": st.integers(1, 9),
                "logprobs": st.integers(0, 2),
            },
        )
    )
    server = LlamaStandIn(script=script, inside=frozenset((11,)))

    async def act(engine: LlamaServerEngine) -> Any:
        asked = request(**params)
        return await engine.generate(asked), [chunk async for chunk in await engine.stream(asked)]

    answer, chunks = run(server, act)
    whole, parts = answer.choices[0], [chunk.choices[0] for chunk in chunks[:-1]]
    assert [token for part in parts for token in part.token_ids] == whole.token_ids
    content = [entry for part in parts if part.logprobs for entry in part.logprobs.content]
    assert content == (whole.logprobs.content if whole.logprobs else [])
    assert (parts[-1].finish_reason, parts[-1].stop_reason) == (whole.finish_reason, whole.stop_reason)
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


def test_a_constraint_is_one_request_and_one_chunk():
    server = LlamaStandIn()
    chunks = streamed(server, request(structured_outputs={"choice": ["a", "b"]}))
    assert [len(chunk.choices) for chunk in chunks] == [1, 0]
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("script", "content", "fine"),
    [
        ([10, EOS], '{"a": 1}', True),
        ([10, EOS], "The original", False),
        ([10, EOS], '{"a": ', False),
        ([10] * 60, ' {"a": ', True),
        ([10] * 60, "The original", False),
    ],
)
def test_a_schema_that_the_server_did_not_hold_to_is_an_error(script, content, fine):
    server = LlamaStandIn(script=script, content=content)
    asked = request(structured_outputs={"json": {"type": "object"}}, max_tokens=50)
    if fine:
        assert generated(server, asked).choices[0].token_ids == script[:50]
        return
    with pytest.raises(BadRequest) as refusal:
        generated(server, asked)
    assert refusal.value.param == "structured_outputs.json"


def test_a_refusal_of_the_server_is_told_before_a_stream_begins():
    server = LlamaStandIn(error=(400, {"message": "exceeds", "type": "exceed_context_size_error"}))

    async def act(engine: LlamaServerEngine) -> None:
        await engine.stream(request())

    with pytest.raises(EngineRefused, match="exceeds") as refusal:
        run(server, act)
    assert (refusal.value.status, refusal.value.type) == (400, "exceed_context_size_error")


def test_a_server_that_loads_its_model_has_too_much_to_do():
    server = LlamaStandIn(error=(503, {"message": "Loading model", "type": "unavailable_error"}))
    with pytest.raises(EngineFailed) as failure:
        generated(server, request())
    assert failure.value.overloaded


def test_an_answer_without_ids_is_a_failure():
    with pytest.raises(EngineFailed, match="before the end"):
        generated(_Mute(), request())


class _Mute(LlamaStandIn):
    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": [], "stop_type": "none"}


# -------------------------------------------------------------------------------------------------------------- aborts


@pytest.mark.parametrize("verb", ["generate", "stream"])
def test_a_cancelled_request_closes_its_connection(verb):
    server = LlamaStandIn(hang=True)

    async def act(engine: LlamaServerEngine) -> None:
        task = asyncio.ensure_future(getattr(engine, verb)(request()))
        await asyncio.wait_for(server.came.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.closed.wait(), 5)
        assert (await engine.load()).running == 1  # as the stand-in says
        assert not engine._running

    run(server, act)


def test_a_closed_stream_asks_no_more():
    server = LlamaStandIn()

    async def act(engine: LlamaServerEngine) -> None:
        stream = await engine.stream(request())
        await anext(stream)
        await anext(stream)
        await stream.aclose()
        assert not engine._running

    run(server, act)
    assert len(server.asked) == 2


def test_a_stream_that_nobody_began_to_read_gives_its_turn_back():
    server = LlamaStandIn(slots=1)

    async def act(engine: LlamaServerEngine) -> None:
        stream = await engine.stream(request())
        await stream.aclose()
        assert not engine._running
        await engine.generate(request())

    run(server, act)


@pytest.mark.parametrize("begun", [False, True])
def test_an_aborted_request_ends_as_such(begun):
    server = LlamaStandIn(hang=not begun)

    async def act(engine: LlamaServerEngine) -> Any:
        if begun:
            stream = await engine.stream(request())
            await anext(stream)
            await engine.abort(["other", "r"])
            return (await anext(stream)).choices[0]
        task = asyncio.ensure_future(engine.generate(request()))
        await asyncio.wait_for(server.came.wait(), 5)
        await engine.abort(["other"])
        await engine.abort(["r"])
        return (await task).choices[0]

    choice = run(server, act)
    assert (choice.finish_reason, choice.token_ids) == ("abort", [])


def test_no_more_requests_are_at_the_server_than_it_has_slots():
    server = LlamaStandIn(slots=2)

    async def act(engine: LlamaServerEngine) -> None:
        await asyncio.gather(*(engine.generate(request(seed=1)) for _ in range(6)))

    run(server, act)
    assert server.most_at_work == 2


# -------------------------------------------------------------------------------------------------------- other verbs


def test_what_a_server_tells_of_itself():
    async def act(engine: LlamaServerEngine) -> Any:
        await engine.probe()
        await engine.health()
        return engine.capabilities, await engine.load(), await engine.models()

    able, load, models = run(LlamaStandIn(), act)
    assert (able.max_n, able.stop_strings, able.max_logprobs) == (1, False, 20)
    assert able.structured_outputs == {"json", "json_object", "choice", "grammar"}
    assert (load.running, load.waiting, load.prompt_tokens, load.generated_tokens) == (1, 2, 3, 4)
    assert [(model.name, model.max_model_len) for model in models] == [("m.gguf", 64)]


def test_a_server_that_tells_no_load_is_judged_by_what_is_asked_of_it():
    server = LlamaStandIn(quiet=True, hang=True)

    async def act(engine: LlamaServerEngine) -> int:
        task = asyncio.ensure_future(engine.generate(request()))
        await asyncio.wait_for(server.came.wait(), 5)
        load = await engine.load()
        task.cancel()
        return load.running

    assert run(server, act) == 1


def test_a_server_that_is_not_there_is_told_as_such():
    async def act() -> None:
        engine = LlamaServerEngine(EngineHttp("http://127.0.0.1:9"))
        for verb in (engine.probe, engine.models, engine.load):
            with pytest.raises(EngineFailed):
                await verb()
        with pytest.raises(Unavailable):
            await engine.health()
        await engine.aclose()

    asyncio.run(act())
