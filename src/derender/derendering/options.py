"""What of a request matters to its answer, for chat and completions alike."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.completions import CompletionRequest

StopStrings = Literal["engine", "derender"]


@dataclass(frozen=True, kw_only=True)
class DerenderOptions:
    """Options of one answer. `stop_ids` end the output and are left out of its text.

    `top_logprobs`: how many alternatives an entry shows; None shows what came.
    """

    skip_special_tokens: bool = True
    stop: tuple[str, ...] = ()
    keep_stop: bool = False
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    top_logprobs: int | None = None
    tokens_as_ids: bool = False
    return_token_ids: bool = False

    @property
    def hides_stop_token(self) -> bool:
        """Whether the token that ended the output is left out of its text (vLLM 0.33)."""
        return self.skip_special_tokens and not self.keep_stop


def derender_options(
    request: ChatCompletionRequest | CompletionRequest | None, *, eos_token_ids: Collection[int]
) -> DerenderOptions:
    """The options that a request asks for; without one, those of an empty request."""
    if request is None:
        return DerenderOptions(stop_ids=frozenset(eos_token_ids))
    stop = request.stop
    stop_ids = frozenset(request.stop_token_ids or ())
    top: int | None = None
    if isinstance(request, ChatCompletionRequest) and request.logprobs:
        top = None if request.top_logprobs == -1 else request.top_logprobs or 0
    return DerenderOptions(
        skip_special_tokens=request.skip_special_tokens,
        stop=() if not stop else (stop,) if isinstance(stop, str) else tuple(s for s in stop if s),
        keep_stop=request.include_stop_str_in_output,
        min_tokens=request.min_tokens,
        stop_ids=stop_ids if request.ignore_eos else stop_ids.union(eos_token_ids),
        top_logprobs=top,
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
        return_token_ids=bool(request.return_token_ids),
    )
