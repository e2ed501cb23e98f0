"""Requests against limits: what they become, and every refusal with its field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.engines.scripted import CONTEXT, LIMITS

from derender.engines.sampling import Constraint, Plan, constraint_of, plan
from derender.protocol.common import StructuredOutputs
from derender.protocol.errors import ApiError, BadRequest
from derender.protocol.generate import GenerateRequest


def planned(*, limits: Any = LIMITS, token_ids: Any = (5, 6), **fields: Any) -> Plan:
    body = {"token_ids": list(token_ids), "sampling_params": {}, **fields}
    return plan(msgspec.convert(body, GenerateRequest), limits, random_seed=lambda: 777)


def sampling(**params: Any) -> Any:
    return planned(sampling_params=params).choices[0]


def test_defaults_are_those_of_vllm_and_the_length_is_what_is_left():
    one = sampling()
    assert (one.temperature, one.top_p, one.top_k, one.min_p, one.repetition_penalty) == (1.0, 1.0, 0, 0.0, 1.0)
    assert one.max_tokens == CONTEXT - 2
    assert sampling(max_tokens=None).max_tokens == CONTEXT - 2
    assert sampling(max_tokens=CONTEXT - 2).max_tokens == CONTEXT - 2
    assert one.seed == 777


@pytest.mark.parametrize(("seed", "seeds"), [(5, [5, 6, 7]), (-1, [777, 778, 779]), (-9, [-9, -8, -7])])
def test_each_choice_has_a_seed_of_its_own(seed, seeds):
    assert [one.seed for one in planned(sampling_params={"n": 3, "seed": seed}).choices] == seeds


@pytest.mark.parametrize(("given", "used", "greedy"), [(0, 0.0, True), (1e-6, 1e-6, True), (0.001, 0.01, False)])
def test_small_temperatures(given, used, greedy):
    one = sampling(temperature=given)
    assert one.greedy is greedy
    assert one.temperature == used


def test_bias_is_bounded_and_top_k_of_minus_one_is_off():
    assert sampling(logit_bias={"7": 500, "8": -500, "9": 1.5}).logit_bias == ((7, 100.0), (8, -100.0), (9, 1.5))
    assert sampling(top_k=-1).top_k == 0


def test_what_changes_no_ids_is_taken():
    params = {
        "detokenize": True,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "flat_logprobs": True,
    }
    planned(
        sampling_params={**params, "stop": [], "bad_words": [], "extra_args": {"kv_transfer_params": None}},
        kv_transfer_params=None,
        reasoning_ended=True,
        model="toy-2",
    )


@pytest.mark.parametrize(
    ("params", "param", "words"),
    [
        ({"stop": ["x"]}, "stop", "stop strings are not supported on a --tokens-only server"),
        ({"stop": "x"}, "stop", "Check stop strings on the coordinator"),
        ({"bad_words": ["x"]}, "bad_words", "needs a tokenizer"),
        ({"prompt_logprobs": 0}, "prompt_logprobs", "not supported"),
        ({"prompt_logprob_token_ids": [[1]]}, "prompt_logprob_token_ids", "not supported"),
        ({"prompt_logprob_start": 1}, "prompt_logprob_start", "not supported"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids", "not supported"),
        ({"thinking_token_budget": 5}, "thinking_token_budget", "not supported"),
        ({"repetition_detection": {"max_pattern_size": 3}}, "repetition_detection", "not supported"),
        ({"trace_decode_token_ids": [1]}, "trace_decode_token_ids", "not supported"),
        ({"watermarking": True}, "watermarking", "not supported"),
        ({"routed_experts_prompt_start": 3}, "routed_experts_prompt_start", "not supported"),
        ({"extra_args": {"kv_transfer_params": {"a": 1}}}, "extra_args", "extra_args.kv_transfer_params"),
        ({"presence_penalty": 2.5}, "presence_penalty", "must be in [-2, 2], got 2.5"),
        ({"frequency_penalty": -3}, "frequency_penalty", "must be in [-2, 2]"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than zero"),
        ({"temperature": -1}, "temperature", "non-negative"),
        ({"temperature": 2.1}, "temperature", "must be in [0, 2], got 2.1"),
        ({"top_p": 0}, "top_p", "must be in (0, 1]"),
        ({"top_p": 1.1}, "top_p", "must be in (0, 1]"),
        ({"top_k": -2}, "top_k", "or at least 1, got -2"),
        ({"min_p": 1.5}, "min_p", "must be in [0, 1]"),
        ({"seed": 2**63}, "seed", "64-bit"),
        ({"max_tokens": 0}, "max_tokens", "at least 1, got 0"),
        ({"min_tokens": -1}, "min_tokens", "greater than or equal to 0"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "less than or equal to max_tokens=4, got 5"),
        ({"stream_interval": 0}, "stream_interval", "at least 1"),
        ({"logprobs": -2}, "logprobs", "non-negative or -1"),
        ({"logprobs": 21}, "logprobs", "greater than max allowed: 20"),
        ({"logprobs": -1}, "logprobs", "Requested sample logprobs of 100"),
        ({"n": 0}, "n", "at least 1, got 0"),
        ({"n": 20000}, "n", "at most 16384"),
        ({"n": 2, "temperature": 0}, "n", "n must be 1 when using greedy sampling, got 2"),
        ({"stop_token_ids": [1, 100]}, "stop_token_ids", "stop_token_ids[1]: token id 100"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "empty"),
        ({"allowed_token_ids": [100]}, "allowed_token_ids", "token id 100"),
        ({"logit_bias": {"100": 1}}, "logit_bias", "token id 100"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "'x' is not a token id"),
        ({"max_tokens": CONTEXT - 1}, "max_tokens", f"maximum model length of {CONTEXT}"),
    ],
)
def test_sampling_parameters_that_are_refused(params, param, words):
    with pytest.raises(BadRequest) as caught:
        sampling(**params)
    assert caught.value.param == param
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("fields", "status", "param", "words"),
    [
        ({"token_ids": [5, 6, 100]}, 400, "token_ids", "token_ids[2]: token id 100 is out of vocabulary"),
        ({"token_ids": [5] * (CONTEXT + 1)}, 400, "token_ids", "longer than the maximum model length of 64"),
        ({"token_ids": [5] * CONTEXT}, 400, "token_ids", "output tokens (at least 1)"),
        ({"model": "other"}, 404, "model", "The model `other` does not exist."),
        ({"output_mode": "text"}, 400, "output_mode", "output_mode='text' requires a tokenizer"),
        ({"output_mode": "derender"}, 400, "output_mode", "requires a tokenizer"),
        ({"content_parts": [{"type": "image_url"}]}, 400, "content_parts", "not multimodal"),
        ({"features": {"mm_hashes": {}, "mm_placeholders": {}}}, 400, "features", "not multimodal"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, 400, "kv_transfer_params", "not supported"),
        ({"ec_transfer_params": {"a": 1}}, 400, "ec_transfer_params", "not supported"),
    ],
)
def test_requests_that_are_refused(fields, status, param, words):
    with pytest.raises(ApiError) as caught:
        planned(**fields)
    assert (caught.value.status, caught.value.param) == (status, param)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("asked", "constraint"),
    [
        ({"json": {"type": "object"}}, ("json_schema", '{"type":"object"}', "json")),
        ({"json": '{"type": "array"}'}, ("json_schema", '{"type": "array"}', "json")),
        ({"json_object": True}, ("json_schema", '{"type":"object"}', "json_object")),
        ({"regex": "[a-c]+"}, ("regex", "[a-c]+", "regex")),
        ({"choice": ["yes", 'a"b']}, ("lark", 'start: "yes" | "a\\"b"', "choice")),
        ({"grammar": 'root ::= "a"'}, ("lark", 'start: T0\nT0: "a"', "grammar")),
        (
            {"json_object": True, "disable_any_whitespace": True},
            ("json_schema", '{"x-guidance":{"whitespace_flexible":false},"type":"object"}', "json_object"),
        ),
    ],
)
def test_constraints(asked, constraint):
    kind, text, name = constraint
    found = constraint_of(StructuredOutputs(**asked), known=LIMITS.constraints)
    assert found == Constraint(kind, text, f"structured_outputs.{name}")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({}, "structured_outputs"),
        ({"regex": "a", "choice": ["b"]}, "structured_outputs"),
        ({"structural_tag": "{}"}, "structured_outputs.structural_tag"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"json_object": True, "whitespace_pattern": " "}, "structured_outputs.whitespace_pattern"),
        (
            {"json_object": True, "disable_additional_properties": True},
            "structured_outputs.disable_additional_properties",
        ),
    ],
)
def test_constraints_that_are_refused(asked, param):
    with pytest.raises(BadRequest) as caught:
        constraint_of(StructuredOutputs(**asked), known=LIMITS.constraints)
    assert caught.value.param == param


def test_a_constraint_that_the_engine_does_not_know_is_refused():
    with pytest.raises(BadRequest, match=r"structured_outputs\.regex is not supported by this engine"):
        constraint_of(StructuredOutputs(regex="a"), known=frozenset({"lark"}))
