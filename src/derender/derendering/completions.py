"""Generate answers → the completions dialect, whole and per chunk. One path: the batch is a stream pushed once."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from derender.derendering.bounds import check_prompt_ids, check_repeated, check_responses, prompt_size
from derender.derendering.choice import ChoiceDelta, ChoiceStream
from derender.derendering.ids import response_id
from derender.derendering.logprobs import TokenTexts
from derender.derendering.options import DerenderOptions, derender_options
from derender.derendering.prompts import fill_prompt_logprobs, prompt_entries, prompt_text
from derender.derendering.stream import ChoiceStreams, StreamDerenderer
from derender.derendering.usage import prompt_count, stream_usage, total_usage
from derender.protocol.common import PromptLogprobs, Usage
from derender.protocol.completions import (
    CompletionChoice,
    CompletionChunk,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
    CompletionStreamChoice,
)
from derender.protocol.derender import (
    CompletionStreamContext,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
    DerenderedCompletionChunk,
)
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateChoice, GenerateChunk, GenerateResponse, GenerateStreamChoice

_log = logging.getLogger("derender")
_warned: set[str] = set()


class _Prompt:
    """What stands before the output of one prompt's choices: nothing, unless `echo` is asked for."""

    def __init__(
        self,
        texts: TokenTexts,
        asked: CompletionRequest | None,
        *,
        number: int,
        ids: Sequence[int] | None,
        logprobs: PromptLogprobs | None,
    ) -> None:
        tokenizer = texts.model.tokenizer
        self.echo = asked is not None and bool(asked.echo)
        self.only = self.echo and asked is not None and asked.max_tokens == 0
        """Nothing but the prompt was asked for: the engine generates one token, which is dropped."""
        self.text = ""
        self.entries: CompletionLogprobs | None = None
        self.length = 0
        if not self.echo or asked is None:
            return
        skip = asked.skip_special_tokens
        self.text = prompt_text(asked.prompt, number, ids=ids, model=texts.model, skip=skip)
        self.length = len(self.text)
        if asked.logprobs is not None and ids is not None and logprobs and len(logprobs) == len(ids):
            hidden = tokenizer.special_ids if skip else frozenset()
            self.entries, self.length = prompt_entries(texts, prompt_ids=ids, logprobs=logprobs, hidden=hidden)


def _joined(before: CompletionLogprobs | None, after: CompletionLogprobs | None) -> CompletionLogprobs | None:
    if before is None or after is None:
        return before or after
    return CompletionLogprobs(
        before.text_offset + after.text_offset,
        before.token_logprobs + after.token_logprobs,
        before.tokens + after.tokens,
        before.top_logprobs + after.top_logprobs,
    )


def _logprobs(
    texts: TokenTexts,
    choice: GenerateChoice | GenerateStreamChoice,
    stream: ChoiceStream,
    delta: ChoiceDelta,
    options: DerenderOptions,
) -> CompletionLogprobs | None:
    if delta.logprobs is None:
        return None if choice.logprobs is None else CompletionLogprobs()
    hidden = texts.model.tokenizer.special_ids if options.skip_special_tokens else frozenset()
    return stream.logprobs.completion(delta.logprobs, hidden=hidden)


def derender_completions(texts: TokenTexts, request: DerenderCompletionRequest) -> CompletionResponse:
    """The whole answer: choices of all prompts, numbered through. Raises `BadRequest`."""
    model, asked, responses = texts.model, request.completion_request, request.generate_responses
    if not responses:
        raise BadRequest("generate_responses must not be empty", param="generate_responses")
    check_responses(model, responses)
    for ids in request.prompt_token_ids or ():
        check_prompt_ids(model, ids)
    options = derender_options(asked, eos_token_ids=model.eos_token_ids)
    choices: list[CompletionChoice] = []
    prompt_tokens = generated = repeated = 0
    for number, response in enumerate(responses):
        given = request.prompt_token_ids[number] if request.prompt_token_ids is not None else None
        prompt_ids = given if given is not None else response.prompt_token_ids
        prompt = _Prompt(texts, asked, number=number, ids=prompt_ids, logprobs=response.prompt_logprobs)
        shared = number > 0 and asked is not None and isinstance(asked.prompt, str)
        size = prompt_size(
            text=prompt.text,
            ids=prompt_ids if options.return_token_ids else None,
            logprobs=response.prompt_logprobs,
            twice=prompt.entries is not None,
        )
        repeated += size * (len(response.choices) - (not shared))
        check_repeated(repeated)
        filled = fill_prompt_logprobs(texts, response.prompt_logprobs, prompt_ids=prompt_ids)
        prompt_tokens += prompt_count(request.prompt_tokens[number] if request.prompt_tokens else None, response)
        for position, choice in enumerate(response.choices):
            stream = ChoiceStream(texts, options, continues=bool(prompt_ids))
            stream.logprobs.offset = prompt.length
            delta = stream.push(
                choice.token_ids,
                logprobs=choice.logprobs.content if choice.logprobs is not None else None,
                finish=True,
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                where=f"generate_responses.{number}.choices.{position}.token_ids",
            )
            generated += len(delta.token_ids)
            output = None if prompt.only else _logprobs(texts, choice, stream, delta, options)
            choices.append(
                CompletionChoice(
                    index=len(choices),
                    text=prompt.text + ("" if prompt.only else delta.text),
                    logprobs=_joined(prompt.entries, output),
                    finish_reason=delta.finish_reason,
                    stop_reason=delta.stop_reason,
                    token_ids=list(delta.token_ids) if options.return_token_ids and not prompt.only else None,
                    prompt_logprobs=filled,
                    prompt_token_ids=list(prompt_ids) if options.return_token_ids and prompt_ids is not None else None,
                    routed_experts=choice.routed_experts,
                    sampling_mask=UNSET if choice.sampling_mask is None else choice.sampling_mask,
                    weight_versions=UNSET if choice.weight_versions is None else choice.weight_versions,
                )
            )
    return CompletionResponse(
        id=response_id(responses[0].request_id),
        created=int(time.time()),
        model=request.model or model.name,
        choices=choices,
        usage=_usage(prompt_tokens, generated, responses),
        kv_transfer_params=_common(responses, "kv_transfer_params"),
        ec_transfer_params=_common(responses, "ec_transfer_params"),
        metrics=responses[0].metrics if len(responses) == 1 else None,
    )


