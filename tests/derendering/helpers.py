"""Models and answers for the derendering tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from derender.derendering.chat import derender_chat, derender_chat_chunk
from derender.derendering.completions import derender_completion_chunk, derender_completions
from derender.derendering.logprobs import TokenTexts
from derender.derendering.model import DerenderModel
from derender.protocol.codec import encode
from derender.protocol.derender import decode_derender_chat, decode_derender_completion
from derender.tokenizer import Tokenizer

Json = Any


def texts(tokenizer: Tokenizer, **settings: Any) -> TokenTexts:
    """A model over a tokenizer, 4,096 tokens long."""
    eos = tokenizer.token_id(tokenizer.special_tokens["eos_token"])
    assert eos is not None
    return TokenTexts(
        DerenderModel(name="m", tokenizer=tokenizer, eos_token_ids=frozenset({eos}), max_model_len=4096, **settings)
    )


def entry(token: int, *others: int, logprob: float = -0.5) -> Json:
    """A logprob entry: the sampled token, itself as first alternative, and others."""
    tops = [{"token_id": t, "logprob": logprob - i, "rank": i + 1} for i, t in enumerate((token, *others))]
    return {"token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": tops}


def answer(*outputs: Sequence[int] | None, logprobs: Json = False, finish: str | None = "stop", **choice: Json) -> Json:
    """A generate answer with one choice per output. `logprobs`: true for an entry per token, or the object itself."""
    choices = []
    for i, ids in enumerate(outputs):
        given: Json = {"index": i, "token_ids": ids, "finish_reason": finish, **choice}
        if logprobs:
            given["logprobs"] = {"content": [entry(t) for t in ids or ()]} if logprobs is True else logprobs
        choices.append(given)
    return {"request_id": "r", "choices": choices}


def ask(**fields: Json) -> Json:
    """A chat request."""
    return {"messages": [{"role": "user", "content": "hi"}], **fields}


def chat(model: TokenTexts, response: Json, request: Json = None, **fields: Json) -> Json:
    """The chat answer of a batch derender, as JSON."""
    body = {"generate_response": response, "chat_request": request, **fields}
    return msgspec.json.decode(encode(derender_chat(model, decode_derender_chat(encode(body)))))


def completions(model: TokenTexts, responses: Sequence[Json], request: Json = None, **fields: Json) -> Json:
    """The completions answer of a batch derender, as JSON."""
    body = {"generate_responses": responses, "completion_request": request, **fields}
    return msgspec.json.decode(encode(derender_completions(model, decode_derender_completion(encode(body)))))


def pieces_of(ids: Sequence[Json], sizes: Sequence[int]) -> Iterator[tuple[Sequence[Json], bool]]:
    """A list cut into parts of these sizes (the rest is the last), each with whether it is the last."""
    at = 0
    parts = []
    for size in sizes:
        if at + size >= len(ids):
            break
        parts.append(ids[at : at + size])
        at += size
    parts.append(ids[at:])
    for i, part in enumerate(parts):
        yield part, i == len(parts) - 1


def stream(
    model: TokenTexts,
    choice: Json,
    request: Json = None,
    *,
    sizes: Sequence[int] = (),
    dialect: str = "chat",
    **fields: Json,
) -> tuple[list[Json], list[Json]]:
    """One choice of a generate answer as a stream in parts of these sizes: the chunks and the states given out.

    The state goes through JSON text between any two chunks, as in a caller that keeps it.
    """
    decode, derender = (
        (decode_derender_chat, derender_chat_chunk)
        if dialect == "chat"
        else (decode_derender_completion, derender_completion_chunk)
    )
    content = (choice.get("logprobs") or {}).get("content")
    ids = choice.get("token_ids") or []
    chunks, states = [], []
    state: Json = None
    at = 0
    for part, last in pieces_of(ids, sizes):
        delta = {
            "index": choice["index"],
            "token_ids": part,
            "finish_reason": choice["finish_reason"] if last else None,
            "stop_reason": choice.get("stop_reason") if last else None,
        }
        if content is not None:
            delta["logprobs"] = {"content": content[at : at + len(part)] if not last else content[at:]}
        at += len(part)
        body = {
            "stream": True,
            "generate_chunk": {"request_id": "r", "choices": [delta]},
            "stream_state": state,
            f"{dialect if dialect == 'chat' else 'completion'}_request": request,
            **fields,
        }
        got = msgspec.json.decode(encode(derender(model, decode(encode(body)))))  # type: ignore[arg-type]
        state = got["stream_state"]
        chunks.append(got["chunk"])
        states.append(state)
    return chunks, states


def joined(chunks: Sequence[Json], key: str = "content") -> str:
    """The text of a stream."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join((c["delta"][key] if "delta" in c else c["text"]) or "" for c in choices)


def entries(chunks: Sequence[Json]) -> list[Json]:
    """The chat logprob entries of a stream."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return [e for c in choices if c["logprobs"] for e in c["logprobs"]["content"]]
