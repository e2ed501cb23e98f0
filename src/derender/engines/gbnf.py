"""GBNF grammars (llama.cpp's, and what vLLM takes as `grammar`) put into llguidance's Lark.

llama.cpp's own matcher takes exponential time on short grammars (`"a"? "a"? …`), and with it every other request on
the engine. A rule that does not reach itself becomes a terminal, that is, a regular expression; the others become
rules. Where terminals overlap (`("a" | "ab") "bc"` in a recursive rule) the longest one is taken, so that a few
sentences of such a grammar are not found; what is found is always one of its sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from derender.protocol.codec import encode_text

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\n]+|\#[^\n]*)
    |(?P<rule>[A-Za-z_][A-Za-z0-9_.-]*)[ \t]*(?:::=)
    |(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<set>\[(?:[^\]\\]|\\.)*\])
    |(?P<count>\{[ ]*\d+[ ]*(?:,[ ]*\d*[ ]*)?\})
    |(?P<sign>[()|*+?.])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))|(.)", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_ANY = r"/(?s:.)/"


class GrammarError(ValueError):
    """The text is not a GBNF grammar; the message says where and why."""


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def lark_of_gbnf(text: str) -> str:
    """The same grammar in Lark, its start symbol from the rule `root`. Raises `GrammarError`."""
    rules = _rules(text)
    if "root" not in rules:
        raise GrammarError("no rule is named root")
    uses = {name: {token.text for token in body if token.kind == "name"} for name, body in rules.items()}
    for name, used in uses.items():
        unknown = sorted(used - rules.keys())
        if unknown:
            raise GrammarError(f"rule {name} uses {unknown[0]}, which is no rule")
    terminals = _without_recursion(uses)
    names = {name: f"T{number}" if name in terminals else f"r{number}" for number, name in enumerate(rules)}
    lines = [f"start: {names['root']}"]
    lines += [f"{names[name]}: {_expression(name, body, names)}" for name, body in rules.items()]
    return "\n".join(lines)


def _tokens(text: str) -> Iterator[_Token]:
    position, line = 0, 1
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None or found.lastgroup is None:
            raise GrammarError(f"line {line}: {text[position : position + 20]!r} is not understood")
        if found.lastgroup != "skip":
            yield _Token(found.lastgroup, found[found.lastgroup], line)
        line += found[0].count("\n")
        position = found.end()


def _rules(text: str) -> dict[str, list[_Token]]:
    rules: dict[str, list[_Token]] = {}
    body: list[_Token] | None = None
    for token in _tokens(text):
        if token.kind == "rule":
            body = rules.setdefault(token.text, [])
            if body:
                raise GrammarError(f"line {token.line}: rule {token.text} is there twice")
        elif body is None:
            raise GrammarError(f"line {token.line}: a grammar begins with a rule")
        else:
            body.append(token)
    return rules


def _without_recursion(uses: dict[str, set[str]]) -> set[str]:
    """The rules that reach no cycle: those that use nothing, then those that use only such, and so on."""
    users: dict[str, list[str]] = {name: [] for name in uses}
    for name, used in uses.items():
        for one in used:
            users[one].append(name)
    left = {name: len(used) for name, used in uses.items()}
    ready = [name for name, count in left.items() if count == 0]
    found: set[str] = set()
    while ready:
        name = ready.pop()
        found.add(name)
        for user in users[name]:
            left[user] -= 1
            if left[user] == 0:
                ready.append(user)
    return found


def _expression(name: str, body: list[_Token], names: dict[str, str]) -> str:
    """A rule's body in Lark. An empty alternative is written as an empty string."""
    parts: list[str] = []
    open_at: list[int] = []
    empty = True  # whether the alternative has nothing yet
    counted = False  # whether what stands last is repeated already
    for token in body:
        text = token.text
        if token.kind == "sign" and text in "(|)":
            if text != "(" and empty:
                parts.append('""')
            if text == ")":
                if not open_at:
                    raise GrammarError(f"line {token.line}: ) without (")
                open_at.pop()
            elif text == "(":
                open_at.append(token.line)
            parts.append(text)
            empty = text != ")"
            counted = False
            continue
        if token.kind == "count" or (token.kind == "sign" and text != "."):
            if empty:
                raise GrammarError(f"line {token.line}: {text} with nothing before it")
            if counted:
                raise GrammarError(f"line {token.line}: {text} after a repetition needs parentheses around that")
            counted = True
            parts[-1] = f"({parts[-1]}){_count(text)}" if parts[-1] != ")" else f"){_count(text)}"
            continue
        parts.append(_item(token, names))
        empty = counted = False
    if open_at:
        raise GrammarError(f"line {open_at[-1]}: ( without ) in rule {name}")
    if empty:
        parts.append('""')
    return " ".join(parts)


def _count(text: str) -> str:
    return text.replace(" ", "")


def _item(token: _Token, names: dict[str, str]) -> str:
    if token.kind == "name":
        return names[token.text]
    if token.kind == "string":
        return encode_text("".join(_characters(token.text[1:-1], token.line)))
    if token.kind == "set":
        return _set(token)
    return _ANY


def _characters(text: str, line: int) -> list[str]:
    """The characters of a literal, escapes resolved."""
    characters = []
    for found in _ESCAPE.finditer(text):
        x, u, long, other, plain = found.groups()
        code = x or u or long
        if code is not None:
            if int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) <= 0xDFFF:
                raise GrammarError(f"line {line}: {found[0]} is no character")
            characters.append(chr(int(code, 16)))
        else:
            characters.append(plain or _PLAIN_ESCAPES.get(other, other))
    return characters


def _set(token: _Token) -> str:
    """A set of characters as a regular expression, every one by its number."""
    inside = token.text[1:-1]
    negated = inside.startswith("^")
    inside = inside[negated:]
    raw = [found[0] for found in _ESCAPE.finditer(inside)]
    characters = _characters(inside, token.line)
    if not characters:
        raise GrammarError(f"line {token.line}: an empty set")
    out = []
    i = 0
    while i < len(characters):
        if i + 2 < len(characters) and raw[i + 1] == "-":
            if characters[i] > characters[i + 2]:
                raise GrammarError(f"line {token.line}: the range {raw[i]}-{raw[i + 2]} is backwards")
            out.append(f"{_number(characters[i])}-{_number(characters[i + 2])}")
            i += 3
        else:
            out.append(_number(characters[i]))
            i += 1
    return f"/[{'^' if negated else ''}{''.join(out)}]/"


def _number(character: str) -> str:
    return f"\\x{{{ord(character):X}}}"
