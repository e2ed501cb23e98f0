"""derender's render → vLLM's engine without a tokenizer → derender's derender, against the same vLLM with one."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.e2e.client import Client, Json
from tests.e2e.loop import (
    ABORT,
    GENERATE,
    Streamed,
    derender,
    derender_stream,
    dialect_of,
    events_of,
    joined,
    kept,
    render,
    told,
    whole,
)
from tests.interop.compare import UNFINISHED, joined_bytes, same_answer
from tests.interop.conftest import MAX_MODEL_LEN, NAME, Fleet
from tests.server.live import wait_for

pytestmark = pytest.mark.real

EOS = 2
EOS_TEXT = "<|im_end|>"
COMMA, DOT = 28, 30
EMOJI_PARTS = [10813, 235, 119, 2]  # f0 9f | 91 | a9, which make 👩, and the end


def chat(text: str, **fields: Any) -> Json:
    messages = [{"role": "user", "content": text}]
    return {"model": NAME, "messages": messages, "temperature": 0, "max_tokens": 24, "return_token_ids": True, **fields}


def completion(prompt: Any, **fields: Any) -> Json:
    return {"model": NAME, "prompt": prompt, "temperature": 0, "max_tokens": 16, "return_token_ids": True, **fields}


TOP_3 = {"logprobs": True, "top_logprobs": 3}
TURNS = [
    {"role": "system", "content": "Du bist ein Dichter."},
    {"role": "user", "content": "שלום — naïve café"},
    {"role": "assistant", "content": "Olá!"},
    {"role": "user", "content": [{"type": "text", "text": "Ещё раз 👩‍👩‍👧 👍🏽"}]},
]
CHATS = {
    "ends by itself": chat("What is the capital of France?", **TOP_3),
    "japanese": chat("Übersetze ins Japanische: «Guten Tag» — 日本語でも。", max_tokens=40, **TOP_3),
    "emoji": chat("Write three emoji and explain them.", max_tokens=32, **TOP_3),
    "turns": {**chat(""), "messages": TURNS, "max_tokens": 32, **TOP_3},
    "long": chat("The quick brown fox jumps over the lazy dog. " * 120 + "Summarise.", **TOP_3),
    "digits": chat("What is 1234 + 5678?", logprobs=True),
    "parts of emoji only": chat("Hi", allowed_token_ids=EMOJI_PARTS, ignore_eos=True, max_tokens=12, **TOP_3),
    "biased": chat("Say hi.", logit_bias={"19556": -100, "26843": -100}, **TOP_3),
    "two sampled": chat("Tell me a story.", n=2, temperature=1.0, seed=7, **TOP_3),
    "all samplers": chat(
        "Tell me a story.",
        temperature=0.9,
        top_p=0.9,
        top_k=40,
        min_p=0.02,
        seed=11,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        repetition_penalty=1.1,
    ),
    "stop token": chat("List three colours, with commas.", stop_token_ids=[COMMA, DOT], **TOP_3),
    "stop token kept": chat(
        "List three colours, with commas.", stop_token_ids=[COMMA, DOT], include_stop_str_in_output=True
    ),
    "past its end": chat("What is the capital of France?", ignore_eos=True),
    "not too short": chat("What is the capital of France?", min_tokens=20, max_tokens=60),
    "repetition": chat(
        "Repeat: a a a a a a a",
        ignore_eos=True,
        max_tokens=80,
        repetition_detection={"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 3},
    ),
    "prompt logprobs": chat("Hi, é 😀", prompt_logprobs=1, max_tokens=4),
    "continued": {
        **chat("Say the alphabet.", echo=True, add_generation_prompt=False, continue_final_message=True),
        "messages": [{"role": "user", "content": "Say the alphabet"}, {"role": "assistant", "content": "A B C"}],
    },
    "truncated": chat("word " * 100, truncate_prompt_tokens=30),
}
COMPLETIONS = {
    "two prompts": completion(["Once upon a time", "😀 😃 😄"], logprobs=3),
    "ids": completion([[504, 2365], [28, 198]], n=2, temperature=1.0, seed=3, logprobs=1),
    "stop token kept": completion("Zażółć gęślą", stop_token_ids=[DOT, COMMA], include_stop_str_in_output=True),
    # With return_token_ids, vLLM leaves the echoed text out.
    "echo": completion("Once upon a time é", echo=True, logprobs=2, return_token_ids=False),
    "echo alone": completion("Once upon a time", echo=True, logprobs=2, max_tokens=0, return_token_ids=False),
    "prompt logprobs": completion("Once upon a time", prompt_logprobs=2, max_tokens=4),
}
REQUESTS = {
    **{f"chat: {name}": one for name, one in CHATS.items()},
    **{f"text: {k}": v for k, v in COMPLETIONS.items()},
}


def each(*names: str) -> pytest.MarkDecorator:
    chosen = {name: REQUESTS[name] for name in names or REQUESTS}
    return pytest.mark.parametrize("request_body", list(chosen.values()), ids=list(chosen))


# ------------------------------------------------------------------------------------------------------- whole


@each()
def test_the_loop_gives_what_a_coupled_server_gives(fleet: Fleet, request_body: Json) -> None:
    turn = whole(fleet.text, fleet.engine, request_body)
    coupled = fleet.coupled.post(dialect_of(request_body).path, request_body)
    if "messages" in request_body:
        assert turn.rendered[0]["token_ids"] == coupled["prompt_token_ids"]
    same_answer(turn.answer, coupled, eos=EOS)


@each("chat: japanese", "chat: emoji", "chat: turns", "chat: parts of emoji only")
def test_logprobs_hold_the_bytes_of_the_text(fleet: Fleet, request_body: Json) -> None:
    (choice,) = whole(fleet.text, fleet.engine, request_body).answer["choices"]
    entries = choice["logprobs"]["content"]
    assert [len(entry["bytes"]) > 0 for entry in entries] == [True] * len(choice["token_ids"])
    text = choice["message"]["content"] + (EOS_TEXT if choice["finish_reason"] == "stop" else "")
    assert joined_bytes(entries).decode(errors="replace") == text
    assert "".join(entry["token"] for entry in entries) == text.removesuffix(UNFINISHED)
    assert any(entry["token"] == "" for entry in entries)


def test_the_rendered_request_is_taken_as_it_is(fleet: Fleet) -> None:
    """With members that 0.32 does not know, and without the internals that its own renderer writes."""
    (rendered,) = render(fleet.text, CHATS["ends by itself"])
    assert "parse_context" in rendered
    assert not {"output_kind", "skip_clone"} & rendered["sampling_params"].keys()
    (theirs,) = render(fleet.render, CHATS["ends by itself"])
    assert theirs["token_ids"] == rendered["token_ids"]
    ours, other = (fleet.engine.post(GENERATE, one)["choices"][0]["token_ids"] for one in (rendered, theirs))
    assert ours == other


def test_a_request_id_goes_all_the_way(fleet: Fleet) -> None:
    request = CHATS["ends by itself"]
    reply = fleet.text.ask("POST", "/v1/chat/completions/render", request, {"X-Request-Id": "a-1"})
    assert reply.headers["x-request-id"] == "a-1"
    assert reply.body["request_id"] == "chatcmpl-a-1"
    generated = fleet.engine.post(GENERATE, reply.body)
    assert generated["request_id"] == "generate-tokens-chatcmpl-a-1"
    assert derender(fleet.text, request, [reply.body], [generated])["id"] == "generate-tokens-chatcmpl-a-1"
    # The header of the generate request goes before its body.
    generated = fleet.engine.post(GENERATE, reply.body, {"X-Request-Id": "b-2"})
    assert generated["request_id"] == "generate-tokens-b-2"


def test_what_an_engine_without_a_tokenizer_cannot_do(fleet: Fleet) -> None:
    """Not derender's to change, but a caller has to know it: two are refused, one is passed over in silence."""
    (rendered,) = render(fleet.text, chat("Hi", response_format={"type": "json_object"}))
    assert "requires a tokenizer" in fleet.engine.refusal(GENERATE, rendered)["message"]
    (rendered,) = render(fleet.text, chat("Hi", stop=["a"]))
    assert "stop strings are not supported" in fleet.engine.refusal(GENERATE, rendered)["message"]
    (rendered,) = render(fleet.text, chat("Hi", bad_words=["Hello"], max_tokens=1))
    hello = fleet.text.post("/tokenize", {"prompt": "Hello", "add_special_tokens": False})["tokens"]
    assert fleet.engine.post(GENERATE, rendered)["choices"][0]["token_ids"] == hello


