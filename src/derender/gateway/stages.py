"""The stages of the loop, each an async function over one request: render, select, prefill, generate, derender.

`loop.py` has their order. Render and derender are the model's own, the same as behind the endpoints of those names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from math import ceil
from time import perf_counter
from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from derender.engines.base import Capabilities, batches
from derender.engines.errors import EngineFailed, EngineTimeout
from derender.engines.owned import Owned
from derender.gateway.checks import AnswerCheck, check_response
from derender.gateway.context import MANY, Context, Leg, engine_request_id
from derender.gateway.needs import choices_at_once, fitted, split_choices
from derender.gateway.patience import Patience
from derender.gateway.pool import NoRoom
from derender.gateway.reading import known_prompt, no_answer
from derender.gateway.room import needed, takes_rest, too_long
from derender.gateway.settings import Role
from derender.protocol.chat import ChatCompletionRequest, ChatCompletionResponse
from derender.protocol.completions import CompletionResponse
from derender.protocol.derender import (
    ChatStreamContext,
    CompletionStreamContext,
    DerenderChatRequest,
    DerenderCompletionRequest,
)
from derender.protocol.errors import ApiError, BadRequest, Unavailable
from derender.protocol.generate import GenerateChunk, GenerateRequest, GenerateResponse

if TYPE_CHECKING:
    from derender.gateway.backends import Backend
    from derender.gateway.loop import Gateway
    from derender.gateway.pool import Lease

_NOTHING = GenerateChunk(choices=[])
_REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What tells a prefill engine to keep the cache for another one (vLLM's NixlConnector and its kin)."""


# -------------------------------------------------------------------------------------------------------- render


async def render(gateway: Gateway, context: Context) -> None:
    """The request as generate requests, fitted to what the engines can do. Raises `BadRequest` and its kin for all that
    is wrong with it, `Unavailable` where no engine is known: after this stage an error is an engine's."""
    began = perf_counter()
    able = await gateway.pool.known(context.model.names[0])
    context.prompts, context.legs = await context.work(lambda: _rendered(gateway, context, able))
    gateway.meter.stage("render", context.took("render", began))


def _rendered(gateway: Gateway, context: Context, able: Capabilities | None) -> tuple[list[GenerateRequest], list[Leg]]:
    model, request = context.model, context.request
    if isinstance(request, ChatCompletionRequest):
        prompts = [model.render_chat(request, request_id=context.request_id)]
        model.derender_chat_stream(ChatStreamContext(chat_request=request)).push(_NOTHING)
    else:
        prompts = model.render_completions(request, request_id=context.request_id)
        if request.stream:  # what is asked for the answer alone is checked before anything runs
            model.derender_completion_stream(CompletionStreamContext(completion_request=request)).push(_NOTHING)
    if able is None:  # what an engine lacks is not known before it has been up
        raise Unavailable(
            "no engine is up for this model", retry_after=max(1, ceil(gateway.settings.pool.probe_seconds))
        )
    untagged, unguided = model.tool_constraints.untagged, gateway.settings.unguided
    prompts = [fitted(one, able, asked=request, untagged=untagged, unguided=unguided) for one in prompts]
    choices = context.choices
    at_once = choices_at_once(choices, able)
    legs = [
        Leg(request=_of_choices(one, first, at_once, choices), prompt=number, first_choice=number * choices + first,
            choices=min(at_once, choices - first))
        for number, one in enumerate(prompts)
        for first in range(0, choices, at_once)
    ]  # fmt: skip
    return prompts, legs


def _of_choices(request: GenerateRequest, first: int, count: int, choices: int) -> GenerateRequest:
    if count == choices:
        return request
    params = split_choices(request.sampling_params, first=first, count=min(count, choices - first))
    return replace(request, sampling_params=params)


# -------------------------------------------------------------------------------------------------------- select


async def select(gateway: Gateway, context: Context, leg: Leg) -> None:
    """An engine for a leg, in `leg.lease`: none that it was tried on. Raises `Unavailable`, `BadRequest` where the
    context of none is long enough."""
    began = perf_counter()
    name = context.model.names[0]
    role: Role = "decode" if gateway.pool.splits(name) else "any"
    need = needed(context, leg.request)
    ids = leg.request.token_ids
    try:
        leg.lease = await gateway.pool.take(name, role=role, token_ids=ids, exclude=leg.tried, need=need)
    except NoRoom as error:
        raise too_long(context, leg.request, longest=error.longest) from None
    backend = leg.lease.backend
    leg.tried.append(backend)
    context.engines.append(backend.name)
    gateway.meter.stage("queue", context.took("queue", began))
    try:
        leg.sent = _for_engine(context, leg, backend)
    except BaseException:
        leg.lease.release(answered=False)
        raise


