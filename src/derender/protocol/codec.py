"""JSON in and out. One decoder per type, one encoder, and errors that name the field, its place and its value.

Decoding is strict: a lone surrogate, invalid UTF-8, NaN or trailing bytes are refused (vLLM answers 500 to some of
them). Encoding is strict JSON: a float that is not finite is written as null, never as a bare word.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from derender.protocol.errors import InvalidBody

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_anything = msgspec.json.Decoder()
_AT = re.compile(r" - at `(?:key in )?\$?([^`]*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # an escape that is half of a character, and alone no text
_SOME_KEY = "*"  # in a place: a key of a map, which msgspec does not tell
_SHOWN = 80  # characters of an offending value in a message
MIN_LOGPROB = -9999.0
"""What stands for a logprob that no JSON number can carry (-inf, NaN, overflow), as vLLM writes it."""

encode: Callable[[Any], bytes] = _encoder.encode


def encode_text(value: Any) -> str:
    """`value` as JSON text."""
    return _encoder.encode(value).decode("utf-8")


MAX_VALUES = 1 << 18
"""Objects, lists and strings (keys, too) in a request. Each takes 50 to 400 ns to read, with the interpreter's lock
held from the first to the last, and some 70 bytes of memory: in a body of 64 MiB there can be 30 million."""

MAX_ANSWER_CONTAINERS = 1 << 20
MAX_ANSWER_STRINGS = 1 << 22
"""The same for an engine's answers, in which a token may have some twenty objects of the same few keys, which take
less: the logprobs of 24,000 tokens with 20 alternatives."""

_SLICE = 1 << 18
_DENSE = 1 << 16
"""Objects, lists and strings that take so long to read, 10 to 20 ms, that others must not be read beside them."""


def check_containers(body: bytes, *, answer: bool = False) -> None:
    """Raises `InvalidBody` for more objects, lists and strings than a request, or an engine's `answer`, may have."""
    if answer:
        if len(body) > MAX_ANSWER_CONTAINERS and any(map(_over_answer, _counts(body))):
            raise InvalidBody(
                f"body has more than {MAX_ANSWER_CONTAINERS} objects and lists, or {MAX_ANSWER_STRINGS} strings",
                param="body",
            )
    elif len(body) > MAX_VALUES and any(sum(counts) > MAX_VALUES for counts in _counts(body)):
        raise InvalidBody(f"body has more than {MAX_VALUES} objects, lists and strings", param="body")


def is_dense(body: bytes) -> bool:
    """Whether a body may have more than `_DENSE` objects, lists and strings; texts with many quotes and braces, too."""
    if len(body) <= 2 * _DENSE:
        return False
    return body.count(b"{") + body.count(b"[") + body.count(b'"') // 2 > _DENSE


def _over_answer(counts: tuple[int, int]) -> bool:
    containers, strings = counts
    return containers > MAX_ANSWER_CONTAINERS or strings > MAX_ANSWER_STRINGS


def _counts(body: bytes) -> Iterator[tuple[int, int]]:
    """How many objects and lists, and how many strings, a body has so far: after each slice, so that other threads have
    their turn. What stands in strings does not count."""
    containers = quotes = 0
    cut = b""
    for start in range(0, len(body), _SLICE):
        part = cut + body[start : start + _SLICE]
        ends = len(part) - len(part.rstrip(b"\\"))
        cut = b"\\" * (ends % 2)  # half of an escape
        part = part[: len(part) - len(cut)]
        if b"\\" in part:
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        texts = part.split(b'"')
        outside = b"".join(texts[quotes % 2 :: 2])
        quotes += len(texts) - 1
        containers += outside.count(b"{") + outside.count(b"[")
        yield containers, (quotes + 1) // 2


