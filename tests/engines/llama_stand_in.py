"""A stand-in for a llama.cpp server, in the test's own process: its "model" makes the ids of a script.

Built from the server's documented fields and from what the real one was seen to do (`test_llama_server_real.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

EOS, OTHER_EOS = 2, 3


@dataclass
class LlamaStandIn:
    """`script`: the ids after `prompt` ids of a prompt. `inside`: ids that end inside a character, for which the
    server tells no logprobs. `content`: the answer's text."""

    script: list[int] = field(default_factory=lambda: [10, 11, 12, 13, 14, 15, 16, 17, 18, EOS])
    prompt: int = 3
    context: int = 64
    slots: int = 2
    inside: frozenset[int] = frozenset()
    content: str = "x"
    error: tuple[int, dict[str, Any]] | None = None
    hang: bool = False
    quiet: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    at_work: int = 0
    most_at_work: int = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/health", self._health)
        app.router.add_get("/props", self._props)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/completion", self._completion)
        if not self.quiet:
            app.router.add_get("/metrics", self._metrics)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _props(self, _: web.Request) -> web.Response:
        settings = {"n_ctx": self.context, "params": {"top_k": 40}}
        told = {"default_generation_settings": settings, "total_slots": self.slots, "eos_token": "</s>"}
        return web.json_response(told)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m.gguf", "meta": {"n_vocab": 1000}}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        assert (await request.json())["content"] == "</s>"
        return web.json_response({"tokens": [EOS]})

    async def _metrics(self, _: web.Request) -> web.Response:
        names = ("requests_processing", "requests_deferred", "prompt_tokens_total", "tokens_predicted_total")
        lines = [f"# HELP llamacpp:{name} x\nllamacpp:{name} {value}\n" for value, name in enumerate(names, 1)]
        return web.Response(text="".join(lines))

    async def _completion(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.asked.append(asked)
        self.came.set()
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            if self.hang:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.closed.set()
            raise
        finally:
            self.at_work -= 1
        if self.error is not None:
            status, error = self.error
            return web.json_response({"error": {"code": status, **error}}, status=status)
        return web.json_response(self._answer(asked))

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        done = len(asked["prompt"]) - self.prompt
        k = asked["n_probs"]
        if asked.get("grammar") == 'root ::= "a"':
            return {"tokens": [97], "stop_type": "limit", "completion_probabilities": [self._position(done, 97, k)]}
        room = self.context - len(asked["prompt"])
        held = {token for token, bias in asked["logit_bias"] if bias is False}
        if asked["ignore_eos"]:
            held |= {EOS, OTHER_EOS}
        tokens: list[int] = []
        stop_type = "limit"
        for token in self.script[done : done + min(asked["n_predict"], room)]:
            tokens.append(99 if token in held else token)
            if tokens[-1] in (EOS, OTHER_EOS):
                stop_type = "eos"
                break
        told = [(place, token) for place, token in enumerate(tokens) if token not in self.inside]
        return {
            "tokens": tokens,
            "content": self.content,
            "stop_type": stop_type,
            "truncated": stop_type == "limit" and len(tokens) == room,
            "timings/cache_n": max(0, len(asked["prompt"]) - 1),
            "completion_probabilities": [self._position(done + place, token, k) for place, token in told] if k else [],
        }

    def _position(self, position: int, token: int, k: int) -> dict[str, Any]:
        made = self.script[position]
        ranked = [(made, -0.5), (800 + position, -1.5), (850 + position, -2.5)][:k]
        value = -0.5 if token == made else -9.0
        return {"id": token, "logprob": value, "top_logprobs": [{"id": one, "logprob": lp} for one, lp in ranked]}
