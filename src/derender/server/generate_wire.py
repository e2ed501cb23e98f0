"""The generate server's answers as bytes: the members that vLLM writes, and both generations of logprobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from derender.protocol.codec import encode
from derender.protocol.common import Usage
from derender.protocol.generate import GenerateChunk, GenerateLogprob, GenerateLogprobs, GenerateResponse

LogprobWire = Literal["ids", "placeholders", "placeholders-bytes"]
"""How logprobs name a token: by integer (vLLM 0.30 and later), by `token_id:N` with null bytes (0.24 to 0.29), or by
`token_id:N` whose bytes are those of the placeholder itself."""

DONE = b"data: [DONE]\n\n"


class _ById(msgspec.Struct, gc=False):
    token_id: int | None
    logprob: float
    rank: int | None


class _TokenById(msgspec.Struct, gc=False):
    token_id: int | None
    logprob: float
    rank: int | None
    top_logprobs: list[_ById]


class _ByPlaceholder(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int] | None


class _TokenByPlaceholder(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[_ByPlaceholder]


class _Logprobs(msgspec.Struct, gc=False):
    content: list[_TokenById] | list[_TokenByPlaceholder]


class _Choice(msgspec.Struct, gc=False):
    index: int
    logprobs: _Logprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    routed_experts: None = None
    sampling_mask: None = None
    weight_versions: None = None


class _Chunk(msgspec.Struct, gc=False):
    request_id: str
    choices: list[_Choice]
    usage: Usage | None
    prompt_token_ids: list[int] | UnsetType = UNSET
    output_mode: str = "tokens"


class _Response(msgspec.Struct, gc=False):
    request_id: str
    model: str | None
    created: int | None
    choices: list[_Choice]
    usage: Usage | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: None = None
    prompt_token_id_logprobs: None = None
    mm_placeholders: None = None
    metrics: None = None
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    output_mode: str = "tokens"


def _by_id(entry: GenerateLogprob) -> _TokenById:
    top = [_ById(one.token_id, one.logprob, one.rank) for one in entry.top_logprobs or ()]
    return _TokenById(entry.token_id, entry.logprob, entry.rank, top)


def _placeholder(token_id: int | None) -> str:
    return f"token_id:{token_id}"


def _by_placeholder(entry: GenerateLogprob) -> _TokenByPlaceholder:
    top = [_ByPlaceholder(_placeholder(one.token_id), one.logprob, None) for one in entry.top_logprobs or ()]
    return _TokenByPlaceholder(_placeholder(entry.token_id), entry.logprob, None, top)


def _by_placeholder_bytes(entry: GenerateLogprob) -> _TokenByPlaceholder:
    named = _by_placeholder(entry)
    named.bytes = list(named.token.encode())
    for one in named.top_logprobs:
        one.bytes = list(one.token.encode())
    return named


_ENTRIES: dict[str, Callable[[GenerateLogprob], _TokenById | _TokenByPlaceholder]] = {
    "ids": _by_id,
    "placeholders": _by_placeholder,
    "placeholders-bytes": _by_placeholder_bytes,
}


class GenerateWire:
    """Encodes answers, with logprobs in one of their forms."""

    def __init__(self, logprobs: LogprobWire = "ids") -> None:
        self._entry = _ENTRIES[logprobs]

    def response(self, response: GenerateResponse) -> bytes:
        """The body of a whole answer."""
        choices = [
            _Choice(one.index, self._logprobs(one.logprobs), one.finish_reason, one.stop_reason, one.token_ids)
            for one in response.choices
        ]
        return encode(
            _Response(
                response.request_id,
                response.model,
                response.created,
                choices,
                response.usage,
                response.prompt_token_ids,
            )
        )

    def event(self, chunk: GenerateChunk) -> bytes:
        """One SSE event. Prompt ids are there only in the event that brings them."""
        choices = [
            _Choice(one.index, self._logprobs(one.logprobs), one.finish_reason, one.stop_reason, one.token_ids)
            for one in chunk.choices
        ]
        prompt = UNSET if chunk.prompt_token_ids is None else chunk.prompt_token_ids
        return b"data: " + encode(_Chunk(chunk.request_id, choices, chunk.usage, prompt)) + b"\n\n"

    def _logprobs(self, logprobs: GenerateLogprobs | None) -> _Logprobs | None:
        if logprobs is None:
            return None
        return _Logprobs([self._entry(entry) for entry in logprobs.content or ()])  # type: ignore[arg-type]
