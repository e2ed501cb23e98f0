"""Message spans and loss masks."""

from __future__ import annotations

import json
import os
import random
import subprocess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rendering.helpers import chat, refused, renderer, tokenize, with_bos
from tests.vocabularies import byte_level, byte_level_json

from derender.rendering import Renderer

Json = Any
CALLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}"
    "{% for c in m.tool_calls or [] %}"
    "<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>"
    "{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BLOCKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPLIT = (  # moves reasoning that stands in the content, as templates of reasoning models do
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if '</think>' in m.content %}"
    "<think>{{ m.content.split('</think>')[0].split('<think>')[-1].strip() }}</think>"
    "{{ m.content.split('</think>')[-1].strip() }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
)
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": "a b", "n": 1}'}}
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Zürich?\n"},
    {"role": "assistant", "content": "Let me see", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "21°"},
    {"role": "assistant", "content": "It is 21°"},
    {"role": "user", "content": "Thanks 😊"},
]


def model(template: str, **fields: Any) -> Renderer:
    return renderer(template=template, turn_ends={"<|im_end|>": 2}, **fields)


def shown(rendered: Json) -> list[tuple[int | None, str, str]]:
    tokenizer = byte_level()
    return [
        (span["message"], span["part"], tokenizer.decode(rendered["token_ids"][span["start"] : span["end"]]))
        for span in rendered["message_spans"]
    ]


def masked(rendered: Json) -> list[str]:
    """The runs of text that the mask keeps."""
    runs: list[list[int]] = []
    before = 0
    for token, kept in zip(rendered["token_ids"], rendered["loss_mask"], strict=True):
        if kept:
            if not before:
                runs.append([])
            runs[-1].append(token)
        before = kept
    return [byte_level().decode(run) for run in runs]


def test_each_text_is_its_messages_and_a_call_is_written_by_the_assistant() -> None:
    assert shown(chat(model(CALLS), messages=TURNS, return_message_spans=True)) == [
        (None, "scaffold", "<|im_start|>system\n"),
        (0, "content", "Be brief."),
        (None, "scaffold", "<|im_end|>\n<|im_start|>user\n"),
        (1, "content", "Zürich?"),
        (None, "scaffold", "<|im_end|>\n<|im_start|>assistant\n"),
        (2, "content", "Let me see"),
        (2, "scaffold", "<call>"),
        (2, "tool_calls", 'f {"x": "a b'),
        (2, "scaffold", '", "n": 1}</call><|im_end|>'),
        (None, "scaffold", "\n<|im_start|>tool\n"),
        (3, "content", "21°"),
        (None, "scaffold", "<|im_end|>\n<|im_start|>assistant\n"),
        (4, "content", "It is 21°"),
        (4, "scaffold", "<|im_end|>"),
        (None, "scaffold", "\n<|im_start|>user\n"),
        (5, "content", "Thanks 😊"),
        (None, "scaffold", "<|im_end|>\n<|im_start|>assistant\n"),
    ]


def test_the_mask_has_what_the_assistant_wrote_with_the_end_of_its_turns() -> None:
    rendered = chat(model(CALLS), messages=TURNS, return_loss_mask=True)
    assert masked(rendered) == ['Let me see<call>f {"x": "a b", "n": 1}</call><|im_end|>', "It is 21°<|im_end|>"]
    assert "message_spans" not in rendered
    assert rendered["token_offsets"] is None


def test_generation_blocks_go_before() -> None:
    turns = [*TURNS[:2], {"role": "assistant", "content": "It is 21°"}, {"role": "user", "content": "Thanks"}]
    rendered = chat(model(BLOCKS), messages=turns, return_loss_mask=True, return_message_spans=True)
    assert masked(rendered) == ["It is 21°<|im_end|>"]
    assert (2, "content", "It is 21°") in shown(rendered)
    plain = chat(model(BLOCKS), messages=turns)
    assert rendered["token_ids"] == plain["token_ids"]


def test_reasoning_that_the_template_moves_is_still_the_messages() -> None:
    turns = [TURNS[1], {"role": "assistant", "content": "<think>\nhm, so\n</think>\n\nYes."}, TURNS[5]]
    spans = shown(chat(model(SPLIT), messages=turns, return_message_spans=True))
    assert spans[3] == (1, "content", "hm, so</think>Yes.")


