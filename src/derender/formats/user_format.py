"""An output format of one's own, in a TOML file of the same shape as the tables; and a table as such a file."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from derender.formats.table import (
    Calls,
    JsonMembers,
    JsonValue,
    KeyLines,
    KeyValues,
    Messages,
    NestedElements,
    OutputFormat,
    Parameters,
    PythonCall,
    Table,
    Tags,
)

_MARKED = re.compile("«(.*?)»", re.DOTALL)
_AT = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)
_KINDS = tuple(
    str(body.__struct_config__.tag)
    for body in (JsonMembers, JsonValue, Parameters, KeyLines, KeyValues, PythonCall, NestedElements)
)
_NEEDED: dict[type, tuple[str, ...]] = {
    Parameters: ("open", "close"),
    KeyLines: ("line", "pair"),
    KeyValues: ("fence",),
    NestedElements: ("mark",),
}
"""What a body needs so that it can be told from what is around it."""

_MAY_BE_EMPTY = frozenset(("fence", "off"))
"""Lists in which an empty text means that there is nothing of the kind."""


class FormatFileError(ValueError):
    """A format file that cannot be used; one line says which file, where in it, and what is wrong."""


def load_format(path: str | os.PathLike[str]) -> OutputFormat:
    """The format in a TOML file. Raises `FormatFileError`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FormatFileError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FormatFileError(f"{path}: is not UTF-8 text") from None
    return read_format(text, source=str(path))


def read_format(text: str, *, source: str) -> OutputFormat:
    """The format in the text of a TOML file; `source` names it in errors. Raises `FormatFileError`."""
    try:
        tree = msgspec.toml.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatFileError(f"{source}: is not TOML: {error}") from None
    _empty_name_is_none(tree)
    try:
        table = msgspec.convert(tree, OutputFormat)
    except msgspec.ValidationError as error:
        raise FormatFileError(f"{source}: {_explained(str(error))}") from None
    for key, fault in _faults(table):
        raise FormatFileError(f"{source}: {key}: {fault}")
    return table


def dump_format(table: OutputFormat) -> str:
    """A table as the text of a TOML file, without what is as by default."""
    return "\n".join(_section(table, "")).lstrip("\n") + "\n"


# ----------------------------------------------------------------------------------------------------- reading


def _empty_name_is_none(tree: Any) -> None:
    """TOML has no null: a member's name "" is none (the object's only key is the call's name)."""
    calls = tree.get("calls")
    for way in calls if isinstance(calls, list) else ():
        body = way.get("body") if isinstance(way, dict) else None
        if isinstance(body, dict) and body.get("name") == "":
            body["name"] = None


def _explained(message: str) -> str:
    """An error of msgspec with the key first."""
    found = _AT.search(message)
    key, said = (found[1], message[: found.start()]) if found is not None else ("", message)
    if key.endswith(".kind"):
        said += f"; kinds of bodies are {', '.join(_KINDS)}"
    return f"{key}: {said}" if key else said


def _faults(table: OutputFormat) -> Iterator[tuple[str, str]]:
    """What the types do not say: keys, each with what is wrong there."""
    if not table.name.strip():
        yield "name", "is empty"
    yield from _empty_markers(table, "")
    if table.reasoning is not None:
        for side in ("open", "close"):
            if not getattr(table.reasoning.tags, side):
                yield f"reasoning.tags.{side}", "lists no marker"
    messages = table.messages
    if messages is not None:
        yield from _faults_of_messages(messages, calls=bool(table.calls))
    named = messages is not None and any(kind.region == "call" for kind in messages.kinds)
    for n, calls in enumerate(table.calls):
        yield from _faults_of_calls(calls, f"calls[{n}]", named=named and n == 0)


def _empty_markers(value: Table, key: str) -> Iterator[tuple[str, str]]:
    for field in value.__struct_fields__:
        inner = getattr(value, field)
        here = f"{key}.{field}" if key else field
        for one, where in [(inner, here)] if isinstance(inner, Table) else ():
            yield from _empty_markers(one, where)
        for n, one in enumerate(inner) if isinstance(inner, tuple) and field not in _MAY_BE_EMPTY else ():
            if isinstance(one, Table):
                yield from _empty_markers(one, f"{here}[{n}]")
            elif one == "":
                yield f"{here}[{n}]", "an empty text is no marker"


