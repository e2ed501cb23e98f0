"""The prompt's part of an answer: `echo`, and logprobs of prompt tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from derender.derendering.bounds import check_prompt_ids
from derender.derendering.logprobs import LogprobResolver, TokenTexts, free_name
from derender.derendering.model import DerenderModel
from derender.protocol.common import PromptLogprob, PromptLogprobs
from derender.protocol.completions import CompletionLogprobs
from derender.protocol.errors import BadRequest


def chat_echo(messages: Sequence[dict[str, Any]]) -> str:
    """The text of a last message of the assistant, which the answer continues; `""` for any other."""
    if not messages or messages[-1].get("role") != "assistant":
        return ""
    content = messages[-1].get("content")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def prompt_text(prompt: Any, number: int, *, ids: Sequence[int] | None, model: DerenderModel, skip: bool) -> str:
    """The text of prompt `number` of a completions request: as it was given, or its ids decoded (special ones shown
    unless `skip`). Raises `BadRequest` for ids that are no prompt of the model's."""
    tokenizer = model.tokenizer
    given = prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        given = prompt[number] if number < len(prompt) else None
    if isinstance(given, str):
        return given
    known = given if isinstance(given, list) and given else list(ids or ())
    check_prompt_ids(model, known, param="completion_request.prompt")
    if any(not isinstance(i, int) or not tokenizer.knows(i) for i in known):
        raise BadRequest(
            "completion_request.prompt has token ids outside the vocabulary", param="completion_request.prompt"
        )
    return tokenizer.decode(known, skip_special_tokens=skip)


def fill_prompt_logprobs(
    texts: TokenTexts, logprobs: PromptLogprobs | None, *, prompt_ids: Sequence[int] | None
) -> PromptLogprobs | None:
    """The same with `decoded_token` filled in where it is missing, read in its place where the prompt is known."""
    if logprobs is None:
        return None
    tokenizer = texts.model.tokenizer
    resolver = LogprobResolver(texts, tokens_as_ids=False, strip=tokenizer.strips_leading_blank)
    known = prompt_ids if prompt_ids is not None and len(prompt_ids) == len(logprobs) else None
    filled: PromptLogprobs = []
    for position, candidates in enumerate(logprobs):
        if candidates is None:
            filled.append(None)
        else:
            filled.append({key: _decoded(resolver, key, entry, position) for key, entry in candidates.items()})
        if known is not None:
            resolver.step(known[position])
    return filled


def _decoded(resolver: LogprobResolver, key: str, entry: PromptLogprob, position: int) -> PromptLogprob:
    if entry.decoded_token is not None:
        return entry
    where = f"prompt_logprobs.{position}"
    if not (key.isascii() and key.isdigit() and len(key) <= 19):
        raise BadRequest(f"{where}: {key[:40]!r} is no token id", param=where)
    text, _ = resolver.peek(int(key), where=where)
    return PromptLogprob(logprob=entry.logprob, rank=entry.rank, decoded_token=text)


def prompt_entries(
    texts: TokenTexts, *, prompt_ids: Sequence[int], logprobs: PromptLogprobs, hidden: frozenset[int]
) -> tuple[CompletionLogprobs, int]:
    """Completions entries for the prompt's tokens, and how many characters they have. The first has no logprob."""
    tokenizer = texts.model.tokenizer
    resolver = LogprobResolver(texts, tokens_as_ids=False, strip=tokenizer.strips_leading_blank)
    result = CompletionLogprobs([], [], [], [])
    offset = 0
    for position, token_id in enumerate(prompt_ids):
        candidates = logprobs[position] if position < len(logprobs) else None
        names: dict[str, float] | None = None
        if candidates is not None:
            names = {}
            for key, entry in candidates.items():
                other = int(key) if key.isascii() and key.isdigit() and len(key) <= 19 else -1
                text, own = resolver.peek(other, where=f"prompt_logprobs.{position}")
                names[free_name(names, text, own, other)] = entry.logprob
        own_entry = (candidates or {}).get(str(token_id))
        text, _ = resolver.step(token_id)
        result.text_offset.append(offset)
        result.tokens.append(text)
        result.token_logprobs.append(own_entry.logprob if own_entry else None)
        result.top_logprobs.append(names)
        if token_id not in hidden:
            offset += len(text)
    return result, offset
