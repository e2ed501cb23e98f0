"""What a tokenizer_config.json changes in a tokenizer.json, as transformers 5 reads the two.

With a tokenizer.json, `add_bos_token` and `add_eos_token` change nothing: its post-processor says what frames a text.
Tokens that the config lists or names and the file lacks are added, and flags that the config states count. Of the
classes that build their tokenizer anew from the file's vocabulary, those whose options change ids are followed:
LlamaTokenizer (`legacy`, `add_prefix_space`) and GPT2Tokenizer (`add_prefix_space`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from derender.tokenizer.spaced import metaspace, spaced_decoder

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class AddedToken(msgspec.Struct, frozen=True):
    """A token that is matched in text before anything else."""

    id: int
    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class BadOption(ValueError):
    """A value that is no such option; one line."""


def added_tokens(
    present: Iterable[AddedToken],
    *,
    config: Mapping[str, Any],
    vocab: Mapping[str, int],
    listed_apart: Mapping[str, int],
) -> tuple[AddedToken, ...] | None:
    """All added tokens by what the file has (`present`), the config says, and added_tokens.json lists
    (`listed_apart`); None where that is what the file has. Raises `BadOption`."""
    tokens = {token.content: token for token in present}
    before = dict(tokens)
    for token in [*_listed(config), *_apart(listed_apart, config)]:
        old = tokens.get(token.content)
        if old is not None and old.id == token.id:
            # What was special stays so for the library, whatever is said later.
            token = msgspec.structs.replace(token, special=token.special or old.special)
        tokens[token.content] = token
    for value in _named(config):
        content = value if isinstance(value, str) else value["content"]
        if content and content not in tokens:
            number = vocab.get(content)
            token = AddedToken(_next_id(tokens.values(), vocab) if number is None else number, content, special=True)
            if not isinstance(value, str):
                token = msgspec.structs.replace(token, **{flag: bool(value.get(flag)) for flag in _FLAGS[:4]})
            tokens[content] = token
    return None if tokens == before else tuple(sorted(tokens.values(), key=lambda token: token.id))


def _next_id(tokens: Iterable[AddedToken], vocab: Mapping[str, int]) -> int:
    highest = max((token.id for token in tokens), default=-1)
    return highest + 1 if highest >= len(vocab) else len(vocab)


def _listed(config: Mapping[str, Any]) -> list[AddedToken]:
    """`added_tokens_decoder`, by id."""
    listed = config.get("added_tokens_decoder")
    found = []
    for key, value in listed.items() if isinstance(listed, dict) else ():
        if isinstance(value, dict):
            try:
                found.append(msgspec.convert({**value, "id": int(key)}, AddedToken))
            except (ValueError, msgspec.ValidationError) as error:
                raise BadOption(f"added_tokens_decoder.{key} is not an added token: {error}") from None
    return sorted(found, key=lambda token: token.id)


def _apart(listed: Mapping[str, int], config: Mapping[str, Any]) -> list[AddedToken]:
    """added_tokens.json, which counts where there is no `added_tokens_decoder`."""
    if isinstance(config.get("added_tokens_decoder"), dict):
        return []
    special = {value if isinstance(value, str) else value["content"] for value in _named(config)}
    return [
        AddedToken(number, text, special=text in special, normalized=text not in special)
        for text, number in sorted(listed.items(), key=lambda item: item[1])
        if isinstance(number, int)
    ]


def _named(config: Mapping[str, Any]) -> list[str | dict[str, Any]]:
    """The special tokens that the config names, in the order in which transformers adds them."""
    named = [config.get(key) for key in NAMED_TOKENS]
    named += [value for key, value in config.items() if key.endswith("_token") and key not in NAMED_TOKENS]
    extra = config.get("extra_special_tokens")
    if isinstance(extra, dict):
        named += extra.values()
    elif not extra:
        extra = config.get("additional_special_tokens")
    named += extra if isinstance(extra, list) else []
    return [
        value
        for value in named
        if isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("content"), str))
    ]


def changed_parts(
    config: Mapping[str, Any], *, model_type: str, byte_fallback: bool, pre_tokenizer: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Parts of a tokenizer.json that the class in the config builds anew; {} for most.

    `model_type`: of config.json; transformers follows the class LlamaTokenizer for Llama's own models only.
    """
    named = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    prefix = config.get("add_prefix_space")
    if named == "LlamaTokenizer" and byte_fallback and model_type in ("", "llama"):
        prefix = True if prefix is None else bool(prefix)
        scheme = ("always" if config.get("legacy") else "first") if prefix else "never"
        return {
            "normalizer": None,
            "pre_tokenizer": metaspace(scheme, split=False),
            "decoder": spaced_decoder(byte_fallback=True, strips=prefix),
        }
    own = pre_tokenizer or {}
    if named == "GPT2Tokenizer" and own.get("type") == "ByteLevel" and bool(prefix) != own.get("add_prefix_space"):
        return {"pre_tokenizer": {**own, "add_prefix_space": bool(prefix)}}
    return {}
