"""The token protocol: what render sends to a generate server, and what it answers, whole and streamed.

Both generations of the wire are read: logprobs that name a token by integer (vLLM 0.30 and later) and by the
placeholder `token_id:N` (0.24 to 0.29). Source of the fields: vllm#43606, vllm#57574, vllm#56851.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from derender.protocol.common import (
    Int64,
    Json,
    NonNegative,
    PromptLogprobs,
    RepetitionDetection,
    StreamOptions,
    StructuredOutputs,
    TokenId,
    Usage,
)

OutputMode = Literal["tokens", "text", "derender"]


class PlaceholderRange(msgspec.Struct, frozen=True):
    """Where one multimodal item's tokens lie in `token_ids`."""

    offset: NonNegative
    length: Annotated[int, Meta(gt=0)]


class MultiModalFeatures(msgspec.Struct, frozen=True):
    """Hashes, places and (base64) tensors of multimodal items; all maps have the same modalities and list lengths."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[PlaceholderRange]]
    kwargs_data: dict[str, list[str | None]] | None = None
    mm_metadata: dict[str, list[str | None]] | None = None

    def __post_init__(self) -> None:
        modalities = self.mm_hashes.keys()
        for name in ("mm_placeholders", "kwargs_data", "mm_metadata"):
            lists = getattr(self, name)
            if lists is None:
                continue
            if lists.keys() != modalities:
                raise ValueError(f"{name} must use the same modalities as mm_hashes")
            for modality, items in lists.items():
                if len(items) != len(self.mm_hashes[modality]):
                    raise ValueError(f"{modality} {name} and mm_hashes must have the same length")
        ranges = sorted((r.offset, r.offset + r.length) for items in self.mm_placeholders.values() for r in items)
        if any(start < end for (_, end), (start, _) in itertools.pairwise(ranges)):
            raise ValueError("mm_placeholders must be globally non-overlapping and sorted")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample. A field that is unset is not on the wire; its default is the one that vLLM's engine has.

    `max_tokens` is always written: older renderers leave it out when it equals 16, and then the engine runs to
    the end of the context.
    """

    n: int | UnsetType = UNSET
    presence_penalty: float | UnsetType = UNSET
    frequency_penalty: float | UnsetType = UNSET
    repetition_penalty: float | UnsetType = UNSET
    temperature: float | UnsetType = UNSET
    watermarking: bool | UnsetType | None = UNSET
    top_p: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET
    min_p: float | UnsetType = UNSET
    seed: int | UnsetType | None = UNSET
    stop: str | list[str] | UnsetType | None = UNSET
    stop_token_ids: list[TokenId] | UnsetType | None = UNSET
    ignore_eos: bool | UnsetType = UNSET
    max_tokens: int | UnsetType | None = UNSET
    min_tokens: int | UnsetType = UNSET
    logprobs: int | UnsetType | None = UNSET
    prompt_logprobs: int | UnsetType | None = UNSET
    prompt_logprob_token_ids: list[list[int]] | UnsetType | None = UNSET
    prompt_logprob_start: int | UnsetType | None = UNSET
    logprob_token_ids: list[TokenId] | UnsetType | None = UNSET
    flat_logprobs: bool | UnsetType = UNSET
    detokenize: bool | UnsetType = UNSET
    skip_special_tokens: bool | UnsetType = UNSET
    spaces_between_special_tokens: bool | UnsetType = UNSET
    include_stop_str_in_output: bool | UnsetType = UNSET
    stream_interval: int | UnsetType | None = UNSET
    structured_outputs: StructuredOutputs | UnsetType | None = UNSET
    logit_bias: dict[str, float] | UnsetType | None = UNSET
    allowed_token_ids: list[TokenId] | UnsetType | None = UNSET
    extra_args: Json | UnsetType | None = UNSET
    bad_words: list[str] | UnsetType | None = UNSET
    thinking_token_budget: int | UnsetType | None = UNSET
    repetition_detection: RepetitionDetection | UnsetType | None = UNSET
    routed_experts_prompt_start: int | UnsetType = UNSET
    trace_decode_token_ids: list[TokenId] | UnsetType | None = UNSET


class ReasoningParserKwargs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    chat_template_kwargs: Json = {}


class ParseContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the derender side needs of the request (vLLM 0.33): the rendered request alone is enough to derender."""

    tools: list[Json] | None = None
    tool_choice: Any = "none"
    parallel_tool_calls: bool | None = True
    include_reasoning: bool = True
    chat_template_kwargs: Json | None = None
    history_tool_call_cnt: int = 0


SpanPart = Literal["content", "reasoning", "tool_calls", "scaffold"]


class MessageSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a prompt, from `start` to before `end`, that come from one message's text; `scaffold` is what the
    template wrote around texts, then `message` is null where it belongs to none, or that cannot be told."""

    start: int
    end: int
    message: int | None
    part: SpanPart


