"""What a model counts while it serves."""

from __future__ import annotations

from typing import NamedTuple


class ModelTotals(NamedTuple):
    """Counts since the start: ids beyond the vocabulary that were tolerated, spellings of control tokens that became
    plain text, characters of long prompts whose ids were kept from before, and that had to be encoded."""

    unknown_ids: int = 0
    guarded: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
