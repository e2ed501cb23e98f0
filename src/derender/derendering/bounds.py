"""Limits on what a caller sends, checked before any work. The words are those that vLLM's tests look for."""

from __future__ import annotations

from collections.abc import Sequence

from derender.derendering.model import DerenderModel
from derender.protocol.common import PromptLogprobs
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateChoice, GenerateResponse, GenerateStreamChoice

MAX_REPEATED_BYTES = 32 << 20
"""What an answer may hold of the prompt again and again, about, in bytes of JSON: 16,384 choices with the prompt before
each of them would make an answer of terabytes of a body of megabytes."""

MAX_TEXT_BYTES = 128 << 20
"""Text that an answer may have, bytes of logprobs among it. Some vocabularies have tokens of 256 blanks, which two
bytes of a body can name."""

_ID_BYTES, _LOGPROB_BYTES = 6, 64  # of one entry, about
_WRITTEN_BYTE = 4  # characters that a list of bytes needs for each


def prompt_size(
    *, text: str = "", ids: Sequence[int] | None = None, logprobs: PromptLogprobs | None = None, twice: bool = False
) -> int:
    """About how many bytes of JSON an answer needs to tell of a prompt. `twice`: of its logprobs in both forms."""
    shown = sum(len(candidates or ()) + 1 for candidates in logprobs or ())
    return len(text) + _ID_BYTES * len(ids or ()) + _LOGPROB_BYTES * shown * (2 if twice else 1)


def check_repeated(size: int) -> None:
    """Raises `BadRequest` for more than `MAX_REPEATED_BYTES` of prompts told again in an answer."""
    if size > MAX_REPEATED_BYTES:
        raise BadRequest(
            f"choices count is too high to tell each choice of the prompt again (echo, prompt_logprobs, "
            f"return_token_ids): about {size} bytes of the answer would be repetition, more than {MAX_REPEATED_BYTES}.",
            param="choices",
        )


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
    check_text(model, [choice for response in responses for choice in response.choices])


def check_text(model: DerenderModel, choices: Sequence[GenerateChoice | GenerateStreamChoice]) -> None:
    """Raises `BadRequest` where the text of all ids, and their bytes in logprobs, would be more than an answer has."""
    tokenizer = model.tokenizer
    count = sum(len(choice.token_ids or ()) + _named(choice) for choice in choices)
    if count * tokenizer.max_bytes_per_token <= MAX_TEXT_BYTES:
        return
    pieces, size = tokenizer.pieces, 0
    for choice in choices:
        size += text_size(model, choice.token_ids or ())
        for entry in (choice.logprobs.content if choice.logprobs is not None else None) or ():
            for one in (entry, *(entry.top_logprobs or ())):
                if one.token_id is not None and tokenizer.knows(one.token_id):
                    size += _WRITTEN_BYTE * len(pieces[one.token_id])
        if size > MAX_TEXT_BYTES:
            raise BadRequest(
                f"token_ids: the text of all of them has more than {MAX_TEXT_BYTES} bytes", param="token_ids"
            )


def text_size(model: DerenderModel, ids: Sequence[int]) -> int:
    """The bytes of the text of ids, of which some may be outside the vocabulary."""
    pieces, knows = model.tokenizer.pieces, model.tokenizer.knows
    return sum(len(pieces[i]) for i in ids if knows(i))


def _named(choice: GenerateChoice | GenerateStreamChoice) -> int:
    """How often a choice's logprobs name a token, in bytes of its piece."""
    content = (choice.logprobs.content if choice.logprobs is not None else None) or ()
    return _WRITTEN_BYTE * sum(1 + len(entry.top_logprobs or ()) for entry in content)


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


def check_prompt_ids(model: DerenderModel, ids: Sequence[int] | None, *, param: str = "prompt_token_ids") -> None:
    """Raises `BadRequest` for a prompt longer than the model takes, or with ids outside its vocabulary."""
    if ids is None:
        return
    if len(ids) > model.max_model_len:
        raise BadRequest(f"{param} length ({len(ids)}) exceeds max_model_len ({model.max_model_len}).", param=param)


def check_stream(
    model: DerenderModel, choices: Sequence[GenerateStreamChoice], *, prompt: Sequence[int] | None, before: int
) -> None:
    """Raises `BadRequest` for a chunk that would make prompt and output longer than the model takes.

    `before`: output tokens of earlier chunks, for the choice that has most.
    """
    if len(choices) == 1 and choices[0].logprobs is None:  # most chunks: nothing to look at but their length
        size = len(choices[0].token_ids or ())
        room = model.max_model_len - before - (len(prompt) if prompt is not None else 0)
        if size <= room and size * model.tokenizer.max_bytes_per_token <= MAX_TEXT_BYTES:
            return
    if model.strict_vllm and len(choices) > 1:
        raise BadRequest(
            f"a derender stream expects at most one choice per chunk (got {len(choices)}).", param="choices"
        )
    if len(choices) > model.max_n_sequences:
        raise BadRequest(
            f"choices count ({len(choices)}) exceeds server maximum ({model.max_n_sequences}).", param="choices"
        )
    for choice in choices:
        check_choice(model, choice)
    check_text(model, choices)
    prompt_length = len(prompt) if prompt is not None else 0
    delta = max((len(choice.token_ids or ()) for choice in choices), default=0)
    if prompt_length + before + delta > model.max_model_len:
        raise BadRequest(
            f"prompt_token_ids length ({prompt_length}) plus output_token_ids length ({before}) plus delta ({delta}) "
            f"exceeds max_model_len ({model.max_model_len}).",
            param="prompt_token_ids",
        )
