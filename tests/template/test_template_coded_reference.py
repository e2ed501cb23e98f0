"""The same prompts as vLLM's own code and mistral-common make, over random conversations.

Needs DERENDER_REFERENCE_PYTHON, the path of a Python that has vLLM (and with it openai-harmony and mistral-common).
Kimi K3's encoder is in the model's repository: it is held to published renders instead.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.template.coded import attempt, render
from tests.template.coded_conversations import request

from derender.template.coded.base import CodedTemplate
from derender.template.coded.deepseek_v4 import DeepseekV4, DeepseekV41
from derender.template.coded.deepseek_v32 import DeepseekV32
from derender.template.coded.harmony import Harmony
from derender.template.coded.inkling import Inkling
from derender.template.coded.mistral import EffortRule, Mistral
from derender.tokenizer import Tokenizer
from derender.tokenizer.directory import read_tokenizer_directory

Json = Any
COUNT = 150
VOCABS = os.environ.get("DERENDER_TEST_VOCABS")

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        "DERENDER_REFERENCE_PYTHON" not in os.environ,
        reason="DERENDER_REFERENCE_PYTHON is not set to a Python with vLLM",
    ),
]


def reference(task: Json) -> list[list[Json]]:
    done = subprocess.run(
        [os.environ["DERENDER_REFERENCE_PYTHON"], str(Path(__file__).with_name("reference_coded.py"))],
        input=json.dumps(task).encode(),
        capture_output=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    answers: list[list[Json]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def without_empty_parts(body: Json) -> Json:
    """vLLM's harmony drops an answer whose first part is empty, with all its text."""
    for message in body["messages"]:
        if isinstance(message["content"], list):
            kept = [part for part in message["content"] if part["text"]]
            message["content"] = kept or [{"type": "text", "text": "x"}]
    return body


def of_harmony(seed: int) -> Json:
    body = without_empty_parts(request(seed, developer_tools=False))  # tools of a developer: vLLM drops them
    effort = Random(seed).choice((None, "low", "medium", "high", "none"))
    return body if effort is None else {**body, "reasoning_effort": effort}


SWITCHES = (
    {}, {"thinking": True}, {"thinking": False}, {"enable_thinking": True},
    {"thinking": False, "enable_thinking": True}, {"drop_thinking": False},
)  # fmt: skip
EFFORTS = (None, None, "none", "low", "high", "max", "xhigh", "medium")


def of_deepseek(seed: int) -> Json:
    random = Random(seed)
    body = request(seed)
    if kwargs := random.choice(SWITCHES):
        body["chat_template_kwargs"] = dict(kwargs)
    if effort := random.choice(EFFORTS):
        body["reasoning_effort"] = effort
    return body


def of_inkling(seed: int) -> Json:
    body = without_empty_parts(request(seed))  # of an empty part vLLM makes a message without text
    effort = Random(seed).choice((None, "none", "minimal", "low", "medium", "high", "xhigh", "max"))
    return body if effort is None else {**body, "reasoning_effort": effort}


def same(ours: list[Json], theirs: list[Json], text: Any = str) -> bool:
    return ours[0] == theirs[0] and (not ours[0] or text(ours[1]) == text(theirs[1]))


def compare(template: CodedTemplate, bodies: list[Json], theirs: list[list[Json]], text: Any = str) -> Counter[bool]:
    counts: Counter[bool] = Counter()
    for seed, (body, other) in enumerate(zip(bodies, theirs, strict=True)):
        mine = attempt(template, body)
        assert same(mine, other, text), f"seed {seed}\nours:   {mine}\ntheirs: {other}\n{json.dumps(body)}"
        counts[mine[0]] += 1
    return counts


def test_harmony() -> None:
    bodies = [of_harmony(seed) for seed in range(COUNT)]
    counts = compare(Harmony(), bodies, reference({"family": "harmony", "requests": bodies}))
    assert counts[True] > COUNT / 2


def test_inkling() -> None:
    bodies = [of_inkling(seed) for seed in range(COUNT)]
    counts = compare(Inkling(), bodies, reference({"family": "inkling", "requests": bodies}))
    assert counts[True] > COUNT / 2


def test_deepseek_v32() -> None:
    """But for two faults of vLLM's: blank lines that its text about tools has lost, and a failure (an index out of
    range) where thinking is on and a developer's message stands before the last of the user."""
    bodies = [of_deepseek(seed) for seed in range(COUNT)]
    theirs = reference({"family": "deepseek_v32", "requests": bodies})
    told = [number for number, answer in enumerate(theirs) if answer[0] or "out of range" not in answer[1]]
    assert len(told) > COUNT * 0.75
    counts = compare(
        DeepseekV32(),
        [bodies[number] for number in told],
        [theirs[number] for number in told],
        text=lambda prompt: re.sub("\n+", "\n", prompt),
    )
    assert counts[True] > COUNT / 2


