"""Prefill and decode on different engines: the two requests of vLLM's connectors, and what happens where one fails."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from tests.gateway.split_stand_in import Caches, SplitEngine
from tests.gateway.under_test import CHAT, COMPLETIONS, gate, run

from derender.engines.errors import EngineFailed
from derender.gateway.settings import PoolSettings

CHAT_BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
OWN = {"do_remote_prefill": True, "remote_engine_id": "elsewhere", "remote_host": "h", "remote_port": 1}


def events(body: bytes) -> list[Any]:
    lines = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def split(
    *, stream: bool = False, path: str = CHAT, prefill_fails: bool = False, decode_fails: bool = False, **more: Any
):
    """An answer of a gateway with one engine of each kind, the engines, and their caches."""

    async def main():
        caches = Caches()
        async with (
            SplitEngine("prefill", caches, fails=prefill_fails) as prefill,
            SplitEngine("decode", caches, fails=decode_fails) as decode,
            gate(prefill, decode, roles=("prefill", "decode")) as gateway,  # type: ignore[arg-type]
        ):
            body = {"model": "tiny", "prompt": "hi", "max_tokens": 20} if path == COMPLETIONS else CHAT_BODY
            answer = await gateway.ask(path, {**body, "stream": stream, **more})
            return answer, prefill, decode, caches

    return run(main)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
def test_the_prompt_is_made_by_one_and_the_answer_by_the_other(path: str, stream: bool) -> None:
    answer, prefill, decode, caches = split(path=path, stream=stream, temperature=0.5, logprobs=None, seed=3)
    assert answer.status == 200, answer.body
    assert (prefill.wrong, decode.wrong) == ([], [])
    assert (len(prefill.asked), len(decode.asked), caches.fetched, caches.waiting) == (1, 1, 1, {})
    assert decode.asked[0]["sampling_params"]["max_tokens"] == 20
    assert decode.asked[0]["sampling_params"]["seed"] == 3
    assert decode.asked[0]["kv_transfer_params"]["tp_size"] == 1  # passed on as it is
    assert prefill.asked[0]["token_ids"] == decode.asked[0]["token_ids"]
    if stream:
        assert events(answer.body)[-1]["choices"][0]["finish_reason"] == "stop"
    else:
        assert answer.json["usage"]["completion_tokens"] == 3


def test_each_prompt_has_a_cache_of_its_own() -> None:
    answer, prefill, decode, caches = split(path=COMPLETIONS, prompt=["one", "two", "three"])
    assert answer.status == 200, answer.body
    assert (prefill.wrong, decode.wrong, caches.fetched, caches.waiting) == ([], [], 3, {})
    assert [choice["index"] for choice in answer.json["choices"]] == [0, 1, 2]


def test_whoever_brings_a_cache_goes_to_the_decode_engine_at_once() -> None:
    answer, prefill, decode, _ = split(kv_transfer_params=OWN)
    assert answer.status == 200, answer.body
    assert prefill.asked == []
    assert decode.asked[0]["kv_transfer_params"] == OWN


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_of_either_ends_in_an_error(stream: bool) -> None:
    answer, prefill, decode, _ = split(prefill_fails=True, stream=stream)
    assert (answer.status, len(prefill.asked), decode.asked) == (502, 1, [])
    answer, prefill, decode, caches = split(decode_fails=True, stream=stream)
    assert (answer.status, len(prefill.asked), len(decode.asked)) == (502, 1, 1)
    assert answer.error["type"] == "BadGatewayError"
    assert caches.fetched == 0


@pytest.mark.parametrize("down", [0, 1])
def test_where_one_side_is_down_it_is_named_and_the_gateway_is_not_ready(down: int) -> None:
    async def main() -> None:
        caches = Caches()
        settings = PoolSettings(failures=1, probe_seconds=0.05, cooldown_seconds=60)
        async with contextlib.AsyncExitStack() as stack:
            sides = [SplitEngine("prefill", caches), SplitEngine("decode", caches)]
            for one in sides:
                await stack.enter_async_context(one)
            gateway = await stack.enter_async_context(
                gate(*sides, roles=("prefill", "decode"), pool=settings)  # type: ignore[arg-type]
            )
            assert (await gateway.app_ready()).status == 200
            backend = gateway.gateway.pool.backends[down]
            backend.leave(backend.enter(), failure=EngineFailed("broke off"), answered=True)
            assert (await gateway.app_ready()).status == 503
            answer = await gateway.ask(CHAT, CHAT_BODY)
            assert answer.status == 503
            assert answer.error["message"] == f"no {sides[down].kind} engine is up for this model"
            assert (sides[0].asked, sides[1].asked) == ([], [])

    run(main)