def test_what_would_end_the_engine_is_refused_before_it(fleet: Fleet) -> None:
    """An id beyond the vocabulary takes vLLM's engine down when it has no tokenizer to check it with."""
    error = fleet.text.refusal("/v1/completions/render", completion([504, 49152]))
    assert "49152" in error["message"]
    error = fleet.text.refusal("/v1/completions/render", completion("a", stop_token_ids=[49152]))
    assert error["param"] == "stop_token_ids"
    too_long = completion([504] * MAX_MODEL_LEN)
    assert "maximum context length" in fleet.text.refusal("/v1/completions/render", too_long)["message"]


# ----------------------------------------------------------------------------------------------------- streams

STREAMED = (
    "chat: ends by itself",
    "chat: japanese",
    "chat: emoji",
    "chat: two sampled",
    "chat: stop token",
    "chat: repetition",
    "text: stop token kept",
    "text: echo",
)


def streaming(request: Json, **options: Any) -> Json:
    return {**request, "stream": True, "stream_options": {"include_usage": True}, **options}


@each(*STREAMED)
def test_a_stream_of_the_engine_is_its_batch(fleet: Fleet, request_body: Json) -> None:
    request = streaming(request_body)
    rendered = render(fleet.text, request)
    events = list(events_of(fleet.engine, rendered))
    streamed = derender_stream(fleet.text, request, rendered, events)
    # A stream has no logprobs of the prompt, so neither has the batch that is made of it.
    batch = derender(fleet.text, request_body, rendered, [joined(events)])
    assert streamed.choices == told(batch)
    assert counts(streamed.usage) == counts(batch["usage"])
    apart = derender_stream(fleet.text, request, rendered, events, state_per_choice=True)
    assert apart.choices == streamed.choices
    (unstreamed,) = whole(fleet.text, fleet.engine, request_body).generated
    assert [c["token_ids"] for c in joined(events)["choices"]] == [c["token_ids"] for c in unstreamed["choices"]]


