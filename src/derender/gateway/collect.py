"""A whole answer gathered from an engine's stream, which is ended as soon as stop strings have ended all choices."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from msgspec import UNSET

from derender.gateway.context import Context, Leg
from derender.gateway.reading import no_answer, stream_derenderer
from derender.protocol.common import Usage
from derender.protocol.errors import BadRequest
from derender.protocol.generate import (
    GenerateChoice,
    GenerateChunk,
    GenerateLogprob,
    GenerateLogprobs,
    GenerateResponse,
    GenerateStreamChoice,
)


def needs_watching(context: Context) -> bool:
    """Whether a whole answer is taken as a stream: it has stop strings that only text shows.

    Not where the engine's whole answer holds what its stream does not; derender then cuts the text all the same.
    """
    request = context.request
    if not request.stop:
        return False
    params = context.prompts[0].sampling_params
    forwarded = params.stop is not UNSET and bool(params.stop)
    whole = request.kv_transfer_params or request.ec_transfer_params
    return not (forwarded or whole or params.prompt_logprobs not in (None, UNSET))


class _Choice:
    """One choice so far."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[GenerateLogprob] = []
        self.with_logprobs = False
        self.last: GenerateStreamChoice | None = None

    def push(self, choice: GenerateStreamChoice) -> None:
        self.ids += choice.token_ids or ()
        if choice.logprobs is not None:
            self.with_logprobs = True
            self.logprobs += choice.logprobs.content or ()
        self.last = choice

    def whole(self, index: int) -> GenerateChoice:
        last = self.last
        return GenerateChoice(
            index=index,
            finish_reason=(last.finish_reason if last is not None else None) or "stop",
            stop_reason=last.stop_reason if last is not None else None,
            token_ids=self.ids,
            logprobs=GenerateLogprobs(self.logprobs) if self.with_logprobs else None,
            routed_experts=last.routed_experts if last is not None else None,
            sampling_mask=last.sampling_mask if last is not None else None,
            weight_versions=last.weight_versions if last is not None else None,
        )


async def collected(context: Context, leg: Leg, several: AsyncGenerator[list[GenerateChunk], None]) -> GenerateResponse:
    """The leg's whole answer. Derender finds the same stop strings in it again, and cuts its text there.

    Raises `EngineFailed`.
    """
    watch = stream_derenderer(context, leg.prompt)
    choices = [_Choice() for _ in range(leg.choices)]
    usage: Usage | None = None
    identity = context.identity
    try:
        async for chunks in several:
            for chunk in chunks:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    choices[choice.index].push(choice)
                try:
                    watch.push(GenerateChunk(request_id=identity, choices=chunk.choices))
                except BadRequest as error:
                    leg.failure = no_answer(error)
                    raise leg.failure from error
            if watch.cut and watch.ended(leg.choices):
                leg.stopped = True
                break
    finally:
        await several.aclose()
    return GenerateResponse(
        request_id=identity, usage=usage, choices=[choice.whole(index) for index, choice in enumerate(choices)]
    )
