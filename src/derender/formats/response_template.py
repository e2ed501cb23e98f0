"""`response_template` of a tokenizer's configuration, read into an output format.

Hugging Face's description (version 1) of how a model's answer is to be read: fields, each a region of the output with
an opener, a closer and a parser of its body. What of it the engine knows becomes a table; anything else is refused by
its key (`ResponseTemplateError`), never read otherwise. The known differences are those of this server in general:
text that belongs to no region is content, as is a region that proves to be no call; regions of one field follow each
other in the answer, where a template without `repeats` keeps the last; a closer that nothing opened is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from derender.formats.patterns import (
    Atom,
    UnfitPattern,
    group_names,
    marked_pattern,
    parse_pattern,
    spellings,
    split_prefix,
)
from derender.formats.table import (
    Body,
    Calls,
    JsonMembers,
    JsonValue,
    KeyValues,
    OutputFormat,
    Parameters,
    Reasoning,
    Reopen,
    Tags,
    Typing,
)

NAME = "hf"
"""The format's name, and that of the parsers that use it."""

_TOP = frozenset(("version", "defaults", "fields", "start_anchor", "start_anchor_pattern"))
_FIELD = frozenset(
    (
        "open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional",
        "transform", "transform_each",
    )
)  # fmt: skip
_THINKING = ("thinking", "reasoning_content")
_TEXT, _CALLS = "content", "tool_calls"
_PLACE = re.compile(r"\{(\w+(?:\.\w+)*)\}")
_LONGEST_HEADER = 1024  # characters of a call's opener behind its literal beginning
_LONGEST_KEY = 384  # of a parameter's opener


class ResponseTemplateError(ValueError):
    """A response_template that cannot be used; the message names the key."""

    def __init__(self, key: str, fault: str) -> None:
        super().__init__(f"response_template: {key}: {fault}" if key else f"response_template: {fault}")


def from_response_template(template: Mapping[str, Any]) -> OutputFormat:
    """The output format that a response_template describes. Raises `ResponseTemplateError`."""
    _check_keys(template, _TOP, "")
    if template.get("version", 1) != 1 or isinstance(template.get("version"), bool):
        raise ResponseTemplateError("version", f"{template['version']!r} is not known, only 1")
    defaults = _mapping(template.get("defaults", {}), "defaults")
    if set(defaults) - {"role"}:
        raise ResponseTemplateError(f"defaults.{min(set(defaults) - {'role'})}", "only a role can be given")
    fields = _mapping(template.get("fields"), "fields")
    if not fields:
        raise ResponseTemplateError("fields", "is empty")
    found = {str(name): _Field(str(name), spec) for name, spec in fields.items()}
    for name in found.keys() - {*_THINKING, _TEXT, _CALLS}:
        raise ResponseTemplateError(f"fields.{name}", "only thinking, content and tool_calls can be answered with")
    thoughts = [found[name] for name in _THINKING if name in found]
    if len(thoughts) > 1:
        raise ResponseTemplateError(f"fields.{_THINKING[1]}", "is there beside thinking")
    anchors = _literals(template, "start_anchor", "", edges=True)
    if not anchors:
        raise ResponseTemplateError("start_anchor", "is missing")
    text, calls = found.get(_TEXT), found.get(_CALLS)
    trims = {field.name: field.stripped() for field in (*thoughts, *([text] if text is not None else []))}
    if len(set(trims.values())) > 1:
        loose = next(name for name, stripped in trims.items() if not stripped)
        raise ResponseTemplateError(f"fields.{loose}.content_args.strip", "must be the same in all texts")
    trim = all(trims.values())
    answer = text.literals("open", edges=trim) if text is not None else ()
    ends = text.literals("close", edges=trim) if text is not None else ()
    return OutputFormat(
        name=NAME,
        reasoning=_reasoning(thoughts[0], trim=trim) if thoughts else None,
        calls=(_calls(calls),) if calls is not None else (),
        answer=Tags(open=answer, close=ends) if answer else None,
        end_of_turn=() if answer else ends,
        turn_starts=anchors,
        trim=trim,
    )


class _Field:
    """One field as it stands in a template."""

    def __init__(self, name: str, spec: Any) -> None:
        self.name = name
        self.key = f"fields.{name}"
        self.spec = _mapping(spec, self.key)
        _check_keys(self.spec, _FIELD, self.key)
        self.parser = self.spec.get("content", "text")
        self.arguments = _mapping(self.spec.get("content_args", {}), f"{self.key}.content_args")

    def fault(self, key: str, fault: str) -> ResponseTemplateError:
        """An error at one of its keys."""
        return ResponseTemplateError(f"{self.key}.{key}", fault)

    def literals(self, side: str, *, edges: bool) -> tuple[str, ...]:
        """The texts that open or close it; none where there are none."""
        return _literals(self.spec, side, self.key, edges=edges)

    def options(self, *known: str) -> None:
        """Refuses options of its parser that are none of these."""
        _check_keys(self.arguments, frozenset(known), f"{self.key}.content_args")

    def stripped(self) -> bool:
        """For a field of text: whether it is without the white space at its ends."""
        if self.parser != "text":
            raise self.fault("content", f"{self.parser!r}: it must be text")
        for key in ("transform", "transform_each"):
            if self.spec.get(key):
                raise self.fault(key, "text is not transformed")
        if self.spec.get("join"):
            raise self.fault("join", 'its parts follow each other without anything between them ("")')
        self.options("strip")
        return self.arguments.get("strip", True) is not False


