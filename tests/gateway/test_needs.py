"""What a request needs of an engine: done without, done otherwise, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.server.tiny_model import write_tiny_model

from derender.engines.base import Capabilities
from derender.gateway.needs import choices_at_once, fitted, split_choices
from derender.model import Model, ModelSettings
from derender.protocol.errors import BadRequest
from derender.protocol.generate import SamplingParams
from derender.server.operations import decode_chat, decode_completion

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
JSON_ONLY = Capabilities(structured_outputs=frozenset(("json", "json_object")), max_logprobs=5, max_n=1)
NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = str(write_tiny_model(Path(tmp_path_factory.mktemp("tiny")) / "tiny"))
    settings = ModelSettings(
        served_model_names=("tiny",), tool_call_parser="hermes", enable_auto_tool_choice=True, stop_strings="derender"
    )
    return Model.load(path, settings=settings)


def chat(model: Model, able: Capabilities, *, unguided: bool = False, **fields: Any) -> SamplingParams:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, **fields}
    asked = decode_chat(json.dumps(body).encode())
    untagged = model.tool_constraints.untagged
    return fitted(model.render_chat(asked), able, asked=asked, untagged=untagged, unguided=unguided).sampling_params


def refused(model: Model, able: Capabilities, **fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        chat(model, able, **fields)
    return caught.value


def constraint(params: SamplingParams) -> dict[str, Any]:
    asked = params.structured_outputs
    return {} if not asked else {k: v for k in ("json", "structural_tag") if (v := getattr(asked, k)) is not None}


def test_one_call_at_most_needs_no_guidance(model: Model) -> None:
    fields = {"tools": [TOOL], "parallel_tool_calls": False}
    guided = Capabilities(structured_outputs=frozenset(("structural_tag",)))
    assert "structural_tag" in constraint(chat(model, guided, **fields))
    assert constraint(chat(model, Capabilities(), **fields)) == {}
    with_form = chat(model, JSON_ONLY, **fields, response_format=SCHEMA)
    assert constraint(with_form) == {"json": {"type": "object"}}


def test_demanded_calls_are_json_where_there_are_no_tags(model: Model) -> None:
    every = constraint(chat(model, JSON_ONLY, tools=[TOOL], tool_choice="required"))
    assert every["json"]["type"] == "array"
    one = constraint(chat(model, JSON_ONLY, tools=[TOOL], tool_choice=NAMED))
    assert one["json"]["properties"] == {"a": {}}
    error = refused(model, Capabilities(), tools=[TOOL], tool_choice="required")
    assert error.param == "structured_outputs"
    assert constraint(chat(model, Capabilities(), tools=[TOOL], tool_choice="required", unguided=True)) == {}


def test_strict_tools_need_tags(model: Model) -> None:
    assert "strict tools" in refused(model, JSON_ONLY, tools=[STRICT]).message
    assert constraint(chat(model, JSON_ONLY, tools=[STRICT], unguided=True)) == {}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": SCHEMA}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"logprobs": True, "top_logprobs": 6}, "logprobs"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_by_name(model: Model, fields: dict[str, Any], param: str) -> None:
    error = refused(model, Capabilities(max_logprobs=5), **fields)
    assert (error.status, error.param) == (400, param)
    assert param in error.message


def test_echo_with_logprobs_is_refused_as_that(model: Model) -> None:
    asked = decode_completion(b'{"prompt": "hi", "echo": true, "logprobs": 1, "max_tokens": 5}')
    [request] = model.render_completions(asked)
    with pytest.raises(BadRequest) as caught:
        fitted(request, JSON_ONLY, asked=asked, untagged=model.tool_constraints.untagged, unguided=False)
    assert caught.value.param == "echo"


def test_choices_are_asked_for_apart_with_seeds_of_their_own() -> None:
    assert [choices_at_once(n, able) for n, able in ((5, JSON_ONLY), (5, Capabilities()))] == [1, 5]
    params = SamplingParams(n=3, seed=7, max_tokens=2)
    assert [split_choices(params, first=n, count=1).seed for n in range(3)] == [7, 8, 9]
    assert split_choices(SamplingParams(n=3), first=2, count=1) == SamplingParams(n=1)