def counts(usage: Json) -> Json:
    """The numbers of a usage; a stream's last one has no members for details."""
    return {name: value for name, value in usage.items() if not name.endswith("_details")}


def test_choices_come_mixed_with_usage_in_each_chunk(fleet: Fleet) -> None:
    request = streaming(CHATS["two sampled"], stream_interval=3)
    request["stream_options"]["continuous_usage_stats"] = True
    rendered = render(fleet.text, request)
    events = list(events_of(fleet.engine, rendered))
    order = [event["choices"][0]["index"] for event in events if event["choices"]]
    assert set(order) == {0, 1}
    assert order != sorted(order)
    assert max(len(choice["token_ids"]) for event in events for choice in event["choices"]) == 3

    streamed = derender_stream(fleet.text, request, rendered, events)
    assert streamed.choices == told(derender(fleet.text, request, rendered, [joined(events)]))
    prompt = len(rendered[0]["token_ids"])
    given = [chunk["usage"] for chunk in streamed.chunks]
    assert [usage["prompt_tokens"] for usage in given] == [prompt] * len(events)
    assert all(usage["total_tokens"] == prompt + usage["completion_tokens"] for usage in given)
    assert (streamed.chunks[-1]["choices"], given[-1]["completion_tokens"]) == ([], 48)
    assert streamed.chunks[0]["prompt_token_ids"] == rendered[0]["token_ids"]


@each("chat: ends by itself", "chat: emoji", "chat: turns", "chat: two sampled", "text: stop token kept")
def test_both_derenders_of_a_stream_give_the_same_text(fleet: Fleet, request_body: Json) -> None:
    request = streaming({**request_body, "logprobs": None, "top_logprobs": None})
    request = {name: value for name, value in request.items() if value is not None}
    rendered = render(fleet.text, request)
    events = list(events_of(fleet.engine, rendered))
    ours, theirs = (
        derender_stream(server, request, rendered, events, state_per_choice=True)
        for server in (fleet.text, fleet.render)
    )
    for one, other in zip(ours.choices, theirs.choices, strict=True):
        assert one["text"].removesuffix(UNFINISHED) == other["text"]
        for name in ("role", "finish_reason", "stop_reason"):
            assert one[name] == other[name]
    assert counts(ours.usage) == counts(theirs.usage)


