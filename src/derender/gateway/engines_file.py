"""The engines of a gateway in a TOML file, and the watch over that file.

[[engine]]
url = "http://10.0.0.7:8000"
kind = "vllm"                  # or auto, sglang, llamacpp; auto unless given
role = "decode"                # or any, prefill; any unless given
models = ["qwen3"]             # served models that it is for; all unless given
api_key_env = "ENGINE_KEY"     # or api_key = "…"
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from derender.gateway.settings import EngineKind, EngineSpec, Role, fault_of_both, fault_of_key, fault_of_url

logger = logging.getLogger("derender.gateway")

_POLL_SECONDS = 1.0
_AT = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)
_WORDS = {"kind": "auto, vllm, sglang, llamacpp", "role": "any, prefill, decode"}

_Stamp = tuple[int, int, int, int, int]


class EnginesFileError(ValueError):
    """A file of engines that cannot be used; one line says which file, which table in it, which field, and what is
    wrong. It never has a key or a password in it."""


class _Engine(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    kind: EngineKind = "auto"
    role: Role = "any"
    models: list[str] = []
    api_key: str | None = None
    api_key_env: str | None = None


def load_engines(
    path: str | os.PathLike[str], /, *, environ: Mapping[str, str] | None = None
) -> tuple[EngineSpec, ...]:
    """The engines in a file. `environ` has the variables that `api_key_env` names; None: those of this process.
    Raises `EnginesFileError`."""
    try:
        return read_engines(Path(path).read_bytes(), source=str(path), environ=environ)
    except OSError as error:
        raise EnginesFileError(f"{path}: cannot be read: {error.strerror}") from None


def read_engines(
    text: str | bytes, /, *, source: str, environ: Mapping[str, str] | None = None
) -> tuple[EngineSpec, ...]:
    """The engines in the text of such a file; `source` names it in errors. Raises `EnginesFileError`."""
    try:
        tree = msgspec.toml.decode(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError:
        raise EnginesFileError(f"{source}: is not UTF-8 text") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise EnginesFileError(f"{source}: is not TOML: {error}") from None
    for key in tree:
        if key != "engine":
            raise EnginesFileError(f"{source}: {key}: is not known; each engine is an [[engine]] table")
    tables = tree.get("engine")
    if not isinstance(tables, list) or not tables:
        # A file that is just being written is empty for a moment; that must not take all engines out.
        raise EnginesFileError(f"{source}: has no [[engine]] table")
    seen: dict[tuple[str, Role], int] = {}
    specs: list[EngineSpec] = []
    for number, table in enumerate(tables, start=1):
        try:
            spec = _spec(table, environ=os.environ if environ is None else environ)
        except _Fault as fault:
            raise EnginesFileError(f"{source}: engine {number}: {fault}") from None
        if (same := seen.setdefault((spec.url, spec.role), number)) != number:
            raise EnginesFileError(f"{source}: engine {number}: url: is that of engine {same}, in the same role")
        specs.append(spec)
    return tuple(specs)


async def watch(
    path: str | os.PathLike[str],
    on_change: Callable[[tuple[EngineSpec, ...]], None],
    /,
    *,
    current: tuple[EngineSpec, ...] | None = None,
    poll_seconds: float = _POLL_SECONDS,
) -> None:
    """Calls `on_change` with the engines of a file whenever they are others than before, until it is cancelled.

    `current`: the engines that were read before; None: the first reading is told too. A file that is gone or wrong is
    logged once, and changes nothing. The file may be written in place, replaced, or be a link that is turned to
    another file, as those that Kubernetes mounts.
    """
    seen: _Stamp | None = None
    said = ""
    while True:
        fault = ""
        try:
            stamp, specs = await asyncio.to_thread(_read_changed, path, seen)
            seen = stamp
        except _Unread as error:
            seen, fault = error.stamp, str(error)
            specs = None
        if fault:
            if fault != said:
                logger.error("%s; the engines stay as they are", fault)
            said = fault
        elif specs is not None:
            said = ""
            if specs != current:
                current = specs
                logger.info("%s: has %d engines", path, len(specs))
                on_change(specs)
        await asyncio.sleep(poll_seconds)


class _Fault(ValueError):
    """What is wrong in one table: the field, and what."""


class _Unread(Exception):
    """A file that was not read, and its state if it is to be read again only when that changes."""

    def __init__(self, message: str, *, stamp: _Stamp | None) -> None:
        super().__init__(message)
        self.stamp = stamp


def _read_changed(
    path: str | os.PathLike[str], seen: _Stamp | None
) -> tuple[_Stamp, tuple[EngineSpec, ...] | None]:  # fmt: skip
    """The file's state and, where that is not `seen`, its engines. Raises `_Unread`."""
    try:
        # Before the file is read: what is written after that has another state.
        state = os.stat(path)
        stamp = (state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino, state.st_dev)
        if stamp == seen:
            return stamp, None
        data = Path(path).read_bytes()
    except OSError as error:
        raise _Unread(f"{path}: cannot be read: {error.strerror}", stamp=None) from None
    try:
        return stamp, read_engines(data, source=str(path))
    except EnginesFileError as error:
        raise _Unread(str(error), stamp=stamp) from None


def _spec(table: Any, *, environ: Mapping[str, str]) -> EngineSpec:
    try:
        engine = msgspec.convert(table, _Engine)
    except msgspec.ValidationError as error:
        raise _Fault(_explained(str(error))) from None
    if fault := fault_of_url(engine.url):
        raise _Fault(f"url: {fault}")
    for name in engine.models:
        if not name.strip():
            raise _Fault("models: has an empty name")
        if engine.models.count(name) > 1:
            raise _Fault(f"models: has {name!r} twice")
    key = _key(engine, environ=environ)
    if fault := fault_of_both(engine.url, key):
        raise _Fault(f"url: {fault}")
    return EngineSpec(url=engine.url, kind=engine.kind, role=engine.role, models=tuple(engine.models), api_key=key)


def _key(engine: _Engine, *, environ: Mapping[str, str]) -> str | None:
    field, key = "api_key", engine.api_key
    if engine.api_key_env is not None:
        if key is not None:
            raise _Fault("api_key_env: is given beside api_key")
        field, key = "api_key_env", environ.get(engine.api_key_env)
        if key is None:
            raise _Fault(f"api_key_env: the variable {engine.api_key_env!r} is not set")
        key = key.strip()  # secrets that come out of files have a newline
    if fault := fault_of_key(key):
        raise _Fault(f"{field}: {fault}")
    return key


def _explained(message: str) -> str:
    """An error of msgspec with the field first."""
    found = _AT.search(message)
    if found is not None:
        field, said = found[1], message[: found.start()]
        return f"{field}: {said[:1].lower()}{said[1:]}" + _allowed(field)
    missing = re.search(r"required field `(\w+)`", message)
    unknown = re.search(r"unknown field `(.*)`", message, re.DOTALL)
    if missing is not None:
        return f"{missing[1]}: is missing"
    if unknown is not None:
        return f"{unknown[1]}: is not known; fields are {', '.join(_Engine.__struct_fields__)}"
    return message


def _allowed(field: str) -> str:
    return f"; one of {_WORDS[field]}" if field in _WORDS else ""
