"""The region that an output begins in: from this turn's part of the prompt, never from an earlier turn."""

from __future__ import annotations

from typing import Any

import pytest
from tests.formats.harness import compiled

from derender.formats.qwen import QWEN3
from derender.formats.table import OutputFormat
from derender.parser.start import start_region

HEAD = "<|im_start|>assistant\n"


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize(
    ("tail", "kwargs", "region"),
    [
        (HEAD, None, "reasoning"),
        (f"{HEAD}<think>\n", None, "reasoning"),
        (f"{HEAD}<think>\n\n</think>\n\n", None, "content"),
        (f"{HEAD}<think>\n", {"enable_thinking": False}, "reasoning"),  # what the prompt says counts
        (HEAD, {"enable_thinking": False}, "content"),
        (HEAD, {"enable_thinking": True}, "reasoning"),
        (f"{HEAD}<think>\n\n</think>\n\nyo<|im_end|>\n{HEAD}", None, "reasoning"),
        (f"<|im_start|>user\nWhat is </think>?<|im_end|>\n{HEAD}", None, "reasoning"),
        (f"<|im_start|>user\nWhat is <think>?<|im_end|>\n{HEAD}", {"enable_thinking": False}, "content"),
        ("", None, "reasoning"),
    ],
)
def test_of_qwen3(tail: str, kwargs: Any, region: str, tokens: bool) -> None:
    table: OutputFormat = QWEN3
    form = compiled(table, tokens=tokens, special=("<|im_end|>", "<|im_start|>"))
    assert start_region(form, form.marks.tokenizer.encode(tail), kwargs) == region
