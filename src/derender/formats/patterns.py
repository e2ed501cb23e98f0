"""Regular expressions written for whole texts, made fit for a stream and for markers that are single tokens.

A pattern in a stream must not match early: more text could have given another match. What a match in a stream cannot
be told from one in the whole text is refused (`UnfitPattern`), never read otherwise.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<escape>\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.))
    |(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])
    |(?P<open>\((?:\?(?:P?<(?P<name>\w+)>|(?P<plain>:)|(?P<other>.)))?)
    |(?P<close>\))
    |(?P<repeat>[*+?][?+]?|\{(?:\d+(?:,\d*)?|,\d+)\}[?+]?)
    |(?P<bar>\|)
    |(?P<edge>[$^])
    |(?P<letter>.)""",
    re.VERBOSE | re.DOTALL,
)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_CLASSES = frozenset("dDsSwW")
_CHARACTERS = tuple(map(chr, range(128)))
_MOST_SPELLINGS = 16


class UnfitPattern(ValueError):
    """A regular expression that cannot be used on a stream. The message says why."""


class Atom(NamedTuple):
    """One piece of a pattern.

    `kind`: "text" (a character, in `texts`), "choice" (one of `texts`), "class" (one character of several), "begin" of
    a named group (its name in `source`), "end" of it, or "boundary" (of a word). `repeat`: its quantifier.
    """

    kind: str
    source: str
    texts: tuple[str, ...] = ()
    repeat: str = ""

    @property
    def optional(self) -> bool:
        """Whether it may match nothing."""
        return self.repeat.startswith(("*", "?", "{0", "{,"))

    @property
    def lazy(self) -> bool:
        """Whether it takes as little as it can."""
        return len(self.repeat) > 1 and self.repeat.endswith("?")


def parse_pattern(source: str) -> list[Atom]:
    """The pieces of a pattern. Raises `UnfitPattern`."""
    try:
        re.compile(source, re.DOTALL)
    except (re.error, RecursionError, OverflowError) as error:
        raise UnfitPattern(f"is no regular expression: {error}") from None
    if "«" in source or "»" in source:
        raise UnfitPattern("« and » cannot be used")
    tokens = list(_TOKEN.finditer(source))
    depth = 0
    for token in tokens:
        depth += (token["open"] is not None) - (token["close"] is not None)
        if token["bar"] is not None and not depth:
            return [_choice(tokens)]
    return _sequence(tokens)


def _sequence(tokens: Sequence[re.Match[str]]) -> list[Atom]:
    atoms: list[Atom] = []
    groups: list[str | None] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token["open"] is not None:
            if token["other"] is not None:
                raise UnfitPattern(f"{token[0]}…) cannot be used: only groups without lookaround, flags or references")
            end = _end_of_group(tokens, at)
            if token["name"] is None and any(one["bar"] is not None for one in tokens[at:end]):
                atoms.append(_choice(tokens[at:end]))
                at = end + 1
                continue
            groups.append(token["name"])
            if token["name"] is not None:
                atoms.append(Atom("begin", token["name"]))
        elif token["close"] is not None:
            if groups.pop() is not None:
                atoms.append(Atom("end", ""))
            if at < len(tokens) and tokens[at]["repeat"] is not None:
                raise UnfitPattern("a repeated or optional group cannot be used")
        elif token["repeat"] is not None:
            if not atoms or atoms[-1].kind not in ("text", "class"):
                raise UnfitPattern("a repeated or optional group cannot be used")
            if token[0].endswith("+") and len(token[0]) > 1:
                raise UnfitPattern(f"the quantifier {token[0]} cannot be used")
            atoms[-1] = atoms[-1]._replace(repeat=token[0])
        elif token["bar"] is not None:
            raise UnfitPattern("alternatives with patterns in them cannot be used")
        else:
            atoms.append(_atom(token))
    return atoms


def _end_of_group(tokens: Sequence[re.Match[str]], at: int) -> int:
    """Where the group closes that has opened before `at`."""
    depth = 1
    for n in range(at, len(tokens)):
        depth += (tokens[n]["open"] is not None) - (tokens[n]["close"] is not None)
        if not depth:
            return n
    raise UnfitPattern("a group does not end")


def _atom(token: re.Match[str]) -> Atom:
    text = token[0]
    if token["letter"] is not None:
        return Atom("class", text) if text == "." else Atom("text", text, (text,))
    if token["set"] is not None:
        return Atom("class", text)
    if token["escape"] is not None:
        kind = text[1]
        if len(text) > 2:
            return Atom("text", text, (chr(int(text[2:], 16)),))
        if not kind.isalnum():
            return Atom("text", text, (kind,))
        if kind in _CONTROLS:
            return Atom("text", text, (_CONTROLS[kind],))
        if kind in _CLASSES:
            return Atom("class", text)
        if kind == "b":
            return Atom("boundary", text)
    raise UnfitPattern(f"{text} cannot be used")


