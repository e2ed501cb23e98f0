"""The official client of OpenAI's API, with request bodies as tables have them. Skips where it is not installed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.e2e.client import Json

openai = pytest.importorskip("openai", reason="the openai client is not installed")

VERSION = "/v1"


def official(url: str) -> Any:
    """A client of the server at `url` that asks once and takes what it gets."""
    return openai.OpenAI(base_url=url + VERSION, api_key="none", max_retries=0, timeout=120)


def official_async(url: str) -> Any:
    return openai.AsyncOpenAI(base_url=url + VERSION, api_key="none", max_retries=0, timeout=120)


def arguments(call: Callable[..., Any], body: Json) -> Json:
    """`body` as the arguments of a method: what the client has no name for goes into `extra_body`."""
    known = inspect.signature(call).parameters
    named = {name: value for name, value in body.items() if name in known}
    return {**named, "extra_body": {name: value for name, value in body.items() if name not in known}}


def create(client: Any, body: Json, *, raw: bool = False, **options: Any) -> Any:
    """The client's answer to a chat or a completion; `raw`: with the HTTP answer."""
    resource = client.chat.completions if "messages" in body else client.completions
    call = (resource.with_raw_response if raw else resource).create
    return call(**arguments(call, body), **options)


def answered(client: Any, body: Json) -> Json:
    """The same as plain JSON."""
    return create(client, body).model_dump(mode="json")


def streamed(client: Any, body: Json, **options: Any) -> list[Json]:
    """The chunks of a stream as plain JSON, of which what the client makes up itself is left out."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True, **options}}
    with create(client, asked) as chunks:
        return [chunk.model_dump(mode="json", exclude_unset=True) for chunk in chunks]


def assembled(chunks: Iterable[Json]) -> Json:
    """The answer that chunks make, in the form of one that is not streamed. Checks their order."""
    first: Json = None
    usage: Json = None
    choices: dict[int, Json] = {}
    for chunk in chunks:
        first = first or chunk
        for name in ("id", "created", "model", "object"):
            assert chunk[name] == first[name], name
        assert usage is None, f"a chunk after the usage: {chunk}"
        if not chunk["choices"]:
            usage = chunk["usage"]
        for delta in chunk["choices"]:
            _add(choices.setdefault(delta["index"], _nothing(delta)), delta)
    for choice in choices.values():
        assert choice["finish_reason"] is not None, choice
    return {
        **{name: first[name] for name in ("id", "created", "model")},
        "object": first["object"].removesuffix(".chunk"),
        "choices": [choices[index] for index in sorted(choices)],
        "usage": usage,
    }


def _nothing(delta: Json) -> Json:
    choice = {
        "index": delta["index"],
        "logprobs": None,
        "token_ids": None,
        "finish_reason": None,
        "stop_reason": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
    }
    return {**choice, "message": {"role": None, "content": ""}} if "delta" in delta else {**choice, "text": ""}


def _add(choice: Json, delta: Json) -> None:
    assert choice["finish_reason"] is None, f"a delta after the finish reason: {delta}"
    if "delta" in delta:
        message, told = delta["delta"], choice["message"]
        assert message.get("role") == (None if told["role"] else "assistant"), delta
        told["role"] = "assistant"
        told["content"] += message.get("content") or ""
    else:
        choice["text"] += delta["text"]
    for name in ("token_ids", "prompt_token_ids"):
        if delta.get(name) is not None:
            choice[name] = (choice[name] or []) + delta[name]
    if (logprobs := delta.get("logprobs")) is not None:
        held = choice["logprobs"] or {}
        choice["logprobs"] = {
            name: held.get(name, []) + values for name, values in logprobs.items() if values is not None
        }
    choice["finish_reason"], choice["stop_reason"] = delta.get("finish_reason"), delta.get("stop_reason")
