"""Answers of the loop against those of a coupled vLLM: equal but for what vLLM is known to tell less exactly.

Known of vLLM 0.32, and checked here as exactly that and no more:
- bytes of a token that is a part of a character are empty, or the whole character's at its last part (vllm#27300);
- the keys of a completions map of top logprobs collide: all parts of characters are the empty string;
- an engine without a tokenizer tells `logprobs` candidates, the sampled token among them, where a coupled server's
  completions tell one more if the sampled token is not among the best;
- a character that the output ends inside of is left out; derender tells it as one U+FFFD;
- an engine without a tokenizer names the EOS token as stop_reason, a coupled one says null.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.e2e.client import Json

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
CLOSE = 1e-4  # of logprobs: what the order of float32 sums in other batches changes


def same_answer(ours: Json, theirs: Json, *, eos: int) -> None:
    """Asserts that two API answers of one dialect are the same but for ids, times and what is listed above."""
    assert ours["object"] == theirs["object"]
    assert ours["model"] == theirs["model"]
    assert ours["usage"] == theirs["usage"]
    assert len(ours["choices"]) == len(theirs["choices"])
    for one, other in zip(ours["choices"], theirs["choices"], strict=True):
        same_choice(one, other, eos=eos)
    if "prompt_logprobs" in theirs:
        same_prompt_logprobs(ours["prompt_logprobs"], theirs["prompt_logprobs"])


def same_choice(ours: Json, theirs: Json, *, eos: int) -> None:
    for name in ("index", "finish_reason", "token_ids"):
        assert ours[name] == theirs[name], name
    if ours["stop_reason"] == eos:
        assert theirs["stop_reason"] in (None, eos)
    else:
        assert ours["stop_reason"] == theirs["stop_reason"]
    if "message" in theirs:
        same_text(ours["message"]["content"], theirs["message"]["content"])
        rest = [{name: value for name, value in one["message"].items() if name != "content"} for one in (ours, theirs)]
        assert rest[0] == rest[1]
    else:
        same_text(ours["text"], theirs["text"])
        same_prompt_logprobs(ours["prompt_logprobs"], theirs["prompt_logprobs"])
        assert ours["prompt_token_ids"] == theirs["prompt_token_ids"]
    if theirs["logprobs"] is None:
        assert ours["logprobs"] is None
    elif "content" in theirs["logprobs"]:
        entries = ours["logprobs"]["content"], theirs["logprobs"]["content"]
        assert len(entries[0]) == len(entries[1])
        for one, other in zip(*entries, strict=True):
            same_entry(one, other)
            assert len(one["top_logprobs"]) == len(other["top_logprobs"])
            for top, other_top in zip(one["top_logprobs"], other["top_logprobs"], strict=True):
                same_entry(top, other_top)
    else:
        same_lists(ours["logprobs"], theirs["logprobs"])


def same_text(ours: str, theirs: str) -> None:
    assert ours.removesuffix(UNFINISHED) == theirs


def same_entry(ours: Json, theirs: Json) -> None:
    """One token of a chat's logprobs. `bytes` must be equal where the token is whole characters."""
    assert ours["token"] == theirs["token"]
    assert ours["logprob"] == pytest.approx(theirs["logprob"], abs=CLOSE)
    if ours["token"] and bytes(ours["bytes"]).decode(errors="replace") == ours["token"]:
        assert ours["bytes"] == theirs["bytes"]
    else:
        assert theirs["bytes"] == list(ours["token"].encode())
        assert len(ours["bytes"]) > 0


def same_lists(ours: Json, theirs: Json) -> None:
    """The parallel lists of a completion's logprobs."""
    assert ours["tokens"] == theirs["tokens"]
    assert ours["text_offset"] == theirs["text_offset"]
    assert ours["token_logprobs"] == pytest.approx(theirs["token_logprobs"], abs=CLOSE)
    for one, other, sampled in zip(ours["top_logprobs"], theirs["top_logprobs"], theirs["token_logprobs"], strict=True):
        if other is None:
            assert one is None
        else:
            same_candidates(one, other, sampled=sampled)


def same_candidates(ours: Mapping[str, float], theirs: Mapping[str, float], *, sampled: float) -> None:
    """One map of top logprobs. `sampled`: the logprob of the token that was sampled."""
    parts = {key for key in ours if key.startswith("bytes:")}
    assert bool(parts) == ("" in theirs)
    whole = ours.keys() - parts
    assert whole <= theirs.keys()
    assert {key: ours[key] for key in whole} == pytest.approx({key: theirs[key] for key in whole}, abs=CLOSE)
    if parts:
        assert theirs[""] in [pytest.approx(ours[key], abs=CLOSE) for key in parts]
    more = theirs.keys() - whole - {""}
    assert len(more) <= 1
    assert all(theirs[key] > sampled for key in more)


def same_prompt_logprobs(ours: Json, theirs: Json) -> None:
    if theirs is None:
        assert ours is None
        return
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        if other is None:
            assert one is None
            continue
        assert one.keys() == other.keys()
        for token, entry in other.items():
            assert one[token]["rank"] == entry["rank"]
            assert one[token]["decoded_token"] == entry["decoded_token"]
            assert one[token]["logprob"] == pytest.approx(entry["logprob"], abs=CLOSE)


def joined_bytes(entries: list[Json]) -> bytes:
    """The output's bytes, from the logprobs of all its tokens."""
    return b"".join(bytes(entry["bytes"]) for entry in entries)
