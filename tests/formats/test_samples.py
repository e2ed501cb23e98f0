"""Every sample of the fact sheets that has a table: right, the same for every split, markers as tokens or as text."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.formats.harness import compiled, read
from tests.vocabularies import SHARED

from derender.formats.registry import FORMATS

SAMPLES = SHARED / "formats" / "samples.jsonl"

# family/sample → why our answer is another one, and what it is. The documented behaviour decides over a sheet:
# text between and after calls is content; a cut call stays a call.
OTHERWISE: dict[str, tuple[str, dict[str, Any]]] = {
    "hermes/text_after": ("text after a call is content", {"content": "\nDone."}),
    "nemotron_v3/only_reasoning_forced": (
        "a stream cannot take back what it gave as reasoning",
        {"reasoning": "4", "content": ""},
    ),
    "kimi_k2/text_after": ("text after a call is content", {"content": "Done."}),
    "mistral/v3.not_json": (
        "what proves to be no call is content as written",
        {"content": "[TOOL_CALLS] I could not."},
    ),
}
STRETCH: set[str] = set()
REACHED = {"qwen3_coder/marker_in_value", "deepseek_dsml/v32.call_inside_reasoning"}
"""Samples that their sheets call a stretch and that are read right."""

SHEETS = {"qwen3_reasoning": "qwen3", "hermes": "qwen3", "cohere_command": "cohere_command3"}
"""Sheets whose samples are read by another table (a tool format with the reasoning that goes with it)."""


def samples() -> list[Any]:
    if not SAMPLES.is_file():
        return [pytest.param(None, id="no sheets", marks=pytest.mark.skip(reason=f"no fact sheets at {SAMPLES}"))]
    rows = [json.loads(line) for line in SAMPLES.read_text(encoding="utf-8").splitlines()]
    known = [row for row in rows if SHEETS.get(table_name(row), table_name(row)) in FORMATS]
    return [pytest.param(row, id=f"{row['family']}/{row['id']}") for row in known]


DIALECTS = {
    "v32": "deepseek_v32",
    "v4": "deepseek_v4",
    "v41": "deepseek_v41",
    "pythonic": "pythonic",
    "llama4": "llama4_pythonic",
    "olmo3": "olmo3",
}


def table_name(row: dict[str, Any]) -> str:
    part = str(row["id"]).partition(".")[0]
    if row["family"] in ("deepseek_dsml", "pythonic"):
        return DIALECTS[part]
    return part if row["family"] == "more_families" else str(row.get("dialect") or row["family"])


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("row", samples())
def test_sample(row: dict[str, Any], tokens: bool) -> None:
    key = f"{row['family']}/{row['id']}"
    if key in STRETCH or (row.get("level") == "stretch" and key not in REACHED):
        pytest.skip("the sheet calls it a stretch")
    table = FORMATS[SHEETS.get(table_name(row), table_name(row))]
    form = compiled(table, tokens=tokens)
    ask = {"prompt_tail": row.get("prompt_tail") or "", "kwargs": row.get("kwargs")}
    got = read(form, row["output"], **ask)
    expect = row["expect"]
    content = expect.get("stream_content")
    wanted: dict[str, Any] = {
        "reasoning": expect.get("reasoning") or "",
        "content": (content if content is not None else expect.get("content")) or "",
        "calls": [(call["name"], json.loads(call["arguments"])) for call in expect["tool_calls"]],
    }
    wanted |= OTHERWISE.get(key, ("", {}))[1]
    assert {
        "reasoning": got["reasoning"],
        "content": got["content"],
        "calls": [(name, json.loads(arguments)) for name, arguments, complete in got["calls"] if complete],
    } == wanted
    cut = [call for call in got["calls"] if not call[2]]
    if expect.get("open_call") and key not in OTHERWISE:
        assert cut == [(expect["open_call"]["name"], expect["open_call"]["arguments_so_far"], False)]
    rng = random.Random(key)
    for sizes in ([1] * 2000, [rng.randint(0, 6) for _ in range(1000)], [3] * 1000):
        assert read(form, row["output"], sizes=sizes, **ask) == got
