"""Cases from other projects for the families with headers, typed values, Python calls and nested elements."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest
from tests.formats.harness import compiled, read
from tests.vocabularies import SHARED

from derender.formats.registry import FORMATS

CASES = SHARED / "conformance" / "handed.jsonl"
FAMILIES = ("harmony", "gemma4", "pythonic", "kimi_k3", "minimax_m3", "muse_glimmer")


def cases() -> list[Any]:
    if not CASES.is_file():
        return [pytest.param(None, id="no cases", marks=pytest.mark.skip(reason=f"no conformance cases at {CASES}"))]
    rows = [json.loads(line, parse_float=Decimal) for line in CASES.read_text(encoding="utf-8").splitlines()]
    return [pytest.param(row, id=row["id"]) for row in rows if row["family"] in FAMILIES and row["family"] in FORMATS]


def folded(text: str | None, *, joined: bool) -> str:
    """Text with its white space folded; without any where several spans were joined."""
    return "".join((text or "").split()) if joined else " ".join((text or "").split())


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("row", cases())
def test_case(row: dict[str, Any], tokens: bool) -> None:
    form = compiled(FORMATS[row["family"]], tokens=tokens)
    ask = {"prompt_tail": row["prompt_tail"], "kwargs": row["chat_template_kwargs"], "tools": row["tools"] or ()}
    got = read(form, row["text"], **ask)
    rng = random.Random(row["id"])
    chunks = [len(form.marks.tokenizer.encode(chunk)) for chunk in row["chunks"] or []]
    for sizes in ([1] * 3000, [rng.randint(0, 6) for _ in range(2000)], [3] * 2000, chunks):
        assert read(form, row["text"], sizes=sizes, **ask) == got
    read(form, row["text"], complete=True, trim=True, **ask)
    if row.get("taste"):
        return
    expected = row["expected"]
    kinds = [event["kind"] for event in expected["events"] or []]
    for field, kind in (("reasoning", "reasoning"), ("content", "text")):
        joined = kinds.count(kind) > 1
        assert folded(got[field], joined=joined) == folded(expected[field], joined=joined)
    calls = [(name, json.loads(arguments, parse_float=Decimal)) for name, arguments, complete in got["calls"]]
    assert calls == [(call["name"], call["arguments"]) for call in expected["tool_calls"]]
    assert all(complete for _, _, complete in got["calls"])
