"""A prompt with what may be told of it on request: text, places and messages of its tokens, hashes of its blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.common import BlockHashOptions
from derender.protocol.completions import CompletionRequest
from derender.protocol.tokenize import TokenizeRequest
from derender.rendering.block_hashes import block_hashes
from derender.rendering.conversation import Chat
from derender.rendering.prompt import Prompt, PromptEncoder, Truncation
from derender.rendering.spans import Provenance


def chat_prompt(
    chat: Chat,
    asked: ChatCompletionRequest | TokenizeRequest,
    *,
    encoder: PromptEncoder,
    add_special_tokens: bool,
    truncation: Truncation | None = None,
    bounded: bool = True,
    turn_ends: Collection[int],
) -> tuple[Prompt, dict[str, Any]]:
    """A chat's prompt, and the fields of an answer that tell of it what the request asks for, but its offsets.

    `bounded`: the context bounds the prompt. `turn_ends`: the ids that end an output. Raises BadRequest.
    """
    tracks = asked.return_message_spans or asked.return_loss_mask
    tracked = chat.tracked() if tracks else None
    text = chat.text() if tracked is None else tracked.text
    prompt = encoder.encode(
        text,
        add_special_tokens=add_special_tokens,
        truncation=truncation,
        offsets=bool(asked.return_token_offsets or tracks),
        one_bos=True,
        bounded=bounded,
        guarded=True,
    )
    told: dict[str, Any] = {}
    if asked.return_prompt_text:
        told["prompt_text"] = encoder.shown(text)
    if tracked is not None:
        origin = Provenance(chat, tracked, prompt=prompt, turn_ends=turn_ends)
        if asked.return_message_spans:
            told["message_spans"] = origin.spans()
        if asked.return_loss_mask:
            told["loss_mask"] = origin.loss_mask()
    return prompt, told


def hashes(asked: BlockHashOptions | bool | None, ids: Sequence[int], *, cache_salt: str | None) -> dict[str, Any]:
    """The field with a prompt's block hashes where they are asked for."""
    if not asked:
        return {}
    options = asked if isinstance(asked, BlockHashOptions) else BlockHashOptions()
    return {"block_hashes": block_hashes(ids, options=options, cache_salt=cache_salt)}


def hashed(request: ChatCompletionRequest | CompletionRequest, ids: Sequence[int]) -> dict[str, Any]:
    """The same, for a request that is rendered."""
    return hashes(request.return_block_hashes, ids, cache_salt=request.cache_salt)
