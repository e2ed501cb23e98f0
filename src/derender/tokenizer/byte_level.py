"""Byte-level vocabularies: GPT-2's alphabet for bytes, and tiktoken's byte ranks as a tokenizer.json.

tiktoken joins the two neighbours whose joined bytes have the lowest rank, leftmost first, and takes a word that is a
token whole. As merges that is every cut of every token into two tokens, by the rank of the joined token, with
`ignore_merges`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from derender.tokenizer.files import TokenizerBroken

LONGEST_TOKEN = 4096
"""Bytes. Every cut of every token is tried, so longer ones (none are known) would cost minutes."""


def byte_characters() -> dict[int, int]:
    """Code point → byte of GPT-2's byte-level alphabet: printable Latin-1 stands for itself, the rest from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {b: b for b in printable} | {0x100 + i: b for i, b in enumerate(others)}


_SPELL = {byte: character for character, byte in byte_characters().items()}


def spell(data: bytes) -> str:
    """Bytes in the byte-level alphabet (`b" a"` → `Ġa`)."""
    return data.decode("latin-1").translate(_SPELL)


def merges_of_ranks(ranks: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges of tokens (in the byte-level alphabet) by rank. Of two cuts of one token the one with the lower ranks
    goes first, as transformers has it; in a vocabulary that was trained as a BPE only one of them is ever met."""
    merges: list[tuple[str, str]] = []
    for token in sorted(ranks, key=ranks.__getitem__):
        cuts = []
        for at in range(1, len(token)):
            left = token[:at]
            if left in ranks and (right := token[at:]) in ranks:
                cuts.append((left, right))
        if len(cuts) > 1:
            cuts.sort(key=lambda cut: (ranks[cut[0]], ranks[cut[1]]))
        merges += cuts
    return merges


def ranks_as_tree(
    ranks: Mapping[bytes, int],
    *,
    patterns: Iterable[str],
    added_tokens: list[dict[str, Any]],
    first_id: int = 0,
    nfc: bool = False,
    frame: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The tree of a tokenizer.json for byte ranks. Raises `TokenizerBroken`, also for a token longer than
    `LONGEST_TOKEN`.

    `patterns` cut the text one after the other; none: as GPT-2's does, which the byte-level step has built in. The id
    of a token is its rank from `first_id` on; `frame` is the post-processor.
    """
    if max(map(len, ranks), default=0) > LONGEST_TOKEN:
        raise TokenizerBroken(f"the vocabulary has a token of more than {LONGEST_TOKEN} bytes")
    spelled = {spell(data): rank for data, rank in ranks.items()}
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not steps}
    # The library gives an added token the id that the vocabulary has for it, else the next free one.
    vocabulary = {token: rank + first_id for token, rank in spelled.items()}
    for token in added_tokens:
        if vocabulary.setdefault(token["content"], token["id"]) != token["id"]:
            raise TokenizerBroken(f"the added token {token['content']!r} is a plain token, too")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, byte_level]},
        "post_processor": frame,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": vocabulary,
            "merges": merges_of_ranks(spelled),
        },
    }


def asked_frame(
    config: Mapping[str, Any],
    ids: Mapping[str, int],
    *,
    before: Sequence[tuple[int, str]] = (),
    after: Sequence[tuple[int, str]] = (),
) -> dict[str, Any] | None:
    """The post-processor of a converted vocabulary: what its family puts around a text, unless `add_bos_token` or
    `add_eos_token` of the config say otherwise."""

    def asked(flag: str, name: str, own: Sequence[tuple[int, str]]) -> Sequence[tuple[int, str]]:
        if not isinstance(config.get(flag), bool):
            return own
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if not config[flag] or not isinstance(text, str) or text not in ids:
            return () if not config[flag] else own
        return [(ids[text], text)]

    return frame(before=asked("add_bos_token", "bos_token", before), after=asked("add_eos_token", "eos_token", after))


def added_token(token_id: int, content: str, *, special: bool = True, normalized: bool = False) -> dict[str, Any]:
    """An entry of `added_tokens`."""
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": normalized,
        "special": special,
    }


def frame(*, before: Sequence[tuple[int, str]] = (), after: Sequence[tuple[int, str]] = ()) -> dict[str, Any] | None:
    """The post-processor that puts tokens before and after a text, each an (id, spelling); None for none."""
    ends = [*before, *after]
    if not ends:
        return None

    def steps(tokens: Sequence[tuple[int, str]], type_id: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": text, "type_id": type_id}} for _, text in tokens]

    def framed(name: str, type_id: int) -> list[dict[str, Any]]:
        return [*steps(before, type_id), {"Sequence": {"id": name, "type_id": type_id}}, *steps(after, type_id)]

    return {
        "type": "TemplateProcessing",
        "single": framed("A", 0),
        "pair": [*framed("A", 0), *framed("B", 1)],
        "special_tokens": {text: {"id": text, "ids": [number], "tokens": [text]} for number, text in ends},
    }
