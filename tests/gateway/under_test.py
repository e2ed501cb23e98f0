"""A gateway in front of faulty engines in the test's own process, and what has to be true of every answer of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from tests.gateway.faulty_engine import FaultyEngine, until
from tests.server.asgi_client import JSON, Answer, Call, call
from tests.server.tiny_model import write_tiny_model

from derender.engines.http import EngineHttp
from derender.engines.vllm import VllmEngine
from derender.gateway.loop import Gateway
from derender.gateway.pool import EnginePool
from derender.gateway.settings import EngineSpec, GatewaySettings, PoolSettings, Role
from derender.model import Model, ModelSettings
from derender.registry import ModelRegistry
from derender.server.app import AppSettings, build_app
from derender.server.gateway_metrics import GatewayMetrics
from derender.server.gateway_routes import gateway_routes
from derender.server.http import App
from derender.server.pool import WorkPool

T = TypeVar("T")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PATIENCE = 40.0
"""Seconds after which what should have ended counts as hanging."""

STEADY = PoolSettings(failures=10**9, probe_seconds=3600)
"""Engines stay up whatever they do."""

_RECORD_BYTES = 1 << 20


@functools.cache
def registry() -> ModelRegistry:
    with tempfile.TemporaryDirectory() as directory:
        model = str(write_tiny_model(Path(directory) / "tiny"))
        return ModelRegistry(
            [Model.load(model, settings=ModelSettings(served_model_names=("tiny",), stop_strings="derender"))]
        )


async def connect(spec: EngineSpec) -> VllmEngine:
    engine = VllmEngine(EngineHttp(spec.url, max_record_bytes=_RECORD_BYTES, max_answer_bytes=4 * _RECORD_BYTES))
    try:
        await engine.probe()
    except BaseException:
        await engine.aclose()
        raise
    return engine


@dataclass
class Gate:
    """The gateway."""

    app: App
    gateway: Gateway
    metrics: CollectorRegistry

    def call(self, path: str, body: dict[str, Any], *, request_id: str = "", kind: type[Call] = Call) -> Call:
        headers = [JSON, ("x-request-id", request_id)] if request_id else [JSON]
        data = json.dumps(body).encode()
        return kind("POST", path, parts=[data], headers=[*headers, ("content-length", str(len(data)))])

    async def run(self, call: Call) -> Answer:
        await asyncio.wait_for(self.app(call.scope, call.receive, call.send), PATIENCE)
        return call.answer

    async def ask(self, path: str, body: dict[str, Any], *, request_id: str = "") -> Answer:
        return await self.run(self.call(path, body, request_id=request_id))

    async def app_ready(self) -> Answer:
        return await call(self.app, "GET", "/ready")

    async def calm(self) -> None:
        """Waits until nothing is in work; fails where something stays."""
        pool = self.gateway.pool
        await until(
            lambda: not self.gateway.running and not any(one.running for one in pool.backends) and not pool.waiting,
            what=f"in work: {self.gateway.running}, at engines: {[one.running for one in pool.backends]}",
        )
        assert self.app.running == 0


@contextlib.asynccontextmanager
async def gate(
    *engines: FaultyEngine,
    pool: PoolSettings = STEADY,
    roles: Sequence[Role] = (),
    told: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Gate]:
    """A gateway in front of engines. At its end nothing of it may be left: no task, no lease, no socket."""
    tasks, sockets = asyncio.all_tasks(), _sockets()
    metrics = GatewayMetrics()
    limits: dict[str, Any] = {"first_seconds": 30.0, "between_seconds": 30.0, "total_seconds": 60.0, "retries": 2}
    made = EnginePool(
        [
            EngineSpec(url=one.url, kind="vllm", role=role)
            for one, role in zip(engines, roles or ("any",) * len(engines), strict=True)
        ],
        settings=pool,
        connect=connect,
        meter=metrics,
        models=["tiny"],
    )
    gateway = Gateway(made, settings=GatewaySettings(pool=pool, **{**limits, **settings}), meter=metrics)
    work = WorkPool()
    app = build_app(
        registry(),
        settings=AppSettings(docs=False),
        metrics=metrics,
        pool=work,
        more_routes=gateway_routes(registry(), gateway, pool=work, **(told or {})),
    )
    await made.start()
    one = Gate(app, gateway, metrics._registry)
    try:
        yield one
        await one.calm()
    finally:
        await made.aclose()
        await work.close()
    await until(lambda: not any(one.open for one in engines), what="a socket is open")
    handlers = {task for task in asyncio.all_tasks() if "FaultyEngine" in repr(task)}
    left = asyncio.all_tasks() - tasks - handlers
    assert not left, f"tasks are left: {left}"
    assert _sockets() <= sockets, "sockets are left"


def _sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count


def run(main: Callable[[], Coroutine[Any, Any, T]], *, seconds: float = 2 * PATIENCE) -> T:
    """Runs a test in an event loop of its own, in bounded time. What an event loop would only log fails the test."""
    loop = asyncio.new_event_loop()
    said: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: said.append(context))
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(asyncio.wait_for(main(), seconds))
        loop.run_until_complete(asyncio.sleep(0))
        assert not asyncio.all_tasks(loop)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
    assert not said, said
    return result


# ------------------------------------------------------------------------------------------------- what is asked


def body(path: str, *, stream: bool = False, n: int = 1, prompts: int = 1, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"model": "tiny", "max_tokens": 20, "n": n, "stream": stream}
    if path == CHAT:
        made["messages"] = [{"role": "user", "content": "hello"}]
    else:
        made["prompt"] = ["hello", "world"][:prompts] if prompts > 1 else "hello"
    return {**made, **fields}


SHAPES: Sequence[tuple[str, bool, int, int]] = [
    (path, stream, n, prompts)
    for path in (CHAT, COMPLETIONS)
    for stream in (False, True)
    for n in (1, 3)
    for prompts in ((1,) if path == CHAT else (1, 2))
]
"""Path, whether it streams, choices, prompts."""

FEW_SHAPES = (SHAPES[0], SHAPES[2], SHAPES[7], SHAPES[11])
"""One of each path, whole and streamed."""


# ------------------------------------------------------------------------------------------------ what is answered


def events(data: bytes) -> list[Any]:
    """The events of a stream: decoded, `"[DONE]"` as it is. Checks the framing."""
    assert data.endswith(b"\n\n"), data[-200:]
    made: list[Any] = []
    for frame in data[:-2].split(b"\n\n"):
        if frame.startswith(b":"):
            continue
        assert frame.startswith(b"data: "), frame
        assert b"\n" not in frame, frame
        made.append("[DONE]" if frame == b"data: [DONE]" else json.loads(frame[6:]))
    return made


def check(answer: Answer, path: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    """Checks that an answer is well-formed, whole or not; gives the inside of its error, None where it has none."""
    assert answer.status, "no answer"
    assert answer.complete, answer.body
    assert b"127.0.0.1" not in answer.body, "the address of an engine is told"
    assert b"Traceback" not in answer.body
    if answer.status != 200:
        error = answer.error
        assert error["message"]
        assert error["type"]
        return error
    prompts = len(asked["prompt"]) if isinstance(asked.get("prompt"), list) else 1
    count = asked["n"] * prompts
    if asked["stream"]:
        return _check_stream(answer, path, count)
    assert answer.headers["content-type"] == "application/json"
    assert sorted(one["index"] for one in answer.json["choices"]) == list(range(count))
    for one in answer.json["choices"]:
        assert isinstance(one["finish_reason"], str)
    assert answer.json["usage"]["completion_tokens"] <= count * asked["max_tokens"]
    return None


def _check_stream(answer: Answer, path: str, count: int) -> dict[str, Any] | None:
    assert answer.headers["content-type"] == "text/event-stream"
    told = events(answer.body)
    assert told.pop() == "[DONE]"
    assert "[DONE]" not in told
    error: dict[str, Any] | None = None
    if told and "error" in told[-1]:
        assert set(told[-1]) == {"error"}
        error = told.pop()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["code"], int)
    assert len({(one["id"], one["created"], one["model"]) for one in told}) <= 1
    ended: set[int] = set()
    for one in told:
        assert one["object"] == ("chat.completion.chunk" if path == CHAT else "text_completion")
        for choice in one["choices"]:
            assert 0 <= choice["index"] < count
            assert choice["index"] not in ended, "a choice goes on after its end"
            if choice["finish_reason"] is not None:
                ended.add(choice["index"])
    if error is None:
        assert ended == set(range(count)), "a choice has no end"
    return error


def texts(answer: Answer, path: str) -> dict[int, str]:
    """The text of each choice."""
    if answer.headers["content-type"] == "application/json":
        return {
            one["index"]: one["message"]["content"] if path == CHAT else one["text"] for one in answer.json["choices"]
        }
    made: dict[int, str] = {}
    for event in events(answer.body):
        for one in event["choices"] if isinstance(event, dict) and "choices" in event else ():
            text = (one["delta"].get("content") or "") if path == CHAT else one["text"]
            made[one["index"]] = made.get(one["index"], "") + text
    return made


def fault_of(ask_id: str) -> str:
    """The name of the fault in a request's id, where `named` put it."""
    found = re.search(r"fault\.([a-z0-9_]+)\.", ask_id)
    return found[1] if found else "right"


def named(fault: str, number: int = 0) -> str:
    """A request's id that tells the engine which fault to have."""
    return f"fault.{fault}.{number}"
