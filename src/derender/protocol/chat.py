"""The chat dialect: `/v1/chat/completions` requests, responses and stream chunks, with vLLM's extra fields."""

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

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["function"] = "function"
    function: FunctionDefinition
    defer_loading: bool | None = None


class NamedFunction(msgspec.Struct, frozen=True):
    name: str


class NamedToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    function: NamedFunction
    type: Literal["function"] = "function"


class ChatCompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A chat request. Messages stay as they came: what may stand in them is checked where they are normalised.

    `tool_choice` unset means auto where tools are given, else none. `documents`, `chat_template`,
    `chat_template_kwargs` go to the template. Fields that are unknown are ignored, as vLLM does.
    """

    messages: list[Json]
    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    presence_penalty: float | None = None
    response_format: ResponseFormat | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[Tool] | None = None
    tool_choice: str | NamedToolChoice | UnsetType | None = UNSET
    reasoning_effort: ReasoningEffort | None = None
    thinking_token_budget: Int64 | None = None
    include_reasoning: bool = True
    parallel_tool_calls: bool | None = True
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
    prompt_logprobs: int | None = None
    logprob_token_ids: list[TokenId] | None = None
    allowed_token_ids: list[TokenId] | None = None
    bad_words: list[str] = []
    echo: bool = False
    add_generation_prompt: bool | UnsetType = UNSET
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, str]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: Json | None = None
    media_io_kwargs: dict[str, Json] | None = None
    mm_processor_kwargs: Json | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: Int64 = 0
    request_id: str | None = None
    session_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    routed_experts_prompt_start: NonNegative = 0
    return_token_offsets: bool | None = False
    return_prompt_text: bool | None = None
    return_message_spans: bool | None = None
    return_loss_mask: bool | None = None
    return_block_hashes: BlockHashOptions | bool | None = None
    previous_token_ids: list[TokenId] | None = None
    keep_previous_reasoning: bool = False
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: Json | None = None
    ec_transfer_params: Json | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    repetition_detection: RepetitionDetection | None = None
    stream_interval: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None

    @property
    def effective_tool_choice(self) -> str | NamedToolChoice | None:
        """`tool_choice` with its default applied: auto where tools are given, else none."""
        if self.tool_choice is UNSET:
            return "auto" if self.tools else "none"
        return self.tool_choice


# ------------------------------------------------------------------------------------------------- answers


class FunctionCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message. `tool_calls` is left out when there are none, as vLLM does."""

    role: str = "assistant"
    content: str | None = None
    refusal: str | None = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType | None = None
    reasoning_content: str | UnsetType | None = UNSET


class ChatTopLogprob(msgspec.Struct, frozen=True, gc=False):
    """`bytes` are the token's own, exact; null for what is no token of the model."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(msgspec.Struct, frozen=True, gc=False):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """One entry per generated token, in order."""

    content: list[ChatLogprob] | None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    routed_experts: str | None = None
    sampling_mask: list[list[int]] | UnsetType = UNSET
    weight_versions: list[Any] | UnsetType = UNSET


class ChatCompletionResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    kv_transfer_params: Json | None = None
    ec_transfer_params: Json | None = None
    metrics: Json | None = None


class FunctionCallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a call: id, type and name once, then index and arguments only."""

    id: str | None = None
    type: str | None = None
    index: int
    function: FunctionCallDelta | None = None


class DeltaMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What is new. `role` stands in the first chunk only; empty `tool_calls` are left out."""

    role: str | None = None
    content: str | None = None
    reasoning: str | UnsetType | None = None
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatStreamChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: DeltaMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatStreamChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    metrics: Json | None = None
