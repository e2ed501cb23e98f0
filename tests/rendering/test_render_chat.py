"""A chat's way to the wire: ids, parameters, template arguments, what goes beside them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.rendering.helpers import END, HI, NAMED, PLAIN, TOOLS, chat, refused, renderer, with_bos
from tests.vocabularies import byte_level

from derender.template.source import TemplateSet, Vocabulary

DEFAULTS = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "stop": [],
    "stop_token_ids": [],
    "bad_words": [],
}
GREEDY = {k: v for k, v in DEFAULTS.items() if k not in ("top_p", "min_p")}
PROMPT = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


def test_a_plain_chat_is_exactly_this() -> None:
    ids = byte_level().encode(PROMPT)
    assert chat(renderer(), request_id="r", model="m") == {
        "request_id": "chatcmpl-r",
        "token_ids": ids,
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": DEFAULTS | {"max_tokens": 1024 - len(ids)},
        "model": "m",
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
        "parse_context": {
            "tools": None,
            "tool_choice": "none",
            "parallel_tool_calls": True,
            "include_reasoning": True,
            "chat_template_kwargs": {"add_generation_prompt": True, "continue_final_message": False},
            "history_tool_call_cnt": 0,
        },
    }


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125},
         {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125}),
        ({"temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.5}, {"temperature": 0.0, "top_p": None}),
        ({"temperature": 0.001}, {"temperature": 0.01}),
        ({"top_k": -1}, {"top_k": -1}),
        ({"top_k": 0}, {}),
        ({"presence_penalty": 2, "frequency_penalty": -2, "repetition_penalty": 0.5},
         {"presence_penalty": 2.0, "frequency_penalty": -2.0, "repetition_penalty": 0.5}),
        ({"n": 3}, {"n": 3}),
        ({"n": None}, {}),
        ({"seed": 0}, {"seed": 0}),
        ({"seed": -1}, {}),
        ({"seed": -(2**63)}, {"seed": -(2**63)}),
        ({"stop": "END"}, {"stop": ["END"]}),
        ({"stop": ["a", "b", "c", "d"]}, {"stop": ["a", "b", "c", "d"]}),
        ({"stop": []}, {}),
        ({"stop_token_ids": [5, 3, 5]}, {"stop_token_ids": [5, 3]}),
        ({"bad_words": ["x", "y", "x"]}, {"bad_words": ["x", "y"]}),
        ({"logit_bias": {"5": 1.5, " 7": -1000, "447": 1000}}, {"logit_bias": {"5": 1.5, "7": -100.0, "447": 100.0}}),
        ({"allowed_token_ids": [0, 447]}, {"allowed_token_ids": [0, 447]}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 20}, {"logprobs": 20}),
        ({"logprobs": True, "top_logprobs": None}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": -1}, {"logprobs": -1}),
        ({"logprobs": False}, {}),
        ({"logprobs": True, "top_logprobs": 3, "logprob_token_ids": [1, 2]}, {"logprob_token_ids": [1, 2]}),
        ({"prompt_logprobs": 0}, {"prompt_logprobs": 0}),
        ({"echo": True}, {"prompt_logprobs": 0}),
        ({"echo": True, "logprobs": True, "top_logprobs": 2}, {"logprobs": 2, "prompt_logprobs": 2}),
        ({"echo": True, "prompt_logprobs": 1}, {"prompt_logprobs": 1}),
        ({"max_tokens": 16}, {"max_tokens": 16}),
        ({"max_tokens": 9, "max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 7, "max_completion_tokens": None}, {"max_tokens": 7}),
        ({"min_tokens": 2}, {"min_tokens": 2}),
        ({"ignore_eos": True}, {"ignore_eos": True}),
        ({"skip_special_tokens": False, "spaces_between_special_tokens": False},
         {"skip_special_tokens": False, "spaces_between_special_tokens": False}),
        ({"include_stop_str_in_output": True}, {"include_stop_str_in_output": True}),
        ({"watermarking": False}, {"watermarking": False}),
        ({"stream_interval": 5, "stream": True}, {"stream_interval": 5}),
        ({"routed_experts_prompt_start": 3}, {"routed_experts_prompt_start": 3}),
        ({"thinking_token_budget": 0}, {"thinking_token_budget": 0}),
        ({"thinking_token_budget": -1}, {}),
        ({"repetition_detection": {"max_pattern_size": 4, "min_count": 3}},
         {"repetition_detection": {"max_pattern_size": 4, "min_pattern_size": 0, "min_count": 3}}),
        ({"vllm_xargs": {"a": 1, "b": [1, "x"]}}, {"extra_args": {"a": 1, "b": [1, "x"]}}),
        ({"vllm_xargs": {}}, {}),
    ],
)  # fmt: skip
def test_sampling_parameters(body: dict[str, Any], expected: dict[str, Any]) -> None:
    params = chat(renderer(), **body)["sampling_params"]
    if "max_tokens" not in expected:
        assert params.pop("max_tokens") == 1024 - len(byte_level().encode(PROMPT))
    base = GREEDY if body.get("temperature") == 0 else DEFAULTS
    assert params == base | {k: v for k, v in expected.items() if v is not None}


def test_the_models_own_defaults_stand_where_the_request_says_nothing() -> None:
    defaults = {
        "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1, "max_tokens": 50,
        "stop_token_ids": [9, 8],
    }  # fmt: skip
    model = renderer(sampling_defaults=defaults)
    params = chat(model)["sampling_params"]
    assert params == DEFAULTS | defaults
    params = chat(model, temperature=0.5, top_k=0, max_tokens=100, stop_token_ids=[8, 1])["sampling_params"]
    assert params["temperature"] == 0.5
    assert "top_k" not in params
    assert params["max_tokens"] == 100
    assert params["stop_token_ids"] == [8, 1, 9]


def test_stop_strings_stay_here_where_derender_looks_for_them() -> None:
    body: dict[str, Any] = {"stop": ["a"], "include_stop_str_in_output": True}
    assert chat(renderer(stop_strings="derender"), **body)["sampling_params"]["stop"] == []
    assert chat(renderer(stop_strings="engine"), **body)["sampling_params"]["stop"] == ["a"]
    assert refused(chat, renderer(stop_strings="derender"), stop=["a"] * 5)["param"] == "body.stop"


def test_transfer_parameters_stand_in_both_places() -> None:
    got = chat(renderer(), kv_transfer_params={"a": 1}, ec_transfer_params={"b": 2}, vllm_xargs={"x": "y"})
    assert got["kv_transfer_params"] == {"a": 1}
    assert got["ec_transfer_params"] == {"b": 2}
    assert got["sampling_params"]["extra_args"] == {
        "x": "y",
        "kv_transfer_params": {"a": 1},
        "ec_transfer_params": {"b": 2},
    }
    got = chat(renderer(), kv_transfer_params={}, ec_transfer_params={})
    assert (got["kv_transfer_params"], got["ec_transfer_params"]) == (None, None)
    assert "extra_args" not in got["sampling_params"]


@pytest.mark.parametrize(
    ("body", "ids", "kv"),
    [
        ({"kv_transfer_params": {"prompt_token_ids": [5, 6], "x": 1}}, [5, 6], {"x": 1}),
        ({"kv_transfer_params": {"prompt_token_ids": [5, 6]}, "return_token_offsets": True}, [5, 6], None),
        ({"kv_transfer_params": {"prompt_token_ids": None, "x": 1}}, None, {"x": 1}),
        ({"kv_transfer_params": {"prompt_token_ids": [5]}, "echo": True}, None, None),
    ],
)
def test_prompt_ids_of_the_prefill_stage_are_used_again(body: Any, ids: list[int] | None, kv: Any) -> None:
    got = chat(renderer(), **body)
    wanted = byte_level().encode(PROMPT) if ids is None else ids
    assert got["token_ids"] == wanted
    assert got["token_offsets"] is None
    assert got["kv_transfer_params"] == kv
    assert got["sampling_params"].get("extra_args", {}).get("kv_transfer_params") == kv
    assert got["sampling_params"]["max_tokens"] == 1024 - len(wanted)


@pytest.mark.parametrize("ids", [[], "x", [1.5], [True], [-1], {"a": 1}, 5])
def test_prompt_ids_to_use_again_must_be_ids(ids: Any) -> None:
    error = refused(chat, renderer(), kv_transfer_params={"prompt_token_ids": ids})
    assert error["param"] == "kv_transfer_params.prompt_token_ids"
    assert "non-empty list of non-negative integers" in error["message"]


def test_prompt_ids_to_use_again_are_held_to_vocabulary_and_context() -> None:
    error = refused(chat, renderer(), kv_transfer_params={"prompt_token_ids": [5, 448]})
    assert "448" in error["message"]
    assert error["param"] == "kv_transfer_params.prompt_token_ids"
    assert "1024" in refused(chat, renderer(), kv_transfer_params={"prompt_token_ids": [5] * 1025})["message"]
    assert refused(chat, renderer(), kv_transfer_params={"prompt_token_ids": [5] * 1024})["param"] == "max_tokens"


def test_the_requests_dict_is_left_as_it_was() -> None:
    from derender.protocol.chat import ChatCompletionRequest

    request = ChatCompletionRequest(messages=HI, kv_transfer_params={"prompt_token_ids": [5], "x": 1})
    for _ in range(2):
        assert renderer().chat(request).token_ids == [5]
    assert request.kv_transfer_params == {"prompt_token_ids": [5], "x": 1}


@pytest.mark.parametrize(
    ("header", "body", "expected"),
    [("h", {"request_id": "b"}, "h"), (None, {"request_id": "b"}, "b"), ("", {"request_id": "b"}, "")],
)
def test_request_ids(header: str | None, body: Any, expected: str) -> None:
    assert chat(renderer(), header=header, **body)["request_id"] == f"chatcmpl-{expected}"


def test_made_up_request_ids_differ() -> None:
    made = {chat(renderer())["request_id"] for _ in range(50)}
    assert len(made) == 50
    assert all(re.fullmatch("chatcmpl-[0-9a-f]{16}", request_id) for request_id in made)


def test_stream_salt_priority_and_token_ids_are_copied() -> None:
    got = chat(
        renderer(), stream=True, stream_options={"include_usage": True}, cache_salt="abc", priority=-3,
        return_token_ids=True,
    )  # fmt: skip
    assert got["stream"] is True
    assert got["stream_options"] == {"include_usage": True, "continuous_usage_stats": False}
    assert (got["cache_salt"], got["priority"], got["return_token_ids"]) == ("abc", -3, True)
    assert chat(renderer(), stream=None, stream_options={})["stream_options"] is None


def test_the_prompts_text_is_given_when_asked() -> None:
    assert chat(renderer(), return_prompt_text=True)["prompt_text"] == PROMPT
    assert "prompt_text" not in chat(renderer())
    reused = chat(renderer(), return_prompt_text=True, kv_transfer_params={"prompt_token_ids": [1, 2]})
    assert reused["prompt_text"] == "<|im_start|><|im_end|>"


def test_offsets_point_into_the_prompts_text() -> None:
    got = chat(renderer(), return_token_offsets=True, return_prompt_text=True)
    spans = got["token_offsets"]
    assert len(spans) == len(got["token_ids"])
    assert [got["prompt_text"][a:b] for a, b in spans if b - a == len(END)] == [END]
    assert "".join(got["prompt_text"][a:b] for a, b in spans) == PROMPT


def test_a_template_that_writes_bos_gets_no_second_one() -> None:
    model = renderer(tokenizer=with_bos(), template="<|endoftext|>" + PLAIN)
    one = [0, *byte_level().encode("Hello"), 2]
    got = chat(model, add_special_tokens=True, return_token_offsets=True)
    assert got["token_ids"] == one
    assert got["token_offsets"][0] == [0, len("<|endoftext|>")]
    assert chat(model)["token_ids"] == one[:-1]
    assert chat(renderer(tokenizer=with_bos(), template=PLAIN), add_special_tokens=True)["token_ids"] == one


def test_tools_reach_the_template_as_vllm_dumps_them() -> None:
    tools = [
        {"function": {"name": "f"}},
        {"type": "function", "defer_loading": True, "extra": 1,
         "function": {"strict": False, "parameters": {"z": 1, "a": 2}, "name": "g", "description": "d"}},
        {"type": "function", "function": {"name": "h", "defer_loading": False}, "defer_loading": True},
    ]  # fmt: skip
    got = chat(renderer(template="{{ tools | tojson }}"), tools=tools, tool_choice="none", return_prompt_text=True)
    assert got["prompt_text"] == (
        '[{"type": "function", "function": {"name": "f", "description": null, "parameters": null}}, '
        '{"type": "function", "function": {"name": "g", "description": "d", "parameters": {"z": 1, "a": 2}, '
        '"strict": false, "defer_loading": true}, "defer_loading": true}, '
        '{"type": "function", "function": {"name": "h", "description": null, "parameters": null, '
        '"defer_loading": false}, "defer_loading": true}]'
    )
    assert got["parse_context"]["tools"][1]["function"]["strict"] is False


def test_tools_may_be_kept_from_the_template_where_none_may_be_called() -> None:
    body: dict[str, Any] = {"tools": TOOLS, "tool_choice": "none", "return_prompt_text": True}
    assert chat(renderer(), **body)["prompt_text"].startswith('[{"type"')
    got = chat(renderer(exclude_tools_when_tool_choice_none=True), **body)
    assert got["prompt_text"] == PROMPT
    assert len(got["parse_context"]["tools"]) == 2


def test_parse_context_says_what_derender_needs() -> None:
    calls = [{"id": str(i), "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in range(2)]
    history = [*HI, {"role": "assistant", "content": None, "tool_calls": calls}, *HI,
               {"role": "assistant", "tool_calls": calls[:1]}, *HI]  # fmt: skip
    model = renderer(
        has_tool_parser=True, auto_tool_choice=True, default_chat_template_kwargs={"a": 1, "enable_thinking": True}
    )
    got = chat(
        model, messages=history, tools=TOOLS, tool_choice=NAMED, parallel_tool_calls=False, include_reasoning=False,
        chat_template_kwargs={"b": 2, "enable_thinking": False, "c": None, "d": "auto"}, reasoning_effort="high",
        add_generation_prompt=False,
    )  # fmt: skip
    context = got["parse_context"]
    assert [tool["function"]["name"] for tool in context.pop("tools")] == ["f", "g"]
    assert context == {
        "tool_choice": NAMED,
        "parallel_tool_calls": False,
        "include_reasoning": False,
        "chat_template_kwargs": {
            "a": 1, "b": 2, "enable_thinking": False, "reasoning_effort": "high", "add_generation_prompt": False,
            "continue_final_message": False,
        },
        "history_tool_call_cnt": 3,
    }  # fmt: skip
    assert got["reasoning_ended"] is True


def test_effort_switches_thinking_on_and_off() -> None:
    for effort, thinks in (("none", False), ("high", True)):
        got = chat(renderer(), reasoning_effort=effort, return_prompt_text=True)
        assert got["prompt_text"].endswith("<think>") is thinks
        assert got["parse_context"]["chat_template_kwargs"]["enable_thinking"] is thinks


def test_a_reasoning_parsers_arguments_are_the_prompts() -> None:
    got = chat(renderer(has_reasoning_parser=True), chat_template_kwargs={"enable_thinking": True})
    assert got["reasoning_parser_kwargs"] == {
        "chat_template_kwargs": {
            "enable_thinking": True,
            "add_generation_prompt": True,
            "continue_final_message": False,
        }
    }
    assert got["parse_context"]["chat_template_kwargs"] == got["reasoning_parser_kwargs"]["chat_template_kwargs"]


def test_the_final_message_can_be_continued() -> None:
    messages = [*HI, {"role": "assistant", "content": "The answer is "}]
    got = chat(
        renderer(), messages=messages, continue_final_message=True, add_generation_prompt=False, return_prompt_text=True
    )
    assert got["prompt_text"].endswith("<|im_start|>assistant\nThe answer is ")
    for extra in ({}, {"add_generation_prompt": True}):
        error = refused(chat, renderer(), messages=messages, continue_final_message=True, **extra)
        assert error["message"] == "Cannot set both `continue_final_message` and `add_generation_prompt` to True."


def test_documents_reach_the_template() -> None:
    model = renderer(template="{{ documents[0].text }}")
    assert chat(model, documents=[{"text": "abc"}], return_prompt_text=True)["prompt_text"] == "abc"


def test_a_template_in_the_request_needs_trust() -> None:
    for body, place in (
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template": ""}, "chat_template"),
    ):
        error = refused(chat, renderer(), **body)
        assert "--trust-request-chat-template" in error["message"]
        assert error["param"] == place


def test_a_trusted_template_is_used() -> None:
    model = renderer(trust_request_chat_template=True)
    got = chat(model, chat_template="{{ messages[0].content }}!{{ x }}", chat_template_kwargs={"x": 5},
               return_prompt_text=True)  # fmt: skip
    assert got["prompt_text"] == "Hello!5"
    assert "chat_template" not in got["parse_context"]["chat_template_kwargs"]
    assert chat(model, chat_template="", return_prompt_text=True)["prompt_text"] == PROMPT


def test_a_prompt_made_by_code_says_how_the_model_is_to_answer() -> None:
    vocabulary = Vocabulary(token_id=lambda token: 5, encode=byte_level().encode)
    templates = TemplateSet.of_model(None, templates=None, chat_template="kimi_k3", vocabulary=vocabulary, config={})
    to = renderer(templates=templates, max_model_len=4096, has_tool_parser=True)

    def prompt(**body: Any) -> str:
        text = chat(to, return_prompt_text=True, **body)["prompt_text"]
        assert isinstance(text, str)
        return text

    assert "tool_choice=required" in prompt(tools=TOOLS, tool_choice="required")
    assert "tool_choice=" not in prompt(tools=TOOLS, tool_choice=NAMED)
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    assert "`response_format=json_schema`" in prompt(response_format=schema)
    assert '{"type":"object"}' in prompt(response_format=schema).replace(" ", "")
    assert "response_format" not in prompt(response_format={"type": "text"})
    assert "tool_choice" not in prompt()


def test_a_role_whose_parts_would_come_out_as_a_list_gets_text() -> None:
    """Gemma 4's template loops over a user's content, and puts a system message's out as it is."""
    template = (
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'system' %}{{ m.content | trim }}"
        "{% elif m.content is string %}{{ m.content }}"
        "{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
    )
    to = renderer(template=template)
    parts = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]
    for content in ("Be\nbrief.", parts):
        for role in ("system", "developer"):
            messages = [{"role": role, "content": content}, {"role": "user", "content": "hi"}]
            assert chat(to, messages=messages, return_prompt_text=True)["prompt_text"] == "<system>Be\nbrief.<user>hi"
