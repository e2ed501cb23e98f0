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

    `kind`: "text" (a character, in `texts`), "choice" (one of `texts`), "class" (one character of several), "group"
    (an optional one, its pieces in `inner`), "begin" of a named group (its name in `source`), "end" of it, or
    "boundary" (of a word). `repeat`: its quantifier.
    """

    kind: str
    source: str
    texts: tuple[str, ...] = ()
    repeat: str = ""
    inner: tuple[Atom, ...] = ()

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
    _check(source)
    tokens = list(_TOKEN.finditer(source))
    return [_choice(tokens)] if len(_alternatives(tokens)) > 1 else _sequence(tokens)


class Literals(NamedTuple):
    """What a pattern of plain texts matches.

    `bare`: the beginning of the whole text, whatever stands there. `first`: its texts only count there. What it says
    of the text's end is left out: that ends everything.
    """

    texts: tuple[str, ...]
    bare: bool = False
    first: bool = False


def plain_texts(source: str, *, edges: bool) -> Literals | None:
    """The texts that a pattern matches, if they are few; None where they are not. Raises `UnfitPattern`.

    `edges`: as for `spellings`.
    """
    _check(source)
    tokens = list(_TOKEN.finditer(source))
    if tokens and tokens[0]["plain"] is not None and _end_of_group(tokens, 1) == len(tokens) - 1:
        tokens = tokens[1:-1]
    texts: list[str] = []
    bare, first = False, set[bool]()
    for part in _alternatives(tokens):
        begins = bool(part) and part[0][0] in ("^", r"\A")
        ends = len(part) > begins and part[-1][0] in ("$", r"\Z")
        inner = part[begins : len(part) - ends]
        if not inner and (begins or ends):
            bare = bare or begins
            continue
        found = spellings(_sequence(inner), edges=edges)
        if not found or "" in found or ends:
            return None
        if any(one != other and other.startswith(one) for one in texts for other in found):
            raise UnfitPattern("an alternative that another one begins with cannot be used")
        texts += found
        first.add(begins)
    if len(first) > 1:
        raise UnfitPattern("either all alternatives begin with ^, or none")
    return Literals(tuple(dict.fromkeys(texts)), bare, True in first)


def _check(source: str) -> None:
    try:
        re.compile(source, re.DOTALL)
    except (re.error, RecursionError, OverflowError) as error:
        raise UnfitPattern(f"is no regular expression: {error}") from None
    if "«" in source or "»" in source:
        raise UnfitPattern("« and » cannot be used")


def _alternatives(tokens: Sequence[re.Match[str]]) -> list[list[re.Match[str]]]:
    """What stands between the bars that are in no group."""
    parts: list[list[re.Match[str]]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token["open"] is not None) - (token["close"] is not None)
        if token["bar"] is not None and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _sequence(tokens: Sequence[re.Match[str]]) -> list[Atom]:
    atoms: list[Atom] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token["open"] is not None:
            if token["other"] is not None:
                raise UnfitPattern(f"{token[0]}…) cannot be used: only groups without lookaround, flags or references")
            end = _end_of_group(tokens, at)
            repeat = tokens[end + 1]["repeat"] or "" if end + 1 < len(tokens) else ""
            atoms += _group(tokens[at:end], token["name"], repeat)
            at = end + 1 + bool(repeat)
        elif token["repeat"] is not None:
            if not atoms or atoms[-1].kind not in ("text", "class"):
                raise UnfitPattern(f"the quantifier {token[0]} cannot be used here")
            if token[0].endswith("+") and len(token[0]) > 1:
                raise UnfitPattern(f"the quantifier {token[0]} cannot be used")
            atoms[-1] = atoms[-1]._replace(repeat=token[0])
        elif token["bar"] is not None:
            raise UnfitPattern("alternatives with patterns in them cannot be used")
        else:
            atoms.append(_atom(token))
    return atoms


def _group(tokens: Sequence[re.Match[str]], name: str | None, repeat: str) -> list[Atom]:
    """The pieces of one group."""
    if repeat not in ("", "?"):
        raise UnfitPattern("a repeated group cannot be used")
    if name is None and len(_alternatives(tokens)) > 1:
        return [_choice(tokens)._replace(repeat=repeat)]
    inner = _sequence(tokens)
    if name is not None:
        inner = [Atom("begin", name), *inner, Atom("end", "")]
    if not repeat:
        return inner
    if all(atom.kind == "text" and not atom.repeat for atom in inner):
        return [Atom("choice", "", ("".join(atom.texts[0] for atom in inner),), repeat)]
    return [Atom("group", "", (), repeat, tuple(inner))]


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


def without_blanks(atoms: Sequence[Atom]) -> list[Atom]:
    """A pattern without any number of blanks at its beginning."""
    return list(itertools.dropwhile(_any_blanks, atoms))


def last_text(atoms: Sequence[Atom]) -> str:
    """The plain text at a pattern's end, behind any blanks in the midst of it; "" where there is none."""
    text = ""
    for atom in reversed(atoms):
        if atom.kind != "text" or atom.repeat:
            break
        text = atom.texts[0] + text
    return text


