"""What holds for every output format and any output: no exception, every split the same, through snapshots, in linear
time; and of well-formed outputs, that calls are whole and no marker is left in the text.

DERENDER_FUZZ sets the number of random sequences of ids, over all formats (a sequence has 1 to 12 ids); where it is
set, the checks of time go through every marker with 100,000 tokens.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cost import least_seconds
from tests.formats.harness import TOOLS, assemble, compiled, vocabulary
from tests.properties.outputs import (
    all_markers,
    broken,
    closers,
    cut_calls,
    known_ids,
    markers,
    pieces,
    starts,
    well_formed,
)

from derender.formats.registry import FORMATS
from derender.parser.coerce import ToolSchemas
from derender.parser.compiled import CompiledFormat
from derender.parser.engine import FormatParser, ParserOptions
from derender.parser.events import Event
from derender.parser.formats import NAMED, REQUIRED
from derender.parser.plain import PlainParser
from derender.tokenizer import Detokenizer

SEQUENCES = int(os.environ.get("DERENDER_FUZZ", "600"))
FULL = "DERENDER_FUZZ" in os.environ
EXAMPLES = 8 if not FULL else 60
SCHEMAS = ToolSchemas(TOOLS)
WAYS = ("tokens", "text", "special")


@pytest.fixture(scope="module", params=list(FORMATS))
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """One format after the other; what was made for it is dropped behind it, for it adds up to gigabytes."""
    yield request.param
    for made in (form, compiled, vocabulary):
        made.cache_clear()


few = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@functools.cache
def form(name: str, way: str) -> CompiledFormat:
    """A format over a vocabulary that has its markers as tokens, as text, or as special tokens."""
    table = FORMATS[name]
    special = tuple(markers(compiled(table, tokens=True))) if way == "special" else ()
    return compiled(table, tokens=way != "text", special=special)


def batch(ready: CompiledFormat, ids: Sequence[int], options: ParserOptions) -> dict[str, Any]:
    """The answer of one push."""
    parser = FormatParser(ready, options, SCHEMAS)
    events = [*parser.push(ids), *parser.finish()]
    assert len(parser.take_regions()) == len(ids), "each token belongs to one region"
    return assemble(events)


def restored(parser: FormatParser, ready: CompiledFormat, options: ParserOptions) -> FormatParser:
    """Another parser that goes on from this one's snapshot."""
    state = json.loads(json.dumps(parser.snapshot()))
    other = FormatParser(ready, options, SCHEMAS)
    other.restore(state)
    assert other.snapshot() == state
    return other


def stream(
    ready: CompiledFormat, ids: Sequence[int], options: ParserOptions, *, sizes: Sequence[int] = (), snapshots: bool
) -> dict[str, Any]:
    """The answer of pushes of these sizes, one by one behind them, with a snapshot as JSON text between any two."""
    parser = FormatParser(ready, options, SCHEMAS)
    events: list[Event] = []
    at = regions = turn = 0
    while at < len(ids):
        size = sizes[turn] if turn < len(sizes) else 1
        events += parser.push(ids[at : at + size])
        regions += len(parser.take_regions())
        at, turn = at + size, turn + 1
        if snapshots:
            parser = restored(parser, ready, options)
    events += parser.finish()
    if snapshots:  # a caller may send the state back once more
        restored(parser, ready, options)
    assert regions + len(parser.take_regions()) == len(ids), "each token belongs to one region"
    return assemble(events)


def check(ready: CompiledFormat, ids: Sequence[int], options: ParserOptions, sizes: Sequence[int]) -> dict[str, Any]:
    """The answer, the same in one push, in parts, token by token, with snapshots and without."""
    whole = batch(ready, ids, options)
    assert stream(ready, ids, options, snapshots=True) == whole
    assert stream(ready, ids, options, sizes=sizes, snapshots=len(sizes) % 2 == 0) == whole
    if options.complete:
        for _, arguments, ended in whole["calls"]:
            assert ended
            assert isinstance(json.loads(arguments), dict), arguments
    return whole


def draw_options(name: str) -> st.SearchStrategy[ParserOptions]:
    return st.builds(
        ParserOptions,
        start=st.sampled_from(starts(FORMATS[name])),
        calls=st.sampled_from([True, True, True, False]),
        complete=st.booleans(),
        trim=st.booleans(),
        show_special=st.booleans(),
        strip_blank=st.booleans(),
    )


