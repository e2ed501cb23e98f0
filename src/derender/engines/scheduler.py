"""Continuous batching on one thread: sequences wait, take a slot, are prefilled in pieces and sampled step by step.

The thread owns the backend. What comes out of it goes through a job's `sink`, which is called on that thread.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from derender.engines.base import EngineLoad
from derender.engines.sampling import Constraint, Sampling
from derender.protocol.errors import ApiError, Unavailable
from derender.protocol.generate import GenerateLogprob

logger = logging.getLogger("derender.engine")

MAX_WAITING = 1 << 17
"""Sequences that may wait for a slot, of all jobs together. One request may ask for 16,384."""


class Row(NamedTuple):
    """One token to decode: its slot and position, and whether the distribution after it is wanted."""

    slot: int
    position: int
    token: int
    wanted: bool


class Sampled(NamedTuple):
    """One sampled token."""

    token: int
    logprob: GenerateLogprob | None = None


class TokenSampler(Protocol):
    """Samples one sequence; knows what it has sampled before."""

    def sample(self, row: int, /) -> Sampled | None:
        """The token after row `row` of the last decoded batch, or None where no token is allowed."""

    def close(self) -> None:
        """Frees what it holds."""


class BackendFailed(Exception):
    """A batch could not be decoded. What is in the cache of its slots is not to be trusted."""


class Backend(Protocol):
    """The layer under the scheduler: a model with a cache of `slots` sequences of `max_model_len` tokens each.

    `end_ids` end a sequence, `eos_id` is the chief of them (-1 where the model has none); `batch_size` is the most
    rows of one `decode`. But for `check`, which any thread may call, all calls come from one thread.
    """

    slots: int
    max_model_len: int
    vocab_size: int
    batch_size: int
    eos_id: int
    end_ids: frozenset[int]

    def check(self, constraint: Constraint, /) -> None:
        """Raises `BadRequest` for a constraint that is not well formed."""

    def sampler(self, sampling: Sampling, prompt: Sequence[int], /) -> TokenSampler: ...

    def decode(self, rows: Sequence[Row], /) -> None:
        """Runs the model over the rows. Raises `BackendFailed`."""

    def truncate(self, slot: int, length: int, /) -> int:
        """Cuts a slot's cache to its first `length` tokens; returns how many are left (0 where it can only clear)."""

    def close(self) -> None: ...


class Token(NamedTuple):
    """What a sink gets: one token of one choice, or the end of a choice without one (`token` None)."""

    choice: int
    token: int | None = None
    logprob: GenerateLogprob | None = None
    finish_reason: str | None = None
    stop_reason: int | None = None


Sink = Callable[["Token | ApiError"], None]


@dataclass(eq=False)
class Job:
    """One request. `salt` keeps its cached prefixes apart from those of other salts."""

    request_id: str
    prompt: tuple[int, ...]
    choices: Sequence[Sampling]
    sink: Sink
    salt: str | None = None
    priority: int = 0
    aborted: bool = False


@dataclass(eq=False)
class _Sequence:
    job: Job
    index: int
    sampling: Sampling
    sampler: TokenSampler | None = None
    generated: int = 0
    last: int | None = None  # the token to decode next; None until the prompt is decoded


@dataclass(eq=False)
class _Slot:
    number: int
    tokens: list[int] = field(default_factory=list)  # what its cache holds
    salt: str | None = None
    sequence: _Sequence | None = None