@pytest.mark.parametrize("template", [DeepseekV4(), DeepseekV41()])
def test_deepseek_v4(template: CodedTemplate) -> None:
    """But for a fault of vLLM's in V4.1: it cannot copy some developers' messages that have tools."""
    bodies = [of_deepseek(seed) for seed in range(COUNT)]
    theirs = reference({"family": template.name, "requests": bodies})
    told = [number for number, answer in enumerate(theirs) if answer[0] or "cannot pickle" not in answer[1]]
    assert len(told) > COUNT * 0.9
    counts = compare(template, [bodies[number] for number in told], [theirs[number] for number in told])
    assert counts[True] > COUNT / 2


def of_mistral(seed: int, version: int) -> Json:
    random = Random(seed)
    body = request(
        seed,
        developer_tools=False,
        reasoning=version >= 13 or seed % 9 == 0,
        late_system=version >= 7 or seed % 4 == 0,
        text_beside_calls=version >= 7 or seed % 9 == 0,
        shuffled=seed % 2 == 0,
    )
    if version == 1:  # its tools are dropped there, and refused here
        body.pop("tools", None)
        body["messages"] = [one for one in body["messages"] if one["role"] != "tool" and not one.get("tool_calls")]
    for message in body["messages"]:
        calls = message.get("tool_calls")
        if calls and version == 2 and seed % 5:
            del calls[1:]
        if message["role"] == "tool" and random.random() < 0.3:
            message["name"] = "now"
        for call in calls or ():
            if random.random() < 0.02:
                call["id"] = "call_1"
        if message.get("reasoning") == "" and version < 13:
            message["reasoning"] = "x"  # an empty one is refused there
        if message["role"] == "assistant" and not calls and not message["content"]:
            message["content"] = "ok"
        roles = ("system", "assistant") if version == 13 else ("assistant",)
        thinks = version >= 13 and message["role"] in roles and not message.get("reasoning")
        if thinks and isinstance(message["content"], list) and random.random() < 0.4:
            part = {"type": "thinking", "thinking": "hm", "closed": random.random() < 0.8}
            message["content"].insert(random.randint(0, len(message["content"])), part)
    if body["messages"][-1]["role"] == "assistant":
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    if version == 15 and random.random() < 0.5:
        body["reasoning_effort"] = random.choice(("none", "high", "low"))
    return body


@pytest.mark.parametrize(
    "kind", ["v1", "v2", "v3", "v7", "tekken v3", "tekken v7", "tekken v11", "tekken v13", "tekken v15"]
)
def test_mistral(kind: str) -> None:
    """The ids of our text, each piece between special tokens encoded on its own, are those of mistral-common."""
    version = int(kind.rpartition("v")[2])
    effort = EffortRule(("none", "high"), default="none") if version == 15 else None
    template = Mistral(version=version, thinks=version >= 13, effort=effort)
    bodies = [of_mistral(seed, version) for seed in range(COUNT)]
    mine = [attempt(template, body) for body in bodies]
    texts = [answer[1] if answer[0] else None for answer in mine]
    theirs = reference({"family": "mistral", "kind": kind, "requests": bodies, "texts": texts})
    for seed, (ours, (taken, ids, of_ours)) in enumerate(zip(mine, theirs, strict=True)):
        assert ours[0] == taken, f"seed {seed}\nours:   {ours}\ntheirs: {ids}\n{json.dumps(bodies[seed])}"
        assert not taken or ids == of_ours, f"seed {seed}\n{ours}\n{ids}\n{of_ours}"
    assert sum(answer[0] for answer in mine) > COUNT / 4


@pytest.mark.skipif(VOCABS is None, reason="DERENDER_TEST_VOCABS is not set to a folder of tokenizers")
@pytest.mark.parametrize(
    ("kind", "folder", "blank"),
    [("v1", "mistral-v1", ""), ("v3", "mistral-7b-v3", " "), ("tekken v3", "mistral-nemo-tekken", "")],
)
def test_mistral_with_a_published_tokenizer(kind: str, folder: str, blank: str) -> None:
    """The ids that a converted tokenizer.json gives our text."""
    directory = Path(VOCABS or "") / folder
    if not directory.is_dir():
        pytest.skip(f"there is no {folder} in DERENDER_TEST_VOCABS")
    tokenizer = Tokenizer(read_tokenizer_directory(directory))
    version = int(kind.rpartition("v")[2])
    template = Mistral(version=version, blank=blank)
    bodies = [of_mistral(seed, version) for seed in range(COUNT)]
    theirs = reference({"family": "mistral", "kind": kind, "requests": bodies, "texts": [None] * COUNT})
    checked = 0
    for body, (taken, ids, _) in zip(bodies, theirs, strict=True):
        if taken:
            assert tokenizer.encode(render(template, body), add_special_tokens=False) == ids, json.dumps(body)
            checked += 1
    assert checked > COUNT / 4
