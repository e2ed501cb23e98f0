"""Public faults of the generate server's streams and cancellations (F08, F10), each with the value that is right.

What waits: what happens between the servers when one of them dies or a client leaves belongs to the gateway.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from tests.conformance.helpers import CHAT_DERENDER, GENERATE, events, refused, smollm2
from tests.engines.scripted import LIMITS, ScriptedBackend, until
from tests.server.asgi_client import JSON, Answer, Call, post
from tests.server.live import Wire, get_bytes, post_bytes, running, wait_for

from derender.engines.llamacpp import LlamaCppEngine
from derender.engines.scheduler import BackendFailed, Job, Row, Scheduler
from derender.protocol.errors import ApiError
from derender.protocol.generate import GenerateChunk, GenerateRequest
from derender.server.generate import build_generate_app
from derender.server.http import App

Json = Any


def asked(**fields: Json) -> Json:
    return {"token_ids": [5, 6], "sampling_params": {"max_tokens": 50}, "stream": True, **fields}


class _Failing(LlamaCppEngine):
    """Fails after the first chunk."""

    def __init__(self, error: Exception) -> None:
        super().__init__(ScriptedBackend(), LIMITS)
        self._error = error

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        return self._fails(await super().stream(request))

    async def _fails(self, chunks: AsyncGenerator[GenerateChunk, None]) -> AsyncGenerator[GenerateChunk, None]:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk
                raise self._error


class _Dying(ScriptedBackend):
    """Decodes the prompt and one token."""

    def decode(self, rows: Sequence[Row]) -> None:
        if len(self.batches) == 2:
            raise BackendFailed('/srv/model.gguf: "broken"\nby the test')
        super().decode(rows)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _Failing(ApiError('one line\nand "another"\r\n')), 'one line\nand "another"\r\n'),
        (lambda: _Failing(RuntimeError("/srv/secret")), "internal server error"),
        (lambda: LlamaCppEngine(_Dying(), LIMITS), "the engine could not decode the request"),
    ],
    ids=["an error that may be told", "one that may not", "the model"],
)
def test_f08_an_error_in_a_stream_keeps_the_frames(make: Callable[[], LlamaCppEngine], message: str) -> None:
    """Error path of SSE (Atomic-Germ/OpenFlowLM-Next#64)."""
    engine = make()
    got = post(build_generate_app(engine), GENERATE, asked())
    asyncio.run(engine.aclose())
    assert got.headers["content-type"] == "text/event-stream"
    *chunks, error = events(got)  # whole frames, the last of them [DONE]
    assert chunks[0]["choices"][0]["token_ids"] == [10]
    assert error == {"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}}
    assert got.complete
    for secret in (b"srv", b"Traceback", b"Error:"):
        assert secret not in got.body


def test_f08_before_the_first_byte_an_error_is_an_answer() -> None:
    """The other half: an error that comes before the stream begins has its status and no frames."""
    engine = LlamaCppEngine(ScriptedBackend(), LIMITS)
    app = build_generate_app(engine)
    for body, status in (
        (asked(token_ids=[500]), 400),
        (asked(model="no"), 404),
        (b'{"token_ids": [5', 400),
        (asked(sampling_params={"stop": ["x"]}), 400),
    ):
        refused(app, GENERATE, body, status=status)
    asyncio.run(engine.aclose())
    assert refused(app, GENERATE, asked(), status=503)["message"] == "the engine is not running"
    assert refused(app, GENERATE, asked(stream=False), status=503)["message"] == "the engine is not running"
    # What a dying server leaves in the stream is refused by derender, as an answer of its own.
    chunk = {"stream": True, "generate_chunk": {"error": {"message": "a\nb", "code": 500}}}
    assert refused(smollm2(), CHAT_DERENDER, chunk)["param"] == "body.generate_chunk.choices"
    assert refused(smollm2(), CHAT_DERENDER, b'{"stream": true, "generate_chunk": {"choi')["param"] == "body"


def test_f08_a_server_that_shuts_down_ends_its_streams() -> None:
    """The same where the server itself ends: an event with the error, then [DONE]."""

    async def main() -> Answer:
        engine = LlamaCppEngine(_Slow(), LIMITS)
        app = build_generate_app(engine)
        one = generate_call(asked())
        task = asyncio.ensure_future(app(one.scope, one.receive, one.send))
        await until(engine, lambda load: load.generated_tokens > 2)
        task.cancel()
        await asyncio.wait_for(task, 5)
        await engine.aclose()
        return one.answer

    got = asyncio.run(main())
    assert events(got)[-1]["error"]["code"] == 503
    assert got.complete


class _Slow(ScriptedBackend):
    """A step takes a moment, so that a request is in work for a while."""

    def decode(self, rows: Sequence[Row]) -> None:
        time.sleep(0.0005)
        super().decode(rows)


def generate_call(body: Json) -> Call:
    data = json.dumps(body).encode()
    return Call("POST", GENERATE, parts=[data], headers=[JSON, ("content-length", str(len(data)))])


class _Watched:
    """What is submitted to and aborted at a scheduler. It holds no job."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.submitted: list[str] = []
        self.aborted: list[str] = []
        self.jobs: weakref.WeakSet[Job] = weakref.WeakSet()
        submit, abort = Scheduler.submit, Scheduler.abort

        def watch_submit(scheduler: Scheduler, job: Job) -> None:
            self.submitted.append(job.request_id)
            self.jobs.add(job)
            submit(scheduler, job)

        def watch_abort(scheduler: Scheduler, job: Job) -> None:
            self.aborted.append(job.request_id)
            abort(scheduler, job)

        monkeypatch.setattr(Scheduler, "submit", watch_submit)
        monkeypatch.setattr(Scheduler, "abort", watch_abort)


def test_f10_a_thousand_departures_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancellation not passed on (ROCm/ATOM#1589, ai-dynamo/dynamo#14325)."""
    watched = _Watched(monkeypatch)

    async def leave(app: App, number: int) -> None:
        streams, at_once = number % 2 == 0, number % 4 < 2
        one = generate_call(asked(stream=streams, request_id=f"r{number}", sampling_params={"max_tokens": 60}))
        if at_once:
            one.gone.set()
        task = asyncio.ensure_future(app(one.scope, one.receive, one.send))
        while not at_once and not one.answer.chunks:
            await asyncio.sleep(0)
            if not streams and f"r{number}" in watched.submitted[-50:]:
                break
        one.gone.set()
        await asyncio.wait_for(task, 5)
        assert not one.answer.complete or not streams

    async def main() -> None:
        backend = _Slow(slots=4)
        engine = LlamaCppEngine(backend, LIMITS)
        app = build_generate_app(engine)
        for start in range(0, 1000, 20):
            await asyncio.gather(*(leave(app, number) for number in range(start, start + 20)))
        left = time.monotonic()
        await asyncio.wait_for(until(engine, lambda load: load.running == load.waiting == 0), 5)
        assert time.monotonic() - left < 1
        assert len(watched.submitted) > 500  # who leaves at once may not get so far
        assert sorted(watched.aborted) == sorted(watched.submitted)  # each once
        assert app.running == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert backend.open_samplers == 0

        # A request that ends by itself is not aborted, and the next ones are served as if nothing had been.
        watched.aborted.clear()
        for streams in (False, True):
            one = generate_call(asked(stream=streams, sampling_params={"max_tokens": 3}))
            await asyncio.wait_for(app(one.scope, one.receive, one.send), 5)
            assert one.answer.status == 200
            assert one.answer.complete
        assert watched.aborted == []
        await engine.aclose()

    asyncio.run(main())
    gc.collect()
    assert len(watched.jobs) == 0


@pytest.mark.parametrize("streams", [False, True])
def test_f10_a_closed_socket_frees_its_slot(streams: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same over real sockets: within a second, aborted once; and nothing is aborted at a normal end."""
    watched = _Watched(monkeypatch)
    engine = LlamaCppEngine(_Slow(slots=1), LIMITS)
    with running(build_generate_app(engine)) as port:

        def load() -> int:
            with Wire(port) as wire:
                wire.send(get_bytes("/load"))
                return int(json.loads(wire.answer()[2])["server_load"])

        for number in range(20):
            body = asked(stream=streams, request_id=f"r{number}", sampling_params={"max_tokens": 62})
            with Wire(port) as wire:
                wire.send(post_bytes(GENERATE, json.dumps(body).encode()))
                if streams:
                    wire.until(b"\n\n")
                else:
                    wait_for(lambda: len(watched.submitted) > number, seconds=5)  # noqa: B023
            left = time.monotonic()
            wait_for(lambda: load() == 0, seconds=5)
            assert time.monotonic() - left < 1
        assert watched.aborted == [f"r{number}" for number in range(20)]
        with Wire(port) as wire:
            wire.send(post_bytes(GENERATE, json.dumps(asked(stream=False, sampling_params={"max_tokens": 3})).encode()))
            assert wire.answer()[0] == 200
        assert len(watched.aborted) == 20
