"""What the context and the vocabulary allow: boundary tables, truncation, ids of a caller's (F04), E10, E13."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rendering.helpers import END, HI, PLAIN, chat, refused, renderer, text, tokenize, with_bos
from tests.vocabularies import bug_case, byte_level


def of(tokens: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": END * tokens}]


# ------------------------------------------------------------------------------------------------- max_tokens


@pytest.mark.parametrize(
    ("prompt", "body", "defaults", "expected"),
    [
        (30, {}, {}, 994),
        (30, {"max_tokens": 16}, {}, 16),
        (30, {"max_tokens": 1}, {}, 1),
        (30, {"max_tokens": 994}, {}, 994),
        (30, {"max_tokens": 995}, {}, 994),
        (30, {"max_tokens": 1024}, {}, 994),
        (1023, {}, {}, 1),
        (1023, {"max_tokens": 500}, {}, 1),
        (30, {}, {"max_tokens": 100}, 100),
        (30, {}, {"max_tokens": 2000}, 994),
        (30, {"max_tokens": 200}, {"max_tokens": 100}, 200),
        (30, {"max_completion_tokens": 7, "max_tokens": 9}, {"max_tokens": 100}, 7),
    ],
)
def test_max_tokens(prompt: int, body: Any, defaults: Any, expected: int) -> None:
    model = renderer(template=PLAIN, sampling_defaults=defaults)
    assert chat(model, messages=of(prompt), **body)["sampling_params"]["max_tokens"] == expected


@pytest.mark.parametrize(
    ("prompt", "body", "param", "says"),
    [
        (30, {"max_tokens": 1025}, "max_tokens", "max_tokens=1025 cannot be greater than max_model_len=1024"),
        (30, {"max_completion_tokens": 1025}, "max_completion_tokens", "max_completion_tokens=1025"),
        (30, {"max_tokens": 0}, "max_tokens", "must be at least 1, got 0. (parameter=max_tokens, value=0)"),
        (30, {"max_tokens": -1}, "max_tokens", "must be at least 1, got -1"),
        (
            30,
            {"max_completion_tokens": 0, "max_tokens": 5},
            "max_completion_tokens",
            "max_completion_tokens must be at least 1, got 0. (parameter=max_completion_tokens, value=0)",
        ),
        (1024, {}, "max_tokens", "no room for output"),
        (1025, {}, "input_tokens", "1025 input tokens"),
        (30, {"min_tokens": 995}, "min_tokens", "min_tokens must be less than or equal to max_tokens=994, got 995."),
        (30, {"min_tokens": 6, "max_tokens": 5}, "min_tokens", "max_tokens=5, got 6."),
        (30, {"min_tokens": -1}, "min_tokens", "greater than or equal to 0, got -1."),
        (30, {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "No token_ids rendered"),
        (30, {"continue_final_message": True}, "continue_final_message", "Cannot set both"),
    ],
)
def test_max_tokens_refused(prompt: int, body: Any, param: str | None, says: str) -> None:
    error = refused(chat, renderer(template=PLAIN), messages=of(prompt), **body)
    assert says in error["message"]
    assert (error["type"], error["param"]) == ("BadRequestError", param)


def test_more_than_the_room_is_refused_where_the_server_says_so() -> None:
    model = renderer(template=PLAIN, max_tokens_over_room="refuse")
    case = bug_case("E10")["input"]
    assert (case["max_model_len"], case["prompt_len"]) == (1024, 30)
    error = refused(chat, model, messages=of(30), max_tokens=1000)
    assert all(number in error["message"] for number in ("1024", "30", "1000"))
    assert error["type"] == "BadRequestError"
    assert chat(model, messages=of(30), max_tokens=994)["sampling_params"]["max_tokens"] == 994
    assert chat(model, messages=of(30))["sampling_params"]["max_tokens"] == 994
    assert "no room" in refused(chat, model, messages=of(1024))["message"]
    assert "1025" in refused(chat, model, messages=of(1025))["message"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, 16),
        ({"max_tokens": None}, 16),
        ({"max_tokens": 17}, 17),
        ({"max_tokens": 1024}, 1020),
        ({"echo": True, "max_tokens": 0}, 1),
        ({"echo": True, "max_tokens": 0, "min_tokens": 1}, 1),
    ],
)
def test_max_tokens_of_completions(body: Any, expected: int) -> None:
    model = renderer(sampling_defaults={"max_tokens": 500})
    assert text(model, prompt=[1, 2, 3, 4], **body)[0]["sampling_params"]["max_tokens"] == expected


def test_each_prompt_has_its_own_room() -> None:
    got = text(renderer(), prompt=[[1] * 4, [1] * 1020, [1] * 5], max_tokens=10)
    assert [one["sampling_params"]["max_tokens"] for one in got] == [10, 4, 10]


# ------------------------------------------------------------------------------------------------- long prompts


def test_a_text_is_refused_by_its_characters_before_it_is_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    model = renderer(template=PLAIN)
    bound = 1024 * byte_level().max_chars_per_token

    def tokenized(self: Any, text: str, **_: Any) -> list[int]:
        raise AssertionError("tokenized")

    monkeypatch.setattr(type(byte_level()), "encode", tokenized)
    error = refused(chat, model, messages=[{"role": "user", "content": "a" * (bound + 1)}])
    assert error["param"] == "input_text"
    assert f"contains {bound + 1} characters (more than {bound} characters" in error["message"]
    assert error["message"].endswith(f"(parameter=input_text, value={bound + 1})")
    with pytest.raises(AssertionError, match="tokenized"):
        chat(model, messages=[{"role": "user", "content": "a" * bound}])


def test_too_many_ids_are_counted_exactly() -> None:
    for error in (
        refused(chat, renderer(template=PLAIN), messages=of(1200)),
        refused(text, renderer(), prompt=[1] * 1200),
    ):
        assert error["param"] == "input_tokens"
        assert "maximum context length is 1024 tokens" in error["message"]
        assert "contains 1200 input tokens" in error["message"]
    assert "contains 1025 input" in refused(text, renderer(), prompt=["a", "x" + END * 1024])["message"]


# --------------------------------------------------------------------------------------------------- truncation

DIGITS = [10, 11, 12, 13, 14]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"truncate_prompt_tokens": 2}, [13, 14]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, [13, 14]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, [10, 11]),
        ({"truncate_prompt_tokens": 5}, DIGITS),
        ({"truncate_prompt_tokens": -1}, DIGITS),
        ({"truncation_side": "right"}, DIGITS),
    ],
)
def test_ids_are_cut(body: Any, expected: list[int]) -> None:
    [got] = text(renderer(), prompt=DIGITS, max_tokens=1020, **body)
    assert got["token_ids"] == expected
    assert got["sampling_params"]["max_tokens"] == min(1020, 1024 - len(expected))


def test_minus_one_leaves_room_for_one_token() -> None:
    [got] = text(renderer(), prompt=[*range(400)] * 5, truncate_prompt_tokens=-1)
    assert got["token_ids"] == ([*range(400)] * 5)[-1023:]
    assert got["sampling_params"]["max_tokens"] == 1
    assert refused(text, renderer(), prompt=[1] * 2000, truncate_prompt_tokens=1024)["param"] == "max_tokens"


def test_offsets_are_cut_with_their_ids() -> None:
    body: dict[str, Any] = {"prompt": f"a{END}b{END}c", "return_token_offsets": True}
    [whole] = text(renderer(), **body)
    assert whole["token_offsets"] == [[0, 1], [1, 11], [11, 12], [12, 22], [22, 23]]
    for side, cut in (("left", slice(-2, None)), ("right", slice(0, 2)), (None, slice(-2, None))):
        [got] = text(renderer(), truncate_prompt_tokens=2, truncation_side=side, **body)
        assert got["token_ids"] == whole["token_ids"][cut]
        assert got["token_offsets"] == whole["token_offsets"][cut]


def test_a_text_far_too_long_is_cut_before_it_is_tokenized() -> None:
    model = renderer()
    most = 1024 * byte_level().max_chars_per_token
    prompt = "ab" * most
    for side, spans in (
        ("left", [[2 * most - 2, 2 * most - 1], [2 * most - 1, 2 * most]]),
        ("right", [[0, 1], [1, 2]]),
    ):
        [got] = text(model, prompt=prompt, truncate_prompt_tokens=2, truncation_side=side, return_token_offsets=True)
        assert got["token_ids"] == byte_level().encode("ab")
        assert got["token_offsets"] == spans


@pytest.mark.parametrize(
    ("limit", "side", "expected"),
    [
        (4, None, [0, "c", "d", 2]),
        (4, "left", ["b", "c", "d", 2]),
        (4, "right", [0, "a", "b", "c"]),
        (6, None, [0, "a", "b", "c", "d", 2]),
        (2, None, [0, 2]),
        (1, None, [2]),
    ],
)
def test_what_the_tokenizer_adds_stays_unless_a_side_is_named(
    limit: int, side: str | None, expected: list[Any]
) -> None:
    [got] = text(
        renderer(tokenizer=with_bos()), prompt="abcd", truncate_prompt_tokens=limit,
        truncation_side=side, return_token_offsets=True,
    )  # fmt: skip
    single = {letter: byte_level().encode(letter)[0] for letter in "abcd"}
    assert byte_level().encode("abcd") == list(single.values())
    assert got["token_ids"] == [single.get(entry, entry) for entry in expected]
    assert got["token_offsets"] == [
        ["abcd".index(entry), "abcd".index(entry) + 1] if entry in single else [0, 0] for entry in expected
    ]


def test_truncation_refused() -> None:
    error = refused(chat, renderer(), truncate_prompt_tokens=1025)
    assert error["param"] == "truncate_prompt_tokens"
    assert "truncate_prompt_tokens=1025 cannot be greater than max_model_len = 1024" in error["message"]
    assert "No token_ids rendered" in refused(chat, renderer(), truncate_prompt_tokens=0)["message"]
    assert refused(chat, renderer(), truncate_prompt_tokens=-2)["param"] == "body.truncate_prompt_tokens"


# ------------------------------------------------------------------------------------------------ ids of a caller


@pytest.mark.parametrize(
    ("body", "param", "kind", "says"),
    [
        ({"prompt": [-1]}, "body.prompt.0", "Bad Request", "prompt[0]: token id -1"),
        ({"prompt": [5, -7]}, "body.prompt.1", "Bad Request", "prompt[1]: token id -7"),
        ({"prompt": [[1], [2, -1]]}, "body.prompt.1.1", "Bad Request", "prompt[1][1]: token id -1"),
        ({"prompt": [448]}, "prompt", "BadRequestError", "Token id 448 is out of vocabulary: prompt[0]"),
        ({"prompt": [[1], [447, 449]]}, "prompt", "BadRequestError", "449 is out of vocabulary: prompt[1][1]"),
        ({"prompt": [9007199254740993]}, "prompt", "BadRequestError", "9007199254740993"),
        ({"prompt": [2**70]}, "prompt", "BadRequestError", str(2**70)),
        ({"prompt": []}, "prompt", "BadRequestError", "at least one prompt: prompt is []"),
        ({"prompt": [[]]}, "prompt", "BadRequestError", "No token_ids rendered: prompt[0]"),
        ({"prompt": [[1], []]}, "prompt", "BadRequestError", "No token_ids rendered: prompt[1]"),
        ({"prompt": [""]}, "prompt", "BadRequestError", "No token_ids rendered: prompt[0]"),
        ({"prompt": ""}, "prompt", "BadRequestError", "must be provided and non-empty. (parameter=prompt)"),
        ({}, "prompt", "BadRequestError", "must be provided and non-empty. (parameter=prompt)"),
        ({"prompt": ["a", [1]]}, "body.prompt.1", "Bad Request", "prompt[1] is a list"),
        ({"prompt": ["a", 5]}, "body.prompt.1", "Bad Request", "prompt[1] is 5"),
        ({"prompt": [[1], "a"]}, "body.prompt.1", "Bad Request", "prompt[1] is 'a'"),
        ({"prompt": [[1], ["a"]]}, "body.prompt.1.0", "Bad Request", "prompt[1][0]"),
        ({"prompt": [[[1]]]}, "body.prompt.0.0", "Bad Request", "prompt[0][0]"),
        ({"prompt": [1.5]}, "body.prompt.0", "Bad Request", "prompt[0] is 1.5"),
        ({"prompt": [True]}, "body.prompt.0", "Bad Request", "prompt[0] is True"),
        ({"prompt": [None]}, "body.prompt.0", "Bad Request", "prompt[0] is None"),
        ({"prompt": 5}, "body.prompt", "Bad Request", "not 5"),
        ({"prompt": {"a": 1}}, "body.prompt", "Bad Request", "not an object"),
        ({"prompt": ["a"] * 1025}, "prompt", "BadRequestError", "1025 exceeds the maximum allowed count of 1024"),
    ],
)
def test_prompts_refused(body: Any, param: str | None, kind: str, says: str) -> None:
    error = refused(text, renderer(), **body)
    assert says in error["message"]
    assert (error["param"], error["type"]) == (param, kind)


@pytest.mark.parametrize("call", [chat, text])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stop_token_ids": [448]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "body.stop_token_ids.0"),
        ({"logit_bias": {"448": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
        ({"allowed_token_ids": [448]}, "allowed_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"logprobs": 1, "logprob_token_ids": [448]}, "logprob_token_ids"),
        ({"logprobs": 1, "logprob_token_ids": [1] * 129}, "logprob_token_ids"),
    ],
)
def test_ids_in_fields_refused(call: Any, body: Any, param: str) -> None:
    if call is chat and "logprobs" in body:
        body = {**body, "logprobs": True}
    error = refused(call, renderer(), **({"prompt": "a"} if call is text else {}), **body)
    assert error["param"] == param
    assert param.removeprefix("body.").partition(".")[0] in error["message"]


def test_public_cases_of_ids_that_were_not_checked() -> None:
    named = {"stop_token_ids": "999999", "logit_bias": "777777", "allowed_token_ids": "49152"}
    for body in bug_case("F04")["input"]["requests"]:
        error = refused(text, renderer(vocab_size=49152), **{"prompt": "a"} | body)
        field = next(iter(body))
        assert field in error["message"]
        assert named.get(field, "") in error["message"]


def test_an_error_does_not_repeat_a_long_list() -> None:
    error = refused(chat, renderer(), stop_token_ids=[*range(448, 5000)])
    assert len(error["message"]) < 400
    assert "4552 in all" in error["message"]


# ------------------------------------------------------------------------------------------------- no template


def test_a_model_without_a_template_serves_completions() -> None:
    assert "--chat-template" in bug_case("E13")["expected"]["chat_render"]
    model = renderer(template=None)
    error = refused(chat, model)
    assert "--chat-template" in error["message"]
    assert "--chat-template" in refused(tokenize, model, messages=HI)["message"]
    assert text(model, prompt="Hello")[0]["token_ids"] == byte_level().encode("Hello")
    assert tokenize(model, prompt="Hello")["tokens"] == byte_level().encode("Hello")
    assert chat(model, kv_transfer_params={"prompt_token_ids": [5]})["token_ids"] == [5]
