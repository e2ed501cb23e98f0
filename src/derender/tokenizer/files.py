"""What a model's directory says of its tokenizer: tokenizer.json and tokenizer_config.json, read once.

`tokenizer.json` is the truth for ids; of `tokenizer_config.json` the special tokens, their flags and added tokens that
the former lacks are taken, as transformers does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec


class TokenizerBroken(ValueError):
    """A tokenizer that cannot be loaded; one line says what is missing or wrong."""


class AddedToken(msgspec.Struct, frozen=True):
    """A token that is matched in text before anything else."""

    id: int
    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]
    type: str | None = None
    byte_fallback: bool | None = False


class _TokenizerJson(msgspec.Struct):
    model: _Model
    added_tokens: list[AddedToken] = []
    decoder: dict[str, Any] | None = None


class TokenizerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer's description, needed while it is loaded. `json_text` loads with `tokenizers` and fastokens.

    `reload` gives the same spec again: the text and the vocabulary are large, and wanted rarely after the load.
    """

    json_text: bytes
    reload: Callable[[], TokenizerSpec]
    vocab: Mapping[str, int]
    added_tokens: tuple[AddedToken, ...]
    decoder: dict[str, Any] | None
    model_type: str
    config: dict[str, Any]
    special_tokens: Mapping[str, str]


_decode_json = msgspec.json.Decoder(_TokenizerJson)
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_tokenizer_directory(directory: str | os.PathLike[str]) -> TokenizerSpec:
    """The tokenizer of a Hugging Face directory. Raises `TokenizerBroken`."""
    folder = Path(directory)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerBroken(f"no tokenizer.json in {folder}")
    config = read_json_object(folder / "tokenizer_config.json")
    named = read_json_object(folder / "special_tokens_map.json")
    return tokenizer_spec(path.read_bytes, config={**named, **config})


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, {} where there is no file. Raises `TokenizerBroken`."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise TokenizerBroken(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise TokenizerBroken(f"{path} does not hold a JSON object")
    return value


def tokenizer_spec(read: Callable[[], bytes], *, config: dict[str, Any]) -> TokenizerSpec:
    """A spec from what reads a tokenizer.json and from a tokenizer_config. Raises `TokenizerBroken`."""
    try:
        json_text = read()
    except OSError as error:
        raise TokenizerBroken(f"tokenizer.json cannot be read: {error.strerror}") from None
    try:
        parsed = _decode_json.decode(json_text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise TokenizerBroken(f"tokenizer.json cannot be read: {error}") from None
    vocab = parsed.model.vocab
    if isinstance(vocab, list):
        vocab = {token: i for i, (token, _) in enumerate(vocab)}
    added = list(parsed.added_tokens)
    missing = _missing_added_tokens(config, {token.content for token in added})
    if missing:
        tree = json.loads(json_text)
        tree.setdefault("added_tokens", []).extend(msgspec.to_builtins(token) for token in missing)
        json_text = json.dumps(tree, ensure_ascii=False).encode("utf-8")
        added += missing
    return TokenizerSpec(
        json_text=json_text,
        reload=lambda: tokenizer_spec(read, config=config),
        vocab=vocab,
        added_tokens=tuple(added),
        decoder=parsed.decoder,
        model_type=parsed.model.type or "BPE",
        config=config,
        special_tokens=_named_tokens(config),
    )


def _missing_added_tokens(config: dict[str, Any], present: set[str]) -> list[AddedToken]:
    """Entries of `added_tokens_decoder` that tokenizer.json lacks, by id; transformers adds them too."""
    listed = config.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return []
    found = []
    for key, value in listed.items():
        if isinstance(value, dict) and value.get("content") not in present:
            try:
                found.append(msgspec.convert({**value, "id": int(key)}, AddedToken))
            except (ValueError, msgspec.ValidationError) as error:
                raise TokenizerBroken(f"added_tokens_decoder.{key} is not an added token: {error}") from None
    return sorted(found, key=lambda token: token.id)


def _named_tokens(config: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, …: the variables that a chat template may use."""
    named: dict[str, str] = {}
    for key in NAMED_TOKENS:
        value = config.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            named[key] = value
    extra = config.get("extra_special_tokens")
    if isinstance(extra, dict):
        named |= {key: value for key, value in extra.items() if isinstance(value, str)}
    return named
