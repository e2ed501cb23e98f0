"""An engine that costs next to nothing: canned_engine.py PORT REPLIES.json

REPLIES.json is a list of lists of token ids. A request of vLLM's token protocol gets the one at (max_tokens modulo
their number): whole or, where it streams, one token an event. `--pause SECONDS` waits between two events.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

_decode = msgspec.json.Decoder()
_encode = msgspec.json.encode


class Connection(asyncio.Protocol):
    def __init__(self, replies: list[list[int]], pause: float) -> None:
        self._replies = replies
        self._pause = pause
        self._held = b""
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        for task in self._tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        self._held += data
        while b"\r\n\r\n" in self._held:
            head, _, rest = self._held.partition(b"\r\n\r\n")
            length = 0
            for line in head.split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if len(rest) < length:
                return
            self._held = rest[length:]
            self._answer(head.split(b" ", 2)[1], rest[:length])

    def _answer(self, path: bytes, body: bytes) -> None:
        if path == b"/inference/v1/generate" and body:
            request = _decode.decode(body)
            params = request["sampling_params"]
            ids = self._replies[(params.get("max_tokens") or 0) % len(self._replies)][: params.get("max_tokens")]
            if not request.get("stream"):
                self._whole(self._response(request, ids))
            elif self._pause:
                task = asyncio.ensure_future(self._slowly(request, ids))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self._transport.write(_HEAD + b"".join(_part(event) for event in self._events(request, ids)) + _END)
        elif path == b"/inference/v1/generate":
            self._whole({"error": {"message": "no body"}}, status=b"400 Bad Request")
        elif path == b"/v1/models":
            self._whole({"object": "list", "data": [{"id": "m", "max_model_len": None}]})
        elif path == b"/version":
            self._whole({"version": "0.32.0"})
        elif path in (b"/health", b"/load"):
            self._whole({"server_load": 0})
        else:
            self._whole({"error": {"message": "Not Found"}}, status=b"404 Not Found")

    def _whole(self, value: Any, *, status: bytes = b"200 OK") -> None:
        body = _encode(value)
        self._transport.write(
            b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)
        )

    def _response(self, request: Any, ids: list[int]) -> dict[str, Any]:
        return {
            "request_id": "generate-tokens-" + (request.get("request_id") or "x"),
            "choices": [
                {"index": n, "token_ids": ids, "finish_reason": "stop", "stop_reason": None, "logprobs": None}
                for n in range(request["sampling_params"].get("n") or 1)
            ],
            "usage": {"prompt_tokens": len(request["token_ids"]), "completion_tokens": len(ids), "total_tokens": 0},
        }

    def _events(self, request: Any, ids: list[int]) -> list[bytes]:
        name = "generate-tokens-" + (request.get("request_id") or "x")
        events = [
            _encode(
                {
                    "request_id": name,
                    "choices": [
                        {
                            "index": 0,
                            "token_ids": [one],
                            "finish_reason": "stop" if n == len(ids) - 1 else None,
                            "stop_reason": None,
                            "logprobs": None,
                        }
                    ],
                    "usage": None,
                }
            )
            for n, one in enumerate(ids)
        ]
        return [*events, b"[DONE]"]

    async def _slowly(self, request: Any, ids: list[int]) -> None:
        self._transport.write(_HEAD)
        for event in self._events(request, ids):
            self._transport.write(_part(event))
            await asyncio.sleep(self._pause)
        self._transport.write(_END)


_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_END = b"0\r\n\r\n"


def _part(event: bytes) -> bytes:
    data = b"data: " + event + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(port: int, replies: list[list[int]], pause: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(replies, pause), "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    port, replies, *more = sys.argv[1:]
    pause = float(more[1]) if more[:1] == ["--pause"] else 0.0
    asyncio.run(serve(int(port), msgspec.json.decode(Path(replies).read_bytes()), pause))


if __name__ == "__main__":
    main()
