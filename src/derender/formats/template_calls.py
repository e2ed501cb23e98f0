"""The calls of a `response_template`: where the name and the arguments stand, and how the body is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from derender.formats.patterns import Atom, group_names, last_text, spellings, split_prefix, without_blanks
from derender.formats.table import (
    Body,
    Calls,
    JsonMembers,
    JsonValue,
    KeyLines,
    KeyValues,
    Parameters,
    Tags,
    Typing,
)
from derender.formats.template_fields import Field, ResponseTemplateError, atoms, check_keys, mapping, pattern

LONGEST_HEADER = 1024  # characters of a call's opener behind its literal beginning
_LONGEST_KEY = 384  # of a parameter's opener
_TYPINGS = {"int": Typing.INTEGER, "float": Typing.NUMBER, "bool": Typing.BOOLEAN, "json": Typing.VALUE_OR_SCHEMA}


class Places(NamedTuple):
    """Where a transform takes a call's parts from: the body (`content`, then members), or a group of the opener.

    `each`: the body is a list of calls, and the places are members of one.
    """

    name: list[str]
    arguments: list[str]
    id: list[str] | None
    each: bool

    @property
    def in_body(self) -> bool:
        """Whether the name is in the body."""
        return self.each or self.name[0] == "content"


def read_calls(field: Field) -> Calls:
    """The way of writing calls that a field describes."""
    places = call_places(field)
    openers, rest = _opener(field)
    header = None
    if not places.in_body:
        groups = wanted_groups(field, places, rest)
        header = pattern(rest, groups, LONGEST_HEADER, f"{field.key}.open_pattern", whole=True)
    elif rest:
        raise field.fault("open_pattern", "must match plain texts only, as the call's name is in its body")
    body = call_body(field, places)
    close = _closers(field, body)
    if not close and header is not None and not isinstance(body, JsonValue):
        raise field.fault("close", "is missing")
    return Calls(
        call=Tags(open=openers, close=close),
        header=header,
        body=body,
        strip=True,
        ids="made" if places.id is None else "native",
    )


# ------------------------------------------------------------------------------------------------------ transform


def call_places(field: Field) -> Places:
    """What a field's transform says."""
    if field.spec.get("join") is not None:
        raise field.fault("join", "calls are not joined")
    each = field.spec.get("transform_each", False) is True
    transform = field.spec.get("transform")
    if isinstance(transform, str):
        whole = field.place(transform, "transform")
        return Places([*whole, "function", "name"], [*whole, "function", "arguments"], [*whole, "id"], each)
    transform = mapping(transform, f"{field.key}.transform")
    path = "transform.function"
    if "function" not in transform and "name" in transform:  # a call without the frame that names its type
        check_keys(transform, frozenset(("type", "id", "name", "arguments")), f"{field.key}.transform")
        function: Any = {key: transform[key] for key in ("name", "arguments") if key in transform}
        path = "transform"
    else:
        check_keys(transform, frozenset(("type", "id", "function")), f"{field.key}.transform")
        function = transform.get("function")
    if transform.get("type", "function") != "function":
        raise field.fault("transform.type", "must be function")
    call_id = field.place(transform["id"], "transform.id") if "id" in transform else None
    if isinstance(function, str):
        whole = field.place(function, path)
        return Places([*whole, "name"], [*whole, "arguments"], call_id, each)
    function = mapping(function, f"{field.key}.{path}")
    check_keys(function, frozenset(("name", "arguments")), f"{field.key}.{path}")
    name = field.place(function.get("name"), f"{path}.name")
    return Places(name, field.place(function.get("arguments"), f"{path}.arguments"), call_id, each)


def wanted_groups(field: Field, places: Places, rest: list[Atom]) -> dict[str, str]:
    """The groups of an opener that are a call's name and its id."""
    groups = group_names(rest)
    name, call_id = places.name, places.id
    if name[1:] or name[0] not in groups:
        raise field.fault("transform.function.name", f"there is no group (?P<{name[0]}>…) in open_pattern")
    wanted = {name[0]: "name"}
    if call_id is not None:
        if call_id[1:] or call_id[0] not in groups or call_id == name:
            raise field.fault("transform.id", f"there is no group (?P<{call_id[0]}>…) of its own in open_pattern")
        wanted[call_id[0]] = "id"
    return wanted


