"""What rendering needs to know of one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.common import StructuredOutputs
from derender.rendering.guard import Guard
from derender.rendering.structured import json_tool_constraint
from derender.template.source import TemplateSet
from derender.tokenizer import Tokenizer

ToolConstraint = Callable[[ChatCompletionRequest], StructuredOutputs | None]
"""What holds the engine to the tool calls that a request demands; None where it demands none."""


@dataclass(frozen=True, kw_only=True)
class RenderModel:
    """One model as rendering sees it. Immutable; shared by all requests and threads.

    `name` is the served name, for messages. `templates` is None for a model without a chat template: it serves
    completions, and a chat is refused. `vocab_size` is the model's (padded) size, the bound for ids that a caller
    gives. `sampling_defaults` are the model's own (generation_config.json): temperature, top_p, top_k, min_p, the
    penalties, max_tokens (its max_new_tokens) and stop_token_ids (further end-of-turn ids).
    """

    name: str
    tokenizer: Tokenizer
    templates: TemplateSet | None
    max_model_len: int
    vocab_size: int
    max_logprobs: int = 20
    """Most logprobs per token that the engine gives; -1: the whole vocabulary."""

    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    end_id: int | None = None
    """The tokenizer's end-of-sequence id where the model's configuration does not name it: an engine without the
    tokenizer would not stop there. Not sent with `ignore_eos`."""

    content_format: Literal["auto", "string", "openai"] = "auto"
    default_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    trust_request_chat_template: bool = False
    exclude_tools_when_tool_choice_none: bool = False
    stop_strings: Literal["engine", "derender"] = "engine"
    """Who looks for stop strings. "derender": they are kept out of the GenerateRequest."""

    has_tool_parser: bool = False
    auto_tool_choice: bool = False
    has_reasoning_parser: bool = False
    start_region: Callable[[Sequence[int], Mapping[str, Any]], str | None] | None = None
    """In which region ("reasoning" or "content") the output of a prompt begins; None where there is no reasoning."""

    turn_ends: Mapping[str, int] = field(default_factory=dict)
    """The tokens that end a turn of the assistant, spelling → id: end-of-sequence, and what the output format ends a
    turn or a message with."""

    reasoning_tags: Sequence[tuple[str, str]] = (("<think>", "</think>"),)
    """What a history may have around reasoning."""

    guard: Guard | None = None
    """What keeps control tokens out of messages; None: texts may spell them."""

    tool_constraint: ToolConstraint = json_tool_constraint
    """Asked only where there is a tool parser and the request has tools."""

    max_tokens_over_room: Literal["clamp", "refuse"] = "clamp"
    """A `max_tokens` that fits the context but not what the prompt leaves of it. "clamp" is vLLM's rule since it
    stopped reserving room for output; "refuse" is OpenAI's, and was vLLM's (vllm#32863): 400 with the three numbers."""
