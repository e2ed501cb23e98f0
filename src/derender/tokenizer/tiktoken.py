"""tiktoken's rank files (`qwen.tiktoken`, `tiktoken.model`, …) as a tokenizer.json.

Such a file holds one token and its rank a line and nothing else. How text is cut comes from the tokenizer's Python
file beside it, which is read as text and never run (its pattern is a constant), else from the family that has as
many ranks; the special tokens come from `added_tokens_decoder` of tokenizer_config.json, else from that family.
"""

from __future__ import annotations

import ast
import binascii
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Any

from derender.tokenizer.byte_level import added_token, asked_frame, ranks_as_tree
from derender.tokenizer.files import TokenizerBroken
from derender.tokenizer.rank_families import HARMONY, RANK_FAMILIES, RankFamily

_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\s")
_NUMBER = re.compile(r"[0-9]{1,18}")
_PATTERN_NAMES = ("pat_str", "pattern", "pat")
_LINE_ANCHOR = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\$|\^", re.DOTALL)

_POSSESSIVE_COUNT = re.compile(r"(\{\d+(?:,\d*)?\})\+")


def is_rank_file(data: bytes) -> bool:
    """Whether a file that may be sentencepiece's or tiktoken's is tiktoken's."""
    return _LINE.match(data) is not None


def read_ranks(data: bytes) -> dict[bytes, int]:
    """Token → rank. Raises `TokenizerBroken`."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise TokenizerBroken(f"line {number} of the rank file is no token and rank") from None
    if not ranks or len(set(ranks.values())) != len(ranks) or min(ranks.values()) < 0:
        raise TokenizerBroken("the rank file is empty, or gives one rank twice")
    if missing := [byte for byte in range(256) if bytes((byte,)) not in ranks]:
        raise TokenizerBroken(f"the rank file has no token for the byte {missing[0]:#04x}")
    return ranks


def tiktoken_tree(
    data: bytes, *, code: str, config: Mapping[str, Any], model_type: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tree of a tokenizer.json, and what the family adds to the tokenizer_config.

    `code`: the text of the tokenizer's Python file, "" where there is none. Raises `TokenizerBroken`.
    """
    ranks = read_ranks(data)
    family = HARMONY if len(ranks) == 199998 and model_type == "gpt_oss" else RANK_FAMILIES.get(len(ranks))
    pattern, nfc = _from_code(code)
    if pattern is None:
        if family is None:
            raise TokenizerBroken(
                f"how a rank file of {len(ranks)} tokens cuts text is not known, and no tokenization_*.py beside it "
                "says; convert it to tokenizer.json"
            )
        pattern, nfc = family.pattern, family.nfc
    base = max(ranks.values()) + 1
    added = _added(config, family, base, nfc=nfc, taken=set(ranks.values()))
    ids = {token["content"]: token["id"] for token in added}
    names = {} if family is None else {name: text for name, text in family.names.items() if text in ids}
    before = [(ids[text], text) for text in family.before if text in ids] if family is not None else []
    tree = ranks_as_tree(
        ranks,
        patterns=[oniguruma(pattern)] if pattern else [],
        added_tokens=added,
        nfc=nfc,
        frame=asked_frame({**names, **config}, ids, before=before),
    )
    return tree, names


def oniguruma(pattern: str) -> str:
    """A pattern as Oniguruma reads it: there `$` and `^` are the ends of a line, in tiktoken those of the text, and a
    `+` after a counted repetition repeats it, where in tiktoken it forbids to go back. Raises `TokenizerBroken`."""
    for found in _POSSESSIVE_COUNT.finditer(pattern):
        if pattern[found.end() : found.end() + 1] not in ("", "|", ")"):
            raise TokenizerBroken(f"the split pattern has {found[0]!r} within a branch, which is not supported")
    pattern = _POSSESSIVE_COUNT.sub(r"\1", pattern)  # at the end of a branch nothing could go back
    return _LINE_ANCHOR.sub(lambda found: {"$": r"\z", "^": r"\A"}.get(found[0], found[0]), pattern)


def _added(
    config: Mapping[str, Any], family: RankFamily | None, base: int, *, nfc: bool, taken: set[int]
) -> list[dict[str, Any]]:
    """The added tokens by id. Those of the config come first; the family's fill the ids that it leaves out."""
    tokens: dict[int, dict[str, Any]] = {}
    listed = config.get("added_tokens_decoder")
    for key, value in listed.items() if isinstance(listed, dict) else ():
        if isinstance(value, dict) and isinstance(value.get("content"), str) and _NUMBER.fullmatch(key):
            number = int(key)
            tokens[number] = {
                **added_token(number, value["content"], normalized=nfc),
                "special": value.get("special", True),
            }
    if family is not None:
        if not tokens:
            for special, named in ((True, family.special_tokens), (False, family.plain_tokens)):
                for number, text in named.items():
                    tokens[number] = added_token(number, text, special=special, normalized=nfc)
        if family.reserved is not None:
            spelled, count = family.reserved
            for number in range(base, base + count):
                tokens.setdefault(number, added_token(number, spelled(number), normalized=nfc))
    return [tokens[number] for number in sorted(tokens) if number not in taken]


def _from_code(code: str) -> tuple[str | None, bool]:
    """The constant pattern in a tokenizer's Python file, and whether the file composes text (NFC)."""
    if not code:
        return None, False
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None, False
    found: str | None = None
    nfc = False
    for node in ast.walk(tree):
        for name, value in _assignments(node):
            if name.lower().strip("_") in _PATTERN_NAMES and (text := _constant(value)) and r"\p{" in text:
                found = text
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "normalize":
            nfc |= bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == "NFC"
    return found, nfc


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
    for target in targets:
        name = target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""
        if name and value is not None:
            yield name, value


def _constant(node: ast.expr) -> str | None:
    """A text, or a join of texts."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _constant(node.left), _constant(node.right)
        return left + right if left is not None and right is not None else None
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(glue)), attr="join"),
            args=[ast.List() | ast.Tuple() as parts],
        ):
            texts = [_constant(part) for part in parts.elts]
            return glue.join(text for text in texts if text is not None) if None not in texts else None
    return None
