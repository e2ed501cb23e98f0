"""How much of an engine's context a request needs."""

from __future__ import annotations

from derender.gateway.context import Context
from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateRequest


def needed(context: Context, request: GenerateRequest) -> int:
    """Tokens that an engine needs room for: the prompt, and all of the output that the client asked for, or one."""
    output = request.sampling_params.max_tokens
    if takes_rest(context) or not isinstance(output, int):
        output = 1
    return len(request.token_ids) + max(1, output)


def too_long(context: Context, request: GenerateRequest, *, longest: int) -> BadRequest:
    """No engine has room for the request: `longest` is the most tokens of any."""
    prompt = len(request.token_ids)
    asked = f" and {output} are asked for" if (output := needed(context, request) - prompt) > 1 else ""
    return BadRequest(
        f"The prompt has {prompt} tokens{asked}; the engine's maximum context length is {longest}.",
        param="messages" if isinstance(context.request, ChatCompletionRequest) else "prompt",
    )


def takes_rest(context: Context) -> bool:
    """Whether the output gets what the engine has room for: the client set no bound on it, or bounds are clamped."""
    if context.model.settings.max_tokens_over_room == "clamp":
        return True
    request = context.request
    if isinstance(request, ChatCompletionRequest):
        return request.max_tokens is None and request.max_completion_tokens is None
    return request.max_tokens is None
