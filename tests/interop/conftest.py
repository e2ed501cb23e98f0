"""Real vLLM servers beside derender's own, on one model. See README.md for the variables that name them."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.e2e.client import Client
from tests.e2e.processes import DERENDER, servers, show_logs

EXECUTABLE = "DERENDER_VLLM"
MODEL = "DERENDER_VLLM_MODEL"
NAME = "smollm2"
MAX_MODEL_LEN = 2048
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
QUIET = ("--disable-uvicorn-access-log", "--uvicorn-log-level", "warning")
_WEIGHTS = ("*.safetensors", "*.bin")
_START_SECONDS = 300.0


class Fleet(NamedTuple):
    """Servers of one model.

    `engine` is vLLM without a tokenizer, `coupled` the same vLLM with one, `render` vLLM's render server. `text` is
    derender's, which leaves stop strings to the engine; `cutting` is derender's too and finds them itself.
    """

    engine: Client
    coupled: Client
    render: Client
    text: Client
    cutting: Client


def vllm() -> str:
    """The vLLM executable. Skips the test, saying why, where it is not named or not there."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("each worker would start vLLM for itself: run these tests without -n")
    named = os.environ.get(EXECUTABLE)
    if not named:
        pytest.skip(f"{EXECUTABLE} does not name a vllm executable")
    if not os.access(named, os.X_OK):
        pytest.skip(f"{EXECUTABLE} names {named}, which is no executable")
    return named


def model() -> Path:
    """The directory of the model with weights. Skips in the same way."""
    named = os.environ.get(MODEL)
    if not named:
        pytest.skip(f"{MODEL} does not name a model directory")
    if not any(path for pattern in _WEIGHTS for path in Path(named).glob(pattern)):
        pytest.skip(f"{MODEL} names {named}, which has no weights")
    return Path(named)


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    executable, directory = vllm(), str(model())
    shared = [directory, "--served-model-name", NAME, "--max-model-len", str(MAX_MODEL_LEN)]
    serve = [executable, "serve", *shared, *QUIET, "--max-num-seqs", "8", "--enforce-eager", "--dtype", "float32"]
    ours = [*DERENDER, "serve", *shared, "--enable-request-id-headers"]
    commands = {
        "engine": [*serve, "--tokens-only"],
        "coupled": serve,
        "render": [executable, "launch", "render", *shared, *QUIET],
        "text": ours,
        "cutting": [*ours, "--stop-strings", "derender"],
    }
    logs = tmp_path_factory.mktemp("servers")
    with servers(commands, logs=logs, patience=_START_SECONDS, environment=ENVIRONMENT) as running:
        yield Fleet(**running)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    show_logs(report)
    return report
