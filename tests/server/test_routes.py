"""The routes, over a real model small enough to know its ids by heart."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.server.asgi_client import JSON, call, post, request
from tests.server.tiny_model import MAX_MODEL_LEN, write_tiny_model

from derender.model import Model, ModelSettings
from derender.protocol.errors import Unavailable
from derender.registry import ModelRegistry
from derender.server.app import AppSettings, build_app
from derender.server.describe import describe_registry
from derender.server.http import App
from derender.server.metrics import TextMetrics
from derender.server.pool import INLINE_BYTES, WorkPool

START, END, EOS = 257, 258, 259
HELLO = list(b"hello")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> ModelRegistry:
    directory = str(write_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))
    first = Model.load(directory, settings=ModelSettings(served_model_names=("tiny", "small")))
    second = ModelSettings(
        served_model_names=("tolerant",), tolerate_unknown_ids=True, trust_request_chat_template=True
    )
    return ModelRegistry([first, Model.load(directory, settings=second)])


@pytest.fixture
def metrics() -> TextMetrics:
    return TextMetrics()


@pytest.fixture
def app(registry: ModelRegistry, metrics: TextMetrics) -> App:
    return build_app(registry, settings=AppSettings(tokenizer_info=True), metrics=metrics)


def ok(app: App, path: str, body: dict[str, Any], *headers: tuple[str, str]) -> Any:
    answer = post(app, path, body, headers=[JSON, *headers])
    assert answer.status == 200, answer.body
    return answer.json


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


PROMPT = [START, *b"user\nhello", END, START, *b"assistant\n"]


def test_chat_render(app: App) -> None:
    rendered = ok(app, "/v1/chat/completions/render", chat(model="small", max_tokens=7))
    assert rendered["token_ids"] == PROMPT
    assert rendered["model"] == "small"
    assert rendered["sampling_params"]["max_tokens"] == 7
    assert rendered["request_id"].startswith("chatcmpl-")


def test_completions_render_gives_a_list(app: App) -> None:
    rendered = ok(app, "/v1/completions/render", {"prompt": ["hello", "a"], "max_tokens": 3})
    assert [one["token_ids"] for one in rendered] == [HELLO, [97]]


def test_the_request_id_header_names_the_request(app: App) -> None:
    rendered = ok(app, "/v1/chat/completions/render", chat(), ("x-request-id", "abc"))
    assert rendered["request_id"] == "chatcmpl-abc"


def generated(ids: list[int]) -> dict[str, Any]:
    return {"choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop"}]}


def test_chat_derender(app: App) -> None:
    answer = ok(app, "/v1/chat/completions/derender", {"model": "tiny", "generate_response": generated(HELLO)})
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny"
    assert answer["choices"][0]["message"]["content"] == "hello"


def test_chat_derender_of_a_stream(app: App) -> None:
    state, text = None, ""
    for number, ids in enumerate(([104, 101], [108], [108, 111])):
        body = {
            "stream": True,
            "generate_chunk": {
                "choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop" if number == 2 else None}]
            },
            "stream_state": state,
        }
        answer = ok(app, "/v1/chat/completions/derender", body)
        assert answer["chunk"]["object"] == "chat.completion.chunk"
        text += answer["chunk"]["choices"][0]["delta"].get("content") or ""
        state = answer["stream_state"]
    assert text == "hello"


def test_completions_derender(app: App) -> None:
    answer = ok(app, "/v1/completions/derender", {"generate_responses": [generated(HELLO), generated([97])]})
    assert [choice["text"] for choice in answer["choices"]] == ["hello", "a"]


def test_completions_derender_of_a_stream(app: App) -> None:
    body = {"stream": True, "generate_chunk": {"choices": [{"index": 0, "token_ids": HELLO}]}}
    answer = ok(app, "/v1/completions/derender", body)
    assert answer["chunk"]["choices"][0]["text"] == "hello"


def test_tokenize_and_back(app: App) -> None:
    answer = ok(app, "/tokenize", {"prompt": "hello", "return_token_strs": True})
    assert answer == {
        "count": 5,
        "max_model_len": MAX_MODEL_LEN,
        "tokens": HELLO,
        "token_strs": ["h", "e", "l", "l", "o"],
    }
    assert ok(app, "/tokenize", chat())["tokens"] == PROMPT
    assert ok(app, "/detokenize", {"tokens": HELLO}) == {"prompt": "hello"}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (chat(), "GenerateRequest"),
        ({"prompt": "hello"}, "list"),
        ({"generate_response": generated(HELLO)}, "chat.completion"),
        ({"generate_responses": [generated(HELLO)]}, "text_completion"),
        ({"stream": True, "generate_chunk": {"choices": []}}, "chat.completion.chunk"),
        ({"stream": True, "generate_chunk": {"choices": []}, "completion_request": {}}, "text_completion"),
    ],
)
def test_invocations_go_by_the_body(app: App, body: dict[str, Any], kind: str) -> None:
    answer = ok(app, "/invocations", body)
    if kind == "list":
        assert isinstance(answer, list)
    elif kind == "GenerateRequest":
        assert answer["token_ids"] == PROMPT
    else:
        assert answer.get("chunk", answer)["object"] == kind


def test_an_invocation_of_nothing_known_names_what_is(app: App) -> None:
    error = post(app, "/invocations", {"text": "x"}).error
    assert error["message"].startswith("Cannot find suitable handler for request. Expected one of: ['ChatCompletion")
    assert error["type"] == "BadRequestError"


# ------------------------------------------------------------------------------------------------- errors

PATHS = [
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/chat/completions/derender",
    "/v1/completions/derender",
    "/tokenize",
    "/detokenize",
    "/invocations",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"1",
        b'"x"',
        b"{",
        b"{}",
        b"\xff\xfe",
        b'{"a": "\xed\xa0\x80"}',
        b'{"model": 1}',
        b'{"stream": "yes"}',
        b"[" * 100_000,
        b'{"messages": ' + b"[" * 100_000,
        b'{"a": ' * 50_000,
        b'{"messages": [{"role": null}], "prompt": [[[]]], "tokens": [-1], "generate_response": {"choices": [{}]}}',
        b'{"messages": [1], "prompt": {}, "tokens": [1e99], "generate_responses": [], "generate_chunk": null}',
        b'{"model": "other", "messages": [], "prompt": "x", "tokens": [], "generate_response": {"choices": []}}',
    ],
)
def test_bad_bodies_get_400(app: App, path: str, body: bytes) -> None:
    answer = post(app, path, body)
    if answer.status == 200:  # an empty object is nothing wrong where no field is required
        assert path == "/detokenize", answer.body
        assert b"tokens" in body
    else:
        assert answer.status in (400, 404), answer.body
        assert "Traceback" not in answer.error["message"]


def test_an_answer_that_is_too_deep_gets_400(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(self: Model, body: Any) -> Any:
        value: Any = 1
        for _ in range(100_000):
            value = [value]
        return value

    monkeypatch.setattr(Model, "tokenize", deep)
    answer = post(app, "/tokenize", {"prompt": "x"})
    assert answer.error["message"] == "body is nested too deeply"
    assert answer.status == 400


@pytest.mark.parametrize("path", PATHS[:6])
def test_unknown_models_get_404(app: App, path: str) -> None:
    body = {"model": "other", "messages": [], "prompt": "x", "tokens": [1]}
    if path.endswith("derender"):
        body["generate_response" if "chat" in path else "generate_responses"] = generated([1]) if "chat" in path else []
    elif path == "/tokenize":
        del body["messages"]
    answer = post(app, path, body)
    assert answer.status == 404
    assert answer.error["param"] == "model"
    assert answer.error["message"] == "The model `other` does not exist. Valid aliases: tiny, small, tolerant."


# ------------------------------------------------------------------------------------------------- information


def test_health_and_ping_are_empty(app: App) -> None:
    for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
        answer = request(app, method, path)
        assert (answer.status, answer.body, "content-type" in answer.headers) == (200, b"", False)


def test_models_are_listed_by_each_name(app: App, registry: ModelRegistry) -> None:
    listed = request(app, "GET", "/v1/models").json
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["tiny", "small", "tolerant"]
    assert listed["data"][0]["root"] == registry.get("tiny").path
    assert listed["data"][0]["max_model_len"] == MAX_MODEL_LEN


def test_version_load_and_sources(app: App) -> None:
    assert set(request(app, "GET", "/version").json) == {"version"}
    assert request(app, "GET", "/load").json == {"server_load": 0}
    assert request(app, "GET", "/kv_event_sources").json == {}


def test_tokenizer_info_is_off_unless_asked_for(app: App, registry: ModelRegistry) -> None:
    info = request(app, "GET", "/tokenizer_info").json
    assert info["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert info["eos_token"] == "<|eos|>"
    assert request(app, "GET", "/tokenizer_info", query="model=tolerant").json == info
    assert request(app, "GET", "/tokenizer_info", query="model=x").status == 404
    assert request(build_app(registry, settings=AppSettings()), "GET", "/tokenizer_info").status == 404


def test_metrics_count_the_work(app: App) -> None:
    ok(app, "/v1/chat/completions/render", chat())
    ok(app, "/v1/completions/render", {"prompt": ["hello", "a"]})
    ok(app, "/v1/chat/completions/derender", {"generate_response": generated(HELLO)})
    ok(
        app,
        "/v1/completions/derender",
        {"stream": True, "generate_chunk": {"choices": [{"index": 0, "token_ids": [97]}]}},
    )
    post(app, "/v1/chat/completions/derender", {"generate_response": generated([300])})
    ok(app, "/v1/chat/completions/derender", {"model": "tolerant", "generate_response": generated([97, 300, 301])})
    answer = request(app, "GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.body.decode().splitlines()
    for line in (
        f"derender_tokens_rendered_total {len(PROMPT) + 6}.0",
        "derender_tokens_derendered_total 9.0",
        "derender_unknown_ids_tolerated_total 2.0",
        'derender_requests_total{route="/v1/chat/completions/derender",status="400"} 1.0',
        'derender_errors_total{type="BadRequestError"} 1.0',
        'derender_encoder_fallback{model="tiny"} 0.0',
    ):
        assert line in lines, line
    for stage in ("decode", "model", "encode"):
        (seconds,) = [line for line in lines if line.startswith(f'derender_stage_seconds_total{{stage="{stage}"}}')]
        assert 0 < float(seconds.split()[1]) < 60


def test_a_growing_chat_is_counted_as_kept(tmp_path: Path) -> None:
    model = Model.load(str(write_tiny_model(tmp_path / "tiny")), settings=ModelSettings(max_model_len=100_000))
    app = build_app(ModelRegistry([model]), settings=AppSettings())
    messages: list[dict[str, str]] = []
    for _ in range(8):  # the first few are compared with the whole, and kept
        messages.append({"role": "user", "content": "a" * 5000})
        answer = ok(app, "/v1/chat/completions/render", {"messages": messages})
        assert answer["token_ids"].count(97) >= 5000 * len(messages)
    lines = request(app, "GET", "/metrics").body.decode().splitlines()
    counts = {
        result: float(line.split()[1])
        for line in lines
        for result in ("hit", "miss")
        if line.startswith(f'derender_encode_cache_chars_total{{result="{result}"}}')
    }
    assert counts["miss"] < 50_000
    assert counts["hit"] > 2 * counts["miss"]


def test_what_is_served_is_told(registry: ModelRegistry) -> None:
    lines = describe_registry(registry, max_body_bytes=1 << 20)
    assert lines[0].startswith("Model: tiny, small (")
    assert lines[1:4] == [
        "  vocabulary 260 tokens, context 4096 tokens",
        "  encoder fastokens",
        "  chat template found",
    ]
    assert lines[-1] == "Limits: body 1 MiB, n 16384, prompts 1024, stop strings 4"


# ------------------------------------------------------------------------------------------------- long work


def test_large_bodies_leave_the_event_loop_free(
    app: App, registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a large body is worked on, `/health` answers, and the work is seen in `/load`."""
    started, go_on = threading.Event(), threading.Event()
    tokenize = Model.tokenize

    def slow(self: Model, body: Any) -> Any:
        started.set()
        assert go_on.wait(10)
        return tokenize(self, body)

    monkeypatch.setattr(Model, "tokenize", slow)
    body = json.dumps({"prompt": "x" * INLINE_BYTES}).encode()

    async def run() -> None:
        headers = [JSON, ("content-length", str(len(body)))]
        task = asyncio.create_task(call(app, "POST", "/tokenize", parts=[body], headers=headers))
        await asyncio.to_thread(started.wait, 10)
        waited = []
        for _ in range(5):
            before = time.perf_counter()
            assert (await call(app, "GET", "/health")).status == 200
            waited.append(time.perf_counter() - before)
        assert min(waited) < 0.1
        assert (await call(app, "GET", "/load")).json == {"server_load": 1}
        go_on.set()
        assert (await task).json["count"] == INLINE_BYTES

    asyncio.run(run())


