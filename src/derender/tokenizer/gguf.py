"""Read the metadata of a GGUF file: its keys and values, never its tensors.

The layout is the public one of ggml (docs/gguf.md in ggml-org/ggml): magic, version, number of tensors, number of
pairs, then the pairs; integers are little endian, a text is a 64-bit length and its UTF-8. Versions 2 and 3 are
read. A file may be hostile: every size is held against what is left of the file and against a limit before memory is
taken for it.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any

MAX_PAIRS = 1 << 16
"""Pairs in a file; real files have fewer than a hundred."""
MAX_ITEMS = 1 << 22
"""Items of all arrays together; the largest vocabularies known need 1.3 million."""
MAX_TEXT_BYTES = 1 << 28
"""Bytes of all texts together; the largest vocabularies known need 16 million."""
MAX_KEY_BYTES = (1 << 16) - 1
"""Bytes of a key, from the description of the format."""

_MAGIC = b"GGUF"
_HEADER = struct.Struct("<4sIQQ")
_TYPE = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_ARRAY = struct.Struct("<IQ")
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_BOOL, _TEXT, _LIST = 7, 8, 9
_SMALLEST_PAIR = _LENGTH.size + _TYPE.size + 1


class GgufBroken(ValueError):
    """The file is not a GGUF file that can be read; the message says why in one line."""


def read_gguf_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """All metadata of a GGUF file, in the order of the file.

    Numbers become int or float, flags bool, texts str, arrays lists of these.

    Raises GgufBroken where the file is no GGUF file, is cut short, is of another version or byte order, or states
    sizes that cannot be; OSError where it cannot be read.
    """
    name = os.fspath(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEADER.size)
        if head[:4] != _MAGIC:
            raise GgufBroken(f"{name} is not a GGUF file: it starts with {head[:4]!r}")
        if len(head) < _HEADER.size:
            raise GgufBroken(f"{name} is truncated: it ends at byte {size}, inside the header")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(name, data, size).pairs()


class _Reader:
    """A cursor over the mapped file, and what it may still take."""

    def __init__(self, name: str, data: mmap.mmap, size: int) -> None:
        self._name = name
        self._data = data
        self._size = size
        self._at = 0
        self._items_left = MAX_ITEMS
        self._text_left = MAX_TEXT_BYTES

    def pairs(self) -> dict[str, Any]:
        _, version, _, count = self._take(_HEADER, "the header")
        if version & 0xFFFF == 0 and version:
            raise GgufBroken(f"{self._name} is a big-endian GGUF file; only little-endian files are supported")
        if version not in (2, 3):
            raise GgufBroken(f"{self._name} is of GGUF version {version}; versions 2 and 3 are supported")
        if count <= MAX_PAIRS and count * _SMALLEST_PAIR > self._size - self._at:
            raise self._cut("the metadata")
        if count > MAX_PAIRS:
            raise GgufBroken(f"{self._name} states an absurd number of metadata pairs: {count}")
        metadata: dict[str, Any] = {}
        for _ in range(count):
            key = self._text("a key", MAX_KEY_BYTES)
            if key in metadata:
                raise GgufBroken(f"{self._name} has the key {key} twice")
            (kind,) = self._take(_TYPE, key)
            metadata[key] = self._value(kind, key)
        return metadata

    def _value(self, kind: int, key: str) -> Any:
        if kind == _TEXT:
            return self._text(key, MAX_TEXT_BYTES)
        if kind == _LIST:
            return self._array(key)
        return self._numbers(kind, 1, key)[0]

    def _array(self, key: str) -> list[Any]:
        kind, count = self._take(_ARRAY, key)
        if kind == _LIST:
            raise GgufBroken(f"{self._name} nests an array in the array {key}, which is not supported")
        if count > self._items_left:
            raise GgufBroken(f"{self._name} states an absurd number of items in {key}: {count}")
        self._items_left -= count
        return self._texts(count, key) if kind == _TEXT else self._numbers(kind, count, key)

    def _numbers(self, kind: int, count: int, key: str) -> list[Any]:
        if kind == _BOOL:
            flags = self._numbers(0, count, key)
            if any(flag > 1 for flag in flags):
                raise GgufBroken(f"{self._name} has a flag in {key} that is neither 0 nor 1")
            return [flag == 1 for flag in flags]
        code = _NUMBERS.get(kind)
        if code is None:
            raise GgufBroken(f"{self._name} has a value of unknown type {kind} in {key}")
        return list(self._take(struct.Struct(f"<{count}{code}"), key))

    def _text(self, what: str, limit: int) -> str:
        (length,) = self._take(_LENGTH, what)
        if length > min(limit, self._text_left):
            raise GgufBroken(f"{self._name} states an absurd length of {what}: {length} bytes")
        self._text_left -= length
        start, self._at = self._at, self._at + length
        if self._at > self._size:
            raise self._cut(what)
        return self._decode(self._data[start : self._at], what)

    def _texts(self, count: int, key: str) -> list[str]:
        """The texts of an array. A vocabulary has half a million, so this loop calls nothing of ours."""
        if count * _LENGTH.size > self._size - self._at:
            raise self._cut(key)
        data, at, size = self._data, self._at, self._size
        end = min(size, at + count * _LENGTH.size + self._text_left)
        unpack = _LENGTH.unpack_from
        raw: list[bytes] = []
        for _ in range(count):
            start = at + 8
            if start > end:
                break
            at = start + unpack(data, at)[0]
            if at > end:
                break
            raw.append(data[start:at])
        if len(raw) < count:
            if at > size or end == size:
                raise self._cut(key)
            raise GgufBroken(f"{self._name} states an absurd length of {key}: more than {self._text_left} bytes")
        self._text_left -= at - self._at - count * _LENGTH.size
        self._at = at
        try:
            return [text.decode() for text in raw]
        except UnicodeDecodeError:
            return [self._decode(text, key) for text in raw]

    def _decode(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise GgufBroken(f"{self._name} has a text in {what} that is not UTF-8: {raw[:40]!r}") from error

    def _take(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        start, self._at = self._at, self._at + layout.size
        if self._at > self._size:
            raise self._cut(what)
        return layout.unpack_from(self._data, start)

    def _cut(self, what: str) -> GgufBroken:
        return GgufBroken(f"{self._name} is truncated: it ends at byte {self._size}, inside {what}")
