"""`/tokenize`, `/detokenize` and `/tokenizer_info`."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from derender.protocol.chat import Tool
from derender.protocol.common import Json, TokenId


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Text (`prompt`) or a chat (`messages`), not both. A chat's template adds its own special tokens, so
    `add_special_tokens` is true by default for text and false for a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Json] | None = None
    add_special_tokens: bool | UnsetType = UNSET
    return_token_strs: bool | None = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: Json | None = None
    tools: list[Tool] | None = None


class TokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    tokens: list[TokenId]


class DetokenizeResponse(msgspec.Struct, frozen=True):
    prompt: str
