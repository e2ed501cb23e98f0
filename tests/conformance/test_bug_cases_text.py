"""Public faults of detokenizers (A), each with the value that is right.

What waits for reasoning and tool parsers: A10's second half, that a parser still sees the markers which
`skip_special_tokens` keeps from the text.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.helpers import (
    CHAT_DERENDER,
    CHAT_RENDER,
    GENERATE,
    TEXT_DERENDER,
    VOCAB,
    chat,
    content,
    ok,
    refused,
    serve,
    smollm2,
    stream,
    text,
)
from tests.derendering.helpers import answer, ask
from tests.engines.scripted import LIMITS, ScriptedBackend
from tests.vocabularies import byte_fallback_json

from derender.engines.llamacpp import LlamaCppEngine
from derender.model import Model, ModelSettings
from derender.server.generate import build_generate_app
from derender.server.http import App

DIALECTS = ["chat", "completion"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> App:
    """A sentencepiece-style vocabulary with byte fallback: ids 3 to 258 are the bytes, 259 is `▁Hello`."""
    directory: Path = tmp_path_factory.mktemp("models") / "toy"
    directory.mkdir()
    (directory / "tokenizer.json").write_text(byte_fallback_json())
    (directory / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    return serve(Model.load(str(directory), settings=ModelSettings(served_model_names=("toy",))))


def whole(app: App, ids: list[int], request: Any = None, *, dialect: str = "chat", **fields: Any) -> str:
    """The text of a batch answer."""
    if dialect == "chat":
        return content(chat(app, answer(ids), request, **fields))
    return content(text(app, [answer(ids)], request, **fields))


def splits(count: int, rng: random.Random, *, tries: int = 10) -> Iterator[list[int]]:
    """Ways to cut `count` ids into chunks: by ones, twos, fours, and at random."""
    for size in (1, 2, 4):
        yield [size] * count
    for _ in range(tries):
        yield [rng.randint(1, 4) for _ in range(count)]


def streamed(app: App, ids: list[int], sizes: list[int], **fields: Any) -> list[str]:
    """The text of each chunk."""
    return stream(app, answer(ids)["choices"][0], sizes=sizes, **fields)[0]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a01_no_chunk_begins_inside_a_character(dialect: str) -> None:
    """Decode window starts inside a character (ai-dynamo/dynamo#12630)."""
    app, ids, right = smollm2(), [183, 220, 137, 181, 127, 134, 183, 220, 129], "삼겹살"  # three ids for each syllable
    assert whole(app, ids, dialect=dialect) == right
    for sizes in splits(len(ids), random.Random("a01")):
        chunks = streamed(app, ids, sizes, dialect=dialect)
        assert "".join(chunks) == right
        seen, given = 0, ""
        for size, chunk in zip(sizes, chunks, strict=False):
            seen, given = min(seen + size, len(ids)), given + chunk
            assert given == right[: seen // 3]  # whole characters, as soon as they are whole


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a02_a_state_is_as_good_as_a_process_that_never_lost_it(dialect: str) -> None:
    """Resumed decode state assumes prior tokens were all emitted (vllm#46159)."""
    app = smollm2()
    assert streamed(app, [10813, 242, 228], [2], dialect=dialect) == ["", "😊"]
    rng = random.Random("a02")
    ids = [rng.choice((rng.randrange(3, VOCAB), rng.randrange(100, 260), 10813, 242, 228)) for _ in range(60)]
    right = whole(app, ids, dialect=dialect)
    assert "\ufffd" in right  # bytes of characters that are never finished are among them
    for position in range(1, len(ids)):
        assert "".join(streamed(app, ids, [position], dialect=dialect)) == right
    assert "".join(streamed(app, ids, [1] * len(ids), dialect=dialect)) == right


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a04_prompt_text_is_never_output(dialect: str) -> None:
    """Prefix never set, so everything counts as new text (vllm#48853)."""
    app, prompt, ids, right = smollm2(), [19556, 905, 15107, 230], [131, 314], "\ufffd is"  # b" \xf0\x9f\x8c", b"\xb6"
    given: Any = {"prompt_token_ids": prompt if dialect == "chat" else [prompt]}
    assert whole(app, ids, dialect=dialect, **given) == right
    echoed = {**answer(ids), "prompt_token_ids": prompt}
    got = chat(app, echoed) if dialect == "chat" else text(app, [echoed])
    assert content(got) == right
    for sizes in ([1], [2]):
        chunks = streamed(app, ids, sizes, dialect=dialect, prompt_token_ids=prompt)
        assert "".join(chunks) == right
        assert chunks[0] == (right[:1] if sizes == [1] else right)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a05_one_broken_byte_takes_nothing_back(toy: App, dialect: str) -> None:
    """Decode is not monotone (vllm#17448). Batch is what the stream joined is; the library's batch differs here."""
    broken = [198, 172, 198, 268]  # <0xC3> <0xA9> <0xC3> 世
    assert streamed(toy, broken, [1] * 4, dialect=dialect) == ["", "é", "", "\ufffd世"]
    assert whole(toy, broken, dialect=dialect) == "é\ufffd世"
    second = [243, 162, 155, 141, 229, 259]  # <0xF0> <0x9F> <0x98> <0x8A> <0xE2> ▁Hello
    assert streamed(toy, second, [1] * 6, dialect=dialect) == ["", "", "", "😊", "", "\ufffd Hello"]
    assert whole(toy, second, dialect=dialect) == "😊\ufffd Hello"
    rng = random.Random("a05")
    for _ in range(100):
        data = bytes(rng.choice((rng.randrange(256), 0xC3, 0xA9, 0xE4, 0xB8, 0x96)) for _ in range(rng.randint(1, 12)))
        ids = [268, *(3 + byte for byte in data)]
        right = ("世".encode() + data).decode("utf-8", "replace")
        assert whole(toy, ids, dialect=dialect) == right
        assert "".join(streamed(toy, ids, [1] * len(ids), dialect=dialect)) == right


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a07_an_unfinished_character_is_told_at_the_end(dialect: str) -> None:
    """No flush at the end, or flush in one mode only (ohdearquant/lattice#751, antirez/ds4#815)."""
    app, ids = smollm2(), [30, 10813]  # b".", b"\xf0\x9f"
    cut = answer(ids, finish="length")
    got = chat(app, cut) if dialect == "chat" else text(app, [cut])  # decoded as UTF-8, strictly
    assert content(got) == ".\ufffd"
    assert got["usage"]["completion_tokens"] == 2
    assert got["choices"][0]["finish_reason"] == "length"
    assert stream(app, cut["choices"][0], sizes=[1], dialect=dialect)[0] == [".", "\ufffd"]
    # The end may come in a chunk without ids: what was held back comes with it.
    path = CHAT_DERENDER if dialect == "chat" else TEXT_DERENDER
    body: dict[str, Any] = {"stream": True, "generate_chunk": {"choices": [{"index": 0, "token_ids": ids}]}}
    first = ok(app, path, body)
    body["generate_chunk"] = {"choices": [{"index": 0, "token_ids": [], "finish_reason": "length"}]}
    last = ok(app, path, {**body, "stream_state": first["stream_state"]})["chunk"]["choices"][0]
    assert (last["delta"]["content"] if dialect == "chat" else last["text"]) == "\ufffd"
    assert last["finish_reason"] == "length"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a08_a_real_blank_is_kept(toy: App, dialect: str) -> None:
    """Decode of a part strips a real blank (ml-explore/mlx-lm#1754, huggingface/transformers#28776)."""
    for ids, right in (([261, 265, 266], " leading x"), ([259, 260], "Hello world")):  # ▁ ▁leading ▁x; ▁Hello ▁world
        assert whole(toy, ids, dialect=dialect) == right
        for sizes in ([1] * len(ids), [1], [2]):
            assert "".join(streamed(toy, ids, sizes, dialect=dialect)) == right
    # After a prompt that is known nothing is stripped: the blank is the text's own.
    prompt: Any = [1, 259] if dialect == "chat" else [[1, 259]]
    assert whole(toy, [259, 260], dialect=dialect, prompt_token_ids=prompt) == " Hello world"
    assert "".join(streamed(toy, [259, 260], [1], dialect=dialect, prompt_token_ids=[1, 259])) == " Hello world"


@pytest.mark.parametrize(
    ("fields", "right", "alone"),
    [
        ({}, "hello", ""),
        ({"skip_special_tokens": True}, "hello", ""),
        ({"skip_special_tokens": False}, "<|im_start|>hello<|im_end|>", "<|im_start|><|im_end|>"),
    ],
)
def test_a10_skip_special_tokens_reaches_the_text(fields: dict[str, Any], right: str, alone: str) -> None:
    """Request option not carried to decode (ai-dynamo/dynamo#14602)."""
    app, ids = smollm2(), [1, 28120, 2]
    for dialect, request in (("chat", ask(**fields)), ("completion", {"prompt": "x", **fields})):
        assert whole(app, ids, request, dialect=dialect) == right
        assert "".join(streamed(app, ids, [1, 1, 1], request=request, dialect=dialect)) == right
        assert whole(app, [1, 2], request, dialect=dialect) == alone  # text, and never null
    rendered = ok(app, CHAT_RENDER, ask(**fields))
    assert rendered["sampling_params"].get("skip_special_tokens", True) is fields.get("skip_special_tokens", True)


BAD_IDS: list[tuple[list[Any], int, Any]] = [
    ([-1], 0, -1),
    ([49152], 0, 49152),
    ([1000000], 0, 1000000),
    ([4294967296], 0, 4294967296),
    ([28120, -1, 28120], 1, -1),
    (["5"], 0, "5"),
    ([5.5], 0, 5.5),
    ([True], 0, True),
]


@pytest.mark.parametrize(("ids", "position", "wrong"), BAD_IDS)
def test_a11_a_bad_id_is_refused_by_position(ids: list[Any], position: int, wrong: Any) -> None:
    """Id not checked before the library call (vllm#47346, vllm#48567)."""
    app = smollm2()
    choice = {"index": 0, "token_ids": ids}
    chunk = {"stream": True, "generate_chunk": {"choices": [choice]}}
    for path, body, place in (
        (CHAT_DERENDER, {"generate_response": {"choices": [choice]}}, "generate_response.choices.0.token_ids"),
        (TEXT_DERENDER, {"generate_responses": [{"choices": [choice]}]}, "generate_responses.0.choices.0.token_ids"),
        (CHAT_DERENDER, chunk, "generate_chunk.choices.0.token_ids"),
        (TEXT_DERENDER, chunk, "generate_chunk.choices.0.token_ids"),
        ("/detokenize", {"tokens": ids}, "tokens"),
    ):
        error = refused(app, path, body)
        assert error["param"].removeprefix("body.") == f"{place}.{position}"
        assert repr(wrong) in error["message"]
    # The same in logprobs, as the sampled token and as an alternative.
    good = {"token_id": 28120, "logprob": -1.0}
    for entry in ({"token_id": wrong, "logprob": -1.0}, {**good, "top_logprobs": [good, {**good, "token_id": wrong}]}):
        body = {"generate_response": answer([28120, 28120], logprobs={"content": [good, entry]})}
        error = refused(app, CHAT_DERENDER, body)
        assert "logprobs.content.1" in error["param"]
        assert repr(wrong) in error["message"]
    # A tolerant server shows nothing for ids beyond the vocabulary (models pad theirs) and still refuses the others.
    tolerant = smollm2(tolerate_unknown_ids=True)
    if type(wrong) is int and wrong >= VOCAB:
        assert whole(tolerant, [28120, wrong, 905]) == "hello world"
        assert ok(tolerant, "/detokenize", {"tokens": [28120, wrong]}) == {"prompt": "hello"}
    else:
        refused(tolerant, CHAT_DERENDER, {"generate_response": {"choices": [choice]}})
    assert whole(app, [28120]) == "hello"  # nothing died of it


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a13_a_word_does_not_end_a_character(dialect: str) -> None:
    """Word boundary taken as character boundary (Blaizzy/mlx-vlm#1771)."""
    app = smollm2()
    for ids, right, chunks in (
        ([10813, 242, 228, 905], "😊 world", ["", "", "😊", " world"]),
        ([10813, 905], "\ufffd world", ["", "\ufffd world"]),  # only a real break of the bytes gives U+FFFD
    ):
        assert whole(app, ids, dialect=dialect) == right
        assert streamed(app, ids, [1] * len(ids), dialect=dialect) == chunks


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a14_a_stop_string_is_cut_from_the_text(dialect: str) -> None:
    """Text-level rule on a token-level wire (vllm#57052)."""
    app, ids = smollm2(), [19556, 905]  # "Hello", " world"
    base: dict[str, Any] = ask() if dialect == "chat" else {"prompt": "x"}
    found = {**answer(ids)["choices"][0], "stop_reason": "world"}

    def batch(request: Any, choice: Any = found) -> dict[str, Any]:
        one = {"request_id": "r", "choices": [choice]}
        got = chat(app, one, request) if dialect == "chat" else text(app, [one], request)
        return {"text": content(got), **{key: got["choices"][0][key] for key in ("finish_reason", "stop_reason")}}

    for keep, right in ((False, "Hello "), (True, "Hello world")):
        request = {**base, "stop": ["world"], "include_stop_str_in_output": keep}
        stopped = {"text": right, "finish_reason": "stop", "stop_reason": "world"}
        assert batch(request) == stopped
        # An engine that cannot see strings reports another end, and has more ids; the answer is the same.
        assert batch(request, answer([*ids, 28120], finish="length")["choices"][0]) == stopped
        for sizes in ([1], [2]):
            assert "".join(stream(app, found, request, sizes=sizes, dialect=dialect)[0]) == right
    assert batch(base)["text"] == "Hello "  # the engine says what it stopped at
    # A stop string may begin and end inside tokens. What may still become one is held back, and nothing else.
    request = {**base, "stop": ["lo wor"]}
    assert batch(request, answer(ids)["choices"][0])["text"] == "Hel"
    texts, answers = stream(app, answer([*ids, 28120])["choices"][0], request, sizes=[1, 1, 1], dialect=dialect)
    assert texts == ["Hel", "", ""]
    assert [one.get("stopped", False) for one in answers] == [False, True, False]  # the caller's sign to abort
    assert [c["finish_reason"] for one in answers for c in one["chunk"]["choices"]] == [None, "stop"]
    texts, _ = stream(
        app, answer([19556, 905])["choices"][0], {**base, "stop": ["lo there"]}, sizes=[1], dialect=dialect
    )
    assert texts == ["Hel", "lo world"]
    # Render keeps them from a server of tokens only, where derender cuts; that server refuses them.
    path = CHAT_RENDER if dialect == "chat" else "/v1/completions/render"
    for who, sent in (("engine", ["world"]), ("derender", [])):
        rendered = ok(smollm2(stop_strings=who), path, {**base, "stop": ["world"]})
        rendered = rendered if dialect == "chat" else rendered[0]
        assert rendered["sampling_params"]["stop"] == sent
    engine = LlamaCppEngine(ScriptedBackend(), LIMITS)
    body = {"token_ids": [5], "sampling_params": {"max_tokens": 1, "stop": ["world"]}}
    error = refused(build_generate_app(engine), GENERATE, body)
    asyncio.run(engine.aclose())
    assert error["param"] == "stop"
