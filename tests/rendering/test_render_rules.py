"""Rules of requests: what does not go together, and in which words that is said."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rendering.helpers import HI, NAMED, TOOLS, chat, refused, renderer, text, tokenize
from tests.vocabularies import byte_level

IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]

# body, param, ending of the message; every type is BadRequestError
BOTH: list[tuple[dict[str, Any], str | None, str]] = [
    ({"temperature": 3}, "temperature", "temperature must be in [0, 2], got 3.0. (parameter=temperature, value=3.0)"),
    ({"temperature": -1}, "temperature",
     "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)"),
    ({"top_p": 0}, "top_p", "top_p must be in (0, 1], got 0.0. (parameter=top_p, value=0.0)"),
    ({"top_p": 1.5}, "top_p", "top_p must be in (0, 1], got 1.5. (parameter=top_p, value=1.5)"),
    ({"top_k": -2}, "top_k", "top_k must be 0 (disable), or at least 1, got -2."),
    ({"min_p": 2}, "min_p", "min_p must be in [0, 1], got 2.0."),
    ({"presence_penalty": 9}, "presence_penalty", "presence_penalty must be in [-2, 2], got 9.0."),
    ({"frequency_penalty": -9}, "frequency_penalty", "frequency_penalty must be in [-2, 2], got -9.0."),
    ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty must be greater than zero, got 0.0."),
    ({"n": 0}, "n", "n must be at least 1, got 0."),
    ({"n": 20000}, "n", "n must be at most 16384, got 20000. To increase this limit, set the VLLM_MAX_N_SEQUENCES "
     "environment variable."),
    ({"n": 2, "temperature": 0}, "n", "n must be 1 when using greedy sampling, got 2."),
    ({"stop": ""}, "stop", "stop cannot contain an empty string."),
    ({"stop": ["a", ""]}, "stop", "stop cannot contain an empty string."),
    ({"bad_words": ["a", ""]}, "bad_words", "bad_words cannot contain an empty string. Got bad_words=['a', '']"),
    ({"thinking_token_budget": -2}, "thinking_token_budget",
     "or -1 for unlimited. (parameter=thinking_token_budget, value=-2)"),
    ({"repetition_detection": {"max_pattern_size": -1}}, "repetition_detection",
     "Set both to 0 to disable repetitive pattern detection."),
    ({"repetition_detection": {"max_pattern_size": 1, "min_pattern_size": 2}}, "repetition_detection",
     "Set both to 0 to disable repetitive pattern detection."),
    ({"repetition_detection": {"max_pattern_size": 1, "min_count": 1}}, "repetition_detection",
     "set max_pattern_size to 0."),
    ({"cache_salt": "a/b"}, "cache_salt",
     "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL. "
     "(parameter=cache_salt)"),
    ({"cache_salt": ""}, "cache_salt",
     "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)"),
    ({"cache_salt": "a" * 129}, "cache_salt", "or NUL. (parameter=cache_salt)"),
    ({"stream_options": {"include_usage": True}}, "stream_options",
     "Stream options can only be defined when `stream=True`. (parameter=stream_options)"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs",
     "`prompt_logprobs` are not available when `stream=True`. (parameter=prompt_logprobs)"),
    ({"prompt_logprobs": -2}, "prompt_logprobs",
     "`prompt_logprobs` must be a positive value or -1. (parameter=prompt_logprobs, value=-2)"),
    ({"prompt_logprobs": 21}, "prompt_logprobs",
     "Requested prompt logprobs of 21, which is greater than max allowed: 20 (parameter=prompt_logprobs, value=21)"),
    ({"use_beam_search": True}, "use_beam_search", "Beam search is not supported by the render endpoint"),
    ({"vllm_xargs": {"a": 2**64}}, "extra_args",
     "extra_args integers must be between -2**63 and 2**64 - 1. (parameter=extra_args)"),
    ({"kv_transfer_params": {"a": [{"b": -(2**63) - 1}]}}, "extra_args", "(parameter=extra_args)"),
]  # fmt: skip

CHAT: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": []}, "messages",
     "Cannot apply chat template to an empty conversation. Provide at least one message."),
    ({"top_logprobs": 2}, "top_logprobs",
     "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)"),
    ({"logprobs": True, "top_logprobs": -2}, "top_logprobs",
     "`top_logprobs` must be a positive value or -1. (parameter=top_logprobs, value=-2)"),
    ({"logprobs": True, "top_logprobs": 21}, "logprobs",
     "Requested sample logprobs of 21, which is greater than max allowed: 20 (parameter=logprobs, value=21)"),
    ({"logprob_token_ids": [1]}, "logprob_token_ids",
     "when using `logprob_token_ids`, `logprobs` must be set to true. (parameter=logprob_token_ids)"),
    ({"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs",
     "Start the server with --trust-request-mm-kwargs only when clients are trusted. (parameter=mm_processor_kwargs)"),
    ({"media_io_kwargs": {"image": {}}}, "media_io_kwargs", "(parameter=media_io_kwargs)"),
    ({"tools": []}, "tools",
     "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely. "
     "(parameter=tools)"),
    ({"tool_choice": "auto"}, "tool_choice", "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)"),
    ({"tool_choice": "zzz"}, "tool_choice", "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)"),
    ({"tools": TOOLS, "tool_choice": "zzz"}, "tool_choice",
     'Invalid value for `tool_choice`: zzz! Only named tools, "none", "auto" or "required" are supported. '
     "(parameter=tool_choice)"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "zz"}}}, "tool_choice",
     "The tool specified in `tool_choice` does not match any of the specified `tools` (parameter=tool_choice)"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": ""}}}, "tool_choice.function.name",
     "(parameter=tool_choice.function.name)"),
    ({"tools": TOOLS}, "tool_choice",
     '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
    ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice",
     'tool_choice="required" requires --tool-call-parser to be set'),
    ({"tools": TOOLS, "tool_choice": NAMED}, "tool_choice",
     'tool_choice=function "f" requires --tool-call-parser to be set'),
]  # fmt: skip

TEXT: list[tuple[dict[str, Any], str | None, str]] = [
    ({"logprobs": -2}, "logprobs", "`logprobs` must be a positive value or -1. (parameter=logprobs, value=-2)"),
    ({"logprobs": 21}, "logprobs", "is greater than max allowed: 20 (parameter=logprobs, value=21)"),
    ({"echo": True, "logprobs": 21}, "logprobs", "(parameter=logprobs, value=21)"),
    ({"logprob_token_ids": [1]}, "logprob_token_ids",
     "when using `logprob_token_ids`, `logprobs` must be set. (parameter=logprob_token_ids)"),
    ({"logprob_token_ids": [1], "logprobs": 1, "echo": True, "max_tokens": 0}, "logprob_token_ids",
     "because no output tokens are generated. (parameter=logprob_token_ids)"),
    ({"suffix": "b"}, "suffix", "suffix is only supported for models with FIM completion rendering"),
    ({"suffix": "b", "prompt": ["a"]}, "suffix", "suffix is only supported for models with FIM completion rendering"),
    ({"suffix": "b", "prompt": [1]}, "suffix", "suffix requires text prompt input for FIM completion rendering"),
    ({"suffix": "b", "echo": True}, "suffix", "Echo is unsupported with suffix."),
    ({"suffix": "b", "truncate_prompt_tokens": 3}, "suffix", "suffix is not supported with truncate_prompt_tokens"),
    ({"suffix": "b", "prompt_embeds": "AA"}, "suffix", "suffix is not supported with prompt_embeds"),
    ({"prompt_embeds": "AA"}, "prompt_embeds",
     "You must set `--enable-prompt-embeds` to input `prompt_embeds`. (parameter=prompt_embeds)"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param", "says"), BOTH + CHAT)
def test_chats_refused(body: dict[str, Any], param: str | None, says: str) -> None:
    error = refused(chat, renderer(), **body)
    assert error["message"].endswith(says)
    assert (error["param"], error["type"]) == (param, "BadRequestError")


@pytest.mark.parametrize(("body", "param", "says"), BOTH + TEXT)
def test_completions_refused(body: dict[str, Any], param: str | None, says: str) -> None:
    error = refused(text, renderer(), **{"prompt": "a"} | body)
    assert error["message"].endswith(says)
    assert (error["param"], error["type"]) == (param, "BadRequestError")


def test_too_many_stop_strings_are_a_wrong_body() -> None:
    error = refused(chat, renderer(), stop=["a", "b", "c", "d", "e"])
    assert (error["type"], error["param"]) == ("Bad Request", "body.stop")


@pytest.mark.parametrize(
    "body",
    [
        {"cache_salt": "a" * 128},
        {"stream_options": {}},
        {"stream_options": None},
        {"stream": True, "prompt_logprobs": 0},
        {"mm_processor_kwargs": {}, "media_io_kwargs": {}},
        {"tools": None, "tool_choice": None},
        {"tools": None, "tool_choice": "none"},
        {"tools": TOOLS, "tool_choice": None},
        {"repetition_detection": {}},
        {"kv_transfer_params": {"a": 2**64 - 1, "b": -(2**63)}},
        {"unknown": {"field": 1}},
        {"max_tokens": 1, "min_tokens": 1},
    ],
)
def test_chats_that_are_fine(body: dict[str, Any]) -> None:
    assert chat(renderer(), **body)["token_ids"]


def test_logprobs_are_bounded_by_the_models_limit() -> None:
    assert chat(renderer(max_logprobs=40), logprobs=True, top_logprobs=40)["sampling_params"]["logprobs"] == 40
    assert chat(renderer(max_logprobs=-1), logprobs=True, top_logprobs=448)["sampling_params"]["logprobs"] == 448
    assert "449" in refused(chat, renderer(max_logprobs=-1), logprobs=True, top_logprobs=449)["message"]
    assert "of 1," in refused(chat, renderer(max_logprobs=0), logprobs=True, top_logprobs=1)["message"]


def test_tool_choice_needs_the_parser_that_finds_the_calls() -> None:
    both = renderer(has_tool_parser=True, auto_tool_choice=True)
    parser = renderer(has_tool_parser=True)
    assert chat(both, tools=TOOLS)["parse_context"]["tool_choice"] == "auto"
    assert chat(parser, tools=TOOLS, tool_choice="required")["parse_context"]["tool_choice"] == "required"
    assert chat(parser, tools=TOOLS, tool_choice=NAMED)["parse_context"]["tool_choice"] == NAMED
    assert "--enable-auto-tool-choice" in refused(chat, parser, tools=TOOLS)["message"]


def test_images_are_refused_by_name() -> None:
    assert refused(chat, renderer(), messages=IMAGE)["message"] == "small is not a multimodal model"
    reused = {"kv_transfer_params": {"prompt_token_ids": [5]}}
    assert refused(chat, renderer(), messages=IMAGE, **reused)["message"] == "small is not a multimodal model"


# ----------------------------------------------------------------------------------------------------- completions


def test_ids_of_several_prompts_are_numbered() -> None:
    assert [one["request_id"] for one in text(renderer(), prompt="a", request_id="r")] == ["cmpl-r"]
    assert [one["request_id"] for one in text(renderer(), prompt=["a"], request_id="r")] == ["cmpl-r"]
    got = text(renderer(), prompt=["a", "b"], request_id="r", header="h")
    assert [one["request_id"] for one in got] == ["cmpl-h-0", "cmpl-h-1"]
    assert [one["token_ids"] for one in got] == [byte_level().encode("a"), byte_level().encode("b")]
    assert len(text(renderer(), prompt=[5] * 1000)) == 1
    assert len(text(renderer(), prompt=["a"] * 1024)) == 1024


def test_a_completion_is_exactly_this() -> None:
    [got] = text(renderer(), prompt=[5, 6, 7], request_id="r", logprobs=2, echo=True)
    assert got == {
        "request_id": "cmpl-r",
        "token_ids": [5, 6, 7],
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": {
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_p": 1.0,
            "min_p": 0.0,
            "stop": [],
            "stop_token_ids": [],
            "max_tokens": 16,
            "logprobs": 2,
            "prompt_logprobs": 2,
            "bad_words": [],
        },
        "model": None,
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": None,
        "output_mode": "tokens",
        "stream": False,
        "stream_options": None,
        "cache_salt": None,
        "priority": 0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"logprobs": 0}, {"logprobs": 0}),
        ({"logprobs": -1}, {"logprobs": -1}),
        ({"logprobs": 1, "logprob_token_ids": [3]}, {"logprob_token_ids": [3]}),
        ({"echo": True}, {}),
        ({"echo": True, "logprobs": 3, "prompt_logprobs": 1}, {"logprobs": 3, "prompt_logprobs": 1}),
        ({"echo": None, "logprobs": 3}, {"logprobs": 3}),
    ],
)
def test_logprobs_of_completions(body: dict[str, Any], expected: dict[str, Any]) -> None:
    [got] = text(renderer(), prompt="a", **body)
    names = ("logprobs", "prompt_logprobs", "logprob_token_ids")
    assert {name: got["sampling_params"][name] for name in names if name in got["sampling_params"]} == expected


def test_completions_carry_what_chats_carry() -> None:
    got = text(
        renderer(), prompt=["a", "b"], kv_transfer_params={"a": 1}, ec_transfer_params={"b": 2}, stream=True,
        stream_options={"include_usage": True}, cache_salt="s", priority=4, return_token_ids=True, model="m",
        seed=5, response_format={"type": "json_object"}, prompt_embeds=[],
    )  # fmt: skip
    for one in got:
        assert one["kv_transfer_params"] == one["sampling_params"]["extra_args"]["kv_transfer_params"] == {"a": 1}
        assert one["ec_transfer_params"] == one["sampling_params"]["extra_args"]["ec_transfer_params"] == {"b": 2}
        assert (one["stream"], one["cache_salt"], one["priority"], one["model"]) == (True, "s", 4, "m")
        assert one["stream_options"]["include_usage"] is True
        assert one["return_token_ids"] is True
        assert one["sampling_params"]["seed"] == 5
        assert one["sampling_params"]["structured_outputs"]["json_object"] is True


# -------------------------------------------------------------------------------------------------------- tokenize


def test_tokenize_a_text() -> None:
    ids = byte_level().encode("Hello")
    assert tokenize(renderer(), prompt="Hello") == {
        "count": len(ids), "max_model_len": 1024, "tokens": ids, "token_strs": None,
    }  # fmt: skip
    strings = tokenize(renderer(), prompt=" a<|im_end|>", return_token_strs=True)["token_strs"]
    assert "".join(strings) == "\u0120a<|im_end|>"
    assert tokenize(renderer(), prompt="")["tokens"] == []
    assert tokenize(renderer(), prompt="a " * 5000)["count"] > 1024


def test_tokenize_a_chat() -> None:
    rendered = chat(renderer())["token_ids"]
    assert tokenize(renderer(), messages=HI)["tokens"] == rendered
    assert tokenize(renderer(), messages=HI, add_generation_prompt=False)["tokens"] == rendered[: len(
        byte_level().encode("<|im_start|>user\nHello<|im_end|>\n")
    )]  # fmt: skip
    assert tokenize(renderer(), messages=HI, tools=[])["tokens"] == rendered
    assert tokenize(renderer(), messages=HI, tools=TOOLS)["count"] > len(rendered)


def test_tokenize_refused() -> None:
    assert refused(tokenize, renderer())["param"] == "body.prompt"
    assert refused(tokenize, renderer(), prompt="a", messages=HI)["param"] == "prompt"
    assert "empty conversation" in refused(tokenize, renderer(), messages=[])["message"]
    both = {"messages": HI, "continue_final_message": True}
    assert "Cannot set both" in refused(tokenize, renderer(), **both)["message"]
    assert "--trust-request-chat-template" in refused(tokenize, renderer(), messages=HI, chat_template="x")["message"]


def test_an_id_that_is_long_is_refused() -> None:
    """It comes back in each chunk of a stream."""
    assert refused(chat, renderer(), request_id="x" * 513)["param"] == "request_id"
    assert chat(renderer(), request_id="x" * 512)["request_id"] == "chatcmpl-" + "x" * 512
