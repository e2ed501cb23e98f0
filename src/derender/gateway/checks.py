"""What an engine's answer must be, whole or streamed. What is otherwise is the engine's failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from derender.engines.errors import EngineFailed
from derender.gateway.context import Leg
from derender.protocol.generate import GenerateChoice, GenerateResponse, GenerateStreamChoice

if TYPE_CHECKING:
    from derender.model import Model


class AnswerCheck:
    """The choices of one answer: those that were asked for, none longer than asked for, none that goes on after its
    end, all with an end, of ids that the model has, with a logprob for each where logprobs were asked for.

    Raises `EngineFailed`.
    """

    def __init__(self, model: Model, leg: Leg) -> None:
        assert leg.sent is not None
        params = leg.sent.sampling_params
        self._most = params.max_tokens if isinstance(params.max_tokens, int) else None
        self._logprobs = isinstance(params.logprobs, int)
        self._knows = None if model.settings.tolerate_unknown_ids else model.tokenizer.knows
        self._counts = [0] * leg.choices
        self._open = set(range(leg.choices))

    def choice(self, choice: GenerateChoice | GenerateStreamChoice) -> None:
        """The next choice of a whole answer, or what is new of one in a stream."""
        counts = self._counts
        index = choice.index
        if index >= len(counts):
            raise EngineFailed("the engine sent a choice that was not asked for")
        ids = choice.token_ids
        if index not in self._open and (ids or choice.finish_reason is not None):
            raise EngineFailed("the engine went on with a choice after its end")
        if ids:
            counts[index] += len(ids)
            if self._most is not None and counts[index] > self._most:
                raise EngineFailed("the engine sent more tokens than were asked for")
            if self._knows is not None and not all(map(self._knows, ids)):
                raise EngineFailed("the engine sent token ids that are not in the model's vocabulary")
            if self._logprobs:
                told = choice.logprobs.content if choice.logprobs is not None else None
                if told is None or len(told) != len(ids):
                    raise EngineFailed("the engine did not send one logprob for each token")
        if choice.finish_reason is not None:
            self._open.discard(index)

    def end(self) -> None:
        """The answer is over."""
        if self._open:
            raise EngineFailed("the engine ended its answer before the end of a choice")


def check_response(model: Model, leg: Leg, response: GenerateResponse) -> None:
    """Raises `EngineFailed` for a whole answer that is none to what was asked."""
    check = AnswerCheck(model, leg)
    for choice in response.choices:
        check.choice(choice)
    check.end()
