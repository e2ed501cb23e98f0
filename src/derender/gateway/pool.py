"""The engines of a gateway: which one a request is given, who waits for one, and what all of them can do."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
from collections.abc import Collection, Iterable, Sequence
from types import TracebackType

from derender.engines.base import Capabilities
from derender.gateway.backends import Backend, Connect
from derender.gateway.meter import Meter, NoMeter
from derender.gateway.policies import chooser
from derender.gateway.settings import EngineSpec, PoolSettings, Role
from derender.gateway.waiting import Waiting, Want
from derender.protocol.errors import ApiError, BadRequest, Unavailable

logger = logging.getLogger("derender.gateway")

_START_SECONDS = 15.0
"""How long a start waits for the first probes; an engine that takes longer is watched on."""

_WHOLE: tuple[Role, ...] = ("any",)
_SPLIT: tuple[Role, ...] = ("prefill", "decode")
_TRIED_SECONDS = 1.0  # between two looks at whether an engine that is being probed is listed any more

_BUSY_SECONDS = 2
"""`Retry-After` of what is refused because too much waits."""


class NoRoom(BadRequest):
    """No engine of the model has so long a context. `longest`: the most tokens of any, prompt and output together."""

    def __init__(self, longest: int) -> None:
        super().__init__(f"The request is longer than the engines' maximum context length of {longest} tokens.")
        self.longest = longest


class Lease:
    """One request's place at `backend`. Has to be released; leaving it as a context does so.

    As a context: an `ApiError` is told as the failure, any other exception (the client left) says nothing of the
    engine.
    """

    __slots__ = ("_entered", "_pool", "_released", "backend")

    def __init__(self, pool: EnginePool, backend: Backend, entered: int) -> None:
        self.backend = backend
        self._pool = pool
        self._entered = entered
        self._released = False

    def release(self, failure: ApiError | None = None, *, answered: bool = True) -> None:
        """Gives the place back; calls after the first do nothing.

        `failure`: what the engine did wrong, None where it did all it was asked. `answered` False: the request ended
        before the engine could do so (its client left), which says nothing of the engine's health.
        """
        if self._released:
            return
        self._released = True
        self._pool._released(self.backend, self._entered, failure=failure, answered=answered)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release(error if isinstance(error, ApiError) else None, answered=error is None)


class EnginePool:
    """The engines of a gateway, watched. Belongs to one event loop; begins with `start` and ends with `aclose`.

    `models` are the names that the gateway serves, where it knows them. With more than one, an engine without `models`
    of its own is only asked for names that it serves: the ids of one model mean nothing to another. With one or none,
    an engine that serves a single name is taken to serve that model under its own name.
    """

    def __init__(
        self,
        specs: Sequence[EngineSpec],
        *,
        settings: PoolSettings,
        connect: Connect,
        meter: Meter | None = None,
        models: Collection[str] = (),
        rng: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._meter: Meter = NoMeter() if meter is None else meter
        self._one_model = len(set(models)) <= 1
        self._choosers = {
            role: chooser(settings.policy, prefix_tokens=settings.prefix_tokens, rng=rng) for role in (*_WHOLE, *_SPLIT)
        }
        self._numbers = itertools.count()
        self._backends: dict[EngineSpec, Backend] = {}
        self._told: dict[Backend, bool] = {}
        self._watches: dict[Backend, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._waiting: Waiting[Lease] = Waiting(give=self._give, narrow=self._narrow)
        self._members: dict[tuple[str, Role], list[Backend]] = {}
        self._started = False
        self._closed = False
        self.set_specs(specs)

    # ---------------------------------------------------------------------------------------------- life of the pool

    async def start(self) -> None:
        """Connects and probes every engine once; those that are down or slow are tried on by their watch."""
        if self._started or self._closed:
            return
        self._started = True
        backends = self.backends
        for backend in backends:
            self._watch(backend)
        first = [asyncio.ensure_future(backend.tried.wait()) for backend in backends]
        if not first:
            return
        try:
            await asyncio.wait(first, timeout=_START_SECONDS)
        finally:
            for task in first:
                task.cancel()
            await asyncio.gather(*first, return_exceptions=True)

    async def aclose(self) -> None:
        """Refuses who waits, ends the watch and closes all engines. No task is left."""
        self._closed = True
        self._waiting.refuse_all(_ending)
        backends = list(self._watches) if self._started else self.backends
        self._backends.clear()
        self._members.clear()
        for backend in backends:
            backend.retire()
            self._end(backend)
        while self._ending:
            await asyncio.gather(*self._ending, return_exceptions=True)

    def set_specs(self, specs: Iterable[EngineSpec], /) -> None:
        """Makes these the engines. What is new is connected and watched; what is gone gets nothing new and is closed
        with its last request; the rest stays as it is. A spec that is listed twice is one engine."""
        if self._closed:
            return
        before = self._backends
        self._backends = {}
        for spec in specs:
            if spec not in self._backends:
                kept = before.pop(spec, None)
                self._backends[spec] = kept or Backend(spec, settings=self._settings, number=next(self._numbers))
        self._members.clear()
        for backend in before.values():
            backend.retire()
            logger.info("engine %s is taken out with %d requests left", backend.name, backend.running)
            self._tell(backend)
            if self._started and backend.running == 0:
                self._end(backend)
        self._tell_names()
        if self._started:
            for backend in self._backends.values():
                if backend not in self._watches:
                    self._watch(backend)
        self._refuse_hopeless()

    def _watch(self, backend: Backend) -> None:
        self._watches[backend] = asyncio.get_running_loop().create_task(
            backend.watch(self._connect, self._changed), name=f"watch {backend.name}"
        )

    def _end(self, backend: Backend) -> None:
        """Ends the watch of a backend that has been retired, and closes its engine; once."""
        watch = self._watches.pop(backend, None)
        if watch is None:
            return

        async def work() -> None:
            while not watch.done():  # a wait that ends just as it is cancelled may go on (python/cpython#86296)
                watch.cancel()
                await asyncio.wait([watch], timeout=1)
            await backend.aclose()
            self._told.pop(backend, None)

        task = asyncio.get_running_loop().create_task(work(), name=f"close {backend.name}")
        self._ending.add(task)
        self._tell_names()
        task.add_done_callback(self._ending.discard)

    # ------------------------------------------------------------------------------------------------ what is known

    @property
    def backends(self) -> list[Backend]:
        """The engines, as they were listed."""
        return list(self._backends.values())

    @property
    def waiting(self) -> int:
        """Requests that wait for an engine."""
        return len(self._waiting)

    def ready(self, models: Iterable[str], /) -> bool:
        """Whether each model has an engine that is up; where it is split, one for each step."""
        return all(self._any_up(model, role) for model in models for role in self._roles(model))

    def _any_up(self, model: str, role: Role) -> bool:
        return any(backend.up for backend in self._serving(model, role))

    def capabilities(self, model: str, /) -> Capabilities | None:
        """What all engines of a model that are up can do; of those that were, where none is. None: none is known."""
        known = [
            backend
            for role in self._roles(model)
            for backend in self._serving(model, role)
            if backend.probed
        ]  # fmt: skip
        engines = [backend for backend in known if backend.up] or known
        return meet(backend.engine.capabilities for backend in engines) if engines else None

    async def known(self, model: str, /) -> Capabilities | None:
        """The model's `capabilities`, waited for where its engines are just being probed for the first time: they may
        have been listed a moment ago, in place of those before."""
        while (able := self.capabilities(model)) is None:
            untried = [
                backend
                for role in self._roles(model)
                for backend in self._serving(model, role)
                if not backend.tried.is_set()
            ]
            if not untried or self._closed:
                break
            waits = [asyncio.ensure_future(backend.tried.wait()) for backend in untried]
            try:
                await asyncio.wait(waits, timeout=_TRIED_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
                await asyncio.wait(waits)
        return able

    def splits(self, model: str, /) -> bool:
        """Whether the model has engines for prefill and engines for decode, up or not."""
        return bool(self._serving(model, "prefill")) and bool(self._serving(model, "decode"))

    def _roles(self, model: str) -> tuple[Role, ...]:
        """What the model's requests are given to: engines for prefill and decode where it has both, and no others."""
        return _SPLIT if self.splits(model) else _WHOLE

    def _serving(self, model: str, role: Role) -> list[Backend]:
        """The engines of a model in one role, and those of which it is not known yet."""
        found = self._members.get((model, role))
        if found is None:
            if len(self._members) > 1024:
                self._members.clear()
            found = self._members[model, role] = self._find(model, role)
        return found

    def _find(self, model: str, role: Role) -> list[Backend]:
        exact: list[Backend] = []
        unknown: list[Backend] = []
        alone: list[Backend] = []
        for backend in self._backends.values():
            if backend.spec.role != role or (backend.spec.models and model not in backend.spec.models):
                continue
            if not backend.probed:
                unknown.append(backend)
            elif model in backend.served or (backend.spec.models and backend.name_for(model) is not None):
                exact.append(backend)
            elif self._one_model and not backend.spec.models and backend.name_for(model) is not None:
                alone.append(backend)
        return (exact or alone) + unknown

    def _changed(self, backend: Backend) -> None:
        self._members.clear()
        self._tell(backend)
        self._refuse_hopeless()
        self._dispatch()

    def _tell(self, backend: Backend) -> None:
        """Logs that a backend went up or down, once, and tells the meter."""
        up = backend.up
        if backend.retired:
            if backend not in self._watches or any(one.name == backend.name for one in self._backends.values()):
                return  # let go, or listed anew with another key or for other models: that one is told
        elif up is not self._told.get(backend) and not self._closed:
            self._told[backend] = up
            if up:
                logger.info("engine %s is up: serves %s", backend.name, ", ".join(backend.served) or "no model")
            else:
                logger.warning("engine %s is down: %s", backend.name, backend.trouble)
        self._meter.engine_state(backend.name, up=up, running=backend.running)

    def _tell_names(self) -> None:
        """Tells the meter which engines there are: those that are listed, and those that still have requests."""
        if not self._closed:
            self._meter.engines({one.name for one in itertools.chain(self._backends.values(), self._watches)})

    # ----------------------------------------------------------------------------------------------------- requests

    async def take(
        self,
        model: str,
        /,
        *,
        role: Role = "any",
        token_ids: Sequence[int] = (),
        exclude: Collection[Backend] = (),
        need: int = 0,
    ) -> Lease:
        """A place at an engine of that role, never at one of `exclude`, with room for `need` tokens, prompt and output
        together.

        Where all engines have as many requests as they are given at once, or have too much to do, waits in the order
        of the calls. Raises `Unavailable` where there is no engine, where none is up, and where the wait is too long;
        `NoRoom` where none of the model's engines, up or not, has a context so long.
        """
        if self._waiting:
            self._dispatch()  # what the clock alone has made free goes to those who came first
        want = Want(model, role, token_ids, exclude, need)
        if (lease := self._give(want)) is not None:
            return lease
        if len(self._waiting) >= self._settings.queue:
            raise Unavailable("too many requests wait for an engine", retry_after=_BUSY_SECONDS)
        waiter = self._waiting.join(want)
        late = Unavailable("no engine came free in time", retry_after=_BUSY_SECONDS)
        timer = asyncio.get_running_loop().call_later(
            self._settings.queue_seconds, self._waiting.refuse, waiter, late
        )  # fmt: skip
        try:
            return await waiter.given
        except asyncio.CancelledError:
            given = waiter.given
            if given.done() and not given.cancelled() and given.exception() is None:
                given.result().release(answered=False)
            raise
        finally:
            timer.cancel()
            self._waiting.leave(waiter)

    def _passing(self, want: Want) -> list[Backend]:
        """The engines that a request may have, now or when they have room. Raises `Unavailable` where there is none,
        `NoRoom` where that will not change."""
        if self._closed:
            raise _ending()
        kind = "engine" if want.role == "any" else f"{want.role} engine"
        serving = self._serving(want.model, want.role)
        if not serving:
            seconds = self._settings.probe_seconds
            raise Unavailable(f"no {kind} serves this model", retry_after=max(1, math.ceil(seconds)))
        fitting = [backend for backend in serving if backend.fits(want.need)]
        if not fitting:
            raise NoRoom(max(backend.max_model_len or 0 for backend in serving))
        left = [backend for backend in fitting if backend not in want.exclude] if want.exclude else fitting
        if not left:
            raise Unavailable(f"no other {kind} serves this model", retry_after=_BUSY_SECONDS)
        if passing := [backend for backend in left if backend.passes]:
            return passing
        seconds = min(backend.retry_seconds for backend in left)
        what = "this model" if len(fitting) == len(serving) else "so long a request to this model"
        raise Unavailable(f"no {kind} is up for {what}", retry_after=max(1, math.ceil(seconds)))

    def _give(self, want: Want) -> Lease | None:
        """A place, or None where one may come free. Raises `Unavailable` and `NoRoom` where none will."""
        free = [backend for backend in self._passing(want) if backend.has_room]
        if not free:
            return None
        backend = self._choosers[want.role].choose(want.model, free, want.token_ids)
        lease = Lease(self, backend, backend.enter())
        self._meter.engine_state(backend.name, up=backend.up, running=backend.running)
        return lease

    def _released(self, backend: Backend, entered: int, *, failure: ApiError | None, answered: bool) -> None:
        if backend.leave(entered, failure=failure, answered=answered) and not backend.retired and not self._closed:
            backend.cool(self._dispatch)
        self._tell(backend)
        if not backend.retired:
            if not backend.passes:
                self._refuse_hopeless()
            self._dispatch()
        elif backend.running == 0 and not self._closed:
            self._end(backend)

    # ------------------------------------------------------------------------------------------------- who waits

    def _dispatch(self) -> None:
        """Gives what is free to those who wait."""
        if self._waiting and not self._closed:
            self._waiting.dispatch()

    def _narrow(self, want: Want) -> bool:
        """Whether others of its line may be given what this one cannot have."""
        return bool(want.exclude) or not all(backend.fits(want.need) for backend in self._serving(*want.line))

    def _refuse_hopeless(self) -> None:
        """Refuses those who wait for engines of which none is up any more, or none has room any more."""
        if self._waiting and not self._closed:
            self._waiting.refuse_lost(self._lost)

    def _lost(self, want: Want) -> ApiError | None:
        try:
            self._passing(want)
        except (Unavailable, NoRoom) as error:
            return error
        return None


def _ending() -> Unavailable:
    return Unavailable("the server is shutting down", retry_after=_BUSY_SECONDS)


def meet(capabilities: Iterable[Capabilities], /) -> Capabilities:
    """What each of several engines can do; at least one. A bound that is none (-1 of `max_logprobs`, None of `max_n`)
    is above all others."""
    every = list(capabilities)
    logprobs = [one.max_logprobs for one in every if one.max_logprobs >= 0]
    choices = [one.max_n for one in every if one.max_n is not None]
    return Capabilities(
        stop_strings=all(one.stop_strings for one in every),
        prompt_logprobs=all(one.prompt_logprobs for one in every),
        bad_words=all(one.bad_words for one in every),
        multimodal=all(one.multimodal for one in every),
        kv_transfer=all(one.kv_transfer for one in every),
        text_output=all(one.text_output for one in every),
        structured_outputs=frozenset.intersection(*(one.structured_outputs for one in every)),
        max_logprobs=min(logprobs, default=-1),
        max_n=min(choices, default=None),
    )
