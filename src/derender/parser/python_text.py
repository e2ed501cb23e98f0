"""Python's literals as JSON: escapes in strings, numbers, and the three names."""

from __future__ import annotations

import re
import unicodedata

from derender.parser.json_text import quoted

_SIMPLE = dict(zip("ntr\\'\"abfv\n", ["\n", "\t", "\r", "\\", "'", '"', "\a", "\b", "\f", "\v", ""], strict=True))
_OCTAL = re.compile(r"[0-7]{1,3}")
_HEX = re.compile(r"[0-9a-fA-F]*")
_DIGITS = {"x": 2, "u": 4, "U": 8}
_LONGEST_NAME = 100
_NAMES = {"True": "true", "true": "true", "False": "false", "false": "false", "None": "null", "null": "null"}
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_NUMBER = re.compile(r"([+-]?)(\d*)(\.?)(\d*)((?:[eE][+-]?\d+)?)", re.ASCII)
_OTHER_BASE = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]{1,64}|0[oO][0-7]{1,64}|0[bB][01]{1,64})")


def literal(text: str) -> str | None:
    """A number or name as JSON, a number in its own spelling where that is JSON; None for what is neither."""
    name = _NAMES.get(text)
    if name is not None or _JSON_NUMBER.fullmatch(text):
        return name or text
    plain = text.replace("_", "")
    found = _OTHER_BASE.fullmatch(plain)
    if found is not None:
        return str(int(found[1] + found[2], 0))
    found = _NUMBER.fullmatch(plain)
    if found is None or not (found[2] or found[4]):
        return None
    sign, whole, dot, fraction, exponent = found.groups()
    return ("-" if sign == "-" else "") + (whole.lstrip("0") or "0") + (f".{fraction or '0'}" if dot else "") + exponent


def escape(text: str, at: int) -> tuple[str, int] | None:
    """What the escape at `text[at]`, a backslash, stands for, inside a JSON string, and the place behind it.

    None where the text ends before the escape does. An unknown escape stays as it is, as in Python.
    """
    character = text[at + 1 : at + 2]
    if not character:
        return None
    if character in _SIMPLE:
        return quoted(_SIMPLE[character])[1:-1], at + 2
    if character in "01234567":
        found = _OCTAL.match(text, at + 1)
        assert found is not None
        if found.end() == len(text) and len(found[0]) < 3:
            return None
        return _character(int(found[0], 8)), found.end()
    if character in _DIGITS:
        wanted = at + 2 + _DIGITS[character]
        end = _HEX.match(text, at + 2, wanted).end()  # type: ignore[union-attr]
        if end == wanted and int(text[at + 2 : end], 16) < 0x110000:
            return _character(int(text[at + 2 : end], 16)), end
        return None if end == len(text) < wanted else ("\\\\", at + 1)
    if character == "N":
        end = text.find("}", at, at + _LONGEST_NAME)
        if end < 0 and len(text) < at + _LONGEST_NAME and text[at + 2 : at + 3] in ("", "{"):
            return None
        if end >= 0 and text[at + 2] == "{":
            try:
                return quoted(unicodedata.lookup(text[at + 3 : end]))[1:-1], end + 1
            except KeyError:
                pass
    return "\\\\", at + 1


def _character(code: int) -> str:
    """A character inside a JSON string; half of a pair is written out."""
    return f"\\u{code:04x}" if 0xD800 <= code < 0xE000 else quoted(chr(code))[1:-1]