def test_a_stream_of_the_coupled_server_has_the_same_text(fleet: Fleet) -> None:
    request = streaming(CHATS["japanese"])
    rendered = render(fleet.text, request)
    ours = derender_stream(fleet.text, request, rendered, events_of(fleet.engine, rendered))
    theirs = Streamed([{"chunk": chunk} for chunk in fleet.coupled.events("/v1/chat/completions", request)])
    text = "".join(c["delta"].get("content") or "" for chunk in theirs.chunks for c in chunk["choices"])
    assert ours.choices[0]["text"].removesuffix(UNFINISHED) == text


# ------------------------------------------------------------------------------------------------ stop strings

STOPS = {
    "one word": chat("What is the capital of France?", stop=["France is"], logprobs=True),
    "inside a token": chat("What is the capital of France?", stop=["api"], logprobs=True),
    "kept": chat("What is the capital of France?", stop=["of"], include_stop_str_in_output=True),
    "not before min_tokens": chat("What is the capital of France?", stop=["is"], min_tokens=6, max_tokens=60),
    "never": chat("What is the capital of France?", stop=["Berlin"]),
    "emoji": chat("Hi", allowed_token_ids=EMOJI_PARTS, ignore_eos=True, stop=["👩👩"], logprobs=True),
    "completion": completion("Once upon a time", stop=["was", "in a"], max_tokens=40),
}


@pytest.mark.parametrize("request_body", list(STOPS.values()), ids=list(STOPS))
def test_derender_cuts_where_a_coupled_server_stops(fleet: Fleet, request_body: Json) -> None:
    turn = whole(fleet.cutting, fleet.engine, request_body)
    assert turn.rendered[0]["sampling_params"]["stop"] == []
    coupled = fleet.coupled.post(dialect_of(request_body).path, request_body)
    same_answer(turn.answer, coupled, eos=EOS)


def running(engine: Client) -> float:
    """Requests in the engine itself; `/load` counts those in vLLM's HTTP server."""
    lines = str(engine.get("/metrics")).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))


def test_a_stop_string_in_a_stream_is_told_and_the_caller_aborts(fleet: Fleet) -> None:
    """The engine knows a request by the id in its own events, which is not the id that render gave."""
    request = streaming(chat("What is the capital of France?", stop="France is", ignore_eos=True, max_tokens=1500))
    rendered = render(fleet.cutting, request)
    stopped_at: list[float] = []

    def watch(event: Json, reply: Json) -> None:
        if reply.get("stopped"):
            stopped_at.append(time.monotonic())
            assert event["request_id"] == f"generate-tokens-{rendered[0]['request_id']}"
            assert fleet.engine.ask("POST", ABORT, {"request_ids": [event["request_id"]]}).status == 200

    events: list[Json] = []
    engine = kept(events_of(fleet.engine, rendered), events)
    streamed = derender_stream(fleet.cutting, request, rendered, engine, watch=watch)
    assert len(stopped_at) == 1
    assert time.monotonic() - stopped_at[0] < 5
    assert joined(events)["choices"][0]["finish_reason"] == "abort"
    wait_for(lambda: running(fleet.engine) == 0)

    (choice,) = streamed.choices
    assert choice["text"] == "The capital of "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "France is")
    assert [reply.get("stopped") for reply in streamed.replies].count(True) == 1


def test_of_two_choices_one_stops_and_the_other_goes_on(fleet: Fleet) -> None:
    plain = {**CHATS["two sampled"], "logprobs": False, "top_logprobs": 0}
    first, second = told(whole(fleet.cutting, fleet.engine, plain).answer)
    word = next(word for word in first["text"].split() if len(word) > 3 and word not in second["text"])
    request = {**plain, "stop": [word]}
    rendered = render(fleet.cutting, streaming(request))
    streamed = derender_stream(fleet.cutting, streaming(request), rendered, events_of(fleet.engine, rendered))
    coupled = told(fleet.coupled.post("/v1/chat/completions", request))
    assert streamed.choices == coupled
    assert [choice["finish_reason"] for choice in coupled] == ["stop", "length"]
    assert coupled[1]["text"] == second["text"]
