"""What of a request matters to its answer, for chat and completions alike."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from derender.limits import LIMITS
from derender.parser.coerce import ToolSchemas
from derender.parser.compiled import CompiledFormat
from derender.parser.start import Region
from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.completions import CompletionRequest
from derender.protocol.errors import InvalidBody

StopStrings = Literal["engine", "derender"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What of a chat request matters to reading its output format.

    `choice`: "none", "auto", "required", or "named" with the tool's name. `start`: the region that the output begins
    in. `visible`: whether reasoning is shown.
    """

    compiled: CompiledFormat
    schemas: ToolSchemas
    start: Region
    choice: Literal["none", "auto", "required", "named"] = "none"
    name: str = ""
    parallel: bool = True
    visible: bool = True
    complete: bool = False
    trim: bool = False


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
    reading: Reading | None = None
    """How the output format is read; None for a model without one."""

    @property
    def hides_stop_token(self) -> bool:
        """Whether the token that ended the output is left out of its text (vLLM 0.33)."""
        return self.skip_special_tokens and not self.keep_stop


def derender_options(
    request: ChatCompletionRequest | CompletionRequest | None, *, eos_token_ids: Collection[int]
) -> DerenderOptions:
    """The options that a request asks for; without one, those of an empty request.

    Raises `InvalidBody` for more stop strings than a request may have: each token of the text is held against each.
    """
    if request is None:
        return DerenderOptions(stop_ids=frozenset(eos_token_ids))
    stop = request.stop
    if isinstance(stop, list) and len(stop) > LIMITS.max_stop_strings:
        where = "chat_request.stop" if isinstance(request, ChatCompletionRequest) else "completion_request.stop"
        raise InvalidBody(
            f"{where}: list should have at most {LIMITS.max_stop_strings} items, not {len(stop)}", param=f"body.{where}"
        )
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
