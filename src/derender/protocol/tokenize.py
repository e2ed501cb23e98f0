"""`/tokenize`, `/detokenize` and `/tokenizer_info`."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from derender.protocol.chat import Tool
from derender.protocol.common import BlockHashOptions, Json, TokenId
from derender.protocol.generate import BlockHashes, MessageSpan


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
    return_prompt_text: bool | None = None
    return_token_offsets: bool | None = None
    return_message_spans: bool | None = None
    return_loss_mask: bool | None = None
    return_block_hashes: BlockHashOptions | bool | None = None


class TokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The ids. What stands behind `token_strs` is there where it was asked for, as in a `GenerateRequest`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
    prompt_text: str | UnsetType = UNSET
    token_offsets: list[tuple[int, int]] | UnsetType = UNSET
    message_spans: list[MessageSpan] | UnsetType = UNSET
    loss_mask: list[int] | UnsetType = UNSET
    block_hashes: BlockHashes | UnsetType = UNSET


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    tokens: list[TokenId]


class DetokenizeResponse(msgspec.Struct, frozen=True):
    prompt: str
