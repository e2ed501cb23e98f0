"""A reader of protocol buffers' wire format: as much as sentencepiece's model files need."""

from __future__ import annotations

import struct
from collections.abc import Iterator

Value = int | float | bytes


class ProtobufBroken(ValueError):
    """Bytes that are no message."""


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of one message in their order: (number, value). A varint is an int, a 32-bit value a float, text and
    messages are bytes; 64-bit values are ints. Raises `ProtobufBroken`."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        value: Value
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif wire == 5:
            value, at = struct.unpack_from("<f", data, at)[0] if at + 4 <= end else 0.0, at + 4
        elif wire == 1:
            value, at = int.from_bytes(data[at : at + 8], "little"), at + 8
        else:
            raise ProtobufBroken(f"unknown wire type {wire}")
        if number == 0 or at > end:
            raise ProtobufBroken("cut short")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
    raise ProtobufBroken("cut short")


def signed(value: Value) -> int:
    """An int32 as it was written: negative ones take ten bytes on the wire."""
    number = int(value)
    return number - (1 << 64) if number >= 1 << 63 else number
