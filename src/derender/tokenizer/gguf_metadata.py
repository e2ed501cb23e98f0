"""The tokens of a GGUF file and the values of its metadata, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Values of tokenizer.ggml.token_type."""

_T = TypeVar("_T")


class GgufUnsupported(ValueError):
    """No exact tokenizer can be made from this metadata; the message names the key in one line."""


@dataclass(frozen=True)
class GgufTokens:
    """The tokens of a file and their types; the index is the id."""

    texts: list[str]
    types: list[int]
    vocabulary: dict[str, int]
    """Ids by text, without padding."""

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> GgufTokens:
        """Raises GgufUnsupported."""
        texts = get_list(metadata, "tokenizer.ggml.tokens", str)
        types = get_list(metadata, "tokenizer.ggml.token_type", int)
        if not texts or len(types) != len(texts):
            raise GgufUnsupported(f"tokenizer.ggml.token_type has {len(types)} items for {len(texts)} tokens")
        # An empty text cannot be told from another one, nor ever be found; llama.cpp names it like this.
        texts = [text or f"[EMPTY_{number}]" for number, text in enumerate(texts)]
        vocabulary = {text: number for number, text in enumerate(texts)}
        if len(vocabulary) != len(texts):
            raise GgufUnsupported("tokenizer.ggml.tokens holds the same token twice")
        # Rows that only fill up the embedding: the converters write "[PAD<id>]" there, as unused, user-defined or
        # unknown. The model never saw them, and the same text in a prompt is not that token.
        for number, kind in enumerate(types):
            if kind != NORMAL and texts[number] == f"[PAD{number}]":
                del vocabulary[texts[number]]
        return cls(texts, types, vocabulary)

    def added(self, *, strips_right: bool) -> list[dict[str, Any]]:
        """The tokens that are found in the text before it is cut; they may take the white space after them along."""
        return [
            {
                "id": number,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": strips_right and text not in ("<unk>", "<s>", "<|endoftext|>"),
                "normalized": False,
                "special": self.types[number] != USER_DEFINED,
            }
            for text, number in self.vocabulary.items()
            if self.types[number] in (UNKNOWN, CONTROL, USER_DEFINED)
        ]


def get_value(metadata: Mapping[str, Any], key: str, kind: type[_T]) -> _T | None:
    """A value of one type, None where it is missing. Raises GgufUnsupported."""
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise GgufUnsupported(f"{key} is not of type {kind.__name__}")
    return value


def get_list(metadata: Mapping[str, Any], key: str, kind: type | tuple[type, ...], *, needed: bool = True) -> list[Any]:
    """An array of one type, [] for a missing one that is not `needed`. Raises GgufUnsupported."""
    values = metadata.get(key)
    if values is None and not needed:
        return []
    if values is None:
        raise GgufUnsupported(f"{key} is missing")
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise GgufUnsupported(f"{key} is not an array of the right type")
    return values


def or_default(value: _T | None, default: _T) -> _T:
    """A value, or what stands for a missing one."""
    return default if value is None else value
