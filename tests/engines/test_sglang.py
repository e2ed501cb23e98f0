"""The client of SGLang servers, against a stand-in: see its docstring for what that can show."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.sglang_stand_in import EOS, SglangStandIn, serving

from derender.engines.errors import EngineFailed, EngineRefused
from derender.engines.http import EngineHttp
from derender.engines.sglang import SglangEngine
from derender.engines.sglang_answer import Answer, Finish, Meta, Output
from derender.protocol.errors import ApiError, BadRequest
from derender.protocol.generate import GenerateChunk, GenerateRequest, GenerateStreamChoice

PROMPT = [5, 6, 7]


def request(*, request_id: str = "r", outside: dict[str, Any] | None = None, **params: Any) -> GenerateRequest:
    told = {"token_ids": PROMPT, "request_id": request_id, "sampling_params": params, **(outside or {})}
    return msgspec.convert(told, GenerateRequest)


def run(server: SglangStandIn, act: Callable[[SglangEngine], Awaitable[Any]]) -> Any:
    async def inside() -> Any:
        async with serving(server.app()) as url:
            engine = SglangEngine(EngineHttp(url))
            try:
                return await asyncio.wait_for(act(engine), 10)
            finally:
                await engine.aclose()

    return asyncio.run(inside())


def generated(server: SglangStandIn, asked: GenerateRequest) -> Any:
    return run(server, lambda engine: engine.generate(asked))


def streamed(server: SglangStandIn, asked: GenerateRequest) -> list[GenerateChunk]:
    async def act(engine: SglangEngine) -> list[GenerateChunk]:
        return [chunk async for chunk in await engine.stream(asked)]

    chunks: list[GenerateChunk] = run(server, act)
    return chunks


def joined(choices: list[GenerateStreamChoice]) -> tuple[list[int], list[Any], str | None, Any]:
    ids = [token for choice in choices for token in choice.token_ids or ()]
    logprobs = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content or ()]
    assert all(choice.finish_reason is None for choice in choices[:-1])
    return ids, logprobs, choices[-1].finish_reason, choices[-1].stop_reason


# ------------------------------------------------------------------------------------------------------ whole answers


def test_a_whole_answer():
    server = SglangStandIn()
    answer = generated(server, request(logprobs=2, outside={"return_token_ids": True}))
    (choice,) = answer.choices
    assert (answer.request_id, answer.prompt_token_ids) == ("r", PROMPT)
    assert (choice.token_ids, choice.finish_reason, choice.stop_reason) == ([10, 11, 12, 13, EOS], "stop", None)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 5, 8)
    assert usage.prompt_tokens_details.cached_tokens == 1
    first, last = choice.logprobs.content[0], choice.logprobs.content[3]
    assert [(one.token_id, one.logprob, one.rank) for one in first.top_logprobs] == [(10, -1.5, 2), (800, -0.5, 1)]
    assert (first.token_id, first.logprob, first.rank) == (10, -1.5, 2)
    # Not among the candidates: its rank is not known, and the two best come after it.
    assert [(one.token_id, one.logprob, one.rank) for one in last.top_logprobs] == [
        (13, -4.0, None),
        (803, -0.5, 1),
        (900, -1.5, 2),
    ]


@pytest.mark.parametrize(
    ("params", "finish_reason", "stop_reason", "ids"),
    [
        ({}, "stop", None, [10, 11, 12, 13, EOS]),
        ({"stop_token_ids": [12]}, "stop", 12, [10, 11, 12]),
        ({"stop_token_ids": [EOS]}, "stop", EOS, [10, 11, 12, 13, EOS]),
        ({"max_tokens": 2}, "length", None, [10, 11]),
        ({"ignore_eos": True}, "length", None, [10, 11, 12, 13, EOS]),
    ],
)
def test_why_an_output_ends(params, finish_reason, stop_reason, ids):
    (choice,) = generated(SglangStandIn(), request(**params)).choices
    assert (choice.finish_reason, choice.stop_reason, choice.token_ids) == (finish_reason, stop_reason, ids)


def test_a_stop_string_is_told_as_such():
    server = SglangStandIn(finish={"type": "stop", "matched": "END"})
    (choice,) = generated(server, request()).choices
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "END")


def test_logprobs_of_zero_have_the_sampled_id_alone():
    (choice,) = generated(SglangStandIn(), request(logprobs=0, max_tokens=1)).choices
    assert [(one.token_id, one.logprob) for one in choice.logprobs.content[0].top_logprobs] == [(10, -1.5)]


def test_prompt_logprobs_have_their_own_number_of_candidates():
    answer = generated(SglangStandIn(), request(prompt_logprobs=1, logprobs=3, max_tokens=1))
    assert answer.prompt_logprobs[0] is None
    assert {token: (one.logprob, one.rank) for token, one in answer.prompt_logprobs[1].items()} == {
        "6": (-1.5, 2),
        "801": (-0.5, 1),
    }
    assert len(answer.prompt_logprobs) == 3
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 3
    alone = generated(SglangStandIn(), request(prompt_logprobs=0, max_tokens=1))
    assert list(alone.prompt_logprobs[2]) == ["7"]
    assert alone.choices[0].logprobs is None


def test_a_refusal_keeps_its_status_and_words():
    server = SglangStandIn(error={"message": "The input is too long."})
    for act in (generated, streamed):
        with pytest.raises(EngineRefused, match="too long") as refusal:
            act(server, request())
        assert refusal.value.status == 400
    assert server.aborts == []


def test_an_abort_with_a_status_is_that_error():
    refused = SglangStandIn(finish={"type": "abort", "message": "no grammar", "status_code": 400})
    failed = SglangStandIn(finish={"type": "abort", "message": "queue is full", "status_code": 503})
    for act in (generated, streamed):
        with pytest.raises(EngineRefused, match="no grammar"):
            act(refused, request())
        with pytest.raises(EngineFailed) as failure:
            act(failed, request())
        assert failure.value.overloaded


def test_an_abort_that_somebody_asked_for_is_an_end():
    server = SglangStandIn(finish={"type": "abort", "message": "Aborted", "status_code": None})
    assert generated(server, request()).choices[0].finish_reason == "abort"
    *_, last, usage = streamed(server, request())
    assert last.choices[0].finish_reason == "abort"
    assert usage.usage is not None


def test_a_server_that_answers_with_text_is_told_apart():
    for act in (generated, streamed):
        with pytest.raises(EngineFailed, match="skip-tokenizer-init"):
            act(SglangStandIn(text_only=True), request())


# ------------------------------------------------------------------------------------------------------------ streams


@settings(max_examples=150)
@given(data=st.data())
def test_a_stream_says_what_the_whole_answer_says_however_it_is_cut(data):
    # Ids repeat, so that a delta may begin with all that was seen.
    script = data.draw(st.lists(st.sampled_from([10, 10, 11, EOS]), min_size=1, max_size=12))
    server = SglangStandIn(
        script=script,
        steps=data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=8)),
        ids_as=data.draw(st.sampled_from(["cumulative", "delta"])),
        logprobs_as=data.draw(st.sampled_from(["cumulative", "delta"])),
    )
    asked = request(logprobs=data.draw(st.sampled_from([None, 0, 2])))

    async def act(engine: SglangEngine) -> Any:
        return await engine.generate(asked), [chunk async for chunk in await engine.stream(asked)]

    answer, chunks = run(server, act)
    (whole,) = answer.choices
    ids, logprobs, finish_reason, stop_reason = joined([chunk.choices[0] for chunk in chunks[:-1]])
    assert ids == whole.token_ids
    assert logprobs == (whole.logprobs.content if whole.logprobs else [])
    assert (finish_reason, stop_reason) == (whole.finish_reason, whole.stop_reason)
    assert chunks[-1].choices == []
    assert chunks[-1].usage == answer.usage
    assert {chunk.request_id for chunk in chunks} == {"r"}


def test_a_list_that_grew_after_it_was_counted_is_read_once():
    server = SglangStandIn(script=[10, 10, 10, 10, 11, EOS], steps=[1], ahead=True)
    chunks = streamed(server, request(logprobs=2))
    ids, logprobs, *_ = joined([chunk.choices[0] for chunk in chunks[:-1]])
    assert ids == [10, 10, 10, 10, 11, EOS]
    assert [entry.token_id for entry in logprobs] == ids


def output(**told: Any) -> Output:
    return Output(name="the engine", logprobs=told.get("logprobs"), stops=())


def test_without_a_counter_what_begins_with_all_that_was_seen_has_all():
    reading = output()
    for ids in ([1], [1, 2], [3]):
        reading.push(Answer(output_ids=ids, meta_info=Meta()))
    assert reading.ids == [1, 2, 3]


@pytest.mark.parametrize(
    ("second", "counted"),
    [
        ([1, 3, 4], 3),  # all so far, but not what was sent
        ([4], 5),  # new ones, but not all of them
    ],
)
def test_ids_that_do_not_go_together_are_a_failure(second, counted):
    reading = output()
    reading.push(Answer(output_ids=[1, 2], meta_info=Meta(completion_tokens=2)))
    with pytest.raises(EngineFailed):
        reading.push(Answer(output_ids=second, meta_info=Meta(completion_tokens=counted)))


@pytest.mark.parametrize("told", [None, [], [(-1.0, 9, None)], [(-1.0, 1, None), (-1.0, 3, None)]])
def test_logprobs_of_other_ids_are_a_failure(told):
    meta = Meta(completion_tokens=2, output_token_logprobs=told)
    with pytest.raises(EngineFailed, match="logprobs"):
        output(logprobs=0).push(Answer(output_ids=[1, 2], meta_info=meta))


def test_an_end_without_new_ids_is_told():
    reading = output()
    reading.push(Answer(output_ids=[1], meta_info=Meta(completion_tokens=1)))
    end = reading.push(Answer(output_ids=[], meta_info=Meta(completion_tokens=1, finish_reason=Finish("length"))))
    assert end == GenerateStreamChoice(index=0, token_ids=[], finish_reason="length")


def test_prompt_logprobs_are_refused_in_a_stream():
    with pytest.raises(BadRequest):
        streamed(SglangStandIn(), request(prompt_logprobs=0))


def test_an_error_inside_a_stream_is_a_failure_and_nothing_is_aborted():
    server = SglangStandIn(error={"message": "out of memory"}, error_after=2)
    got: list[int] = []

    async def act(engine: SglangEngine) -> None:
        async for chunk in await engine.stream(request()):
            got.extend(chunk.choices[0].token_ids or ())

    with pytest.raises(EngineFailed, match="out of memory"):
        run(server, act)
    assert got == [10, 11]
    assert server.aborts == []


@pytest.mark.parametrize("after", [0, 2])
def test_a_stream_that_breaks_off_is_a_failure(after):
    with pytest.raises(EngineFailed):
        streamed(SglangStandIn(break_after=after), request())


# -------------------------------------------------------------------------------------------------------------- aborts


def test_a_stream_closed_before_its_end_is_aborted_once():
    server = SglangStandIn(hang_after=2)

    async def act(engine: SglangEngine) -> None:
        stream = await engine.stream(request(request_id="a b/c"))
        await anext(stream)
        await stream.aclose()
        await asyncio.wait_for(server.aborted.wait(), 5)

    run(server, act)
    assert server.aborts == ["a%20b%2Fc/"] == [asked["rid"] for asked in server.asked]


def test_a_stream_that_nobody_began_to_read_is_aborted_too():
    server = SglangStandIn(hang_after=2)

    async def act(engine: SglangEngine) -> None:
        stream = await engine.stream(request())
        await stream.aclose()
        await asyncio.wait_for(server.aborted.wait(), 5)

    run(server, act)
    assert server.aborts == ["r/"]


def test_a_stream_read_to_its_end_is_not_aborted():
    server = SglangStandIn()
    streamed(server, request())
    assert server.aborts == []


@pytest.mark.parametrize("verb", ["generate", "stream"])
def test_a_cancelled_request_is_aborted(verb):
    server = SglangStandIn(hang_after=0)

    async def act(engine: SglangEngine) -> None:
        task = asyncio.ensure_future(getattr(engine, verb)(request()))
        await asyncio.wait_for(server.came.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.aborted.wait(), 5)

    run(server, act)
    assert server.aborts == ["r/"]


def test_no_id_begins_another():
    """SGLang aborts all requests whose id begins with the one given."""
    server = SglangStandIn()

    async def act(engine: SglangEngine) -> None:
        await engine.generate(request(request_id="req-1"))
        await engine.generate(request(request_id="req-10"))
        await engine.generate(request(request_id="req-1/0"))
        await engine.abort(["req-1"])

    run(server, act)
    (aborted,) = server.aborts
    assert [asked["rid"].startswith(aborted) for asked in server.asked] == [True, False, False]


# ------------------------------------------------------------------------------------------------------- other verbs


def test_what_a_server_tells_of_itself():
    async def act(engine: SglangEngine) -> Any:
        await engine.probe()
        await engine.health()
        return engine.capabilities, await engine.load(), await engine.models()

    able, load, models = run(SglangStandIn(), act)
    assert (able.prompt_logprobs, able.kv_transfer, able.max_n, able.stop_strings) == (True, True, 1, False)
    assert able.structured_outputs == {"json", "json_object", "regex", "choice", "grammar", "structural_tag"}
    assert (load.running, load.waiting) == (4, 2)
    assert [(model.name, model.max_model_len) for model in models] == [("org/model", 4096)]
    newer, *_ = run(SglangStandIn(new_routes=True, skip_tokenizer_init=True), act)
    assert newer.structured_outputs == frozenset()


def test_a_server_without_a_tokenizer_is_asked_for_no_constraint():
    server = SglangStandIn(skip_tokenizer_init=True)

    async def act(engine: SglangEngine) -> None:
        await engine.probe()
        await engine.generate(request(structured_outputs={"regex": "a"}))

    with pytest.raises(BadRequest):
        run(server, act)
    assert server.asked == []


def test_priorities_point_the_other_way():
    server = SglangStandIn(priorities=True)

    async def act(engine: SglangEngine) -> None:
        await engine.probe()
        await engine.generate(request(outside={"priority": 5}))

    run(server, act)
    assert server.asked[0]["priority"] == -5


def test_a_server_that_is_not_there_is_told_as_such():
    async def act() -> None:
        engine = SglangEngine(EngineHttp("http://127.0.0.1:9"))
        for verb in (engine.probe, engine.models, engine.health):
            with pytest.raises(ApiError):
                await verb()
        with pytest.raises(EngineFailed) as failure:
            await engine.stream(request())
        assert not failure.value.begun
        await engine.aclose()

    asyncio.run(act())
