"""The embedded engine with a real model: what scripted tests cannot know about llama.cpp."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.engines.real_model import gguf
from tests.engines.scripted import until

from derender.engines.llama_abi import EngineUnavailable
from derender.engines.llama_backend import BackendOptions
from derender.engines.llamacpp import LlamaCppEngine
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateChoice, GenerateRequest

pytestmark = pytest.mark.real

PROMPT = list(range(400, 420))
LENGTH = 512


class Model:
    """The loaded engine, and a loop to call it on."""

    def __init__(self, path: Path) -> None:
        self.loop = asyncio.new_event_loop()
        options = BackendOptions(slots=8, threads=1, max_model_len=LENGTH)
        self.engine = LlamaCppEngine.open(path, names=("m",), options=options)

    def run(self, act: Callable[[LlamaCppEngine], Awaitable[Any]]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(act(self.engine), 60))

    def choice(self, prompt: list[int] = PROMPT, **params: Any) -> GenerateChoice:
        answer = self.run(lambda engine: engine.generate(request(prompt, **params)))
        (choice,) = answer.choices
        return choice

    def ids(self, prompt: list[int] = PROMPT, **params: Any) -> list[int]:
        return self.choice(prompt, **params).token_ids or []

    def close(self) -> None:
        self.run(lambda engine: engine.aclose())
        self.loop.close()


def request(prompt: list[int] = PROMPT, **params: Any) -> GenerateRequest:
    body = {"token_ids": prompt, "sampling_params": {"temperature": 0, "max_tokens": 12, **params}}
    return msgspec.convert(body, GenerateRequest)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    loaded = Model(gguf())
    yield loaded
    loaded.close()


def end_ids(model: Model) -> frozenset[int]:
    return model.engine._backend.end_ids


def test_greedy_is_deterministic_whatever_is_cached_or_runs_beside_it(model):
    first = model.ids(ignore_eos=True)
    assert len(first) == 12
    assert model.ids(ignore_eos=True) == first

    async def together(engine: LlamaCppEngine) -> list[list[int]]:
        others = [request([300 + i] * 40, ignore_eos=True) for i in range(3)]
        answers = await asyncio.gather(*map(engine.generate, [*others, request(ignore_eos=True)]))
        return [answer.choices[0].token_ids for answer in answers]

    assert model.run(together)[-1] == first


def test_the_same_seed_gives_the_same_ids_and_choices_differ(model):
    params = {"temperature": 1.2, "ignore_eos": True}
    first = model.ids(seed=5, **params)
    assert model.ids(seed=5, **params) == first
    assert model.ids(seed=6, **params) != first

    def several(engine: LlamaCppEngine) -> Any:
        return engine.generate(request(n=10, seed=5, **params))

    choices = [choice.token_ids for choice in model.run(several).choices]
    assert choices[0] == first
    assert choices[1] == model.ids(seed=6, **params)
    assert len({tuple(ids) for ids in choices}) == 10
    assert [choice.token_ids for choice in model.run(several).choices] == choices


def test_a_stop_token_is_given_and_named(model):
    ids = model.ids(ignore_eos=True)
    place = next(i for i, token in enumerate(ids) if token not in ids[:i] and i > 1)
    choice = model.choice(stop_token_ids=[ids[place]], ignore_eos=True)
    assert (choice.token_ids, choice.finish_reason, choice.stop_reason) == (ids[: place + 1], "stop", ids[place])


def test_the_end_token_is_given_without_a_stop_reason(model):
    eos = model.engine._backend.eos_id
    choice = model.choice(logit_bias={str(eos): 100})
    assert (choice.token_ids, choice.finish_reason, choice.stop_reason) == ([eos], "stop", None)
    choice = model.choice(logit_bias={str(eos): 100}, ignore_eos=True, max_tokens=3)
    assert (choice.token_ids, choice.finish_reason) == ([eos] * 3, "length")


def test_no_end_comes_before_the_minimum(model):
    eos = model.engine._backend.eos_id
    choice = model.choice(logit_bias={str(eos): 100, "500": 90}, stop_token_ids=[500], min_tokens=4)
    assert len(choice.token_ids) == 5
    assert choice.token_ids[-1] == eos
    assert not {eos, 500} & set(choice.token_ids[:-1])


def test_logprobs(model):
    k = 5
    content = model.choice(logprobs=k, ignore_eos=True).logprobs.content
    assert len(content) == 12
    for entry in content:
        assert entry.rank == 1
        assert entry.logprob <= 0
        assert [one.rank for one in entry.top_logprobs] == [1, 2, 3, 4, 5]
        assert (entry.top_logprobs[0].token_id, entry.top_logprobs[0].logprob) == (entry.token_id, entry.logprob)
        logprobs = [one.logprob for one in entry.top_logprobs]
        assert logprobs == sorted(logprobs, reverse=True)
        assert sum(map(math.exp, logprobs)) <= 1.0001
        assert len({one.token_id for one in entry.top_logprobs}) == k


def test_the_logprobs_of_all_ids_sum_to_one(model):
    """One id at a time through `allowed_token_ids`, whose logprobs are still those of the whole distribution."""
    top = model.choice(logprobs=20, max_tokens=1).logprobs.content[0]
    for one in top.top_logprobs[::6]:
        entry = model.choice(logprobs=0, max_tokens=1, allowed_token_ids=[one.token_id]).logprobs.content[0]
        assert (entry.token_id, entry.rank) == (one.token_id, one.rank)
        assert entry.logprob == pytest.approx(one.logprob, abs=1e-6)


def test_an_unlikely_token_is_an_extra_entry_with_its_real_rank(model):
    entry = model.choice(logprobs=3, max_tokens=1, allowed_token_ids=[450]).logprobs.content[0]
    assert entry.token_id == 450
    assert entry.rank > 3
    assert [(one.rank) for one in entry.top_logprobs] == [entry.rank, 1, 2, 3]
    assert entry.logprob < entry.top_logprobs[3].logprob
    bare = model.choice(logprobs=0, max_tokens=1, allowed_token_ids=[450]).logprobs.content[0]
    assert [one.token_id for one in bare.top_logprobs] == [450]


def test_penalties(model):
    plain = model.ids(ignore_eos=True, max_tokens=24)
    assert len(set(plain)) < 24
    assert len(set(model.ids(ignore_eos=True, max_tokens=24, frequency_penalty=2, presence_penalty=2))) > len(
        set(plain)
    )
    first = plain[0]
    twice = model.ids([*PROMPT, first], ignore_eos=True, max_tokens=1)[0]
    strong = model.ids([*PROMPT, first, twice], repetition_penalty=50, ignore_eos=True, max_tokens=8)
    assert not {first, twice, *PROMPT} & set(strong)


def test_top_k_of_one_and_a_tiny_top_p_are_greedy(model):
    greedy = model.ids(ignore_eos=True)
    for params in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert model.ids(temperature=2, seed=1, ignore_eos=True, **params) == greedy


def test_a_bias_decides(model):
    assert model.ids(logit_bias={"777": 100}, max_tokens=3) == [777] * 3


def test_no_id_of_a_character_in_pieces_is_lost(model):
    """Emoji whose bytes are several ids: each is there, in order, in batch, stream and logprobs."""
    params = {"structured_outputs": {"grammar": 'root ::= "🦜🏴‍☠️🦜"'}, "max_tokens": 60, "logprobs": 0}
    whole = model.choice(**params)
    assert whole.finish_reason == "stop"
    assert whole.token_ids[-1] in end_ids(model)
    pieces = [model.engine._backend._guidance._piece(token) for token in whole.token_ids[:-1]]
    assert b"".join(pieces).decode() == "🦜🏴‍☠️🦜"
    assert len(pieces) > 6
    assert any(not piece.isascii() and len(piece) < 3 for piece in pieces)

    async def stream(engine: LlamaCppEngine) -> tuple[list[list[int]], list[int]]:
        chunks = [chunk.choices[0] async for chunk in await engine.stream(request(**params))]
        return [chunk.token_ids for chunk in chunks], [e.token_id for c in chunks for e in c.logprobs.content]

    deltas, named = model.run(stream)
    assert deltas == [[token] for token in whole.token_ids]
    assert named == whole.token_ids == [entry.token_id for entry in whole.logprobs.content]


def test_stream_equals_batch(model):
    params = {"temperature": 1, "seed": 3, "n": 3, "logprobs": 2, "max_tokens": 20}

    async def both(engine: LlamaCppEngine) -> Any:
        whole = await engine.generate(request(**params))
        joined: dict[int, list[int]] = {0: [], 1: [], 2: []}
        ends: dict[int, Any] = {}
        logprobs: dict[int, list[Any]] = {0: [], 1: [], 2: []}
        async for chunk in await engine.stream(request(**params)):
            (choice,) = chunk.choices
            joined[choice.index] += choice.token_ids
            logprobs[choice.index] += choice.logprobs.content
            if choice.finish_reason:
                ends[choice.index] = (choice.finish_reason, choice.stop_reason)
        return whole, joined, ends, logprobs

    whole, joined, ends, logprobs = model.run(both)
    for choice in whole.choices:
        assert joined[choice.index] == choice.token_ids
        assert ends[choice.index] == (choice.finish_reason, choice.stop_reason)
        assert logprobs[choice.index] == choice.logprobs.content


@pytest.mark.parametrize(
    ("asked", "matches"),
    [
        ({"regex": "[0-9]{3}-[a-c]{2}"}, r"[0-9]{3}-[a-c]{2}"),
        ({"choice": ["yes, quite", "no"]}, r"yes, quite|no"),
        ({"grammar": 'root ::= "x" [0-9]+ "y"'}, r"x[0-9]*y?"),
        ({"json": {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"]}}, r"\{\s*\"a\"\s*:.*"),
        ({"json_object": True}, r"\{.*"),
    ],
)
def test_constraints_hold(model, asked, matches):
    choice = model.choice(structured_outputs=asked, max_tokens=24)
    ids = [token for token in choice.token_ids if token not in end_ids(model)]
    text = b"".join(model.engine._backend._guidance._piece(token) for token in ids).decode("utf-8", "ignore")
    assert re.fullmatch(matches, text, re.DOTALL), text
    if choice.finish_reason == "stop":
        assert choice.token_ids[-1] in end_ids(model)


@pytest.mark.parametrize(
    "asked",
    [
        {"regex": "[a-c"},
        {"grammar": "root ::= ("},
        {"grammar": 'other ::= "a"'},
        {"grammar": ""},
        {"json": '{"type": "nope"}'},
        {"json": '{"type": "obj'},
        {"json": "[" * 100000},
        {"grammar": "root ::= " + "(" * 100000},
        {"regex": "a" * 70000},
        {"regex": "a\0b"},
    ],
)
def test_constraints_that_cannot_be_read_are_refused(model, asked):
    with pytest.raises(BadRequest) as caught:
        model.choice(structured_outputs=asked)
    (name,) = asked
    assert caught.value.param == f"structured_outputs.{name}"
    assert len(caught.value.message) < 300
    model.run(lambda engine: engine.health())


def test_leaving_frees_the_slot_within_a_second(model):
    async def act(engine: LlamaCppEngine) -> None:
        stream = await engine.stream(request(list(range(100, 500)), max_tokens=100, ignore_eos=True))
        task = asyncio.ensure_future(stream.__anext__())
        await asyncio.sleep(0.05)  # it is still in its prompt
        assert (await engine.load()).running == 1
        task.cancel()
        await asyncio.wait([task])
        await stream.aclose()
        started = time.monotonic()
        await until(engine, lambda load: load.running == 0)
        assert time.monotonic() - started < 1

    model.run(act)


def test_eight_streams_at_once(model):
    alone = [model.ids([600 + i] * 10, ignore_eos=True) for i in range(8)]

    async def together(engine: LlamaCppEngine) -> tuple[list[list[int]], int]:
        most = 0

        async def one(i: int) -> list[int]:
            nonlocal most
            ids: list[int] = []
            async for chunk in await engine.stream(request([600 + i] * 10, ignore_eos=True)):
                ids += chunk.choices[0].token_ids
                most = max(most, (await engine.load()).running)
            return ids

        return await asyncio.gather(*map(one, range(8))), most

    ids, most = model.run(together)
    assert ids == alone
    assert most == 8


def test_the_loop_stays_free_while_the_model_works(model):
    async def act(engine: LlamaCppEngine) -> float:
        work = asyncio.ensure_future(engine.generate(request(list(range(100, 400)), max_tokens=20, ignore_eos=True)))
        worst = 0.0
        while not work.done():
            started = time.monotonic()
            await asyncio.sleep(0.005)
            worst = max(worst, time.monotonic() - started)
        return worst

    # A machine that does something else holds the loop up now and then; work on the loop does every time.
    assert min(model.run(act) for _ in range(3)) < 0.1


def test_the_whole_context_can_be_used(model):
    choice = model.choice([5] * (LENGTH - 3), max_tokens=3, ignore_eos=True)
    assert (len(choice.token_ids), choice.finish_reason) == (3, "length")
    choice = model.choice([5] * (LENGTH - 3), max_tokens=None, ignore_eos=True)
    assert len(choice.token_ids) == 3


def test_what_is_not_a_model_is_refused(tmp_path):
    gguf()
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"GGUF" + bytes(100))
    for path, words in ((tmp_path / "none.gguf", "no such file"), (wrong, "cannot load this file")):
        with pytest.raises(EngineUnavailable, match=words):
            LlamaCppEngine.open(path)
    with pytest.raises(EngineUnavailable, match="is more than the"):
        LlamaCppEngine.open(gguf(), options=BackendOptions(max_model_len=10**7))


def test_sampling_follows_the_distribution(model):
    """Two ids are allowed: how often each comes is what their logprobs, the temperature and the bias say."""
    top = model.choice([7], logprobs=20, max_tokens=1).logprobs.content[0].top_logprobs
    first, second = top[0], top[1]
    params = {"allowed_token_ids": [first.token_id, second.token_id], "n": 300, "seed": 1, "max_tokens": 1}
    for temperature, bias in ((1.0, 0.0), (2.0, 0.0), (1.0, 1.0)):
        asked = request([7], temperature=temperature, logit_bias={str(second.token_id): bias}, **params)
        answer = model.run(lambda engine, asked=asked: engine.generate(asked))
        drawn = sum(choice.token_ids == [first.token_id] for choice in answer.choices) / 300
        odds = math.exp((first.logprob - second.logprob - bias) / temperature)
        assert drawn == pytest.approx(odds / (1 + odds), abs=0.09)
