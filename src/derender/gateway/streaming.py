"""Engines' chunks → the API's chunks, for one answer of one or several prompts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from time import perf_counter, time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from derender.engines.owned import Owned
from derender.gateway.context import Context, Leg
from derender.gateway.reading import no_answer, stream_derenderer
from derender.protocol.chat import (
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatCompletionResponse,
)
from derender.protocol.common import CompletionTokensDetails, Usage
from derender.protocol.completions import (
    CompletionChunk,
    CompletionRequest,
    CompletionResponse,
    CompletionStreamChoice,
)
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateChunk, GenerateStreamChoice

if TYPE_CHECKING:
    from derender.derendering.chat import ChatStreamDerenderer
    from derender.derendering.completions import CompletionStreamDerenderer
    from derender.gateway.loop import Gateway

Chunk = ChatCompletionChunk | CompletionChunk
Arriving = AsyncGenerator[tuple[int, list[GenerateChunk]], None]
"""Chunks of engines as they come, with the numbers of their legs."""


def tells_more_when_whole(request: ChatCompletionRequest | CompletionRequest) -> bool:
    """Whether an engine's stream lacks what the request asks for: the logprobs of the prompt. The answer is then made
    whole, and told in few chunks."""
    if isinstance(request, ChatCompletionRequest):
        return False
    return bool(request.echo) and request.logprobs is not None


class Streaming:
    """Derenders the merged chunks of all legs.

    A prompt has one derenderer, whatever number of engines its choices come from.
    """

    def __init__(self, gateway: Gateway, context: Context) -> None:
        self._gateway = gateway
        self._context = context
        self._streams = [stream_derenderer(context, number) for number in range(len(context.prompts))]
        self._created = int(time())
        self._cached: list[Usage | None] = [None] * len(context.prompts)
        self._seconds = 0.0
        self._begun = 0.0
        self._first: list[Chunk] = []
        self._over = False
        options = context.request.stream_options
        self._usage = options is not None and bool(options.include_usage)
        self._continuous = self._usage and options is not None and bool(options.continuous_usage_stats)

    async def begun(self, several: Arriving) -> AsyncGenerator[list[Chunk], None]:
        """The answer's chunks, the first of which have been made when this returns. Raises `EngineFailed`."""
        try:
            leg, chunks = await anext(several)
            self._begun = perf_counter()
            self._first = self._pushed(leg, chunks)
        except BaseException:
            await several.aclose()
            raise
        return Owned(self._chunks(several), end=partial(self._end, several))

    async def _chunks(self, several: Arriving) -> AsyncGenerator[list[Chunk], None]:
        try:
            if self._first:
                yield self._first
            while not self._over:
                try:
                    leg, chunks = await anext(several)
                except StopAsyncIteration:
                    break
                if made := self._pushed(leg, chunks):
                    yield made
            await several.aclose()
            if self._usage:
                yield [self._last(self._total())]
        finally:
            await self._end(several)

    async def _end(self, several: Arriving) -> None:
        context, gateway = self._context, self._gateway
        try:
            await several.aclose()
        finally:
            await gateway.ended()
            context.spent["derender"] = self._seconds
            if self._begun:
                context.marks.append(("stream", self._begun, perf_counter()))
            context.generated = sum(stream.generated for stream in self._streams)
            gateway.meter.stage("derender", self._seconds)
            gateway.meter.tokens(prompt=sum(len(one.token_ids) for one in context.prompts), generated=context.generated)

    def _stopped(self) -> bool:
        """Whether stop strings have ended what the engines still work on; its legs are told."""
        if not any(stream.cut for stream in self._streams):
            return False
        if not all(stream.ended(self._context.choices) for stream in self._streams):
            return False
        for leg in self._context.legs:
            leg.stopped = True
        return True

    def _pushed(self, number: int, chunks: Sequence[GenerateChunk]) -> list[Chunk]:
        """What chunks of one leg add, up to where stop strings have ended all."""
        began = perf_counter()
        leg = self._context.legs[number]
        made: list[Chunk] = []
        for chunk in chunks:
            if chunk.usage is not None:
                self._cached[leg.prompt] = chunk.usage
            if chunk.choices:
                out = self._push(leg, chunk)
                if out.choices:  # of choices that have ended there is nothing more to tell
                    made.append(out)
                self._over = self._stopped()
                if self._over:
                    break
        self._seconds += perf_counter() - began
        return made

    def _push(self, leg: Leg, chunk: GenerateChunk) -> Chunk:
        stream = self._streams[leg.prompt]
        # The choices as the derenderer of their prompt counts them, and then as the answer does.
        offset = leg.first_choice - leg.prompt * self._context.choices
        choices = chunk.choices if not offset else [_renumbered(choice, offset) for choice in chunk.choices]
        try:
            out = stream.push(
                GenerateChunk(
                    request_id=self._context.identity,
                    prompt_token_ids=self._told_ids(leg),
                    metrics=chunk.metrics,
                    choices=choices,
                )
            )
        except BadRequest as error:
            leg.failure = no_answer(error)
            raise leg.failure from error
        return self._finished(out, stream, leg.prompt)

    def _told_ids(self, leg: Leg) -> list[int] | None:
        """The prompt's ids where the client wants them; engines tell them not at all, or in one chunk."""
        return self._context.prompts[leg.prompt].token_ids if self._context.request.return_token_ids else None

    def _finished(self, chunk: Chunk, stream: ChatStreamDerenderer | CompletionStreamDerenderer, prompt: int) -> Chunk:
        if self._continuous and chunk.choices:
            chunk = replace(chunk, usage=self._of_prompt(prompt, stream.count(chunk.choices[0].index)))
        base = prompt * self._context.choices
        if base:
            chunk = replace(chunk, choices=[replace(one, index=one.index + base) for one in chunk.choices])
        return chunk if chunk.created == self._created else replace(chunk, created=self._created)

    def _of_prompt(self, prompt: int, completion: int) -> Usage:
        tokens = len(self._context.prompts[prompt].token_ids)
        return Usage(prompt_tokens=tokens, completion_tokens=completion, total_tokens=tokens + completion)

    def _total(self) -> Usage:
        """Usage of the whole answer, in tokens that are part of it; details are those of the engine for one prompt."""
        context = self._context
        prompt = sum(len(one.token_ids) for one in context.prompts)
        completion = sum(stream.generated for stream in self._streams)
        one = self._cached[0] if len(context.prompts) == 1 else None
        thought = [stream.reasoned for stream in self._streams]
        reads = [count for count in thought if count is not None]
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=one.prompt_tokens_details if one is not None else None,
            completion_tokens_details=CompletionTokensDetails(reasoning_tokens=sum(reads)) if reads else None,
        )

    def _last(self, usage: Usage) -> Chunk:
        context = self._context
        made = ChatCompletionChunk if isinstance(context.request, ChatCompletionRequest) else CompletionChunk
        return made(id=context.identity, created=self._created, model=context.name, choices=[], usage=usage)


def _renumbered(choice: GenerateStreamChoice, offset: int) -> GenerateStreamChoice:
    return replace(choice, index=choice.index + offset)


def chunks_of_answer(answer: ChatCompletionResponse | CompletionResponse, context: Context) -> list[Chunk]:
    """A whole answer as chunks: one for each choice, and usage where it is asked for."""
    assert isinstance(answer, CompletionResponse)
    options = context.request.stream_options
    chunks: list[Chunk] = [
        CompletionChunk(
            id=answer.id,
            created=answer.created,
            model=answer.model,
            choices=[
                CompletionStreamChoice(
                    index=one.index,
                    text=one.text,
                    logprobs=one.logprobs,
                    finish_reason=one.finish_reason,
                    stop_reason=one.stop_reason,
                    prompt_token_ids=one.prompt_token_ids,
                    token_ids=one.token_ids,
                )
            ],
        )
        for one in answer.choices
    ]
    if options is not None and options.include_usage:
        chunks.append(
            CompletionChunk(id=answer.id, created=answer.created, model=answer.model, choices=[], usage=answer.usage)
        )
    return chunks
