"""A tokenizer's description, as every kind of vocabulary file ends: a tokenizer.json and a tokenizer_config.

The former is the truth for ids; of the latter the special tokens, their flags and added tokens that the former lacks
are taken, as transformers does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from derender.model_files import LARGEST_VOCABULARY, FileRefused, is_there, read_bytes, read_json
from derender.tokenizer.options import NAMED_TOKENS, AddedToken, BadOption, added_tokens, changed_parts

__all__ = ["AddedToken", "TokenizerBroken", "TokenizerSpec", "read_json_object", "tokenizer_spec"]


class TokenizerBroken(ValueError):
    """A tokenizer that cannot be loaded; one line says what is missing or wrong."""


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]
    type: str | None = None
    byte_fallback: bool | None = False


class _TokenizerJson(msgspec.Struct):
    model: _Model
    added_tokens: list[AddedToken] = []
    pre_tokenizer: dict[str, Any] | None = None
    post_processor: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None


class TokenizerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer's description, needed while it is loaded. `json_text` loads with `tokenizers` and fastokens.

    `reload` gives the same spec again: the text and the vocabulary are large, and wanted rarely after the load.
    `source`: the file that the vocabulary came from, and what it is. `others`: files that could have been it, too.
    `blank_first`: beginnings of a text before which one more "▁" goes, since the library leaves it out.
    """

    source: str = "tokenizer.json"
    others: tuple[str, ...] = ()
    blank_first: tuple[str, ...] = ()

    json_text: bytes
    reload: Callable[[], TokenizerSpec]
    vocab: Mapping[str, int]
    added_tokens: tuple[AddedToken, ...]
    decoder: dict[str, Any] | None
    model_type: str
    config: dict[str, Any]
    special_tokens: Mapping[str, str]


_decode_json = msgspec.json.Decoder(_TokenizerJson)


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, {} where there is no file. Raises `TokenizerBroken`."""
    try:
        value = read_json(path) if is_there(path) else {}
    except FileRefused as error:
        raise TokenizerBroken(str(error)) from None
    if not isinstance(value, dict):
        raise TokenizerBroken(f"{path} does not hold a JSON object")
    return value


def read_vocabulary_file(path: Path, *, largest: int = LARGEST_VOCABULARY) -> bytes:
    """A file of at most `largest` bytes. Raises `TokenizerBroken`."""
    try:
        return read_bytes(path, largest=largest)
    except FileRefused as error:
        raise TokenizerBroken(str(error)) from None


def tokenizer_spec(
    read: Callable[[], bytes],
    *,
    config: dict[str, Any],
    source: str = "tokenizer.json",
    blank_first: tuple[str, ...] = (),
    listed_apart: Mapping[str, int] | None = None,
    model_type: str | None = None,
) -> TokenizerSpec:
    """A spec from what reads a tokenizer.json and from a tokenizer_config. `listed_apart`: added_tokens.json;
    `model_type`: of config.json, "" for none, where the class in the config counts. Raises `TokenizerBroken`."""
    json_text = read()
    try:
        parsed = _decode_json.decode(json_text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise TokenizerBroken(f"tokenizer.json cannot be read: {error}") from None
    _check_frame(parsed.post_processor)
    vocab = parsed.model.vocab
    if isinstance(vocab, list):
        vocab = {token: i for i, (token, _) in enumerate(vocab)}
    try:
        added = added_tokens(parsed.added_tokens, config=config, vocab=vocab, listed_apart=listed_apart or {})
    except BadOption as error:
        raise TokenizerBroken(str(error)) from None
    parts: dict[str, Any] = {} if added is None else {"added_tokens": added}
    if model_type is not None:
        parts |= changed_parts(
            config,
            model_type=model_type,
            byte_fallback=bool(parsed.model.byte_fallback),
            pre_tokenizer=parsed.pre_tokenizer,
        )
    if parts:
        whole = msgspec.json.decode(json_text, type=dict[str, msgspec.Raw])  # the vocabulary stays the text it is
        whole |= {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in parts.items()}
        json_text = msgspec.json.encode(whole)
    return TokenizerSpec(
        json_text=json_text,
        reload=lambda: tokenizer_spec(
            read,
            config=config,
            source=source,
            blank_first=blank_first,
            listed_apart=listed_apart,
            model_type=model_type,
        ),
        source=source,
        blank_first=blank_first,
        vocab=vocab,
        added_tokens=tuple(parsed.added_tokens) if added is None else added,
        decoder=parts.get("decoder", parsed.decoder),
        model_type=parsed.model.type or "BPE",
        config=config,
        special_tokens=_named_tokens(config),
    )


def _check_frame(step: Any) -> None:
    """Raises `TokenizerBroken` for a token that is to stand around texts and that the file says no id of: the library
    would look for it with each text, and panic."""
    if not isinstance(step, dict):
        return
    inner = step.get("processors")
    for one in inner if isinstance(inner, list) else ():
        _check_frame(one)
    known = step.get("special_tokens")
    if not isinstance(known, dict):
        return
    for name in ("single", "pair"):
        parts = step.get(name)
        for part in parts if isinstance(parts, list) else ():
            token = part.get("SpecialToken") if isinstance(part, dict) else None
            if isinstance(token, dict) and isinstance(token.get("id"), str) and token["id"] not in known:
                raise TokenizerBroken(
                    f"tokenizer.json: post_processor.{name} names {token['id']!r}, and its special_tokens lack it"
                )


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
