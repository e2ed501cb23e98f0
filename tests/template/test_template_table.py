"""Every template of the corpus over every chat gives what transformers and vLLM give, to the byte.

Needs DERENDER_REFERENCE_PYTHON, the path of a Python that has transformers and vLLM, and ../shared/templates.
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.template.conversations import CHATS, RAW, WISHES
from tests.template.made_templates import MADE, REFUSED
from tests.template.template_table import CORPUS, Row, rows, rows_of_vllm, sources

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        "DERENDER_REFERENCE_PYTHON" not in os.environ,
        reason="DERENDER_REFERENCE_PYTHON is not set to a Python with transformers",
    ),
    pytest.mark.skipif(not CORPUS.is_dir(), reason="there is no ../shared/templates beside the repository"),
]

_BOTH_NAMES = "it reads `reasoning`; this client says reasoning_content, and vLLM hands reasoning on under both names"
DIFFERENT: dict[tuple[str, str, str], str] = {
    ("llama.cpp/upstage-Solar-Open-100B.jinja", "call with reasoning", "raw"): _BOTH_NAMES,
    ("vllm-builtin/template_minicpmv45.jinja", "call with reasoning", "raw"): _BOTH_NAMES,
}
"""Template, chat, kind of messages, and why the prompts are not the same. Of messages as vLLM shapes them: none."""


@pytest.fixture(scope="module")
def table() -> list[Row]:
    def filled() -> list[Row]:
        # A gigabyte of equal texts is not kept.
        return [replace(row, ours="", theirs="") if row.outcome == "equal" else row for row in rows(sources())]

    # JSON is written in another way outside of the main thread; the tests below have that of the main thread.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(filled).result()


def shown(row: Row) -> str:
    both = row.ours or "", row.theirs or ""
    place = next((at for at, (a, b) in enumerate(zip(*both, strict=False)) if a != b), min(map(len, both)))
    around = slice(max(0, place - 80), place + 80)
    return (
        f"{row.template}, {row.chat}, {row.wish}, {row.kind}: {row.outcome}\n"
        f"  ours:   {(row.ours or '')[around]!r} {row.our_reason}\n"
        f"  theirs: {(row.theirs or '')[around]!r} {row.their_reason}"
    )


def test_prompts_equal_those_of_transformers(table: list[Row]) -> None:
    counts = Counter((row.kind, row.outcome) for row in table)
    print("; ".join(f"{kind}, {outcome}: {number}" for (kind, outcome), number in sorted(counts.items())))
    wrong = [
        row
        for row in table
        if row.outcome not in ("equal", "both refuse")
        and not (row.outcome == "different" and (row.template, row.chat, row.kind) in DIFFERENT)
    ]
    assert not wrong, f"{len(wrong)} of {len(table)} differ:\n" + "\n".join(map(shown, wrong[:5]))
    assert counts["normal", "equal"] > 0.8 * sum(number for (kind, _), number in counts.items() if kind == "normal")


def test_prompts_of_requests_equal_those_of_vllm() -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for row in rows_of_vllm(sources()):
        counts[row.outcome] += 1
        if row.outcome not in ("equal", "both refuse"):
            wrong.append(shown(row))
    print("; ".join(f"{outcome}: {number}" for outcome, number in sorted(counts.items())))
    assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(wrong[:5])
    assert counts["equal"] > 0.8 * sum(counts.values())


def test_made_templates_do_what_they_do_in_transformers() -> None:
    made = list(rows({**MADE, **REFUSED}, wanted=("prompt", "continue")))
    wrong = [row for row in made if row.kind == "normal" and row.outcome not in ("equal", "both refuse")]
    assert not wrong, f"{len(wrong)} of {len(made)} differ:\n" + "\n".join(map(shown, wrong[:5]))
    assert {row.template for row in made if row.ours is not None} == set(MADE)


def test_what_is_listed_as_different_is(table: list[Row]) -> None:
    assert {(row.template, row.chat, row.kind) for row in table if row.outcome == "different"} == set(DIFFERENT)


def test_every_template_gives_prompts(table: list[Row]) -> None:
    rendered = {row.template for row in table if row.ours is not None}
    assert rendered == set(sources())


def test_every_chat_and_wish_gives_prompts(table: list[Row]) -> None:
    assert {row.chat for row in table if row.ours is not None} == set(CHATS)
    assert set(WISHES) <= {row.wish for row in table if row.ours is not None}
    assert {row.chat for row in table if row.kind == "raw"} == set(RAW)
