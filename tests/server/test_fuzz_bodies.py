"""Hostile bodies for every route: what is wrong gets a 400 that names the field, and nothing gets a 500.

Seeded and bounded; `DERENDER_FUZZ_BODIES=20` takes twenty times as many of what is drawn by chance.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from tests.server.asgi_client import JSON, Answer, call
from tests.server.hostile import (
    WRONG,
    Place,
    changed,
    fits,
    is_json,
    mutated,
    places,
    tree_changed,
    tree_places,
)
from tests.server.tiny_model import write_tiny_model

from derender.model import Model, ModelSettings
from derender.protocol.derender import DerenderedChatChunk
from derender.protocol.errors import MAX_MESSAGE, MAX_PARAM
from derender.registry import ModelRegistry
from derender.server.app import AppSettings, build_app
from derender.server.http import App
from derender.server.operations import OPERATIONS, Operation

TIMES = float(os.environ.get("DERENDER_FUZZ_BODIES", "1"))  # of what is drawn by chance
CHAT_RENDER, RENDER = "/v1/chat/completions/render", "/v1/completions/render"
CHAT_DERENDER, DERENDER = "/v1/chat/completions/derender", "/v1/completions/derender"
PATIENCE = 20.0  # seconds that one answer may take on a machine with much to do

HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {}}}}}]
ANSWER = {"request_id": "r", "choices": [{"index": 0, "token_ids": [97, 98], "finish_reason": "stop"}]}
BASES: dict[str, dict[str, Any]] = {
    "ChatCompletionRequest": {"messages": HI},
    "CompletionRequest": {"prompt": "hi"},
    "DerenderChatRequest": {"generate_response": ANSWER, "chat_request": {"messages": HI}},
    "DerenderChatStreamRequest": {"stream": True, "generate_chunk": ANSWER, "chat_request": {"messages": HI}},
    "DerenderCompletionRequest": {"generate_responses": [ANSWER]},
    "DerenderCompletionStreamRequest": {"stream": True, "generate_chunk": ANSWER},
    "TokenizeRequest": {"prompt": "hi"},
    "DetokenizeRequest": {"tokens": [97]},
}
KINDS = [(operation, number) for operation in OPERATIONS for number in range(len(operation.requests))]
NOT_FINITE = {"token_id": 97, "logprob": float("nan")}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> ModelRegistry:
    directory = str(write_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))
    settings = (
        ModelSettings(served_model_names=("plain",)),
        ModelSettings(served_model_names=("tolerant",), tolerate_unknown_ids=True, stop_strings="derender"),
        ModelSettings(
            served_model_names=("reading",),
            tool_call_parser="hermes",
            reasoning_parser="qwen3",
            enable_auto_tool_choice=True,
        ),
        ModelSettings(served_model_names=("trusting",), trust_request_chat_template=True),
    )
    return ModelRegistry([Model.load(directory, settings=one) for one in settings])


class Client:
    """Asks an application, and checks of every answer what holds for all."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()

    def ask(self, path: str, body: bytes | Any, *, parts: Sequence[bytes] = ()) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = [JSON, ("content-length", str(len(data)))]
        answer = self._loop.run_until_complete(
            asyncio.wait_for(call(self._app, "POST", path, parts=parts or [data], headers=headers), PATIENCE)
        )
        assert answer.complete
        assert answer.status in (200, 400, 404), (path, data[:400], answer.body[:400])
        if answer.status != 200:
            error = answer.error
            assert error["message"], (path, data[:400])
            assert len(error["message"]) <= MAX_MESSAGE + 1
            assert len(error["param"] or "") <= MAX_PARAM + 1
            assert "Traceback" not in error["message"]
        else:
            assert answer.headers["content-type"] == "application/json"
            json.loads(answer.body, parse_constant=_no_json)
        return answer

    def close(self) -> None:
        self._loop.close()


