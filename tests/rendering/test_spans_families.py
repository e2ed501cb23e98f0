"""Message spans and loss masks over model families: each token is that of the message that wrote it."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.rendering.helpers import chat, renderer
from tests.rendering.test_continuing_shapes import INKLING, KIMI, TOOL, coded, family_model

from derender.model import Model
from derender.protocol.errors import ApiError

Json = Any
WORDS = ("so", "  ok", "naïve", "日本", "1 + 1", "{", "\n\n", "👍🏽", "def f():", "…", "<b>")
FAMILIES = ("qwen2.5", "qwen3", "qwen3.6", "llama3.2", "gpt-oss", "deepseek-v3.1", "deepseek-v4", "gemma4", "smollm2")
CALL = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": '{"x": "a"}'}}
CALLED = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call00001", "content": "21"},
    {"role": "assistant", "content": "It is"},
    {"role": "user", "content": "ok"},
]


def shown(to: Model, messages: list[Json], **fields: Json) -> list[tuple[int | None, str, str, bool]]:
    """For each span its message, part and text, and whether the mask keeps it; all of its tokens or none."""
    made = chat(to.renderer, messages=messages, return_message_spans=True, return_loss_mask=True, **fields)
    found = []
    for span in made["message_spans"]:
        kept = set(made["loss_mask"][span["start"] : span["end"]])
        assert len(kept) == 1, span
        text = to.tokenizer.decode(made["token_ids"][span["start"] : span["end"]])
        found.append((span["message"], span["part"], text, kept == {1}))
    return found


def behind_the_question(spans: list[tuple[int | None, str, str, bool]]) -> list[tuple[int | None, str, str, bool]]:
    return spans[[message for message, *_ in spans].index(0) + 1 :]


@pytest.mark.real
def test_a_call_of_harmony_ends_before_the_header_of_its_result() -> None:
    spans = shown(family_model("gpt-oss"), CALLED, tools=[TOOL], tool_choice="none")
    assert behind_the_question(spans) == [
        (None, "scaffold", "<|end|><|start|>assistant", False),
        (1, "scaffold", " to=functions", True),
        (1, "tool_calls", '.look<|channel|>commentary json<|message|>{"x": "a"}', True),
        (1, "scaffold", "<|call|>", True),
        (None, "scaffold", "<|start|>functions.look<|channel|>commentary to=assistant<|message|>", False),
        (2, "content", "21", False),
        (None, "scaffold", "<|end|><|start|>assistant", False),
        (3, "scaffold", "<|channel|>final<|message|>", True),
        (3, "content", "It is", True),
        (3, "scaffold", "<|end|>", True),
        (None, "scaffold", "<|start|>user<|message|>", False),
        (4, "content", "ok", False),
        (None, "scaffold", "<|end|><|start|>assistant", False),
    ]


def test_a_call_of_inkling_ends_with_the_turn(tmp_path: Path) -> None:
    spans = shown(coded(tmp_path, "inkling", INKLING), CALLED, tools=[TOOL], tool_choice="none")
    assert behind_the_question(spans) == [
        (None, "scaffold", "<|end_message|><|message_model|>", False),
        (1, "tool_calls", 'look<|content_invoke_tool_json|>{"name":"look","args":{"x":"a', True),
        (1, "scaffold", '"}}<|end_message|><|content_model_end_sampling|>', True),
        (None, "scaffold", "<|message_tool|>look<|content_text|>", False),
        (2, "content", "21", False),
        (None, "scaffold", "<|end_message|><|message_model|>", False),
        (3, "scaffold", "<|content_text|>", True),
        (3, "content", "It is", True),
        (3, "scaffold", "<|end_message|><|content_model_end_sampling|>", True),
        (None, "scaffold", "<|message_user|><|content_text|>", False),
        (4, "content", "ok", False),
        (None, "scaffold", "<|end_message|><|message_model|>", False),
    ]


def test_a_call_of_kimi_k3_ends_before_the_header_of_its_result(tmp_path: Path) -> None:
    spans = shown(coded(tmp_path, "kimi_k3", KIMI), CALLED)
    closed = "<|close|>message<|sep|><|end_of_msg|>"
    asked = closed + '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
    answer = "<|close|>think<|sep|><|open|>response<|sep|>"
    assert behind_the_question(spans) == [
        (None, "scaffold", asked, False),
        (1, "scaffold", answer + '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="', True),
        (1, "tool_calls", 'look" index="1"<|sep|><|open|>argument key="x" type="string"<|sep|>a', True),
        (
            1,
            "scaffold",
            "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>" + closed,
            True,
        ),
        (None, "scaffold", '<|open|>message role="tool" tool="look" index="1"<|sep|>', False),
        (2, "content", "21", False),
        (None, "scaffold", asked, False),
        (3, "scaffold", answer, True),
        (3, "content", "It is", True),
        (3, "scaffold", "<|close|>response<|sep|>" + closed, True),
        (None, "scaffold", '<|open|>message role="user"<|sep|>', False),
        (4, "content", "ok", False),
        (None, "scaffold", asked, False),
    ]


# ------------------------------------------------------------------------------------------- turns without text


def silent(said: Json) -> list[Json]:
    return [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "How?"},
    ]


@pytest.mark.real
@pytest.mark.parametrize(
    ("family", "opener", "end", "next_turn"),
    [
        ("qwen3", "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>", "\n<|im_start|>user\n"),
        ("qwen3.6", "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>", "\n<|im_start|>user\n"),
        ("smollm2", "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>", "\n<|im_start|>user\n"),
        ("deepseek-v3.1", "<｜Assistant｜><think></think>", "<｜end▁of▁sentence｜>", "<｜User｜>"),
        ("gemma3", "<end_of_turn>\n<start_of_turn>model\n", "<end_of_turn>", "\n<start_of_turn>user\n"),
        ("mistral-7b-v3", "[/INST] ", "</s>", "[INST]"),
    ],
)
@pytest.mark.parametrize("said", ["", None])
def test_the_end_of_a_turn_without_text_is_the_assistants(
    family: str, opener: str, end: str, next_turn: str, said: Json
) -> None:
    spans = behind_the_question(shown(family_model(family), silent(said)))
    assert spans[:3] == [
        (None, "scaffold", opener, False),
        (1, "scaffold", end, True),
        (None, "scaffold", next_turn, False),
    ]


@pytest.mark.real
def test_a_turn_that_the_template_leaves_out_has_no_tokens() -> None:
    spans = shown(family_model("gpt-oss"), silent(""))
    assert 1 not in [message for message, *_ in spans]
    assert not any(kept for *_, kept in spans)


def test_the_end_is_marked_where_nothing_asks_for_an_answer() -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
    to = renderer(template=template, turn_ends={"<|im_end|>": 2})
    made = chat(to, messages=silent(""), return_loss_mask=True, add_generation_prompt=False)
    assert sum(made["loss_mask"]) == 1
    assert [token for token, kept in zip(made["token_ids"], made["loss_mask"], strict=True) if kept] == [2]


# ------------------------------------------------------------------------------------------------- properties


def _text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))


def conversation(rng: random.Random, *, tools: bool) -> list[Json]:
    messages: list[Json] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": _text(rng)})
    for turn in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": _text(rng)})
        said: Json = {"role": "assistant", "content": rng.choice(["", _text(rng), _text(rng)])}
        if rng.random() < 0.4:
            said["reasoning"] = _text(rng)
        messages.append(said)
        if tools and rng.random() < 0.5:
            arguments = json.dumps(rng.choice([{}, {"n": 1}, {"x": _text(rng)}]), ensure_ascii=False)
            name = f"call{turn:05d}"
            said["tool_calls"] = [
                {"id": name, "type": "function", "function": {"name": "look", "arguments": arguments}}
            ]
            messages.append({"role": "tool", "tool_call_id": name, "content": rng.choice(["", _text(rng)])})
            messages.append({"role": "assistant", "content": _text(rng)})
    messages.append({"role": "user", "content": _text(rng)})
    return messages


def check(to: Model, messages: list[Json], tools: Json) -> bool:
    try:
        plain = chat(to.renderer, messages=messages, **tools)
    except ApiError:
        return False  # a template may refuse a conversation
    made = chat(
        to.renderer,
        messages=messages,
        **tools,
        return_message_spans=True,
        return_loss_mask=True,
        return_token_offsets=True,
        return_prompt_text=True,
    )
    ids, spans, text, offsets = made["token_ids"], made["message_spans"], made["prompt_text"], made["token_offsets"]
    assert ids == plain["token_ids"]
    assert [span["start"] for span in spans] == [0, *(span["end"] for span in spans[:-1])]
    assert spans[-1]["end"] == len(ids) == len(made["loss_mask"]) == len(offsets)
    assert all(span["start"] < span["end"] for span in spans)
    assert all(before <= after for (before, _), (after, _) in pairwise(offsets))
    pieces = [b"".join(map(to.tokenizer.piece, ids[span["start"] : span["end"]])) for span in spans]
    assert b"".join(pieces).decode() == text
    roles = [message["role"] for message in messages]
    for span, piece in zip(spans, pieces, strict=True):
        message = span["message"]
        wrote = message is not None and roles[message] == "assistant"
        assert set(made["loss_mask"][span["start"] : span["end"]]) == {int(wrote)}
        at = text[offsets[span["start"]][0] : offsets[span["end"] - 1][1]]
        assert piece.strip() in at.encode()  # a tokenizer may leave blanks out of offsets
        if message is None:
            continue
        if not wrote:
            assert span["part"] == "content"
        if span["part"] in ("content", "reasoning"):
            said = messages[message][span["part"]]
            # A token may have a little of what stands beside the text.
            assert said.strip() in at or at.strip() in said, (said, at)
    for index, message in enumerate(messages):
        said = message["content"].strip()
        # Gemma 4 writes the system's parts as Python shows a list: no text of it is as it was.
        lost = message["role"] == "system" and "[{'type': 'text'" in text
        if said and text.count(said) == 1 and not lost:
            own = [one for one in spans if one["message"] == index and one["part"] == "content"]
            start = text.index(said)
            inside = [n for n, (a, b) in enumerate(offsets) if a < start + len(said) and b > start]
            assert own, message
            assert own[0]["start"] <= inside[0], message
            assert inside[-1] < own[-1]["end"], message
    return True


@pytest.mark.real
@pytest.mark.parametrize("family", FAMILIES)
def test_each_token_belongs_to_the_message_that_wrote_it(family: str) -> None:
    to, checked = family_model(family), 0
    for number in range(40):
        with_tools = family != "smollm2" and number % 2 == 0
        tools: Json = {"tools": [TOOL], "tool_choice": "none"} if with_tools else {}
        checked += check(to, conversation(random.Random(f"{family}/{number}"), tools=with_tools), tools)
    assert checked > 25


@pytest.mark.parametrize(("name", "tokens"), [("inkling", INKLING), ("kimi_k3", KIMI)])
def test_the_same_for_prompts_made_by_code(tmp_path: Path, name: str, tokens: tuple[str, ...]) -> None:
    to = coded(tmp_path, name, tokens)
    for number in range(40):
        assert check(to, conversation(random.Random(f"{name}/{number}"), tools=True), {})
