"""What SGLang is asked: every sampling parameter is carried, translated or refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from derender.engines.sglang_body import REFUSED, WITHOUT_EFFECT, body
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateRequest, SamplingParams

PROMPT = [5, 6, 7]


def request(*, outside: dict[str, Any] | None = None, **params: Any) -> GenerateRequest:
    told = {"token_ids": PROMPT, "request_id": "r", "sampling_params": params, **(outside or {})}
    return msgspec.convert(told, GenerateRequest)


def sent(**params: Any) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.json.decode(body(request(**params), stream=False, rid="r/", priority=None))
    return made


def test_what_is_not_asked_is_written_with_vllms_defaults():
    asked = sent()
    assert asked == {
        "rid": "r/",
        "input_ids": PROMPT,
        "stream": False,
        "sampling_params": {
            "max_new_tokens": None,
            "min_new_tokens": 0,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "ignore_eos": False,
            "stop": None,
            "stop_token_ids": None,
            "n": 1,
        },
    }


CARRIED: dict[str, tuple[Any, str, Any]] = {
    "presence_penalty": (0.5, "presence_penalty", 0.5),
    "frequency_penalty": (-0.5, "frequency_penalty", -0.5),
    "repetition_penalty": (1.5, "repetition_penalty", 1.5),
    "temperature": (0.001, "temperature", 0.01),
    "top_p": (0.5, "top_p", 0.5),
    "top_k": (7, "top_k", 7),
    "min_p": (0.25, "min_p", 0.25),
    "seed": (3, "sampling_seed", 3),
    "stop_token_ids": ([8, 9], "stop_token_ids", [8, 9]),
    "ignore_eos": (True, "ignore_eos", True),
    "max_tokens": (12, "max_new_tokens", 12),
    "min_tokens": (2, "min_new_tokens", 2),
    "stream_interval": (4, "stream_interval", 4),
    "logit_bias": ({"4": 1000.0, "5": -2.0}, "logit_bias", {"4": 100.0, "5": -2.0}),
    "structured_outputs": ({"regex": "a+"}, "regex", "a+"),
}
GIVEN: dict[str, Any] = {
    "stop": ["x"],
    "bad_words": ["x"],
    "allowed_token_ids": [1],
    "prompt_logprob_token_ids": [[1]],
    "prompt_logprob_start": 1,
    "logprob_token_ids": [1],
    "thinking_token_budget": 1,
    "repetition_detection": {"min_count": 1},
    "trace_decode_token_ids": [1],
    "watermarking": True,
    "routed_experts_prompt_start": 1,
    "n": 2,
    "extra_args": {"x": 1},
    "logprobs": -1,
    "prompt_logprobs": -1,
}


def test_no_parameter_is_left_out_in_silence():
    known = {*CARRIED, *REFUSED, *WITHOUT_EFFECT, "n", "extra_args", "logprobs", "prompt_logprobs"}
    assert known == set(SamplingParams.__struct_fields__)


@pytest.mark.parametrize("name", CARRIED)
def test_parameters_are_carried(name):
    value, field, expected = CARRIED[name]
    assert sent(**{name: value})["sampling_params"][field] == expected


@pytest.mark.parametrize("name", GIVEN)
def test_what_sglang_does_not_have_is_refused_by_name(name):
    with pytest.raises(BadRequest) as refusal:
        sent(**{name: GIVEN[name]})
    assert refusal.value.param == name


@pytest.mark.parametrize(
    ("asked", "name", "value"),
    [
        ({"json": {"type": "object"}}, "json_schema", '{"type":"object"}'),
        ({"json": '{"type":"string"}'}, "json_schema", '{"type":"string"}'),
        ({"json_object": True}, "json_schema", '{"type":"object"}'),
        ({"grammar": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
        ({"structural_tag": "{}"}, "structural_tag", "{}"),
        ({"choice": ["a.b", "c|d (e)"]}, "regex", r"(a\.b|c\|d \(e\))"),
    ],
)
def test_constraints_have_other_names(asked, name, value):
    assert sent(structured_outputs=asked)["sampling_params"][name] == value


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({}, "structured_outputs"),
        ({"regex": "a", "choice": ["a"]}, "structured_outputs"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"regex": "a", "whitespace_pattern": " "}, "structured_outputs.whitespace_pattern"),
        ({"json_object": True, "disable_any_whitespace": True}, "structured_outputs.disable_any_whitespace"),
    ],
)
def test_constraints_that_cannot_be_told_are_refused(asked, param):
    with pytest.raises(BadRequest) as refusal:
        sent(structured_outputs=asked)
    assert refusal.value.param == param


@pytest.mark.parametrize(
    ("outside", "param"),
    [
        ({"output_mode": "text"}, "output_mode"),
        ({"ec_transfer_params": {"a": 1}}, "ec_transfer_params"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
        ({"priority": 1}, "priority"),
        ({"content_parts": [{"type": "image_url"}]}, "content_parts"),
    ],
)
def test_requests_that_sglang_cannot_do_are_refused(outside, param):
    with pytest.raises(BadRequest) as refusal:
        body(request(outside=outside), stream=False, rid="r", priority=None)
    assert refusal.value.param == param


def test_stop_ids_beside_ignore_eos_are_refused_because_sglang_would_not_look_at_them():
    with pytest.raises(BadRequest) as refusal:
        sent(ignore_eos=True, stop_token_ids=[3])
    assert refusal.value.param == "stop_token_ids"


def test_what_stands_outside_the_sampling_parameters():
    outside = {
        "kv_transfer_params": {"bootstrap_host": "h", "bootstrap_port": 1, "bootstrap_room": 2},
        "cache_salt": "salt",
        "priority": 3,
        "reasoning_ended": False,
    }
    asked = request(outside=outside, structured_outputs={"regex": "a"}, logprobs=2, prompt_logprobs=3)
    made = msgspec.json.decode(body(asked, stream=False, rid="r", priority=-1))
    assert (made["bootstrap_host"], made["bootstrap_port"], made["bootstrap_room"]) == ("h", 1, 2)
    assert (made["extra_key"], made["priority"], made["require_reasoning"]) == ("salt", -3, True)
    assert (made["return_logprob"], made["top_logprobs_num"], made["logprob_start_len"]) == (True, 3, 0)