def _reasoning(field: _Field, *, trim: bool) -> Reasoning:
    pair = Tags(open=field.literals("open", edges=trim), close=field.literals("close", edges=trim))
    for side in ("open", "close"):
        if not getattr(pair, side):
            raise field.fault(side, "is missing: reasoning without it cannot be told from the rest")
    return Reasoning(tags=pair, start="content", switches=(), ended_by_call=False, duplicates=Reopen.REOPEN)


# --------------------------------------------------------------------------------------------------------- calls


def _calls(field: _Field) -> Calls:
    if field.spec.get("join") is not None:
        raise field.fault("join", "calls are not joined")
    openers, rest = _call_opener(field)
    close = field.literals("close", edges=True)
    path = "transform.function"
    transform = _mapping(field.spec.get("transform"), f"{field.key}.transform")
    _check_keys(transform, frozenset(("type", "id", "function")), f"{field.key}.transform")
    function = _mapping(transform.get("function"), f"{field.key}.{path}")
    _check_keys(function, frozenset(("name", "arguments")), f"{field.key}.{path}")
    if transform.get("type", "function") != "function":
        raise field.fault("transform.type", "must be function")
    each = field.spec.get("transform_each", False) is True
    name = _place(field, function.get("name"), f"{path}.name")
    arguments = _place(field, function.get("arguments"), f"{path}.arguments")
    call_id = _place(field, transform["id"], "transform.id") if "id" in transform else None
    groups = group_names(rest)
    if each or name[0] == "content":
        if rest:
            raise field.fault("open_pattern", "must match plain texts only, as the call's name is in its body")
        body: Body = _members(field, name, arguments, call_id, each=each)
        header = None
    else:
        wanted = {name[0]: "name"}
        if name[1:] or name[0] not in groups:
            raise field.fault(f"{path}.name", f"there is no group (?P<{name[0]}>…) in open_pattern")
        if arguments != ["content"]:
            raise field.fault(f"{path}.arguments", "must be {content}, where the opener has the call's name")
        if call_id is not None:
            if call_id[1:] or call_id[0] not in groups or call_id == name:
                raise field.fault("transform.id", f"there is no group (?P<{call_id[0]}>…) of its own in open_pattern")
            wanted[call_id[0]] = "id"
        header = _pattern(rest, wanted, _LONGEST_HEADER, f"{field.key}.open_pattern", whole=True)
        body = _body(field)
        if not close and not isinstance(body, JsonValue):
            raise field.fault("close", "is missing")
    return Calls(
        call=Tags(open=openers, close=close),
        header=header,
        body=body,
        strip=True,
        ids="made" if call_id is None else "native",
    )


def _call_opener(field: _Field) -> tuple[tuple[str, ...], list[Atom]]:
    """What a call begins with, and the pattern of what follows that."""
    if "open_pattern" not in field.spec:
        openers = field.literals("open", edges=False)
        if not openers:
            raise field.fault("open", "is missing: calls without it cannot be told from the rest")
        return openers, []
    if "open" in field.spec:
        raise field.fault("open_pattern", "stands beside open")
    key = f"{field.key}.open_pattern"
    atoms = _atoms(field.spec["open_pattern"], key)
    plain = spellings(atoms, edges=True)
    if plain:
        return plain, []
    opener, rest = split_prefix(atoms)
    if not opener.strip():
        raise ResponseTemplateError(key, "does not begin with plain text")
    return (opener,), rest


def _members(
    field: _Field, name: list[str], arguments: list[str], call_id: list[str] | None, *, each: bool
) -> JsonMembers:
    """A call, or with `each` a list of calls, whose name and arguments are members of a JSON object."""
    if field.parser != "json":
        raise field.fault("content", f"{field.parser!r}: it must be json, as the call's name is in it")
    field.options("allow_non_json")
    found: list[str | None] = []
    for key, path in (("function.name", name), ("function.arguments", arguments), ("id", call_id)):
        members = path if path is None or each else path[1:]
        if members is not None and (len(members) != 1 or (not each and path and path[0] != "content")):
            shape = "{MEMBER}" if each else "{content.MEMBER}"
            raise field.fault(f"transform.{key}", f"must be {shape}: a member of the call's own object")
        found.append(members[0] if members is not None else None)
    if found[0] == found[1]:
        raise field.fault("transform.function.arguments", "is the same member as the name")
    return JsonMembers(name=found[0], arguments=(str(found[1]),), id=found[2], array=each)