def _no_json(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


@pytest.fixture(scope="module")
def client(registry: ModelRegistry) -> Iterator[Client]:
    level = logging.getLogger("derender").level
    logging.getLogger("derender").setLevel(logging.CRITICAL)  # thousands of refused states, each with its line
    one = Client(build_app(registry, settings=AppSettings()))
    yield one
    one.close()
    logging.getLogger("derender").setLevel(level)


def _names(param: str | None, path: Sequence[str | int]) -> bool:
    """Whether an error's param is a place, or what stands around it or in it; `*` is any key of a map."""
    if param is None or not param.startswith("body."):
        return False
    steps = param.removeprefix("body.").split(".")
    return all(mine in (str(theirs), "*") for mine, theirs in zip(steps, path, strict=False))


def _id(kind: tuple[Operation, int]) -> str:
    return str(kind[0].requests[kind[1]].__name__)


@pytest.mark.parametrize("kind", KINDS, ids=_id)
def test_a_wrong_value_at_any_place_is_told_by_its_place(client: Client, kind: tuple[Operation, int]) -> None:
    operation, number = kind
    request, response = operation.requests[number], operation.responses[number]
    rng = random.Random(request.__name__)
    names = ("plain", "tolerant", "reading")
    for place in places(request):
        if not place.path:
            continue
        for value in rng.sample(WRONG, min(len(WRONG), int(6 * TIMES))):
            body = changed(request, BASES[request.__name__], place.path, value)
            if place.path[0] not in ("model", "stream"):
                body["model"] = rng.choice(names)
            answer = client.ask(operation.path, body)
            if answer.status == 200 and place.path != ("stream",):
                msgspec.json.decode(answer.body, type=response)
            if not is_json(value):  # NaN and infinity are what engines write of logprobs and metrics
                engines = operation.path.endswith("/derender") and isinstance(value, float)
                assert answer.status == 400 or engines, (place.path, value)
            elif not fits(value, place.type) and place.path != ("stream",):
                if value is None and place.path[-1] == "logprob":
                    continue  # read as -9999.0
                assert answer.status == 400, (place.path, value)
                assert _names(answer.error["param"], place.path), (place.path, value, answer.error)


def _derender_places() -> list[tuple[Operation, type, Place]]:
    found = []
    for operation, number in KINDS:
        request = operation.requests[number]
        if request.__name__.startswith("Derender"):
            found += [(operation, request, place) for place in places(request) if place.path]
    return found


def test_a_number_that_is_none_opens_no_way_for_what_is_refused_without_it(client: Client) -> None:
    """NaN as a logprob has the body read by another reader, to which all the same rules apply."""
    rng = random.Random(7)
    cases = _derender_places()
    for operation, request, place in rng.sample(cases, min(len(cases), int(250 * TIMES))):
        base = json.loads(json.dumps(BASES[request.__name__]))
        for answer in (base.get("generate_response"), base.get("generate_chunk"), *base.get("generate_responses", [])):
            if answer is not None:
                answer["choices"][0]["logprobs"] = {"content": [NOT_FINITE]}
        for value in ("\ud800", rng.choice(WRONG), rng.choice(WRONG)):
            body = changed(request, base, place.path, value)
            answer = client.ask(operation.path, body)
            if value == "\ud800":
                assert answer.status == 400, place.path


@pytest.mark.parametrize("kind", KINDS, ids=_id)
def test_damaged_bodies(client: Client, kind: tuple[Operation, int]) -> None:
    operation, number = kind
    request = operation.requests[number]
    rng = random.Random(request.__name__)
    full = dict(BASES[request.__name__])
    for place in places(request):
        if len(place.path) == 1 and place.path[0] not in full and rng.random() < 0.2:
            full = changed(request, full, place.path, rng.choice(WRONG[4:20]))
    for body in (BASES[request.__name__], full):
        data = json.dumps(body).encode("utf-8", "replace")
        for _ in range(int(60 * TIMES)):
            damaged = mutated(data, rng)
            client.ask(operation.path, damaged)
            client.ask("/invocations", damaged)


# ------------------------------------------------------------------------------------------------------- states

OUTPUT = '<think>hm é</think>ok 👋 <tool_call>\n{"name": "f", "arguments": {"x": [1, "é"]}}\n</tool_call> bye'
ASKED = {"messages": HI, "tools": TOOLS, "stop": ["by!", "zé1"], "logprobs": True, "top_logprobs": 1}
STATE_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 7, 255, 256, 2**53, 2**64, 0.5, "", "x", "by", "é" * 3000, "body", "content", "reasoning",
    "header", "\x00", [], [1], [[]], [195], [104, 105], {}, {"a": 1}, [None] * 20, msgspec.UNSET,
)  # fmt: skip