def _choice(tokens: Sequence[re.Match[str]]) -> Atom:
    """Alternatives of plain texts, none of which goes on as another does."""
    texts = [""]
    for token in tokens:
        if token["bar"] is not None:
            texts.append("")
            continue
        atom = _atom(token) if token["escape"] is not None or token["letter"] is not None else None
        if atom is None or atom.kind != "text":
            raise UnfitPattern("alternatives with patterns in them cannot be used")
        texts[-1] += atom.texts[0]
    found = tuple(dict.fromkeys(texts))
    if any(one != other and other.startswith(one) for one in found for other in found):
        raise UnfitPattern("an alternative that another one begins with cannot be used")
    return Atom("choice", "", found)


def spellings(atoms: Sequence[Atom], *, edges: bool) -> tuple[str, ...] | None:
    """All texts that a pattern matches, if they are few; None where they are not.

    `edges`: white space around is stripped anyway, so that any number of blanks at the ends of the pattern is as none.
    """
    atoms = list(atoms)
    while edges and atoms and _any_blanks(atoms[0]):
        del atoms[0]
    while edges and atoms and _any_blanks(atoms[-1]):
        del atoms[-1]
    parts: list[tuple[str, ...]] = []
    for atom in atoms:
        if not atom.texts or atom.repeat not in ("", "?", "??"):
            return None
        parts.append((*atom.texts, "") if atom.repeat else atom.texts)
    size = 1
    for part in parts:
        size *= len(part)
    if size > _MOST_SPELLINGS:
        return None
    return tuple(dict.fromkeys(map("".join, itertools.product(*parts))))


def _any_blanks(atom: Atom) -> bool:
    blank = atom.source == r"\s" or (atom.kind == "text" and atom.texts[0].isspace())
    return blank and atom.repeat in ("*", "*?")


def split_prefix(atoms: Sequence[Atom]) -> tuple[str, list[Atom]]:
    """The plain text that a pattern begins with, and its rest, which can be read without what stands before."""
    text = ""
    rest = list(atoms)
    while rest and rest[0].kind == "text" and not rest[0].repeat:
        text += rest.pop(0).texts[0]
    if rest and rest[0].kind == "boundary":
        word = text[-1:].isalnum() or text[-1:] == "_"
        rest[0] = Atom("boundary", r"(?!\w)" if word else r"(?=\w)")
    return text, rest


def marked_pattern(atoms: Sequence[Atom], groups: Mapping[str, str], *, longest: int, whole: bool = False) -> str:
    """A pattern as tables have it: plain text in `«…»`, repeats bounded to `longest` characters together.

    `groups`: the named groups that are wanted, each with its name in the table; others are no groups. `whole`: the
    match must be followed by a character, so that more text would not have made it longer. Raises `UnfitPattern`.
    """
    _check_greed(atoms)
    unbounded = sum(_unbounded(atom.repeat) for atom in atoms)
    most = max(1, longest // max(1, unbounded))
    parts: list[str] = []
    text = ""
    for atom in atoms:
        if atom.kind == "text" and not atom.repeat:
            text += atom.texts[0]
            continue
        if text:
            parts.append(f"«{text}»")
            text = ""
        if atom.kind == "begin":
            parts.append(f"(?P<{groups[atom.source]}>" if atom.source in groups else "(?:")
        elif atom.kind == "end":
            parts.append(")")
        elif atom.kind == "choice":
            parts.append("(?:" + "|".join(f"«{one}»" if one else "" for one in atom.texts) + ")")
        else:
            parts.append(atom.source + _bounded(atom.repeat, most))
    if text:
        parts.append(f"«{text}»")
    found = "".join(parts)
    return f"(?=(?P<whole>{found}))(?P=whole)(?=.)" if whole else found


def group_names(atoms: Iterable[Atom]) -> list[str]:
    """The names of a pattern's groups."""
    return [atom.source for atom in atoms if atom.kind == "begin"]


def _unbounded(repeat: str) -> bool:
    return repeat[:1] in ("*", "+") or repeat.rstrip("?").endswith(",}")


def _bounded(repeat: str, most: int) -> str:
    if not _unbounded(repeat):
        return repeat
    least = {"*": "0", "+": "1"}.get(repeat[0]) or repeat[1 : repeat.index(",")]
    return f"{{{least},{max(most, int(least))}}}" + ("?" if repeat.endswith("?") else "")


def _check_greed(atoms: Sequence[Atom]) -> None:
    """Refuses a greedy repeat that what follows could end at more than one place: the end of the text would decide."""
    for n, atom in enumerate(atoms):
        if not atom.repeat or atom.lazy:
            continue
        taken = _characters(atom)
        for after in atoms[n + 1 :]:
            if after.kind in ("begin", "end", "boundary"):
                continue
            if taken & _characters(after):
                raise UnfitPattern(
                    f"{atom.source}{atom.repeat} may take what follows it: use *? or +?, or a narrower class"
                )
            if not after.optional:
                break


def _characters(atom: Atom) -> frozenset[str]:
    """The ASCII characters that an atom may begin with."""
    if atom.texts:
        return frozenset(text[:1] for text in atom.texts)
    pattern = re.compile(atom.source, re.DOTALL)
    return frozenset(character for character in _CHARACTERS if pattern.fullmatch(character))
