"""How an engine is chosen."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import pytest
from tests.gateway.fakes import spec

from derender.gateway.backends import Backend
from derender.gateway.policies import LeastLoaded, Prefix, RoundRobin, chooser
from derender.gateway.settings import PoolSettings


def backends(count: int, *running: int) -> list[Backend]:
    made = [Backend(spec(f"e{number}"), settings=PoolSettings(), number=number) for number in range(count)]
    for backend, load in zip(made, running, strict=False):
        backend.running = load
    return made


def prompts(count: int, length: int = 64) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(150_000) for _ in range(length)] for _ in range(count)]


def test_least_loaded() -> None:
    policy = LeastLoaded(rng=random.Random(1))
    two = backends(2, 5, 4)
    assert {policy.choose("m", two, ()) for _ in range(20)} == {two[1]}
    three = backends(3, 9, 5, 1)
    chosen = Counter(policy.choose("m", three, ()).name for _ in range(3000))
    assert chosen["http://e0:8000"] == 0  # the most loaded is never the better of two
    assert 1800 < chosen["http://e2:8000"] < 2200  # in two of three pairs
    even = backends(4)
    spread = Counter(policy.choose("m", even, ()).name for _ in range(4000))
    assert all(850 < count < 1150 for count in spread.values())


def test_least_loaded_evens_out() -> None:
    policy = LeastLoaded(rng=random.Random(1))
    engines = backends(8)
    for _ in range(8000):
        policy.choose("m", engines, ()).running += 1
    loads = [engine.running for engine in engines]
    assert sum(loads) == 8000
    assert max(loads) - min(loads) <= 8


def test_round_robin_is_per_model_and_lives_through_changes() -> None:
    policy = RoundRobin()
    engines = backends(3)

    def numbers(model: str, among: list[Backend], count: int) -> list[int]:
        return [policy.choose(model, among, ()).number for _ in range(count)]

    assert numbers("a", engines, 4) == [0, 1, 2, 0]
    assert numbers("b", engines, 2) == [0, 1]
    assert numbers("a", engines, 2) == [1, 2]
    assert numbers("a", engines[:2], 3) == [0, 1, 0]
    assert numbers("a", [engines[2], engines[0]], 3) == [2, 0, 2]


def test_prefix_sends_equal_beginnings_to_one_engine() -> None:
    policy = Prefix(prefix_tokens=48)
    engines = backends(5)
    spread: Counter[str] = Counter()
    for prompt in prompts(1000, 48):
        chosen = policy.choose("m", engines, prompt)
        spread[chosen.name] += 1
        assert policy.choose("m", engines, [*prompt, 1, 2, 3]) is chosen
        assert policy.choose("m", engines, [*prompt, *range(100)]) is chosen
        assert policy.choose("m", list(reversed(engines)), tuple(prompt)) is chosen
    assert all(140 < count < 260 for count in spread.values())


def test_prefix_counts_whole_blocks() -> None:
    policy = Prefix(prefix_tokens=256)
    engines = backends(16)
    [prompt] = prompts(1, 48)
    chosen = policy.choose("m", engines, prompt[:32])
    assert {policy.choose("m", engines, prompt[:n]) for n in range(32, 48)} == {chosen}
    others = {policy.choose("m", engines, [*prompt[:31], n]) for n in range(100)}
    assert len(others) > 8  # the last id of the block counts


def test_prefix_moves_only_what_it_must() -> None:
    policy = Prefix()
    engines = backends(6)
    for prompt in prompts(300):
        chosen = policy.choose("m", engines, prompt)
        fewer = [engine for engine in engines if engine is not engines[2]]
        if chosen is not engines[2]:
            assert policy.choose("m", fewer, prompt) is chosen


_IN_ANOTHER_PROCESS = """
from derender.gateway.backends import Backend
from derender.gateway.policies import Prefix
from derender.gateway.settings import EngineSpec, PoolSettings
engines = [Backend(EngineSpec(url=f"http://e{n}:8000"), settings=PoolSettings()) for n in (3, 1, 0, 2)]
print([Prefix().choose("m", engines, [n] * 64).name[8] for n in range(40)])
"""


def test_prefix_is_the_same_in_every_process() -> None:
    engines = backends(4)
    here = [Prefix().choose("m", engines, [n] * 64).name[8] for n in range(40)]
    there = subprocess.run([sys.executable, "-c", _IN_ANOTHER_PROCESS], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == str(here)


@pytest.mark.parametrize(("loads", "stays"), [((28, 10), True), ((29, 10), False), ((8, 0), True), ((9, 0), False)])
def test_prefix_gives_way_under_load(loads: tuple[int, int], stays: bool) -> None:
    """Twice the mean of the others and eight is the most."""
    policy = Prefix()
    engines = backends(2)
    for prompt in prompts(20):
        for engine in engines:
            engine.running = 0
        chosen = policy.choose("m", engines, prompt)
        for engine in engines:
            engine.running = loads[0] if engine is chosen else loads[1]
        assert (policy.choose("m", engines, prompt) is chosen) is stays


def test_prompts_without_a_whole_block_go_to_the_least_loaded() -> None:
    engines = backends(2, 1, 0)
    assert {Prefix().choose("m", engines, [n] * 15) for n in range(50)} == {engines[1]}


def test_one_engine_is_chosen_whatever_its_load() -> None:
    [engine] = backends(1, 1000)
    for policy in ("least-loaded", "round-robin", "prefix"):
        assert chooser(policy).choose("m", [engine], [1] * 64) is engine


def test_policies_by_name() -> None:
    assert isinstance(chooser("least-loaded"), LeastLoaded)
    assert isinstance(chooser("round-robin"), RoundRobin)
    assert isinstance(chooser("prefix", prefix_tokens=512), Prefix)