def _usage(prompt_tokens: int, generated: int, responses: Sequence[GenerateResponse]) -> Usage:
    """Usage over all prompts; the engine's details are those of one prompt, so only of a single one."""
    return total_usage(prompt_tokens, generated, responses[0].usage if len(responses) == 1 else None)


def _common(responses: Sequence[GenerateResponse], name: str) -> Any:
    """Transfer parameters that all responses share; those that differ are dropped, with one warning in all."""
    first = getattr(responses[0], name)
    if all(getattr(response, name) == first for response in responses[1:]):
        return first
    if name not in _warned:
        _warned.add(name)
        _log.warning("%s differ between the prompts of a completions answer and are left out", name)
    return None


class CompletionStreamDerenderer(StreamDerenderer):
    """Derenders one completions stream; as `ChatStreamDerenderer`."""

    def __init__(self, texts: TokenTexts, context: CompletionStreamContext) -> None:
        """What the context says is checked with the first chunk."""
        super().__init__(context.completion_request, state=context.stream_state)
        self._texts = texts
        self._context = context
        self._options = derender_options(context.completion_request, eos_token_ids=texts.model.eos_token_ids)
        self._prompt_ids = context.prompt_token_ids

    def push(self, chunk: GenerateChunk) -> CompletionChunk:
        """The next chunk. Raises `BadRequest`, `BadState`."""
        texts, context, options = self._texts, self._context, self._options
        asked = context.completion_request
        if self._prompt_ids is None:
            self._prompt_ids = chunk.prompt_token_ids
        if self._streams is None:
            check_prompt_ids(texts.model, context.prompt_token_ids)
            self._streams = ChoiceStreams(texts, options, state=context.stream_state, continues=bool(self._prompt_ids))
        streams, prompt_ids = self._streams, self._prompt_ids
        only = asked is not None and bool(asked.echo) and asked.max_tokens == 0
        if asked is not None and asked.echo and isinstance(asked.prompt, str):
            check_repeated(len(asked.prompt) * (len(chunk.choices) - 1))
        if options.return_token_ids:
            check_repeated(prompt_size(ids=prompt_ids) * (len(chunk.choices) - 1))
        choices: list[CompletionStreamChoice] = []
        for choice, stream, delta in streams.push(chunk, prompt_token_ids=context.prompt_token_ids):
            first = not (stream.role_sent or streams.resumed)
            stream.role_sent = True
            prompt = None
            if first:
                prompt = _Prompt(texts, asked, number=0, ids=prompt_ids, logprobs=None)
                stream.logprobs.offset = prompt.length
            choices.append(
                CompletionStreamChoice(
                    index=choice.index,
                    text=(prompt.text if prompt else "") + ("" if only else delta.text),
                    logprobs=None if only else _logprobs(texts, choice, stream, delta, options),
                    finish_reason=delta.finish_reason,
                    stop_reason=delta.stop_reason,
                    prompt_token_ids=list(prompt_ids) if first and options.return_token_ids and prompt_ids else None,
                    token_ids=list(delta.token_ids) if options.return_token_ids and not only else None,
                )
            )
        return CompletionChunk(
            id=streams.identity,
            created=streams.created,
            model=context.model or texts.model.name,
            choices=choices,
            usage=stream_usage(context.prompt_tokens, chunk.usage),
            metrics=chunk.metrics,
        )


def derender_completion_chunk(texts: TokenTexts, request: DerenderCompletionStreamRequest) -> DerenderedCompletionChunk:
    """One chunk of a stream, and the state for the next. Raises `BadRequest`, `BadState`."""
    stream = CompletionStreamDerenderer(texts, request)
    chunk = stream.push(request.generate_chunk)
    return DerenderedCompletionChunk(
        chunk=chunk, stream_state=stream.snapshot(), stopped=True if stream.stopped else UNSET
    )
