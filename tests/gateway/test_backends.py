"""One engine: its name, what it serves, its circuit."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.gateway.fakes import FakeEngine, at_once, settled, spec

from derender.engines.base import Capabilities
from derender.engines.errors import EngineFailed, EngineRefused, EngineTimeout
from derender.gateway.backends import Backend, engine_name
from derender.gateway.circuit import Circuit
from derender.gateway.settings import EngineSpec, PoolSettings
from derender.protocol.errors import ApiError, BadRequest


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://10.0.0.7:8000", "http://10.0.0.7:8000"),
        ("https://user:pa@ss@host/base?key=1#x", "https://host/base"),
        ("http://host?key=a/b", "http://host"),
        ("http://user@[::1]:80/", "http://[::1]:80/"),
        ("http://host/a@b", "http://host/a@b"),
        ("unix:/run/engine.sock", "unix:/run/engine.sock"),
        ("unix:///run/engine.sock", "unix:///run/engine.sock"),
        ("embedded:/models/a.gguf", "embedded:/models/a.gguf"),
    ],
)
def test_a_name_has_no_secrets(url: str, name: str) -> None:
    assert engine_name(url) == name
    assert Backend(EngineSpec(url=url), settings=PoolSettings()).name == name


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def circuit(self, failures: int = 3) -> Circuit:
        return Circuit(failures=failures, cooldown=10.0, now=lambda: self.now)


def request(circuit: Circuit, ok: bool | None) -> None:
    assert circuit.passes
    circuit.leave(circuit.enter(), ok=ok)


def probe(circuit: Circuit, ok: bool | None) -> None:
    circuit.end_probe(circuit.begin_probe(), ok=ok)


def opened(clock: Clock, failures: int = 3) -> Circuit:
    circuit = clock.circuit(failures)
    for _ in range(failures):
        request(circuit, ok=False)
    return circuit


def test_failures_in_a_row_open() -> None:
    circuit = Clock().circuit()
    for ok in (False, False, True, False, False):
        request(circuit, ok=ok)
        assert circuit.state == "closed"
    request(circuit, ok=None)  # says nothing, so the row goes on
    request(circuit, ok=False)
    assert circuit.state == "open"
    assert not circuit.passes
    assert circuit.seconds_left == 10.0


def test_one_request_tries_a_half_open_circuit() -> None:
    clock = Clock()
    circuit = opened(clock)
    clock.now = 9.9
    assert not circuit.passes
    clock.now = 10.0
    assert circuit.state == "half-open"
    assert circuit.passes
    entered = circuit.enter()
    assert not circuit.passes
    circuit.leave(entered, ok=None)
    assert circuit.passes
    assert circuit.state == "half-open"
    request(circuit, ok=False)
    assert circuit.state == "open"
    assert circuit.seconds_left == 10.0
    clock.now = 20.0
    request(circuit, ok=True)
    assert circuit.state == "closed"
    request(circuit, ok=False)
    request(circuit, ok=False)
    assert circuit.state == "closed"


def test_no_request_while_a_probe_tries() -> None:
    clock = Clock()
    circuit = opened(clock)
    clock.now = 10.0
    begun = circuit.begin_probe()
    assert not circuit.passes
    circuit.end_probe(begun, ok=None)
    assert circuit.passes
    probe(circuit, ok=False)
    assert circuit.state == "open"


def test_after_a_good_probe_one_failed_request_opens() -> None:
    clock = Clock()
    circuit = opened(clock)
    clock.now = 10.0
    probe(circuit, ok=True)
    assert circuit.state == "closed"
    request(circuit, ok=False)
    assert circuit.state == "open"


def test_good_probes_do_not_hide_failing_requests() -> None:
    circuit = Clock().circuit()
    for _ in range(3):
        request(circuit, ok=False)
        if circuit.closed:
            probe(circuit, ok=True)
    assert circuit.state == "open"


def test_failing_probes_open() -> None:
    clock = Clock()
    circuit = clock.circuit()
    probe(circuit, ok=False)
    probe(circuit, ok=False)
    request(circuit, ok=True)
    probe(circuit, ok=False)
    probe(circuit, ok=False)
    assert circuit.state == "closed"
    probe(circuit, ok=False)
    assert circuit.state == "open"
    clock.now = 10.0
    probe(circuit, ok=True)
    request(circuit, ok=False)
    assert circuit.state == "closed"  # no request had failed before


def test_what_began_before_it_opened_is_not_counted() -> None:
    clock = Clock()
    circuit = clock.circuit()
    old = [circuit.enter() for _ in range(10)]
    probing = circuit.begin_probe()
    for entered in old[:3]:
        circuit.leave(entered, ok=False)
    assert circuit.seconds_left == 10.0
    clock.now = 5.0
    circuit.leave(old[3], ok=False)
    assert circuit.seconds_left == 5.0
    circuit.leave(old[4], ok=True)
    circuit.end_probe(probing, ok=True)
    assert circuit.state == "open"
    clock.now = 10.0
    trial = circuit.enter()
    circuit.leave(old[5], ok=True)
    assert not circuit.passes  # the one request that tries is still at it
    circuit.leave(trial, ok=True)
    for entered in old[6:]:
        circuit.leave(entered, ok=False)
    assert circuit.state == "closed"


def test_a_trial_outlives_a_probe() -> None:
    clock = Clock()
    circuit = opened(clock)
    clock.now = 10.0
    trial = circuit.enter()
    probe(circuit, ok=True)
    assert circuit.passes
    circuit.leave(trial, ok=False)
    assert circuit.state == "open"


# --------------------------------------------------------------------------------------------------------- backend


def test_names() -> None:
    backend = Backend(spec("e"), settings=PoolSettings())
    assert backend.name_for("m") is None
    assert backend.max_model_len is None
    assert backend.capabilities is None
    backend.served = {"m": 4096}
    assert backend.name_for("m") == "m"
    assert backend.name_for("alias") == "m"
    assert backend.max_model_len == 4096
    backend.served = {"m": 4096, "lora": None, "short": 2048}
    assert backend.name_for("lora") == "lora"
    assert backend.name_for("alias") is None
    assert backend.max_model_len == 2048
    with pytest.raises(RuntimeError):
        _ = backend.engine


@pytest.mark.parametrize(
    ("failure", "counts"),
    [
        (EngineFailed("x"), True),
        (EngineFailed("x", begun=False), True),
        (EngineTimeout("x"), True),
        (EngineFailed("x", overloaded=True), False),
        (EngineRefused("x", status=400), False),
        (BadRequest("x"), False),
        (None, False),
    ],
)
def test_which_failures_count(failure: ApiError | None, counts: bool) -> None:
    async def main() -> None:
        backend = Backend(spec("e"), settings=PoolSettings(failures=1))
        backend.probed = True
        overloaded = backend.leave(backend.enter(), failure=failure, answered=True)
        assert overloaded == (isinstance(failure, EngineFailed) and failure.overloaded)
        assert backend.up is not counts
        assert backend.running == 0

    at_once(main)


@pytest.mark.parametrize(
    ("failure", "answered", "state"),
    [
        (None, True, "closed"),
        (EngineRefused("x", status=400), True, "closed"),
        (None, False, "half-open"),
        (BadRequest("x"), True, "half-open"),
        (EngineFailed("x", overloaded=True), True, "half-open"),
        (EngineTimeout("x"), True, "open"),
    ],
)
def test_what_a_trial_tells(failure: ApiError | None, answered: bool, state: str) -> None:
    async def main() -> None:
        backend = Backend(spec("e"), settings=PoolSettings(failures=1, cooldown_seconds=10))
        backend.probed = True
        backend.leave(backend.enter(), failure=EngineFailed("x"), answered=True)
        await asyncio.sleep(10)
        backend.leave(backend.enter(), failure=failure, answered=answered)
        assert backend.circuit.state == state

    at_once(main)


def test_cooling() -> None:
    async def main() -> None:
        backend = Backend(spec("e"), settings=PoolSettings())
        backend.probed = True
        calls: list[str] = []
        backend.cool(lambda: calls.append("first"))
        await asyncio.sleep(0.9)
        assert not backend.has_room
        backend.cool(lambda: calls.append("second"))
        await asyncio.sleep(0.9)
        assert backend.cooling
        assert calls == []
        await asyncio.sleep(0.2)
        assert backend.has_room
        assert calls == ["second"]
        assert backend.passes

    at_once(main)


def watching(engine: FakeEngine, changes: list[bool], settings: PoolSettings) -> tuple[Backend, asyncio.Task[None]]:
    backend = Backend(spec("e"), settings=settings)
    work = backend.watch(lambda spec: engine, lambda backend: changes.append(backend.up))
    return backend, asyncio.get_running_loop().create_task(work)


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def test_watch_learns_then_looks() -> None:
    async def main() -> None:
        engine = FakeEngine("a", "b", length=77, able=Capabilities(stop_strings=True))
        changes: list[bool] = []
        backend, task = watching(engine, changes, PoolSettings(probe_seconds=5))
        await settled()
        assert engine.asked == ["health", "models", "probe"]
        assert backend.served == {"a": 77, "b": 77}
        assert backend.up
        assert backend.capabilities == Capabilities(stop_strings=True)
        await asyncio.sleep(3.9)
        assert engine.asked[3:] == []
        await asyncio.sleep(2.2)
        assert engine.asked[3:] == ["health", "models"]
        await asyncio.sleep(100)
        assert set(engine.asked[3:]) == {"health", "models"}
        assert 34 <= len(engine.asked[3:]) <= 52
        assert set(changes) == {True}
        await ended(task)

    at_once(main)


def test_watch_of_an_engine_that_restarts_with_another_model() -> None:
    async def main() -> None:
        engine = FakeEngine("a")
        changes: list[bool] = []
        backend, task = watching(engine, changes, PoolSettings(probe_seconds=5, failures=3, cooldown_seconds=30))
        await settled()
        engine.up = False
        await asyncio.sleep(7)  # one or two failed probes
        assert backend.up
        await asyncio.sleep(13)
        assert not backend.up
        assert backend.trouble == "the engine is down"
        engine.names, engine.up, engine.able = ("b",), True, Capabilities(bad_words=True)
        engine.asked.clear()
        await asyncio.sleep(9)  # the cooldown: no probe tries it
        assert engine.asked == []
        await asyncio.sleep(35)
        assert backend.up
        assert engine.asked[:3] == ["health", "models", "probe"]
        assert backend.served == {"b": 1000}
        assert backend.capabilities == Capabilities(bad_words=True)
        await ended(task)

    at_once(main)


def test_watch_learns_again_after_a_request_closed_the_circuit() -> None:
    async def main() -> None:
        engine = FakeEngine("a")
        backend, task = watching(engine, [], PoolSettings(failures=1, cooldown_seconds=1, probe_seconds=100))
        await settled()
        backend.leave(backend.enter(), failure=EngineFailed("gone"), answered=True)
        assert backend.trouble == "gone"
        await asyncio.sleep(1)
        engine.names = ("b",)
        engine.asked.clear()
        backend.leave(backend.enter(), failure=None, answered=True)
        await settled()
        assert engine.asked == ["health", "models", "probe"]
        assert backend.served == {"b": 1000}
        await ended(task)

    at_once(main)


def test_an_engine_that_is_not_known_is_not_up() -> None:
    async def main() -> None:
        engine = FakeEngine("a")
        engine.opaque = True
        backend, task = watching(engine, [], PoolSettings(probe_seconds=1, failures=1, cooldown_seconds=1000))
        await asyncio.sleep(10)
        assert not backend.up
        assert not backend.passes
        assert backend.trouble == "the engine has too much to do"
        engine.opaque = False
        await asyncio.sleep(1.3)  # what was never up is tried at each probe
        assert backend.up
        await ended(task)

    at_once(main)


def test_an_engine_that_came_back_but_cannot_be_probed_keeps_what_was_known() -> None:
    async def main() -> None:
        engine = FakeEngine("a", able=Capabilities(bad_words=True))
        backend, task = watching(engine, [], PoolSettings(probe_seconds=1, failures=1, cooldown_seconds=1))
        await settled()
        engine.up = False
        await asyncio.sleep(3)
        assert not backend.up
        engine.up = engine.opaque = True
        await asyncio.sleep(3)
        assert backend.up
        assert backend.capabilities == Capabilities(bad_words=True)
        engine.opaque, engine.able = False, Capabilities(stop_strings=True)
        await asyncio.sleep(3)
        assert backend.capabilities == Capabilities(stop_strings=True)
        await ended(task)

    at_once(main)


def test_hanging_and_raising_engines_do_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        engine = FakeEngine("a")
        engine.hangs = True
        changes: list[bool] = []
        backend, task = watching(engine, changes, PoolSettings(probe_seconds=1, failures=1, cooldown_seconds=1))
        await asyncio.sleep(30)
        assert backend.trouble == "it does not answer in time"
        assert len(changes) >= 3
        engine.hangs, engine.broken = False, KeyError("what\nis this")
        await asyncio.sleep(10)
        assert backend.trouble == "its client failed: KeyError: 'what\\nis this'"
        engine.broken = None
        await asyncio.sleep(3)
        assert backend.up
        await ended(task)

    with caplog.at_level(logging.WARNING):
        at_once(main)
    assert caplog.records == []  # whoever owns the backend tells


def test_connect_may_be_a_plain_function_and_may_fail() -> None:
    async def main() -> None:
        engine = FakeEngine("a")
        tries = 0

        def connect(spec: EngineSpec) -> FakeEngine:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise EngineFailed("cannot be reached")
            return engine

        backend = Backend(spec("e"), settings=PoolSettings(probe_seconds=1))
        task = asyncio.get_running_loop().create_task(backend.watch(connect, lambda backend: None))
        await settled()
        assert backend.tried.is_set()
        assert not backend.connected
        await asyncio.sleep(4)
        assert backend.up
        assert tries == 3
        await ended(task)

    at_once(main)


def test_retiring_ends_the_watch_and_closing_closes_once() -> None:
    async def main() -> None:
        engine = FakeEngine("a")
        backend, task = watching(engine, [], PoolSettings())
        await settled()
        backend.cool(lambda: None)
        backend.retire()
        await asyncio.wait([task], timeout=1)
        assert task.done()
        assert not backend.passes
        await backend.aclose()
        assert engine.closed == 1

    at_once(main)
