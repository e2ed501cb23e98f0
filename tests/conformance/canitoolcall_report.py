"""Runs canitoolcall over derender and prints what came out: `python -m tests.conformance.canitoolcall_report`.

A table per configuration, then every fixture that does not pass outright with the text, what is expected and what
derender gives. Arguments: configurations (all of them when none is named), `--family F`, `--id PATTERN`, `--synthetic`
(leave real vocabularies aside), `--jobs N`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from canitoolcall.checks import describe_difference, expected_as_result
from canitoolcall.chunking import DEFAULT_STRATEGIES, ChunkStrategy
from canitoolcall.fixtures import Fixture, load_fixtures
from canitoolcall.results import CaseResult, ParseResult, RunResults, Status
from canitoolcall.runner import RunConfig, run
from tests.conformance.canitoolcall_adapter import CONFIGURATION, CONFIGURATIONS, SYNTHETIC_ONLY

ENGINE = "tests.conformance.canitoolcall_adapter:DerenderAdapter"
STRATEGIES = (*DEFAULT_STRATEGIES, ChunkStrategy("char"))
"""The suite's own, and single characters with markers as text, which never count for a case's status."""
ROOT = Path(__file__).parents[2]


def run_suite(
    configuration: str,
    *,
    families: Sequence[str] = (),
    ids: Sequence[str] = (),
    synthetic: bool = False,
    jobs: int = 2,
) -> RunResults:
    """The suite's own runner over the adapter, in worker processes."""
    env = {"PYTHONPATH": str(ROOT), CONFIGURATION: configuration}
    if synthetic:
        env[SYNTHETIC_ONLY] = "1"
    return run(
        RunConfig(
            engine=ENGINE,
            families=families,
            ids=ids,
            strategies=STRATEGIES,
            env=env,
            include_observed="all",
            validate=False,
            jobs=jobs,
        )
    )


def status_of(case: CaseResult, strategy: str) -> Status:
    """Whether one strategy's answer is the expected one."""
    rows = [row for row in case.checks if row.strategy == strategy]
    order = (Status.FAIL, Status.ERROR, Status.SOFT_PASS)
    return next((status for status in order if any(row.status is status for row in rows)), Status.PASS)


def table(results: RunResults) -> Iterator[str]:
    """Counts per family, as a markdown table."""
    columns = [status.value for status in Status]
    yield f"### {results.engine.details['configuration']} (canitoolcall {results.canitoolcall_version})"
    yield ""
    yield "| family | fixtures | " + " | ".join(columns) + " | fail by character |"
    yield "|---|" + "---:|" * (len(columns) + 2)
    families = sorted({case.family for case in results.cases})
    for family in (*families, "all"):
        cases = [case for case in results.cases if family in (case.family, "all")]
        counts = [sum(case.status.value == column for case in cases) for column in columns]
        characters = sum(status_of(case, "char:0") is Status.FAIL for case in cases)
        yield f"| {family} | {len(cases)} | " + " | ".join(map(str, (*counts, characters))) + " |"
    yield ""
    synthetic = sum("synthetic" in (case.parser_config or {}).get("vocabulary", "") for case in results.cases)
    yield f"{synthetic} of {len(results.cases)} fixtures were read with a synthetic vocabulary."


def _shown(result: ParseResult) -> dict[str, Any]:
    calls = [[call.name, call.arguments_raw] for call in result.tool_calls]
    shown = {"content": result.content, "reasoning": result.reasoning_content, "calls": calls}
    return {**shown, "exception": result.exception} if result.exception else shown


def details(case: CaseResult, fixture: Fixture) -> Iterator[str]:
    """One case that did not pass: the output, what is expected, what came, and which checks say so."""
    config = case.parser_config or {}
    yield f"#### {case.fixture_id}: {case.status.value}"
    if case.observed is None:
        yield f"- {case.reason or case.harness_error}"
        return
    yield f"- parsers: {config['tool_call_parser']}, {config['reasoning_parser']}; {config['vocabulary']}"
    yield f"- prompt ends: {config['prompt'][-80:]!r}, kwargs {config['chat_template_kwargs']}"
    yield f"- output: {fixture.raw_output!r}" + (" (cut by max_tokens)" if fixture.truncated else "")
    whole = case.observed.nonstream
    if fixture.expected is not None:
        want = expected_as_result(fixture.expected)
        yield f"- expected: {json.dumps(_shown(want), ensure_ascii=False)}"
        yield f"- differs: {describe_difference(want, whole)}"
    elif fixture.expected_error is not None:
        yield f"- expected: one of {list(fixture.expected_error.accept)} ({fixture.expected_error.reason})"
    yield f"- ours: {json.dumps(_shown(whole), ensure_ascii=False)}"
    said: dict[tuple[str, str | None], list[str]] = {}
    for row in case.checks:
        if row.status is not Status.PASS:
            said.setdefault((f"{row.check} {row.status.value}", row.detail), []).append(row.strategy)
    for (check, detail), strategies in said.items():
        yield f"  - {check} [{', '.join(strategies)}]: {detail}"
    if fixture.notes:
        yield f"- the suite's notes: {fixture.notes}"


def report(results: RunResults) -> Iterator[str]:
    """The table, then each case that did not pass outright."""
    yield from table(results)
    fixtures = {fixture.id: fixture for fixture in load_fixtures()}
    for case in results.cases:
        if case.status is not Status.PASS:
            yield ""
            yield from details(case, fixtures[case.fixture_id])


def main() -> None:
    """Prints the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configurations", nargs="*", choices=[[], *CONFIGURATIONS])
    parser.add_argument("--family", action="append", default=[])
    parser.add_argument("--id", action="append", default=[])
    parser.add_argument("--synthetic", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    for configuration in asked.configurations or CONFIGURATIONS:
        results = run_suite(
            configuration, families=asked.family, ids=asked.id, synthetic=asked.synthetic, jobs=asked.jobs
        )
        print("\n".join(report(results)), end="\n\n")


if __name__ == "__main__":
    main()
