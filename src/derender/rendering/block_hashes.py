"""Hashes of a prompt's blocks of tokens, as vLLM's prefix cache names them.

A router that knows which engine has which blocks (from the engines' KV events) finds the best one for a prompt by them.
The chain, its seed and its two hash functions are those of vLLM 0.32 (`--prefix-caching-hash-algo`): a block's hash is
made of the one before it, its ids, and in the first block the cache salt.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from derender.protocol.common import BlockHashOptions
from derender.protocol.errors import BadRequest
from derender.protocol.generate import BlockHashes

MAX_HASHES = 1 << 18
"""Hashes in one answer. Each takes 1 to 2 µs and some 180 bytes, in memory and in the answer."""

_PICKLE_PROTOCOL = 5  # Python's highest since 3.8


def block_hashes(ids: Sequence[int], *, options: BlockHashOptions, cache_salt: str | None = None) -> BlockHashes:
    """The hashes of all whole blocks of `ids`, in order, in hexadecimal digits. Raises BadRequest for more than
    `MAX_HASHES`."""
    digest, size = _DIGESTS[options.algorithm], options.block_size
    check_hashes(len(ids) // size)
    parent = digest(options.seed)
    hashes = []
    extra = (("cache_salt", cache_salt),) if cache_salt else None
    for start in range(0, len(ids) - size + 1, size):
        parent = digest((parent, tuple(ids[start : start + size]), extra))
        hashes.append(parent.hex())
        extra = None
    return BlockHashes(block_size=size, algorithm=options.algorithm, hashes=hashes)


def check_hashes(count: int) -> None:
    """Raises BadRequest for more hashes than an answer may have."""
    if count > MAX_HASHES:
        raise BadRequest(
            f"return_block_hashes: there are more than {MAX_HASHES} blocks; use a larger block_size",
            param="return_block_hashes.block_size",
        )


def _sha256(value: Any) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=_PICKLE_PROTOCOL)).digest()


def _sha256_cbor(value: Any) -> bytes:
    parts: list[bytes] = []
    _cbor(value, parts)
    return hashlib.sha256(b"".join(parts)).digest()


_DIGESTS: dict[str, Callable[[Any], bytes]] = {"sha256": _sha256, "sha256_cbor": _sha256_cbor}


def _cbor(value: Any, parts: list[bytes]) -> None:
    """The value in canonical CBOR (RFC 8949, section 4.2), of the kinds that stand in a block."""
    kind = type(value)
    if kind is int:
        parts.append(_head(0, value))
    elif kind is bytes:
        parts += (_head(2, len(value)), value)
    elif kind is tuple:
        parts.append(_head(4, len(value)))
        for one in value:
            if type(one) is int:  # the ids
                parts.append(_head(0, one))
            else:
                _cbor(one, parts)
    elif kind is str:
        data = value.encode()
        parts += (_head(3, len(data)), data)
    else:
        parts.append(b"\xf6")


_byte, _two, _four, _eight = (Struct(f">B{code}").pack for code in "BHIQ")


def _head(major: int, number: int) -> bytes:
    """A CBOR head: three bits of the kind, and the shortest form of a number that is not negative."""
    kind = major << 5
    if number < 24:
        return bytes((kind | number,))
    if number < 1 << 8:
        return _byte(kind | 24, number)
    if number < 1 << 16:
        return _two(kind | 25, number)
    if number < 1 << 32:
        return _four(kind | 26, number)
    return _eight(kind | 27, number)
