"""Token counts of an answer."""

from __future__ import annotations

import msgspec

from derender.protocol.common import CompletionTokensDetails, Usage
from derender.protocol.generate import GenerateResponse


def prompt_count(given: int | None, response: GenerateResponse) -> int:
    """Prompt tokens: the caller's number, else the engine's, else the length of the prompt that the engine echoed."""
    if given is not None:
        return given
    if response.usage is not None and response.usage.prompt_tokens:
        return response.usage.prompt_tokens
    return len(response.prompt_token_ids or ())


def total_usage(prompt_tokens: int, completion_tokens: int, engine: Usage | None) -> Usage:
    """Usage with the engine's details (cached tokens) passed on."""
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=engine.prompt_tokens_details if engine else None,
        completion_tokens_details=engine.completion_tokens_details if engine else None,
    )


def stream_usage(prompt_tokens: int | None, engine: Usage | None) -> Usage | None:
    """Usage of a chunk: the engine's, with the caller's prompt count where it gave one."""
    if engine is None or prompt_tokens is None:
        return engine
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=engine.completion_tokens,
        total_tokens=prompt_tokens + (engine.completion_tokens or 0),
        prompt_tokens_details=engine.prompt_tokens_details,
        completion_tokens_details=engine.completion_tokens_details,
    )


def with_reasoning(usage: Usage, reasoning_tokens: int) -> Usage:
    """Usage that tells how many tokens were reasoning."""
    details = CompletionTokensDetails(reasoning_tokens=reasoning_tokens)
    return msgspec.structs.replace(usage, completion_tokens_details=details)
