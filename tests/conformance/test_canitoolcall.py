"""The public suite canitoolcall (469 recorded outputs of nine families) over derender, by the suite's own runner.

What does not pass, and why, is printed by `python -m tests.conformance.canitoolcall_report`. In the default
configuration a call that `max_tokens` cut stays a call, as in OpenAI's API, which the suite counts as a failure; in
`complete+trim` calls are given only when they are whole.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

pytest.importorskip(
    "canitoolcall", reason="canitoolcall is not installed (pip install 'derender[test]'): its suite was NOT run"
)

from canitoolcall.results import Status
from tests.conformance.canitoolcall_adapter import CONFIGURATIONS, DerenderAdapter, marker_places, vocabulary_of
from tests.conformance.canitoolcall_report import run_suite, status_of

FIXTURES = 469
PASSES = {"complete+trim": 456, "defaults": 377}
"""At least so many pass outright, with real vocabularies as with synthetic ones alone."""
SOFT = {"complete+trim": 459, "defaults": 438}
"""At least so many pass, or pass but for white space."""
BY_CHARACTER = 466
"""At least so many give in `complete+trim` the same answer with markers as text, character by character."""


@functools.cache
def results(configuration: str) -> Any:
    """The run of a configuration, once."""
    return run_suite(configuration)


@pytest.fixture(params=CONFIGURATIONS)
def configuration(request: pytest.FixtureRequest) -> str:
    """Each configuration."""
    name: str = request.param
    return name


def test_every_fixture_is_read(configuration: str) -> None:
    cases = results(configuration).cases
    assert len(cases) == FIXTURES, "another version of the suite: see what changed, and set the numbers anew"
    assert [case.fixture_id for case in cases if case.status in (Status.ERROR, Status.UNSUPPORTED)] == []
    assert [case.fixture_id for case in cases if case.skipped_strategies] == []


def test_nothing_raises(configuration: str) -> None:
    raised = [
        (case.fixture_id, parse.exception)
        for case in results(configuration).cases
        for parse in (case.observed.nonstream, *case.observed.streams.values())
        if parse.exception is not None
    ]
    assert raised == []


def test_a_stream_gives_what_the_batch_gives_however_it_is_cut(configuration: str) -> None:
    differing = [
        (case.fixture_id, row.strategy, row.detail)
        for case in results(configuration).cases
        for row in case.checks
        if row.check in ("stream_equals_nonstream", "split_invariance")
        and row.status is not Status.PASS
        and not row.strategy.startswith("char:")
    ]
    assert differing == []


def test_as_many_pass_as_ever(configuration: str) -> None:
    cases = results(configuration).cases
    passes = [case.fixture_id for case in cases if case.status is Status.PASS]
    soft = [case.fixture_id for case in cases if case.status is Status.SOFT_PASS]
    failed = [case.fixture_id for case in cases if case.status is Status.FAIL]
    assert len(passes) >= PASSES[configuration], failed + soft
    assert len(passes) + len(soft) >= SOFT[configuration], failed


def test_markers_as_text_cut_anywhere() -> None:
    cases = results("complete+trim").cases
    other = [case.fixture_id for case in cases if status_of(case, "char:0") is not status_of(case, "nonstream")]
    assert len(cases) - len(other) >= BY_CHARACTER, other


def test_a_case_says_which_vocabulary_it_was_read_with() -> None:
    said = {case.parser_config["vocabulary"] for case in results("defaults").cases}
    assert any(name.startswith("synthetic: bytes and ") for name in said)
    assert all(name.startswith(("synthetic: ", "real: ")) for name in said)


def test_a_spelling_among_ordinary_tokens_is_no_marker() -> None:
    names = {9: "[TOOL_CALLS]", 32: "[ARGS]"}
    text = "a [TOOL_CALLS] in text[TOOL_CALLS]f[ARGS]{}"
    ids = [1000, 1001, 1002, 1003, 1004, 9, 1005, 32, 1006]
    assert marker_places(text, ids, names) == [(22, "[TOOL_CALLS]"), (35, "[ARGS]")]


def test_the_synthetic_vocabulary_has_the_markers_as_tokens() -> None:
    known = vocabulary_of("Qwen/Qwen3.8-27B")
    assert known is not None
    assert known.real is None
    assert "<tool_call>" in known.plain
    assert "<function=" not in (*known.special, *known.plain)
    assert vocabulary_of("nobody/has-seen-this") is None


def test_an_unknown_model_is_unsupported_not_guessed() -> None:
    adapter = DerenderAdapter("defaults")
    try:
        assert not adapter.supports("nobody", "nobody/has-seen-this")
    finally:
        adapter.close()