# ------------------------------------------------------------------------------------------------------- markers


def _opener(field: Field) -> tuple[tuple[str, ...], list[Atom]]:
    """What a call begins with, and the pattern of what follows that."""
    if "open_pattern" not in field.spec:
        openers = field.literals("open", edges=False).texts
        if not openers:
            raise field.fault("open", "is missing: calls without it cannot be told from the rest")
        return openers, []
    if "open" in field.spec:
        raise field.fault("open_pattern", "stands beside open")
    key = f"{field.key}.open_pattern"
    pieces = without_blanks(atoms(field.spec["open_pattern"], key))  # blanks before a call are framing
    plain = spellings(pieces, edges=True)
    if plain:
        return plain, []
    openers, rest = split_prefix(pieces)
    if not openers or not all(text.strip() for text in openers):
        raise ResponseTemplateError(key, "does not begin with plain text")
    return openers, rest


def _closers(field: Field, body: Body) -> tuple[str, ...]:
    """What a call ends with. Of a closer in several parts with blanks between them the last one counts, where the body
    passes over what is no parameter, so that the others are passed over."""
    if isinstance(body, (Parameters, KeyLines)) and "close_pattern" in field.spec:
        pieces = atoms(field.spec["close_pattern"], f"{field.key}.close_pattern")
        last = last_text(pieces)
        before = pieces[: len(pieces) - len(last)]
        if last and before and all(_text_or_blanks(piece) for piece in before):
            return (last,)
    return field.literals("close", edges=True).texts


def _text_or_blanks(piece: Atom) -> bool:
    return (piece.kind == "text" and not piece.repeat) or piece.source == r"\s"


# --------------------------------------------------------------------------------------------------------- body


def call_body(field: Field, places: Places) -> Body:
    """How a call's body is read."""
    if places.in_body:
        return _members(field, places)
    if places.arguments != ["content"]:
        raise field.fault("transform.function.arguments", "must be {content}, where the opener has the call's name")
    match field.parser:
        case "xml-inline":
            return _parameters(field)
        case "kv-lines":
            return _lines(field)
        case "json":
            return _json(field)
        case other:
            raise field.fault("content", f"{other!r} cannot be read here, only json, xml-inline and kv-lines")


def _members(field: Field, places: Places) -> JsonMembers:
    """A call, or with `each` a list of calls, whose name and arguments are members of a JSON object."""
    if field.parser != "json":
        raise field.fault("content", f"{field.parser!r}: it must be json, as the call's name is in it")
    field.options("allow_non_json")
    found: list[list[str]] = []
    for key, path in (("function.name", places.name), ("function.arguments", places.arguments), ("id", places.id)):
        members = (path or []) if places.each else (path or [])[1:]
        if path is not None and (not members or not (places.each or path[0] == "content")):
            shape = "{MEMBER}" if places.each else "{content.MEMBER}"
            raise field.fault(f"transform.{key}", f"must be {shape}: a member of the call's own object")
        found.append(members)
    name, arguments, call_id = found
    within = name[:-1]
    if arguments[:-1] != within:
        raise field.fault("transform.function.arguments", "must stand in the same object as the name")
    if name == arguments:
        raise field.fault("transform.function.arguments", "is the same member as the name")
    if call_id[:-1] != within[: max(0, len(call_id) - 1)]:
        raise field.fault("transform.id", "must stand in the same object as the name, or in one around it")
    return JsonMembers(
        name=name[-1],
        arguments=(arguments[-1],),
        id=call_id[-1] if call_id else None,
        array=places.each,
        within=tuple(within),
    )


def _json(field: Field) -> Body:
    """The arguments as JSON, or as what the options make of it."""
    options = field.arguments
    field.options("allow_non_json", "unquoted_keys", "string_delims")
    delimiters = options.get("string_delims") or []
    if not delimiters and not options.get("unquoted_keys"):
        return JsonValue()
    if not options.get("unquoted_keys"):
        raise field.fault("content_args.string_delims", "needs unquoted_keys")
    fits = isinstance(delimiters, Sequence) and len(delimiters) == 1
    pair = delimiters[0] if fits else None
    if not (isinstance(pair, Sequence) and len(pair) == 2 and isinstance(pair[0], str) and pair[0] == pair[1]):
        raise field.fault("content_args.string_delims", "must be one pair of the same text twice")
    if not pair[0] or pair[0] == '"':
        raise field.fault("content_args.string_delims", "must be a text other than a quote")
    return KeyValues(fence=pair[0])


