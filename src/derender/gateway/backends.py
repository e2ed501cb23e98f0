"""One engine of a pool: what is known of it, whether it may be given requests, and the task that keeps watching it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import random
from collections.abc import Awaitable, Callable

from derender.engines.base import Capabilities, Engine
from derender.engines.errors import EngineFailed, EngineRefused
from derender.gateway.circuit import Circuit, loop_time
from derender.gateway.settings import EngineSpec, PoolSettings
from derender.protocol.errors import ApiError

logger = logging.getLogger("derender.gateway")

Connect = Callable[[EngineSpec], "Awaitable[Engine] | Engine"]

OVERLOAD_SECONDS = 1.0
"""How long an engine that said that it has too much to do is given nothing."""

_CONNECT_SECONDS = 300.0  # an engine in this process reads its weights
_HEALTH_SECONDS = 6.0  # one over what a client over HTTP gives it
_MODELS_SECONDS = 10.0
_PROBE_SECONDS = 90.0  # over what a client gives an engine that compiles its kernels for its first request
_CLOSE_SECONDS = 10.0
_DOUBT_SECONDS = 1.0
"""How long after a look at an engine its refusals make no other one."""

_JITTER = 0.2
"""The share of the time between two probes by which it varies, so that many gateways do not probe in step."""

_DOUBTFUL = (400, 404)
"""Refusals that an engine gives where it is not what it was: its context is shorter, its model has another name."""

_MAX_TROUBLE = 300


def engine_name(url: str) -> str:
    """An engine's address for logs and metrics: without user, password, query and fragment."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    for mark in "?#":
        rest = rest.partition(mark)[0]
    authority, slash, path = rest.partition("/")
    return scheme + separator + authority.rpartition("@")[2] + slash + path


def backend_name(spec: EngineSpec) -> str:
    """An engine's name for logs and metrics: one address may be listed in several roles."""
    name = engine_name(spec.url)
    return name if spec.role == "any" else f"{name} ({spec.role})"


