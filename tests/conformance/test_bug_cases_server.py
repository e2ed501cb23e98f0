"""Public faults of serving (F), each with the value that is right.

What waits: the role in a chunk of its own and the end of a stream towards the client (F01), the usage of a whole loop
(F02) belong to the gateway; here they are tested of a caller that goes the loop by hand. F08 and F10 are in
test_bug_cases_generate.py, what F11 and F13 say of parsers in test_bug_cases_streams.py and test_bug_cases_parsers.py.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conformance.helpers import (
    CHAT_DERENDER,
    CHAT_RENDER,
    GENERATE,
    TEXT_DERENDER,
    TEXT_RENDER,
    VOCAB,
    chat,
    content,
    events,
    ok,
    refused,
    smollm2,
    text,
)
from tests.derendering.helpers import answer, ask
from tests.engines.scripted import CONTEXT, ScriptedBackend
from tests.server.asgi_client import JSON, Answer, call, post
from tests.vocabularies import SHARED

from derender.engines.llamacpp import LlamaCppEngine
from derender.engines.sampling import Limits
from derender.protocol.chat import ChatCompletionChunk
from derender.server.generate import build_generate_app

Json = Any

# ------------------------------------------------------------------------------------------------ the loop


class _SmolLM2Backend(ScriptedBackend):
    """Plays ids of SmolLM2; its context is the scripted one, 64 tokens."""

    vocab_size = VOCAB

    def __init__(self, *ids: int) -> None:
        super().__init__(lambda prompt, sampling, sampled: ids[sampled])


_SMOLLM2_LIMITS = Limits(names=("m",), vocab_size=VOCAB, max_model_len=CONTEXT, constraints=frozenset())
HELLO = [19556, 905, 2]  # "Hello", " world", the end of the turn


def loop(body: Json, ids: Sequence[int] = HELLO, *, dialect: str = "chat") -> tuple[Json, list[Json], list[Json]]:
    """A stream, render → generate → derender, as a caller goes it: the rendered request, what the generate server sent
    and what came of it."""
    text_side = smollm2(max_model_len=CONTEXT)
    render, derender = (CHAT_RENDER, CHAT_DERENDER) if dialect == "chat" else (TEXT_RENDER, TEXT_DERENDER)
    name = "chat_request" if dialect == "chat" else "completion_request"
    rendered = ok(text_side, render, body)
    rendered = rendered if dialect == "chat" else rendered[0]
    engine = LlamaCppEngine(_SmolLM2Backend(*ids), _SMOLLM2_LIMITS)
    sent = events(post(build_generate_app(engine), GENERATE, rendered))
    asyncio.run(engine.aclose())
    chunks, state = [], None
    for event in sent:
        one = {
            "stream": True,
            "generate_chunk": event,
            "stream_state": state,
            "prompt_tokens": len(rendered["token_ids"]),
            name: body,
        }
        got = ok(text_side, derender, one)
        chunks.append(got["chunk"])
        state = got["stream_state"]
    return rendered, sent, chunks


@pytest.mark.parametrize("n", [1, 2])
def test_f01_the_shape_of_a_stream(n: int) -> None:
    """Stream shape differs from OpenAI (ollama/ollama#17485). A chunk of the generate server gives one chunk, as with
    vLLM's derender: the role stands in the first one of a choice, the finish reason in its last one."""
    _, sent, chunks = loop(ask(stream=True, n=n, temperature=1.0))  # `loop` wants [DONE] of the generate server
    assert len(chunks) == len(sent) == n * len(HELLO)
    for chunk in chunks:
        msgspec.convert(chunk, ChatCompletionChunk, strict=True)
        assert chunk["object"] == "chat.completion.chunk"
        assert chunk["usage"] is None
    assert {(chunk["id"], chunk["model"]) for chunk in chunks} == {(sent[0]["request_id"], "m")}
    for index in range(n):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert [c["delta"]["role"] for c in mine] == ["assistant", None, None]
        assert [c["delta"]["content"] for c in mine] == ["Hello", " world", None]
        assert [c["finish_reason"] for c in mine] == [None, None, "stop"]  # the end has a chunk of its own here


@pytest.mark.parametrize("dialect", ["chat", "completion"])
def test_f01_created_is_the_same_on_every_chunk(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of ollama/ollama#17485: `created` is one time for all chunks of a stream."""
    clock = iter(range(1_700_000_000, 1_700_000_999))
    monkeypatch.setattr("derender.derendering.stream.time.time", lambda: next(clock))
    body = ask(stream=True) if dialect == "chat" else {"prompt": "Hi", "stream": True}
    _, _, chunks = loop(body, dialect=dialect)
    assert len({chunk["created"] for chunk in chunks}) == 1


@pytest.mark.parametrize("dialect", ["chat", "completion"])
def test_f02_usage_is_told_where_it_was_asked_for(dialect: str) -> None:
    """stream_options rules (Arthur-Ficial/apfel#100, vllm#8625)."""
    base: Json = ask(stream=True) if dialect == "chat" else {"prompt": "Hello world", "stream": True}
    ids = [19556, 10813, 242, 228, 2]  # "Hello", three thirds of a smile that give no text before the last, the end

    rendered, _, chunks = loop(base, ids, dialect=dialect)
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks)

    def counts(usage: Json) -> tuple[int, int, int]:
        return usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]

    prompt_tokens = len(rendered["token_ids"])
    _, _, chunks = loop({**base, "stream_options": {"include_usage": True}}, ids, dialect=dialect)
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert counts(chunks[-1]["usage"]) == (prompt_tokens, 5, prompt_tokens + 5)

    options = {"include_usage": True, "continuous_usage_stats": True}
    _, _, chunks = loop({**base, "stream_options": options}, ids, dialect=dialect)
    assert [counts(c["usage"]) for c in chunks] == [
        (prompt_tokens, done, prompt_tokens + done) for done in (1, 2, 3, 4, 5, 5)
    ]
    assert [bool(chunk["choices"]) for chunk in chunks] == [True] * 5 + [False]

    path = CHAT_RENDER if dialect == "chat" else TEXT_RENDER
    for wrong in ({"stream": False}, {}):
        body = {key: value for key, value in base.items() if key != "stream"} | wrong
        error = refused(smollm2(), path, {**body, "stream_options": {"include_usage": True}})
        assert error["param"] == "stream_options"


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        ({"prompt": [[-1]]}, "prompt[0][0]", "-1"),
        ({"prompt": [-1]}, "prompt[0]", "-1"),
        ({"prompt": [9007199254740993]}, "prompt[0]", "9007199254740993"),
        ({"prompt": []}, "prompt", "[]"),
        ({"prompt": [[]]}, "prompt[0]", ""),
        ({"prompt": ["a", [1]]}, "prompt[1]", "a list"),
        ({"stop_token_ids": [999999]}, "stop_token_ids", "999999"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "-1"),
        ({"logit_bias": {"777777": -100}}, "logit_bias", "777777"),
        ({"allowed_token_ids": [49152]}, "allowed_token_ids", "49152"),
        ({"logprob_token_ids": [49152]}, "logprob_token_ids", "49152"),
    ],
)
def test_f04_ids_of_a_caller_are_checked(fields: Json, field: str, value: str) -> None:
    """Missing range check on caller ids (vllm#35231): refused by render, so that nothing reaches a generate server."""
    bodies = [(TEXT_RENDER, {"prompt": "a", "logprobs": 1, **fields})]
    if "prompt" not in fields:
        bodies.append((CHAT_RENDER, ask(logprobs=True, **fields)))
    for path, body in bodies:
        error = refused(smollm2(), path, body)
        assert field in error["message"]
        assert value in error["message"]


