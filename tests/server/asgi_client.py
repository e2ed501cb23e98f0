"""Calls an ASGI application without a network, as a server with one connection would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

JSON = ("content-type", "application/json")


@dataclass
class Answer:
    """What came back. `status` 0: the application answered nothing."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The inside of the error envelope, checked to be one."""
        assert self.headers["content-type"] == "application/json"
        assert set(self.json) == {"error"}
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == self.status
        return error


class Call:
    """One request on its way. `parts`: the body as it arrives; `leaves`: the client goes after the parts."""

    def __init__(
        self,
        method: str,
        path: str,
        *,
        parts: Iterable[bytes] = (),
        headers: Sequence[tuple[str, str]] = (),
        query: str = "",
        leaves: bool = False,
    ) -> None:
        self.answer = Answer()
        self.received = 0
        self.gone = asyncio.Event()
        self._parts = list(parts)
        self._leaves = leaves
        self._asked = False
        self.scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
            "client": ("127.0.0.1", 1),
        }

    async def receive(self) -> dict[str, Any]:
        if self._parts:
            part = self._parts.pop(0)
            self.received += len(part)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts) or self._leaves}
        if self._leaves:
            return {"type": "http.disconnect"}
        if not self._asked and not self.received:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        answer = self.answer
        if message["type"] == "http.response.start":
            assert answer.status == 0, "two answers"
            answer.status = message["status"]
            for name, value in message["headers"]:
                assert name.decode() not in answer.headers, f"{name!r} twice"
                answer.headers[name.decode()] = value.decode("latin-1")
            return
        assert answer.status
        assert not answer.complete, "sent after the end"
        answer.chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            answer.complete = True
            self.gone.set()


async def call(app: Any, method: str, path: str, **options: Any) -> Answer:
    """Sends one request and gives its whole answer."""
    one = Call(method, path, **options)
    await app(one.scope, one.receive, one.send)
    return one.answer


def request(app: Any, method: str, path: str, **options: Any) -> Answer:
    """The same from outside of an event loop."""
    return asyncio.run(call(app, method, path, **options))


def post(app: Any, path: str, body: bytes | dict[str, Any], *, headers: Sequence[tuple[str, str]] = (JSON,)) -> Answer:
    """A POST with a whole body and its length."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return request(app, "POST", path, parts=[data], headers=[*headers, ("content-length", str(len(data)))])
