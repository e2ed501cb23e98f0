"""The invariants on real vocabularies: encode equals the reference, pieces are exact, any split gives the whole.

DERENDER_FUZZ sets the number of fuzzed strings for each vocabulary.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.derendering.helpers import answer, ask, chat, completions, entries, entry, joined, stream, texts
from tests.vocabularies import real, real_directory
from tokenizers import Tokenizer as Reference

from derender.tokenizer import Tokenizer

NAMES = ["smollm2", "deepseek-v3", "mistral-v1"]
STRINGS = int(os.environ.get("DERENDER_FUZZ", "3000"))
WORDS = [
    "the",
    "Hello",
    "naïve",
    "don't",
    "x_1",
    "日本語",
    "삼겹살",
    "😊",
    "👩‍👩‍👧",
    "مرحبا",
    "नमस्ते",
    "e\u0301",
    "ﬁ",
    "\u00a0",
    "1234567",
    "3.14",
]
SPACES = [" ", "  ", "\n", "\n\n", "\t", "\r\n", " \n ", "\u3000", "        "]


def fuzzed(rng: random.Random, special: list[str]) -> str:
    """A string of words, code, blanks, characters of every plane, and special tokens' spellings, whole and cut."""
    parts = []
    for _ in range(rng.randint(1, 12)):
        match rng.randrange(7):
            case 0:
                parts.append(rng.choice(WORDS))
            case 1:
                parts.append(rng.choice(SPACES))
            case 2:
                parts.append(
                    "".join(rng.choice("abcdefghijklmnopqrstuvwxyzABCDEF0123456789") for _ in range(rng.randint(1, 9)))
                )
            case 3:
                parts.append(
                    "".join(rng.choice("(){}[]<>=+-*/\\'\"`.,:;!?#@%&|~^$_") for _ in range(rng.randint(1, 4)))
                )
            case 4:
                plane = rng.choice([(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)])
                parts.append("".join(chr(rng.randrange(*plane)) for _ in range(rng.randint(1, 3))))
            case 5:
                token = rng.choice(special)
                parts.append(token if rng.random() < 0.7 else token[: rng.randint(1, len(token))])
            case _:
                parts.append(" " + rng.choice(WORDS))
    return "".join(parts)


@pytest.mark.parametrize("name", NAMES)
def test_encode_equals_the_reference_and_pieces_join_to_the_text(name: str) -> None:
    tokenizer = real(name)
    reference = Reference.from_file(str(real_directory(name) / "tokenizer.json"))
    assert tokenizer.encoder.name == "fastokens", tokenizer.encoder.reason
    special = [token.content for token in tokenizer.added_tokens]
    rng = random.Random(f"encode/{name}")
    for _ in range(STRINGS):
        text = fuzzed(rng, special)
        add = rng.random() < 0.5
        ids = tokenizer.encode(text, add_special_tokens=add)
        assert ids == reference.encode(text, add_special_tokens=add).ids, repr(text)
        decoded = reference.decode(ids, skip_special_tokens=False)
        if "\ufffd" not in decoded:
            assert tokenizer.decode(ids) == decoded, repr(text)


@pytest.mark.parametrize("name", NAMES)
def test_random_ids_never_raise_and_split_anywhere(name: str) -> None:
    tokenizer = real(name)
    model = texts(tokenizer)
    known = [i for i in range(tokenizer.vocab_size) if tokenizer.knows(i)]
    # Parts of characters are where things go wrong: they are drawn as often as whole tokens.
    partial = [i for i in known if not _whole(tokenizer, i)] or known
    ids = st.lists(st.one_of(st.sampled_from(known), st.sampled_from(partial)), max_size=40)

    @settings(max_examples=150)
    @given(ids, st.lists(st.integers(0, 5), max_size=40), st.booleans(), st.data())
    def check(tokens: list[int], sizes: list[int], skip: bool, data: st.DataObject) -> None:
        content = [entry(t, data.draw(st.sampled_from(partial)), data.draw(st.sampled_from(known))) for t in tokens]
        choice = answer(tokens, logprobs={"content": content}, finish="length")
        prompt = data.draw(st.sampled_from([None, [known[-1]]]))
        request = ask(skip_special_tokens=skip, return_token_ids=True)
        batch = chat(model, choice, request, prompt_token_ids=prompt)["choices"][0]
        chunks, _ = stream(model, choice["choices"][0], request, sizes=sizes, prompt_token_ids=prompt)
        assert joined(chunks) == batch["message"]["content"]
        assert entries(chunks) == batch["logprobs"]["content"]
        assert [i for c in chunks for x in c["choices"] for i in x["token_ids"]] == tokens
        assert len(batch["logprobs"]["content"]) == len(tokens)
        assert b"".join(bytes(e["bytes"]) for e in batch["logprobs"]["content"]) == b"".join(
            map(tokenizer.piece, tokens)
        )
        if (
            not any(t in tokenizer.special_ids for t in tokens)
            and tokens
            and tokens[-1] not in model.model.eos_token_ids
        ):
            assert batch["message"]["content"].startswith("".join(e["token"] for e in batch["logprobs"]["content"]))
        asked = {"prompt": "x", "skip_special_tokens": skip}
        whole = completions(model, [choice], asked, prompt_token_ids=[prompt])["choices"][0]
        parts, _ = stream(
            model, choice["choices"][0], asked, sizes=sizes, dialect="completion", prompt_token_ids=prompt
        )
        assert joined(parts) == whole["text"]
        for key, values in whole["logprobs"].items():
            assert [v for c in parts for x in c["choices"] for v in x["logprobs"][key]] == values

    check()


@pytest.mark.parametrize("name", NAMES)
def test_stop_strings_cut_at_the_same_place_for_every_split(name: str) -> None:
    tokenizer = real(name)
    model = texts(tokenizer)
    text = "The quick brown 狐 jumps; over the 😊 lazy dog. The end, says the fox.\n"
    tokens = tokenizer.encode(text)

    @settings(max_examples=80)
    @given(st.data(), st.lists(st.integers(0, 4), max_size=40), st.booleans())
    def check(data: st.DataObject, sizes: list[int], keep: bool) -> None:
        start = data.draw(st.integers(0, len(text) - 1))
        stop = text[start : start + data.draw(st.integers(1, 6))]
        request = ask(stop=[stop, "zzz"], include_stop_str_in_output=keep, return_token_ids=True)
        choice = answer(tokens, logprobs=True)
        batch = chat(model, choice, request, prompt_token_ids=[1])["choices"][0]
        where = tokenizer.detokenizer(skip_special_tokens=True, continues=True).push(tokens).find(stop)
        whole = tokenizer.detokenizer(skip_special_tokens=True, continues=True).push(tokens)
        assert batch["message"]["content"] == whole[: where + (len(stop) if keep else 0)]
        assert (batch["finish_reason"], batch["stop_reason"]) == ("stop", stop)
        chunks, _ = stream(model, choice["choices"][0], request, sizes=sizes, prompt_token_ids=[1])
        assert joined(chunks) == batch["message"]["content"]
        assert entries(chunks) == batch["logprobs"]["content"]
        assert [i for c in chunks for x in c["choices"] for i in x["token_ids"]] == batch["token_ids"]

    check()


def _whole(tokenizer: Tokenizer, token_id: int) -> bool:
    try:
        tokenizer.piece(token_id).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