class Backend:
    """One engine and what is known of it. Belongs to one event loop.

    `running`: requests given to it now. `served`: the names that the engine itself serves, with the most tokens of
    each. `probed`: whether names and capabilities are known, without which it is given nothing. `retired`: it was
    taken out and gets nothing new. `trouble`: why the last probe failed.
    """

    def __init__(self, spec: EngineSpec, *, settings: PoolSettings, number: int = 0) -> None:
        self.spec = spec
        self.name = backend_name(spec)
        self.number = number
        self.running = 0
        self.served = {}
        self.probed = False
        self.retired = False
        self.trouble = ""
        self.circuit = Circuit(failures=settings.failures, cooldown=settings.cooldown_seconds)
        self.tried = asyncio.Event()
        """Set once the first probe is over, whatever came of it."""
        self._settings = settings
        self._engine: Engine | None = None
        self._stale = False
        self._missed = False
        self._looked = -math.inf
        self._cooling: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Backend {self.name} role={self.spec.role} running={self.running} up={self.up}>"

    @property
    def engine(self) -> Engine:
        """The engine. Every backend that is given to a request has one."""
        if self._engine is None:
            raise RuntimeError(f"{self.name} is not connected yet")
        return self._engine

    @property
    def connected(self) -> bool:
        """Whether there is an `engine`."""
        return self._engine is not None

    @property
    def capabilities(self) -> Capabilities | None:
        """What the engine can do; None until it is known."""
        return self.engine.capabilities if self.probed else None

    @property
    def up(self) -> bool:
        """Whether it is known and healthy."""
        return self.probed and not self.retired and self.circuit.closed

    @property
    def cooling(self) -> bool:
        """Whether it said just now that it has too much to do."""
        return self._cooling is not None

    @property
    def passes(self) -> bool:
        """Whether it may be given a request now or as soon as it has room."""
        return self.probed and not self.retired and self.circuit.passes

    @property
    def has_room(self) -> bool:
        """Whether it may be given one request more."""
        limit = self._settings.concurrency
        return self._cooling is None and (limit <= 0 or self.running < limit)

    @property
    def retry_seconds(self) -> float:
        """After how long it may be worth to ask for this engine again, where it is down."""
        return self.circuit.seconds_left if self.probed else self._settings.probe_seconds

    def name_for(self, model: str, /) -> str | None:
        """The name by which the engine is to be asked for `model`: that name, or the only one that it serves.
        None where it serves several others, or none is known yet."""
        if model in self.served:
            return model
        return next(iter(self.served)) if len(self.served) == 1 else None

    @property
    def served(self) -> dict[str, int | None]:
        """The names that the engine serves, with the most tokens of each where it tells that."""
        return self._served

    @served.setter
    def served(self, served: dict[str, int | None]) -> None:
        self._served = served
        self._longest = min((length for length in served.values() if length is not None), default=None)

    @property
    def max_model_len(self) -> int | None:
        """The most tokens of a request, prompt and output together, whichever of its names it is for; None where the
        engine tells none."""
        return self._longest

    def fits(self, tokens: int, /) -> bool:
        """Whether a request of so many tokens, prompt and output together, has room; True where it is not known."""
        return self._longest is None or tokens <= self._longest

    # ------------------------------------------------------------------------------------------------ requests

    def enter(self) -> int:
        """Counts a request in; `leave` takes what this returns."""
        self.running += 1
        return self.circuit.enter()

    def leave(self, entered: int, /, *, failure: ApiError | None, answered: bool) -> bool:
        """Counts a request out, and what it says of the engine; whether the engine has too much to do."""
        self.running -= 1
        was_closed = self.circuit.closed
        overloaded = isinstance(failure, EngineFailed) and failure.overloaded
        self.circuit.leave(entered, ok=None if overloaded else _healthy(failure, answered=answered))
        if isinstance(failure, EngineFailed) and not overloaded:
            self.trouble = _one_line(failure)
        if isinstance(failure, EngineRefused) and failure.status in _DOUBTFUL and self._is_doubted():
            self._wake.set()
        if self.circuit.closed and not was_closed:
            self._stale = True
            self._wake.set()
        return overloaded

    def _is_doubted(self) -> bool:
        """Whether a refusal is worth a look at the engine: there was none just now."""
        return loop_time() - self._looked >= _DOUBT_SECONDS

    def cool(self, then: Callable[[], None], /) -> None:
        """Gives the engine nothing for a second, after which it calls `then`."""
        if self._cooling is not None:
            self._cooling.cancel()
        self._cooling = asyncio.get_running_loop().call_later(OVERLOAD_SECONDS, self._cooled, then)

    def _cooled(self, then: Callable[[], None]) -> None:
        self._cooling = None
        then()

    # ------------------------------------------------------------------------------------------------ watching

    async def watch(self, connect: Connect, changed: Callable[[Backend], None], /) -> None:
        """Connects and probes the engine, again and again until it is retired; calls `changed` whenever something
        may be known that was not before."""
        while not self.retired:
            if self.probed and (left := self.circuit.seconds_left) > 0:
                await self._sleep(left)
                continue
            await self._check(connect, changed)
            self.tried.set()
            changed(self)
            spread = random.uniform(1 - _JITTER, 1 + _JITTER)
            await self._sleep(max(0.01, self._settings.probe_seconds) * spread)

    async def _check(self, connect: Connect, changed: Callable[[Backend], None]) -> None:
        begun = self.circuit.begin_probe()
        ok: bool | None = None
        self._looked = loop_time()
        try:
            engine = await self._reach(connect)
            if not self.probed or not self.circuit.closed or self._stale:
                await self._learn_names(engine)
                self._stale = True
            elif await self._is_other(engine) or self._missed:
                self._stale = True
            if not self.probed:
                await self._learn_capabilities(engine)
            ok = True
        except Exception as error:  # whatever a client of an engine raises must not end the watch
            self.trouble = self._explained(error)
            ok = False
        finally:
            self._looked = loop_time()
            self._missed = not ok
            self.circuit.end_probe(begun, ok=ok)
        if ok and self._stale and not self.retired:
            changed(self)
            await self._learn_again(engine)

    async def _reach(self, connect: Connect) -> Engine:
        """The engine, connected and healthy."""
        if self._engine is None:
            made = connect(self.spec)
            self._engine = await asyncio.wait_for(made, _CONNECT_SECONDS) if inspect.isawaitable(made) else made
        await asyncio.wait_for(self._engine.health(), _HEALTH_SECONDS)
        return self._engine

    async def _learn_names(self, engine: Engine) -> None:
        models = await asyncio.wait_for(engine.models(), _MODELS_SECONDS)
        served = {model.name: model.max_model_len for model in models}
        if self.up and served != self.served:
            logger.info("engine %s has changed: serves %s, served %s", self.name, _told(served), _told(self.served))
        self.served = served

    async def _is_other(self, engine: Engine) -> bool:
        """Looks whether an engine that is up serves what it did: it may have been restarted between two probes, or be
        another one behind the same address. Where it does not tell, what was known holds until the next probe."""
        before = self.served
        try:
            await self._learn_names(engine)
        except Exception as error:  # whatever a client of an engine raises; the engine is healthy
            logger.debug("engine %s: its models are not known again: %s", self.name, self._explained(error))
        return self.served != before

    async def _learn_capabilities(self, engine: Engine) -> None:
        await asyncio.wait_for(engine.probe(), _PROBE_SECONDS)
        self.probed = True
        self._stale = False

    async def _learn_again(self, engine: Engine) -> None:
        """Capabilities of an engine that came back. Where they cannot be had, those of before hold until the next
        probe: it is up, and requests tell of its health."""
        try:
            await self._learn_capabilities(engine)
        except Exception as error:  # as above
            logger.debug("engine %s: its capabilities are not known again: %s", self.name, self._explained(error))

    def _explained(self, error: Exception) -> str:
        if isinstance(error, asyncio.TimeoutError):
            return "it does not answer in time"
        if isinstance(error, ApiError):
            return _one_line(error)
        logger.debug("engine %s: its client failed", self.name, exc_info=error)
        return f"its client failed: {type(error).__name__}: {_one_line(error)}"

    async def _sleep(self, seconds: float) -> None:
        """Waits so long, or until the watch is woken."""
        handle = asyncio.get_running_loop().call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            handle.cancel()
            self._wake.clear()

    def retire(self) -> None:
        """Gets nothing new from now on."""
        self.retired = True
        self._wake.set()
        if self._cooling is not None:
            self._cooling.cancel()
            self._cooling = None

    async def aclose(self) -> None:
        """Closes the engine, where it was connected. The watch has to have ended."""
        self.retire()
        if self._engine is None:
            return
        try:
            await asyncio.wait_for(self._engine.aclose(), _CLOSE_SECONDS)
        except Exception as error:  # there is nothing more to be done for it
            logger.warning("engine %s could not be closed: %s", self.name, self._explained(error))


def _healthy(failure: ApiError | None, *, answered: bool) -> bool | None:
    """What the end of a request says of the engine's health; None: nothing."""
    if isinstance(failure, EngineFailed):
        return False
    if isinstance(failure, EngineRefused):
        return True  # it knows what it was asked
    return True if failure is None and answered else None


def _told(served: dict[str, int | None]) -> str:
    """Names and lengths for a log."""
    named = (name if length is None else f"{name} ({length} tokens)" for name, length in served.items())
    return ", ".join(named) or "no model"


def _one_line(error: BaseException) -> str:
    """An error's text for a log."""
    text = " ".join((error.message if isinstance(error, ApiError) else str(error)).split())
    return text[:_MAX_TROUBLE] or type(error).__name__
