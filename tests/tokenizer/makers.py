"""Small vocabulary files of every kind: the 256 bytes, a few joined tokens, some special ones."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

JOINED = (b" t", b" th", b"he", b" the", b"ll", b"\n\n", "é".encode())
TEMPLATE = "{% for m in messages %}<s>[INST]{{ m.content }}[/INST]{% endfor %}"
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def tokens() -> list[bytes]:
    """By rank."""
    return [*(bytes((byte,)) for byte in range(256)), *JOINED]


def rank_file(more: Iterable[bytes] = ()) -> bytes:
    """tiktoken's format."""
    return b"".join(b64encode(token) + b" %d\n" % rank for rank, token in enumerate([*tokens(), *more]))


def tekken(
    *, room: int = 8, special: list[tuple[int, str]] | None = None, version: str = "v11", **config: Any
) -> dict[str, Any]:
    """A tekken.json with three ranks more than it uses. `special`: (rank, text)."""
    if special is None:
        special = [(0, "<unk>"), (1, "<s>"), (2, "</s>"), (3, "[INST]"), (4, "[/INST]")]
    ranks = [*tokens(), b"x1", b"x2", b"x3"]
    return {
        "config": {
            "pattern": SPLIT,
            "num_vocab_tokens": len(ranks),
            "default_vocab_size": room + len(ranks) - 3,
            "default_num_special_tokens": room,
            "version": version,
            **config,
        },
        "vocab": [
            {"rank": rank, "token_bytes": b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(ranks)
        ],
        "special_tokens": [{"rank": rank, "token_str": text, "is_control": True} for rank, text in special],
    }


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    return _varint(number << 3) + _varint(value)


PIECES: dict[str, float] = {"▁": -9.0, "a": -8.0, "b": -7.0, "ab": -2.0, "▁a": -1.0, "ba": -3.0, "bab": -4.0}


def sentencepiece(
    pieces: Mapping[str, float] | None = None,
    *,
    kinds: Mapping[str, int] | None = None,
    byte_fallback: bool = True,
    trainer: Mapping[int, int] | None = None,
    normalizer: Mapping[int, int] | None = None,
) -> bytes:
    """A model file: <unk>, <s>, </s>, the 256 bytes where there is byte fallback, and the pieces. `kinds`: by text;
    `trainer` and `normalizer`: fields by number over BPE and a dummy prefix with blanks kept."""
    rows = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    rows += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)] if byte_fallback else []
    rows += [
        (text, score, (kinds or {}).get(text, 1)) for text, score in (PIECES if pieces is None else pieces).items()
    ]
    body = b"".join(
        _field(1, _field(1, text.encode()) + _field(2, score) + _field(3, kind)) for text, score, kind in rows
    )
    spec = {3: 2, 35: int(byte_fallback), 43: -1, **(trainer or {})}
    normal = {3: 1, 4: 0, 5: 1, **(normalizer or {})}
    body += _field(2, b"".join(_field(number, value) for number, value in spec.items()))
    return body + _field(3, b"".join(_field(number, value) for number, value in normal.items()))


def write(directory: Path, **files: bytes | dict[str, Any] | str) -> Path:
    """Files by name, with `__` for the dot."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode() if isinstance(content, str) else None
        path = directory / name.replace("__", ".")
        path.write_bytes(json.dumps(content).encode() if data is None else data)
    return directory
