"""How one request's answers are read: what derender is told of its prompts, the same for whole answers and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from derender.engines.errors import EngineFailed
from derender.gateway.context import Context
from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.derender import ChatStreamContext, CompletionStreamContext
from derender.protocol.errors import BadRequest

if TYPE_CHECKING:
    from derender.derendering.chat import ChatStreamDerenderer
    from derender.derendering.completions import CompletionStreamDerenderer

PROMPT_TAIL = 256
"""Prompt ids that derender is given: it looks at this turn's beginning for the region that the output starts in."""


def known_prompt(context: Context, number: int) -> list[int]:
    """A prompt's ids for derender: all where they are told to the client, or are part of the text, else the end."""
    ids, request = context.prompts[number].token_ids, context.request
    whole = request.return_token_ids or request.echo or request.prompt_logprobs is not None
    return ids if whole else ids[-PROMPT_TAIL:]


def stream_derenderer(context: Context, number: int) -> ChatStreamDerenderer | CompletionStreamDerenderer:
    """What derenders the stream of one prompt's choices."""
    request, prompt = context.request, context.prompts[number]
    if isinstance(request, ChatCompletionRequest):
        return context.model.derender_chat_stream(
            ChatStreamContext(
                model=context.name,
                prompt_tokens=len(prompt.token_ids),
                prompt_token_ids=known_prompt(context, number),
                chat_request=request,
                reasoning_ended=prompt.reasoning_ended,
            )
        )
    if len(context.prompts) > 1 and isinstance(request.prompt, list):
        request = replace(request, prompt=request.prompt[number])
    return context.model.derender_completion_stream(
        CompletionStreamContext(
            model=context.name,
            prompt_tokens=len(prompt.token_ids),
            prompt_token_ids=known_prompt(context, number),
            completion_request=request,
        )
    )


def no_answer(error: BadRequest) -> EngineFailed:
    """What derender's refusal means: the request was found right by render, so what is wrong is the engine's."""
    return EngineFailed(f"the engine sent what is no answer of this model: {error.message}")
