"""The form of a gateway's streams, as clients of OpenAI's API look at it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.gateway.faulty_engine import END, Ask, Connection, FaultyEngine, choice, chunk
from tests.gateway.under_test import CHAT, COMPLETIONS, gate, run

TEXTS = (b"stop early, then much more", b"nothing of the kind")


async def behave(ask: Ask, to: Connection) -> None:
    """Two choices that take turns, the first of which meets a stop string long before its end."""
    await to.head()
    longest = max(map(len, TEXTS))
    for at in range(longest + 1):
        for index, text in list(enumerate(TEXTS))[: ask.choices]:
            if at < len(text):
                await to.event(chunk(ask, choice(index, [text[at]])))
            elif at == len(text):
                await to.event(chunk(ask, choice(index, [END], finish="stop")))
    await to.event(b"[DONE]")
    await to.end()


def streamed(path: str, **fields: Any) -> list[dict[str, Any]]:
    async def main() -> bytes:
        async with FaultyEngine(lambda ask: behave) as engine, gate(engine) as gateway:
            body: dict[str, Any] = {"model": "tiny", "max_tokens": 64, "stream": True}
            body |= {"prompt": "hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
            answer = await gateway.ask(path, {**body, **fields})
            assert answer.status == 200, answer.body
            return answer.body

    lines = [line[6:] for line in run(main).decode().split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "usage", [{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
def test_only_the_last_event_has_no_choices(path: str, usage: dict[str, bool]) -> None:
    """`chunk.choices[0]` is what clients look at: an event of a choice that had ended has nothing to tell."""
    more = {"stream_options": usage} if usage else {}
    events = streamed(path, n=2, temperature=0.5, stop=["early"], **more)
    assert [bool(event["choices"]) for event in events] == [True] * (len(events) - bool(usage)) + [False] * bool(usage)
    ends = [one["finish_reason"] for event in events for one in event["choices"] if one["finish_reason"]]
    assert ends == ["stop", "stop"]
    for event in events:
        if usage.get("continuous_usage_stats"):
            assert event["usage"] is not None
    if usage:
        assert events[-1]["usage"]["completion_tokens"] == len("stop early") + len(TEXTS[1]) + 1


def test_the_prompts_ids_are_told_once() -> None:
    events = streamed(CHAT, return_token_ids=True, temperature=0.5)
    told = [event["prompt_token_ids"] for event in events if "prompt_token_ids" in event]
    assert len(told) == 1
    assert told[0]
    assert told[0] == events[0]["prompt_token_ids"]