def _body(field: _Field) -> Body:
    """The arguments of a call whose opener has its name."""
    options = field.arguments
    if field.parser == "xml-inline":
        return _parameters(field)
    if field.parser != "json":
        raise field.fault("content", f"{field.parser!r} cannot be read here, only json and xml-inline")
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


def _parameters(field: _Field) -> Parameters:
    field.options("tag_pattern", "value_parser", "merge_duplicates")
    if field.arguments.get("merge_duplicates"):
        raise field.fault("content_args.merge_duplicates", "a parameter has one value")
    key = f"{field.key}.content_args.tag_pattern"
    atoms = _atoms(field.arguments.get("tag_pattern"), key)
    opener, rest = split_prefix(atoms)
    marks = [n for n, atom in enumerate(rest) if atom.kind == "begin" and atom.source == "value"]
    if not marks or "key" not in group_names(rest[: marks[0]]):
        raise ResponseTemplateError(key, "must have a group key, and the group value behind it")
    value = marks[0]
    inner, after = rest[value + 1 : value + 2], rest[value + 2 : value + 3]
    anything = inner and inner[0].source in (".", r"[\s\S]") and inner[0].repeat in ("*?", "+?")
    if not anything or not after or after[0].kind != "end":
        raise ResponseTemplateError(key, "the group value must be .*?")
    close = spellings(rest[value + 3 :], edges=True)
    if not opener.strip() or close is None or len(close) != 1 or not close[0]:
        raise ResponseTemplateError(key, "must begin with a plain text, and end with one behind the value")
    parser = _mapping(field.arguments.get("value_parser", {"name": ""}), f"{field.key}.content_args.value_parser")
    options = _mapping(parser.get("args", {}), f"{field.key}.content_args.value_parser.args")
    kind = parser.get("name", "text")
    known = {"json": {"allow_non_json"}, "text": {"strip"}, "": set[str]()}.get(kind)
    if known is None:
        raise field.fault("content_args.value_parser.name", f"{kind!r} cannot be read here, only json and text")
    _check_keys(options, frozenset(known), f"{field.key}.content_args.value_parser.args")
    return Parameters(
        open=opener,
        key=_pattern(rest[:value], {"key": "key"}, _LONGEST_KEY, key),
        close=close[0],
        trim=kind == "json" or (kind == "text" and options.get("strip", True) is not False),
        typing=Typing.VALUE if kind == "json" else Typing.SCHEMA,
        first=True,
    )


# --------------------------------------------------------------------------------------------------------- pieces


def _place(field: _Field, value: Any, key: str) -> list[str]:
    """What a placeholder names, `{content.a}` as content and a."""
    found = _PLACE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise field.fault(key, f"{value!r} is no placeholder")
    return found[1].split(".")


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    if value is None:
        raise ResponseTemplateError(key, "is missing")
    if not isinstance(value, Mapping):
        raise ResponseTemplateError(key, "must be an object")
    return value


def _check_keys(value: Mapping[str, Any], known: frozenset[str], key: str) -> None:
    for name in value:
        if name not in known:
            raise ResponseTemplateError(f"{key}.{name}" if key else str(name), "is not known")


def _literals(spec: Mapping[str, Any], side: str, key: str, *, edges: bool) -> tuple[str, ...]:
    """The texts under a key or, as long as they are few, those that the pattern beside it matches."""
    where, other = (f"{key}.{name}" if key else name for name in (side, f"{side}_pattern"))
    if f"{side}_pattern" in spec:
        if side in spec:
            raise ResponseTemplateError(other, f"stands beside {side}")
        found = spellings(_atoms(spec[f"{side}_pattern"], other), edges=edges)
        if not found or "" in found:
            raise ResponseTemplateError(other, "matches more than a few plain texts")
        return found
    if side not in spec:
        return ()
    given = spec[side]
    texts = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ResponseTemplateError(where, "must be a text, or a list of texts, none of them empty")
    return tuple(dict.fromkeys(texts))


def _atoms(source: Any, key: str) -> list[Atom]:
    if not isinstance(source, str):
        raise ResponseTemplateError(key, "must be a regular expression" if source is not None else "is missing")
    try:
        return parse_pattern(source)
    except UnfitPattern as error:
        raise ResponseTemplateError(key, str(error)) from None


def _pattern(atoms: list[Atom], groups: Mapping[str, str], longest: int, key: str, *, whole: bool = False) -> str:
    try:
        return marked_pattern(atoms, groups, longest=longest, whole=whole)
    except UnfitPattern as error:
        raise ResponseTemplateError(key, str(error)) from None
