"""The loop on this machine: derender's own server for text, and its own generate server on a small real model."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

import pytest
from tests.e2e.client import Client
from tests.e2e.processes import DERENDER, servers, show_logs
from tests.engines.real_model import gguf

MAX_MODEL_LEN = 2048


class Fleet(NamedTuple):
    """`text` leaves stop strings to the engine, `cutting` finds them itself. `ids` and `placeholders` are generate
    servers of the same model that write logprobs in the two forms."""

    text: Client
    cutting: Client
    ids: Client
    placeholders: Client


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    model = [str(gguf()), "--served-model-name", "smollm2", "--max-model-len", str(MAX_MODEL_LEN)]
    generate = [*DERENDER, "generate", *model, "--threads", "1", "--parallel", "4", "--logprob-wire"]
    commands = {
        "text": [*DERENDER, "serve", *model],
        "cutting": [*DERENDER, "serve", *model, "--stop-strings", "derender"],
        "ids": [*generate, "ids"],
        "placeholders": [*generate, "placeholders"],
    }
    with servers(commands, logs=tmp_path_factory.mktemp("servers"), patience=60) as running:
        yield Fleet(**running)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    show_logs(report)
    return report
