"""External cases of the families whose calls are JSON: strict ones read right, all the same for any split."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest
from tests.formats.harness import compiled, read
from tests.vocabularies import SHARED

from derender.formats.registry import FORMATS

HANDED = SHARED / "conformance" / "handed.jsonl"

TABLES = {
    "deepseek_r1": "deepseek_r1",
    "deepseek_v3": "deepseek_v3",
    "deepseek_v3_1": "deepseek_v31",
    "granite": "granite",
    "kimi_k2": "kimi_k2",
    "llama3_json": "llama3_json",
    "mistral": "mistral",
    "phi4": "phi4_mini_json",
}

# id → why our answer is another one, and its content. The documented behaviour decides: what never becomes a call is
# content as written.
ELSEWHERE = {
    "phi4.u.30-1.guided_json_named_tool": "a guided engine's output is read by the tool choice, not the format"
}


def cases() -> list[Any]:
    if not HANDED.is_file():
        return [pytest.param(None, id="no cases", marks=pytest.mark.skip(reason=f"no external cases at {HANDED}"))]
    rows = [json.loads(line, parse_float=Decimal) for line in HANDED.read_text(encoding="utf-8").splitlines()]
    return [
        pytest.param(row, id=row["id"])
        for row in rows
        if TABLES.get(row["family"]) in FORMATS and row["id"] not in ELSEWHERE
    ]


def folded(text: str | None) -> str:
    return " ".join((text or "").split())


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("row", cases())
def test_case(row: dict[str, Any], tokens: bool) -> None:
    form = compiled(FORMATS[TABLES[row["family"]]], tokens=tokens)
    ask = {"prompt_tail": row["prompt_tail"] or "", "kwargs": row["chat_template_kwargs"], "tools": row["tools"] or []}
    got = read(form, row["text"], **ask)
    if not row.get("taste"):
        wanted = row["expected"]
        assert folded(got["reasoning"]) == folded(wanted["reasoning"])
        assert folded(got["content"]) == folded(wanted["content"])
        calls = [(name, json.loads(arguments, parse_float=Decimal)) for name, arguments, _ in got["calls"]]
        assert calls == [(call["name"], call["arguments"]) for call in wanted["tool_calls"]]
        assert all(complete for *_, complete in got["calls"])
    rng = random.Random(row["id"])
    for sizes in ([1] * 2000, [rng.randint(0, 6) for _ in range(1000)], [3] * 1000):
        assert read(form, row["text"], sizes=sizes, **ask) == got
