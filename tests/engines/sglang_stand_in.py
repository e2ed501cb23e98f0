"""A stand-in for an SGLang server, in the test's own process. No real SGLang is behind any test here.

It is built from SGLang's documented fields and from its source (`io_struct.py`, `sampling_params.py`,
`tokenizer_manager.py`, `http_server.py`): what it leaves out or gets wrong, these tests cannot see. Its "model" makes
the ids of a script; it stops, counts and tells logprobs as SGLang does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

EOS = 2
Mode = Literal["cumulative", "delta"]


@contextlib.asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """The application on a port of the loopback; gives its address."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def candidates(position: int, sampled: int) -> list[tuple[float, int]]:
    """The three best at a position, the sampled one second, or not among them at every fourth position."""
    second = 900 if position % 4 == 3 else sampled
    return [(-0.5, 800 + position), (-1.5, second), (-2.5, 850 + position)]


def logprob(position: int) -> float:
    return -4.0 if position % 4 == 3 else -1.5


@dataclass
class SglangStandIn:
    """`script`: the ids that come. `steps`: how many of them each chunk adds, the last number again and again.

    `ids_as` and `logprobs_as`: whether a chunk has all so far, or what is new. `ahead`: all so far is one id more than
    `completion_tokens` says, as it happens where SGLang writes a list that has grown since it counted.
    """

    script: list[int] = field(default_factory=lambda: [10, 11, 12, 13, EOS])
    steps: list[int] = field(default_factory=lambda: [1])
    ids_as: Mode = "cumulative"
    logprobs_as: Mode = "cumulative"
    ahead: bool = False
    text_only: bool = False
    skip_tokenizer_init: bool = False
    priorities: bool = False
    error: dict[str, Any] | None = None
    error_after: int | None = None
    finish: dict[str, Any] | None = None
    hang_after: int | None = None
    break_after: int | None = None
    new_routes: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    aborts: list[str] = field(default_factory=list)
    aborted: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        prefix = "/" if self.new_routes else "/get_"
        app.router.add_get("/health", self._health)
        app.router.add_get(f"{prefix}model_info", self._model_info)
        app.router.add_get(f"{prefix}server_info", self._server_info)
        app.router.add_get("/get_load", self._load)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _model_info(self, _: web.Request) -> web.Response:
        return web.json_response({"model_path": "org/model", "is_generation": True})

    async def _server_info(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "skip_tokenizer_init": self.skip_tokenizer_init,
                "grammar_backend": "xgrammar",
                "enable_priority_scheduling": self.priorities,
                "version": "0.5",
            }
        )

    async def _load(self, _: web.Request) -> web.Response:
        return web.json_response([{"dp_rank": rank, "num_reqs": 3, "num_waiting_reqs": 1} for rank in range(2)])

    async def _models(self, _: web.Request) -> web.Response:
        card = {"id": "org/model", "object": "model", "root": "org/model", "max_model_len": 4096}
        return web.json_response({"object": "list", "data": [card]})

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborts.append((await request.json())["rid"])
        self.aborted.set()
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.asked.append(asked)
        self.came.set()
        if not asked["stream"]:
            if self.error is not None:
                return web.json_response({"error": self.error}, status=400)
            if self.hang_after is not None:
                await asyncio.Event().wait()
            return web.json_response(self._answer(asked, *self._output(asked), seen=0, whole=True))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for event in self._events(asked):
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if self.break_after is None:
            await response.write(b"data: [DONE]\n\n")
        return response

    async def _events(self, asked: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        ids, finish = self._output(asked)
        steps = iter(self.steps)
        step, seen = next(steps), 0
        while True:
            if self.error is not None and seen >= (self.error_after or 0):
                yield {"error": self.error}
                return
            if self.hang_after is not None and seen >= self.hang_after:
                await asyncio.Event().wait()
            if self.break_after is not None and seen >= self.break_after:
                return
            upto = min(len(ids), seen + step)
            yield self._answer(asked, ids[:upto], finish if upto == len(ids) else None, seen=seen, more=ids[upto:])
            if upto == len(ids):
                return
            seen, step = upto, next(steps, step)

    def _output(self, asked: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
        params = asked["sampling_params"]
        ids: list[int] = []
        for token in self.script[: params["max_new_tokens"]]:
            ids.append(token)
            stops = [*(params["stop_token_ids"] or ()), EOS]
            if token in stops and not params["ignore_eos"]:
                return ids, self.finish or {"type": "stop", "matched": token}
        return ids, self.finish or {"type": "length", "length": len(ids)}

    def _answer(
        self,
        asked: dict[str, Any],
        ids: list[int],
        finish: dict[str, Any] | None,
        *,
        seen: int,
        whole: bool = False,
        more: list[int] | None = None,
    ) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": asked["rid"],
            "finish_reason": finish,
            "prompt_tokens": len(asked["input_ids"]),
            "completion_tokens": len(ids),
            "cached_tokens": 1,
            "weight_version": "default",
        }
        cumulative = whole or self.ids_as == "cumulative"
        shown = ids + more[:1] if more and self.ahead and cumulative else ids
        if asked.get("return_logprob"):
            low = 0 if whole or self.logprobs_as == "cumulative" else seen
            k = asked["top_logprobs_num"]
            listed = list(enumerate(shown))[low:]
            meta["output_token_logprobs"] = [[logprob(place), token, None] for place, token in listed]
            meta["input_token_logprobs"] = []
            if k:
                top = [candidates(place, token)[:k] for place, token in listed]
                meta["output_top_logprobs"] = [[[value, token, None] for value, token in row] for row in top]
            if asked["logprob_start_len"] == 0:
                prompt = list(enumerate(asked["input_ids"]))
                meta["input_token_logprobs"] = [[None if not i else logprob(i), token, None] for i, token in prompt]
                if k:
                    meta["input_top_logprobs"] = [
                        [[value, other, None] for value, other in candidates(i, token)[:k]] if i else None
                        for i, token in prompt
                    ]
        if self.text_only:
            return {"text": "words", "meta_info": meta}
        return {"output_ids": shown if cumulative else ids[seen:], "meta_info": meta}
