"""Stop strings: found in visible content, the same for every split, never part of what was sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.derendering.helpers import answer, ask, chat, joined, stream, texts
from tests.vocabularies import byte_level

from derender.derendering.stops import StopMatcher

MODEL = texts(byte_level())


def ids(text: str) -> list[int]:
    return byte_level().encode(text)


def test_text_is_cut_at_the_stop_string() -> None:
    tokens = ids("Hello there, how are you")
    got = chat(MODEL, answer(tokens, finish="length"), ask(stop=["how", "zzz"]))
    choice = got["choices"][0]
    assert choice["message"]["content"] == "Hello there, "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "how")
    kept = chat(MODEL, answer(tokens), ask(stop="how", include_stop_str_in_output=True))["choices"][0]
    assert kept["message"]["content"] == "Hello there, how"


def test_tokens_after_the_stop_string_are_no_output() -> None:
    tokens = ids("ab STOP cd")
    got = chat(MODEL, answer(tokens, logprobs=True), ask(stop="STOP", return_token_ids=True))
    choice = got["choices"][0]
    upto = choice["token_ids"]
    assert "STOP" in byte_level().decode(upto)
    assert "STOP" not in byte_level().decode(upto[:-1])
    assert len(choice["logprobs"]["content"]) == len(upto) == got["usage"]["completion_tokens"]


def test_the_engines_reported_stop_string_cuts_without_a_request() -> None:
    got = chat(MODEL, answer(ids("Hello world"), stop_reason="world"))
    assert got["choices"][0]["message"]["content"] == "Hello "


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_a_stream_stops_and_says_so(size: int) -> None:
    tokens = ids("Hello there, how are you today")
    request = ask(stop=["are", "there, w"])
    chunks, states = stream(MODEL, answer(tokens)["choices"][0], request, sizes=[size] * len(tokens))
    assert joined(chunks) == "Hello there, how "
    reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert reasons == ["stop"]
    assert states[-1]["choices"]["0"][-1] is True


def test_stopped_stands_beside_the_state() -> None:
    from derender.derendering.chat import derender_chat_chunk
    from derender.protocol.codec import encode
    from derender.protocol.derender import decode_derender_chat

    def send(text: str, state: object) -> object:
        chunk = {"request_id": "r", "choices": [{"index": 0, "token_ids": ids(text)}]}
        body = {"stream": True, "generate_chunk": chunk, "stream_state": state, "chat_request": ask(stop="END")}
        return derender_chat_chunk(MODEL, decode_derender_chat(encode(body)))

    first = send("say ", None)
    assert b"stopped" not in encode(first)
    second = send("END", first.stream_state)
    assert second.stopped is True
    assert second.chunk.choices[0].finish_reason == "stop"
    third = send("more", second.stream_state)
    assert third.chunk.choices == []


def test_a_stop_string_counts_past_min_tokens() -> None:
    tokens = ids("a b a b a b")
    least = len(ids("a b a"))
    got = chat(MODEL, answer(tokens), ask(stop="b", min_tokens=least))
    assert got["choices"][0]["message"]["content"] == "a b a "


def test_stops_inside_each_other() -> None:
    assert StopMatcher(["abcd", "bc"], keep=False).push("xabcd") == "xa"
    assert StopMatcher(["there", "ere"], keep=False).push("there") == ""


@given(
    st.text("ab<", max_size=60), st.lists(st.text("ab<", min_size=1, max_size=40), min_size=1, max_size=4), st.data()
)
def test_matching_does_not_depend_on_the_split(text: str, stops: list[str], data: st.DataObject) -> None:
    whole = StopMatcher(stops, keep=False)
    expected = whole.push(text)
    if whole.matched is None:
        expected += whole.finish()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    matcher = StopMatcher(stops, keep=False)
    out = ""
    for part in parts:
        out += matcher.push(part)
        assert len(matcher.held) < max(map(len, stops))
        if matcher.matched is not None:
            break
    else:
        out += matcher.finish()
    # Told apart from the whole only by which of several matches is complete first: that is the same everywhere.
    assert (out, matcher.matched) == (expected, whole.matched)
    assert not any(stop in out for stop in stops)
