"""Outputs recorded by other projects: strict ones are read right, and all of them the same for any split."""

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
JSON_TABLES = {
    "deepseek_r1": "deepseek_r1",
    "deepseek_v3": "deepseek_v3",
    "deepseek_v3_1": "deepseek_v31",
    "granite": "granite",
    "kimi_k2": "kimi_k2",
    "llama3_json": "llama3_json",
    "mistral": "mistral",
    "phi4": "phi4_mini_json",
}
PARAMETER_TABLES = {
    "glm47": "glm47",
    "deepseek_v3_2": "deepseek_v32",
    "deepseek_v4": "deepseek_v4",
    "deepseek_v41": "deepseek_v41",
    "minimax_m2": "minimax_m2",
    "qwen3_coder": "qwen3_coder",
}
TYPED_TABLES = {name: name for name in ("harmony", "gemma4", "pythonic", "kimi_k3", "minimax_m3", "muse_glimmer")}
TABLES = {**JSON_TABLES, **PARAMETER_TABLES, **TYPED_TABLES}
ELSEWHERE = {
    "phi4.u.30-1.guided_json_named_tool": "a guided engine's output is read by the tool choice, not the format"
}


def table_of(row: dict[str, Any]) -> OutputFormat | None:
    family = row["family"]
    if family == "qwen3":
        return FORMATS["qwen3_coder"] if row["tool_parser"] == "qwen3_coder" else None
    table = FORMATS.get(TABLES.get(family, ""))
    if table is not None and family in PARAMETER_TABLES and row["reasoning_parser"] is None:
        return table.replace(reasoning=None)  # type: ignore[no-any-return]
    return table


def cases() -> list[Any]:
    if not CASES.is_file():
        return [pytest.param(None, id="no cases", marks=pytest.mark.skip(reason=f"no conformance cases at {CASES}"))]
    rows = [json.loads(line, parse_float=Decimal) for line in CASES.read_text(encoding="utf-8").splitlines()]
    return [pytest.param(row, id=row["id"]) for row in rows if table_of(row) is not None and row["id"] not in ELSEWHERE]


def folded(text: str | None, *, joined: bool) -> str:
    """Text with its white space folded; without any where several spans were joined."""
    return "".join((text or "").split()) if joined else " ".join((text or "").split())


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("row", cases())
def test_case(row: dict[str, Any], tokens: bool) -> None:
    table = table_of(row)
    assert table is not None
    form = compiled(table, tokens=tokens)
    ask = {"prompt_tail": row["prompt_tail"] or "", "kwargs": row["chat_template_kwargs"], "tools": row["tools"] or ()}
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
        joined = kinds.count(kind) > 1 and row["family"] not in JSON_TABLES
        assert folded(got[field], joined=joined) == folded(expected[field], joined=joined)
    calls = [(name, json.loads(arguments, parse_float=Decimal)) for name, arguments, _ in got["calls"]]
    assert calls == [(call["name"], call["arguments"]) for call in expected["tool_calls"]]
    assert all(complete for _, _, complete in got["calls"])
