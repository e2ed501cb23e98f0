"""Parts of a tokenizer.json for vocabularies that write a blank as "▁": sentencepiece's."""

from __future__ import annotations

from typing import Any

Part = dict[str, Any]
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
SPACE_TO_MARK: Part = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def metaspace(scheme: str, *, split: bool) -> Part:
    """`scheme`: always, first or never a blank before the text; `first` leaves out the text after an added token."""
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def spaced_decoder(*, byte_fallback: bool, strips: bool) -> Part:
    """Undoes "▁" and byte tokens; `strips` the blank that was put before the text."""
    steps: list[Part] = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}]
    if byte_fallback:
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
    if strips:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def squeezed() -> list[Part]:
    """Normalizers that drop the blanks at both ends and all but one of a run (`remove_extra_whitespaces`)."""
    return [
        {"type": "Replace", "pattern": {"Regex": r"\A +|[ ▁]+\z"}, "content": ""},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ]


def bpe(
    vocabulary: dict[str, int],
    merges: list[tuple[str, str]],
    *,
    ignore_merges: bool = False,
    byte_fallback: bool = False,
    unk_token: str | None = None,
) -> Part:
    """A BPE model."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unk_token,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": unk_token is not None,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": vocabulary,
        "merges": merges,
    }