class Decoder(Generic[T]):
    """Decodes and validates bodies of one type.

    `lenient_numbers` accepts what Python and JavaScript servers write for a logprob that is not finite (`NaN`,
    `-Infinity`, `null`, `-1e999`) and reads it as -9999.0 (sgl-project/sglang#5984).
    """

    def __init__(self, type_: type[T], *, lenient_numbers: bool = False) -> None:
        self.type = type_
        self._decoder = msgspec.json.Decoder(type_)
        self._lenient = lenient_numbers

    def __call__(self, body: bytes | bytearray) -> T:
        """`body` as a value of the type. Raises `InvalidBody`, whose param is `body.` and the dotted place."""
        try:
            if not body.isascii():
                body.decode("utf-8")  # msgspec passes over the strings of unknown fields
            return self._decoder.decode(body)
        except UnicodeDecodeError as error:
            raise InvalidBody(f"body is not valid UTF-8 (byte {error.start})", param="body") from None
        except RecursionError:
            raise InvalidBody("body is nested too deeply", param="body") from None
        except msgspec.DecodeError as error:
            if self._lenient:
                return self._decode_leniently(body, error)
            raise _explain(error, body) from None

    def _decode_leniently(self, body: bytes | bytearray, error: msgspec.DecodeError) -> T:
        try:
            tree = _finite(json.loads(body))
        except (ValueError, RecursionError):
            raise _explain(error, body) from None
        if (wrong := _lone_surrogate(body)) is not None:
            raise wrong
        return self.convert(tree)

    def convert(self, tree: Any) -> T:
        """The same for a value that is already decoded. Raises `InvalidBody`."""
        try:
            return msgspec.convert(tree, self.type)
        except RecursionError:
            raise InvalidBody("body is nested too deeply", param="body") from None
        except msgspec.ValidationError as error:
            raise _explain(error, tree) from None


def _finite(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {k: _finite(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if key == "logprob" and (value is None or (isinstance(value, float) and not math.isfinite(value))):
        return MIN_LOGPROB
    return value


def _lone_surrogate(body: bytes | bytearray) -> InvalidBody | None:
    """What to tell of a body with a string or a key that is no text, naming its place; None for any other body.

    Half of a surrogate pair can be written as an escape, and Python's JSON reader takes it
    (raullenchai/Rapid-MLX#730).
    """
    if not _SURROGATE.search(body):
        return None
    try:
        waiting: list[tuple[Any, Any]] = [(json.loads(body), None)]  # values, each with its (parent, step)
    except (ValueError, RecursionError):
        return None
    while waiting:
        value, place = waiting.pop()
        if isinstance(value, list):
            waiting.extend((value[i], (place, i)) for i in range(len(value) - 1, -1, -1))
            continue
        if isinstance(value, dict):
            waiting.extend((inner, (place, key)) for key, inner in reversed(value.items()))
            value = "".join(value)
        if isinstance(value, str) and not _is_text(value):
            steps: list[str] = []
            while place is not None:
                place, step = place
                steps.append(str(step)[:_SHOWN].encode("utf-8", "replace").decode())
            field = ".".join(reversed(steps))
            return InvalidBody(
                f"{field or 'body'} holds a lone surrogate, which is not text",
                param=f"body.{field}" if field else "body",
            )
    return None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _explain(error: msgspec.DecodeError, body: Any) -> InvalidBody:
    """The error with a dotted place and the value that stands there."""
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        reason = text.removeprefix("JSON is malformed: ")
        return _lone_surrogate(body) or InvalidBody(
            f"body is not valid JSON: {reason[:1].lower()}{reason[1:]}", param="body"
        )
    found = _AT.search(text)
    reason = text[: found.start()] if found else text
    missing = re.match(r"Object missing required field `(.*)`$", reason)
    steps = (
        [name or (int(index) if index != "..." else _SOME_KEY) for name, index in _STEP.findall(found[1])]
        if found
        else []
    )
    place = ".".join(["body", *map(str, steps), *([missing[1]] if missing else [])])
    field = place.removeprefix("body.")
    if missing:
        return InvalidBody(f"{field}: field required", param=place)
    value = _lookup(body, steps)
    shown = (
        "" if value is _UNKNOWN else f" ({value!r})" if len(repr(value)) <= _SHOWN else f" ({repr(value)[:_SHOWN]}…)"
    )
    return InvalidBody(f"{field}: {reason[:1].lower()}{reason[1:]}{shown}", param=place)


_UNKNOWN = object()


def _lookup(body: Any, steps: list[Any]) -> Any:
    """The scalar at a place, or `_UNKNOWN` for what is a container, not there, or not decodable."""
    if isinstance(body, (bytes, bytearray)):
        try:
            body = _anything.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return _UNKNOWN
    for step in steps:
        if step == _SOME_KEY:
            return _UNKNOWN
        try:
            body = body[step]
        except (KeyError, IndexError, TypeError):
            return _UNKNOWN
    return _UNKNOWN if isinstance(body, (dict, list)) else body
