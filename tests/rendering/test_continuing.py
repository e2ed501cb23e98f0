"""Going on from the ids of the last turn."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from tests.cost import least_seconds
from tests.rendering.helpers import CHATML, chat, refused, renderer
from tests.vocabularies import REAL, byte_level

from derender.model import Model
from derender.protocol.errors import Conflict
from derender.rendering import Renderer

Json = Any
END = 2
PRUNING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning and loop.last %}<think>{{ m.reasoning }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
COUNTING = "{{ messages | length }}" + CHATML
ENDLESS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ASKED = [{"role": "user", "content": "Hello"}]
TURNS = [*ASKED, {"role": "assistant", "content": "Hi  there"}, {"role": "user", "content": "How?"}]


def model(template: str = CHATML, **fields: Any) -> Renderer:
    return renderer(template=template, turn_ends={"<|im_end|>": END}, **fields)


def sampled(text: str) -> list[int]:
    """Ids that no tokenizer would give for the text: one for each byte."""
    return [byte for character in text for byte in byte_level().encode(character)]


def test_the_ids_begin_with_those_before_and_the_new_messages_follow() -> None:
    prompt = chat(model(), messages=ASKED)["token_ids"]
    previous = [*prompt, *sampled("Hi  there"), END]
    rendered = chat(model(), messages=TURNS, previous_token_ids=previous, return_prompt_text=True)
    assert rendered["token_ids"][: len(previous)] == previous
    assert rendered["prompt_text"] == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi  there<|im_end|>\n"
        "<|im_start|>user\nHow?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered["token_ids"] != chat(model(), messages=TURNS)["token_ids"]
    assert rendered["sampling_params"]["max_tokens"] == 1024 - len(rendered["token_ids"])


def test_a_turn_that_was_cut_off_is_closed_as_the_template_does() -> None:
    previous = [*chat(model(), messages=ASKED)["token_ids"], *sampled("Hi  th")]
    rendered = chat(model(), messages=TURNS, previous_token_ids=previous, return_prompt_text=True)
    assert rendered["token_ids"][: len(previous) + 1] == [*previous, END]
    assert "Hi  th<|im_end|>\n<|im_start|>user\nHow?" in rendered["prompt_text"]


def test_what_the_messages_say_of_the_turn_does_not_matter() -> None:
    previous = [*chat(model(), messages=ASKED)["token_ids"], *sampled("<|im_end"), END]
    turns = [TURNS[0], {"role": "assistant", "content": ""}, TURNS[2]]
    rendered = chat(model(), messages=turns, previous_token_ids=previous)
    assert rendered["token_ids"][: len(previous)] == previous
    assert byte_level().decode(rendered["token_ids"][len(previous) :]).startswith("\n<|im_start|>user\nHow?<|im_end|>")


def conflict(to: Renderer, **body: Json) -> str:
    with pytest.raises(Conflict) as error:
        chat(to, **body)
    assert error.value.status == 409
    return str(error.value)


def test_reasoning_that_the_template_drops_stays_only_if_asked() -> None:
    turns = [TURNS[0], {**TURNS[1], "reasoning": "hm"}, TURNS[2]]
    previous = [*chat(model(PRUNING), messages=ASKED)["token_ids"], *sampled("<think>hm</think>Hi  there"), END]
    said = conflict(model(PRUNING), messages=turns, previous_token_ids=previous)
    assert "keep_previous_reasoning" in said
    # <|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n are the same tokens before and after.
    same = len(chat(model(PRUNING), messages=ASKED)["token_ids"])
    assert f"First differing token: {same} ('<think>hm</think>Hi  there" in said
    kept = chat(model(PRUNING), messages=turns, previous_token_ids=previous, keep_previous_reasoning=True)
    assert kept["token_ids"][: len(previous)] == previous
    assert "think" not in byte_level().decode(kept["token_ids"][len(previous) :])


def test_a_template_that_writes_the_turns_before_otherwise_is_refused() -> None:
    previous = [*chat(model(COUNTING), messages=ASKED)["token_ids"], END]
    for keep in (False, True):
        said = conflict(model(COUNTING), messages=TURNS, previous_token_ids=previous, keep_previous_reasoning=keep)
        assert "writes the turns before otherwise" in said
        assert "First differing token: 0 ('2<|im_start|>" in said


def test_a_template_without_ends_of_turns_is_refused() -> None:
    assert "no token that ends an output" in conflict(model(ENDLESS), messages=TURNS, previous_token_ids=[5])
    assert "no token that ends an output" in conflict(renderer(), messages=TURNS, previous_token_ids=[5])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": ASKED}, "messages"),
        ({"messages": TURNS[:2]}, "messages"),
        ({"previous_token_ids": []}, "previous_token_ids"),
        ({"previous_token_ids": [5, 448]}, "previous_token_ids"),
        ({"return_loss_mask": True}, "return_loss_mask"),
        ({"return_token_offsets": True}, "return_token_offsets"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ],
)
def test_what_cannot_go_together_is_refused(body: Json, param: str) -> None:
    answer = refused(chat, model(), **{"messages": TURNS, "previous_token_ids": [5]} | body)
    assert answer["param"] == param


def test_the_context_bounds_what_it_gives() -> None:
    assert "maximum context length" in refused(chat, model(), messages=TURNS, previous_token_ids=[5] * 1020)["message"]


# --------------------------------------------------------------------------------------- real templates, agents

ONE_CALL = ("llama3.2", "gpt-oss")  # their templates refuse, or drop, a second call of a message
FAMILIES = ("qwen3", "deepseek-v3.1", "llama3.2", "smollm2", "gpt-oss", "qwen2.5", "gemma3")
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "What."}}},
    },
}
WORDS = ("so", "  ok", "naïve", "日本", "1 + 1", "{", "\n\n", "👍🏽", "def f():", "…")


def _text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 8))).strip() or "yes"


def _odd(rng: random.Random, to: Model, text: str) -> list[int]:
    """Ids as a model may sample them: the text tokenized in pieces that a tokenizer would not cut."""
    ids: list[int] = []
    at = 0
    while at < len(text):
        size = rng.randint(3, 30)
        ids += to.tokenizer.encode(text[at : at + size])
        at += size
    return ids


@pytest.mark.real
@pytest.mark.parametrize("family", FAMILIES)
def test_agents_go_on_from_what_was_sampled(family: str) -> None:
    if not (REAL / family / "tokenizer.json").is_file():
        pytest.skip(f"no {family} under {REAL}")
    to = Model.load(str(REAL / family))
    tools = family not in ("smollm2", "gemma3")
    counts: Counter[str] = Counter()
    for number in range(40):
        _agent(random.Random(f"{family}/{number}"), to, counts, tools=tools, parallel=1 if family in ONE_CALL else 3)
    assert counts["turns"] > 80
    assert counts["refused"] == 0, counts
    # Nearly all: what is sampled is not what its text tokenizes to.
    assert counts["a re-render differs"] > counts["turns"] * 0.5


def _call(rng: random.Random, name: str) -> Json:
    arguments = json.dumps({"x": _text(rng)}, ensure_ascii=rng.random() < 0.5, separators=(",", ":"))
    return {"id": name, "type": "function", "function": {"name": "look", "arguments": arguments}}


def _agent(rng: random.Random, to: Model, counts: Counter[str], *, tools: bool, parallel: int) -> None:
    messages: list[Json] = [{"role": "user", "content": _text(rng)}]
    if rng.random() < 0.5:
        messages.insert(0, {"role": "system", "content": _text(rng)})
    given = [TOOL] if tools else None
    body: Json = {"messages": messages, "tools": given, "tool_choice": "none"}
    ids = chat(to.renderer, **body)["token_ids"]
    for turn in range(4):
        said: Json = {"role": "assistant", "content": _text(rng)}
        if rng.random() < 0.5:
            said["reasoning"] = _text(rng)
        made = rng.randint(1, parallel) if tools and rng.random() < 0.6 else 0
        if made:
            said["tool_calls"] = [_call(rng, f"call{turn:03d}{number:02d}") for number in range(made)]
        thought = f"<think>{said['reasoning']}</think>" if "reasoning" in said else ""
        output = _odd(rng, to, thought + said["content"] + (json.dumps(said["tool_calls"]) if made else ""))
        if rng.random() < 0.8:  # else it was cut off
            output.append(min(to.eos_token_ids))
        messages.append(said)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "name": "look", "content": _text(rng)}
            for call in said.get("tool_calls", ())
        ]
        if not made or rng.random() < 0.3:
            messages.append({"role": "user", "content": _text(rng)})
        previous = [*ids, *output]
        counts["turns"] += 1
        whole = chat(to.renderer, **body, return_prompt_text=True)
        try:
            rendered = chat(to.renderer, **body, previous_token_ids=previous, keep_previous_reasoning=True)
        except Conflict as error:
            counts["refused"] += 1
            counts[str(error)[:300]] += 1
            return
        ids = rendered["token_ids"]
        assert ids[: len(previous)] == previous
        assert whole["prompt_text"].endswith(to.tokenizer.decode(ids[len(previous) + 1 :]))
        counts["a re-render differs"] += ids != whole["token_ids"]


def test_an_end_of_another_turn_is_not_the_assistants() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>user {{ m.content }}<|im_end|>"
        "{% else %}assistant: {{ m.content }}\n{% endif %}{% endfor %}"
    )
    with pytest.raises(Conflict, match="no token that ends an output"):
        chat(model(template), messages=TURNS, previous_token_ids=[5])


def test_a_turn_that_has_its_end_only_where_others_follow() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}{% if not loop.last %}<|im_end|>{% endif %}"
        "{% endfor %}"
    )
    rendered = chat(model(template), messages=TURNS, previous_token_ids=[5], return_prompt_text=True)
    assert rendered["token_ids"][:2] == [5, END]
    assert rendered["prompt_text"].endswith("<|im_end|><|im_start|>user How?")
    assert "Hi" not in rendered["prompt_text"]


def test_blanks_behind_dropped_reasoning_are_the_answers_own() -> None:
    turns = [*ASKED, {"role": "assistant", "content": "  Hi", "reasoning": "hm"}, {"role": "user", "content": "How?"}]
    rendered = chat(model(PRUNING), messages=turns, previous_token_ids=[5, END], keep_previous_reasoning=True)
    assert rendered["token_ids"][:2] == [5, END]


def test_openers_without_an_end_take_no_time() -> None:
    turns = [
        {"role": "user", "content": "<think>" * 9000},
        {"role": "assistant", "content": "a", "reasoning": "b"},
        {"role": "user", "content": "c"},
    ]
    to = model(PRUNING, max_model_len=1_000_000)

    def work() -> None:
        with pytest.raises(Conflict, match="writes the turns before otherwise"):
            chat(to, messages=turns, previous_token_ids=[5])

    assert least_seconds(work, within=0.5) < 0.5
