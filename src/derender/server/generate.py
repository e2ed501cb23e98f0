"""The generate server: token ids in, token ids out over HTTP, as `vllm serve --tokens-only` speaks, on one engine."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from importlib.metadata import version
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from derender.engines.base import Engine, EngineLoad
from derender.engines.sampling import FEW
from derender.protocol.codec import Decoder, check_containers, encode
from derender.protocol.common import ModelCard, ModelList, ModelPermission
from derender.protocol.generate import AbortRequest, GenerateChunk, GenerateRequest
from derender.server.generate_wire import DONE, GenerateWire, LogprobWire
from derender.server.http import App
from derender.server.listen import Address, ListenError, bind, describe, release
from derender.server.messages import ClientLeft, Request, Response, Route, StreamResponse
from derender.server.metrics import CONTENT_TYPE, ServerMetrics
from derender.server.pool import INLINE_BYTES, WorkPool
from derender.server.run import ServerSettings, configure_logging, leave, run_app

_CHOICE_BYTES = 256  # of a short choice in an answer, about
_CLIENT_CLOSED_REQUEST = 499  # nobody reads it; metrics tell it from an answer

_decode = Decoder(GenerateRequest)
_decode_abort = Decoder(AbortRequest)


def _decode_large(body: bytes) -> GenerateRequest:
    check_containers(body, answer=True)  # a prompt's offsets are as many lists as an answer's logprobs
    return _decode(body)


class GenerateServer:
    """The routes of one engine."""

    def __init__(self, engine: Engine, *, logprob_wire: LogprobWire = "ids", metrics: ServerMetrics) -> None:
        self._engine = engine
        self._wire = GenerateWire(logprob_wire)
        self._metrics = metrics
        self._pool = WorkPool()
        self._created = int(time.time())

    def routes(self) -> list[Route]:
        abort = self.abort_requests
        return [
            Route("POST", "/inference/v1/generate", self.generate, json_body=True),
            Route("POST", "/inference/v1/abort_requests", abort),
            Route("POST", "/abort_requests", abort),  # where older tokens-only servers have it
            Route("GET", "/v1/models", self.models),
            Route("GET", "/health", self.health, open=True),
            Route("GET", "/ping", self.health, open=True),
            Route("POST", "/ping", self.health, open=True),
            Route("GET", "/version", self.version, open=True),
            Route("GET", "/load", self.load, open=True),
            Route("GET", "/metrics", self.metrics, open=True),
        ]

    async def generate(self, request: Request) -> Response | StreamResponse:
        body = request.body
        size = len(body)
        asked = _decode(body) if size <= INLINE_BYTES else await self._pool.run(lambda: _decode_large(body), size=size)
        if asked.stream:
            return StreamResponse(self._events(await self._engine.stream(asked)), end=DONE)
        try:
            answer = await request.unless_left(self._engine.generate(asked))
        except ClientLeft:
            return Response(status=_CLIENT_CLOSED_REQUEST)
        choices = len(answer.choices)
        if choices <= FEW:
            return Response(self._wire.response(answer))
        return Response(await self._pool.run(lambda: self._wire.response(answer), size=choices * _CHOICE_BYTES))

    async def _events(self, chunks: AsyncGenerator[GenerateChunk, None]) -> AsyncGenerator[bytes, None]:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield self._wire.event(chunk)
        yield DONE

    async def abort_requests(self, request: Request) -> Response:
        await self._engine.abort(_decode_abort(request.body).request_ids)
        return Response(content_type=None)

    async def close(self) -> None:
        """Frees the engine and the threads."""
        await self._engine.aclose()
        await self._pool.close()

    async def models(self, request: Request) -> Response:
        cards = [
            ModelCard(
                id=model.name,
                created=self._created,
                root=model.root,
                max_model_len=model.max_model_len,
                permission=[ModelPermission(id=f"modelperm-{model.name}", created=self._created)],
            )
            for model in await self._engine.models()
        ]
        return Response(encode(ModelList(data=cards)))

    async def health(self, request: Request) -> Response:
        await self._engine.health()
        return Response(content_type=None)

    async def version(self, request: Request) -> Response:
        return Response(encode({"version": version("derender")}))

    async def load(self, request: Request) -> Response:
        load = await self._engine.load()
        return Response(encode({"server_load": load.running + load.waiting}))

    async def metrics(self, request: Request) -> Response:
        registry = CollectorRegistry()
        registry.register(_EngineCollector(await self._engine.load()))
        return Response(self._metrics.render() + generate_latest(registry), content_type=CONTENT_TYPE)


class _EngineCollector(Collector):
    """An engine's load as metrics, at one moment."""

    def __init__(self, load: EngineLoad) -> None:
        self._load = load

    def collect(self) -> Iterable[Metric]:
        load = self._load
        yield GaugeMetricFamily("derender_engine_running", "Sequences that the engine works on.", load.running)
        yield GaugeMetricFamily("derender_engine_waiting", "Sequences that wait for a slot.", load.waiting)
        yield CounterMetricFamily("derender_engine_prompt_tokens", "Prompt tokens taken in.", load.prompt_tokens)
        yield CounterMetricFamily("derender_engine_generated_tokens", "Tokens generated.", load.generated_tokens)


