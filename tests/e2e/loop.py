"""The loop as a caller drives it over HTTP: render, generate, derender, whole and as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.e2e.client import Client, Json

GENERATE = "/inference/v1/generate"
ABORT = "/inference/v1/abort_requests"


class Dialect(NamedTuple):
    """A public API. `asked`: the member of a derender request that holds the caller's own request."""

    path: str
    asked: str


CHAT = Dialect("/v1/chat/completions", "chat_request")
COMPLETIONS = Dialect("/v1/completions", "completion_request")


def dialect_of(request: Json) -> Dialect:
    return CHAT if "messages" in request else COMPLETIONS


def render(text: Client, request: Json, headers: dict[str, str] | None = None) -> list[Json]:
    """The generate requests of an API request: one, or one per prompt."""
    rendered = text.post(f"{dialect_of(request).path}/render", request, headers)
    return rendered if isinstance(rendered, list) else [rendered]


def derender(text: Client, request: Json, rendered: list[Json], generated: list[Json]) -> Json:
    """The API answer."""
    dialect = dialect_of(request)
    body: Json = {dialect.asked: request}
    counts = [len(one["token_ids"]) for one in rendered]
    if dialect is CHAT:
        body |= {
            "generate_response": generated[0],
            "prompt_tokens": counts[0],
            "prompt_token_ids": rendered[0]["token_ids"],
        }
    else:
        body |= {
            "generate_responses": generated,
            "prompt_tokens": counts,
            "prompt_token_ids": [one["token_ids"] for one in rendered],
        }
    return text.post(f"{dialect.path}/derender", body)


class Whole(NamedTuple):
    """One turn of the loop: what each stage gave."""

    rendered: list[Json]
    generated: list[Json]
    answer: Json


def whole(text: Client, engine: Client, request: Json) -> Whole:
    """The loop, not streamed."""
    rendered = render(text, request)
    generated = [engine.post(GENERATE, one) for one in rendered]
    return Whole(rendered, generated, derender(text, request, rendered, generated))


# ------------------------------------------------------------------------------------------------- streams


def joined(events: list[Json]) -> Json:
    """The events of a generate stream as the answer that would not be streamed."""
    choices: dict[int, Json] = {}
    usage = prompt = None
    for event in events:
        usage = event.get("usage") or usage
        prompt = event.get("prompt_token_ids") or prompt
        for delta in event["choices"]:
            choice = choices.setdefault(delta["index"], {"index": delta["index"], "token_ids": [], "logprobs": None})
            choice["token_ids"] += delta["token_ids"] or []
            if delta.get("logprobs"):
                choice["logprobs"] = choice["logprobs"] or {"content": []}
                choice["logprobs"]["content"] += delta["logprobs"]["content"]
            for name in ("finish_reason", "stop_reason"):
                choice[name] = delta.get(name)
    return {
        "request_id": events[0]["request_id"],
        "prompt_token_ids": prompt,
        "usage": usage,
        "choices": [choices[index] for index in sorted(choices)],
    }


@dataclass
class Streamed:
    """A derendered stream. `replies` are the derender answers, one per event."""

    replies: list[Json] = field(default_factory=list)

    @property
    def chunks(self) -> list[Json]:
        return [reply["chunk"] for reply in self.replies]

    @property
    def choices(self) -> list[Json]:
        """The choices put together from their deltas, in the form of `told`."""
        made: dict[int, Json] = {}
        for chunk in self.chunks:
            for delta in chunk["choices"]:
                choice = made.setdefault(delta["index"], _nothing(delta))
                _add(choice, delta)
        return [made[index] for index in sorted(made)]

    @property
    def usage(self) -> Json:
        return next((chunk["usage"] for chunk in reversed(self.chunks) if chunk["usage"]), None)


def _nothing(delta: Json) -> Json:
    return {
        "index": delta["index"],
        "role": None,
        "text": "",
        "logprobs": None,
        "token_ids": None,
        "finish_reason": None,
        "stop_reason": None,
    }


def _add(choice: Json, delta: Json) -> None:
    assert choice["finish_reason"] is None, f"a delta after the finish reason: {delta}"
    if "delta" in delta:
        message = delta["delta"]
        first = choice["role"] is None
        assert message["role"] == ("assistant" if first else None)
        choice["role"] = "assistant"
        choice["text"] += message["content"] or ""
    else:
        choice["text"] += delta["text"]
    if delta["token_ids"] is not None:
        choice["token_ids"] = (choice["token_ids"] or []) + delta["token_ids"]
    if delta["logprobs"] is not None:
        held = choice["logprobs"] or {}
        choice["logprobs"] = {name: held.get(name, []) + values for name, values in delta["logprobs"].items()}
    choice["finish_reason"], choice["stop_reason"] = delta["finish_reason"], delta["stop_reason"]


def told(answer: Json) -> list[Json]:
    """The choices of an answer that is not streamed, in the form of `Streamed.choices`."""
    return [
        {
            "index": choice["index"],
            "role": choice["message"]["role"] if "message" in choice else None,
            "text": choice["message"]["content"] if "message" in choice else choice["text"],
            **{name: choice[name] for name in ("logprobs", "token_ids", "finish_reason", "stop_reason")},
        }
        for choice in answer["choices"]
    ]


def events_of(engine: Client, rendered: list[Json]) -> Iterator[Json]:
    """The generate stream of a request with one prompt."""
    (asked,) = rendered
    assert asked["stream"] is True
    return engine.events(GENERATE, asked)


def kept(events: Iterator[Json], into: list[Json]) -> Iterator[Json]:
    """The same events, each put into a list as it comes."""
    for event in events:
        into.append(event)
        yield event


def derender_stream(
    text: Client,
    request: Json,
    rendered: list[Json],
    events: Iterator[Json] | list[Json],
    *,
    state_per_choice: bool = False,
    watch: Callable[[Json, Json], None] | None = None,
) -> Streamed:
    """Derenders a generate stream event by event, carrying the state as a caller does.

    `state_per_choice`: one state for each choice, as vLLM's derender needs it; else one for the stream.
    `watch`: called with each event and its derender answer.
    """
    dialect = dialect_of(request)
    states: dict[int, Json] = {}
    streamed = Streamed()
    for event in events:
        place = event["choices"][0]["index"] if state_per_choice and event["choices"] else 0
        reply = text.post(
            f"{dialect.path}/derender",
            {
                "stream": True,
                "generate_chunk": event,
                "stream_state": states.get(place),
                "prompt_tokens": len(rendered[0]["token_ids"]),
                "prompt_token_ids": rendered[0]["token_ids"],
                dialect.asked: request,
            },
        )
        states[place] = reply["stream_state"]
        streamed.replies.append(reply)
        if watch is not None:
            watch(event, reply)
    return streamed
