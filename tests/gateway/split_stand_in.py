"""A prefill and a decode engine as vLLM's connectors make of them, as far as HTTP shows it: what the second is asked
has to be what the first gave.

Real ones need GPUs and a network between their memories. What is checked here is the contract: the two requests, their
order, and that each cache is fetched once.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

ASKS = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
Json = dict[str, Any]


class Caches:
    """The caches that wait to be fetched: transfer parameters → the ids that they were made of."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[int]] = {}
        self.fetched = 0


class SplitEngine:
    """One of the two. `wrong` collects what was not as the contract has it."""

    def __init__(self, kind: Literal["prefill", "decode"], caches: Caches, *, fails: bool = False) -> None:
        self.kind = kind
        self.caches = caches
        self.fails = fails
        self.asked: list[Json] = []
        self.aborted: list[str] = []
        self.wrong: list[str] = []
        self.open = 0
        self.url = ""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> SplitEngine:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (
                        int(line.split(":")[1])
                        for line in head.split("\r\n")
                        if line.lower().startswith("content-length")
                    ),
                    0,
                )
                body = await reader.readexactly(length)
                writer.write(self._answer(head.split()[1], body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    def _answer(self, path: str, body: bytes) -> bytes:
        if path == "/v1/models":
            return _whole({"object": "list", "data": [{"id": "tiny", "max_model_len": None}]})
        if path.endswith("/abort_requests"):
            self.aborted += json.loads(body)["request_ids"]
            return _whole({})
        if path != "/inference/v1/generate":
            return _whole({})
        asked = json.loads(body)
        if not asked.get("request_id"):  # a probe
            return _whole(_response(asked, [1]))
        self.asked.append(asked)
        if self.fails:
            return _whole({"error": {"message": "out of memory", "type": "InternalServerError"}}, status="500 Oh")
        return self._prefill(asked) if self.kind == "prefill" else self._decode(asked)

    def _prefill(self, asked: Json) -> bytes:
        params = asked["sampling_params"]
        for name, value in (("max_tokens", 1), ("min_tokens", 1)):
            if params.get(name) != value:
                self.wrong.append(f"{name} is {params.get(name)}")
        if asked.get("stream"):
            self.wrong.append("the prefill request streams")
        for given in (asked.get("kv_transfer_params"), (params.get("extra_args") or {}).get("kv_transfer_params")):
            if given != ASKS:
                self.wrong.append(f"it is asked with {given}")
        name = f"engine-{len(self.asked)}"
        self.caches.waiting[name] = asked["token_ids"]
        transfer = {
            "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": name, "remote_block_ids": [1, 2],
            "remote_host": "10.0.0.1", "remote_port": 5600, "tp_size": 1,
        }  # fmt: skip
        return _whole({**_response(asked, [7]), "kv_transfer_params": transfer})

    def _decode(self, asked: Json) -> bytes:
        given = asked.get("kv_transfer_params") or {}
        if (asked["sampling_params"].get("extra_args") or {}).get("kv_transfer_params") != given:
            self.wrong.append("the two places differ")
        ids = self.caches.waiting.pop(str(given.get("remote_engine_id")), None)
        if ids != asked["token_ids"]:
            self.wrong.append(f"no cache of this prompt is at {given}")
        self.caches.fetched += 1
        count = min(asked["sampling_params"]["max_tokens"], 3)
        answer = [65 + n for n in range(count)]
        if not asked.get("stream"):
            return _whole(_response(asked, answer))
        events = [
            {"request_id": "generate-tokens-" + asked["request_id"], "choices": [_choice(0, [one], n == count - 1)]}
            for n, one in enumerate(answer)
        ]
        text = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(text)}\r\n\r\n"
        return head.encode() + text


def _choice(index: int, ids: list[int], last: bool) -> Json:
    return {"index": index, "token_ids": ids, "finish_reason": "stop" if last else None, "stop_reason": None}


def _response(asked: Json, ids: list[int]) -> Json:
    count = asked["sampling_params"].get("n") or 1
    name = "generate-tokens-" + (asked.get("request_id") or "probe")
    return {"request_id": name, "choices": [_choice(n, ids, True) for n in range(count)]}


def _whole(value: Json, *, status: str = "200 OK") -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
