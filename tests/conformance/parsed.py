"""Models with parsers behind the server's application, and what a client has in the end, whole or as a stream."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.helpers import CHAT_DERENDER, chat, ok, serve
from tests.derendering.helpers import ask
from tests.server.tiny_model import write_tiny_model
from tests.vocabularies import real_model

from derender.model import Model, ModelSettings
from derender.server.http import App
from derender.tokenizer import Tokenizer

Json = Any


@dataclass(frozen=True)
class Served:
    """A model behind an application, and its tokenizer."""

    app: App
    tokenizer: Tokenizer


def function(name: str, **properties: Json) -> Json:
    """A tool whose parameters have these schemas; a string is a schema's type."""
    types = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": types}}}


def _loaded(path: str, tool: str | None, reasoning: str | None, settings: dict[str, Any]) -> Served:
    model = Model.load(
        path,
        settings=ModelSettings(
            served_model_names=("m",),
            tool_call_parser=tool,
            reasoning_parser=reasoning,
            enable_auto_tool_choice=tool is not None,
            **settings,
        ),
    )
    return Served(serve(model), model.tokenizer)


@functools.cache
def served(
    tool: str | None = None,
    reasoning: str | None = None,
    *,
    markers: tuple[str, ...] = (),
    special: tuple[str, ...] = (),
    **settings: Any,
) -> Served:
    """A model of one token a byte, of which these markers are tokens too; those in `special` are flagged so."""
    with tempfile.TemporaryDirectory() as place:
        directory = write_tiny_model(Path(place) / "model")
        tree = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
        first = tree["added_tokens"][0]
        for marker in (*markers, *special):
            tree["added_tokens"].append(
                {**first, "id": 256 + len(tree["added_tokens"]), "content": marker, "special": marker in special}
            )
        (directory / "tokenizer.json").write_text(json.dumps(tree), encoding="utf-8")
        return _loaded(str(directory), tool, reasoning, settings)


@functools.cache
def real_served(name: str, tool: str | None = None, reasoning: str | None = None, **settings: Any) -> Served:
    """A real model with parsers. Skips where it is missing."""
    return _loaded(real_model(name), tool, reasoning, settings)


@dataclass(frozen=True)
class Got:
    """What a client has. A call is `(id, name, arguments)`; `parts` are reasoning, content and calls as they came."""

    reasoning: str | None
    content: str | None
    calls: list[tuple[str, str, str]]
    finish: str | None
    parts: list[tuple[str, str]]

    @property
    def arguments(self) -> list[tuple[str, Json]]:
        """Each call's name and its decoded arguments."""
        return [(name, json.loads(text)) for _, name, text in self.calls]


def of_batch(answer: Json) -> Got:
    """The message of a whole answer's only choice."""
    [choice] = answer["choices"]
    message = choice["message"]
    calls = message.get("tool_calls") or []
    assert all(call["type"] == "function" for call in calls)
    return Got(
        message.get("reasoning"),
        message["content"],
        [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls],
        choice["finish_reason"],
        [],
    )


def of_stream(chunks: Sequence[Json]) -> Got:
    """The message that a stream's chunks make, each held to the contract of deltas."""
    calls: dict[int, list[str]] = {}
    parts: list[tuple[str, str]] = []
    finish = None

    def add(kind: str, text: str) -> None:
        if parts and parts[-1][0] == kind:
            text = parts.pop()[1] + text
        parts.append((kind, text))

    for chunk in chunks:
        for choice in chunk["choices"]:
            assert finish is None, "nothing comes after the finish reason"
            delta, finish = choice["delta"], choice["finish_reason"]
            for kind in ("reasoning", "content"):
                if delta.get(kind):
                    add(kind, delta[kind])
            for call in delta.get("tool_calls") or []:
                index, named = call["index"], call["function"]
                if index in calls:
                    assert not call.get("id"), "an id is sent once"
                    assert not named.get("name"), "a name is sent once"
                else:
                    assert index == len(calls), "calls are numbered from 0"
                    assert call["type"] == "function"
                    calls[index] = [call["id"], named["name"], ""]
                    parts.append(("call", named["name"]))
                calls[index][2] += named.get("arguments") or ""
    whole = {kind: "".join(text for k, text in parts if k == kind) for kind in ("reasoning", "content")}
    return Got(
        whole["reasoning"] or None,
        whole["content"] or None,
        [(call[0], call[1], call[2]) for call in calls.values()],
        finish,
        parts,
    )


