"""Reads the files of a model's directory, which may be broken or hostile: what is no file is refused, not passed over,
and a file is not read that is larger than any of its kind."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

LARGEST_VOCABULARY = 256 << 20
"""Bytes of a tokenizer.json; the largest known has 33 million."""

LARGEST_RANKS = 64 << 20
"""Bytes of a tekken.json, a rank file or a sentencepiece model; the largest known has 20 million."""

LARGEST_JSON = 32 << 20
"""Bytes of config.json, tokenizer_config.json and their like; the largest known has some millions."""

LARGEST_TEMPLATE = 4 << 20
"""Bytes of a chat template; the largest known has some ten thousand."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class FileRefused(ValueError):
    """A file that is there and cannot be used; one line names it and says why."""


def is_there(path: Path) -> bool:
    """Whether there is a file. Raises `FileRefused` for something of its name that is none, or cannot be looked at."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise FileRefused(f"{path} is a link to a file that is not there") from None
        return False
    except OSError as error:
        raise FileRefused(f"{path} cannot be read: {error.strerror}") from None
    if stat.S_ISREG(mode):
        return True
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
    raise FileRefused(f"{path} is {kind}, not a file")


def read_bytes(path: Path, *, largest: int) -> bytes:
    """A file of at most `largest` bytes. Raises `FileRefused`."""
    if not is_there(path):
        raise FileRefused(f"{path} is not there")
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            data = file.read(largest + 1) if size <= largest else b""
    except OSError as error:
        raise FileRefused(f"{path} cannot be read: {error.strerror}") from None
    if max(size, len(data)) > largest:
        raise FileRefused(f"{path} is too large: it has {size} bytes, and no such file has more than {largest}")
    return data


def read_text(path: Path, *, largest: int) -> str:
    """The same as text. Raises `FileRefused` for one that is not UTF-8, too."""
    try:
        text = read_bytes(path, largest=largest).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileRefused(f"{path} is not UTF-8 text (byte {error.start})") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path, *, largest: int = LARGEST_JSON) -> Any:
    """The value in a JSON file. Raises `FileRefused`."""
    text = read_text(path, largest=largest)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileRefused(f"{path} is not valid JSON: {error}") from None
    if _SURROGATE.search(text):  # half of a character, which Python's reader lets pass
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise FileRefused(f"{path} holds a lone surrogate, which is not text") from None
    return value