def test_any_output_reads_the_same_for_every_split(name: str) -> None:
    parts = st.sampled_from(pieces(FORMATS[name])) | st.text(max_size=6)

    @few
    @given(st.data(), st.lists(parts, max_size=12), draw_options(name), st.lists(st.integers(0, 6), max_size=30))
    def run(data: st.DataObject, texts: list[str], options: ParserOptions, sizes: list[int]) -> None:
        ready = form(name, data.draw(st.sampled_from(WAYS)))
        text = "".join(texts)
        if data.draw(st.booleans()):
            text = broken(text, data.draw(st.randoms(use_true_random=False)))
        check(ready, ready.marks.tokenizer.encode(text), options, sizes)

    run()


def test_well_formed_outputs_give_their_calls_and_no_marker(name: str) -> None:
    @few
    @given(st.randoms(use_true_random=False), st.sampled_from(WAYS), st.booleans(), st.booleans())
    def run(rng: random.Random, way: str, complete: bool, trim: bool) -> None:
        ready = form(name, way)
        sample = well_formed(FORMATS[name], rng)
        options = ParserOptions(start=sample.start, complete=complete, trim=trim)
        sizes = [rng.randint(0, 6) for _ in range(40)]
        end = sample.end if way != "text" else ""  # as text, it is no end of anything
        got = check(ready, ready.marks.tokenizer.encode(sample.text + end), options, sizes)
        assert [(call[0], call[2]) for call in got["calls"]] == [(call, True) for call, _ in sample.calls], sample.text
        for (_, arguments, _), (_, expected) in zip(got["calls"], sample.calls, strict=True):
            assert json.loads(arguments) == expected, sample.text
        assert got["content"].strip() == sample.content, sample.text
        assert got["reasoning"].strip() == sample.reasoning, sample.text
        if way != "text":
            for marker in markers(ready):
                assert marker not in got["content"], sample.text

    run()


def random_ids(name: str, count: int, *, seed: int = 0) -> int:
    """Check some random sequences of ids; how many there were."""
    rng = random.Random(f"ids/{name}/{seed}")
    ways = {way: (form(name, way), *known_ids(form(name, way))) for way in WAYS}
    regions = starts(FORMATS[name])
    for n in range(count):
        ready, everything, telling = ways[WAYS[n % 3]]
        ids = [rng.choice(telling if rng.random() < 0.7 else everything) for _ in range(rng.randint(1, 12))]
        bits = rng.getrandbits(6)
        options = ParserOptions(
            start=rng.choice(regions),
            calls=bits & 1 > 0 or bits & 2 > 0,
            complete=bits & 4 > 0,
            trim=bits & 8 > 0,
            show_special=bits & 16 > 0,
            strip_blank=bits & 32 > 0,
        )
        try:
            whole = batch(ready, ids, options)
            assert stream(ready, ids, options, snapshots=True) == whole
            if n % 4 == 0:
                sizes = [rng.randint(0, 4) for _ in range(12)]
                assert stream(ready, ids, options, sizes=sizes, snapshots=False) == whole
            if options.complete:
                assert all(isinstance(json.loads(arguments), dict) for _, arguments, _ in whole["calls"])
        except Exception as error:
            text = b"".join(map(ready.marks.tokenizer.piece, ids))
            raise AssertionError(f"{name} {WAYS[n % 3]} {options} {ids} {text!r}") from error
    return count


