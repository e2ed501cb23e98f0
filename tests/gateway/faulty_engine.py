"""An engine on the loopback that speaks vLLM's token protocol byte by byte, so that it can do it wrong.

It counts what came: requests, aborts by id, open connections, and whose connections the client closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

GENERATE = "/inference/v1/generate"
ABORT = "/inference/v1/abort_requests"
PREFIX = "generate-tokens-"
END = 258
IDS = [*b"hello world", END]
"""What each choice of a right answer is."""


@dataclass
class Ask:
    """One request to generate."""

    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def id(self) -> str:
        """As chunks and aborts have it: vLLM takes a header's id before the body's."""
        return PREFIX + self.headers.get("x-request-id", self.body.get("request_id") or "none")

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def choices(self) -> int:
        return int(self.body["sampling_params"].get("n", 1))

    @property
    def logprobs(self) -> bool:
        return self.body["sampling_params"].get("logprobs") is not None

    @property
    def probes(self) -> bool:
        """Whether it only finds out what the engine can do."""
        return not self.body.get("request_id")


class Connection:
    """Where an answer is written. Writes wait until the client takes what came before."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.over = False
        """Whether the connection is not to be used again."""
        self.sent = 0

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        self.sent += len(data)
        await self.writer.drain()

    async def head(self, *headers: str, status: int = 200, kind: str = "text/event-stream") -> None:
        """The head of an answer in chunks."""
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", "transfer-encoding: chunked", *headers]
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def event(self, value: Any, *, end: bytes = b"\n\n") -> None:
        await self.chunk(b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + end)

    async def whole(self, body: bytes, *headers: str, status: int = 200, kind: str = "application/json") -> None:
        """A whole answer with its length."""
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(body)}", *headers]
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def json(self, value: Any, *, status: int = 200) -> None:
        await self.whole(json.dumps(value).encode(), status=status)

    def close(self) -> None:
        """Ends the connection."""
        self.over = True
        self.writer.close()

    def reset(self) -> None:
        """Ends it as a process does that is killed with bytes unread."""
        self.over = True
        sock = self.writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Behaviour = Callable[[Ask, Connection], Awaitable[None]]


# ------------------------------------------------------------------------------------------------- right answers


def logprob(token: int, value: float = -0.5) -> dict[str, Any]:
    return {"token_id": token, "logprob": value, "rank": 1, "top_logprobs": [{"token_id": token, "logprob": value}]}


def choice(index: int, ids: list[int] | None, *, finish: str | None = None, logprobs: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {"index": index, "finish_reason": finish, "token_ids": ids, "stop_reason": None}
    made["logprobs"] = {"content": [logprob(one) for one in ids or ()]} if logprobs else None
    return made


def chunk(ask: Ask, *choices: dict[str, Any]) -> dict[str, Any]:
    return {"request_id": ask.id, "choices": list(choices)}


def chunks(ask: Ask, ids: list[int] | None = None) -> list[dict[str, Any]]:
    """All events of a right stream but `[DONE]`: choices take turns, one token each."""
    given = IDS if ids is None else ids
    made = [
        chunk(ask, choice(index, [one], finish="stop" if number == len(given) - 1 else None, logprobs=ask.logprobs))
        for number, one in enumerate(given)
        for index in range(ask.choices)
    ]
    return [*made, {"request_id": ask.id, "choices": [], "usage": usage(ask, len(given) * ask.choices)}]


def usage(ask: Ask, completion: int) -> dict[str, int]:
    prompt = len(ask.body["token_ids"])
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def answer(ask: Ask, ids: list[int] | None = None) -> dict[str, Any]:
    """A right whole answer."""
    given = IDS if ids is None else ids
    return {
        "request_id": ask.id,
        "choices": [choice(index, given, finish="stop", logprobs=ask.logprobs) for index in range(ask.choices)],
        "usage": usage(ask, len(given) * ask.choices),
    }


async def right(ask: Ask, to: Connection) -> None:
    if not ask.streams:
        await to.json(answer(ask))
        return
    await to.head()
    for one in chunks(ask):
        await to.event(one)
    await to.event(b"[DONE]")
    await to.end()


async def hang(ask: Ask, to: Connection) -> None:
    """Nothing, until the client goes."""
    await asyncio.Event().wait()


def refusal(message: str, *, status: int, type_: str = "BadRequestError") -> dict[str, Any]:
    return {"error": {"message": message, "type": type_, "param": None, "code": status}}


# ---------------------------------------------------------------------------------------------------- the server


@dataclass
class FaultyEngine:
    """The server. `behave` gives the behaviour for each request; `health` is the status of the health route; `name` and
    `length` are those of its model."""

    behave: Callable[[Ask], Behaviour] = lambda ask: right
    health: int = 200
    name: str = "engine-model"
    length: int | None = 4096
    port: int = 0
    asked: list[Ask] = field(default_factory=list)
    aborts: Counter[str] = field(default_factory=Counter)
    abort_posts: int = 0
    open: int = 0
    connections: int = 0
    left: set[str] = field(default_factory=set)
    """Ids of the requests whose client closed the connection before the end of the answer."""
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, backlog=4096)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """As a process that is killed: nothing listens, all connections are reset."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            Connection(writer).reset()
        await until(lambda: not self.open)

    async def __aenter__(self) -> FaultyEngine:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.connections += 1
        self._writers.add(writer)
        to = Connection(writer)
        try:
            while not to.over and (request := await _request(reader)) is not None:
                await self._serve(*request, reader, to)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            if not to.over:
                writer.close()
            self.open -= 1

    async def _serve(
        self, path: str, headers: dict[str, str], body: bytes, reader: asyncio.StreamReader, to: Connection
    ) -> None:
        if path == "/health":
            await to.whole(b"", status=self.health)
        elif path == "/v1/models":
            await to.json({"object": "list", "data": [{"id": self.name, "max_model_len": self.length}]})
        elif path == "/version":
            await to.json({"version": "0.32.0"})
        elif path == ABORT:
            self.abort_posts += 1
            self.aborts.update(json.loads(body)["request_ids"])
            await to.whole(b"")
        elif path == GENERATE:
            await self._generate(Ask(json.loads(body), headers), reader, to)
        else:
            await to.json({"detail": "Not Found"}, status=404)

    async def _generate(self, ask: Ask, reader: asyncio.StreamReader, to: Connection) -> None:
        if ask.probes:
            if ask.body["sampling_params"].get("stop"):
                await to.json(refusal("stop strings are not supported", status=400), status=400)
            else:
                await to.json(answer(ask, [END]))
            return
        self.asked.append(ask)
        work = asyncio.ensure_future(self.behave(ask)(ask, to))
        left = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
            if left.done() and not work.done():
                self.left.add(ask.id)
                to.over = True
        finally:
            for task in (work, left):
                task.cancel()
            await asyncio.gather(work, left, return_exceptions=True)
        if to.over:
            to.writer.close()
        if not work.cancelled() and (error := work.exception()) is not None:
            self.left.add(ask.id)
            if not isinstance(error, ConnectionError):
                raise error


async def _request(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes] | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return first.split()[1], headers, body


async def until(true: Callable[[], bool], *, seconds: float = 20.0, what: str = "it did not happen") -> None:
    """Waits until something is so."""
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    while not true():
        assert clock() < end, what
        await asyncio.sleep(0.005)
