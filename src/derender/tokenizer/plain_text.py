"""Text → ids without added tokens: `<|im_end|>` is then ten characters like any others."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from derender.tokenizer.files import TokenizerSpec


class PlainEncoder:
    """Encodes texts in which no added token is looked for. Loaded when it is first needed; safe for several threads."""

    def __init__(self, reload: Callable[[], TokenizerSpec]) -> None:
        """`reload` gives the tokenizer's description."""
        self._reload = reload
        self._lock = threading.Lock()
        self._loaded: dict[bool, Any] = {}

    def encode(self, text: str, *, first: bool) -> list[int]:
        """The ids of a text. `first`: it begins the prompt, so that the tokenizer may put a blank before it."""
        ids: list[int] = self._load(first).encode(text, add_special_tokens=False).ids
        return ids

    def _load(self, first: bool) -> Any:
        with self._lock:
            if first not in self._loaded:
                from tokenizers import Tokenizer

                described = json.loads(self._reload().json_text)
                described.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
                if not first:
                    _without_first_blank(described.get("pre_tokenizer"))
                self._loaded[first] = Tokenizer.from_str(json.dumps(described))
            return self._loaded[first]


def _without_first_blank(step: dict[str, Any] | None) -> None:
    """Turns off the blank that a text's very beginning gets, and no other part of it."""
    if step is None:
        return
    for one in step.get("pretokenizers") or ():
        _without_first_blank(one)
    if step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first":
        step["prepend_scheme"] = "never"