def build_generate_app(
    engine: Engine,
    *,
    logprob_wire: LogprobWire = "ids",
    api_keys: Sequence[str] = (),
    max_body_bytes: int = 64 << 20,
) -> App:
    """The application that serves an engine; it closes the engine when it shuts down."""
    metrics = ServerMetrics()
    server = GenerateServer(engine, logprob_wire=logprob_wire, metrics=metrics)
    return App(
        server.routes(),
        max_body_bytes=max_body_bytes,
        api_keys=api_keys,
        metrics=metrics,
        on_shutdown=(server.close,),
    )


def run_generate(
    model: str | Path,
    *,
    served_model_name: Sequence[str] = (),
    host: str = "0.0.0.0",
    port: int = 8001,
    uds: str | None = None,
    api_keys: Sequence[str] = (),
    max_model_len: int | None = None,
    parallel: int = 8,
    threads: int | None = None,
    logprob_wire: LogprobWire = "ids",
    max_body_mb: float = 64,
    shutdown_seconds: int = 30,
    log_level: str = "info",
) -> None:
    """Serves a GGUF file until SIGTERM or SIGINT, then lets running requests end for up to `shutdown_seconds`.

    Prints what it serves and where once it does. What keeps it from serving ends the process with one line on
    standard error and exit code 1.
    """
    from derender.engines.llama_abi import EngineUnavailable
    from derender.engines.llama_backend import BackendOptions
    from derender.engines.llamacpp import LlamaCppEngine

    address = Address(host=host, port=port, uds=uds)
    settings = ServerSettings(address=address, shutdown_seconds=shutdown_seconds, log_level=log_level)
    configure_logging(settings)
    signal.signal(signal.SIGTERM, leave)
    options = BackendOptions(slots=parallel, threads=threads, max_model_len=max_model_len)
    try:
        sock = bind(address)
        engine = LlamaCppEngine.open(Path(model), names=served_model_name, options=options)
    except (ListenError, EngineUnavailable) as error:
        print(f"derender: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    app = build_generate_app(
        engine, logprob_wire=logprob_wire, api_keys=api_keys, max_body_bytes=int(max_body_mb * (1 << 20))
    )
    lines = (
        f"Generating with {', '.join(engine.limits.names)} ({engine.description})",
        f"{parallel} sequences at once, {engine.limits.max_model_len} tokens each; "
        f"{engine.limits.vocab_size} ids; logprobs as {logprob_wire}",
        f"Listening on {describe(address, sock, tls=False)}",
    )
    try:
        run_app(app, settings=settings, sock=sock, on_ready=lambda: print(*lines, sep="\n", flush=True))
    except KeyboardInterrupt:  # raised again by uvicorn after it has drained
        pass
    finally:
        release(address)
