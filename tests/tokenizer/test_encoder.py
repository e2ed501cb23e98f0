"""The encoder: equal to the reference, or visibly not the fast one."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.vocabularies import byte_fallback, byte_level, byte_level_json, from_json
from tokenizers import Tokenizer as Tokenizers

from derender.tokenizer import Tokenizer, TokenizerBroken, encoder
from derender.tokenizer.plain_text import PlainEncoder


def test_fastokens_is_used_where_it_proves_equal() -> None:
    assert byte_level().encoder == encoder.EncoderChoice("fastokens", "")


def test_a_vocabulary_without_merges_is_encoded_by_the_reference() -> None:
    assert byte_fallback().encoder.name == "tokenizers"
    assert byte_fallback().encoder.reason == "it encodes 'Hello world' otherwise than tokenizers"


def test_a_mismatch_falls_back_and_says_on_what(monkeypatch: pytest.MonkeyPatch) -> None:
    import fastokens

    class Wrong:
        def __init__(self, real: Any) -> None:
            self._real = real

        def encode(self, text: str, add_special_tokens: bool = False) -> Any:
            return self._real.encode(text.replace("café", "cafe"), add_special_tokens=add_special_tokens)

        def no_truncation(self) -> None: ...
        def no_padding(self) -> None: ...

        @classmethod
        def from_json_str(cls, text: str) -> Wrong:
            return cls(fastokens._native.Tokenizer.from_json_str(text))

    monkeypatch.setattr(fastokens, "Tokenizer", Wrong)
    tokenizer = from_json(byte_level_json(), {})
    assert tokenizer.encoder.name == "tokenizers"
    assert "café" in tokenizer.encoder.reason
    assert tokenizer.decode(tokenizer.encode("Zürich café")) == "Zürich café"


def test_a_refusal_falls_back_and_a_forced_encoder_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    import fastokens

    class Refuses:
        @staticmethod
        def from_json_str(text: str) -> Any:
            raise ValueError("unsupported pre-tokenizer\nsecond line")

    monkeypatch.setattr(fastokens, "Tokenizer", Refuses)
    tokenizer = from_json(byte_level_json(), {})
    assert tokenizer.encoder.reason == "it refuses this tokenizer: unsupported pre-tokenizer"
    with pytest.raises(TokenizerBroken, match="fastokens cannot be used"):
        Tokenizer(tokenizer.reload(), force="fastokens")


def test_the_reference_can_be_forced() -> None:
    tokenizer = Tokenizer(byte_level().reload(), force="tokenizers")
    assert tokenizer.encoder == encoder.EncoderChoice("tokenizers", "asked for by --tokenizer-mode")
    assert tokenizer.encode("Hello there") == byte_level().encode("Hello there")


def test_special_tokens_in_text_and_around_it() -> None:
    tokenizer = byte_level()
    assert tokenizer.encode("<|im_start|>a<|im_end|>") == [1, *tokenizer.encode("a"), 2]
    assert tokenizer.token_id("<|im_end|>") == 2
    assert tokenizer.token_id("no such token") is None


def test_offsets_are_characters_of_the_text() -> None:
    text = "Zürich 😊 <|im_end|> x"
    ids, offsets = byte_level().encode_with_offsets(text)
    assert ids == byte_level().encode(text)
    start, end = offsets[ids.index(2)]
    assert text[start:end] == "<|im_end|>"
    assert max(end for _, end in offsets) == len(text)


def test_added_tokens_of_the_config_are_added() -> None:
    new = byte_level().vocab_size
    config = {
        "added_tokens_decoder": {f"{new}": {"content": "<extra>", "special": True}, "0": {"content": "<|endoftext|>"}}
    }
    tokenizer = from_json(byte_level_json(), config)
    assert tokenizer.encode("a<extra>b") == [*tokenizer.encode("a"), new, *tokenizer.encode("b")]
    assert new in tokenizer.special_ids
    assert tokenizer.decode([new], skip_special_tokens=True) == ""


def test_threads_share_a_tokenizer() -> None:
    tokenizer = byte_level()
    expected = tokenizer.encode("Hello there, how are you " * 50)
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(1 for _ in range(50) if tokenizer.encode("Hello there, how are you " * 50) != expected)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", "{", "cannot be read"),
        ("tokenizer.json", "[1]", "cannot be read"),
        ("tokenizer.json", '{"model": {"type": "BPE"}}', "cannot be read"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {}}}', "no usable vocabulary"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": 999999999}}}', "no usable vocabulary"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": 0}}}', "cannot be loaded"),
        ("tokenizer_config.json", "nope", "not valid JSON"),
        ("tokenizer_config.json", "[]", "does not hold a JSON object"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {"content": "y"}}}', "added_tokens_decoder"),
    ],
)
def test_a_broken_directory_is_one_clear_line(tmp_path: Path, name: str, text: str | None, says: str) -> None:
    if name != "tokenizer.json":
        (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    if text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(TokenizerBroken, match=says) as caught:
        Tokenizer.from_directory(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_added_id_that_the_reference_would_move_is_refused() -> None:
    config = {"added_tokens_decoder": {"9999": {"content": "<extra>", "special": True}}}
    with pytest.raises(TokenizerBroken, match="<extra>"):
        from_json(byte_level_json(), config)


def test_named_tokens_reach_the_template(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    config = {"eos_token": {"content": "<|im_end|>"}, "bos_token": None, "extra_special_tokens": {"image_token": "<i>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "special_tokens_map.json").write_text('{"pad_token": "<|endoftext|>"}', encoding="utf-8")
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.special_tokens == {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "image_token": "<i>",
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("decoder", {"type": "Sequence", "decoders": 5}),
        ("decoder", {"type": "Replace", "pattern": 5, "content": " "}),
        ("decoder", {"type": "Metaspace", "replacement": 5}),
        ("post_processor", {"type": "TemplateProcessing", "single": 5, "pair": [], "special_tokens": {}}),
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}),
    ],
)
def test_a_broken_member_is_one_line(key: str, value: object) -> None:
    described = json.loads(byte_level_json())
    described[key] = value
    with pytest.raises(TokenizerBroken, match=r"\A.+\Z"):
        from_json(json.dumps(described), {})


@contextmanager
def longest_stop() -> Iterator[list[float]]:
    """How long another thread had to wait for the interpreter, at most; there once the block is left."""
    ended, found = threading.Event(), [0.0]

    def tick() -> None:
        last = time.perf_counter()
        while not ended.wait(0.001):
            now = time.perf_counter()
            found[0] = max(found[0], now - last)
            last = now

    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("name", ["offsets", "reference", "plain"])
def test_others_run_while_a_long_text_is_encoded(name: str) -> None:
    tokenizer = Tokenizer(byte_level().reload(), force="tokenizers")
    plain = PlainEncoder(tokenizer.reload)
    work: dict[str, Callable[[str], object]] = {
        "offsets": tokenizer.encode_with_offsets,
        "reference": tokenizer.encode,
        "plain": lambda text: plain.encode(text, first=True),
    }
    text = "Hello there, how are you? " * 40_000
    began = time.perf_counter()
    with longest_stop() as stop:
        work[name](text)
    assert stop[0] < max(0.1, (time.perf_counter() - began) / 2)


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_long_texts_have_the_ids_and_offsets_of_the_reference(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    text = "Zürich 😊 <|im_end|>\n x" * 9_000
    reference = Tokenizers.from_str(tokenizer.reload().json_text.decode())
    for add in (False, True):
        expected = reference.encode(text, add_special_tokens=add)
        ids, offsets = tokenizer.encode_with_offsets(text, add_special_tokens=add)
        assert len(ids) > 1 << 15
        assert (ids, offsets) == (expected.ids, expected.offsets)
        assert Tokenizer(tokenizer.reload(), force="tokenizers").encode(text, add_special_tokens=add) == expected.ids


def test_nothing_is_loaded_for_the_first_request_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, plain = byte_level(), PlainEncoder(byte_level().reload)

    class NoneLoaded:
        @staticmethod
        def from_str(text: str) -> None:
            raise AssertionError("a tokenizer was loaded")

    monkeypatch.setattr("tokenizers.Tokenizer", NoneLoaded)
    assert tokenizer.encode_with_offsets("a")[1] == [(0, 1)]
    assert plain.encode("a", first=True) == plain.encode("a", first=False) == tokenizer.encode("a")
