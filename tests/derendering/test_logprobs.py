"""Logprobs: one entry per generated token, exact bytes, text in its place, in all three forms of the wire."""

from __future__ import annotations

import json

import pytest
from tests.derendering.helpers import answer, ask, chat, completions, entries, entry, stream, texts
from tests.vocabularies import byte_fallback, byte_level

from derender.derendering.chat import derender_chat
from derender.protocol.codec import encode
from derender.protocol.derender import decode_derender_chat
from derender.protocol.errors import BadRequest
from derender.tokenizer import BadPlaceholder, format_token_id_placeholder, resolve_token_id_placeholder

TOKENIZER = byte_level()
MODEL = texts(TOKENIZER)
SPM = texts(byte_fallback())


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def content(got: dict) -> list[dict]:
    return got["choices"][0]["logprobs"]["content"]


def with_content(*content: object, token_ids: list[int] | None = None) -> dict:
    return answer(token_ids or [5], logprobs={"content": list(content)})  # type: ignore[arg-type]


def test_bytes_are_the_tokens_own_and_join_to_the_output() -> None:
    text = "삼겹살 😊 x"
    tokens = ids(text)
    found = content(chat(MODEL, answer(tokens, logprobs=True), ask()))
    assert [bytes(e["bytes"]) for e in found] == [TOKENIZER.piece(i) for i in tokens]
    assert b"".join(bytes(e["bytes"]) for e in found).decode() == text
    assert "".join(e["token"] for e in found) == text
    assert any(e["token"] == "" for e in found)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_streams_entries_are_the_batchs(size: int) -> None:
    choice = answer(ids("a 삼겹살 😊 b"), logprobs=True)
    batch = content(chat(MODEL, choice, ask()))
    chunks, _ = stream(MODEL, choice["choices"][0], ask(), sizes=[size] * 50)
    assert entries(chunks) == batch


def test_alternatives_inside_a_character() -> None:
    """One that is whole reads as itself, one that is a part of a character is read in its place."""
    smile = ids("😊")
    piece = TOKENIZER.piece(smile[-1])
    other = next(i for i, p in enumerate(TOKENIZER.pieces) if len(p) == 1 and p[0] == piece[-1] + 1)
    if len(piece) > 1:  # the character's last bytes are one token: another single byte completes nothing
        smile = [*smile[:-1], *(TOKENIZER.pieces.index(bytes([b])) for b in piece)]
    world = ids(" world")[0]
    last = entry(smile[-1], other, world)
    found = content(chat(MODEL, with_content(*map(entry, smile[:-1]), last, token_ids=smile), ask()))[-1]
    tops = found["top_logprobs"]
    assert [t["token"] for t in tops] == ["😊", "😋", TOKENIZER.decode([world])]
    assert [bytes(t["bytes"]) for t in tops] == [TOKENIZER.piece(i) for i in (smile[-1], other, world)]


def test_a_whole_token_after_a_broken_character_tells_of_it() -> None:
    start, world = ids("😊")[0], ids(" world")[0]
    found = content(chat(MODEL, answer([start, world], logprobs=True), ask()))
    assert [e["token"] for e in found] == ["", "\ufffd" + TOKENIZER.decode([world])]
    assert found[1]["top_logprobs"][0]["token"] == found[1]["token"]


def test_special_tokens_read_as_their_spelling_and_break_no_character() -> None:
    start, *rest = ids("😊")
    tokens = [start, 2, *rest]
    got = chat(MODEL, answer(tokens, logprobs=True), ask())
    assert got["choices"][0]["message"]["content"] == "😊"
    found = content(got)
    assert found[1]["token"] == "<|im_end|>"
    assert bytes(found[1]["bytes"]) == b"<|im_end|>"
    assert found[-1]["token"] == "😊"


@pytest.mark.parametrize(
    "form",
    [
        {"token": "token_id:{}", "bytes": None},
        {"token": "token_id:{}", "bytes": list(b"token_id:42")},
        {"token_id": "{}"},
    ],
)
def test_three_forms_of_the_wire_give_one_answer(form: dict) -> None:
    world = ids(" world")[0]

    def named(token: int) -> dict:
        return {k: (v.format(token) if k == "token" else token if k == "token_id" else v) for k, v in form.items()}

    given = {**named(world), "logprob": -0.5, "top_logprobs": [{**named(i), "logprob": -0.5} for i in (world, 70)]}
    found = content(chat(MODEL, with_content(given), ask()))[0]
    assert found["token"] == TOKENIZER.decode([world])
    assert bytes(found["bytes"]) == TOKENIZER.piece(world)
    assert [t["token"] for t in found["top_logprobs"]] == [TOKENIZER.decode([world]), TOKENIZER.decode([70])]


