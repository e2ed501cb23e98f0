"""Text of an answer: exact, whole, the same in batch and stream."""

from __future__ import annotations

import pytest
from tests.derendering.helpers import answer, ask, chat, completions, joined, stream, texts
from tests.vocabularies import byte_fallback, byte_level

from derender.protocol.errors import BadRequest, InvalidBody

MODEL = texts(byte_level())
SPM = texts(byte_fallback())
EOS = byte_level().token_id("<|im_end|>")


def ids(text: str) -> list[int]:
    return byte_level().encode(text)


def content(got: dict) -> str:
    return got["choices"][0]["message"]["content"]


def test_multi_byte_characters_survive_every_split() -> None:
    tokens = ids("삼겹살 😊 日本語")
    for size in range(1, len(tokens) + 1):
        chunks, _ = stream(MODEL, answer(tokens)["choices"][0], ask(), sizes=[size] * len(tokens))
        assert joined(chunks) == "삼겹살 😊 日本語"
        assert "\ufffd" not in "".join(c["delta"]["content"] or "" for chunk in chunks for c in chunk["choices"])


def test_an_unfinished_character_is_one_replacement_in_both_modes() -> None:
    cut = ids("a😊")[:-1]
    assert content(chat(MODEL, answer(cut, finish="length"), ask())) == "a\ufffd"
    chunks, _ = stream(MODEL, answer(cut, finish="length")["choices"][0], ask(), sizes=[1] * 9)
    assert joined(chunks) == "a\ufffd"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_broken_character_is_replaced_and_the_next_word_kept() -> None:
    start = ids("😊")[0]
    assert content(chat(MODEL, answer([start, *ids(" world")]), ask())) == "\ufffd world"


def test_special_tokens_are_hidden_unless_asked_for() -> None:
    tokens = [1, *ids("hello"), 2]
    assert content(chat(MODEL, answer(tokens))) == "hello"
    assert content(chat(MODEL, answer(tokens), ask(skip_special_tokens=True))) == "hello"
    assert content(chat(MODEL, answer(tokens), ask(skip_special_tokens=False))) == "<|im_start|>hello<|im_end|>"


@pytest.mark.parametrize("keep", [False, True])
def test_a_stop_token_that_is_a_word_is_no_content_unless_kept(keep: bool) -> None:
    hello, world = ids("Hello")[0], ids(" world")[0]
    request = ask(stop_token_ids=[world], include_stop_str_in_output=keep)
    expected = byte_level().decode([hello, world] if keep else [hello])
    got = chat(MODEL, answer([hello, world], stop_reason=world), request)
    assert content(got) == expected
    assert got["usage"]["completion_tokens"] == 2
    chunks, _ = stream(MODEL, answer([hello, world], stop_reason=world)["choices"][0], request, sizes=[1, 1])
    assert joined(chunks) == expected


def test_a_stop_token_in_the_middle_is_text() -> None:
    hello, world = ids("Hello")[0], ids(" world")[0]
    request = ask(stop_token_ids=[world])
    whole = byte_level().decode([hello, world, hello])
    assert content(chat(MODEL, answer([hello, world, hello]), request)) == whole
    chunks, _ = stream(MODEL, answer([hello, world, hello])["choices"][0], request, sizes=[1, 1])
    assert joined(chunks) == whole


def test_ignore_eos_keeps_an_eos_that_is_shown() -> None:
    got = chat(MODEL, answer([*ids("a"), 2, *ids("b"), 2]), ask(ignore_eos=True, skip_special_tokens=False))
    assert content(got) == "a<|im_end|>b<|im_end|>"


@pytest.mark.parametrize("empty", [[], None])
def test_no_tokens_are_an_empty_message(empty: list[int] | None) -> None:
    got = chat(MODEL, answer(empty, finish="abort"), ask())
    assert content(got) == ""
    assert got["choices"][0]["finish_reason"] == "abort"
    assert got["usage"]["completion_tokens"] == 0


def test_prompt_text_is_out_of_reach() -> None:
    prompt = ids("Hello world 😊")[:-1]
    rest = ids("😊")[-1]
    expected = "\ufffd" * len(byte_level().piece(rest)) + " x"
    got = chat(MODEL, answer([rest, *ids(" x")]), ask(), prompt_token_ids=prompt)
    assert content(got) == expected
    chunks, _ = stream(MODEL, answer([rest, *ids(" x")])["choices"][0], ask(), sizes=[1], prompt_token_ids=prompt)
    assert joined(chunks) == expected