def _for_engine(context: Context, leg: Leg, backend: Backend) -> GenerateRequest:
    """The leg's request as this engine takes it: under its own name of the model, within its own length."""
    request = leg.request
    params = request.sampling_params
    name = backend.name_for(context.name) or backend.name_for(context.model.names[0])
    longest = backend.max_model_len
    if longest is not None:
        if not backend.fits(needed(context, request)):  # it has just been found to be another engine than before
            raise too_long(context, request, longest=longest)
        room = longest - len(request.token_ids)
        if takes_rest(context) and isinstance(params.max_tokens, int) and params.max_tokens > room:
            params = replace(params, max_tokens=room)
    return replace(
        request,
        request_id=engine_request_id(context.identity, leg),
        model=name,
        sampling_params=params,
    )


# ------------------------------------------------------------------------------------------------------- prefill


async def prefill(gateway: Gateway, context: Context, leg: Leg) -> None:
    """Where engines are split: the prompt's cache made by a prefill engine, for the decode engine to fetch.

    The request that goes to the decode engine has the transfer parameters that the prefill engine gave. A client that
    brings its own has had this done elsewhere. Raises `EngineFailed`, `Unavailable`.
    """
    sent = leg.sent
    assert sent is not None
    assert leg.lease is not None
    if sent.kv_transfer_params or leg.lease.backend.spec.role != "decode":
        return
    began = perf_counter()
    settings = gateway.settings
    ids = sent.token_ids
    try:
        lease = await gateway.pool.take(context.model.names[0], role="prefill", token_ids=ids, need=len(ids) + 1)
    except NoRoom as error:
        raise too_long(context, sent, longest=error.longest) from None
    backend = lease.backend
    context.engines.append(backend.name)
    failure: ApiError | None = None
    answered = False
    try:
        asked = _prefill_request(sent, name=backend.name_for(context.name))
        total = context.left(settings.total_seconds)
        with Patience(first=settings.first_seconds, between=1.0, total=total) as patience:
            answer = await patience.wait(backend.engine.generate(asked, headers=context.headers))
        if not answer.kv_transfer_params:
            raise EngineFailed("the prefill engine gave no transfer parameters")
        answered = True
    except ApiError as error:
        failure = error
        raise
    finally:
        _release(gateway, lease, failure, answered=answered)
    leg.sent = _with_transfer(sent, answer)
    gateway.meter.stage("prefill", context.took("prefill", began))


def _prefill_request(request: GenerateRequest, *, name: str | None) -> GenerateRequest:
    params = replace(
        request.sampling_params, max_tokens=1, min_tokens=1, n=1, logprobs=UNSET, prompt_logprobs=UNSET,
        extra_args={**_extra(request), "kv_transfer_params": _REMOTE_DECODE},
    )  # fmt: skip
    return replace(
        request, model=name, sampling_params=params, stream=False, stream_options=None,
        kv_transfer_params=_REMOTE_DECODE,
    )  # fmt: skip


def _with_transfer(request: GenerateRequest, answer: GenerateResponse) -> GenerateRequest:
    given = answer.kv_transfer_params
    params = replace(request.sampling_params, extra_args={**_extra(request), "kv_transfer_params": given})
    return replace(
        request,
        sampling_params=params,
        kv_transfer_params=given,
        ec_transfer_params=answer.ec_transfer_params or request.ec_transfer_params,
    )


def _extra(request: GenerateRequest) -> dict[str, object]:
    return dict(request.sampling_params.extra_args or {})


# ------------------------------------------------------------------------------------------------------ generate


async def generate(gateway: Gateway, context: Context, leg: Leg) -> None:
    """The engine's whole answer, in `leg.response`. Raises `EngineFailed`, and what the engine refuses."""
    assert leg.sent is not None
    assert leg.lease is not None
    settings, backend = gateway.settings, leg.lease.backend
    leg.started = perf_counter()
    failure: ApiError | None = None
    answered = True
    try:
        total = context.left(settings.total_seconds)
        with Patience(first=total, between=total, total=total) as patience:
            response = await patience.wait(backend.engine.generate(leg.sent, headers=context.headers))
        check_response(context.model, leg, response)
        leg.response = response
    except asyncio.CancelledError:
        answered = False
        gateway.meter.aborted("client")
        raise
    except ApiError as error:
        failure = error
        raise
    finally:
        _release(gateway, leg.lease, failure, answered=answered)
    gateway.meter.stage("generate", context.took("generate", leg.started))


