"""A blocking client of JSON over HTTP, with server-sent streams."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Json = Any
DONE = "[DONE]"


class Reply(NamedTuple):
    """`body` is decoded JSON, or the text where it is none; the names in `headers` are in lower case."""

    status: int
    body: Json
    headers: Mapping[str, str]


class Client:
    """One server on the loopback. Each request has a connection of its own."""

    def __init__(self, port: int, *, timeout: float = 120.0) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._timeout = timeout

    def ask(self, method: str, path: str, body: Json = None, headers: Mapping[str, str] | None = None) -> Reply:
        """The answer to one request, whatever its status."""
        connection, response = self._send(method, path, body, headers)
        try:
            text = response.read().decode()
        finally:
            connection.close()
        given = {name.lower(): value for name, value in response.getheaders()}
        try:
            return Reply(response.status, json.loads(text), given)
        except ValueError:
            return Reply(response.status, text, given)

    def get(self, path: str) -> Json:
        """The body of a GET that must be answered with 200."""
        return self._good(path, self.ask("GET", path))

    def post(self, path: str, body: Json, headers: Mapping[str, str] | None = None) -> Json:
        """The body of a POST that must be answered with 200."""
        return self._good(path, self.ask("POST", path, body, headers))

    def refusal(self, path: str, body: Json) -> Json:
        """The `error` of a POST that must be refused with 400."""
        reply = self.ask("POST", path, body)
        assert reply.status == 400, f"{path} answered {reply.status}: {reply.body}"
        assert reply.body["error"]["code"] == 400
        return reply.body["error"]

    def events(self, path: str, body: Json) -> Iterator[Json]:
        """The events of a server-sent stream, which must end in [DONE] and hold no error."""
        connection, response = self._send("POST", path, body, None)
        try:
            assert response.status == 200, f"{path} answered {response.status}: {response.read().decode()}"
            assert response.getheader("content-type", "").startswith("text/event-stream")
            done = False
            for line in response:
                text = line.decode().strip()
                if not text:
                    continue
                assert text.startswith("data: "), text
                assert not done, f"after [DONE]: {text}"
                done = text == f"data: {DONE}"
                if not done:
                    event = json.loads(text.removeprefix("data: "))
                    assert "error" not in event, event
                    yield event
            assert done, "the stream ended without [DONE]"
        finally:
            connection.close()

    def _send(
        self, method: str, path: str, body: Json, headers: Mapping[str, str] | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self._timeout)
        data = None if body is None else json.dumps(body).encode()
        head = {"content-type": "application/json"} if data is not None else {}
        connection.request(method, path, body=data, headers={**head, **(headers or {})})
        return connection, connection.getresponse()

    @staticmethod
    def _good(path: str, reply: Reply) -> Json:
        assert reply.status == 200, f"{path} answered {reply.status}: {reply.body}"
        return reply.body
