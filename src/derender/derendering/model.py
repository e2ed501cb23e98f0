"""What derendering needs to know of a model, and the check of the ids that a caller sends."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from derender.parser.formats import Formats
from derender.protocol.errors import BadRequest
from derender.tokenizer import Tokenizer


class UnknownIds:
    """Counts ids outside the vocabulary that were let through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def add(self, number: int) -> None:
        with self._lock:
            self.count += number


@dataclass(frozen=True, kw_only=True)
class DerenderModel:
    """One model, as derendering sees it. Lengths are in tokens."""

    name: str
    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    max_model_len: int
    max_logprobs: int = 20
    max_n_sequences: int = 16384
    tolerate_unknown_ids: bool = False
    strict_vllm: bool = False
    formats: Formats | None = None
    """The model's output format; None: all that is visible is content."""

    state_key: bytes | None = None
    """Signs the state of streams that callers carry; None leaves it unsigned."""

    reasoning_field: Literal["reasoning", "reasoning_content", "both"] = "reasoning"
    unknown_ids: UnknownIds = field(default_factory=UnknownIds)

    def known_ids(self, ids: Sequence[int], *, where: str) -> Sequence[int]:
        """The ids, each of which the piece table has.

        Raises `BadRequest` naming the position and the id of one outside the vocabulary, unless unknown ids are
        tolerated: then each is counted, and the id whose piece is empty stands for it (models pad their vocabularies).
        """
        tokenizer = self.tokenizer
        if not ids or (max(ids) < tokenizer.vocab_size and not tokenizer.holes):
            return ids
        unknown_count = sum(not tokenizer.knows(i) for i in ids)
        if not unknown_count:
            return ids
        if not self.tolerate_unknown_ids:
            position, unknown = next((p, i) for p, i in enumerate(ids) if not tokenizer.knows(i))
            raise BadRequest(
                f"{where}.{position}: token id {unknown} is outside the vocabulary ({tokenizer.vocab_size} ids)",
                param=f"{where}.{position}",
            )
        self.unknown_ids.add(unknown_count)
        return [i if tokenizer.knows(i) else tokenizer.empty_id for i in ids]

    def check_id(self, token_id: int, *, where: str) -> None:
        """Raises `BadRequest` for an id outside the vocabulary, or counts it where those are tolerated."""
        if self.tokenizer.knows(token_id):
            return
        if token_id < 0 or not self.tolerate_unknown_ids:
            raise BadRequest(
                f"{where}: token id {token_id} is outside the vocabulary ({self.tokenizer.vocab_size} ids)", param=where
            )
        self.unknown_ids.add(1)
