"""The real model that real tests use: the GGUF file named by DERENDER_TEST_GGUF, in the xllamacpp wheel."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

VARIABLE = "DERENDER_TEST_GGUF"


def gguf() -> Path:
    """The file; skips the test, saying why, where it or the wheel is missing."""
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"{VARIABLE} does not name a GGUF file")
    if not Path(named).is_file():
        pytest.skip(f"{VARIABLE} names {named}, which is not there")
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    return Path(named)