def _chunk(model: str, ids: Sequence[int], state: Any, *, finish: str | None = None) -> dict[str, Any]:
    entries = [{"token_id": i, "logprob": -1.0, "top_logprobs": [{"token_id": i, "logprob": -1.0}]} for i in ids]
    choice = {"index": 0, "token_ids": list(ids), "finish_reason": finish, "logprobs": {"content": entries}}
    return {
        "model": model,
        "stream": True,
        "generate_chunk": {"request_id": "r", "choices": [choice]},
        "stream_state": state,
        "chat_request": ASKED,
    }


@pytest.mark.parametrize("model", ["plain", "reading"])
def test_a_changed_state_is_refused_or_gives_a_well_formed_answer(client: Client, model: str) -> None:
    ids = list(OUTPUT.encode())
    rng = random.Random(model)
    states: list[tuple[int, Any]] = []
    state: Any = None
    for at, token in enumerate(ids, 1):
        answer = client.ask(CHAT_DERENDER, _chunk(model, [token], state))
        assert answer.status == 200, answer.body
        state = answer.json["stream_state"]
        states.append((at, state))
    for at, state in rng.sample(states, min(len(states), int(6 * TIMES))):
        for path in tree_places(state):
            for value in rng.sample(STATE_VALUES, 3):
                if value is msgspec.UNSET and not path:
                    continue
                body = _chunk(model, ids[at : at + 4], tree_changed(state, path, value))
                answer = client.ask(CHAT_DERENDER, body)
                if answer.status == 400:
                    # A state that says how long the output is already may make it too long.
                    assert answer.error["param"] in ("body.stream_state", "prompt_token_ids")
                    continue
                given = msgspec.json.decode(answer.body, type=DerenderedChatChunk)
                client.ask(CHAT_DERENDER, _chunk(model, [], given.stream_state, finish="stop"))


def test_a_changed_state_says_nothing_of_its_own(client: Client) -> None:
    """What is held back is the start of a stop string, or a token that ends the output: no other text comes out."""
    known = client.ask(CHAT_DERENDER, _chunk("plain", b"ab", None)).json["stream_state"]
    for member in range(len(known["choices"]["0"])):
        for value in ("said", ["said"], [115, 97, 105, 100], [115], "s", ["text", "said"], [False, 115, 97, 105]):
            state = tree_changed(known, ("choices", "0", member), value)
            answer = client.ask(CHAT_DERENDER, _chunk("plain", b"c", state, finish="stop"))
            if answer.status == 200:
                (choice,) = answer.json["chunk"]["choices"] or [{"delta": {"content": "c"}, "logprobs": None}]
                assert choice["delta"]["content"] == "c", (member, value)


def test_vllms_state_is_replayed_for_one_choice_only(client: Client) -> None:
    body = _chunk("plain", b"c", {"output_token_ids": [97] * 4000, "output_chunk_lens": [4000]})
    assert client.ask(CHAT_DERENDER, body).status == 200
    body["generate_chunk"]["choices"] = [{"index": index} for index in range(16000)]
    assert client.ask(CHAT_DERENDER, body).error["param"] == "body.stream_state"