@pytest.mark.parametrize("bad", ["token_id:", "token_id:-3", "token_id:9x", "token_id:99999999999", "token_id:٣"])
def test_a_bad_placeholder_is_refused_with_its_position(bad: str) -> None:
    with pytest.raises(BadRequest, match=r"logprobs\.content\.1") as caught:
        chat(MODEL, with_content(entry(5), {"token": bad, "logprob": -1.0}, token_ids=[5, 6]), ask())
    assert caught.value.param == "logprobs.content.1"
    with pytest.raises(BadPlaceholder):
        resolve_token_id_placeholder(bad, TOKENIZER)


def test_a_bad_id_and_a_missing_one_are_refused() -> None:
    for given in ({"token_id": -1, "logprob": 0.0}, {"token_id": 10**6, "logprob": 0.0}, {"logprob": 0.0}):
        with pytest.raises(BadRequest, match=r"logprobs\.content\.0"):
            chat(MODEL, with_content(given), ask())


def test_a_plain_string_is_kept() -> None:
    given = {"token": "tok", "logprob": -1.0, "bytes": [1, 2], "top_logprobs": [{"token": "x", "logprob": -2.0}]}
    found = content(chat(MODEL, with_content(given), ask()))[0]
    assert (found["token"], found["bytes"]) == ("tok", [1, 2])
    assert found["top_logprobs"] == [{"token": "x", "logprob": -2.0, "bytes": None}]


def test_placeholder_functions() -> None:
    world = ids(" world")[0]
    assert format_token_id_placeholder(world) == f"token_id:{world}"
    text, own = resolve_token_id_placeholder(f"token_id:{world}", TOKENIZER)
    assert (text, bytes(own or ())) == (TOKENIZER.decode([world]), TOKENIZER.piece(world))
    assert resolve_token_id_placeholder("tok", TOKENIZER) == ("tok", None)
    start = ids("😊")[0]
    assert resolve_token_id_placeholder(f"token_id:{start}", TOKENIZER) == ("", list(TOKENIZER.piece(start)))


