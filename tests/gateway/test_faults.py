"""Every fault of an engine, in every shape of request: a well-formed answer in bounded time, and nothing left."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.faults import FAULTS, TEXT, Fault
from tests.gateway.faulty_engine import Ask, Behaviour, FaultyEngine, right
from tests.gateway.under_test import CHAT, FEW_SHAPES, SHAPES, Gate, body, check, fault_of, gate, named, run, texts
from tests.server.asgi_client import Answer

SLOW = {"first_seconds": 0.3, "between_seconds": 0.3, "total_seconds": 0.5}
"""Limits where the engine has to be given up."""


def behave(ask: Ask) -> Behaviour:
    name = fault_of(ask.id)
    return FAULTS[name].behave if name in FAULTS else right


def shapes(name: str) -> list[tuple[str, bool, int, int]]:
    """The shapes of a fault: of a mere status, one of each kind."""
    only = FAULTS[name].only
    return [
        one
        for one in (FEW_SHAPES if name.startswith("status") else SHAPES)
        if only is None or one[1] is (only == "stream")
    ]  # fmt: skip


def fields(fault: Fault, path: str) -> dict[str, object]:
    made = dict(fault.fields)
    if "logprobs" in made and path == CHAT:
        made.update(logprobs=True, top_logprobs=1)
    return made


async def ask(one: Gate, name: str, shape: tuple[str, bool, int, int]) -> Answer:
    path, stream, n, prompts = shape
    asked = body(path, stream=stream, n=n, prompts=prompts, **fields(FAULTS[name], path))
    answer = await one.ask(path, asked, request_id=named(name))
    error = check(answer, path, asked)
    fault = FAULTS[name]
    where = f"{name} {shape}: {answer.status} {answer.body[:500]!r}"
    if fault.outcome == "right":
        assert error is None, where
        assert texts(answer, path) == dict.fromkeys(range(n * prompts), TEXT), where
    elif fault.outcome == "error":
        assert error is not None, where
        assert error["code"] not in (401, 403, 500), where
        if answer.status != 200 and fault.statuses:
            assert answer.status in fault.statuses, where
        if answer.status in (429, 503):
            assert "retry-after" in answer.headers
        if answer.status == 400 and not name.endswith(("detail", "html", "empty", "nested", "without_end")):
            assert error["message"] == "the engine says no"
    return answer


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_gives_a_well_formed_answer(name: str) -> None:
    fault = FAULTS[name]

    async def main() -> None:
        async with FaultyEngine(behave) as engine, gate(engine, **(SLOW if fault.slow else {})) as one:
            await asyncio.gather(*(ask(one, name, shape) for shape in shapes(name)))
            asked = body(CHAT)
            # The engine is still good for a right answer; after 503 it is left alone for a second.
            if not fault.slow and 503 not in fault.statuses:
                assert check(await one.ask(CHAT, asked), CHAT, asked) is None

    run(main)