class Scheduler:
    """Runs jobs. `submit`, `abort` and `load` may be called from any thread; none of them blocks on the model."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._wake = threading.Condition()
        self._waiting: list[tuple[int, int, _Sequence]] = []
        self._order = itertools.count()
        self._slots = [_Slot(number) for number in range(backend.slots)]
        self._jobs: dict[str, list[Job]] = {}  # those whose end nobody has seen yet, by request id
        self._sweep = False
        self._closing = False
        self._failed = False
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._thread = threading.Thread(target=self._run, name="derender-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether jobs are taken and worked on."""
        return self._thread.is_alive() and not self._closing and not self._failed

    def submit(self, job: Job) -> None:
        """Queues every choice of a job: those of lower `priority` first, then in order of arrival.

        Raises `Unavailable` where too many wait. `forget` the job when its end has been seen.
        """
        with self._wake:
            if self._closing or self._failed:
                raise Unavailable("the engine is not running")
            if len(self._waiting) + len(job.choices) > MAX_WAITING:
                raise Unavailable("the engine has too many requests waiting; try again later")
            self._jobs.setdefault(job.request_id, []).append(job)
            for index, sampling in enumerate(job.choices):
                sequence = _Sequence(job, index, sampling)
                heapq.heappush(self._waiting, (job.priority, next(self._order), sequence))
            self._prompt_tokens += len(job.prompt)
            self._wake.notify()

    def abort(self, job: Job) -> None:
        """Ends what is left of a job before the next step. Its open choices end with finish_reason `abort`."""
        with self._wake:
            job.aborted = self._sweep = True
            self._wake.notify()

    def abort_ids(self, request_ids: Collection[str]) -> None:
        """The same for all jobs with one of these ids."""
        with self._wake:
            for request_id in request_ids:
                for job in self._jobs.get(request_id, ()):
                    job.aborted = self._sweep = True
            self._wake.notify()

    def forget(self, job: Job) -> None:
        """Nobody waits for the job any longer: `abort_ids` does not know it from now on."""
        with self._wake:
            jobs = self._jobs.get(job.request_id, [])
            if job in jobs:
                jobs.remove(job)
            if not jobs:
                self._jobs.pop(job.request_id, None)

    def load(self) -> EngineLoad:
        running = sum(slot.sequence is not None for slot in self._slots)
        return EngineLoad(running, len(self._waiting), self._prompt_tokens, self._generated_tokens)

    def close(self) -> None:
        """Aborts all jobs, ends the thread and closes the backend. Blocks for one step at most."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _open(self) -> Iterable[_Sequence]:
        yield from (slot.sequence for slot in self._slots if slot.sequence is not None)
        yield from (sequence for _, _, sequence in self._waiting)

    # ------------------------------------------------------------------------------------- on the engine's thread

    def _run(self) -> None:
        try:
            while self._admit():
                self._step()
        except Exception:
            logger.exception("the engine has stopped")
            self._fail_all()
        finally:
            for slot in self._slots:
                self._leave(slot)
            self._backend.close()

    def _admit(self) -> bool:
        """Waits for work, drops what was aborted, fills free slots. False when the scheduler closes."""
        with self._wake:
            while not self._closing and not self._waiting and not any(slot.sequence for slot in self._slots):
                self._sweep = False
                self._wake.wait()
            if self._closing:
                for sequence in self._open():
                    sequence.job.aborted = True
                self._sweep = True
            dropped = self._drop_aborted() if self._sweep else []
            admitted: list[tuple[_Slot, _Sequence]] = []
            if not self._closing:
                while self._waiting and any(slot.sequence is None for slot in self._slots):
                    _, _, sequence = heapq.heappop(self._waiting)
                    slot = self._best_slot(sequence.job)
                    slot.sequence = sequence
                    admitted.append((slot, sequence))
        for sequence in dropped:
            sequence.job.sink(Token(sequence.index, finish_reason="abort"))
        for slot, sequence in admitted:
            self._enter(slot, sequence)
        return not self._closing

    def _drop_aborted(self) -> list[_Sequence]:
        dropped = [sequence for sequence in self._open() if sequence.job.aborted]
        for slot in self._slots:
            if slot.sequence is not None and slot.sequence.job.aborted:
                self._leave(slot)
        self._waiting = [entry for entry in self._waiting if not entry[2].job.aborted]
        heapq.heapify(self._waiting)
        self._sweep = False
        return dropped

    def _best_slot(self, job: Job) -> _Slot:
        """The free slot whose cache shares the longest prefix with the prompt; of equals the one that holds least."""
        free = [slot for slot in self._slots if slot.sequence is None]
        return max(free, key=lambda slot: (_shared(slot, job), -len(slot.tokens)))

    def _enter(self, slot: _Slot, sequence: _Sequence) -> None:
        job = sequence.job
        try:
            sequence.sampler = self._backend.sampler(sequence.sampling, job.prompt)
        except ApiError as error:
            slot.sequence = None
            job.sink(error)
            return
        # The last token of the prompt is always decoded again: its distribution is what is sampled first.
        kept = min(_shared(slot, job), len(job.prompt) - 1)
        kept = self._backend.truncate(slot.number, kept)
        del slot.tokens[kept:]
        slot.salt = job.salt

    def _leave(self, slot: _Slot) -> None:
        sequence, slot.sequence = slot.sequence, None
        if sequence is not None and sequence.sampler is not None:
            sequence.sampler.close()

    def _step(self) -> None:
        rows, sampled = self._fill()
        if not rows:
            return
        try:
            self._backend.decode(rows)
        except BackendFailed as error:
            logger.error("%s", error)
            self._fail_batch(rows)
            return
        for row in rows:
            self._slots[row.slot].tokens.append(row.token)
        for position in sampled:
            self._sample(self._slots[rows[position].slot], position)

    def _fill(self) -> tuple[list[Row], list[int]]:
        """The next batch: one token of each sequence that generates, then prompts until it is full."""
        rows: list[Row] = []
        sampled: list[int] = []
        prefilling: list[_Slot] = []
        for slot in self._slots:
            if slot.sequence is None:
                continue
            if slot.sequence.last is None:
                prefilling.append(slot)
            else:
                sampled.append(len(rows))
                rows.append(Row(slot.number, len(slot.tokens), slot.sequence.last, True))
        for slot in prefilling:
            assert slot.sequence is not None
            prompt = slot.sequence.job.prompt
            start = len(slot.tokens)
            for position in range(start, min(len(prompt), start + self._backend.batch_size - len(rows))):
                last = position == len(prompt) - 1
                if last:
                    sampled.append(len(rows))
                rows.append(Row(slot.number, position, prompt[position], last))
        return rows, sampled

    def _sample(self, slot: _Slot, row: int) -> None:
        sequence = slot.sequence
        assert sequence is not None
        assert sequence.sampler is not None
        try:
            drawn = sequence.sampler.sample(row)
        except ApiError as error:
            self._leave(slot)
            sequence.job.sink(error)
            return
        if drawn is None:
            self._leave(slot)
            sequence.job.sink(Token(sequence.index, finish_reason="stop"))
            return
        sequence.generated += 1
        sequence.last = drawn.token
        self._generated_tokens += 1
        finish_reason, stop_reason = self._end(sequence, drawn.token)
        if finish_reason is not None:
            self._leave(slot)
        sequence.job.sink(Token(sequence.index, drawn.token, drawn.logprob, finish_reason, stop_reason))

    def _end(self, sequence: _Sequence, token: int) -> tuple[str | None, int | None]:
        """Why the sequence ends with this token. On the EOS token there is no stop reason, as in vLLM."""
        sampling = sequence.sampling
        if not sampling.ignore_eos and token in self._backend.end_ids:
            return "stop", None if token == self._backend.eos_id else token
        if token in sampling.stop_token_ids:
            return "stop", token
        if sequence.generated >= sampling.max_tokens:
            return "length", None
        return None, None

    def _fail_batch(self, rows: Sequence[Row]) -> None:
        for number in {row.slot for row in rows}:
            slot = self._slots[number]
            sequence = slot.sequence
            self._leave(slot)
            self._backend.truncate(number, 0)
            slot.tokens.clear()
            if sequence is not None:
                sequence.job.sink(ApiError("the engine could not decode the request"))

    def _fail_all(self) -> None:
        with self._wake:
            self._failed = True
            sequences = list(self._open())
            self._waiting.clear()
        for sequence in sequences:
            sequence.job.sink(ApiError("the engine has stopped"))


def _shared(slot: _Slot, job: Job) -> int:
    """How many tokens of the prompt stand in the slot's cache."""
    if slot.salt != job.salt:
        return 0
    count = 0
    for cached, wanted in zip(slot.tokens, job.prompt, strict=False):
        if cached != wanted:
            break
        count += 1
    return count
