"""The completions dialect: `/v1/completions` requests, responses and stream chunks, with vLLM's extra fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from derender.protocol.common import (
    BlockHashOptions,
    Int64,
    Json,
    NonNegative,
    PromptLogprobs,
    RepetitionDetection,
    ResponseFormat,
    StreamOptions,
    StructuredOutputs,
    TokenId,
    Usage,
)


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A completions request. `prompt` is a string, a list of strings, a list of ids, or a list of lists of ids;
    which one is decided (and its items checked) where it is rendered."""

    model: str | None = None
    prompt: Any = None
    echo: bool | None = False
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: int | None = None
    max_tokens: int | None = 16
    n: int | None = 1
    presence_penalty: float | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    use_beam_search: bool = False
    top_k: Int64 | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    watermarking: bool | None = None
    length_penalty: float = 1.0
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    allowed_token_ids: list[TokenId] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[TokenId] | None = None
    bad_words: list[str] = []
    prompt_embeds: Any = None
    add_special_tokens: bool = True
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: Int64 = 0
    request_id: str | None = None
    session_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    routed_experts_prompt_start: NonNegative = 0
    return_token_offsets: bool | None = False
    return_block_hashes: BlockHashOptions | bool | None = None
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: Json | None = None
    ec_transfer_params: Json | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    repetition_detection: RepetitionDetection | None = None
    thinking_token_budget: Int64 | None = None
    stream_interval: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists, one entry per token. `text_offset` counts characters; keys of a map do not collide."""

    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    routed_experts: str | None = None
    sampling_mask: list[list[int]] | UnsetType = UNSET
    weight_versions: list[Any] | UnsetType = UNSET


class CompletionResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: Usage
    kv_transfer_params: Json | None = None
    ec_transfer_params: Json | None = None
    metrics: Json | None = None


class CompletionStreamChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class CompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionStreamChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
    metrics: Json | None = None
