"""Bodies that are wrong in one place, made from the types that decode them."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect as types

Step = str | int
Path = tuple[Step, ...]

SURROGATE = "\ud800"
"""Half of a pair: JSON can spell it, UTF-8 cannot."""

WRONG: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**32, 2**53, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308,
    math.nan, math.inf, -math.inf, "", "x", "\x00", "é" * 3, "x" * 5000, SURROGATE, "\udfff\ud800", "9" * 5000,
    [], [1], [[]], [None], ["", "a"], [SURROGATE], [-1, 2**70], {}, {"": 1}, {"a": {"b": [1]}}, {SURROGATE: 1},
    {"type": "text"}, {"type": "function", "function": {"name": ""}},
)  # fmt: skip
"""Values for any place."""


class Place(NamedTuple):
    """Somewhere in a body: the way there, and the type of what stands there."""

    path: Path
    type: types.Type


def places(type_: Any) -> Iterator[Place]:
    """Every place in bodies of a type: fields, items of lists, values of maps, as deep as its structs go."""
    yield from _below(types.type_info(type_), ())


def _below(kind: types.Type, path: Path) -> Iterator[Place]:
    yield Place(path, kind)
    for one in _options(kind):
        if isinstance(one, types.StructType):
            for number, field in enumerate(one.fields):
                yield from _below(field.type, (*path, number if one.array_like else field.encode_name))
        elif isinstance(one, types.ListType):
            yield from _below(one.item_type, (*path, 0))
        elif isinstance(one, types.DictType):
            yield from _below(one.value_type, (*path, "97"))


def _options(kind: types.Type) -> Sequence[types.Type]:
    return kind.types if isinstance(kind, types.UnionType) else (kind,)


def filled(kind: types.Type) -> Any:
    """The simplest value of a type that is not null where that can be."""
    one = next((t for t in _options(kind) if isinstance(t, types.StructType)), None)
    one = one or next(t for t in _options(kind) if not isinstance(t, types.NoneType))
    match one:
        case types.StructType():
            return {field.encode_name: filled(field.type) for field in one.fields if field.required}
        case types.ListType() | types.VarTupleType():
            return [filled(one.item_type)]
        case types.TupleType():
            return [filled(item) for item in one.item_types]
        case types.DictType():
            return {"97": filled(one.value_type)}
        case types.IntType():
            return max(one.ge or 0, (one.gt or -1) + 1)
        case types.FloatType():
            return 0.5
        case types.BoolType():
            return True
        case types.LiteralType():
            return one.values[0]
        case _:
            return "a"


def changed(type_: Any, base: Any, path: Path, value: Any) -> Any:
    """`base` with `value` at `path`; what has to stand around it is filled in."""
    return _put(types.type_info(type_), copy.deepcopy(base), path, value)


def _put(kind: types.Type, base: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    step, *rest = path
    for one in _options(kind):
        if isinstance(one, types.StructType):
            if not isinstance(base, dict):
                base = filled(one)
            field = next((f for f in one.fields if f.encode_name == step), None)
            if field is not None:
                base[step] = _put(field.type, base.get(step), tuple(rest), value)
                return base
        elif isinstance(one, types.ListType) and step == 0:
            items = base if isinstance(base, list) and base else [filled(one.item_type)]
            items[0] = _put(one.item_type, items[0], tuple(rest), value)
            return items
        elif isinstance(one, types.DictType) and step == "97":
            entries = dict(base) if isinstance(base, dict) else {}
            entries["97"] = _put(one.value_type, entries.get("97"), tuple(rest), value)
            return entries
    raise LookupError(path)


def fits(value: Any, kind: types.Type) -> bool:
    """Whether a decoded value is one of a type. Says by hand what the decoder under test says by itself."""
    return any(_fits_one(value, one) for one in _options(kind))


def _fits_one(value: Any, kind: types.Type) -> bool:
    match kind:
        case types.AnyType() | types.RawType():
            return True
        case types.NoneType():
            return value is None
        case types.BoolType():
            return isinstance(value, bool)
        case types.IntType():
            low = kind.ge if kind.gt is None else kind.gt + 1
            return type(value) is int and (low is None or value >= low) and (kind.le is None or value <= kind.le)
        case types.FloatType():
            return type(value) in (int, float) and abs(value) < 1.8e308
        case types.StrType():
            return isinstance(value, str)
        case types.LiteralType():
            return any(value == one and type(value) is type(one) for one in kind.values)
        case types.ListType():
            most = math.inf if kind.max_length is None else kind.max_length
            sized = isinstance(value, list) and (kind.min_length or 0) <= len(value) <= most
            return sized and all(fits(item, kind.item_type) for item in value)
        case types.TupleType():
            sized = isinstance(value, list) and len(value) == len(kind.item_types)
            return sized and all(fits(item, one) for item, one in zip(value, kind.item_types, strict=True))
        case types.DictType():
            return isinstance(value, dict) and all(fits(item, kind.value_type) for item in value.values())
        case types.StructType():
            return isinstance(value, dict) and _fits_struct(value, kind)
    raise TypeError(kind)


def _fits_struct(value: dict[str, Any], kind: types.StructType) -> bool:
    names = {field.encode_name for field in kind.fields}
    if kind.forbid_unknown_fields and not value.keys() <= names:
        return False
    return all(
        fits(value[field.encode_name], field.type) if field.encode_name in value else not field.required
        for field in kind.fields
    )


def is_json(value: Any) -> bool:
    """Whether JSON in UTF-8 can carry a value: no lone surrogates, no NaN, no infinity."""
    if isinstance(value, dict):
        return all(is_json(k) and is_json(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(is_json, value))
    if isinstance(value, str):
        return not any("\ud800" <= c <= "\udfff" for c in value)
    return not (isinstance(value, float) and not math.isfinite(value))


_INSERTS = (
    b"NaN", b"-Infinity", b"1e999", b"-", b"null", b"true", b'""', b"{}", b"[]", b"[" * 2000, b'{"a":' * 2000, b"\\",
    b'"\\ud800"', b"\\ud83d", b'"\\u0000"', b"\xff", b"\xed\xa0\x80", b"\xc3", b"\x00", b",", b":", b"}", b"]", b'"',
    b"9" * 400, b"9" * 5000, b"-0", b"1E5", b"/**/", b"\xef\xbb\xbf", b"\xf0\x9f\x98", b'"stream":true,', b"0.1e-9999",
)  # fmt: skip


def mutated(body: bytes, rng: random.Random) -> bytes:
    """A body with one to three faults: cut, flipped, doubled, something put in, something left out."""
    data = bytearray(body)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 5, 20)))
        match rng.randrange(6):
            case 0:
                del data[at:]
            case 1:
                del data[at:end]
            case 2 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 3:
                data[at:at] = rng.choice(_INSERTS)
            case 4:
                data[at:end] = rng.choice(_INSERTS)
            case _:
                data[at:at] = data[at:end]
    return bytes(data)


def tree_places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in a decoded value."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from tree_places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from tree_places(inner, (*path, index))


def tree_changed(value: Any, path: Path, new: Any) -> Any:
    """A decoded value with `new` at a place; `msgspec.UNSET` takes away what stands there."""
    if not path:
        return new
    value = copy.deepcopy(value)
    at = value
    for step in path[:-1]:
        at = at[step]
    if new is msgspec.UNSET:
        del at[path[-1]]
    else:
        at[path[-1]] = new
    return value
