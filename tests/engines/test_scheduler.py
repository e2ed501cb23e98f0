"""The scheduler over a scripted backend: slots, queue, caches, ends, aborts and failures."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence

import pytest
from tests.engines.scripted import EOS, OTHER_END, ScriptedBackend

from derender.engines.sampling import Sampling
from derender.engines.scheduler import Job, Scheduler, Token
from derender.protocol.errors import ApiError, Unavailable

SECONDS = 5.0


class Sink:
    """Collects what a job says."""

    def __init__(self) -> None:
        self.said: queue.Queue[Token | ApiError] = queue.Queue()

    def __call__(self, token: Token | ApiError) -> None:
        self.said.put(token)

    def next(self) -> Token | ApiError:
        return self.said.get(timeout=SECONDS)

    def all(self, choices: int = 1) -> list[Token]:
        """Everything up to the end of all choices."""
        tokens: list[Token] = []
        while choices:
            token = self.next()
            assert isinstance(token, Token), token
            tokens.append(token)
            choices -= token.finish_reason is not None
        return tokens

    def ids(self) -> list[int | None]:
        return [token.token for token in self.all()]


def job(
    sink: Sink,
    prompt: Sequence[int] = (5, 6, 7),
    *samplings: Sampling,
    request_id: str = "r",
    salt: str | None = None,
    priority: int = 0,
) -> Job:
    choices = samplings or (Sampling(max_tokens=3),)
    return Job(request_id, tuple(prompt), choices, sink, salt=salt, priority=priority)


@pytest.fixture
def make() -> Iterator[type[Scheduler]]:
    made: list[Scheduler] = []

    class Made(Scheduler):
        def __init__(self, backend: ScriptedBackend) -> None:
            super().__init__(backend)
            made.append(self)

    yield Made
    for scheduler in made:
        scheduler.close()


def test_ids_come_one_by_one_and_in_order(make):
    sink = Sink()
    make(ScriptedBackend()).submit(job(sink, (5, 6, 7), Sampling(max_tokens=4)))
    assert sink.all() == [Token(0, 10), Token(0, 11), Token(0, 12), Token(0, 13, finish_reason="length")]


def test_the_last_sampled_token_is_not_decoded(make):
    backend, sink = ScriptedBackend(), Sink()
    make(backend).submit(job(sink, (5, 6, 7), Sampling(max_tokens=3)))
    sink.all()
    assert backend.caches[0] == [5, 6, 7, 10, 11]


@pytest.mark.parametrize(
    ("token", "sampling", "reasons"),
    [
        (EOS, Sampling(max_tokens=9), ("stop", None)),
        (OTHER_END, Sampling(max_tokens=9), ("stop", OTHER_END)),
        (50, Sampling(max_tokens=9, stop_token_ids=frozenset({50, 51})), ("stop", 50)),
        (EOS, Sampling(max_tokens=1, ignore_eos=True), ("length", None)),
        (EOS, Sampling(max_tokens=9, ignore_eos=True, stop_token_ids=frozenset({EOS})), ("stop", EOS)),
        (None, Sampling(max_tokens=9), ("stop", None)),
    ],
)
def test_ends(make, token, sampling, reasons):
    sink = Sink()
    make(ScriptedBackend(lambda *_: token)).submit(job(sink, (5,), sampling))
    (only,) = sink.all()
    assert only.token == token
    assert (only.finish_reason, only.stop_reason) == reasons


def test_more_choices_than_slots_all_end(make):
    backend, sink = ScriptedBackend(lambda _, sampling, __: sampling.seed, slots=2), Sink()
    make(backend).submit(job(sink, (5, 6), *[Sampling(max_tokens=2, seed=20 + i) for i in range(5)]))
    tokens = sink.all(5)
    assert {i: [t.token for t in tokens if t.choice == i] for i in range(5)} == {i: [20 + i] * 2 for i in range(5)}


def test_a_long_prompt_is_cut_into_batches_and_does_not_stop_the_others(make):
    steps = threading.Semaphore(0)
    backend = ScriptedBackend(batch_size=4, steps=steps)
    scheduler = make(backend)
    first, second = Sink(), Sink()
    scheduler.submit(job(first, (1,), Sampling(max_tokens=20)))
    steps.release()
    first.next()
    scheduler.submit(job(second, range(30, 40), Sampling(max_tokens=1)))
    steps.release(100)
    assert second.ids() == [10]
    first.all()
    longest = [sum(row.slot == 1 for row in batch) for batch in backend.batches if any(row.slot == 1 for row in batch)]
    assert sum(longest) == 10
    for batch in backend.batches[2:4]:
        assert {row.slot for row in batch} == {0, 1}


def test_a_prefix_in_the_cache_is_not_decoded_again(make):
    backend = ScriptedBackend(slots=1)
    scheduler = make(backend)
    first, second = Sink(), Sink()
    scheduler.submit(job(first, (5, 6, 7)))
    first.all()
    before = len(backend.batches)
    scheduler.submit(job(second, (5, 6, 7, 10, 40)))
    assert second.ids() == [10, 11, 12]
    assert [row.token for row in backend.batches[before]] == [40]


def test_the_last_prompt_token_is_always_decoded(make):
    backend = ScriptedBackend(slots=1)
    scheduler = make(backend)
    for _ in range(2):
        sink = Sink()
        scheduler.submit(job(sink, (5, 6, 7)))
        assert sink.ids() == [10, 11, 12]
    assert [row.token for row in backend.batches[3]] == [7]


@pytest.mark.parametrize(("salt", "can_cut"), [("other", True), (None, False)])
def test_no_prefix_is_taken_from_another_salt_or_a_cache_that_cannot_be_cut(make, salt, can_cut):
    backend = ScriptedBackend(slots=1, can_cut=can_cut)
    scheduler = make(backend)
    first, second = Sink(), Sink()
    scheduler.submit(job(first, (5, 6, 7)))
    first.all()
    before = len(backend.batches)
    scheduler.submit(job(second, (5, 6, 7), salt=salt))
    second.all()
    assert [row.token for row in backend.batches[before]] == [5, 6, 7]


def test_lower_priority_values_go_first(make):
    steps = threading.Semaphore(0)
    scheduler = make(ScriptedBackend(slots=1, steps=steps))
    order: list[str] = []
    done = threading.Event()

    def sink_of(name: str):
        def sink(token):
            order.append(name)
            if len(order) == 3:
                done.set()

        return sink

    scheduler.submit(Job("a", (1,), [Sampling(max_tokens=1)], sink_of("a")))
    while not scheduler.load().running:
        pass
    scheduler.submit(Job("b", (1,), [Sampling(max_tokens=1)], sink_of("b"), priority=1))
    scheduler.submit(Job("c", (1,), [Sampling(max_tokens=1)], sink_of("c"), priority=-1))
    steps.release(10)
    assert done.wait(SECONDS)
    assert order == ["a", "c", "b"]


def test_abort_ends_running_and_waiting_choices_and_frees_the_slot(make):
    steps = threading.Semaphore(1)
    backend = ScriptedBackend(slots=1, steps=steps)
    scheduler = make(backend)
    sink, after = Sink(), Sink()
    aborted = job(sink, (5,), *[Sampling(max_tokens=50, seed=i) for i in range(2)], request_id="gone")
    scheduler.submit(aborted)
    assert sink.next() == Token(0, 10)
    scheduler.submit(job(after, (5,)))
    scheduler.abort_ids({"gone", "unknown"})
    steps.release(100)
    ends = {token.choice: token for token in sink.all(2) if token.finish_reason}
    assert {i: (t.token, t.finish_reason) for i, t in ends.items()} == {0: (None, "abort"), 1: (None, "abort")}
    assert after.ids() == [10, 11, 12]
    assert backend.open_samplers == 0


def test_a_failed_batch_fails_its_requests_only_and_clears_their_caches(make):
    backend = ScriptedBackend()
    scheduler = make(backend)
    backend.broken = True
    sink = Sink()
    scheduler.submit(job(sink))
    assert isinstance(sink.next(), ApiError)
    backend.broken = False
    sink = Sink()
    scheduler.submit(job(sink))
    assert sink.ids() == [10, 11, 12]
    assert scheduler.alive


def test_an_error_of_the_sampler_fails_its_sequence_only(make):
    def script(prompt, sampling, sampled):
        if prompt[0] == 9 and sampled == 1:
            raise ApiError("the constraint could not be followed")
        return 10 + sampled

    scheduler = make(ScriptedBackend(script))
    good, bad = Sink(), Sink()
    scheduler.submit(job(bad, (9,)))
    scheduler.submit(job(good, (5,)))
    assert bad.next() == Token(0, 10)
    assert isinstance(bad.next(), ApiError)
    assert good.ids() == [10, 11, 12]


def test_a_fault_of_ours_ends_every_request_with_an_error_and_is_seen(make, caplog):
    def script(*_):
        raise ValueError("a bug")

    scheduler = make(ScriptedBackend(script, slots=1))
    sinks = [Sink(), Sink()]
    for sink in sinks:
        scheduler.submit(job(sink))
    assert all(isinstance(sink.next(), ApiError) for sink in sinks)
    assert not scheduler.alive
    with pytest.raises(Unavailable):
        scheduler.submit(job(Sink()))
    assert "a bug" in caplog.text


def test_close_aborts_what_runs_and_closes_the_backend():
    steps = threading.Semaphore(1)
    backend = ScriptedBackend(slots=1, steps=steps)
    scheduler = Scheduler(backend)
    running, waiting = Sink(), Sink()
    scheduler.submit(job(running, (1,), Sampling(max_tokens=50)))
    scheduler.submit(job(waiting))
    running.next()
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    while scheduler.alive:
        pass
    steps.release(100)
    closing.join(SECONDS)
    assert running.all()[-1].finish_reason == "abort"
    assert waiting.all()[-1].finish_reason == "abort"
    assert backend.closed
    assert not scheduler.alive


def test_load_counts(make):
    steps = threading.Semaphore(1)
    scheduler = make(ScriptedBackend(slots=1, steps=steps))
    sinks = [Sink(), Sink()]
    for sink in sinks:
        scheduler.submit(job(sink, (5, 6, 7), Sampling(max_tokens=2)))
    sinks[0].next()
    load = scheduler.load()
    assert (load.running, load.waiting, load.prompt_tokens, load.generated_tokens) == (1, 1, 6, 1)
    steps.release(100)
    for sink in sinks:
        sink.all()
    assert scheduler.load().generated_tokens == 4
