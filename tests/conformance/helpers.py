"""SmolLM2 behind the server's application, as the bug cases call it: every call is an HTTP request of its own."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from tests.derendering.helpers import pieces_of
from tests.server.asgi_client import JSON, Answer, post
from tests.vocabularies import real_model

from derender.model import Model, ModelSettings
from derender.registry import ModelRegistry
from derender.server.app import AppSettings, build_app
from derender.server.http import App

Json = Any

CHAT_RENDER, TEXT_RENDER = "/v1/chat/completions/render", "/v1/completions/render"
CHAT_DERENDER, TEXT_DERENDER = "/v1/chat/completions/derender", "/v1/completions/derender"
GENERATE = "/inference/v1/generate"
VOCAB = 49152
"""Ids of SmolLM2."""


@functools.cache
def smollm2(**settings: Any) -> App:
    """The application that serves SmolLM2 as `m`, with these model settings. Skips where the model is missing."""
    model = Model.load(real_model("smollm2"), settings=ModelSettings(served_model_names=("m",), **settings))
    return serve(model)


def serve(model: Model) -> App:
    """The application that serves a model."""
    return build_app(ModelRegistry([model]), settings=AppSettings())


def no_constants(name: str) -> Any:
    """For `json.loads(…, parse_constant=…)`: JSON has no NaN and no Infinity."""
    raise AssertionError(f"{name} is no JSON")


def strict_json(body: bytes) -> Json:
    """A body as JSON in UTF-8, which must be both to the letter."""
    return json.loads(body.decode("utf-8"), parse_constant=no_constants)


def ok(app: App, path: str, body: bytes | Json, *headers: tuple[str, str]) -> Json:
    """The answer to a POST that is served."""
    answer = post(app, path, body, headers=[JSON, *headers])
    assert answer.status == 200, answer.body
    return strict_json(answer.body)


def refused(app: App, path: str, body: bytes | Json, *, status: int = 400) -> dict[str, Json]:
    """The error inside the envelope of a POST that is refused with this status."""
    answer = post(app, path, body)
    assert answer.status == status, answer.body
    strict_json(answer.body)
    return answer.error


def chat(app: App, response: Json, request: Json = None, **fields: Json) -> Json:
    """The chat answer to a whole generate answer."""
    return ok(app, CHAT_DERENDER, {"generate_response": response, "chat_request": request, **fields})


def text(app: App, responses: Sequence[Json], request: Json = None, **fields: Json) -> Json:
    """The completions answer to whole generate answers."""
    return ok(app, TEXT_DERENDER, {"generate_responses": responses, "completion_request": request, **fields})


def content(answer: Json) -> str:
    """The text of an answer's only choice."""
    [choice] = answer["choices"]
    found = choice["message"]["content"] if "message" in choice else choice["text"]
    assert isinstance(found, str)
    return found


def stream(
    app: App,
    choice: Json,
    request: Json = None,
    *,
    sizes: Sequence[int] = (),
    dialect: str = "chat",
    **fields: Json,
) -> tuple[list[str], list[Json]]:
    """One choice of a generate answer as a stream in parts of these sizes: the text of each chunk, and the answers.

    A caller that keeps the state as JSON text between two calls.
    """
    entries = (choice.get("logprobs") or {}).get("content")
    name, path = ("chat", CHAT_DERENDER) if dialect == "chat" else ("completion", TEXT_DERENDER)
    texts, answers = [], []
    state: str = "null"
    at = 0
    for part, last in pieces_of(choice["token_ids"], sizes):
        delta = {"index": choice["index"], "token_ids": part}
        if last:
            delta |= {"finish_reason": choice["finish_reason"], "stop_reason": choice.get("stop_reason")}
        if entries is not None:
            delta["logprobs"] = {"content": entries[at : at + len(part)]}
        at += len(part)
        body = {
            "stream": True,
            "generate_chunk": {"request_id": "r", "choices": [delta]},
            "stream_state": json.loads(state),
            f"{name}_request": request,
            **fields,
        }
        answer = ok(app, path, body)
        state = json.dumps(answer["stream_state"])
        choices = answer["chunk"]["choices"]
        texts.append("".join((c["delta"]["content"] if dialect == "chat" else c["text"]) or "" for c in choices))
        answers.append(answer)
    return texts, answers


def events(answer: Answer) -> list[Json]:
    """The decoded events of a stream, which must be whole and end in [DONE]."""
    assert answer.status == 200
    parts = answer.body.split(b"\n\n")
    assert parts.pop() == b""
    assert parts.pop() == b"data: [DONE]"
    assert all(part.startswith(b"data: ") and b"\n" not in part for part in parts)
    return [strict_json(part.removeprefix(b"data: ")) for part in parts]