def test_tokens_as_ids() -> None:
    world = ids(" world")[0]
    found = content(chat(MODEL, with_content(entry(world, 70)), ask(return_tokens_as_token_ids=True)))[0]
    assert found["token"] == f"token_id:{world}"
    assert bytes(found["bytes"]) == TOKENIZER.piece(world)
    assert [t["token"] for t in found["top_logprobs"]] == [f"token_id:{world}", "token_id:70"]
    got = completions(
        MODEL, [with_content(entry(world, 70))], {"prompt": "x", "logprobs": 1, "return_tokens_as_token_ids": True}
    )
    logprobs = got["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [f"token_id:{world}"]
    assert list(logprobs["top_logprobs"][0]) == [f"token_id:{world}", "token_id:70"]


@pytest.mark.parametrize(("asked", "shown"), [(0, 0), (1, 1), (2, 2), (-1, 3)])
def test_alternatives_are_cut_to_what_was_asked(asked: int, shown: int) -> None:
    given = with_content(entry(70, 71, 72))
    found = content(chat(MODEL, given, ask(logprobs=True, top_logprobs=asked)))[0]
    assert len(found["top_logprobs"]) == shown
    assert len(content(chat(MODEL, given, ask()))[0]["top_logprobs"]) == 3


@pytest.mark.parametrize("number", ["-Infinity", "NaN", "null", "-1e400", "Infinity"])
def test_a_logprob_that_is_not_finite_is_minus_9999(number: str) -> None:
    body = json.dumps({"generate_response": with_content(entry(5)), "chat_request": ask()})
    body = body.replace("-0.5", number)
    got = encode(derender_chat(MODEL, decode_derender_chat(body.encode())))
    assert b"NaN" not in got
    assert b"Infinity" not in got
    found = json.loads(got)["choices"][0]["logprobs"]["content"][0]
    assert found["logprob"] == found["top_logprobs"][0]["logprob"] == -9999.0


def test_completions_lists_and_offsets() -> None:
    tokens = ids("a 😊")
    got = completions(MODEL, [answer(tokens, logprobs=True)], {"prompt": "Say: ", "logprobs": 1, "echo": True})
    logprobs = got["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == "a 😊"
    assert logprobs["text_offset"] == [5 + len("".join(logprobs["tokens"][:i])) for i in range(len(tokens))]
    assert logprobs["token_logprobs"] == [-0.5] * len(tokens)


@pytest.mark.parametrize("size", [1, 2, 50])
def test_completions_stream_offsets_go_on(size: int) -> None:
    choice = answer(ids("a 😊 b"), logprobs=True)
    whole = completions(MODEL, [choice], {"prompt": "x", "echo": True})["choices"][0]["logprobs"]
    chunks, _ = stream(
        MODEL, choice["choices"][0], {"prompt": "x", "echo": True}, sizes=[size] * 50, dialect="completion"
    )
    for key in whole:
        assert [v for chunk in chunks for c in chunk["choices"] for v in c["logprobs"][key]] == whole[key]


def test_hidden_special_tokens_take_no_characters() -> None:
    tokens = [*ids("a"), 1, *ids("b")]
    got = completions(MODEL, [answer(tokens, logprobs=True)], {"prompt": "x"})
    assert got["choices"][0]["logprobs"]["text_offset"] == [0, 1, 1]


def test_keys_of_a_map_do_not_collide() -> None:
    start, *rest = ids("😊")
    parts = [i for i in range(TOKENIZER.vocab_size) if len(TOKENIZER.piece(i)) == 1 and TOKENIZER.piece(i)[0] >= 0xF0]
    given = with_content(
        {
            "token_id": start,
            "logprob": -0.5,
            "top_logprobs": [{"token_id": i, "logprob": -0.5 - n} for n, i in enumerate([start, *parts[:3], 70])],
        },
        token_ids=[start, *rest],
    )
    names = completions(MODEL, [given], {"prompt": "x"})["choices"][0]["logprobs"]["top_logprobs"][0]
    assert len(names) == len({start, *parts[:3], 70})
    own = "bytes:" + "".join(f"\\x{b:02x}" for b in TOKENIZER.piece(start))
    assert names[own] == -0.5
    assert all(name.startswith("bytes:\\x") for name in names if name != TOKENIZER.decode([70]))


def test_the_sampled_token_keeps_its_own_value() -> None:
    given = with_content(
        {
            "token_id": 70,
            "logprob": -0.5,
            "top_logprobs": [{"token_id": 70, "logprob": -0.5}, {"token_id": 70, "logprob": -1.5}],
        }
    )
    names = completions(MODEL, [given], {"prompt": "x"})["choices"][0]["logprobs"]["top_logprobs"][0]
    assert names == {TOKENIZER.decode([70]): -0.5}


def test_prompt_logprobs_pass_with_their_tokens() -> None:
    world = ids(" world")[0]
    given = {
        **answer([world]),
        "prompt_logprobs": [None, {str(world): {"logprob": -1.0, "rank": 1, "decoded_token": None}}],
    }
    expected = [None, {str(world): {"logprob": -1.0, "rank": 1, "decoded_token": TOKENIZER.decode([world])}}]
    assert chat(MODEL, given, ask())["prompt_logprobs"] == expected
    both = {**given, "choices": [*given["choices"], {**given["choices"][0], "index": 1}]}
    assert [c["prompt_logprobs"] for c in completions(MODEL, [both])["choices"]] == [expected, expected]


def test_echo_with_prompt_logprobs_has_an_entry_for_each_prompt_token() -> None:
    prompt = ids("a b")
    scores = [None, *({str(i): {"logprob": -1.0, "rank": 1}, "70": {"logprob": -2.0, "rank": 2}} for i in prompt[1:])]
    given = {**answer(ids("c"), logprobs=True), "prompt_logprobs": scores, "prompt_token_ids": prompt}
    got = completions(MODEL, [given], {"prompt": "a b", "echo": True, "logprobs": 1})["choices"][0]["logprobs"]
    assert "".join(got["tokens"]) == "a bc"
    assert got["token_logprobs"] == [None, *[-1.0] * (len(prompt) - 1), -0.5]
    assert got["top_logprobs"][0] is None
    assert got["text_offset"][-1] == 3


def test_a_leading_blank_is_read_as_in_the_text() -> None:
    hello, world = 259, 260
    found = content(chat(SPM, answer([hello, world], logprobs=True), ask()))
    assert [e["token"] for e in found] == ["Hello", " world"]
    assert [bytes(e["bytes"]) for e in found] == [b" Hello", b" world"]
    seeded = content(chat(SPM, answer([hello, world], logprobs=True), ask(), prompt_token_ids=[hello]))
    assert [e["token"] for e in seeded] == [" Hello", " world"]
