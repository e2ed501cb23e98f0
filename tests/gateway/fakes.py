"""Engines made by hand, a meter that remembers, and an event loop whose clock jumps."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from derender.engines.base import NO_HEADERS, Capabilities, EngineLoad, EngineModel
from derender.engines.errors import EngineFailed
from derender.gateway.meter import NoMeter
from derender.gateway.pool import EnginePool
from derender.gateway.settings import EngineSpec, PoolSettings
from derender.protocol.errors import Unavailable
from derender.protocol.generate import GenerateChunk, GenerateRequest, GenerateResponse

T = TypeVar("T")


class FakeEngine:
    """An engine that only tells of itself. `up`: it is healthy; `hangs`: it answers nothing; `opaque`: its probe
    fails. `asked` are the names of the calls that came."""

    def __init__(
        self,
        *names: str,
        length: int | None = 1000,
        able: Capabilities | None = None,
        up: bool = True,
    ) -> None:
        self.names = names or ("m",)
        self.length = length
        self.able = able or Capabilities()
        self.up = up
        self.hangs = False
        self.opaque = False
        self.broken: Exception | None = None
        self.closed = 0
        self.asked: list[str] = []
        self.capabilities = Capabilities()

    async def _call(self, name: str) -> None:
        assert not self.closed, f"{name} after aclose"
        self.asked.append(name)
        if self.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken

    async def probe(self) -> None:
        await self._call("probe")
        if self.opaque:
            raise EngineFailed("the engine has too much to do", overloaded=True)
        self.capabilities = self.able

    async def health(self) -> None:
        await self._call("health")
        if not self.up:
            raise Unavailable("the engine is down")

    async def models(self) -> list[EngineModel]:
        await self._call("models")
        return [EngineModel(name, self.length) for name in self.names]

    async def generate(
        self, request: GenerateRequest, /, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> GenerateResponse:
        raise NotImplementedError

    async def stream(
        self, request: GenerateRequest, /, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> AsyncGenerator[GenerateChunk, None]:
        raise NotImplementedError

    async def abort(self, request_ids: Iterable[str], /) -> None:
        raise NotImplementedError

    async def load(self) -> EngineLoad:
        return EngineLoad()

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


class Fleet:
    """Engines by URL, and how a pool connects to them; what is listed in `unreachable` cannot be."""

    def __init__(self, **engines: FakeEngine) -> None:
        self.engines = {url(name): engine for name, engine in engines.items()}
        self.unreachable: set[str] = set()

    def __getitem__(self, name: str) -> FakeEngine:
        return self.engines[url(name)]

    async def connect(self, spec: EngineSpec) -> FakeEngine:
        await asyncio.sleep(0)
        if spec.url in self.unreachable:
            raise EngineFailed("the engine cannot be reached", begun=False)
        return self.engines[spec.url]

    def pool(self, *specs: EngineSpec, models: Iterable[str] = (), meter: Any = None, **settings: Any) -> EnginePool:
        """A pool over all engines, or over these specs."""
        every = specs or tuple(EngineSpec(url=url) for url in self.engines)
        return EnginePool(
            every,
            settings=PoolSettings(**settings),
            connect=self.connect,
            meter=meter or NoMeter(),
            models=tuple(models),
        )


class States(NoMeter):
    """A meter that remembers what it is told of engines: `(name, up, running)`."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bool, int]] = []

    def engine_state(self, engine: str, *, up: bool, running: int) -> None:
        self.told.append((engine, up, running))


def url(name: str) -> str:
    return f"http://{name}:8000"


def spec(name: str, **fields: Any) -> EngineSpec:
    return EngineSpec(url=url(name), **fields)


class _Jumping(selectors.DefaultSelector):
    """Instead of waiting, moves the clock on."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("all tasks wait for each other")
        self.now += max(timeout, 0.0)
        return super().select(0)


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _Jumping()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def at_once(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a test in a loop whose time passes at once, and in which no task may be left."""
    loop = _JumpingLoop()
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(main())
        left = asyncio.all_tasks(loop)
        assert not left, f"tasks are left: {left}"
        return result
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        asyncio.set_event_loop(None)
        loop.close()


def now() -> float:
    return asyncio.get_running_loop().time()


async def settled() -> None:
    """Lets all run that need not wait for the clock."""
    for _ in range(20):
        await asyncio.sleep(0)


async def outcome(work: Awaitable[T]) -> T | str:
    """What comes of a wait: its result, or the message of its refusal."""
    try:
        return await work
    except Unavailable as error:
        refusal = error
    assert refusal.retry_after is not None
    assert refusal.retry_after >= 1
    return refusal.message
