"""Text ↔ ids: loading, encoding, the piece table and the detokenizer."""

from derender.tokenizer.detokenizer import Detokenizer
from derender.tokenizer.files import TokenizerBroken, TokenizerSpec
from derender.tokenizer.placeholders import (
    BadPlaceholder,
    format_token_id_placeholder,
    parse_token_id_placeholder,
    resolve_token_id_placeholder,
)
from derender.tokenizer.tokenizer import Tokenizer

__all__ = [
    "BadPlaceholder",
    "Detokenizer",
    "Tokenizer",
    "TokenizerBroken",
    "TokenizerSpec",
    "format_token_id_placeholder",
    "parse_token_id_placeholder",
    "resolve_token_id_placeholder",
]
