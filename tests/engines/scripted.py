"""A backend that plays a script instead of a model, and checks how the scheduler treats its caches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from derender.engines.sampling import Constraint, Limits, Sampling
from derender.engines.scheduler import BackendFailed, Row, Sampled
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateLogprob, GenerateTopLogprob

if TYPE_CHECKING:
    from derender.engines.base import Engine, EngineLoad

Script = Callable[[Sequence[int], Sampling, int], "int | None"]
"""`(prompt, sampling, how many were sampled before) -> the next token`, None where none is allowed."""

EOS, OTHER_END, VOCAB, CONTEXT = 2, 3, 100, 64
LIMITS = Limits(
    names=("toy", "toy-2"),
    vocab_size=VOCAB,
    max_model_len=CONTEXT,
    constraints=frozenset({"json_schema", "regex", "lark"}),
)


async def until(engine: Engine, true: Callable[[EngineLoad], bool]) -> None:
    """Waits until an engine's load is so."""
    while not true(await engine.load()):  # noqa: ASYNC110 (load is all that an engine tells)
        await asyncio.sleep(0.001)


def counting(prompt: Sequence[int], sampling: Sampling, sampled: int) -> int:
    """10, 11, 12, … for every prompt."""
    return 10 + sampled % 80


class Sampler:
    def __init__(self, backend: ScriptedBackend, sampling: Sampling, prompt: Sequence[int]) -> None:
        self._backend = backend
        self._sampling = sampling
        self._prompt = prompt
        self._sampled = 0
        self._closed = False
        backend.open_samplers += 1

    def sample(self, row: int) -> Sampled | None:
        assert not self._closed
        assert self._backend.rows[row].wanted
        token = self._backend.script(self._prompt, self._sampling, self._sampled)
        self._sampled += 1
        if token is None:
            return None
        if self._sampling.logprobs is None:
            return Sampled(token)
        top = [GenerateTopLogprob(token_id=token, logprob=-0.5, rank=1)]
        return Sampled(token, GenerateLogprob(token_id=token, logprob=-0.5, rank=1, top_logprobs=top))

    def close(self) -> None:
        assert not self._closed, "closed twice"
        self._closed = True
        self._backend.open_samplers -= 1


class ScriptedBackend:
    """`steps`: where there is one, each decode takes a permit from it first. `broken`: every decode fails."""

    vocab_size = VOCAB
    max_model_len = CONTEXT
    eos_id = EOS
    end_ids = frozenset({EOS, OTHER_END})

    def __init__(
        self,
        script: Script = counting,
        *,
        slots: int = 2,
        batch_size: int = 8,
        steps: threading.Semaphore | None = None,
        can_cut: bool = True,
    ) -> None:
        self.script = script
        self.slots = slots
        self.batch_size = batch_size
        self.steps = steps
        self.can_cut = can_cut
        self.broken = False
        self.batches: list[list[Row]] = []
        self.rows: Sequence[Row] = ()
        self.caches: list[list[int]] = [[] for _ in range(slots)]
        self.open_samplers = 0
        self.closed = False

    def check(self, constraint: Constraint) -> None:
        if "bad" in constraint.text:
            raise BadRequest(f"{constraint.field} cannot be applied: bad", param=constraint.field)

    def sampler(self, sampling: Sampling, prompt: Sequence[int]) -> Sampler:
        return Sampler(self, sampling, prompt)

    def decode(self, rows: Sequence[Row]) -> None:
        assert 0 < len(rows) <= self.batch_size
        if self.steps is not None:
            self.steps.acquire()
        if self.broken:
            raise BackendFailed("broken by the test")
        for row in rows:
            assert row.position == len(self.caches[row.slot]), "a hole in the cache"
            assert row.position < CONTEXT
            self.caches[row.slot].append(row.token)
        self.rows = rows
        self.batches.append(list(rows))

    def truncate(self, slot: int, length: int) -> int:
        if length and not self.can_cut:
            length = 0
        del self.caches[slot][length:]
        return length

    def close(self) -> None:
        assert self.open_samplers == 0, "a sampler was left open"
        self.closed = True
