"""The endpoints' contract: bounds, usage, pass-through, state."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.derendering.helpers import answer, ask, chat, completions, entry, stream, texts
from tests.vocabularies import byte_level

from derender.derendering.chat import derender_chat_chunk
from derender.protocol.codec import encode
from derender.protocol.derender import decode_derender_chat
from derender.protocol.errors import BadRequest, InvalidBody

MODEL = texts(byte_level())
HELLO = byte_level().encode("Hello there")


def send(chunk: Any, state: Any = None, *, model: Any = MODEL, **fields: Any) -> Any:
    body = {"stream": True, "generate_chunk": chunk, "stream_state": state, "chat_request": ask(), **fields}
    return msgspec.json.decode(encode(derender_chat_chunk(model, decode_derender_chat(encode(body)))))


def one(*tokens: int, index: int = 0, **fields: Any) -> Any:
    return {"request_id": "r", "choices": [{"index": index, "token_ids": list(tokens), **fields}]}


def test_the_shape_of_a_whole_answer() -> None:
    got = chat(MODEL, answer(HELLO), ask(), prompt_tokens=5)
    got["created"] = 0
    assert got == {
        "id": "r",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello there",
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": {
            "prompt_tokens": 5,
            "total_tokens": 5 + len(HELLO),
            "completion_tokens": len(HELLO),
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def test_usage_prefers_the_callers_count_then_the_engines() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 1,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    got = chat(MODEL, {**answer(HELLO), "usage": usage})["usage"]
    assert (got["prompt_tokens"], got["total_tokens"]) == (9, 9 + len(HELLO))
    assert got["prompt_tokens_details"]["cached_tokens"] == 4
    assert chat(MODEL, {**answer(HELLO), "usage": usage}, prompt_tokens=3)["usage"]["prompt_tokens"] == 3
    assert chat(MODEL, {**answer(HELLO), "prompt_token_ids": [1, 2]})["usage"]["prompt_tokens"] == 2
    assert chat(MODEL, answer(HELLO))["usage"]["prompt_tokens"] == 0


def test_what_the_engine_says_beside_tokens_passes_through() -> None:
    given = {
        **answer(HELLO, weight_versions=["v1"], routed_experts="AAAA", sampling_mask=[[1]]),
        "kv_transfer_params": {"a": 1},
        "ec_transfer_params": {"b": 2},
        "metrics": {"queue_time_ms": 1.5},
        "prompt_token_ids": [5, 6],
    }
    got = chat(MODEL, given, ask(return_token_ids=True))
    assert got["kv_transfer_params"] == {"a": 1}
    assert got["ec_transfer_params"] == {"b": 2}
    assert got["metrics"] == {"queue_time_ms": 1.5}
    assert got["prompt_token_ids"] == [5, 6]
    choice = got["choices"][0]
    assert choice["token_ids"] == HELLO
    assert (choice["weight_versions"], choice["routed_experts"], choice["sampling_mask"]) == (["v1"], "AAAA", [[1]])


def test_a_prompt_tail_is_not_given_as_the_prompt() -> None:
    tail = chat(MODEL, answer(HELLO), ask(return_token_ids=True), prompt_token_ids=[5, 6], prompt_tokens=10)
    assert tail["prompt_token_ids"] is None
    whole = chat(MODEL, answer(HELLO), ask(return_token_ids=True), prompt_token_ids=[5, 6], prompt_tokens=2)
    assert whole["prompt_token_ids"] == [5, 6]


def test_transfer_parameters_of_several_prompts_must_agree() -> None:
    a, b = {**answer(HELLO), "kv_transfer_params": {"a": 1}}, answer(HELLO)
    assert completions(MODEL, [a, a])["kv_transfer_params"] == {"a": 1}
    assert completions(MODEL, [a, b])["kv_transfer_params"] is None


def test_completions_usage_sums_and_choices_are_numbered_through() -> None:
    got = completions(MODEL, [answer(HELLO, HELLO), answer(HELLO)], prompt_tokens=[3, 4])
    assert [c["index"] for c in got["choices"]] == [0, 1, 2]
    assert got["usage"]["prompt_tokens"] == 7
    assert got["usage"]["completion_tokens"] == 3 * len(HELLO)


@pytest.mark.parametrize(
    ("response", "says"),
    [
        (answer([5] * 4097), "max_model_len"),
        (answer(*[[5]] * 20), "choices count"),
        (answer([5], logprobs={"content": [entry(5)] * 4097}), "logprobs.content length"),  # type: ignore[arg-type]
        (answer([5], logprobs={"content": [entry(*[5] * 25)]}), "top_logprobs count"),  # type: ignore[arg-type]
        ({**answer([5]), "prompt_logprobs": [None] * 4097}, "prompt_logprobs length"),
    ],
)
def test_what_is_over_a_limit_is_refused(response: Any, says: str) -> None:
    model = texts(byte_level(), max_n_sequences=16)
    with pytest.raises(BadRequest, match=says):
        chat(model, response, ask())


def test_prompts_over_the_limit_are_refused() -> None:
    with pytest.raises(BadRequest, match="max_model_len"):
        chat(MODEL, answer(HELLO), prompt_token_ids=[5] * 4097)
    with pytest.raises(BadRequest, match="max_model_len"):
        send(one(5), prompt_token_ids=[5] * 4096)
    with pytest.raises(BadRequest, match="generate_responses count"):
        completions(texts(byte_level(), max_n_sequences=2), [answer([5])] * 3)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"prompt_tokens": [1, 2]}, "prompt_tokens length"),
        ({"prompt_token_ids": [[1], [2]]}, "prompt_token_ids length"),
        ({"prompt_token_ids": [[-1]]}, "prompt_token_ids"),
    ],
)
def test_lists_that_do_not_fit_are_refused(fields: Any, says: str) -> None:
    with pytest.raises(InvalidBody, match=says):
        completions(MODEL, [answer(HELLO)], **fields)


def test_no_responses_are_refused() -> None:
    with pytest.raises(BadRequest, match="must not be empty"):
        completions(MODEL, [])


def test_text_mode_is_refused() -> None:
    with pytest.raises(InvalidBody, match="output_mode"):
        chat(MODEL, {**answer(HELLO), "output_mode": "text"})


# ------------------------------------------------------------------------------------------------- streams


def test_the_role_stands_once_and_a_usage_chunk_has_no_choices() -> None:
    first = send({"request_id": "r", "choices": [], "usage": {"prompt_tokens": 3, "total_tokens": 3}})
    assert first["chunk"]["choices"] == []
    second = send(one(*HELLO[:1]), first["stream_state"])
    third = send(one(*HELLO[1:], finish_reason="stop"), second["stream_state"])
    roles = [c["delta"]["role"] for got in (second, third) for c in got["chunk"]["choices"]]
    assert roles == ["assistant", None]
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    last = send({"request_id": "r", "choices": [], "usage": usage}, third["stream_state"], prompt_tokens=7)
    assert last["chunk"]["usage"]["prompt_tokens"] == 7
    assert last["chunk"]["usage"]["total_tokens"] == 9
    assert last["chunk"]["usage"]["prompt_tokens_details"]["cached_tokens"] == 1


def test_several_choices_share_a_state_and_may_share_a_chunk() -> None:
    smile = byte_level().encode("😊")
    both = {
        "request_id": "r",
        "choices": [{"index": 0, "token_ids": smile[:1]}, {"index": 1, "token_ids": byte_level().encode("b")}],
    }
    first = send(both)
    second = send(one(*smile[1:]), first["stream_state"])
    third = send(one(*byte_level().encode("c"), index=1), second["stream_state"])
    assert [c["delta"]["content"] for c in first["chunk"]["choices"]] == [None, "b"]
    assert second["chunk"]["choices"][0]["delta"] == {"role": None, "content": "😊", "reasoning": None}
    assert third["chunk"]["choices"][0]["delta"]["content"] == "c"
    with pytest.raises(BadRequest, match="at most one choice"):
        send(both, model=texts(byte_level(), strict_vllm=True))


def test_the_state_stays_small() -> None:
    _, states = stream(MODEL, answer(HELLO * 200)["choices"][0], ask(), sizes=[1] * 1000)
    assert max(len(msgspec.json.encode(state)) for state in states) < 160


def state_with(**changes: Any) -> Any:
    """A state that is good but for the changes."""
    choice = {
        "parser": [False],
        "reasoning": 0,
        "held_stop": [],
        "held_text": "",
        "count": 1,
        "strip": False,
        "pending": [],
        "offset": 0,
        "role_sent": True,
        "ended": False,
    }
    choice |= {name: value for name, value in changes.items() if name in choice}
    own = {name: value for name, value in changes.items() if name not in choice}
    return {"derender": 1, "id": "r", "created": 1, "choices": {"0": list(choice.values())}, **own}


def test_a_good_state_is_taken() -> None:
    got = send(one(5, logprobs={"content": [entry(5)]}), state_with())
    assert got["chunk"]["id"] == "r"
    assert got["chunk"]["created"] == 1
    assert got["stream_state"]["choices"]["0"][4] == 2


@pytest.mark.parametrize(
    "state",
    [
        "x",
        7,
        [],
        {"derender": 2},
        {"derender": 1, "choices": {"x": []}},
        {"derender": 1, "choices": {"0": [False]}},
        state_with(parser=None, choices={"0": [False, 0]}),
        state_with(parser=[False, 300]),
        state_with(parser=[False, 65]),
        state_with(parser=[False, 240, 159, 152, 138]),
        state_with(parser=[]),
        state_with(parser="x"),
        state_with(reasoning=-1),
        state_with(held_stop=[10**9]),
        state_with(held_stop=[5]),
        state_with(held_stop=[0, 0]),
        state_with(held_text="x"),
        state_with(held_text="x" * 9999),
        state_with(count=-1),
        state_with(count=2**60),
        state_with(pending=[65]),
        state_with(id="x" * 257),
        state_with(id="another stream"),
        state_with(created=-1),
        {"derender": 1, "choices": {}, "more": 1},
        {"role_sent": "x"},
        {"prev_tokens": ["a"], "prefix_offset": -1},
        {"prev_tokens": ["a"], "prefix_offset": 50, "read_offset": 70},
        {"prev_tokens": ["a"] * 1025},
        {"output_chunk_lens": [10**9]},
        {"output_chunk_lens": [3], "output_token_ids": [1]},
        {"output_chunk_lens": [1], "output_token_ids": [10**9]},
        {"prev_tokens": ["no such token"], "prefix_offset": 0, "read_offset": 0},
        {"logprob_context_token_ids": [10**9]},
        {"logprob_context_token_ids": [-1]},
    ],
)
def test_a_hostile_state_is_refused(state: Any) -> None:
    with pytest.raises((BadRequest, InvalidBody)):
        send(one(5, logprobs={"content": [entry(5)]}), state)


def test_a_state_of_vllms_goes_on_in_the_middle_of_a_character() -> None:
    smile = byte_level().encode("a😊")
    spelled = [byte_level().token_string(i) for i in smile[:-1]]
    state = {
        "prev_tokens": spelled,
        "prefix_offset": 0,
        "read_offset": 1,
        "role_sent": True,
        "logprob_context_token_ids": smile[:-1][-4:],
        "logprob_text_offset": 1,
        "output_token_ids": [],
        "output_chunk_lens": [],
        "tools_streamed": False,
        "last_tool_call_ids": [],
    }
    got = send(one(smile[-1], logprobs={"content": [entry(smile[-1])]}), state)
    choice = got["chunk"]["choices"][0]
    assert choice["delta"] == {"role": None, "content": "😊", "reasoning": None}
    assert choice["logprobs"]["content"][0]["token"] == "😊"
    assert got["stream_state"]["derender"] == 1


def test_a_signed_state() -> None:
    signed, other = (texts(byte_level(), state_key=key) for key in (b"secret", b"another"))
    state = send(one(5), None, model=signed)["stream_state"]
    assert len(state["mac"]) == 24
    again = send(one(6), state, model=signed)["stream_state"]
    assert again["choices"]["0"][4] == 2
    assert again["mac"] != state["mac"]
    shuffled = dict(reversed(state.items()))  # JSON objects have no order
    assert send(one(6), shuffled, model=signed)["stream_state"] == again
    forged = {**state, "created": state["created"] + 1}
    unsigned = send(one(5), None)["stream_state"]
    for bad in (forged, unsigned, {**state, "mac": "é"}, {**state, "mac": None}, {"role_sent": True}):
        with pytest.raises(InvalidBody, match="invalid stream_state"):
            send(one(6), bad, model=signed)
    with pytest.raises(InvalidBody, match="invalid stream_state"):
        send(one(6), state, model=other)