def test_a_truncated_prompt_keeps_its_own_spans() -> None:
    whole = chat(model(CALLS), messages=TURNS, return_message_spans=True, return_loss_mask=True)
    size = len(whole["token_ids"])
    for limit in (1, 5, size // 2, size - 1):
        cut = chat(
            model(CALLS), messages=TURNS, return_message_spans=True, return_loss_mask=True, truncate_prompt_tokens=limit
        )
        assert cut["token_ids"] == whole["token_ids"][-limit:]
        assert cut["loss_mask"] == whole["loss_mask"][-limit:]
        assert cut["message_spans"][-1]["end"] == limit
        texts = [(message, part) for message, part, _ in shown(cut)]
        assert texts == [(message, part) for message, part, _ in shown(whole)][-len(texts) :]


def test_what_cannot_be_given_is_refused() -> None:
    # Each of what marks are made of: some vanished once, and control tokens came out of what was left.
    for text in (
        "a\ufdd0b",
        "a\ufdd1b",
        "<|im_\ufdd1end|>",
        "a\ufdd4b\ufdd5",
        "\ufdd0\ufde1",
        "\ufdd0" + "\ufde1" * 200,
    ):
        for template in (CALLS, BLOCKS):
            odd = [{"role": "user", "content": text}]
            error = refused(chat, model(template), messages=odd, return_message_spans=True)
            assert "noncharacters" in error["message"]
            assert error["param"] == "messages"
    assert chat(model(CALLS), messages=odd)["token_ids"]
    kv = {"prompt_token_ids": [1, 2]}
    assert "kv_transfer_params" in refused(chat, model(CALLS), kv_transfer_params=kv, return_loss_mask=True)["message"]
    own = model(CALLS, trust_request_chat_template=True)
    answer = refused(chat, own, chat_template="{{ messages[0].content }}", return_loss_mask=True)
    assert answer["param"] == "chat_template"


def test_tokenize_tells_the_same() -> None:
    to = model(CALLS)
    asked = {"return_message_spans": True, "return_loss_mask": True, "return_prompt_text": True}
    rendered = chat(to, messages=TURNS, **asked, return_token_offsets=True, return_block_hashes=True)
    told = tokenize(to, messages=TURNS, **asked, return_token_offsets=True, return_block_hashes=True)
    assert told["tokens"] == rendered["token_ids"]
    for field in ("message_spans", "loss_mask", "prompt_text", "token_offsets", "block_hashes"):
        assert told[field] == rendered[field], field
    text = tokenize(to, prompt="Hello", return_token_offsets=True, return_prompt_text=True)
    assert text["prompt_text"] == "Hello"
    assert text["token_offsets"][0][0] == 0
    assert text["token_offsets"][-1][1] == 5
    assert "message_spans" not in text
    assert refused(tokenize, to, prompt="Hello", return_loss_mask=True)["param"] == "return_loss_mask"


CONTENT = st.text(st.sampled_from("ab \n<>é😊/"), max_size=12) | st.sampled_from(
    ["<think>a</think>b", "<|im_end|>", ""]
)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), CONTENT, st.booleans()),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([CALLS, BLOCKS, SPLIT]),
)
def test_spans_cover_the_prompt_without_overlap(turns: list[tuple[str, str, bool]], template: str) -> None:
    messages = [
        {"role": role, "content": content, **({"tool_calls": [CALL]} if calls and role == "assistant" else {})}
        for role, content, calls in turns
    ]
    plain = chat(model(template), messages=messages, return_prompt_text=True, return_token_offsets=True)
    rendered = chat(model(template), messages=messages, return_message_spans=True, return_loss_mask=True)
    assert rendered["token_ids"] == plain["token_ids"]
    spans = rendered["message_spans"]
    assert [span["start"] for span in spans] == [0, *(span["end"] for span in spans[:-1])]
    assert spans[-1]["end"] == len(rendered["token_ids"]) == len(rendered["loss_mask"])
    assert "".join(text for _, _, text in shown(rendered)) == plain["prompt_text"]
    for message, part, text in shown(rendered):
        if part == "content":
            content = messages[message]["content"]
            assert text.strip() in content or "</think>" in content


