"""SGLang's answers as the token protocol's.

A chunk of a stream has either all ids so far or the new ones, by the server's version and flags
(`--incremental-streaming-output`); its logprobs likewise, and not always the same way. Source: SGLang's
`tokenizer_manager.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from derender.engines.errors import EngineFailed, EngineRefused
from derender.protocol.codec import MIN_LOGPROB
from derender.protocol.common import PromptLogprob, PromptLogprobs, PromptTokensDetails, Usage
from derender.protocol.errors import MAX_MESSAGE
from derender.protocol.generate import GenerateLogprob, GenerateLogprobs, GenerateStreamChoice, GenerateTopLogprob

Scored = tuple[float | None, int, Any]
"""A logprob, the id, and its text or null."""


class Finish(msgspec.Struct):
    """Why an output ended. `matched`: the id, or the text, that did it."""

    type: str
    matched: Any = None
    message: str | None = None
    status_code: int | None = None


class Meta(msgspec.Struct):
    id: str | None = None
    finish_reason: Finish | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    input_token_logprobs: list[Scored] | None = None
    input_top_logprobs: list[list[Scored] | None] | None = None
    output_token_logprobs: list[Scored] | None = None
    output_top_logprobs: list[list[Scored] | None] | None = None


class Answer(msgspec.Struct):
    """A whole answer, or a chunk of one, or an error."""

    meta_info: Meta | None = None
    output_ids: list[int] | None = None
    error: Any = None


decode = msgspec.json.Decoder(Answer).decode


class Output:
    """What came of one output. `push` each answer; the whole answer is a stream with one chunk.

    `logprobs`: how many candidates beside the sampled id, None for none at all. `stops`: the request's own stop ids.
    """

    def __init__(self, *, name: str, logprobs: int | None, stops: Sequence[int]) -> None:
        self.usage: Usage | None = None
        self.ids: list[int] = []
        self.ended = False
        self._name = name
        self._logprobs = logprobs
        self._stops = frozenset(stops)

    def push(self, answer: Answer) -> GenerateStreamChoice | None:
        """What is new; None where nothing is. Raises `EngineFailed`, `EngineRefused`."""
        meta = answer.meta_info
        if meta is None:
            raise self._failed("sent what is no answer")
        finish = meta.finish_reason
        if finish is not None and finish.type == "abort":
            self._raise_for(finish)
        before = len(self.ids)
        new = self._new(answer, meta)
        self.ids += new
        self.ended = finish is not None
        self.usage = self._counted(meta)
        if not new and finish is None:
            return None
        logprobs = None
        if self._logprobs is not None:
            logprobs = GenerateLogprobs(self._entries(meta, new, before, self._logprobs))
        reason, stop = (None, None) if finish is None else self._why(finish)
        return GenerateStreamChoice(
            index=0, token_ids=new, logprobs=logprobs, finish_reason=reason, stop_reason=stop
        )  # fmt: skip

    def _new(self, answer: Answer, meta: Meta) -> list[int]:
        """The answer's new ids, whether it has them alone or all so far.

        The counter tells: a delta has as many ids as it grew by. All ids so far may be more than it says, because the
        server counts first and writes later, but never so few.
        """
        seen, ids, counted = self.ids, answer.output_ids, meta.completion_tokens
        if ids is None:
            if meta.finish_reason is not None and meta.finish_reason.type == "abort":
                return []
            raise self._failed("answers with text and without output_ids: it needs --skip-tokenizer-init")
        if not seen:
            return ids
        if counted is None:
            cumulative = len(ids) >= len(seen) and ids[: len(seen)] == seen
        else:
            cumulative = len(ids) > max(0, counted - len(seen))
        if not cumulative:
            if counted is not None and len(seen) + len(ids) < counted and ids:
                raise self._failed("left out ids of its stream")
            return ids
        if ids[: len(seen)] != seen:
            raise self._failed("changed ids that it had sent")
        return ids[len(seen) :]

    def _entries(self, meta: Meta, new: list[int], skip: int, k: int) -> list[GenerateLogprob]:
        """The logprobs of the new ids. `skip`: how many came before, and stand before them in a list of all so far."""
        if not new:
            return []
        scored = _part(meta.output_token_logprobs, skip, len(new))
        if scored is None or [token for _, token, _ in scored] != new:
            raise self._failed("sent logprobs that are not those of its ids")
        top = _part(meta.output_top_logprobs, skip, len(new)) if k else None
        if k and top is None:
            raise self._failed("sent no candidates beside its ids")
        return [
            _entry(token, logprob, (top[place] or []) if top is not None else [], k)
            for place, (logprob, token, _) in enumerate(scored)
        ]

    def _why(self, finish: Finish) -> tuple[str, int | str | None]:
        """finish_reason and stop_reason. An id that the request did not name as a stop is one of the model's EOS ids:
        SGLang stops at no others; on it vLLM tells no stop_reason."""
        if finish.type != "stop":
            return finish.type, None
        matched = finish.matched
        if isinstance(matched, list):
            matched = matched[-1] if matched else None
        if isinstance(matched, int):
            return "stop", matched if matched in self._stops else None
        return "stop", matched if isinstance(matched, str) else None

    def _raise_for(self, finish: Finish) -> None:
        """Raises for an abort that has a status: the engine refused the request, or failed. Without one, somebody
        asked for it."""
        status = finish.status_code
        if status is None:
            return
        message = (finish.message or "")[:MAX_MESSAGE]
        if 400 <= status < 500:
            raise EngineRefused(message or f"{self._name} refused the request", status=status)
        raise EngineFailed(message or f"{self._name} failed", overloaded=status == 503)

    def _counted(self, meta: Meta) -> Usage:
        prompt, completion = meta.prompt_tokens or 0, len(self.ids)
        details = None if meta.cached_tokens is None else PromptTokensDetails(cached_tokens=meta.cached_tokens)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=details,
        )

    def _failed(self, what: str) -> EngineFailed:
        return EngineFailed(f"{self._name} {what}")


def prompt_logprobs(meta: Meta, *, k: int, name: str) -> PromptLogprobs:
    """One map for each id of the prompt, null for the first: the id itself, and the `k` best. Raises `EngineFailed`."""
    scored = meta.input_token_logprobs
    top = meta.input_top_logprobs
    if not scored or (k and (top is None or len(top) != len(scored))):
        raise EngineFailed(f"{name} sent no logprobs of the prompt")
    made: PromptLogprobs = [None]
    for place, (logprob, token, _) in enumerate(scored[1:], 1):
        entry = _entry(token, logprob, (top[place] or []) if k and top is not None else [], k)
        made.append(
            {
                str(one.token_id): PromptLogprob(logprob=one.logprob, rank=one.rank)
                for one in entry.top_logprobs or ()
            }
        )  # fmt: skip
    return made


def _part(entries: list[Any] | None, skip: int, count: int) -> list[Any] | None:
    """The `count` entries after `skip`, or all where the list has the new ones only; None where they are not there."""
    if entries is None:
        return None
    if len(entries) >= skip + count:
        return entries[skip : skip + count]
    return entries if len(entries) == count else None


def _entry(token: int, logprob: float | None, top: Sequence[Scored], k: int) -> GenerateLogprob:
    """The sampled id, then the `k` best without it, as vLLM has them. SGLang tells no ranks: the sampled id's is known
    where it is among the candidates."""
    rank = next((place for place, (_, other, _) in enumerate(top, 1) if other == token), None)
    first = GenerateTopLogprob(token_id=token, logprob=_finite(logprob), rank=rank)
    others = [
        GenerateTopLogprob(token_id=other, logprob=_finite(value), rank=place)
        for place, (value, other, _) in enumerate(top[:k], 1)
        if other != token
    ]
    return GenerateLogprob(token_id=token, logprob=first.logprob, rank=rank, top_logprobs=[first, *others])


def _finite(value: float | None) -> float:
    return MIN_LOGPROB if value is None else max(MIN_LOGPROB, value)