def _parameters(field: Field) -> Parameters:
    field.options("tag_pattern", "value_parser", "merge_duplicates")
    key = f"{field.key}.content_args.tag_pattern"
    pieces = atoms(field.arguments.get("tag_pattern"), key)
    openers, rest = split_prefix(pieces)
    marks = [n for n, piece in enumerate(rest) if piece.kind == "begin" and piece.source == "value"]
    if not marks or "key" not in group_names(rest[: marks[0]]):
        raise ResponseTemplateError(key, "must have a group key, and the group value behind it")
    value = marks[0]
    inner, after = rest[value + 1 : value + 2], rest[value + 2 : value + 3]
    anything = inner and inner[0].source in (".", r"[\s\S]") and inner[0].repeat in ("*?", "+?")
    if not anything or not after or after[0].kind != "end":
        raise ResponseTemplateError(key, "the group value must be .*?")
    behind = rest[value + 3 :]
    close = spellings(behind, edges=True)
    if len(openers) != 1 or not openers[0].strip() or close is None or len(close) != 1 or not close[0]:
        raise ResponseTemplateError(key, "must begin with a plain text, and end with one behind the value")
    typing, stripped = _value_parser(field)
    before, blank = _without_last_blanks(rest[:value])
    around = blank, len(behind) > len(without_blanks(behind))
    if not stripped and around[0] != around[1]:
        raise ResponseTemplateError(key, r"must have \s* on both sides of the value, or on none")
    last = [piece for piece in before if piece.kind not in ("begin", "end")][-1]
    if last.repeat and not last.lazy:
        raise ResponseTemplateError(key, "must have a plain text between the key and the value")
    return Parameters(
        open=openers[0],
        key=pattern(before, {"key": "key"}, _LONGEST_KEY, key),
        close=close[0],
        trim=stripped or around[0],
        typing=typing,
        first=True,
        merge=field.arguments.get("merge_duplicates", False) is True,
    )


def _without_last_blanks(pieces: list[Atom]) -> tuple[list[Atom], bool]:
    """A pattern without any number of blanks at its end, and whether it had some."""
    kept = without_blanks(pieces[::-1])[::-1]
    return kept, len(kept) < len(pieces)


def _lines(field: Field) -> KeyLines:
    field.options("line_sep", "kv_sep", "value_parser", "strip")
    line, pair = (_separator(field, key, usual) for key, usual in (("line_sep", "\n"), ("kv_sep", ":")))
    trim = field.arguments.get("strip", True) is not False
    typing, stripped = _value_parser(field)
    if stripped and not trim:
        raise field.fault("content_args.strip", "must not be false where value_parser strips the values")
    return KeyLines(line=line, pair=pair, trim=trim, typing=typing)


def _separator(field: Field, key: str, usual: str) -> str:
    text = field.arguments.get(key, usual)
    if not isinstance(text, str) or not text:
        raise field.fault(f"content_args.{key}", "must be a text that is not empty")
    return text


def _value_parser(field: Field) -> tuple[Typing, bool]:
    """Where the values' types come from, and whether white space around them is framing."""
    key = f"{field.key}.content_args.value_parser"
    given = field.arguments.get("value_parser")
    if given is None:
        return Typing.SCHEMA, False
    parser: Mapping[str, Any] = mapping(given, key)
    check_keys(parser, frozenset(("name", "args")), key)
    options = mapping(parser.get("args", {}), f"{key}.args")
    name = parser.get("name", "text")
    if name != "text" and name not in _TYPINGS:
        raise ResponseTemplateError(f"{key}.name", f"{name!r} cannot be read here: a value is no table of its own")
    check_keys(options, frozenset(("allow_non_json",) if name == "json" else ("strip",)), f"{key}.args")
    stripped = name in _TYPINGS or options.get("strip", True) is not False
    return _TYPINGS.get(name, Typing.SCHEMA), stripped
