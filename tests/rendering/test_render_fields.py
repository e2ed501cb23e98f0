"""No field of a request is dropped in silence: it changes what is rendered, is refused, or is listed with a reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.rendering.helpers import HI, TOOLS, chat, renderer, text, with_bos

from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.completions import CompletionRequest
from derender.protocol.errors import BadRequest
from derender.rendering import NO_EFFECT

TEMPLATE = (
    "{{ messages[0].content }}{{ documents }}{{ enable_thinking }}{{ reasoning_effort }}"
    "{% if add_generation_prompt %}:{% endif %}"
)
COMMON: dict[str, Any] = {
    "model": "m", "frequency_penalty": 1.0, "logit_bias": {"1": 1.0}, "logprobs": 1, "max_tokens": 5, "n": 2,
    "presence_penalty": 1.0, "response_format": {"type": "json_object"}, "seed": 1, "stop": "x", "stream": True,
    "stream_options": {"include_usage": True}, "temperature": 0.5, "top_p": 0.5, "user": "u", "use_beam_search": True,
    "top_k": 3, "min_p": 0.5, "repetition_penalty": 1.5, "watermarking": True, "length_penalty": 2.0,
    "stop_token_ids": [1], "include_stop_str_in_output": True, "ignore_eos": True, "min_tokens": 1,
    "skip_special_tokens": False, "spaces_between_special_tokens": False, "truncate_prompt_tokens": 1,
    "truncation_side": "right", "prompt_logprobs": 1, "logprob_token_ids": [1], "allowed_token_ids": [1],
    "bad_words": ["x"], "echo": True, "structured_outputs": {"regex": "x"}, "priority": 1, "request_id": "other",
    "session_id": "s", "return_tokens_as_token_ids": True, "return_token_ids": True, "routed_experts_prompt_start": 1,
    "return_token_offsets": True,
    "return_block_hashes": True, "mm_payload": "none", "return_mm_kwargs": False, "cache_salt": "s",
    "kv_transfer_params": {"a": 1}, "ec_transfer_params": {"a": 1}, "vllm_xargs": {"a": 1},
    "repetition_detection": {"max_pattern_size": 2, "min_count": 2}, "stream_interval": 2, "thinking_token_budget": 5,
}  # fmt: skip
CHAT: dict[str, Any] = COMMON | {
    "messages": [{"role": "user", "content": "other"}], "logprobs": True, "top_logprobs": 2, "max_completion_tokens": 5,
    "tools": TOOLS, "tool_choice": "zzz", "reasoning_effort": "high", "include_reasoning": False,
    "parallel_tool_calls": False, "add_generation_prompt": False, "continue_final_message": True,
    "add_special_tokens": True, "documents": [{"text": "x"}], "chat_template": "x",
    "chat_template_kwargs": {"enable_thinking": True}, "media_io_kwargs": {"image": {}},
    "mm_processor_kwargs": {"a": 1}, "return_prompt_text": True,
    "return_message_spans": True, "previous_token_ids": [5], "keep_previous_reasoning": True,
    "return_loss_mask": True,
}  # fmt: skip
TEXT: dict[str, Any] = COMMON | {
    "prompt": "other", "suffix": "x", "prompt_embeds": "AA", "add_special_tokens": False,
}  # fmt: skip
# Fields that say something only beside another one.
BESIDE: dict[str, Any] = {
    "stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}, "logprob_token_ids": {"logprobs": True},
    "truncation_side": {"truncate_prompt_tokens": 1},
}  # fmt: skip


def outcome(call: Any, **body: Any) -> Any:
    model = renderer(tokenizer=with_bos(), template=TEMPLATE)
    try:
        return call(model, **body)
    except BadRequest as error:
        return error.message


@pytest.mark.parametrize("field", [field.name for field in msgspec.structs.fields(ChatCompletionRequest)])
def test_fields_of_chats(field: str) -> None:
    beside = BESIDE.get(field, {})
    base = {"messages": HI, "request_id": "r", **beside}
    same = outcome(chat, **base) == outcome(chat, **base | {field: CHAT[field]})
    assert same is (field in NO_EFFECT)


@pytest.mark.parametrize("field", [field.name for field in msgspec.structs.fields(CompletionRequest)])
def test_fields_of_completions(field: str) -> None:
    beside = BESIDE.get(field, {}) | ({"logprobs": 1} if field in ("echo", "logprob_token_ids") else {})
    base = {"prompt": "Hello there", "request_id": "r", **beside}
    same = outcome(text, **base) == outcome(text, **base | {field: TEXT[field]})
    assert same is (field in NO_EFFECT)


def test_the_table_has_no_field_that_is_not_there() -> None:
    names = {f.name for kind in (ChatCompletionRequest, CompletionRequest) for f in msgspec.structs.fields(kind)}
    assert NO_EFFECT.keys() <= names
    assert all(len(reason) > 20 for reason in NO_EFFECT.values())


def test_the_tokenizers_own_end_is_sent_where_the_configuration_lacks_it() -> None:
    """A generate server has no tokenizer: it knows only the ends that the model's configuration names."""
    small = renderer(end_id=2, sampling_defaults={"stop_token_ids": [0]})
    assert chat(small)["sampling_params"]["stop_token_ids"] == [0, 2]
    assert chat(small, stop_token_ids=[7, 2])["sampling_params"]["stop_token_ids"] == [7, 2, 0]
    assert chat(small, ignore_eos=True)["sampling_params"]["stop_token_ids"] == [0]
