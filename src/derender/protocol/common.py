"""What several dialects share: token ids, usage, stream options, structured outputs, metrics."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

TokenId = Annotated[int, Meta(ge=0)]
"""A token id; its upper bound is the model's and is checked where the model is known."""

NonNegative = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A count or a position. Bounded so that sums of it can be written: Python writes no integer of over 4,300 digits."""

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Json = dict[str, Any]


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream says beside its deltas."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: Int64 | None = None
    created_cache_tokens: Int64 | None = None
    multimodal_tokens: dict[str, int] | None = None


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: Int64 | None = None


class Usage(msgspec.Struct, frozen=True):
    """Token counts; `completion_tokens` counts generated ids, whatever became of them."""

    prompt_tokens: Int64 = 0
    total_tokens: Int64 = 0
    completion_tokens: Int64 | None = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class PromptLogprob(msgspec.Struct, frozen=True):
    """One candidate at one prompt position; the map's key is its token id."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class BlockHashOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a prompt's blocks are hashed: as vLLM's prefix cache does with these settings of the engine.

    `block_size`: tokens. `algorithm`: the engine's `--prefix-caching-hash-algo`. `seed`: its `PYTHONHASHSEED`, or what
    vLLM takes where there is none.
    """

    block_size: Annotated[int, Meta(ge=1, le=65536)] = 16
    algorithm: Literal["sha256", "sha256_cbor"] = "sha256"
    seed: Annotated[str, Meta(max_length=128)] = "vllm-none-hash"


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint on the output. At most one of json, regex, choice (and grammar, json_object, structural_tag)."""

    json: str | Json | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None


class RepetitionDetection(msgspec.Struct, frozen=True):
    max_pattern_size: Int64 = 0
    min_pattern_size: Int64 = 0
    min_count: Int64 = 0


class JsonSchemaFormat(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    schema: Json | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """`response_format`; the members of a structural tag are carried as they are."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    format: Any = None
    structures: list[Json] | None = None
    triggers: list[str] | None = None


class ModelPermission(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model_permission"] = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One served name. `derender` says what runs for it (encoder in use, why a faster one is not)."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "derender"
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    permission: list[ModelPermission] = []
    derender: Json | msgspec.UnsetType = msgspec.UNSET


class ModelList(msgspec.Struct, frozen=True):
    object: Literal["list"] = "list"
    data: list[ModelCard] = []