class BlockHashes(msgspec.Struct, frozen=True, kw_only=True):
    """Hashes of a prompt's whole blocks, in order, in hexadecimal digits."""

    block_size: int
    algorithm: Literal["sha256", "sha256_cbor"]
    hashes: list[str]


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids and sampling parameters: render's output, generate's input.

    On input every field but `token_ids` and `sampling_params` may be missing; unknown ones are ignored.
    `token_ids` has at least one id, none negative; the vocabulary bounds it where the model is known.
    """

    request_id: str = ""
    token_ids: Annotated[list[TokenId], Meta(min_length=1)]
    token_offsets: list[tuple[int, int]] | None = None
    features: MultiModalFeatures | None = None
    content_parts: list[Json] | None = None
    sampling_params: SamplingParams
    model: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: ReasoningParserKwargs | None = None
    return_token_ids: bool | None = None
    output_mode: OutputMode = "tokens"
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: Int64 = 0
    kv_transfer_params: Json | None = None
    ec_transfer_params: Json | None = None
    parse_context: ParseContext | UnsetType | None = UNSET
    prompt_text: str | UnsetType = UNSET
    message_spans: list[MessageSpan] | UnsetType = UNSET
    loss_mask: list[int] | UnsetType = UNSET
    block_hashes: BlockHashes | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.cache_salt is not None and not valid_cache_salt(self.cache_salt):
            raise ValueError(f"cache_salt {CACHE_SALT_RULE}")
        if self.content_parts and self.features:
            raise ValueError("content_parts and features are mutually exclusive")
        features = self.features
        if features is None:
            return
        for ranges in features.mm_placeholders.values():
            if any(r.offset + r.length > len(self.token_ids) for r in ranges):
                raise ValueError("mm_placeholders must remain within the token_ids sequence")
        if not self.ec_transfer_params:
            tensors = features.kwargs_data or {}
            for modality, items in (features.mm_metadata or {}).items():
                data = tensors.get(modality) or [None] * len(items)
                if any(item is not None and d is None for item, d in zip(items, data, strict=False)):
                    raise ValueError("metadata-only multimodal items require ec_transfer_params")


CACHE_SALT_RULE = "must be 1 to 128 characters and must not contain '@', '/', '\\\\', or NUL."


def valid_cache_salt(salt: str) -> bool:
    """Whether a cache salt may be used as a part of a key (vLLM's rule)."""
    return 1 <= len(salt) <= 128 and not any(c in salt for c in "@/\\\0")


# ------------------------------------------------------------------------------------------------- answers


class GenerateTopLogprob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One candidate. Named by `token_id`, or by `token` in older servers (`token_id:N`, with or without bytes).

    Fields stand in the order in which they come over the wire: the decoder looks for the next one first.
    """

    token_id: int | None = None
    logprob: float = -9999.0
    rank: int | None = None
    token: str | None = None
    bytes: list[int] | None = None


class GenerateLogprob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The sampled token at one position, then the candidates (the sampled one first, then rank order)."""

    token_id: int | None = None
    logprob: float = -9999.0
    rank: int | None = None
    top_logprobs: list[GenerateTopLogprob] | None = None
    token: str | None = None
    bytes: list[int] | None = None


class GenerateLogprobs(msgspec.Struct, frozen=True):
    """One entry per generated token."""

    content: list[GenerateLogprob] | None = None


class GenerateChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence, whole. Null or empty `token_ids`: aborted, or ended at once."""

    index: NonNegative
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None
    token_ids: list[TokenId] | None = None
    routed_experts: str | None = None
    sampling_mask: list[list[int]] | None = None
    weight_versions: list[Any] | None = None
    logprobs: GenerateLogprobs | None = None


class GenerateStreamChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A delta of one sequence: `token_ids` and `logprobs` are what is new."""

    index: NonNegative
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[TokenId] | None = None
    routed_experts: str | None = None
    sampling_mask: list[list[int]] | None = None
    weight_versions: list[Any] | None = None
    logprobs: GenerateLogprobs | None = None


class GenerateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer of a generate server, in tokens."""

    request_id: str = ""
    model: str | None = None
    created: int | None = None
    usage: Usage | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_id_logprobs: str | None = None
    prompt_token_ids: list[TokenId] | None = None
    mm_placeholders: dict[str, list[PlaceholderRange]] | None = None
    metrics: Json | None = None
    kv_transfer_params: Json | None = None
    ec_transfer_params: Json | None = None
    output_mode: Literal["tokens"] = "tokens"
    choices: list[GenerateChoice]


class GenerateChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a generate stream. A usage-only event has no choices."""

    request_id: str = ""
    usage: Usage | None = None
    prompt_token_ids: list[TokenId] | None = None
    mm_placeholders: dict[str, list[PlaceholderRange]] | None = None
    metrics: Json | None = None
    output_mode: Literal["tokens"] = "tokens"
    choices: list[GenerateStreamChoice]


class AbortRequest(msgspec.Struct, frozen=True):
    """Body of `POST /inference/v1/abort_requests`."""

    request_ids: list[str]
