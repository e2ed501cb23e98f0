"""`derender gateway` before vLLM's engine without a tokenizer, against the same vLLM with one: the official client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from tests.e2e.client import Client, Json
from tests.e2e.loop import GENERATE
from tests.e2e.official import answered, assembled, create, official, openai, streamed
from tests.e2e.processes import DERENDER, servers
from tests.interop.compare import UNFINISHED, joined_bytes, same_answer, same_entry, same_lists, same_text
from tests.interop.conftest import MAX_MODEL_LEN, NAME, Fleet, model
from tests.interop.test_vllm_loop import EOS, EOS_TEXT, REQUESTS, STOPS, TOP_3, chat, completion
from tests.server.live import wait_for

pytestmark = pytest.mark.real

FRANCE = "What is the capital of France?"
ALONE = {
    "plain": {
        "model": NAME,
        "messages": [{"role": "user", "content": FRANCE}],
        "temperature": 0,
        "max_completion_tokens": 24,
    },
    "no bound": {"model": NAME, "messages": [{"role": "user", "content": FRANCE}], "temperature": 0},
    "one token": chat(FRANCE, max_tokens=1, **TOP_3),
    "three sampled": chat("Tell me a story.", n=3, temperature=0.8, seed=21, **TOP_3),
    "no logprobs of others": chat(FRANCE, logprobs=True, top_logprobs=0),
    "biased to one": chat("Say hi.", logit_bias={str(504): 100}, max_tokens=3, **TOP_3),
    "forbidden end": chat(FRANCE, ignore_eos=True, min_tokens=30, max_tokens=30),
    "three prompts": completion(["One", "Two by two", "Three"], max_tokens=6, logprobs=0),
    "two prompts of two": completion(["Once upon", "There was"], n=2, temperature=1.0, seed=5, logprobs=2),
    "echo of two": completion(["Once upon a time", "Eins"], echo=True, logprobs=1, return_token_ids=False),
    "echo without logprobs": completion("Once upon a time é", echo=True, return_token_ids=False),
    "nothing but the echo": completion("Once upon a time", echo=True, max_tokens=0, return_token_ids=False),
    "text's one token": completion("Once upon a time", max_tokens=1),
}
WHOLE = {
    **REQUESTS,
    **{f"gateway: {name}": one for name, one in ALONE.items()},
    **{f"stop: {name}": one for name, one in STOPS.items()},
}
NOT_STREAMED = (
    "chat: prompt logprobs",  # both refuse it
    "text: prompt logprobs",
    "chat: continued",  # vLLM tells the echoed text in deltas of its own
)
STREAMED = {name: one for name, one in WHOLE.items() if name not in NOT_STREAMED}


class Pair(NamedTuple):
    """The official client of each of the two, and plain clients of the gateway and of the engine behind it."""

    gateway: Any
    coupled: Any
    http: Client
    engine: Client


@pytest.fixture(scope="module")
def pair(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    served = [str(model()), "--served-model-name", NAME, "--max-model-len", str(MAX_MODEL_LEN)]
    command = [*DERENDER, "gateway", *served, "--engine", fleet.engine.url, "--enable-request-id-headers"]
    with servers({"gateway": command}, logs=tmp_path_factory.mktemp("gateway"), patience=60) as running:
        gateway = running["gateway"]
        wait_for(lambda: gateway.ask("GET", "/ready").status == 200, seconds=60)
        with official(gateway.url) as ours, official(fleet.coupled.url) as theirs:
            yield Pair(ours, theirs, gateway, fleet.engine)


class Recorded(NamedTuple):
    whole: dict[str, Json]
    streamed: dict[str, list[Json]]


@pytest.fixture(scope="module")
def coupled(pair: Pair) -> Recorded:
    """What the coupled server answers to all requests.

    Asked in one go: vLLM's workers go on polling for a second after each answer, and slow the other server down.
    """
    return Recorded(
        {name: answered(pair.coupled, body) for name, body in WHOLE.items()},
        {name: streamed(pair.coupled, body) for name, body in STREAMED.items()},
    )


def table(rows: dict[str, Json]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", list(rows))


# ------------------------------------------------------------------------------------------------- the same answers


@table(WHOLE)
def test_an_answer_is_that_of_a_coupled_server(pair: Pair, coupled: Recorded, name: str) -> None:
    same_answer(answered(pair.gateway, WHOLE[name]), coupled.whole[name], eos=EOS)


@table(STREAMED)
def test_a_stream_is_that_of_a_coupled_server(pair: Pair, coupled: Recorded, name: str) -> None:
    ours, theirs = assembled(streamed(pair.gateway, STREAMED[name])), assembled(coupled.streamed[name])
    for one, other in zip(ours["choices"], theirs["choices"], strict=True):
        assert one["index"] == other["index"]
        assert one["token_ids"] == other["token_ids"]
        assert one["finish_reason"] == other["finish_reason"]
        same_text(told(one), told(other))
        if (found := other["logprobs"]) is None:
            assert one["logprobs"] is None
        elif "content" in found:
            for entry, their_entry in zip(one["logprobs"]["content"], found["content"], strict=True):
                same_entry(entry, their_entry)
        else:
            same_lists(one["logprobs"], found)
    assert counts(ours["usage"]) == counts(theirs["usage"])


@table(STREAMED)
def test_a_stream_is_the_batch(pair: Pair, name: str) -> None:
    batch, stream = answered(pair.gateway, STREAMED[name]), assembled(streamed(pair.gateway, STREAMED[name]))
    assert stream["object"] == batch["object"]
    for one, other in zip(stream["choices"], batch["choices"], strict=True):
        assert told(one) == told(other)
        for member in ("index", "token_ids", "finish_reason", "stop_reason"):
            assert one[member] == other[member], member
        assert rounded(one["logprobs"]) == rounded(other["logprobs"])
    assert counts(stream["usage"]) == counts(batch["usage"])


def told(choice: Json) -> str:
    return choice["message"]["content"] if "message" in choice else choice["text"]


def counts(usage: Json) -> Json:
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


def rounded(value: Json) -> Json:
    """Without the last digits of logprobs, which are those of the batch that a token was made in, and without members
    that the client adds."""
    if isinstance(value, float):
        return pytest.approx(value, abs=1e-4)
    if isinstance(value, list):
        return [rounded(one) for one in value]
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items() if one is not None}
    return value


@table({name: one for name, one in WHOLE.items() if name in ("chat: japanese", "chat: emoji", "chat: turns")})
def test_logprobs_hold_the_bytes_of_the_text(pair: Pair, name: str) -> None:
    (choice,) = answered(pair.gateway, WHOLE[name])["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == len(choice["token_ids"])
    assert {len(entry["top_logprobs"]) for entry in entries} == {3}
    text = told(choice) + (EOS_TEXT if choice["finish_reason"] == "stop" else "")
    assert joined_bytes(entries).decode(errors="replace").removesuffix(UNFINISHED) == text.removesuffix(UNFINISHED)


# ----------------------------------------------------------------------------------------------------------- streams


def test_the_chunks_of_a_chat(pair: Pair) -> None:
    """The role first and alone, usage null until the last chunk, one finish reason."""
    chunks = streamed(pair.gateway, ALONE["plain"])
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"]][-1] == "stop"
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)


def test_usage_is_there_only_where_it_is_asked_for(pair: Pair) -> None:
    with create(pair.gateway, {**ALONE["plain"], "stream": True}) as chunks:
        given = [chunk.model_dump(exclude_unset=True) for chunk in chunks]
    assert not any("usage" in chunk for chunk in given)
    assert all(chunk["choices"] for chunk in given)


@table({name: ALONE[name] for name in ("plain", "three sampled", "two prompts of two")})
def test_usage_goes_on(pair: Pair, name: str) -> None:
    """With `continuous_usage_stats` each chunk tells the usage of the choice that it is of."""
    seen: dict[int, int] = {}
    prompts: dict[int, set[int]] = {}
    chunks = streamed(pair.gateway, ALONE[name], continuous_usage_stats=True)
    for chunk in chunks[:-1]:
        usage = chunk["usage"]
        (index,) = {choice["index"] for choice in chunk["choices"]}
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["completion_tokens"] >= seen.get(index, 0)
        seen[index] = usage["completion_tokens"]
        prompts.setdefault(index, set()).add(usage["prompt_tokens"])
    last = chunks[-1]["usage"]
    assert last["completion_tokens"] == sum(seen.values())
    assert all(len(one) == 1 for one in prompts.values())
    assert last["prompt_tokens"] == sum(
        one for index in sorted(prompts)[:: ALONE[name].get("n", 1)] for one in prompts[index]
    )


# ---------------------------------------------------------------------------------------- what the engine cannot do


def test_stop_strings_are_the_gateway_s_own_work(pair: Pair) -> None:
    """The engine itself refuses them, with a status; behind the gateway they hold (the rows `stop: …` above)."""
    request = {"token_ids": [504, 2365], "sampling_params": {"max_tokens": 1, "stop": ["a"]}}
    assert "stop strings are not supported" in pair.engine.refusal(GENERATE, request)["message"]
    (choice,) = create(pair.gateway, {**ALONE["plain"], "stop": ["France is"]}).choices
    assert (choice.message.content, choice.finish_reason) == ("The capital of ", "stop")
    assert choice.stop_reason == "France is"


FORMS = {
    "json_object": {"response_format": {"type": "json_object"}},
    "json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    },
    "regex": {"structured_outputs": {"regex": "a+"}},
    "choice": {"structured_outputs": {"choice": ["yes", "no"]}},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@table(FORMS)
def test_a_form_that_the_engine_cannot_hold_is_refused_before_anything_runs(
    pair: Pair, name: str, stream: bool
) -> None:
    """vLLM 0.32 without a tokenizer builds no grammar; the gateway's probe has found that out at its start."""
    began = generated(pair.engine)
    with pytest.raises(openai.BadRequestError) as raised:
        create(pair.gateway, {**ALONE["plain"], **FORMS[name], "stream": stream})
    assert raised.value.status_code == 400
    assert "cannot hold its output to a form" in raised.value.body["message"]
    assert raised.value.body["param"] == "structured_outputs"
    assert generated(pair.engine) == began


