"""The reader of GGUF metadata: files written here by hand, whole, cut short and hostile."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derender.tokenizer.gguf import GgufBroken, read_gguf_metadata

U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def payload(kind: int, value: Any) -> bytes:
    if kind == TEXT:
        return text(value)
    if kind == ARRAY:
        item, values = value
        return struct.pack("<IQ", item, len(values)) + b"".join(payload(item, one) for one in values)
    return struct.pack("<" + CODES[kind], value)


def pair(key: str | bytes, kind: int, value: Any) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload(kind, value)


def gguf(*pairs: bytes, version: int = 3, tensors: int = 0, count: int | None = None, after: bytes = b"") -> bytes:
    header = struct.pack("<4sIQQ", b"GGUF", version, tensors, len(pairs) if count is None else count)
    return header + b"".join(pairs) + after


def read(folder: Path, data: bytes) -> dict[str, Any]:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return read_gguf_metadata(path)


EVERY_KIND = gguf(
    pair("u8", U8, 255),
    pair("i8", I8, -128),
    pair("u16", U16, 65535),
    pair("i16", I16, -32768),
    pair("u32", U32, 4294967295),
    pair("i32", I32, -2147483648),
    pair("f32", F32, 0.5),
    pair("yes", BOOL, 1),
    pair("no", BOOL, 0),
    pair("text", TEXT, "▁ż\x00 🙂"),
    pair("empty", TEXT, ""),
    pair("u64", U64, 2**64 - 1),
    pair("i64", I64, -(2**63)),
    pair("f64", F64, -1e300),
    pair("texts", ARRAY, (TEXT, ["", "Ġthe", "🙂"])),
    pair("floats", ARRAY, (F32, [-1.5, 0.0])),
    pair("flags", ARRAY, (BOOL, [1, 0])),
    pair("none", ARRAY, (TEXT, [])),
)


@pytest.mark.parametrize("version", [2, 3])
def test_every_kind_of_value_is_read(tmp_path: Path, version: int) -> None:
    data = EVERY_KIND[:4] + struct.pack("<I", version) + EVERY_KIND[8:]
    assert read(tmp_path, data) == {
        "u8": 255,
        "i8": -128,
        "u16": 65535,
        "i16": -32768,
        "u32": 4294967295,
        "i32": -2147483648,
        "f32": 0.5,
        "yes": True,
        "no": False,
        "text": "▁ż\x00 🙂",
        "empty": "",
        "u64": 18446744073709551615,
        "i64": -9223372036854775808,
        "f64": -1e300,
        "texts": ["", "Ġthe", "🙂"],
        "floats": [-1.5, 0.0],
        "flags": [True, False],
        "none": [],
    }
    assert read(tmp_path, data)["yes"] is True


def test_what_follows_the_metadata_is_not_looked_at(tmp_path: Path) -> None:
    data = gguf(pair("a", U8, 1), tensors=2**64 - 1, after=b"\xff" * 64)
    assert read(tmp_path, data) == {"a": 1}


def test_a_path_may_be_a_string(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf(pair("a", U8, 1)))
    assert read_gguf_metadata(str(tmp_path / "m.gguf")) == {"a": 1}


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_gguf_metadata(tmp_path / "none.gguf")


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    for length in range(len(EVERY_KIND)):
        with pytest.raises(GgufBroken) as caught:
            read(tmp_path, EVERY_KIND[:length])
        assert "\n" not in str(caught.value)
        if length >= 24:
            # Where the number of pairs cannot fit into what is left, that is said instead.
            assert f"byte {length}" in str(caught.value) or "absurd" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a GGUF file"),
        (b"PK\x03\x04" + bytes(40), "is not a GGUF file: it starts with b'PK"),
        (b"GGUF\x03\x00", "is truncated: it ends at byte 6, inside the header"),
        (gguf(version=1), "of GGUF version 1; versions 2 and 3"),
        (gguf(version=4), "of GGUF version 4; versions 2 and 3"),
        (gguf(version=3 << 24), "big-endian"),
        (gguf(count=2**63), "absurd number of metadata pairs: 9223372036854775808"),
        (gguf(count=50), "is truncated: it ends at byte 24, inside the metadata"),
        (gguf(pair("a", U8, 1), pair("a", U8, 2)), "has the key a twice"),
        (gguf(pair("a", BOOL, 2)), "a flag in a that is neither 0 nor 1"),
        (gguf(text("a") + struct.pack("<IQ", 13, 0)), "unknown type 13 in a"),
        (gguf(text("a") + struct.pack("<IIQQ", ARRAY, 99, 1, 0)), "unknown type 99 in a"),
        (gguf(text("a") + struct.pack("<IIQQ", ARRAY, ARRAY, 1, 0)), "nests an array in the array a"),
        (gguf(text("a") + struct.pack("<IIQ", ARRAY, U64, 2**40)), "absurd number of items in a: 1099511627776"),
        (gguf(text("a") + struct.pack("<IIQ", ARRAY, TEXT, 2**64 - 1)), "absurd number of items in a"),
        (gguf(text("a") + struct.pack("<IIQ", ARRAY, TEXT, 1000)), "is truncated"),
        (gguf(text("a") + struct.pack("<IIQ", ARRAY, U64, 1000)), "is truncated"),
        (gguf(text("a") + struct.pack("<IQ", TEXT, 2**63)), "absurd length of a: 9223372036854775808 bytes"),
        (gguf(text("a") + struct.pack("<IQ", TEXT, 1000)), "is truncated"),
        (gguf(struct.pack("<QI", 2**40, 0) + bytes(8)), "absurd length of a key"),
        (gguf(pair("a", TEXT, b"\xff\xfe")), "a text in a that is not UTF-8"),
        (gguf(pair("a", ARRAY, (TEXT, ["b", b"\xff"]))), "a text in a that is not UTF-8"),
        (gguf(pair(b"\xc3", U8, 1)), "a text in a key that is not UTF-8"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(GgufBroken) as caught:
        read(tmp_path, data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_text_inside_an_array_may_not_reach_past_the_file(tmp_path: Path) -> None:
    array = struct.pack("<IQ", TEXT, 3) + text("ab") + struct.pack("<Q", 2**63) + bytes(32)
    with pytest.raises(GgufBroken, match="truncated"):
        read(tmp_path, gguf(text("a") + struct.pack("<I", ARRAY) + array))


def test_arrays_share_one_limit(tmp_path: Path) -> None:
    """Many arrays that are each within the limit may not take more memory together."""
    arrays = (text(f"k{number}") + struct.pack("<IIQ", ARRAY, U8, 1 << 21) + bytes(1 << 21) for number in range(3))
    with pytest.raises(GgufBroken, match="absurd number of items in k2"):
        read(tmp_path, gguf(*arrays))


@pytest.mark.parametrize("kind", [U64, TEXT, F64, BOOL])
def test_no_memory_is_taken_for_what_a_file_only_claims(tmp_path: Path, kind: int) -> None:
    data = gguf(text("a") + struct.pack("<IIQ", ARRAY, kind, (1 << 22) - 1) + bytes(256))
    tracemalloc.start()
    try:
        with pytest.raises(GgufBroken):
            read(tmp_path, data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(8, len(EVERY_KIND) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(EVERY_KIND)
    for at, value in changes:
        data[at] = value
    with contextlib.suppress(GgufBroken):
        assert isinstance(read(tmp_path_factory.getbasetemp(), bytes(data)), dict)