def streamed(
    model: Served, groups: Sequence[Sequence[int]], context: Json, *, finish: str = "stop", entries: Json = None
) -> list[Json]:
    """The chunks of a stream whose ids come in these groups. A caller that keeps the state as JSON text."""
    chunks = []
    state, at = "null", 0
    for number, group in enumerate(groups):
        choice = {"index": 0, "token_ids": list(group)}
        if number == len(groups) - 1:
            choice["finish_reason"] = finish
        if entries is not None:
            choice["logprobs"] = {"content": entries[at : at + len(group)]}
        at += len(group)
        chunk = {"request_id": "r", "choices": [choice]}
        body = {"stream": True, "generate_chunk": chunk, "stream_state": json.loads(state), **context}
        answer = ok(model.app, CHAT_DERENDER, body)
        state = json.dumps(answer["stream_state"])
        chunks.append(answer["chunk"])
    return chunks


def context_of(model: Served, tools: Sequence[Json], tail: str | None, fields: Json) -> Json:
    """What an answer is derendered with: the request, and the prompt's ids where its end is known."""
    request = ask(**({"tools": list(tools)} if tools else {}), **fields)
    context: Json = {"chat_request": request}
    if tail is not None:
        context["prompt_token_ids"] = model.tokenizer.encode(tail)
    return context


def groupings(model: Served, pieces: Sequence[str], *, splits: bool) -> list[list[list[int]]]:
    """Ways to cut a text's ids: the pieces, a token each, a token and the rest; with `splits` at each place in two."""
    ids = model.tokenizer.encode("".join(pieces))
    at = range(1, len(ids)) if splits else range(1, len(ids), 7)
    ways = [[[one] for one in ids], *([ids[:cut], ids[cut:]] for cut in at), [ids]]
    given = [model.tokenizer.encode(piece) for piece in pieces]
    if len(given) > 1 and [one for part in given for one in part] == ids:
        ways.append(given)
    return ways


def read(
    model: Served,
    text: str | Sequence[str],
    *,
    tools: Sequence[Json] = (),
    tail: str | None = None,
    finish: str = "stop",
    end: str = "",
    splits: bool = True,
    **fields: Json,
) -> Got:
    """The batch answer to a text, which every stream of it has to equal. `parts` are those of a token per chunk.

    `tail`: the prompt's end. `end`: what the engine's ids end with beside the text. `fields`: of the chat request.
    """
    pieces = [text] if isinstance(text, str) else list(text)
    pieces[-1] += end
    context = context_of(model, tools, tail, fields)
    ids = model.tokenizer.encode("".join(pieces))
    response = {"request_id": "r", "choices": [{"index": 0, "token_ids": ids, "finish_reason": finish}]}
    whole = of_batch(chat(model.app, response, **context))
    parts: list[tuple[str, str]] = []
    for number, groups in enumerate(groupings(model, pieces, splits=splits)):
        got = of_stream(streamed(model, groups, context, finish=finish))
        parts = parts if number else got.parts
        right = (whole.reasoning or None, whole.content or None, whole.calls, whole.finish)
        assert (got.reasoning, got.content, got.calls, got.finish) == right, [len(group) for group in groups]
    return Got(whole.reasoning, whole.content, whole.calls, whole.finish, parts)


def reread(vocabularies: Sequence[Served], text: str | Sequence[str], **how: Any) -> Got:
    """`read` with each of these vocabularies, which have to agree."""
    first, *others = [read(model, text, **how) for model in vocabularies]
    for other in others:
        assert other == first
    return first