def _faults_of_messages(messages: Messages, *, calls: bool) -> Iterator[tuple[str, str]]:
    for field in ("body", "kinds"):
        if not getattr(messages, field):
            yield f"messages.{field}", "is empty"
    for n, kind in enumerate(messages.kinds):
        yield from _faults_of_pattern(kind.header, f"messages.kinds[{n}].header")
        if kind.region in ("call", "calls") and not calls:
            yield f"messages.kinds[{n}].region", f'"{kind.region}", but there are no calls'


def _faults_of_calls(calls: Calls, key: str, *, named: bool) -> Iterator[tuple[str, str]]:
    """`named`: the message that the body is of may give the call's name."""
    body = calls.body
    for field in ("section", "call"):
        pair: Tags | None = getattr(calls, field)
        if pair is not None and not pair.open:
            yield f"{key}.{field}.open", "lists no marker"
    names_itself = isinstance(body, (JsonMembers, PythonCall))
    kind = body.__struct_config__.tag
    if calls.header is not None:
        yield from _faults_of_pattern(calls.header, f"{key}.header", group="name")
        if names_itself:
            yield f"{key}.header", f"a body of kind {kind} has the call's name in itself"
        if calls.call is None:
            yield f"{key}.header", "needs the markers of a call before it"
    elif not (names_itself or named or calls.named):
        yield f"{key}.header", f"is missing: a body of kind {kind} does not say the call's name"
    if isinstance(body, Parameters):
        yield from _faults_of_pattern(body.key, f"{key}.body.key", group="key")
    needed = _NEEDED.get(type(body), ())
    for field in needed:
        text: str = getattr(body, field)
        if not (text if isinstance(body, KeyLines) else text.strip()):
            yield f"{key}.body.{field}", "is empty"
    if needed and calls.call is None:
        yield f"{key}.call", f"is missing: a body of kind {kind} needs markers around it"


def _faults_of_pattern(source: str, key: str, *, group: str = "") -> Iterator[tuple[str, str]]:
    if "«»" in source:
        yield key, "an empty text is no marker: «»"
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            pattern = re.compile(_MARKED.sub(lambda found: re.escape(found[1]), source), re.DOTALL)
    except (re.error, RecursionError, OverflowError, FutureWarning) as error:
        yield key, f"is no regular expression: {error}"
        return
    if group and group not in pattern.groupindex:
        yield key, f"the pattern has no group (?P<{group}>…)"


# ----------------------------------------------------------------------------------------------------- writing


def _section(table: Table, key: str) -> Iterator[str]:
    """The lines of a table and of those in it."""
    tag = table.__struct_config__.tag
    if tag is not None:
        yield f"{table.__struct_config__.tag_field} = {_value(tag)}"
    inner: list[tuple[str, str, Table]] = []
    for field in msgspec.structs.fields(table):
        value = getattr(table, field.name)
        here = f"{key}.{field.name}" if key else field.name
        if isinstance(value, Table):
            if value != field.default:
                inner.append((here, f"[{here}]", value))
        elif isinstance(value, tuple) and value and isinstance(value[0], Table):
            if value != field.default:
                inner += [(here, f"[[{here}]]", one) for one in value]
        elif field.required or value != field.default:
            yield f"{field.name} = {_value('' if value is None else value)}"
    for here, heading, one in inner:
        yield ""
        yield heading
        yield from _section(one, here)


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    value = msgspec.to_builtins(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_string(name)} = {_value(one)}" for name, one in value.items()) + "}"
    raise TypeError(f"{value!r} has no form in TOML")


def _string(text: str) -> str:
    """A text as TOML has it; patterns without escapes, where that can be."""
    plain = text.isprintable()
    if plain and "\\" in text and "'" not in text:
        return f"'{text}'"
    if plain and "\\" in text and "'''" not in text and not text.endswith("'"):
        return f"'''{text}'''"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