def test_health_is_quick_under_load(app: App) -> None:
    body = json.dumps({"prompt": "word " * 400_000}).encode()

    async def run() -> float:
        headers = [JSON, ("content-length", str(len(body)))]
        tasks = [asyncio.create_task(call(app, "POST", "/tokenize", parts=[body], headers=headers)) for _ in range(6)]
        slowest = 0.0
        while not all(task.done() for task in tasks):
            before = time.perf_counter()
            await call(app, "GET", "/health")
            slowest = max(slowest, time.perf_counter() - before)
            await asyncio.sleep(0.005)
        assert [task.result().status for task in tasks] == [200] * 6
        return slowest

    assert asyncio.run(run()) < 0.1


def test_a_template_of_ones_own_runs_in_a_thread(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []
    render = Model.render_chat

    def spy(self: Model, body: Any, **options: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return render(self, body, **options)

    monkeypatch.setattr(Model, "render_chat", spy)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    ok(app, "/v1/chat/completions/render", chat())
    rendered = ok(app, "/v1/chat/completions/render", chat(model="tolerant", chat_template=template))
    assert rendered["token_ids"] == HELLO
    assert threads == [True, False]
    assert post(app, "/v1/chat/completions/render", chat(chat_template=template)).status == 400
    kwargs = {"chat_template": template}
    assert post(app, "/v1/chat/completions/render", chat(chat_template_kwargs=kwargs)).status == 400
    assert threads == [True, False, False, False]


def test_the_pool_refuses_what_does_not_fit() -> None:
    pool = WorkPool(workers=1, max_waiting_bytes=100)

    async def run() -> None:
        go_on = threading.Event()
        first = asyncio.create_task(pool.run(go_on.wait, size=90))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="too much work"):
            await pool.run(lambda: 1, size=20)
        go_on.set()
        await first
        assert await pool.run(lambda: 1, size=500) == 1  # alone, it may be larger
        await pool.close()

    asyncio.run(run())