REFUSED: dict[str, tuple[Json, str]] = {
    "no token": ({"max_tokens": 0}, "max_tokens"),
    "bad words": ({"bad_words": ["Paris"]}, "bad_words"),
    "two of the same": ({"n": 2}, "n"),
    "too hot": ({"temperature": 2.5}, "temperature"),
    "id beyond the vocabulary": ({"stop_token_ids": [49152]}, "stop_token_ids"),
    "bias beyond it": ({"logit_bias": {"49152": 1}}, "logit_bias"),
    "unknown role": ({"messages": [{"role": 3}]}, "messages"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@table(REFUSED)
def test_what_is_wrong_is_refused_before_anything_runs(pair: Pair, name: str, stream: bool) -> None:
    fields, param = REFUSED[name]
    began = generated(pair.engine)
    with pytest.raises(openai.BadRequestError) as raised:
        create(pair.gateway, {**chat("Hi"), **fields, "stream": stream})
    assert param in str(raised.value)
    assert generated(pair.engine) == began


def test_a_prompt_that_is_too_long_is_refused(pair: Pair) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        create(pair.gateway, completion([504] * MAX_MODEL_LEN))


def test_a_model_that_is_not_served_is_not_found(pair: Pair) -> None:
    with pytest.raises(openai.NotFoundError):
        create(pair.gateway, {**ALONE["plain"], "model": "gpt-4"})
    assert [one.id for one in pair.gateway.models.list()] == [NAME]


def test_the_probe_finds_what_the_engine_says_itself(pair: Pair) -> None:
    def takes(**params: Any) -> bool:
        body = {"token_ids": [0, 0], "sampling_params": {"max_tokens": 1, **params}}
        return pair.engine.ask("POST", GENERATE, body).status == 200

    assert takes()
    assert takes(prompt_logprobs=0)
    assert not takes(stop=["\n"])
    assert not takes(structured_outputs={"regex": "a"})
    prompt = create(pair.gateway, completion("Once upon", max_tokens=1, prompt_logprobs=1)).choices[0].prompt_logprobs
    assert len(prompt) == 2


def generated(engine: Client) -> float:
    """Tokens that the engine has generated since its start."""
    return metric(engine, "vllm:generation_tokens_total")


def metric(engine: Client, name: str) -> float:
    lines = str(engine.get("/metrics")).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


def running(engine: Client) -> float:
    return metric(engine, "vllm:num_requests_running") + metric(engine, "vllm:num_requests_waiting")


# ----------------------------------------------------------------------------------------------- who leaves, and ids

LONG = {
    "chat": chat("Tell me a story.", ignore_eos=True, max_tokens=1500),
    "two choices": chat("Tell me a story.", ignore_eos=True, max_tokens=1500, n=2, temperature=1.0),
    "two prompts": completion(["Once upon a time", "There was"], ignore_eos=True, max_tokens=1500),
    "stop string": chat(FRANCE, ignore_eos=True, max_tokens=1500, stop="Berlin"),
}


def idle_within(engine: Client, seconds: float) -> None:
    began = time.monotonic()
    wait_for(lambda: running(engine) == 0, seconds=30)
    assert time.monotonic() - began < seconds


@table(LONG)
def test_a_stream_that_is_left_ends_at_the_engine(pair: Pair, name: str) -> None:
    with create(pair.gateway, {**LONG[name], "stream": True}) as chunks:
        for _ in range(4):
            next(chunks)
        assert running(pair.engine) > 0
    idle_within(pair.engine, 1.0)


@table(LONG)
def test_an_answer_that_nobody_waits_for_ends_at_the_engine(pair: Pair, name: str) -> None:
    asked = pair.gateway.with_options(timeout=2.0)
    with pytest.raises(openai.APITimeoutError):
        create(asked, LONG[name])
    idle_within(pair.engine, 1.0)


def test_stop_strings_that_end_all_choices_end_the_work(pair: Pair) -> None:
    body = chat(FRANCE, ignore_eos=True, max_tokens=1500, stop="France is")
    began = generated(pair.engine)
    assert told(answered(pair.gateway, body)["choices"][0]) == "The capital of "
    idle_within(pair.engine, 1.0)
    assert told(assembled(streamed(pair.gateway, body))["choices"][0]) == "The capital of "
    idle_within(pair.engine, 1.0)
    assert generated(pair.engine) - began < 200


def test_a_request_id_comes_back(pair: Pair) -> None:
    for body, prefix in ((ALONE["plain"], "chatcmpl-"), (ALONE["three prompts"], "cmpl-")):
        answer = create(pair.gateway, body, raw=True, extra_headers={"X-Request-Id": "one-1"})
        assert answer.headers["x-request-id"] == "one-1"
        assert answer.parse().id == prefix + "one-1"


def test_who_leaves_ends_only_its_own_work(pair: Pair) -> None:
    """Two clients may bring the same request id; vLLM aborts all requests that have it from a header."""
    head = {"X-Request-Id": "twice"}
    body = completion("Once upon a time", ignore_eos=True, max_tokens=60, stream=True)
    with create(pair.gateway, body, extra_headers=head) as first:
        next(first)
        with create(pair.gateway, body, extra_headers=head) as second:
            next(second)
            first.close()
            rest = list(second)
    assert rest[-1].choices[0].finish_reason == "length"
    assert len(rest) == 59
