"""Cases from other projects for the families whose arguments are parameters in tags."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest
from tests.formats.harness import compiled, read
from tests.vocabularies import SHARED

from derender.formats.registry import FORMATS
from derender.formats.table import OutputFormat

CASES = SHARED / "conformance" / "handed.jsonl"
TABLES = {
    "glm47": "glm47",
    "deepseek_v3_2": "deepseek_v32",
    "deepseek_v4": "deepseek_v4",
    "deepseek_v41": "deepseek_v41",
    "minimax_m2": "minimax_m2",
    "qwen3_coder": "qwen3_coder",
}


def table_of(row: dict[str, Any]) -> OutputFormat | None:
    if row["family"] == "qwen3":
        return FORMATS["qwen3_coder"] if row["tool_parser"] == "qwen3_coder" else None
    table = FORMATS.get(TABLES.get(row["family"], ""))
    if table is not None and row["reasoning_parser"] is None:
        return table.replace(reasoning=None)  # type: ignore[no-any-return]
    return table


def cases() -> list[Any]:
    if not CASES.is_file():
        return [pytest.param(None, id="no cases", marks=pytest.mark.skip(reason=f"no conformance cases at {CASES}"))]
    rows = [json.loads(line, parse_float=Decimal) for line in CASES.read_text(encoding="utf-8").splitlines()]
    return [pytest.param(row, id=row["id"]) for row in rows if table_of(row) is not None]


def folded(text: str | None, *, joined: bool) -> str:
    """Text with its white space folded; without any where several spans were joined."""
    return "".join((text or "").split()) if joined else " ".join((text or "").split())


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("row", cases())
def test_case(row: dict[str, Any], tokens: bool) -> None:
    table = table_of(row)
    assert table is not None
    form = compiled(table, tokens=tokens)
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
