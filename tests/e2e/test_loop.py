"""render → generate → derender over HTTP, with derender's own servers and a small real model."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.e2e.client import Client, Json
from tests.e2e.conftest import Fleet
from tests.e2e.loop import (
    ABORT,
    CHAT,
    COMPLETIONS,
    GENERATE,
    derender,
    derender_stream,
    events_of,
    joined,
    kept,
    render,
    told,
    whole,
)

pytestmark = pytest.mark.real

PARROT_FLAG = "🦜🏴‍☠️🦜"


def chat(text: str, **fields: Any) -> Json:
    return {
        "model": "smollm2",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 24,
        "return_token_ids": True,
        **fields,
    }


def completion(prompt: Any, **fields: Any) -> Json:
    return {
        "model": "smollm2",
        "prompt": prompt,
        "temperature": 0,
        "max_tokens": 12,
        "return_token_ids": True,
        **fields,
    }


FRANCE = chat("What is the capital of France? Answer in one sentence.", logprobs=True, top_logprobs=3)
REQUESTS = {
    "ends by itself": FRANCE,
    "emoji by grammar": chat(
        "Hi", structured_outputs={"grammar": f'root ::= "{PARROT_FLAG}"'}, max_tokens=60, logprobs=True, top_logprobs=2
    ),
    "cut inside an emoji": chat("Hi", structured_outputs={"grammar": 'root ::= "ok 🦜"'}, max_tokens=4, logprobs=True),
    "two sampled": chat("Tell me a story.", n=2, temperature=1.0, seed=5, logprobs=True, top_logprobs=3),
    "long prompt": chat("The quick brown fox jumps over the lazy dog. " * 25 + "What does it jump over?"),
    "stop token": chat("Count from one to ten.", stop_token_ids=[17, 28, 30]),
    "past its end": chat("Say hi.", ignore_eos=True, max_tokens=40),
    "not too short": chat("Say hi.", min_tokens=30, max_tokens=40),
    "completion": completion("Übung macht den", logprobs=3),
    "completion of ids": completion([504, 2365, 282], n=2, temperature=0.8, seed=1),
    "completion with echo": completion("Once upon a time, é", echo=True),
}


def each(*names: str) -> pytest.MarkDecorator:
    chosen = {name: REQUESTS[name] for name in names or REQUESTS}
    return pytest.mark.parametrize("request_body", list(chosen.values()), ids=list(chosen))


def streaming(request: Json, **options: bool) -> Json:
    return {**request, "stream": True, "stream_options": {"include_usage": True, **options}}


# ------------------------------------------------------------------------------------------------------- whole


def test_a_chat_comes_round(fleet: Fleet) -> None:
    rendered = render(fleet.text, FRANCE, {"X-Request-Id": "a-1"})
    assert rendered[0]["request_id"] == "chatcmpl-a-1"
    generated = [fleet.ids.post(GENERATE, rendered[0])]
    answer = derender(fleet.text, FRANCE, rendered, generated)
    assert (answer["id"], answer["model"]) == ("chatcmpl-a-1", "smollm2")

    (choice,) = answer["choices"]
    assert choice["message"]["content"] == "The capital of France is Paris."
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    ids = generated[0]["choices"][0]["token_ids"]
    assert choice["token_ids"] == ids
    assert fleet.text.post("/detokenize", {"tokens": ids})["prompt"] == "The capital of France is Paris.<|im_end|>"
    prompt = len(rendered[0]["token_ids"])
    counts = {"prompt_tokens": prompt, "completion_tokens": len(ids), "total_tokens": prompt + len(ids)}
    assert counts.items() <= answer["usage"].items()

    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [
        "The",
        " capital",
        " of",
        " France",
        " is",
        " Paris",
        ".",
        "<|im_end|>",
    ]
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in entries)
    assert [[top["token"] for top in entry["top_logprobs"]][:1] for entry in entries] == [[e["token"]] for e in entries]
    assert {len(entry["top_logprobs"]) for entry in entries} == {3}


def test_emoji_of_many_tokens_come_round(fleet: Fleet) -> None:
    """What the engine must write is given, so the right text is known."""
    answer = whole(fleet.text, fleet.ids, REQUESTS["emoji by grammar"]).answer
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == PARROT_FLAG
    entries = choice["logprobs"]["content"]
    assert len(entries) > 8
    assert "".join(entry["token"] for entry in entries) == PARROT_FLAG + "<|im_end|>"
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == f"{PARROT_FLAG}<|im_end|>".encode()
    assert any(entry["token"] == "" for entry in entries)


def test_an_emoji_that_is_cut_off_is_one_replacement_character(fleet: Fleet) -> None:
    answer = whole(fleet.text, fleet.ids, REQUESTS["cut inside an emoji"]).answer
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == "ok \N{REPLACEMENT CHARACTER}"
    held = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
    assert held.startswith(b"ok \xf0\x9f")
    assert "ok 🦜".encode().startswith(held)


def test_several_prompts_are_numbered_through(fleet: Fleet) -> None:
    request = completion(["One two three", "Eins zwei drei"], n=2, temperature=0.7, seed=3)
    rendered, generated, answer = whole(fleet.text, fleet.ids, request)
    assert [one["request_id"].rsplit("-", 1)[1] for one in rendered] == ["0", "1"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    written = [choice["token_ids"] for one in generated for choice in one["choices"]]
    assert [choice["token_ids"] for choice in answer["choices"]] == written
    assert answer["usage"]["completion_tokens"] == sum(map(len, written))
    assert answer["usage"]["prompt_tokens"] == sum(len(one["token_ids"]) for one in rendered)


def test_limits_of_the_output_are_kept(fleet: Fleet) -> None:
    (stopped,) = told(whole(fleet.text, fleet.ids, REQUESTS["stop token"]).answer)
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", stopped["token_ids"][-1])
    assert stopped["stop_reason"] in (17, 28, 30)
    shown = fleet.text.post("/detokenize", {"tokens": stopped["token_ids"][:-1]})["prompt"]
    assert stopped["text"] == shown

    (past,) = told(whole(fleet.text, fleet.ids, REQUESTS["past its end"]).answer)
    assert (past["finish_reason"], len(past["token_ids"])) == ("length", 40)
    (long,) = told(whole(fleet.text, fleet.ids, REQUESTS["not too short"]).answer)
    assert len(long["token_ids"]) >= 30


@each()
def test_both_forms_of_logprobs_give_the_same_answer(fleet: Fleet, request_body: Json) -> None:
    new = whole(fleet.text, fleet.ids, request_body)
    old = whole(fleet.text, fleet.placeholders, request_body)
    assert told(old.answer) == told(new.answer)
    assert old.answer["usage"] == new.answer["usage"]
    for turn, key in ((new, "token_id"), (old, "token")):
        for choice in turn.generated[0]["choices"]:
            content = (choice["logprobs"] or {"content": []})["content"]
            named = [entry[key] for entry in content]
            ids = choice["token_ids"] if content else []
            assert named == (ids if key == "token_id" else [f"token_id:{token}" for token in ids])


# ----------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("wire", ["ids", "placeholders"])
@each()
def test_a_stream_is_its_batch(fleet: Fleet, wire: str, request_body: Json) -> None:
    engine: Client = getattr(fleet, wire)
    request = streaming(request_body)
    rendered = render(fleet.text, request)
    events = list(events_of(engine, rendered))
    streamed = derender_stream(fleet.text, request, rendered, events)
    batch = derender(fleet.text, request_body, rendered, [joined(events)])
    assert streamed.choices == told(batch)
    assert streamed.usage == batch["usage"]
    assert [chunk["choices"] == [] for chunk in streamed.chunks] == [False] * (len(events) - 1) + [True]

    (unstreamed,) = whole(fleet.text, engine, request_body).generated
    assert [c["token_ids"] for c in joined(events)["choices"]] == [c["token_ids"] for c in unstreamed["choices"]]


def test_choices_of_a_stream_come_mixed_and_have_a_state_in_common_or_each_its_own(fleet: Fleet) -> None:
    request = streaming(REQUESTS["two sampled"], continuous_usage_stats=True)
    rendered = render(fleet.text, request)
    events = list(events_of(fleet.ids, rendered))
    order = [event["choices"][0]["index"] for event in events if event["choices"]]
    assert order != sorted(order)
    together = derender_stream(fleet.text, request, rendered, events)
    apart = derender_stream(fleet.text, request, rendered, events, state_per_choice=True)
    assert together.choices == apart.choices
    assert [chunk["usage"]["prompt_tokens"] for chunk in together.chunks] == [len(rendered[0]["token_ids"])] * len(
        events
    )
    assert together.usage["completion_tokens"] == 48


@each("emoji by grammar", "two sampled", "completion with echo")
def test_every_chunk_may_go_to_another_replica(fleet: Fleet, request_body: Json) -> None:
    request = streaming(request_body)
    rendered = render(fleet.text, request)
    events = list(events_of(fleet.ids, rendered))
    states: Json = None
    replies = []
    dialect = CHAT if "messages" in request else COMPLETIONS
    for number, event in enumerate(events):
        replica = (fleet.text, fleet.cutting)[number % 2]
        body = {"stream": True, "generate_chunk": event, "stream_state": states, dialect.asked: request}
        body["prompt_token_ids"] = rendered[0]["token_ids"]
        body["prompt_tokens"] = len(rendered[0]["token_ids"])
        replies.append(replica.post(f"{dialect.path}/derender", body))
        states = replies[-1]["stream_state"]
    alone = derender_stream(fleet.text, request, rendered, events)
    assert [r["chunk"]["choices"] for r in replies] == [chunk["choices"] for chunk in alone.chunks]
    # Two streams, which may begin in different seconds: when each began is its own.
    last = alone.replies[-1]["stream_state"]
    assert states["created"] <= last["created"]
    assert {**states, "created": last["created"]} == last


# ------------------------------------------------------------------------------------------------ stop strings


def test_an_engine_refuses_the_stop_strings_that_render_leaves_to_it(fleet: Fleet) -> None:
    (rendered,) = render(fleet.text, {**FRANCE, "stop": ["France is"]})
    assert rendered["sampling_params"]["stop"] == ["France is"]
    error = fleet.ids.refusal(GENERATE, rendered)
    assert "stop" in error["message"]


@pytest.mark.parametrize(("keep", "text"), [(False, "The capital of "), (True, "The capital of France is")])
def test_derender_cuts_at_a_stop_string(fleet: Fleet, keep: bool, text: str) -> None:
    request = {**FRANCE, "stop": ["Spain", "France is"], "include_stop_str_in_output": keep}
    rendered, generated, answer = whole(fleet.cutting, fleet.ids, request)
    assert rendered[0]["sampling_params"]["stop"] == []
    assert len(generated[0]["choices"][0]["token_ids"]) == 8
    (choice,) = told(answer)
    assert choice["text"] == text
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "France is")
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == 5
    assert answer["usage"]["completion_tokens"] == 5


def running(engine: Client) -> int:
    return int(engine.get("/load")["server_load"])


def test_a_stop_string_in_a_stream_is_told_and_the_caller_aborts(fleet: Fleet) -> None:
    request = streaming({**FRANCE, "stop": "France is", "ignore_eos": True, "max_tokens": 1500})
    rendered = render(fleet.cutting, request)
    told_at: list[float] = []

    def watch(event: Json, reply: Json) -> None:
        if reply.get("stopped"):
            told_at.append(time.monotonic())
            assert running(fleet.ids) == 1
            assert fleet.ids.ask("POST", ABORT, {"request_ids": [event["request_id"]]}).status == 200

    events: list[Json] = []
    engine = kept(events_of(fleet.ids, rendered), events)
    streamed = derender_stream(fleet.cutting, request, rendered, engine, watch=watch)
    assert len(told_at) == 1
    assert time.monotonic() - told_at[0] < 5
    assert running(fleet.ids) == 0
    assert joined(events)["choices"][0]["finish_reason"] == "abort"

    (choice,) = streamed.choices
    assert choice["text"] == "The capital of "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "France is")
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == 5
    assert [reply.get("stopped") for reply in streamed.replies].count(True) == 1


def test_of_two_choices_one_stops_and_the_other_goes_on(fleet: Fleet) -> None:
    """`stopped` is of one choice; a caller that wants both aborts when both have ended."""
    plain = {**REQUESTS["two sampled"], "logprobs": False, "top_logprobs": 0}
    first, second = told(whole(fleet.cutting, fleet.ids, plain).answer)
    word = next(word for word in first["text"].split() if len(word) > 3 and word not in second["text"])
    request = streaming({**plain, "stop": [word]})
    rendered = render(fleet.cutting, request)
    streamed = derender_stream(fleet.cutting, request, rendered, events_of(fleet.ids, rendered))
    stopped, other = streamed.choices
    assert stopped["text"] == first["text"][: first["text"].index(word)]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", word)
    assert (other["text"], other["finish_reason"]) == (second["text"], second["finish_reason"])


def test_a_stop_reason_that_is_no_stop_string_is_not_looked_for(fleet: Fleet) -> None:
    """An engine that ends a loop of repetitions says so in `stop_reason`, and the output may have these words."""
    ids = fleet.text.post("/tokenize", {"prompt": "It is repetition_detected, twice", "add_special_tokens": False})
    choice = {"index": 0, "token_ids": ids["tokens"], "stop_reason": "repetition_detected"}
    for reason, text in (("repetition", "It is repetition_detected, twice"), ("stop", "It is ")):
        body = {"generate_response": {"request_id": "r", "choices": [{**choice, "finish_reason": reason}]}}
        (answered,) = told(fleet.text.post("/v1/chat/completions/derender", body))
        assert (answered["text"], answered["finish_reason"]) == (text, reason)
        assert answered["stop_reason"] == "repetition_detected"
