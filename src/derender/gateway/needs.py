"""What a request needs of an engine: done here where the engine cannot, or refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET
from msgspec.structs import replace

from derender.engines.base import Capabilities
from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.common import StructuredOutputs
from derender.protocol.completions import CompletionRequest
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateRequest, SamplingParams

_KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


Asked = ChatCompletionRequest | CompletionRequest
Untagged = Callable[[ChatCompletionRequest], "StructuredOutputs | None"]


def fitted(
    request: GenerateRequest, able: Capabilities, *, asked: Asked, untagged: Untagged, unguided: bool
) -> GenerateRequest:
    """`request`, made of `asked`, as an engine with these capabilities takes it. Raises `BadRequest` for what it cannot
    do.

    `untagged` gives what stands for a structural tag where the engine knows none. `unguided`: a constraint that the
    engine cannot apply is left out instead of refused.
    """
    params = request.sampling_params
    if params.stop and not able.stop_strings:
        raise _lacks("stop strings are left to the engine (--stop-strings engine), which sees no text", "stop")
    if _given(params.prompt_logprobs) and not able.prompt_logprobs:
        if isinstance(asked, CompletionRequest) and asked.prompt_logprobs is None:
            raise _lacks("with logprobs it needs those of the prompt, which the engine does not give", "echo")
        raise _lacks("the engine gives no logprobs of the prompt", "prompt_logprobs")
    if params.bad_words and not able.bad_words:
        raise _lacks("the engine sees no text, so it cannot keep words out of it", "bad_words")
    logprobs = params.logprobs
    if able.max_logprobs >= 0 and isinstance(logprobs, int) and logprobs > able.max_logprobs:
        raise _lacks(f"the engine gives at most {able.max_logprobs} logprobs", "logprobs")
    if (request.features or request.content_parts) and not able.multimodal:
        raise _lacks("the engine takes text only", "messages")
    if (request.kv_transfer_params or request.ec_transfer_params) and not able.kv_transfer:
        raise _lacks("the engine transfers no cache", "kv_transfer_params")
    constraint = None if params.structured_outputs is UNSET else params.structured_outputs
    if (kind := _kind(constraint)) is None or kind in able.structured_outputs:
        return request
    if kind == "structural_tag" and isinstance(asked, ChatCompletionRequest):
        try:
            constraint = untagged(asked)
        except BadRequest:
            if not unguided:
                raise
    kind = _kind(constraint)
    if kind is not None and kind not in able.structured_outputs:
        if not unguided:
            raise _lacks(
                f"the engine cannot hold its output to a form ({kind}), which response_format, structured_outputs, "
                "strict tools and a demanded tool call need",
                "structured_outputs",
            )
        constraint = None
    return replace(
        request, sampling_params=replace(params, structured_outputs=UNSET if constraint is None else constraint)
    )


def choices_at_once(choices: int, able: Capabilities) -> int:
    """How many choices of a prompt one generate request may ask for."""
    return choices if able.max_n is None else min(choices, able.max_n)


def split_choices(params: SamplingParams, *, first: int, count: int) -> SamplingParams:
    """The parameters of choices `first` and on, asked for apart from the others; seeds as vLLM counts them up."""
    seed = params.seed
    if isinstance(seed, int):
        return replace(params, n=count, seed=seed + first)
    return replace(params, n=count)


def _kind(constraint: StructuredOutputs | None) -> str | None:
    if constraint is None:
        return None
    return next((kind for kind in _KINDS if getattr(constraint, kind) not in (None, False)), None)


def _given(value: object) -> bool:
    return value is not None and value is not UNSET


def _lacks(message: str, param: str) -> BadRequest:
    return BadRequest(f"{param}: {message}", param=param)