async def stream(gateway: Gateway, context: Context, leg: Leg) -> AsyncGenerator[list[GenerateChunk], None]:
    """The engine's chunks, those that came together in one list, from the first one on, which has come when this
    returns.

    Its failures before that are raised here, and the request may go to another engine. Closing the iterator, and any
    error in it, ends the work at the engine and frees the lease.
    """
    assert leg.sent is not None
    assert leg.lease is not None
    leg.started = perf_counter()
    chunks = _watched(gateway, leg, context)
    try:
        first = await anext(chunks)
    except StopAsyncIteration:
        raise EngineFailed("the engine ended its stream before it began") from None
    gateway.meter.stage("first_token", context.took("first_token", leg.started))
    return Owned(chunks, end=_nothing, first=(first,))


async def _nothing() -> None:
    """The chunks have begun: closing them ends what they own."""


async def _watched(gateway: Gateway, leg: Leg, context: Context) -> AsyncGenerator[list[GenerateChunk], None]:
    """The chunks of one engine, each in its time and in order; with them the engine's lease."""
    lease, request, settings = leg.lease, leg.sent, gateway.settings
    assert lease is not None
    assert request is not None
    meter = gateway.meter
    failure: ApiError | None = None
    check = AnswerCheck(context.model, leg)
    ended = False
    several: AsyncGenerator[list[GenerateChunk], None] | None = None
    try:
        total = context.left(settings.total_seconds)
        with Patience(first=settings.first_seconds, between=settings.between_seconds, total=total) as patience:
            asked = batches(lease.backend.engine, request, headers=context.headers)
            source = await patience.wait(asked, word=False)
            several = source
            last = 0.0
            while True:
                try:
                    chunks = await patience.wait(anext(source))
                except StopAsyncIteration:
                    break
                for chunk in chunks:
                    for choice in chunk.choices:
                        check.choice(choice)
                now = perf_counter()
                if last:
                    meter.stage("inter_token", now - last)
                last = now
                yield chunks
        check.end()
        ended = True
    except ApiError as error:
        failure = error
        raise
    finally:
        failure = failure or leg.failure
        if isinstance(failure, EngineTimeout):
            meter.aborted("timeout")
        elif not ended:
            meter.aborted("error" if failure is not None else "stop" if leg.stopped else "client")
        try:
            if several is not None:
                with suppress(ApiError):
                    await several.aclose()
        finally:
            _release(gateway, lease, failure, answered=ended or leg.stopped or failure is not None)


def _release(gateway: Gateway, lease: Lease, failure: ApiError | None, *, answered: bool) -> None:
    if isinstance(failure, EngineFailed):
        gateway.meter.failed(lease.backend.name, type(failure).__name__)
    lease.release(failure, answered=answered)


# ------------------------------------------------------------------------------------------------------ derender


async def derender(gateway: Gateway, context: Context) -> ChatCompletionResponse | CompletionResponse:
    """The engines' whole answers as the API's. Raises `EngineFailed` for what is no answer of this model."""
    began = perf_counter()
    responses = [leg.response for leg in context.legs if leg.response is not None]
    generated = sum(len(choice.token_ids or ()) for one in responses for choice in one.choices)
    context.generated = generated
    gateway.meter.tokens(prompt=sum(len(one.token_ids) for one in context.prompts), generated=generated)
    try:
        answer = await context.work(lambda: _derendered(context), long=context.weight > MANY)
    except BadRequest as error:
        raise no_answer(error) from error
    gateway.meter.stage("derender", context.took("derender", began))
    return answer


def _derendered(context: Context) -> ChatCompletionResponse | CompletionResponse:
    model, request = context.model, context.request
    responses = [_of_prompt(context, number) for number in range(len(context.prompts))]
    counts = [len(one.token_ids) for one in context.prompts]
    if isinstance(request, ChatCompletionRequest):
        return model.derender_chat(
            DerenderChatRequest(
                model=context.name,
                generate_response=responses[0],
                prompt_tokens=counts[0],
                prompt_token_ids=known_prompt(context, 0),
                chat_request=request,
                reasoning_ended=context.prompts[0].reasoning_ended,
            )
        )
    return model.derender_completions(
        DerenderCompletionRequest(
            model=context.name,
            generate_responses=responses,
            prompt_tokens=counts,
            prompt_token_ids=[known_prompt(context, number) for number in range(len(counts))],
            completion_request=request,
        )
    )


def _of_prompt(context: Context, number: int) -> GenerateResponse:
    """The answer to one prompt, of one engine or of several that each gave some choices."""
    legs = [leg for leg in context.legs if leg.prompt == number]
    identity = context.identity
    first = legs[0].response
    assert first is not None
    if len(legs) == 1:
        return replace(first, request_id=identity)
    choices = [
        replace(choice, index=choice.index + leg.first_choice - number * context.choices)
        for leg in legs
        if leg.response is not None
        for choice in leg.response.choices
    ]
    return replace(first, request_id=identity, choices=choices)