# ------------------------------------------------------------------------------------- the right value, by hand


def _generated(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, **choice} for choice in choices], **fields}


HUGE = 10**4299


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT_DERENDER, {"generate_response": ANSWER, "prompt_tokens": HUGE}, "body.prompt_tokens"),
        (
            CHAT_DERENDER,
            {"generate_response": ANSWER | {"usage": {"prompt_tokens": HUGE}}},
            "body.generate_response.usage.prompt_tokens",
        ),
        (
            CHAT_DERENDER,
            {"stream": True, "generate_chunk": _generated({"index": -1})},
            "body.generate_chunk.choices.0.index",
        ),
        (CHAT_DERENDER, {"generate_response": ANSWER, "chat_request": {"messages": HI, "stop": ["x"] * 5}},
         "body.chat_request.stop"),
        (CHAT_RENDER, {"messages": HI, "top_k": 2**63}, "body.top_k"),
        (CHAT_RENDER, {"messages": HI, "n": HUGE}, "n"),
        (CHAT_RENDER, {"messages": HI, "logit_bias": {"x": None}}, "body.logit_bias.*"),
        (CHAT_RENDER, {"messages": HI, "chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
        (CHAT_RENDER, {"messages": HI, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        (CHAT_RENDER, {"messages": HI, "chat_template_kwargs": {"namespace": 1}}, "chat_template_kwargs.namespace"),
        (RENDER, {"prompt": [HUGE]}, "prompt"),
        ("/detokenize", {"tokens": [97, 2**63]}, "tokens.1"),
        ("/detokenize", {"tokens": [2**31]}, "tokens.0"),
        ("/detokenize", {"tokens": [2**32]}, "tokens.0"),
        ("/detokenize", {"tokens": [97, 2**64]}, "tokens.1"),
    ],
)  # fmt: skip
def test_what_is_refused_names_its_place(client: Client, path: str, body: dict[str, Any], param: str | None) -> None:
    assert client.ask(path, body).error["param"] == param


@pytest.mark.parametrize("name", ["loop", "__class__", "caller", "varargs", "context", "environment", "x" * 100_000])
def test_template_kwargs_that_no_template_reads_change_nothing(client: Client, name: str) -> None:
    plain = client.ask(CHAT_RENDER, {"messages": HI}).json["token_ids"]
    answer = client.ask(CHAT_RENDER, {"messages": HI, "chat_template_kwargs": {name: {"a": 1}}})
    assert answer.json["token_ids"] == plain


def test_prompts_times_parameters_are_bounded(client: Client) -> None:
    """1,024 prompts, each with the same 60 KB: an answer of 60 MB for a body of 64 KB."""
    body = {"prompt": ["a"] * 1024, "stop": ["x" * 15_000] * 4}
    assert client.ask(RENDER, body).error["param"] == "prompt"
    body["prompt"] = ["a"] * 8
    assert len(client.ask(RENDER, body).json) == 8


@pytest.mark.parametrize(
    "fields",
    [
        {"completion_request": {"prompt": "x" * 30_000, "echo": True}},
        {"completion_request": {"prompt": "x", "return_token_ids": True}, "prompt_token_ids": [[97] * 4000]},
    ],
)
def test_choices_times_their_prompt_are_bounded(client: Client, fields: dict[str, Any]) -> None:
    many = _generated(*[{}] * 2500)
    assert client.ask(DERENDER, {"generate_responses": [many], **fields}).error["param"] == "choices"
    few = client.ask(DERENDER, {"generate_responses": [_generated({}, {})], **fields}).json["choices"]
    assert len(few) == 2


def test_an_echo_for_every_prompt_is_bounded(client: Client) -> None:
    body = {
        "completion_request": {"prompt": "x" * 30_000, "echo": True},
        "generate_responses": [_generated({})] * 2500,
    }
    assert client.ask(DERENDER, body).error["param"] == "choices"
    chat = {
        "chat_request": {"messages": [{"role": "assistant", "content": "x" * 30_000}], "echo": True},
        "generate_response": _generated(*[{}] * 2500),
    }
    assert client.ask(CHAT_DERENDER, chat).error["param"] == "choices"


def test_more_values_than_a_body_may_have(client: Client) -> None:
    asked = "body has more than 262144 objects, lists and strings"
    for body in (
        b'{"messages":[' + b"{}," * (1 << 18) + b"{}]}",
        b'{"prompt":' + b"[" * 300_000,
        b'{"messages":[],"kv_transfer_params":{' + b'"":1,' * (1 << 18) + b'"":1}}',
        b'{"messages":[],"stop":[' + b'"\\\\",' * (1 << 18) + b'""]}',
    ):
        assert client.ask(CHAT_RENDER, body).error["message"] == asked
    answer = "body has more than 1048576 objects and lists, or 4194304 strings"
    for body in (b'{"generate_response":[' + b"{}," * (1 << 20), b'{"generate_response":[' + b'"",' * (1 << 22)):
        assert client.ask(CHAT_DERENDER, body).error["message"] == answer


def test_what_stands_in_texts_is_no_value(client: Client) -> None:
    for text in ("{" * 300_000, '"{[' * 300_000, "\\" * 300_001 + "{" * 300_000):
        body = {"prompt": text, "add_special_tokens": False}
        assert client.ask("/tokenize", json.dumps(body).encode()).json["count"] == len(text)


def test_as_many_numbers_as_fit(client: Client) -> None:
    ids = b'{"tokens":[' + b"97," * 999_999 + b"97]}"
    assert client.ask("/detokenize", ids).json == {"prompt": "a" * 1_000_000}


def test_stop_strings_of_a_megabyte_take_no_time(client: Client) -> None:
    """Looking again at what is held back would take minutes."""
    body = {
        "generate_response": _generated({"token_ids": [97] * 4000}),
        "chat_request": {"messages": HI, "stop": ["a" * (1 << 20), "a" * 3900 + "b", "a" * 3000 + "c", "a" * 4001]},
    }
    choice = client.ask(CHAT_DERENDER, body).json["choices"][0]
    assert choice["message"]["content"] == "a" * 4000
    body["chat_request"]["stop"][0] = "a" * 2000
    choice = client.ask(CHAT_DERENDER, body).json["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("", "a" * 2000)


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 999999999 }}",
        "{% for a in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% if x %}" * 3000,
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception('x' * 100000) }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_hostile_templates(client: Client, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("derender.rendering.conversation.TEMPLATE_SECONDS", 1.0)
    answer = client.ask(CHAT_RENDER, {"model": "trusting", "messages": HI, "chat_template": template})
    assert answer.status == 400
    for other in ("plain", "tolerant"):
        assert client.ask(CHAT_RENDER, {"model": other, "messages": HI, "chat_template": template}).status == 400


def test_logprobs_that_do_not_fit_the_ids(client: Client) -> None:
    entries = [{"token_id": 98, "logprob": -1.0}, {"token": "token_id:99", "logprob": None}, {"token": "z"}]
    for ids in ([], [97], [97] * 5):
        body = {"generate_response": _generated({"token_ids": ids, "logprobs": {"content": entries}})}
        choice = client.ask(CHAT_DERENDER, body).json["choices"][0]
        assert choice["message"]["content"] == "a" * len(ids)
        assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["b", "c", "z"]
        assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-1.0, -9999.0, -9999.0]
    for wrong in ({"token_id": 2**63}, {"token": "token_id:-1"}, {"token": f"token_id:{'9' * 19}"}, {}):
        body = {"generate_response": _generated({"token_ids": [97], "logprobs": {"content": [entries[0], wrong]}})}
        assert client.ask(CHAT_DERENDER, body).error["param"] == "logprobs.content.1"