def test_random_ids_read_the_same_token_by_token(name: str) -> None:
    assert random_ids(name, -(-SEQUENCES // len(FORMATS))) > 0


# ------------------------------------------------------------------------------------------------ hostile snapshots

DEEP: list[Any] = []
for _ in range(3000):
    DEEP = [DEEP]
NASTY: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 256, 2**53 + 1, 10**30, -(10**30), 1.0, 1.5, float("nan"), float("inf"),
    "", " ", ",", "x", "é", "日" * 300, "x" * 50_000, "{" * 5_000, "[" * 5_000, "(", "[{", '"', "r'", "\x00", "\ud800",
    "a\udfffb", "\\", "\\u12", "\\ud83d\\ud83d", "content", "reasoning", "section", "header", "body", "close", "junk",
    "noise", "message", "skipped", "open", "value", "key", "text", "rest", "!", [], {}, {"a": 1}, [[[[]]]], [[]],
    [None], [0], [1], [2], [True], ["a"], [0, "a"], [0, "", 0, ""], [0, "a", 3, "b"], [0, "a", 5000, "b"],
    [1, "a", "a"], [0, "a", True, "b"], [0, "a", 0, "\ud800"], [1, 1], [1, "a", [1]], [1, [1, "a", "b", [1]]], [255],
    [240, 159], [-1], DEEP,
]  # fmt: skip
"""What a member of a snapshot is made, whatever it was."""


def within(value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """The places of all lists in a snapshot, and of the snapshot itself."""
    if isinstance(value, list):
        yield path
        for n, one in enumerate(value):
            yield from within(one, (*path, n))


def changes(state: list[Any]) -> Iterator[tuple[tuple[int, ...], list[Any]]]:
    """Each way of making one list of a snapshot wrong: its place, and what it is made."""
    for path in within(state):
        old = state
        for step in path:
            old = old[step]
        for n in range(len(old)):
            yield from ((path, [*old[:n], value, *old[n + 1 :]]) for value in NASTY)
            yield path, [*old[:n], *old[n + 1 :]]
            yield path, old[:n]
            yield path, [*old[:n], old[n], *old[n:]]
            if isinstance(old[n], str):
                yield from ((path, [*old[:n], one, *old[n + 1 :]]) for one in (old[n][:-1], old[n] * 2, old[n] + "x"))
            if isinstance(old[n], int):
                yield from ((path, [*old[:n], one, *old[n + 1 :]]) for one in (not old[n], old[n] + 1, old[n] - 1))
            for m in range(n):
                if old[m] != old[n]:
                    yield path, [*old[:m], old[n], *old[m + 1 : n], old[m], *old[n + 1 :]]
        yield from ((path, [*old, value]) for value in (None, 0, "x", [1]))


def changed(state: Any, path: tuple[int, ...], value: Any) -> Any:
    """A snapshot with another value at a place."""
    if not path:
        return value
    at = path[0]
    return [*state[:at], changed(state[at], path[1:], value), *state[at + 1 :]]


def guided(name: str) -> CompiledFormat:
    """A format with what a guided engine may write beside its own calls."""
    table = FORMATS[name]
    return compiled(table.replace(calls=(*table.calls, REQUIRED, NAMED)) if table.calls else table, tokens=True)


def go_on(ready: CompiledFormat, options: ParserOptions, state: Any, ids: Sequence[int]) -> bool:
    """Go on from a state to the end of the output, or be refused it; whether it was taken.

    An error beside a refusal comes through, and so does text that is none.
    """
    parser = FormatParser(ready, options, SCHEMAS)
    try:
        parser.restore(state)
    except ValueError:
        return False
    events = [*parser.push(ids[:3])]
    json.dumps(parser.snapshot())
    events += [*parser.push(ids[3:]), *parser.finish()]
    json.dumps(parser.snapshot())
    msgspec.json.encode(events)
    assert all(type(one) is bool for one in parser.take_regions())
    return True


def positions(name: str, rng: random.Random) -> Iterator[tuple[CompiledFormat, ParserOptions, list[int]]]:
    """Outputs without end, well-formed ones and others, with how they are read."""
    regions = starts(FORMATS[name])
    for n in itertools.count():
        ready = guided(name) if n % 4 == 3 else form(name, WAYS[n % 4])
        options = ParserOptions(
            start=rng.choice(regions),
            complete=rng.random() < 0.5,
            trim=rng.random() < 0.5,
            show_special=rng.random() < 0.5,
            name="add",
        )
        if n % 2:
            text = well_formed(FORMATS[name], rng).text
        else:
            text = "".join(rng.choices([*pieces(FORMATS[name]), '[{"name": "add", "parameters": {"a": 1}}]'], k=6))
        yield ready, options, ready.marks.tokenizer.encode(text)


def crossed(state: Any, other: Any, rng: random.Random) -> Any:
    """A snapshot with some members of another one of the same format: each is right, but not here."""
    if isinstance(state, list) and isinstance(other, list) and len(state) == len(other) and rng.random() < 0.8:
        return [crossed(one, two, rng) for one, two in zip(state, other, strict=True)]
    return other if rng.random() < 0.2 else state


def hostile(name: str, snapshots: int, each: int) -> int:
    """Go on from wrong snapshots: all that can be made of one good snapshot, `each` of others; how many were taken."""
    rng = random.Random(f"states/{name}")
    taken = 0
    good: list[Any] = []
    for n, (ready, options, ids) in enumerate(itertools.islice(positions(name, rng), snapshots)):
        at = rng.randint(0, len(ids))
        parser = FormatParser(ready, options, SCHEMAS)
        parser.push(ids[:at])
        state = json.loads(json.dumps(parser.snapshot()))
        assert go_on(ready, options, state, ids[at:]), state
        every = [*changes(state)]
        drawn = every if n == 1 else rng.sample(every, min(each, len(every)))
        wrong = [changed(state, *change) for change in drawn]
        wrong += [crossed(state, rng.choice(good), rng) for _ in range(each if good else 0)]
        wrong += [changed(one, (rng.randrange(len(one)),), rng.choice(NASTY)) for one in wrong[::4] if one]
        good = [*good[-20:], state]
        for one in wrong:
            try:
                taken += go_on(ready, options, one, ids[at:])
            except Exception as error:
                text = b"".join(map(ready.marks.tokenizer.piece, ids))
                raise AssertionError(f"{name} {options} {text!r} at {at}: {state}\n{one}") from error
    return taken


def test_a_hostile_snapshot_is_refused_or_goes_on(name: str) -> None:
    taken = hostile(name, 60 if FULL else 12, 300 if FULL else 40)
    assert taken or not FULL


def texts_in(state: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """The places of all texts in a snapshot."""
    for n, one in enumerate(state):
        if isinstance(one, list):
            yield from texts_in(one, (*path, n))
        elif isinstance(one, str):
            yield (*path, n)


def test_a_long_member_takes_no_more_time_than_its_length(name: str) -> None:
    """A text of any length in a snapshot is refused, or costs what as much output would."""
    rng = random.Random(f"long/{name}")
    for ready, options, ids in itertools.islice(positions(name, rng), 40 if FULL else 3):
        at = rng.randint(0, len(ids))
        parser = FormatParser(ready, options, SCHEMAS)
        parser.push(ids[:at])
        state = json.loads(json.dumps(parser.snapshot()))
        for path in texts_in(state):
            for unit in ("x", "[", "{", "}", '"', "\\", "<", "a, ") if FULL else rng.sample(['x"', "{", "["], 1):
                short, long = (
                    functools.partial(go_on, ready, options, changed(state, path, unit * size), [*ids[at:], *ids[at:]])
                    for size in (2_000, 20_000)
                )
                bound = 0.1 + 25 * least_seconds(short, within=0.001)
                assert least_seconds(long, within=bound) <= bound, (path, unit, state)


@pytest.mark.parametrize(
    "state", [None, {}, "x", [], [1], [None, 240], [False, 65], [False, -1], [True, 240, "x"], NASTY]
)
def test_the_plain_parser_refuses_what_is_no_state(state: Any) -> None:
    with pytest.raises(ValueError, match=r"state|character|range"):
        PlainParser(Detokenizer([])).restore(state)


def test_a_number_for_the_pending_bytes_is_refused() -> None:
    parser = FormatParser(form("think", "tokens"), ParserOptions(), SCHEMAS)
    with pytest.raises(ValueError, match="pending"):
        parser.restore([*parser.snapshot()[:-1], 2**62])


@pytest.mark.parametrize(
    ("family", "before", "path", "value", "member"),
    [
        ("hermes", "hello", (0,), "message", "where"),
        ("hermes", '<tool_call>{"na', (0,), "content", "reader"),
        ("hermes", '<tool_call>{"na', (2,), -1, "where"),
        ("hermes", '<tool_call>{"na', (2,), 1, "grammar"),
        ("hermes", '<tool_call>{"na', (12,), 1, "prefix"),
        ("hermes", '<tool_call>{"na', (16,), "add", "tool"),
        ("hermes", '<tool_call>{"na', (15, 2), 1, "held"),
        ("hermes", '<tool_call>{"na', (15, 9), "", "count"),
        ("hermes", '<tool_call>{"na', (15, 11), "{" * 4097, "stack"),
        ("hermes", '<tool_call>{"na', (15, 13), 2, "string"),
        ("hermes", '<tool_call>{"na', (15, 13), "close", "string"),
        ("hermes", '<tool_call>{"arguments": {"a": 1}', (15, 4), [1, 5], "before"),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a', (14, 1), -1, "index"),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a', (14, 7), 1, "ended"),
        ("hermes", "hello", (7,), "hello", "space"),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": ', (15, 2), 1, "stack"),
        ("dots", "</think><dots_function_call><invoke name=", (2,), -1, "where"),
        ("lfm2", "</think><|tool_call_start|>[", (5,), "", "raw"),
        ("lfm2", "</think><|tool_call_start|>[", (6,), "{", "opener"),
        ("lfm2", "</think><|tool_call_start|>[add(a='", (15, 6), "x", "quote"),
        ("gemma4", "<|tool_call>call:add{a:", (15, 1), "(" * 2, "stack"),
        ("gemma4", "<|tool_call>call:add{a:", (15, 2), "item", "phase"),
    ],
)
def test_a_wrong_member_is_refused_by_its_name(
    family: str, before: str, path: tuple[int, ...], value: Any, member: str
) -> None:
    ready = form(family, "tokens")
    options = ParserOptions(start=starts(FORMATS[family])[-1])
    parser = FormatParser(ready, options, SCHEMAS)
    parser.push(ready.marks.tokenizer.encode(before))
    state = json.loads(json.dumps(parser.snapshot()))
    FormatParser(ready, options, SCHEMAS).restore(state)
    with pytest.raises(ValueError, match=member):
        FormatParser(ready, options, SCHEMAS).restore(changed(state, path, value))


# ------------------------------------------------------------------------------------------------------ linear time


def cpu(ready: CompiledFormat, ids: Sequence[int], options: ParserOptions, *, runs: int) -> float:
    """The least CPU time of several runs, in seconds."""
    best = float("inf")
    for _ in range(runs):
        began = time.process_time()
        parser = FormatParser(ready, options, SCHEMAS)
        parser.push(ids)
        parser.finish()
        best = min(best, time.process_time() - began)
    return best


def ratio(
    ready: CompiledFormat, text: str, options: ParserOptions, *, before: str = "", after: str = "", small: int
) -> float:
    """How much more time a token takes in ten times as many of them: `text` over and over between two others."""
    encode = ready.marks.tokenizer.encode
    head, unit = encode(before), encode(text)
    few_ids, many = (head + unit * (size // len(unit) + 1) + encode(after) for size in (small, small * 10))
    cpu(ready, many[:100], options, runs=1)  # texts of tokens are kept once they are met
    got = 0.0
    for runs in (2, 4):  # a machine that is busy shows a slow run sooner than a fast one
        spent = cpu(ready, many, options, runs=runs // 2)
        got = spent / (10 * cpu(ready, few_ids, options, runs=runs) + 0.008)
        if got <= 2.5:
            break
    return got


def adversaries(name: str) -> list[tuple[str, str]]:
    """Texts to repeat, and what stands before them: nothing, or a call that is cut in its body."""
    table = FORMATS[name]
    found = [("", text) for text in pieces(table)] + [("", well_formed(table, random.Random(3)).text)]
    if not FULL:
        return found + [(before, text) for before in cut_calls(table) for text in pieces(table)]
    found = [("", well_formed(table, random.Random(n)).text) for n in range(3)]
    literals = dict.fromkeys([*all_markers(table), "{", "["])
    return found + [(before, text) for before in ("", *cut_calls(table)) for text in literals]


def test_time_is_linear(name: str) -> None:
    texts = adversaries(name) if FULL else random.Random(name).sample(adversaries(name), 2)
    for n, (before, text) in enumerate(texts):
        if before and text in closers(FORMATS[name]):
            continue  # see the next test
        start = starts(FORMATS[name])[n % 2 - 1]
        options = ParserOptions(start=start, complete=n % 3 == 0, trim=n % 5 == 0)
        ready = form(name, WAYS[n % 2])
        got = ratio(ready, text, options, before=before, after=" x" * (n % 2), small=10_000 if FULL else 1_000)
        assert got <= 2.5, f"{before!r} {text!r} {WAYS[n % 2]} {options}: {got:.1f} times the time per token"


def bare(value: Any) -> Any:
    """A snapshot without its held text."""
    if isinstance(value, list):
        return [bare(one) for one in value]
    return "" if isinstance(value, str) and len(value) > 32 else value


@pytest.mark.parametrize("way", WAYS)
def test_a_snapshot_is_small(name: str, way: str) -> None:
    """Under 1 KiB, held text apart, at every position of outputs as the family writes them."""
    ready = form(name, way)
    for seed in range(3):
        sample = well_formed(FORMATS[name], random.Random(seed))
        for complete in (False, True):
            parser = FormatParser(ready, ParserOptions(start=sample.start, complete=complete), SCHEMAS)
            for token in ready.marks.tokenizer.encode(sample.text):
                parser.push((token,))
                assert len(json.dumps(bare(parser.snapshot()))) < 1024


@pytest.mark.parametrize("family", ["kimi_k3", "deepseek_v32"])
def test_time_is_linear_in_closers_inside_a_value(family: str) -> None:
    table = FORMATS[family]
    options = ParserOptions(start=starts(table)[0])
    for text in closers(table):
        assert ratio(form(family, "tokens"), text, options, before=cut_calls(table)[0], after=" x", small=400) <= 2.5, (
            text
        )
