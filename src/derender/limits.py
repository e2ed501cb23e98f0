"""Limits that operators set by environment variables, under vLLM's names. Read once, when this module is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper bounds on what one request may ask for."""

    max_n_sequences: int = 16384
    """`n`, and choices in one generate answer (`VLLM_MAX_N_SEQUENCES`)."""

    max_completion_prompts: int = 1024
    """Prompts in one completions request (`VLLM_MAX_COMPLETION_PROMPTS`)."""

    max_stop_strings: int = 4
    """Stop strings of one request (`VLLM_MAX_STOP_STRINGS`)."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Limits:
        """The limits that are set, the defaults for the others. Raises `ValueError` naming a variable that is wrong."""
        return cls(
            max_n_sequences=_positive(environment, "VLLM_MAX_N_SEQUENCES", cls.max_n_sequences),
            max_completion_prompts=_positive(environment, "VLLM_MAX_COMPLETION_PROMPTS", cls.max_completion_prompts),
            max_stop_strings=_positive(environment, "VLLM_MAX_STOP_STRINGS", cls.max_stop_strings),
        )


def _positive(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(f"{name} must be a positive integer, not {text!r}")
    return int(text)


LIMITS = Limits.from_environment(os.environ)
