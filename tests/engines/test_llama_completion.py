"""What a llama.cpp server is asked: every sampling parameter is carried, done here or refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engines.llama_calls import PROMPT, generated, request, streamed
from tests.engines.llama_stand_in import LlamaStandIn

from derender.protocol.errors import BadRequest
from derender.protocol.generate import SamplingParams


def first_asked(**params: Any) -> dict[str, Any]:
    server = LlamaStandIn()
    generated(server, request(**params))
    return server.asked[0]


def test_nothing_is_left_to_the_servers_own_defaults():
    asked = first_asked(max_tokens=5)
    seed = asked.pop("seed")
    fields = asked.pop("response_fields")
    assert asked == {
        "prompt": PROMPT,
        "n_predict": 5,
        "stream": False,
        "cache_prompt": True,
        "return_tokens": True,
        "samplers": ["penalties", "temperature", "min_p", "top_k", "top_p"],
        "temperature": 1.0,
        "dynatemp_range": 0.0,
        "mirostat": 0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
        "repeat_last_n": 64,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": [],
        "ignore_eos": False,
        "stop": [],
        "n_probs": 0,
        "post_sampling_probs": False,
    }
    assert 0 <= seed < 2**32 - 1
    assert "tokens" in fields


def test_a_whole_answer_is_made_in_steps_that_soon_end():
    server = LlamaStandIn(script=[10] * 100, context=80)
    generated(server, request())
    assert [one["n_predict"] for one in server.asked] == [32, 32, 13]
    assert [len(one["prompt"]) for one in server.asked] == [3, 35, 67]


CARRIED: dict[str, tuple[Any, str, Any]] = {
    "repetition_penalty": (1.5, "repeat_penalty", 1.5),
    "temperature": (0.001, "temperature", 0.01),
    "top_p": (0.5, "top_p", 0.5),
    "top_k": (7, "top_k", 7),
    "min_p": (0.25, "min_p", 0.25),
    "max_tokens": (4, "n_predict", 4),
    "min_tokens": (2, "ignore_eos", True),
    "logprobs": (2, "n_probs", 2),
    "logit_bias": ({"4": 1000.0, "5": -2.0}, "logit_bias", [[4, 100.0], [5, -2.0]]),
    "structured_outputs": ({"choice": ['a"b', "c\\\n"]}, "grammar", 'root ::= "a\\x22b" | "c\\x5C\\x0A"'),
}
DONE_HERE = {"seed", "ignore_eos", "stop_token_ids", "stream_interval"}
WITHOUT_EFFECT = {
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "flat_logprobs",
}
REFUSED: dict[str, Any] = {
    "n": 2,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "allowed_token_ids": [1],
    "stop": ["x"],
    "bad_words": ["x"],
    "prompt_logprobs": 0,
    "prompt_logprob_token_ids": [[1]],
    "prompt_logprob_start": 1,
    "logprob_token_ids": [1],
    "thinking_token_budget": 1,
    "repetition_detection": {"min_count": 1},
    "trace_decode_token_ids": [1],
    "watermarking": True,
    "routed_experts_prompt_start": 1,
    "extra_args": {"x": 1},
}


def test_no_parameter_is_left_out_in_silence():
    assert {*CARRIED, *DONE_HERE, *WITHOUT_EFFECT, *REFUSED} == set(SamplingParams.__struct_fields__)


@pytest.mark.parametrize("name", CARRIED)
def test_parameters_are_carried(name):
    value, field, expected = CARRIED[name]
    assert first_asked(**{name: value})[field] == expected


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_llama_cpp_server_does_not_do_is_refused_by_name_before_anything_is_sent(name):
    server = LlamaStandIn()
    with pytest.raises(BadRequest) as refusal:
        generated(server, request(**{name: REFUSED[name]}))
    assert refusal.value.param == name
    assert server.asked == []


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"grammar": "root ::= nope"}}, "structured_outputs.grammar"),
        (
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
        ),
        ({"structured_outputs": {"choice": ["a"]}, "min_tokens": 1}, "min_tokens"),
        ({"structured_outputs": {"choice": ["a"]}, "ignore_eos": True}, "ignore_eos"),
        ({"max_tokens": 62}, "max_tokens"),
        ({"stop_token_ids": [1000]}, "stop_token_ids"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_what_does_not_go_together_or_is_too_much_is_refused(params, param):
    with pytest.raises(BadRequest) as refusal:
        generated(LlamaStandIn(), request(**params))
    assert refusal.value.param == param


def test_each_step_samples_with_a_seed_of_its_own_that_the_request_decides():
    def seeds(asked_seed: int) -> list[int]:
        server = LlamaStandIn()
        streamed(server, request(seed=asked_seed))
        whole = LlamaStandIn()
        generated(whole, request(seed=asked_seed))
        assert [one["seed"] for one in whole.asked] == [one["seed"] for one in server.asked]
        assert [one["n_predict"] for one in whole.asked] == [one["n_predict"] for one in server.asked]
        return [one["seed"] for one in server.asked]

    first = seeds(7)
    assert len(first) == len(set(first)) == 5
    assert seeds(7) == first
    assert not set(seeds(8)) & set(first)
