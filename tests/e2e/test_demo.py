"""The demo's commands, on the real model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = os.environ.get("DERENDER_TEST_GGUF", "")

pytestmark = pytest.mark.skipif(not MODEL, reason="DERENDER_TEST_GGUF names no GGUF file of SmolLM2-135M-Instruct")


def demo(*arguments: str) -> str:
    """What `scripts/demo` prints, without the set-up that its shell part does."""
    command = [sys.executable, str(ROOT / "scripts" / "demo.py"), "--model", MODEL, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_the_gateway_answers_as_the_loop_does() -> None:
    said = demo("--gateway")
    assert "The capital of France is Paris." in said
    assert "every byte went through the loop" in said


def test_the_loop_is_shown() -> None:
    assert "The capital of France is Paris." in demo()
