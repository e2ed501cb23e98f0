"""Text → ids without added tokens: `<|im_end|>` is then ten characters like any others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from derender.tokenizer.encoder import encode_unlocked
from derender.tokenizer.files import TokenizerSpec

_OTHER_PARTS = {
    name: msgspec.Raw(value)
    for name, value in (
        ("added_tokens", b"[]"),
        ("post_processor", b"null"),
        ("truncation", b"null"),
        ("padding", b"null"),
    )
}


class PlainEncoder:
    """Encodes texts in which no added token is looked for. Safe to use from several threads.

    It is loaded when it is made: later that would stop all threads, since the library holds the interpreter's lock.
    """

    def __init__(self, reload: Callable[[], TokenizerSpec]) -> None:
        """`reload` gives the tokenizer's description."""
        from tokenizers import Tokenizer

        parts = msgspec.json.decode(reload().json_text, type=dict[str, msgspec.Raw])  # the vocabulary stays text
        parts |= _OTHER_PARTS
        step = msgspec.json.decode(parts.get("pre_tokenizer", b"null"))
        self._first = self._later = Tokenizer.from_str(msgspec.json.encode(parts).decode("utf-8"))
        if _without_first_blank(step):
            parts["pre_tokenizer"] = msgspec.Raw(msgspec.json.encode(step))
            self._later = Tokenizer.from_str(msgspec.json.encode(parts).decode("utf-8"))

    def encode(self, text: str, *, first: bool) -> list[int]:
        """The ids of a text. `first`: it begins the prompt, so that the tokenizer may put a blank before it."""
        encoder = self._first if first else self._later
        ids: list[int] = encode_unlocked(encoder, text, add_special_tokens=False).ids
        return ids


def _without_first_blank(step: dict[str, Any] | None) -> bool:
    """Turns off the blank that a text's very beginning gets, and no other part of it; whether there was one."""
    if step is None:
        return False
    found = [_without_first_blank(one) for one in step.get("pretokenizers") or ()]
    if step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first":
        step["prepend_scheme"] = "never"
        return True
    return any(found)
