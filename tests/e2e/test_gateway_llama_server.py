"""The gateway in front of a real llama.cpp server, beside the gateway with its embedded engine on the same file: the
official client gets the same text of both."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from tests.e2e.client import Json
from tests.e2e.official import answered, official, streamed
from tests.e2e.processes import DERENDER, servers
from tests.engines.real_model import gguf
from tests.engines.test_llama_server_real import SERVER

pytestmark = pytest.mark.real

NAME = "smollm2"
FRANCE: Json = {
    "model": NAME,
    "messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
    "max_tokens": 24,
    "temperature": 0,
}
SMILE: Json = {"model": NAME, "prompt": "Smile 😊 and smile 😊 and smile", "max_tokens": 12, "temperature": 0}


class Two(NamedTuple):
    """Clients of the two gateways."""

    server: Any
    embedded: Any


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    model = str(gguf())
    command = [sys.executable, "-c", SERVER, model, "2048", "2"]
    llama = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert llama.stdout is not None
        url = next(line.strip() for line in llama.stdout if line.startswith("http"))
        gateway = [*DERENDER, "gateway", model, "--served-model-name", NAME, "--max-model-len", "1024"]
        commands = {"server": [*gateway, "--engine", url], "embedded": [*gateway, "--engine-parallel", "2"]}
        with servers(commands, logs=tmp_path_factory.mktemp("gateways"), patience=60) as running:
            yield Two(*(official(running[name].url) for name in Two._fields))
    finally:
        llama.kill()
        llama.wait()


def told(answer: Json) -> list[Json]:
    """Of each choice its text, how it ended, and the bytes of its logprobs."""
    found = []
    for choice in answer["choices"]:
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        entries = (choice.get("logprobs") or {}).get("content") or []
        found.append([text, choice["finish_reason"], choice.get("stop_reason"), [one["bytes"] for one in entries]])
    return found


@pytest.mark.parametrize(
    "body",
    [
        FRANCE,
        {**FRANCE, "stop": ["capital"]},
        {**FRANCE, "logprobs": True, "top_logprobs": 2},
        {**FRANCE, "max_tokens": 3},
        {**FRANCE, "response_format": {"type": "json_object"}},
        SMILE,
        {**SMILE, "echo": True},
        {**SMILE, "prompt": ["One, two,", "Once upon a"]},
    ],
    ids=["chat", "stop", "logprobs", "cut", "json", "characters in pieces", "echo", "two prompts"],
)
def test_it_answers_as_the_embedded_engine(two: Two, body: Json) -> None:
    whole = answered(two.server, body)
    if "response_format" not in body:  # the two hold their output to JSON in their own ways
        assert told(whole) == told(answered(two.embedded, body))
    chunks = streamed(two.server, body)
    for number, choice in enumerate(whole["choices"]):
        parts = [one for chunk in chunks for one in chunk["choices"] if one["index"] == number]
        text = "".join((one["delta"].get("content") or "") if "delta" in one else one["text"] for one in parts)
        assert text == told(whole)[number][0]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_choices_are_asked_for_one_by_one(two: Two) -> None:
    body = {**SMILE, "n": 3, "temperature": 0.9, "seed": 4}
    first, again = answered(two.server, body), answered(two.server, body)
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2]
    assert told(first) == told(again)
    assert len({choice["text"] for choice in first["choices"]}) > 1
