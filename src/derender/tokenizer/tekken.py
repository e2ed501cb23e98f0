"""tekken.json, Mistral's own tokenizer file, as a tokenizer.json: byte ranks after a block of special tokens.

The first `default_num_special_tokens` ids are the special tokens; those that the file does not name are
`<SPECIAL_n>`. The rank r of the vocabulary is the id r + that number, and ranks past `default_vocab_size` are not used.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import msgspec

from derender.tokenizer.byte_level import added_token, frame, ranks_as_tree
from derender.tokenizer.files import TokenizerBroken

# fmt: off
_UNNAMED = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)
# fmt: on
"""The special tokens of files that list none (versions up to v7)."""
_OLD_VERSIONS = ("v1", "v2", "v3", "v7")
_MOST_SPECIAL = 1 << 16


class _Token(msgspec.Struct):
    rank: int
    token_bytes: str


class _Special(msgspec.Struct):
    rank: int
    token_str: str


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int
    version: str = ""


class _File(msgspec.Struct):
    config: _Config
    vocab: list[_Token]
    special_tokens: list[_Special] | None = None


_decoder = msgspec.json.Decoder(_File)
CONFIG = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
"""What the family's special tokens are called; each only where the file has it."""


def tekken_tree(text: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tree of a tokenizer.json and the tokenizer_config of a tekken.json. Raises `TokenizerBroken`."""
    try:
        file = _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise TokenizerBroken(f"tekken.json cannot be read: {error}") from None
    config = file.config
    room = config.default_num_special_tokens
    specials = _special_tokens(file)
    ranks: dict[bytes, int] = {}
    try:
        for token in file.vocab:
            if token.rank < config.default_vocab_size - room:
                ranks[b64decode(token.token_bytes, validate=True)] = token.rank
    except ValueError:  # binascii.Error, and a bare one for what is not ASCII
        raise TokenizerBroken(f"tekken.json: the token of rank {token.rank} is no base64") from None
    if len(ranks) != config.default_vocab_size - room or set(ranks.values()) != set(range(len(ranks))):
        raise TokenizerBroken(
            f"tekken.json: its vocabulary is not the {config.default_vocab_size - room} ranks it says"
        )
    ids = {text: number for number, text in enumerate(specials)}
    bos = ids.get("<s>")
    tree = ranks_as_tree(
        ranks,
        patterns=[config.pattern],
        added_tokens=[added_token(number, text) for number, text in enumerate(specials)],
        first_id=room,
        frame=None if bos is None else frame(before=[(bos, "<s>")]),
    )
    return tree, {key: text for key, text in CONFIG.items() if text in ids}


def _special_tokens(file: _File) -> list[str]:
    """The spelling of every id below the vocabulary."""
    room = file.config.default_num_special_tokens
    listed = file.special_tokens
    if listed is None:
        if file.config.version not in _OLD_VERSIONS:
            raise TokenizerBroken(f"tekken.json of version {file.config.version} lists no special_tokens")
        listed = [_Special(rank, text) for rank, text in enumerate(_UNNAMED)]
    if not 0 < room <= file.config.default_vocab_size or len(listed) > room:
        raise TokenizerBroken(f"tekken.json: {len(listed)} special tokens in a room for {room}")
    if room > _MOST_SPECIAL:
        raise TokenizerBroken(f"tekken.json: room for {room} special tokens; at most {_MOST_SPECIAL} are known")
    named = {token.rank: token.token_str for token in listed}
    texts = [named.get(rank, f"<SPECIAL_{rank}>") for rank in range(room)]
    if len(named) != len(listed) or len(set(texts)) != room or not all(0 <= rank < room for rank in named):
        raise TokenizerBroken("tekken.json: its special tokens have the same spelling or rank twice")
    return texts
