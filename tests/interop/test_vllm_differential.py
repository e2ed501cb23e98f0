"""derender's server against vLLM's render server, request by request, with the differential tester of the shared tools.

Every difference is either one that the tester or `vllm_differences.py` calls an intended improvement, or a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.e2e.client import Client
from tests.e2e.processes import DERENDER, servers
from tests.interop.conftest import ENVIRONMENT, QUIET, vllm

pytestmark = pytest.mark.real

MODELS = "DERENDER_VLLM_RENDER_MODELS"
SUITES = ("render", "derender", "errors", "stream")
CASES = 60  # generated ones for a suite, beside the listed ones
NAME = "m"
RULES = Path(__file__).with_name("vllm_differences.py")
TESTER = Path(__file__).parents[3] / "shared" / "tools" / "diff_vllm.py"
_START_SECONDS = 180.0
_SUITE_SECONDS = 900.0


class Pair(NamedTuple):
    """Two servers of one model."""

    model: Path
    theirs: Client
    ours: Client


def named_models() -> list[str]:
    return [path for path in os.environ.get(MODELS, "").split(os.pathsep) if path]


@pytest.fixture(scope="module", params=named_models() or [""], ids=lambda path: Path(path).name or "none")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    executable = vllm()
    if not request.param:
        pytest.skip(f"{MODELS} names no model directories")
    if not TESTER.is_file():
        pytest.skip(f"no differential tester at {TESTER}")
    model = Path(request.param)
    if not (model / "tokenizer.json").is_file():
        pytest.skip(f"{MODELS} names {model}, which has no tokenizer.json")
    shared = [str(model), "--served-model-name", NAME]
    commands = {
        "theirs": [executable, "launch", "render", *shared, *QUIET],
        "ours": [*DERENDER, "serve", *shared, "--tolerate-unknown-ids", "--strict-vllm"],
    }
    logs = tmp_path_factory.mktemp("differential")
    with servers(commands, logs=logs, patience=_START_SECONDS, environment=ENVIRONMENT) as running:
        yield Pair(model, **running)


@pytest.mark.parametrize("suite", SUITES)
def test_every_difference_is_intended(pair: Pair, suite: str) -> None:
    command = [sys.executable, str(TESTER), "--a", pair.theirs.url, "--b", pair.ours.url, "--model", NAME]
    command += ["--suite", suite, "--n", str(CASES), "--rules", str(RULES)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_SUITE_SECONDS,
        env={**os.environ, "DERENDER_DIFF_TOKENIZER": str(pair.model / "tokenizer.json")},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert f"| {suite} |" in done.stdout
