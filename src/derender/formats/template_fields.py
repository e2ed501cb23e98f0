"""The fields of a `response_template`: their keys, texts and patterns, each error with the key that it is about."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from derender.formats.patterns import Atom, Literals, UnfitPattern, marked_pattern, parse_pattern, plain_texts

_FIELD = frozenset(
    (
        "open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional",
        "transform", "transform_each",
    )
)  # fmt: skip
_PLACE = re.compile(r"\{(\w+(?:\.\w+)*)\}")


class ResponseTemplateError(ValueError):
    """A response_template that cannot be used; the message names the key."""

    def __init__(self, key: str, fault: str) -> None:
        super().__init__(f"response_template: {key}: {fault}" if key else f"response_template: {fault}")


class Field:
    """One field as it stands in a template."""

    def __init__(self, name: str, spec: Any) -> None:
        self.name = name
        self.key = f"fields.{name}"
        self.spec = mapping(spec, self.key)
        check_keys(self.spec, _FIELD, self.key)
        self.parser = self.spec.get("content", "text")
        self.arguments = mapping(self.spec.get("content_args", {}), f"{self.key}.content_args")
        self.implicit = "open" not in self.spec and "open_pattern" not in self.spec
        """Whether it is what stands outside of all others."""

    def fault(self, key: str, fault: str) -> ResponseTemplateError:
        """An error at one of its keys."""
        return ResponseTemplateError(f"{self.key}.{key}", fault)

    def literals(self, side: str, *, edges: bool) -> Literals:
        """The texts that open or close it; none where there are none."""
        found = literals(self.spec, side, self.key, edges=edges)
        if side == "close" and (found.bare or found.first):
            raise self.fault("close_pattern", "^ cannot be used")
        return found

    def options(self, *known: str) -> None:
        """Refuses options of its parser that are none of these."""
        check_keys(self.arguments, frozenset(known), f"{self.key}.content_args")

    def place(self, value: Any, key: str) -> list[str]:
        """What a placeholder names, `{content.a}` as content and a."""
        found = _PLACE.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise self.fault(key, f"{value!r} is no placeholder")
        return found[1].split(".")

    def stripped(self) -> bool:
        """For a field of text: whether it is without the white space at its ends."""
        if self.parser != "text":
            raise self.fault("content", f"{self.parser!r}: it must be text, as the answer's texts are")
        for key in ("transform", "transform_each"):
            if self.spec.get(key):
                raise self.fault(key, "text is not transformed")
        if self.spec.get("join"):
            raise self.fault("join", 'its parts follow each other as they come, without anything between them ("")')
        self.options("strip")
        return self.arguments.get("strip", True) is not False


def mapping(value: Any, key: str) -> Mapping[str, Any]:
    """A value that must be an object."""
    if value is None:
        raise ResponseTemplateError(key, "is missing")
    if not isinstance(value, Mapping):
        raise ResponseTemplateError(key, "must be an object")
    return value


def check_keys(value: Mapping[str, Any], known: frozenset[str], key: str) -> None:
    """Refuses keys that are none of these."""
    for name in value:
        if name not in known:
            raise ResponseTemplateError(f"{key}.{name}" if key else str(name), "is not known")


def literals(spec: Mapping[str, Any], side: str, key: str, *, edges: bool) -> Literals:
    """The texts under a key or, as long as they are few, those that the pattern beside it matches."""
    where, other = (f"{key}.{name}" if key else name for name in (side, f"{side}_pattern"))
    if f"{side}_pattern" in spec:
        if side in spec:
            raise ResponseTemplateError(other, f"stands beside {side}")
        source = spec[f"{side}_pattern"]
        if not isinstance(source, str):
            raise ResponseTemplateError(other, "must be a regular expression")
        try:
            found = plain_texts(source, edges=edges)
        except UnfitPattern as error:
            raise ResponseTemplateError(other, str(error)) from None
        if found is None or not (found.texts or found.bare or side == "close"):
            raise ResponseTemplateError(other, "matches more than a few plain texts")
        return found
    if side not in spec:
        return Literals(())
    given = spec[side]
    texts = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ResponseTemplateError(where, "must be a text, or a list of texts, none of them empty")
    return Literals(tuple(dict.fromkeys(texts)))


def atoms(source: Any, key: str) -> list[Atom]:
    """The pieces of the pattern under a key."""
    if not isinstance(source, str):
        raise ResponseTemplateError(key, "must be a regular expression" if source is not None else "is missing")
    try:
        return parse_pattern(source)
    except UnfitPattern as error:
        raise ResponseTemplateError(key, str(error)) from None


def pattern(pieces: list[Atom], groups: Mapping[str, str], longest: int, key: str, *, whole: bool = False) -> str:
    """A pattern's pieces as `marked_pattern` has them."""
    try:
        return marked_pattern(pieces, groups, longest=longest, whole=whole)
    except UnfitPattern as error:
        raise ResponseTemplateError(key, str(error)) from None
