"""`token_id:N`: how generate servers before vLLM 0.30 name a token in logprobs (vllm#43606)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from derender.tokenizer.tokenizer import Tokenizer

PREFIX = "token_id:"


class BadPlaceholder(ValueError):
    """A string that begins as a placeholder but names no token."""


def format_token_id_placeholder(token_id: int) -> str:
    """The placeholder of a token id."""
    return f"{PREFIX}{token_id}"


def parse_token_id_placeholder(token: str) -> int | None:
    """The id that a placeholder names; None for what is no placeholder.

    Raises `BadPlaceholder` for `token_id:`, `token_id:-3`, `token_id:9x`.
    """
    if not token.startswith(PREFIX):
        return None
    digits = token[len(PREFIX) :]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise BadPlaceholder(f"{token[:40]!r} names no token id")
    return int(digits)


def resolve_token_id_placeholder(token: str, tokenizer: Tokenizer) -> tuple[str, list[int] | None]:
    """The text and the exact bytes (a list of 0–255) of the token that a placeholder names.

    `(token, None)` for what is no placeholder. A token that is a part of a character has no text of its own: `""`.
    Raises `BadPlaceholder` for a bad number, and for an id outside the vocabulary.
    """
    token_id = parse_token_id_placeholder(token)
    if token_id is None:
        return token, None
    if not tokenizer.knows(token_id):
        raise BadPlaceholder(f"{token!r} is outside the vocabulary ({tokenizer.vocab_size} ids)")
    return tokenizer.token_text(token_id), list(tokenizer.piece(token_id))
