"""Whatever a request says, it gives a GenerateRequest that reads back as itself, or a 400."""

from __future__ import annotations

import functools
import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.rendering.helpers import END, HI, NAMED, TOOLS, renderer, text, with_bos
from tests.vocabularies import byte_level

from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.codec import Decoder, encode
from derender.protocol.completions import CompletionRequest
from derender.protocol.errors import BadRequest, InvalidBody
from derender.protocol.generate import GenerateRequest
from derender.rendering import Renderer

_read = Decoder(GenerateRequest)
_readers = {ChatCompletionRequest: Decoder(ChatCompletionRequest), CompletionRequest: Decoder(CompletionRequest)}

small = st.integers(-3, 40)
numbers = st.one_of(small, st.sampled_from([0.0, 0.5, 1.0, 2.0, -2.0, 1e-9, 1e300, 2**31, 2**63, -(2**63), 2**70]))
words = st.sampled_from(["", "a", "Hello", "x\0", "\u65e5\u672c", END, "a" * 200])
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=4)),
    max_leaves=8,
)
ids = st.lists(st.one_of(small, st.sampled_from([447, 448, 2**63])), max_size=5)
likely: dict[str, st.SearchStrategy[Any]] = {
    "messages": st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "assistant"]), "content": json_values}),
        max_size=3,
    ),
    "prompt": st.one_of(words, st.lists(words, max_size=3), ids, st.lists(ids, max_size=3), json_values),
    "tools": st.sampled_from([None, [], TOOLS]),
    "tool_choice": st.sampled_from([None, "none", "auto", "required", "zzz", NAMED, {}]),
    "stop": st.one_of(st.none(), words, st.lists(words, max_size=6)),
    "stop_token_ids": ids, "allowed_token_ids": ids, "logprob_token_ids": ids,
    "logit_bias": st.dictionaries(st.sampled_from(["1", "447", "448", "x", "-1", " 1"]), numbers, max_size=3),
    "response_format": st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "json_object", "json_schema", "structural_tag"])},
        optional={"json_schema": st.just({"name": "n", "schema": {}}), "format": json_values},
    ),
    "structured_outputs": st.dictionaries(
        st.sampled_from(["json", "regex", "choice", "grammar", "json_object", "structural_tag"]),
        json_values,
        max_size=2,
    ),
    "kv_transfer_params": st.dictionaries(st.sampled_from(["prompt_token_ids", "a"]), st.one_of(ids, json_values)),
    "chat_template_kwargs": st.dictionaries(
        st.sampled_from(["enable_thinking", "messages", "tokenize", "chat_template", "x"]), json_values, max_size=2
    ),
}  # fmt: skip


def bodies(kind: type, **required: Any) -> st.SearchStrategy[dict[str, Any]]:
    anything = st.one_of(st.none(), st.booleans(), numbers, words, json_values)
    fields = {
        field.name: st.one_of(likely.get(field.name, numbers), anything) for field in msgspec.structs.fields(kind)
    }
    chosen = st.lists(st.sampled_from(sorted(fields)), max_size=4, unique=True)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({name: fields[name] for name in names})).map(
        lambda body: required | body
    )


@functools.cache
def models() -> tuple[Renderer, ...]:
    parsers: dict[str, Any] = {"has_tool_parser": True, "auto_tool_choice": True, "has_reasoning_parser": True}
    return (
        renderer(),
        renderer(tokenizer=with_bos(), max_model_len=8, stop_strings="derender", **parsers),
        renderer(template=None, max_tokens_over_room="refuse"),
    )


def render(kind: type, body: dict[str, Any]) -> None:
    for model in models():
        try:
            request = _readers[kind](json.dumps(body).encode())
            rendered: Any = model.chat(request) if kind is ChatCompletionRequest else model.completions(request)
        except (BadRequest, InvalidBody):
            continue
        for one in [rendered] if isinstance(rendered, GenerateRequest) else rendered:
            wire = encode(one)
            assert encode(_read(wire)) == wire
            assert 1 <= one.sampling_params.max_tokens <= model.model.max_model_len - len(one.token_ids)
            assert one.token_offsets is None or len(one.token_offsets) == len(one.token_ids)
            assert max(one.token_ids) < 448


@given(bodies(ChatCompletionRequest, messages=HI))
def test_any_chat(body: dict[str, Any]) -> None:
    render(ChatCompletionRequest, body)


@given(bodies(CompletionRequest, prompt="Hello"))
def test_any_completion(body: dict[str, Any]) -> None:
    render(CompletionRequest, body)


@given(
    st.text(alphabet=st.sampled_from("ab \u00fc\u65e5\U0001f60a\n"), max_size=60),
    st.integers(1, 30),
    st.sampled_from([None, "left", "right"]),
    st.booleans(),
)
def test_truncated_prompts_are_a_part_of_the_whole(prompt: str, limit: int, side: str | None, special: bool) -> None:
    model = renderer(tokenizer=with_bos() if special else byte_level())
    body: dict[str, Any] = {"prompt": ["x" + prompt], "return_token_offsets": True}
    [whole] = text(model, **body)
    [cut] = text(model, truncate_prompt_tokens=limit, truncation_side=side, **body)
    size = min(limit, len(whole["token_ids"]))
    assert len(cut["token_ids"]) == len(cut["token_offsets"]) == size
    pairs = [(i, tuple(span)) for i, span in zip(cut["token_ids"], cut["token_offsets"], strict=True)]
    whole_pairs = [(i, tuple(span)) for i, span in zip(whole["token_ids"], whole["token_offsets"], strict=True)]
    if side == "right":
        assert pairs == whole_pairs[:size]
    elif side == "left" or not special:
        assert pairs == whole_pairs[len(whole_pairs) - size :]
    else:
        assert all(pair in whole_pairs for pair in pairs)
        assert pairs[-1] == whole_pairs[-1]
        assert size < 2 or pairs[0] == whole_pairs[0]
