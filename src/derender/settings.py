"""How a model is served: what an operator sets by flags, for one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Settings of one model. Defaults are those of `derender serve`.

    `chat_template`: a file, the name of one of the model's templates, or a template's text. `max_model_len`: tokens.
    `tokenizer_mode`: an encoder (tokenizers, fastokens) or a kind of vocabulary file; vLLM's words are among them.
    `format_file`: a TOML file with an output format, in the place of the two parsers.
    `stop_strings`: who looks for them, the engine or derender.
    """

    served_model_names: tuple[str, ...] = ()
    tokenizer: str | None = None
    tokenizer_mode: Literal[
        "auto", "tokenizers", "fastokens", "hf", "slow", "mistral", "tekken", "tiktoken", "sentencepiece", "gguf"
    ] = "auto"
    revision: str | None = None
    tokenizer_revision: str | None = None
    max_model_len: int | None = None
    max_logprobs: int = 20
    chat_template: str | None = None
    chat_template_content_format: Literal["auto", "string", "openai"] = "auto"
    trust_request_chat_template: bool = False
    default_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    generation_config: str = "auto"
    override_generation_config: Mapping[str, Any] = field(default_factory=dict)
    stop_strings: Literal["engine", "derender"] = "engine"
    max_tokens_over_room: Literal["clamp", "refuse"] = "refuse"
    tolerate_unknown_ids: bool = False
    guard_special_tokens: bool = False
    encode_cache_mb: float = 64
    strict_vllm: bool = False
    exclude_tools_when_tool_choice_none: bool = False
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    format_file: str | None = None
    enable_auto_tool_choice: bool = False
    tool_strict_level: Literal["auto", "function", "parameter"] = "auto"
    tool_call_streaming: Literal["incremental", "complete"] = "incremental"
    framing: Literal["keep", "trim"] = "keep"
    state_key: str | None = field(default=None, repr=False)
    reasoning_field: Literal["reasoning", "reasoning_content", "both"] = "reasoning"
