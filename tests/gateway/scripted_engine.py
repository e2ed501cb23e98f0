"""An engine that knows by heart what to say: vLLM's token protocol over HTTP, one token in a chunk.

It reads the ids of a prompt with the test's own tokenizer, looks up what its script has for that prompt, and gives the
ids of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from derender.tokenizer import Tokenizer

GENERATE = "/inference/v1/generate"
Script = Callable[[str, dict[str, Any]], str]
"""From a prompt's text and its sampling parameters to the output as the model writes it, its end of turn included."""


class ScriptedEngine:
    """What it is asked and what it says. `constrains`: it takes constraints on the output, else refuses them."""

    def __init__(
        self, tokenizer: Tokenizer, script: Script, *, name: str = "scripted", constrains: bool = True
    ) -> None:
        self.tokenizer = tokenizer
        self.name = name
        self.constrains = constrains
        self.asked: list[dict[str, Any]] = []
        """The bodies of the requests that were no probes."""
        self.headers: list[dict[str, str]] = []
        """The headers of all requests to generate, their names in lower case."""
        self.failures: list[BaseException] = []
        self._script = script

    def refuses(self, body: dict[str, Any]) -> str | None:
        """Why a request is refused; None: it is not."""
        if not body.get("token_ids"):
            return "token_ids: Field required"
        params = body["sampling_params"]
        if params.get("stop"):
            return "stop strings are not supported without a tokenizer"
        if params.get("structured_outputs") and not self.constrains:
            return "structured outputs are not supported without a tokenizer"
        return None

    def output(self, body: dict[str, Any]) -> list[int]:
        if not body.get("request_id"):  # a probe
            return [0]
        self.asked.append(body)
        try:
            written = self._script(self.tokenizer.decode(body["token_ids"]), body["sampling_params"])
        except BaseException as error:
            self.failures.append(error)
            raise
        return self.tokenizer.encode(written)

    def chunks(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a stream: a token each, and usage."""
        ids = self.output(body)
        for number, token in enumerate(ids):
            yield self._answer(body, [token], end=number == len(ids) - 1)
        yield {**self._answer(body, [], end=True), "choices": [], "usage": self._usage(body, ids)}

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = self.output(body)
        return {**self._answer(body, ids, end=True), "usage": self._usage(body, ids)}

    def _answer(self, body: dict[str, Any], ids: list[int], *, end: bool) -> dict[str, Any]:
        choice = {
            "index": 0,
            "token_ids": ids,
            "logprobs": None,
            "finish_reason": "stop" if end else None,
            "stop_reason": ids[-1] if end and ids else None,
        }
        return {"request_id": f"generate-tokens-{body.get('request_id')}", "choices": [choice], "usage": None}

    @staticmethod
    def _usage(body: dict[str, Any], ids: list[int]) -> dict[str, int]:
        prompt = len(body["token_ids"])
        return {"prompt_tokens": prompt, "completion_tokens": len(ids), "total_tokens": prompt + len(ids)}

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serves it on the loopback; gives the address."""
        handler = type("Handler", (_Handler,), {"engine": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: ScriptedEngine

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._json(200, {"data": [{"id": self.engine.name, "max_model_len": 8192}]})
        else:
            self._json(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != GENERATE:
            return self._json(404, {})
        self.engine.headers.append({name.lower(): value for name, value in self.headers.items()})
        if (reason := self.engine.refuses(body)) is not None:
            self._json(400, {"error": {"message": reason, "type": "BadRequestError", "param": None, "code": 400}})
        elif body.get("stream"):
            self._stream(body)
        else:
            self._json(200, self.engine.whole(body))
        return None

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for data in (*map(json.dumps, self.engine.chunks(body)), "[DONE]"):
            event = f"data: {data}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")

    def _json(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""
