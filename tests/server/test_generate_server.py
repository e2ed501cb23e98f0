"""The generate server's routes over a scripted engine: bodies, events, logprob forms, errors, departures."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from typing import Any

import pytest
from tests.engines.scripted import LIMITS, ScriptedBackend, until
from tests.server.asgi_client import JSON, Answer, Call

from derender.engines.llamacpp import LlamaCppEngine
from derender.server.generate import build_generate_app

PATH = "/inference/v1/generate"


def body(**fields: Any) -> bytes:
    return json.dumps({"token_ids": [5, 6], "sampling_params": {"max_tokens": 2}, **fields}).encode()


def ask(*calls: Call, backend: ScriptedBackend | None = None, **settings: Any) -> list[Answer]:
    """The answers to calls that are made one after the other."""

    async def main() -> list[Answer]:
        engine = LlamaCppEngine(backend or ScriptedBackend(), LIMITS, root="toy.gguf")
        app = build_generate_app(engine, **settings)
        try:
            for one in calls:
                await asyncio.wait_for(app(one.scope, one.receive, one.send), 10)
        finally:
            await engine.aclose()
        return [one.answer for one in calls]

    return asyncio.run(main())


def post(data: bytes, *, path: str = PATH, headers: tuple[tuple[str, str], ...] = (JSON,), **options: Any) -> Call:
    return Call("POST", path, parts=[data], headers=[*headers, ("content-length", str(len(data)))], **options)


def get(path: str) -> Call:
    return Call("GET", path)


def events(answer: Answer) -> list[Any]:
    """The decoded events of a stream, the last of which must be [DONE]."""
    parts = answer.body.split(b"\n\n")
    assert parts[-2:] == [b"data: [DONE]", b""]
    return [json.loads(part.removeprefix(b"data: ")) for part in parts[:-2]]


def test_a_whole_answer_has_the_members_of_vllm():
    (answer,) = ask(post(body(request_id="r", return_token_ids=True)))
    assert answer.status == 200
    got = answer.json
    assert isinstance(got.pop("created"), int)
    assert got == {
        "request_id": "r",
        "model": "toy",
        "choices": [
            {
                "index": 0,
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
                "token_ids": [10, 11],
                "routed_experts": None,
                "sampling_mask": None,
                "weight_versions": None,
            }
        ],
        "usage": {
            "prompt_tokens": 2,
            "total_tokens": 4,
            "completion_tokens": 2,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
        "prompt_token_ids": [5, 6],
        "prompt_logprobs": None,
        "prompt_token_id_logprobs": None,
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "output_mode": "tokens",
    }


def test_a_stream():
    options = {"include_usage": True}
    (answer,) = ask(post(body(stream=True, stream_options=options, request_id="r", return_token_ids=True)))
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    first, second, usage = events(answer)
    assert first["prompt_token_ids"] == [5, 6]
    assert "prompt_token_ids" not in second
    assert [one["choices"][0]["token_ids"] for one in (first, second)] == [[10], [11]]
    assert [one["choices"][0]["finish_reason"] for one in (first, second)] == [None, "length"]
    assert first["usage"] is None
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 2
    assert {one["request_id"] for one in (first, second, usage)} == {"r"}


@pytest.mark.parametrize(
    ("wire", "entry"),
    [
        (
            "ids",
            {
                "token_id": 10,
                "logprob": -0.5,
                "rank": 1,
                "top_logprobs": [{"token_id": 10, "logprob": -0.5, "rank": 1}],
            },
        ),
        (
            "placeholders",
            {
                "token": "token_id:10",
                "logprob": -0.5,
                "bytes": None,
                "top_logprobs": [{"token": "token_id:10", "logprob": -0.5, "bytes": None}],
            },
        ),
        (
            "placeholders-bytes",
            {
                "token": "token_id:10",
                "logprob": -0.5,
                "bytes": list(b"token_id:10"),
                "top_logprobs": [{"token": "token_id:10", "logprob": -0.5, "bytes": list(b"token_id:10")}],
            },
        ),
    ],
)
def test_logprob_forms(wire, entry):
    params = {"max_tokens": 1, "logprobs": 1}
    whole, stream = ask(
        post(body(sampling_params=params)), post(body(sampling_params=params, stream=True)), logprob_wire=wire
    )
    assert whole.json["choices"][0]["logprobs"] == {"content": [entry]}
    assert events(stream)[0]["choices"][0]["logprobs"] == {"content": [entry]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"sampling_params": {"stop": ["x"]}}, 400, "stop"),
        ({"output_mode": "text"}, 400, "output_mode"),
        ({"token_ids": [500]}, 400, "token_ids"),
        ({"model": "no"}, 404, "model"),
        ({"token_ids": []}, 400, "body.token_ids"),
        ({"token_ids": [-1]}, 400, "body.token_ids.0"),
        ({"sampling_params": {"temperature": "hot"}}, 400, "body.sampling_params.temperature"),
        ({"sampling_params": {"structured_outputs": {"regex": "bad"}}}, 400, "structured_outputs.regex"),
        ({"cache_salt": "a/b"}, 400, None),
    ],
)
def test_refusals_have_their_status_in_both_modes(fields, status, param, stream):
    (answer,) = ask(post(body(stream=stream, **fields)))
    assert answer.status == status
    if param is not None:
        assert answer.error["param"] == param


def test_an_error_in_a_stream_is_an_event():
    backend = ScriptedBackend()
    backend.broken = True
    (answer,) = ask(post(body(stream=True)), backend=backend)
    assert events(answer) == [
        {
            "error": {
                "message": "the engine could not decode the request",
                "type": "InternalServerError",
                "param": None,
                "code": 500,
            }
        }
    ]


def test_an_error_in_a_batch_is_an_answer():
    backend = ScriptedBackend()
    backend.broken = True
    (answer,) = ask(post(body()), backend=backend)
    assert answer.status == 500
    assert answer.error["message"] == "the engine could not decode the request"


def test_other_routes():
    health, ping, load, version, models, metrics = ask(
        get("/health"), Call("POST", "/ping"), get("/load"), get("/version"), get("/v1/models"), get("/metrics")
    )
    assert (health.status, health.body, ping.status) == (200, b"", 200)
    assert load.json == {"server_load": 0}
    assert set(version.json) == {"version"}
    assert [(card["id"], card["max_model_len"], card["root"]) for card in models.json["data"]] == [
        ("toy", 64, "toy.gguf"),
        ("toy-2", 64, "toy.gguf"),
    ]
    for name in ("running", "waiting", "prompt_tokens_total", "generated_tokens_total"):
        assert f"\nderender_engine_{name} 0.0".encode() in metrics.body


def test_what_a_key_guards():
    calls = [post(body()), post(b'{"request_ids":[]}', path="/inference/v1/abort_requests"), get("/v1/models")]
    opened = [get("/health"), get("/metrics"), get("/version"), get("/load"), get("/ping")]
    key = ("authorization", "Bearer k")
    *answers, good = ask(*calls, *opened, post(body(), headers=(JSON, key)), api_keys=["k"])
    assert [answer.status for answer in answers] == [401] * 3 + [200] * 5
    assert good.status == 200


def test_abort_requests():
    steps = threading.Semaphore(1)

    async def main() -> tuple[Answer, Answer, Answer]:
        engine = LlamaCppEngine(ScriptedBackend(steps=steps), LIMITS)
        app = build_generate_app(engine)
        long = post(body(sampling_params={"max_tokens": 50}, request_id="long"))
        task = asyncio.ensure_future(app(long.scope, long.receive, long.send))
        await until(engine, lambda load: load.generated_tokens > 0)
        abort = post(b'{"request_ids": ["long", "none"]}', path="/inference/v1/abort_requests")
        await app(abort.scope, abort.receive, abort.send)
        steps.release(1000)
        await asyncio.wait_for(task, 5)
        wrong = post(b'{"ids": []}', path="/abort_requests")
        await app(wrong.scope, wrong.receive, wrong.send)
        await engine.aclose()
        return long.answer, abort.answer, wrong.answer

    long, abort, wrong = asyncio.run(main())
    assert (abort.status, abort.body) == (200, b"")
    choice = long.json["choices"][0]
    assert choice["finish_reason"] == "abort"
    assert 1 <= len(choice["token_ids"]) < 50
    assert wrong.error["param"] == "body.request_ids"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_slot(stream):
    steps = threading.Semaphore(1)
    backend = ScriptedBackend(slots=1, steps=steps)

    async def main() -> None:
        engine = LlamaCppEngine(backend, LIMITS)
        app = build_generate_app(engine)
        leaving = post(body(sampling_params={"max_tokens": 50}, stream=stream))
        task = asyncio.ensure_future(app(leaving.scope, leaving.receive, leaving.send))
        await until(engine, lambda load: load.generated_tokens > 0)
        leaving.gone.set()
        await asyncio.wait_for(task, 5)
        steps.release(1000)
        assert (await engine.load()).waiting == 0
        await until(engine, lambda load: load.running == 0)
        await engine.aclose()

    asyncio.run(asyncio.wait_for(main(), 10))
    assert len(backend.batches) < 10


def test_no_tokenizer_is_imported():
    code = (
        "import sys, derender.server.generate, derender.engines.llamacpp; "
        "print([name for name in ('tokenizers', 'fastokens', 'jinja2', 'xllamacpp') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
