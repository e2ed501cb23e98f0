"""Limits on what a caller sends, checked before any work. The words are those that vLLM's tests look for."""

from __future__ import annotations

from collections.abc import Sequence

from derender.derendering.model import DerenderModel
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateChoice, GenerateResponse, GenerateStreamChoice


def check_responses(model: DerenderModel, responses: Sequence[GenerateResponse]) -> None:
    """Raises `BadRequest` for more responses, choices, tokens or alternatives than the model can have given, and for an
    answer without a choice (llm-d-inference-sim#677)."""
    most = model.max_n_sequences
    if len(responses) > most:
        raise BadRequest(
            f"generate_responses count ({len(responses)}) exceeds server maximum ({most}). "
            "Set VLLM_MAX_N_SEQUENCES to increase this limit.",
            param="generate_responses",
        )
    for response in responses:
        if not response.choices:
            raise BadRequest("an answer must have a choice: choices is []", param="choices")
        if len(response.choices) > most:
            raise BadRequest(
                f"choices count ({len(response.choices)}) in response '{response.request_id[:80]}' exceeds server "
                f"maximum ({most}).",
                param="choices",
            )
        for choice in response.choices:
            check_choice(model, choice)
        if response.prompt_logprobs and len(response.prompt_logprobs) > model.max_model_len:
            raise BadRequest(
                f"prompt_logprobs length ({len(response.prompt_logprobs)}) in response "
                f"'{response.request_id[:80]}' exceeds max_model_len ({model.max_model_len}).",
                param="prompt_logprobs",
            )


def check_choice(model: DerenderModel, choice: GenerateChoice | GenerateStreamChoice) -> None:
    """The same for one choice."""
    longest, most = model.max_model_len, model.max_logprobs
    if choice.token_ids and len(choice.token_ids) > longest:
        raise BadRequest(
            f"token_ids length ({len(choice.token_ids)}) in choice {choice.index} exceeds max_model_len ({longest}).",
            param="token_ids",
        )
    content = choice.logprobs.content if choice.logprobs else None
    if not content:
        return
    if len(content) > longest:
        raise BadRequest(
            f"logprobs.content length ({len(content)}) in choice {choice.index} exceeds max_model_len ({longest}).",
            param="logprobs.content",
        )
    # An engine sends the sampled token beside the k asked for.
    worst = max(len(entry.top_logprobs or ()) for entry in content)
    if most >= 0 and worst > most + 1:
        raise BadRequest(
            f"top_logprobs count ({worst}) in choice {choice.index} exceeds max_logprobs ({most}).",
            param="top_logprobs",
        )


def check_prompt_ids(model: DerenderModel, ids: Sequence[int] | None) -> None:
    """Raises `BadRequest` for a prompt longer than the model takes, or with ids outside its vocabulary."""
    if ids is None:
        return
    if len(ids) > model.max_model_len:
        raise BadRequest(
            f"prompt_token_ids length ({len(ids)}) exceeds max_model_len ({model.max_model_len}).",
            param="prompt_token_ids",
        )


def check_stream(
    model: DerenderModel, choices: Sequence[GenerateStreamChoice], *, prompt: Sequence[int] | None, before: int
) -> None:
    """Raises `BadRequest` for a chunk that would make prompt and output longer than the model takes.

    `before`: output tokens of earlier chunks, for the choice that has most.
    """
    if model.strict_vllm and len(choices) > 1:
        raise BadRequest(f"a derender stream expects at most one choice per chunk (got {len(choices)}).")
    if len(choices) > model.max_n_sequences:
        raise BadRequest(f"choices count ({len(choices)}) exceeds server maximum ({model.max_n_sequences}).")
    for choice in choices:
        check_choice(model, choice)
    prompt_length = len(prompt) if prompt is not None else 0
    delta = max((len(choice.token_ids or ()) for choice in choices), default=0)
    if prompt_length + before + delta > model.max_model_len:
        raise BadRequest(
            f"prompt_token_ids length ({prompt_length}) plus output_token_ids length ({before}) plus delta ({delta}) "
            f"exceeds max_model_len ({model.max_model_len}).",
            param="prompt_token_ids",
        )