@settings(deadline=None, max_examples=150)
@given(st.lists(CONTENT, min_size=1, max_size=4))
def test_the_text_at_a_tokens_offsets_is_its_piece(texts: list[str]) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    rendered = chat(model(CALLS), messages=messages, return_token_offsets=True, return_prompt_text=True)
    text, before = rendered["prompt_text"], 0
    for token, (start, end) in zip(rendered["token_ids"], rendered["token_offsets"], strict=True):
        piece, shown = byte_level().piece(token), text[start:end].encode()
        assert piece in shown
        # A token that cuts a character has the place of the whole character.
        assert piece == shown or "\ufffd" in piece.decode(errors="replace")
        assert before <= end
        assert start <= before
        before = end
    assert before == len(text)


@pytest.mark.real
@pytest.mark.skipif(
    "DERENDER_REFERENCE_PYTHON" not in os.environ,
    reason="DERENDER_REFERENCE_PYTHON is not set to a Python with transformers",
)
def test_the_mask_is_that_of_transformers() -> None:
    rng = random.Random(1)
    cases = []
    for _ in range(60):
        roles = ["user", "assistant"] * rng.randint(1, 4)
        cases.append(
            [{"role": role, "content": "".join(rng.choices("ab é😊\n<>", k=rng.randint(0, 9)))} for role in roles]
        )
    script = """
import json, sys
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
given = json.load(sys.stdin)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(given["tokenizer"]))
tokenizer.chat_template = given["template"]
print(json.dumps([
    [made["input_ids"], made["assistant_masks"]]
    for made in (
        tokenizer.apply_chat_template(case, return_dict=True, return_assistant_tokens_mask=True)
        for case in given["cases"]
    )
]))
"""
    done = subprocess.run(
        [os.environ["DERENDER_REFERENCE_PYTHON"], "-c", script],
        input=json.dumps({"tokenizer": byte_level_json(), "template": BLOCKS, "cases": cases}),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    for case, (ids, mask) in zip(cases, json.loads(done.stdout), strict=True):
        rendered = chat(model(BLOCKS), messages=case, add_generation_prompt=False, return_loss_mask=True)
        assert rendered["token_ids"] == ids
        assert rendered["loss_mask"] == mask


def test_a_token_that_the_tokenizer_adds_is_no_text() -> None:
    to = renderer(template="{{ messages[0].content }}", tokenizer=with_bos(), turn_ends={"<|im_end|>": 2})
    body: Json = {"messages": [{"role": "user", "content": "hi"}], "add_special_tokens": True}
    rendered = chat(to, **body, return_message_spans=True)
    assert rendered["token_ids"][0] == 0
    assert rendered["token_ids"][-1] == 2
    last = len(rendered["token_ids"]) - 1
    assert rendered["message_spans"] == [
        {"start": 0, "end": 1, "message": None, "part": "scaffold"},
        {"start": 1, "end": last, "message": 0, "part": "content"},
        {"start": last, "end": last + 1, "message": None, "part": "scaffold"},
    ]


def masked_text(to: Renderer, **body: Any) -> str:
    rendered = chat(to, **body, return_loss_mask=True)
    kept = zip(rendered["token_ids"], rendered["loss_mask"], strict=True)
    return byte_level().decode([token for token, told in kept if told])


CALLED = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "r"},
]


def test_a_calls_name_before_the_tools_answer_is_not_the_assistants() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{% if m.role == 'tool' %}{{ messages[1].tool_calls[0].function.name }}\n"
        "{% else %}{{ m.role }}\n{% endif %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
        "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    to = renderer(template=template, turn_ends={"<|im_end|>": 2})
    assert masked_text(to, messages=CALLED) == 'f {"x": "a b", "n": 1}<|im_end|>'


def test_a_call_begins_behind_what_ends_the_message_before_where_nothing_asks_for_an_answer() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        '[CALL][{"name": "{{ c.function.name }}"{{ c.function.arguments | tojson }}}]'
        "{% endfor %}<|im_end|>{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}"
    )
    to = renderer(template=template, turn_ends={"<|im_end|>": 2})
    assert masked_text(to, messages=CALLED) == '[CALL][{"name": "f"{"x": "a b", "n": 1}}]<|im_end|>'