def test_a_leading_blank_goes_without_a_prompt_and_stays_with_one() -> None:
    hello, world, blank, leading = 259, 260, 261, 265
    assert content(chat(SPM, answer([hello, world]), ask())) == "Hello world"
    assert content(chat(SPM, answer([blank, leading]), ask())) == " leading"
    assert content(chat(SPM, answer([hello, world]), ask(), prompt_token_ids=[hello])) == " Hello world"
    for prompt, expected in ((None, "Hello world"), ([world], " Hello world")):
        chunks, _ = stream(SPM, answer([hello, world])["choices"][0], ask(), sizes=[1], prompt_token_ids=prompt)
        assert joined(chunks) == expected


def test_bytes_that_never_become_a_character_are_replaced_at_once() -> None:
    """A good run followed by a broken byte: what was sent is not withdrawn (vllm#17448)."""
    tokens = [198, 172, 198, 268]
    chunks, _ = stream(SPM, answer(tokens)["choices"][0], ask(), sizes=[1] * 3)
    assert [c["choices"][0]["delta"]["content"] for c in chunks] == [None, "é", None, "\ufffd世"]
    assert content(chat(SPM, answer(tokens), ask())) == "é\ufffd世"


@pytest.mark.parametrize("bad", [-1, "5", 5.5, True, None])
def test_what_is_no_id_is_refused_by_position(bad: object) -> None:
    with pytest.raises(InvalidBody) as caught:
        chat(MODEL, answer([5, bad]), ask())
    assert caught.value.param == "body.generate_response.choices.0.token_ids.1"
    if bad is not None:
        assert repr(bad) in caught.value.message or str(bad).lower() in caught.value.message.lower()


@pytest.mark.parametrize("bad", [10**6, 2**32, 2**70])
def test_ids_beyond_the_vocabulary_are_refused_or_tolerated(bad: int) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(MODEL, answer([5, bad]), ask())
    assert f"token_ids.1: token id {bad} is outside the vocabulary" in caught.value.message
    tolerant = texts(byte_level(), tolerate_unknown_ids=True)
    got = chat(tolerant, answer([*ids("a"), bad, *ids("b")], logprobs=True), ask(return_token_ids=True))
    assert content(got) == "ab"
    assert got["choices"][0]["token_ids"] == [*ids("a"), bad, *ids("b")]
    assert got["choices"][0]["logprobs"]["content"][1]["token"] == ""
    assert got["choices"][0]["logprobs"]["content"][1]["bytes"] is None
    assert got["usage"]["completion_tokens"] == 3
    assert tolerant.model.unknown_ids.count == 2  # the token and its logprob


def test_a_hole_of_the_vocabulary_is_unknown() -> None:
    import json

    from tests.vocabularies import byte_level_json, from_json

    tree = json.loads(byte_level_json())
    token, hole = next((t, i) for t, i in tree["model"]["vocab"].items() if i == 300)
    del tree["model"]["vocab"][token]
    tree["added_tokens"] = [a for a in tree["added_tokens"] if a["id"] < hole]
    tree["model"]["merges"] = [m for m in tree["model"]["merges"] if token not in (*m, "".join(m))]
    model = texts(from_json(json.dumps(tree), {"eos_token": "<|im_end|>"}))
    with pytest.raises(BadRequest, match=f"token id {hole} is outside"):
        chat(model, answer([hole]), ask())


def test_chat_echo_puts_an_assistants_last_message_first() -> None:
    request = ask(echo=True)
    request["messages"].append({"role": "assistant", "content": "The answer is "})
    assert content(chat(MODEL, answer(ids("42")), request)) == "The answer is 42"
    chunks, _ = stream(MODEL, answer(ids("42 and 43"))["choices"][0], request, sizes=[1] * 9)
    assert joined(chunks) == "The answer is 42 and 43"
    request["echo"] = False
    assert content(chat(MODEL, answer(ids("42")), request)) == "42"  # a prefill is not repeated unasked


def test_completions_echo_of_text_and_ids() -> None:
    out = answer(ids("b"))
    for prompt in ("a<", ["a<"], ids("a<"), [ids("a<")]):
        assert completions(MODEL, [out], {"prompt": prompt, "echo": True})["choices"][0]["text"] == "a<b"
    both = completions(MODEL, [out, out], {"prompt": ["x", "y"], "echo": True})
    assert [c["text"] for c in both["choices"]] == ["xb", "yb"]
    assert [c["index"] for c in both["choices"]] == [0, 1]
    only = completions(MODEL, [out], {"prompt": "a", "echo": True, "max_tokens": 0})
    assert only["choices"][0]["text"] == "a"
    chunks, _ = stream(
        MODEL, answer(ids("b c d"))["choices"][0], {"prompt": "a", "echo": True}, sizes=[1] * 9, dialect="completion"
    )
    assert joined(chunks) == "ab c d"
