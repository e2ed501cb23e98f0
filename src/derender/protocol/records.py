"""The records of a stream of server-sent events or JSON lines, found in bytes as they come."""

from __future__ import annotations

DONE = b"[DONE]"
"""The record that ends a stream of events."""


class RecordTooLarge(Exception):
    """A line has more bytes than a record may have."""


class RecordReader:
    """`push` bytes, get the records that are whole: the data of events, or lines of JSON.

    Comments, blank lines and other fields of an event are no records. `max_bytes` bounds what is held of a line that
    has not ended.
    """

    __slots__ = ("_held", "_max_bytes")

    def __init__(self, *, max_bytes: int) -> None:
        self._held = bytearray()
        self._max_bytes = max_bytes

    def push(self, data: bytes) -> list[bytes]:
        """The records that end in `data`. Raises `RecordTooLarge`."""
        held = self._held
        records: list[bytes] = []
        if b"\n" in data:
            if held:
                held += data
                *lines, rest = bytes(held).split(b"\n")
                held.clear()
            else:
                *lines, rest = data.split(b"\n")
            held += rest
            records += [record for line in lines if line and (record := _record(line))]
        else:
            held += data
        if len(held) > self._max_bytes:
            raise RecordTooLarge
        return records

    def finish(self) -> bytes:
        """The record of a last line without an end; empty where there is none."""
        return _record(bytes(self._held))


def _record(line: bytes) -> bytes:
    line = line.strip()
    if line.startswith(b"data:"):
        return line[5:].strip()
    return line if line.startswith((b"{", b"[")) else b""