# ------------------------------------------------------------------------------------------------ the event loop

MUCH = 5_400_000
"""Bytes of a request."""
SCHEMA = {
    "type": "object",
    "properties": {f"field_{i}": {"type": "string", "description": "what it is " * 20} for i in range(MUCH // 270)},
}


@pytest.mark.parametrize(
    "body",
    [
        ask(messages=[{"role": "user", "content": "word " * (MUCH // 5)}]),
        ask(messages=[{"role": "user", "content": "x" * 70}] * 50_000),
        ask(tools=[{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}], tool_choice="none"),
    ],
    ids=["a long text", "many messages", "a large schema"],
)
def test_f05_long_work_leaves_the_event_loop(body: Json) -> None:
    """CPU work on the event loop (vllm#24910)."""
    template = "{{ tools|tojson if tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    app = smollm2(chat_template=template)
    data = json.dumps(body).encode()
    assert len(data) > 4_500_000
    small = json.dumps(ask()).encode()

    def asked(body: bytes) -> Awaitable[Answer]:
        headers = [JSON, ("content-length", str(len(body)))]
        return call(app, "POST", CHAT_RENDER, parts=[body], headers=headers)

    async def run() -> tuple[list[Answer], list[float], int]:
        tasks = [asyncio.ensure_future(asked(data)) for _ in range(2)]
        waited: list[float] = []
        others = 0
        while not all(task.done() for task in tasks) or not waited:
            began, worked = time.perf_counter(), time.process_time()
            await asyncio.sleep(0.01)
            assert (await call(app, "GET", "/health")).status == 200
            # What this process worked meanwhile, so that a busy machine does not count.
            waited.append(min(time.perf_counter() - began - 0.01, time.process_time() - worked))
            others += (await asked(small)).status == 200
        return [task.result() for task in tasks], waited, others

    gc.collect()
    gc.freeze()  # as the server does when it starts: what is loaded is not looked over again and again
    try:
        answers, waited, others = asyncio.run(run())
    finally:
        gc.unfreeze()
    for one in answers:
        assert one.status == 400
        assert "maximum context length is 8192 tokens" in one.error["message"]
    assert others == len(waited)
    waited.sort()
    assert waited[int(len(waited) * 0.99)] < 0.1


# ------------------------------------------------------------------------------------------------ no text

SAYS = '"messages": [{"role": "user", "content": "hi"}]'
CALL = '{"id": "a", "type": "function", "function": {"name": "f", "arguments": %s}}'
GENERATED = '"generate_response": {"choices": [{"index": 0, "token_ids": [905]}]}'


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (CHAT_RENDER, '{"messages": [{"role": "user", "content": "face %s"}]}', "messages.0.content"),
        (TEXT_RENDER, '{"prompt": "%s"}', "prompt"),
        (TEXT_RENDER, '{"prompt": ["a", "%s"]}', "prompt.1"),
        (
            CHAT_RENDER,
            '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a%s"}]}]}',
            "messages.0.content.0.text",
        ),
        (CHAT_RENDER, '{"messages": [{"role": "user", "content": "hi", "name": "%s"}]}', "messages.0.name"),
        (CHAT_RENDER, f'{{{SAYS}, "stop": "%s"}}', "stop"),
        (CHAT_RENDER, f'{{{SAYS}, "stop": ["a", "%sb"]}}', "stop.1"),
        (CHAT_RENDER, f'{{{SAYS}, "chat_template_kwargs": {{"x": {{"%s": 1}}}}}}', "chat_template_kwargs.x"),
        (
            CHAT_RENDER,
            f'{{{SAYS}, "tools": [{{"type": "function", "function": {{"name": "f", "parameters": {{"a": "%s"}}}}}}]}}',
            "tools.0.function.parameters.a",
        ),
        (
            CHAT_RENDER,
            '{"messages": [{"role": "assistant", "tool_calls": [' + CALL % '"{\\"a\\": \\"%s\\"}"' + "]}]}",
            "messages.0.tool_calls.0.function.arguments",
        ),
        (CHAT_RENDER, f'{{{SAYS}, "no such field": ["%s"]}}', "no such field.0"),
        ("/tokenize", '{"prompt": "%s"}', "prompt"),
        (CHAT_DERENDER, f'{{"model": "%s", {GENERATED}}}', "model"),
        (CHAT_DERENDER, f'{{{GENERATED}, "chat_request": {{"messages": [], "stop": "%s"}}}}', "chat_request.stop"),
        (
            CHAT_DERENDER,
            '{"generate_response": {"request_id": "%s", "choices": [{"index": 0, "token_ids": [905]}]}}',
            "generate_response.request_id",
        ),
        (
            CHAT_DERENDER,
            '{"stream": true, "generate_chunk": {"choices": [{"index": 0, "token_ids": [], "stop_reason": "%s"}]}}',
            "generate_chunk.choices.0.stop_reason",
        ),
        (
            TEXT_DERENDER,
            '{"generate_responses": [{"metrics": {"a": "%s"}, "choices": [{"index": 0, "token_ids": [905]}]}]}',
            "generate_responses.0.metrics.a",
        ),
        # The same in a body that has to be read leniently, for its logprob that is not finite.
        (
            CHAT_DERENDER,
            '{"generate_response": {"request_id": "%s", "choices": [{"index": 0, "token_ids": [905], '
            '"logprobs": {"content": [{"token_id": 905, "logprob": null}]}}]}}',
            "generate_response.request_id",
        ),
    ],
)
def test_f07_a_lone_surrogate_is_refused_by_its_field(path: str, body: str, field: str) -> None:
    """Text that cannot be UTF-8 (raullenchai/Rapid-MLX#730, JustVugg/colibri#1589)."""
    for lone in ("\\ud83d", "\\ude00", "\\uD83D x", "\\ude00\\ud83d"):
        error = refused(smollm2(), path, (body.replace("%s", lone)).encode())
        assert error["param"].removeprefix("body.") == field
        assert field in error["message"]
        assert "lone surrogate" in error["message"]
    pair = post(smollm2(), path, body.replace("%s", "\\ud83d\\ude00").encode())
    assert pair.status == 200 or "surrogate" not in pair.error["message"]


def test_f07_a_pair_is_text_and_other_bytes_are_not() -> None:
    """The controls of raullenchai/Rapid-MLX#730."""
    app = smollm2()
    got = ok(app, CHAT_RENDER, b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00"}]}')
    assert got == {
        **ok(app, CHAT_RENDER, ask(messages=[{"role": "user", "content": "😀"}])),
        "request_id": got["request_id"],
    }
    assert ok(app, TEXT_RENDER, b'{"prompt": "\\ud83d\\ude0a"}')[0]["token_ids"] == [10813, 242, 228]
    # An escape inside of arguments, which are JSON in a string.
    inner = CALL % '"{\\"a\\": \\"%s\\"}"'
    for escaped, status in (("\\\\ud83d", 400), ("\\\\ud83d\\\\ude00", 200)):
        message = f'{{"role": "assistant", "tool_calls": [{inner % escaped}]}}'
        got = post(app, CHAT_RENDER, f'{{"messages": [{message}]}}'.encode())
        assert got.status == status
        if status == 400:
            assert got.error["param"] == "messages.0.tool_calls.0.function.arguments"
    for path, body in (
        (CHAT_RENDER, b'{"messages": [{"role": "user", "content": "\xff"}]}'),
        (CHAT_RENDER, b'{"messages": [{"role": "user", "content": "\xed\xa0\xbd"}]}'),
        (CHAT_DERENDER, b'{"model": "\xf0\x9f", "generate_response": {"choices": []}}'),
    ):
        assert "UTF-8" in refused(app, path, body)["message"]


# ------------------------------------------------------------------------------------------------ derender's contract

BAD_STATES: list[Json] = [
    {"role_sent": "x"},
    {"prev_tokens": ["a"], "prefix_offset": -1},
    {"chunk_lens": [1000000000]},
    {"output_chunk_lens": [1000000000]},
    {"state of another request": True},
    {"derender": 1, "choices": {"0": ["x"]}},
    "x",
]


@pytest.mark.parametrize("path", [CHAT_DERENDER, TEXT_DERENDER])
def test_f11_a_stream_takes_linear_time_and_a_bad_state_is_refused(path: str) -> None:
    """Stateless replay (vllm#47161, vllm#56851). Without parsers; with them the same has to hold."""
    app = smollm2()
    ids = [19556, 905, 10813, 242, 228, 30, 1326, 982] * 1000
    spent: list[float] = []

    async def run() -> str:
        state: Json = None
        text = []
        sizes = set()
        for at in range(0, len(ids), 1000):
            began = time.process_time()
            for token in ids[at : at + 1000]:
                choice = {"index": 0, "token_ids": [token]}
                body = {"stream": True, "generate_chunk": {"choices": [choice]}, "stream_state": state}
                data = json.dumps(body).encode()
                headers = [JSON, ("content-length", str(len(data)))]
                got = (await call(app, "POST", path, parts=[data], headers=headers)).json
                state = got["stream_state"]
                [choice] = got["chunk"]["choices"]
                text.append((choice["delta"]["content"] if path == CHAT_DERENDER else choice["text"]) or "")
            spent.append(time.process_time() - began)
            sizes.add(len(json.dumps(state)))
        assert max(sizes) < 1024
        return "".join(text)

    assert asyncio.run(run()) == "Hello world😊. don't" * 1000
    assert min(spent[4:]) < 2 * min(spent[:4])  # the last thousand costs what the first does
    texts = set()
    for state in BAD_STATES:
        chunk = {"choices": [{"index": 0, "token_ids": [905]}]}
        error = refused(app, path, {"stream": True, "generate_chunk": chunk, "stream_state": state})
        assert error["param"] == "body.stream_state"
        texts.add(error["message"])
    assert texts == {"invalid stream_state: not a state that was given out for this stream"}


def test_f11_more_than_the_model_takes_is_refused_before_decode() -> None:
    """The bound of vllm#47161: prompt, earlier chunks and this one."""
    app = smollm2(max_model_len=1024)
    state = ok(
        app, CHAT_DERENDER, {"stream": True, "generate_chunk": {"choices": [{"index": 0, "token_ids": [905] * 1000}]}}
    )["stream_state"]
    body: Json = {"stream": True, "stream_state": state}
    for prompt, count, good in ((None, 24, True), (None, 25, False), ([905] * 20, 4, True), ([905] * 20, 5, False)):
        body["generate_chunk"] = {"choices": [{"index": 0, "token_ids": [905] * count}]}
        body["prompt_token_ids"] = prompt
        if good:
            ok(app, CHAT_DERENDER, body)
        else:  # an id that cannot be decoded is not looked at
            body["generate_chunk"]["choices"][0]["token_ids"][-1] = 10**6
            assert "max_model_len" in refused(app, CHAT_DERENDER, body)["message"]


def test_f11_the_state_of_another_request_is_refused() -> None:
    """A hostile state of vllm#47161: one that was given out, but for another request."""
    app = smollm2()

    def body(request_id: str, ids: list[int], state: Json) -> Json:
        chunk = {"request_id": request_id, "choices": [{"index": 0, "token_ids": ids}]}
        return {"stream": True, "generate_chunk": chunk, "stream_state": state}

    state = ok(app, CHAT_DERENDER, body("one", [10813], None))["stream_state"]
    refused(app, CHAT_DERENDER, body("another", [242], state))


def test_f13_what_derender_refuses() -> None:
    """Endpoint contract (llm-d/llm-d-inference-sim#677)."""
    app = smollm2()
    good = answer([905])
    for path, body in ((CHAT_DERENDER, {"generate_response": good}), (TEXT_DERENDER, {"generate_responses": [good]})):
        error = refused(app, path, {"model": "nope", **body}, status=404)
        assert (error["param"], error["type"]) == ("model", "NotFoundError")  # vLLM's word for model_not_found
        assert "`nope` does not exist" in error["message"]
    for path, body, param in (
        (CHAT_DERENDER, {}, "body.generate_response"),
        (CHAT_DERENDER, {"model": "m"}, "body.generate_response"),
        (CHAT_DERENDER, {"generate_response": None}, "body.generate_response"),
        (CHAT_DERENDER, {"generate_response": {}}, "body.generate_response.choices"),
        (CHAT_DERENDER, {"generate_response": {"choices": []}}, "choices"),
        (TEXT_DERENDER, {"generate_responses": [{"choices": []}]}, "choices"),
        (TEXT_DERENDER, {"generate_responses": []}, "generate_responses"),
        (TEXT_DERENDER, {"generate_responses": [], "prompt_tokens": []}, "generate_responses"),
        (TEXT_DERENDER, {"generate_responses": ["two", "entries"], "prompt_tokens": [1]}, "body.generate_responses.0"),
        (TEXT_DERENDER, {"generate_responses": [good, good], "prompt_tokens": [1]}, "body"),
        (TEXT_DERENDER, {"generate_responses": [good], "prompt_token_ids": [[1], [2]]}, "body"),
    ):
        error = refused(app, path, body)
        assert error["param"] == param
        assert error["code"] == 400
    # An answer of no tokens is legal: the end of the turn came at once, or the request was aborted.
    for ids, finish in (([], "stop"), (None, "abort")):
        got = chat(app, answer(ids, finish=finish))
        assert (content(got), got["choices"][0]["finish_reason"]) == ("", finish)
        assert got["usage"]["completion_tokens"] == 0
        assert content(text(app, [answer(ids, finish=finish)])) == ""
    # The request id is the answer's id; finish reasons are the engine's own.
    for finish in ("stop", "length", "abort", "repetition"):
        one = {**answer([905], finish=finish), "request_id": "generate-tokens-7/ü"}
        for got in (chat(app, one), text(app, [one])):
            assert (got["id"], got["choices"][0]["finish_reason"]) == ("generate-tokens-7/ü", finish)


# ------------------------------------------------------------------------------------------------ none is forgotten


def test_every_case_has_its_test() -> None:
    """Every row of the case file is a test function that begins with its id."""
    cases = SHARED / "cases" / "bugs.jsonl"
    if not cases.is_file():
        pytest.skip(f"no case files at {cases}")
    ids = {json.loads(line)["id"] for line in cases.read_text(encoding="utf-8").splitlines()}
    names = {
        node.name
        for file in Path(__file__).parent.glob("test_bug_cases_*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert len(ids) == 62
    assert not {one for one in ids if not any(name.startswith(f"test_{one.lower()}_") for name in names)}
