"""Public faults of logprobs (B), each with the value that is right.

What waits for reasoning and tool parsers: of B07 and B08 the parsers themselves. Without them all of the output is
content, and the same rule holds: one entry for every generated token, in order, whatever becomes of its text.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Iterable
from typing import Any

import pytest
from tests.conformance.helpers import (
    CHAT_DERENDER,
    CHAT_RENDER,
    GENERATE,
    TEXT_DERENDER,
    chat,
    content,
    events,
    ok,
    refused,
    smollm2,
    stream,
    strict_json,
    text,
)
from tests.derendering.helpers import answer, ask, entry
from tests.engines.scripted import LIMITS, Sampler, ScriptedBackend
from tests.server.asgi_client import post
from tests.vocabularies import real

from derender.engines.llamacpp import LlamaCppEngine
from derender.engines.scheduler import Sampled
from derender.protocol.generate import (
    GenerateChoice,
    GenerateLogprob,
    GenerateResponse,
    GenerateTopLogprob,
)
from derender.server.generate import build_generate_app

Json = Any
SMILE = [10813, 242, 228]  # b"\xf0\x9f", b"\x98", b"\x8a"
SMILE_BYTES = [[240, 159], [152], [138]]
WORLD = [32, 119, 111, 114, 108, 100]
FORMS = ["ids", "placeholders", "placeholders-bytes"]


def flat(lists: Iterable[list[Json]]) -> list[Json]:
    """The lists joined."""
    return list(itertools.chain.from_iterable(lists))


def spelled(entries: list[Json], form: str) -> list[Json]:
    """Entries that name tokens by integer, in one of the three forms of the wire."""
    if form == "ids":
        return entries
    found = []
    for one in entries:
        name = f"token_id:{one['token_id']}"
        found.append(
            {
                "token": name,
                "logprob": one["logprob"],
                "bytes": list(name.encode()) if form == "placeholders-bytes" else None,
            }
            | ({"top_logprobs": spelled(one["top_logprobs"], form)} if "top_logprobs" in one else {})
        )
    return found


def chat_entries(entries: list[Json], *, ids: list[int] | None = None, request: Json = None) -> list[Json]:
    """The chat answer's entries for these."""
    ids = [one["token_id"] for one in entries] if ids is None else ids
    got = chat(smollm2(), answer(ids, logprobs={"content": entries}), request)
    found: list[Json] = got["choices"][0]["logprobs"]["content"]
    assert got["usage"]["completion_tokens"] == len(ids)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_b01_bytes_are_those_of_the_token(form: str) -> None:
    """Bytes computed from lossy text (ollama/ollama#13497, vllm#27300)."""
    entries = chat_entries(spelled([entry(i) for i in SMILE], form), ids=SMILE)
    assert [one["bytes"] for one in entries] == SMILE_BYTES
    assert bytes(flat(one["bytes"] for one in entries)).decode() == "😊"
    assert [one["token"] for one in entries] == ["", "", "😊"]  # joined, they are the text
    assert [one["top_logprobs"][0]["bytes"] for one in entries] == SMILE_BYTES
    # Completions have no bytes; keys that would be empty spell them.
    got = text(smollm2(), [answer(SMILE, logprobs={"content": spelled([entry(i) for i in SMILE], form)})])
    logprobs = got["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["", "", "😊"]
    assert [list(one) for one in logprobs["top_logprobs"]] == [[r"bytes:\xf0\x9f"], [r"bytes:\x98"], ["😊"]]


class _Alternatives(Sampler):
    """Three alternatives for every token."""

    def sample(self, row: int) -> Sampled | None:
        drawn = super().sample(row)
        assert drawn is not None
        assert drawn.logprob is not None
        top = [
            GenerateTopLogprob(token_id=drawn.token + more, logprob=-0.5 - more, rank=1 + more) for more in (0, 20, 40)
        ]
        return Sampled(drawn.token, GenerateLogprob(token_id=drawn.token, logprob=-0.5, rank=1, top_logprobs=top))


class _Backend(ScriptedBackend):
    def sampler(self, sampling: Any, prompt: Any) -> Sampler:
        return _Alternatives(self, sampling, prompt)


@pytest.mark.parametrize("form", FORMS)
def test_b02_each_alternative_has_its_own_name(form: Any) -> None:
    """Placeholder of the wrong id (vllm#42887), on the derender side and in what the generate server writes."""
    sampled = {
        "token_id": 905,
        "logprob": -0.2,
        "top_logprobs": [{"token_id": i, "logprob": p} for i, p in ((905, -0.2), (1326, -1.7), (982, -2.9))],
    }
    [one] = chat_entries(spelled([sampled], form), ids=[905])
    assert [top["token"] for top in one["top_logprobs"]] == [" world", " don", "'t"]
    assert [top["logprob"] for top in one["top_logprobs"]] == [-0.2, -1.7, -2.9]
    body = {"token_ids": [5], "sampling_params": {"max_tokens": 2, "logprobs": 2}}
    for streams in (False, True):
        engine = LlamaCppEngine(_Backend(), LIMITS)
        got = post(build_generate_app(engine, logprob_wire=form), GENERATE, {**body, "stream": streams})
        asyncio.run(engine.aclose())
        choices = [e["choices"][0] for e in events(got)] if streams else got.json["choices"]
        entries = [e for choice in choices for e in choice["logprobs"]["content"]]
        names = [[top.get("token_id", top.get("token")) for top in e["top_logprobs"]] for e in entries]
        wanted = [[10, 30, 50], [11, 31, 51]]
        assert names == (wanted if form == "ids" else [[f"token_id:{i}" for i in row] for row in wanted])


@pytest.mark.parametrize("form", FORMS)
def test_b04_every_alternative_is_resolved(form: str) -> None:
    """Only the chosen token is resolved (ai-dynamo/dynamo#8911)."""
    rendered = ok(smollm2(), CHAT_RENDER, ask(logprobs=True, top_logprobs=5))
    assert rendered["sampling_params"]["logprobs"] == 5
    ids = [19556, 905, 28120, 1792, 329]
    [one] = chat_entries(spelled([entry(*ids)], form), ids=[19556], request=ask(logprobs=True, top_logprobs=5))
    right = ["Hello", " world", "hello", " x", " y"]
    assert [top["token"] for top in one["top_logprobs"]] == right
    assert [top["bytes"] for top in one["top_logprobs"]] == [list(t.encode()) for t in right]
    assert (one["token"], one["bytes"]) == ("Hello", list(b"Hello"))
    [one] = chat_entries(spelled([entry(*ids)], form), ids=[19556], request=ask(logprobs=True, top_logprobs=2))
    assert [top["token"] for top in one["top_logprobs"]] == right[:2]


@pytest.mark.parametrize("number", ["-Infinity", "Infinity", "NaN", "null", "-1e400", "1e999"])
def test_b05_what_no_json_number_can_be_is_clamped(number: str) -> None:
    """Non-finite number on a JSON wire (sgl-project/sglang#5984). NaN is -9999.0 as the infinities are."""
    one = f'{{"token_id": 905, "logprob": {number}, "rank": 1}}'
    sampled = f'{{"token_id": 905, "logprob": {number}, "rank": 1, "top_logprobs": [{one}]}}'
    choice = f'{{"index": 0, "token_ids": [905], "logprobs": {{"content": [{sampled}]}}}}'
    prompt = f'[null, {{"905": {{"logprob": {number}, "rank": 1}}}}]'
    response = f'{{"request_id": "r", "choices": [{choice}], "prompt_logprobs": {prompt}}}'
    chunk = f'{{"request_id": "r", "choices": [{choice}]}}'
    # `ok` reads the answer as JSON in the strict sense: without NaN, without Infinity.
    got = ok(smollm2(), CHAT_DERENDER, f'{{"generate_response": {response}}}'.encode())
    [told] = got["choices"][0]["logprobs"]["content"]
    assert (told["logprob"], told["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)
    assert got["prompt_logprobs"][1]["905"]["logprob"] == -9999.0
    got = ok(smollm2(), TEXT_DERENDER, f'{{"generate_responses": [{response}]}}'.encode())
    assert got["choices"][0]["logprobs"]["token_logprobs"] == [-9999.0]
    assert got["choices"][0]["logprobs"]["top_logprobs"] == [{" world": -9999.0}]
    got = ok(smollm2(), CHAT_DERENDER, f'{{"stream": true, "generate_chunk": {chunk}}}'.encode())
    assert got["chunk"]["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


def test_b07_entries_are_told_once_also_where_text_is_held_back() -> None:
    """Logprobs bound to content branch only (sgl-project/sglang#28601). The parsers wait; what holds text back here is
    a character that is not finished and a stop string that may come."""
    app = smollm2()
    output = '<think>ab</think>ok<tool_call>{"name": "f", "arguments": {}}</tool_call>😊'
    ids = [44, 17400, 46, 369, 9617, 17400, 46, 2231, 44, 19324, 79, 4350, 46, 39428, 1245, 1799, 476, 86, 1002, 476]
    ids += [24370, 1799, 4548, 109, 9617, 19324, 79, 4350, 46, *SMILE]
    choice = answer(ids, logprobs=True)["choices"][0]
    request = ask(logprobs=True, top_logprobs=1, stop=["😊!", "call>!"])
    batch = chat(app, {"choices": [choice]}, request)
    assert content(batch) == output
    entries = batch["choices"][0]["logprobs"]["content"]
    assert "".join(one["token"] for one in entries) == output
    assert bytes(flat(one["bytes"] for one in entries)).decode() == output
    assert len(entries) == len(ids) == batch["usage"]["completion_tokens"]
    rng = random.Random("b07")
    for sizes in ([1] * 32, [2] * 16, [rng.randint(1, 5) for _ in range(32)]):
        texts, answers = stream(app, choice, request, sizes=sizes)
        assert "".join(texts) == output
        told = [c["logprobs"]["content"] for a in answers for c in a["chunk"]["choices"]]
        assert [len(one) for one in told[:-1]] == sizes[: len(told) - 1]
        assert flat(told) == entries
    texts, _ = stream(app, choice, request, sizes=[1] * 32)
    assert texts[-4:] == ["", "", "", "call>😊"]  # text was held back, its entries were not


def test_b08_entries_count_every_generated_token() -> None:
    """Two layers in one field (sgl-project/sglang#25055): the rule is one entry for every generated token, as in vLLM.
    Where reasoning is split off (by a parser, later) it stays so."""
    ids = [44, 17400, 46, 28150, 9617, 17400, 46, 57, 744, 2273, 2]  # the last is the end of the turn
    for dialect in ("chat", "completion"):
        one = answer(ids, logprobs=True)
        got = chat(smollm2(), one) if dialect == "chat" else text(smollm2(), [one])
        assert content(got) == "<think>hm</think>I am X"
        logprobs = got["choices"][0]["logprobs"]
        tokens = [e["token"] for e in logprobs["content"]] if dialect == "chat" else logprobs["tokens"]
        right = ["<", "think", ">", "hm", "</", "think", ">", "I", " am", " X", "<|im_end|>"]
        assert tokens == right
        assert got["usage"]["completion_tokens"] == len(right)


PROMPT_LOGPROBS = [None, {"905": {"logprob": -1.0, "rank": 1, "decoded_token": None}}]
FILLED = [None, {"905": {"logprob": -1.0, "rank": 1, "decoded_token": " world"}}]


def test_b10_prompt_logprobs_come_out_of_completions() -> None:
    """Field not carried through (vllm#57929)."""
    app = smollm2()
    given = {**answer([905], [28120]), "prompt_logprobs": PROMPT_LOGPROBS}
    got = text(app, [given, answer([19556])])
    assert [choice["prompt_logprobs"] for choice in got["choices"]] == [FILLED, FILLED, None]
    assert chat(app, given)["prompt_logprobs"] == FILLED


def test_b10_every_field_of_a_generate_answer_comes_out() -> None:
    """The general form of vllm#57929: a field that the generate side has is in the answer, or here with the reason."""
    app = smollm2()
    choice: dict[str, Json] = {
        "index": 0,
        "finish_reason": "length",
        "stop_reason": 7,
        "token_ids": [905],
        "routed_experts": "AAAA",
        "sampling_mask": [[1]],
        "weight_versions": ["v1"],
        "logprobs": {"content": [entry(905)]},
    }
    response: dict[str, Json] = {
        "request_id": "r-1",
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        | {"prompt_tokens_details": {"cached_tokens": 2}},
        "prompt_logprobs": PROMPT_LOGPROBS,
        "prompt_token_ids": [19556, 905],
        "metrics": {"a": 1},
        "kv_transfer_params": {"b": 2},
        "ec_transfer_params": {"c": 3},
        "choices": [choice],
    }
    left_out = {
        "model": "the answer names the model as it was asked for",
        "created": "the answer has its own time",
        "output_mode": "only tokens are derendered",
        "mm_placeholders": "places in the engine's prompt; the API has no member for them",
        "prompt_token_id_logprobs": "a packed array; the API has no member for it",
    }
    assert response.keys() | left_out.keys() == set(GenerateResponse.__struct_fields__)
    assert choice.keys() == set(GenerateChoice.__struct_fields__)
    for dialect in ("chat", "completion"):
        request = ask(return_token_ids=True) if dialect == "chat" else {"prompt": "x", "return_token_ids": True}
        got = chat(app, response, request) if dialect == "chat" else text(app, [response], request)
        one = got["choices"][0]
        assert got["id"] == "r-1"
        assert got["usage"]["prompt_tokens"] == 3
        assert got["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
        for name in ("metrics", "kv_transfer_params", "ec_transfer_params"):
            assert got[name] == response[name]
        place = got if dialect == "chat" else one
        assert (place["prompt_logprobs"], place["prompt_token_ids"]) == (FILLED, [19556, 905])
        for name in ("index", "finish_reason", "stop_reason", "token_ids", "routed_experts", "sampling_mask"):
            assert one[name] == choice[name]
        assert one["weight_versions"] == ["v1"]
        assert content(got) == " world"
        assert one["logprobs"]["content" if dialect == "chat" else "tokens"]


@pytest.mark.parametrize("form", FORMS)
def test_b11_all_forms_of_the_wire_give_the_same(form: str) -> None:
    """Undocumented placeholder as contract (vllm#57574)."""
    one = {"token_id": 905, "logprob": -0.5, "rank": 1, "top_logprobs": [{"token_id": 905, "logprob": -0.5, "rank": 1}]}
    [told] = chat_entries(spelled([one], form), ids=[905])
    assert (told["token"], told["bytes"]) == (" world", WORLD)
    assert told["top_logprobs"] == [{"token": " world", "logprob": -0.5, "bytes": WORLD}]
    for bad in ("token_id:", "token_id:-3", "token_id:9x", "token_id:99999999999"):
        good = spelled([one], form)[0]
        worse = [{"token": bad, "logprob": -0.5}, {**good, "top_logprobs": [{"token": bad, "logprob": -0.5}]}]
        for wrong in worse:
            body = answer([905, 905], logprobs={"content": [good, wrong]})
            for path, sent in (
                (CHAT_DERENDER, {"generate_response": body}),
                (TEXT_DERENDER, {"generate_responses": [body]}),
            ):
                error = refused(smollm2(), path, sent)
                assert error["param"] == "logprobs.content.1"
                assert bad.removeprefix("token_id:") in error["message"]
    # A string that is no placeholder is kept, with the bytes that came with it.
    for own in (None, [116, 111, 107]):
        [told] = chat_entries([{"token": "tok", "logprob": -0.5, "bytes": own, "top_logprobs": []}], ids=[905])
        assert (told["token"], told["bytes"]) == ("tok", own)


def test_b13_tokens_are_text_and_not_vocabulary() -> None:
    """Vocabulary spelling shown as text (vllm#19177): `Ġworld`, `âĢľ`."""
    assert [real("smollm2").token_string(i) for i in (905, 1585)] == ["Ġworld", "âĢľ"]
    entries = chat_entries([entry(905, 1585), entry(1585, 905)])
    assert [one["token"] for one in entries] == [" world", "“"]
    assert [one["bytes"] for one in entries] == [WORLD, [226, 128, 156]]
    assert [[top["token"] for top in one["top_logprobs"]] for one in entries] == [[" world", "“"], ["“", " world"]]
    got = text(smollm2(), [answer([905, 1585], logprobs=True)])["choices"][0]["logprobs"]
    assert got["tokens"] == [" world", "“"]
    assert [list(one) for one in got["top_logprobs"]] == [[" world"], ["“"]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dialect", ["chat", "completion"])
def test_b14_a_stream_tells_what_the_batch_tells(dialect: str, form: str) -> None:
    """Context lost between calls (vllm#55029)."""
    app = smollm2()

    def told(ids: list[int], sizes: list[int]) -> tuple[Json, Json]:
        """Batch and stream."""
        choice = answer(ids, logprobs={"content": spelled([entry(i, 905, 242) for i in ids], form)})["choices"][0]
        one = {"choices": [choice]}
        batch = (chat(app, one) if dialect == "chat" else text(app, [one]))["choices"][0]["logprobs"]
        chunks = stream(app, choice, sizes=sizes, dialect=dialect)[1]
        parts = [c["logprobs"] for a in chunks for c in a["chunk"]["choices"]]
        return batch, {key: flat(part[key] for part in parts) for key in batch}

    batch, streamed = told(SMILE, [2])
    assert streamed == batch
    names = [e["token"] for e in batch["content"]] if dialect == "chat" else batch["tokens"]
    assert names == ["", "", "😊"]
    if dialect == "chat":
        assert [e["bytes"] for e in batch["content"]] == SMILE_BYTES
    else:
        assert batch["text_offset"] == [0, 0, 0]
    rng = random.Random("b14")
    ids = [rng.choice((rng.randrange(3, 49152), rng.randrange(100, 260), *SMILE)) for _ in range(30)]
    for position in range(1, len(ids)):
        batch, streamed = told(ids, [position])
        assert streamed == batch
    assert told(ids, [1] * 30)[1] == batch


def test_what_is_read_here_is_strict() -> None:
    """The reader of these tests refuses what JSON has not."""
    with pytest.raises(AssertionError, match="NaN is no JSON"):
        strict_json(json.dumps({"a": float("nan")}).encode())