def split_prefix(atoms: Sequence[Atom]) -> tuple[tuple[str, ...], list[Atom]]:
    """The plain texts that a pattern begins with, and its rest, which can be read without what stands before."""
    size = cut = 0
    for size, atom in enumerate(atoms, 1):
        if not atom.texts or atom.repeat not in ("", "?"):
            break
        cut = cut if atom.repeat else size
    if not cut:
        return (), list(atoms)
    texts = spellings(atoms[:cut], edges=False) or ()
    if any(one != other and other.startswith(one) for one in texts for other in texts):
        cut = next(n for n, atom in enumerate(atoms) if atom.kind != "text" or atom.repeat)
        texts = ("".join(atom.texts[0] for atom in atoms[:cut]),)
    rest = list(atoms[cut:])
    if rest and rest[0].kind == "boundary":
        words = {text[-1:].isalnum() or text[-1:] == "_" for text in texts}
        if len(words) > 1:
            raise UnfitPattern(r"\b behind different texts cannot be used")
        rest[0] = Atom("boundary", r"(?!\w)" if True in words else r"(?=\w)")
    return texts, rest


def marked_pattern(atoms: Sequence[Atom], groups: Mapping[str, str], *, longest: int, whole: bool = False) -> str:
    """A pattern as tables have it: plain text in `«…»`, repeats bounded to `longest` characters together.

    `groups`: the named groups that are wanted, each with its name in the table; others are no groups. `whole`: the
    match must be followed by a character, so that more text would not have made it longer. Raises `UnfitPattern`.
    """
    _check_greed(atoms)
    found = _marked(atoms, groups, max(1, longest // max(1, _unbounded(atoms))))
    return f"(?=(?P<whole>{found}))(?P=whole)(?=.)" if whole else found


def _marked(atoms: Sequence[Atom], groups: Mapping[str, str], most: int) -> str:
    parts: list[str] = []
    text = ""
    for n, atom in enumerate(atoms):
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
            parts.append("(?:" + "|".join(f"«{one}»" if one else "" for one in atom.texts) + ")" + atom.repeat)
        elif atom.kind == "group":
            parts.append(f"(?:{_marked(atom.inner, groups, most)}){atom.repeat}")
        else:
            parts.append(atom.source + _bounded(atom.repeat, most))
            after = next((one for one in atoms[n + 1 :] if one.kind not in ("begin", "end")), None)
            if atom.kind == "class" and _unbound(atom.repeat) and not atom.lazy and after is not None and after.lazy:
                parts.append(f"(?!{atom.source})")  # it gives nothing back, which would be tried in vain
    if text:
        parts.append(f"«{text}»")
    return "".join(parts)


def group_names(atoms: Iterable[Atom]) -> list[str]:
    """The names of a pattern's groups."""
    names: list[str] = []
    for atom in atoms:
        names += group_names(atom.inner) if atom.kind == "group" else [atom.source] if atom.kind == "begin" else []
    return names


def _unbounded(atoms: Sequence[Atom]) -> int:
    """How many repeats have no bound."""
    return sum(_unbound(atom.repeat) + _unbounded(atom.inner) for atom in atoms)


def _unbound(repeat: str) -> bool:
    return repeat[:1] in ("*", "+") or repeat.rstrip("?").endswith(",}")


def _bounded(repeat: str, most: int) -> str:
    if not _unbound(repeat):
        return repeat
    least = {"*": "0", "+": "1"}.get(repeat[0]) or repeat[1 : repeat.index(",")]
    return f"{{{least},{max(most, int(least))}}}" + ("?" if repeat.endswith("?") else "")


def _check_greed(atoms: Sequence[Atom]) -> None:
    """Refuses a greedy repeat that what follows could end at more than one place: the end of the text would decide."""
    for n, atom in enumerate(atoms):
        if atom.kind == "group":
            _check_greed([*atom.inner, *atoms[n + 1 :]])
        if not atom.repeat or atom.lazy:
            continue
        longer = atom.kind == "group" or any(len(text) > 1 for text in atom.texts)
        taken, lazy = _characters(atom), False
        for after in atoms[n + 1 :]:
            if after.kind in ("begin", "end", "boundary"):
                continue
            if taken & _characters(after):
                # What takes as little as it can stands in for nothing here, if something else than that must follow.
                lazy = after.lazy and after.optional
                if not lazy:
                    raise UnfitPattern(f"{_shown(atom)} may take what follows it: use *? or +?, or a narrower class")
            if not after.optional:
                break
        else:
            if lazy or longer:
                raise UnfitPattern(f"{_shown(atom)} may take what follows it: a plain text must stand behind it")


def _shown(atom: Atom) -> str:
    return (atom.source or f"(?:{'|'.join(atom.texts) or '…'})") + atom.repeat


def _characters(atom: Atom) -> frozenset[str]:
    """The ASCII characters that an atom may begin with."""
    if atom.texts:
        return frozenset(text[:1] for text in atom.texts)
    if atom.kind == "group":
        found: frozenset[str] = frozenset()
        for one in atom.inner:
            if one.kind not in ("begin", "end", "boundary"):
                found |= _characters(one)
                if not one.optional:
                    break
        return found
    pattern = re.compile(atom.source, re.DOTALL)
    return frozenset(character for character in _CHARACTERS if pattern.fullmatch(character))
