"""uvicorn's HTTP/1.1 connection, with errors in our envelope and a bound on a request's head."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from derender.protocol.codec import encode
from derender.protocol.errors import ErrorInfo, ErrorResponse

MAX_HEAD_BYTES = 65536
"""Of request line and headers, plus at most one network read. The parser has no bound of its own."""

_INVALID = ErrorInfo(message="Invalid HTTP request received.", type="Bad Request", code=400)
_HEAD_TOO_LARGE = ErrorInfo(
    message=f"request line and headers are larger than {MAX_HEAD_BYTES} bytes",
    type="RequestHeaderFieldsTooLargeError",
    code=431,
)
_SILENT = ErrorInfo(message="The request did not come to its end in time.", type="RequestTimeoutError", code=408)
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}
SILENT_SECONDS = 60.0
"""How long a client may send nothing of a request that it owes the rest of, or take nothing of its answer: what came of
the body, what is left of the answer is held for it."""

_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)
_LOOKED_AT = 8192  # bytes at a request's start in which an offer to upgrade is looked for


class Connection(HttpToolsProtocol):
    """One client connection.

    A request that came whole, and that the application can answer without waiting, is answered at once and in one
    write. uvicorn's task and its ASGI messages are for all others.
    """

    _due: RequestResponseCycle | None = None  # the request whose turn it is
    _holding = False  # whether `_due` waits for what is being read, or answered
    _defaults: list[tuple[bytes, bytes]] | None = None
    _default_lines = b""
    _head_bytes = 0
    _begun = False  # whether the client sent anything
    _heard = 0.0  # when the client sent something, by the loop's clock
    _took = 0.0  # when it took something of what waits for it
    _unsent = 0  # bytes that waited at the last look

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._heard = self.loop.time()

    def data_received(self, data: bytes) -> None:
        self._heard, self._begun = self.loop.time(), True
        before, scope = self.cycle, self.scope
        idle = before is None or not before.more_body
        if idle and data.find(b"pgrade", 0, _LOOKED_AT) >= 0:
            data = _without_upgrade(data)
        self._holding = True
        try:
            super().data_received(data)
        finally:
            self._holding = False
        if self._due is not None:
            self._start_due()
        cycle = self.cycle
        # A message's scope is made at its first byte, its cycle when its head is whole.
        if self.scope is None or (cycle is not None and cycle.scope is self.scope):
            self._head_bytes = 0
            return
        if self.scope is not scope and not (idle and cycle is before):
            self._head_bytes = 1  # it begins somewhere in this read, after other requests
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(_HEAD_TOO_LARGE)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """uvicorn calls this when a request's head has come and those before it have been answered."""
        if app is not self.app or self.access_log or not hasattr(app, "direct"):
            super()._start_asgi_task(cycle, app)
            return
        self._due = cycle
        if not self._holding:
            self._start_due()

    def _start_due(self) -> None:
        """Answers the request whose turn it is, or calls the application; then the next, where they were pipelined."""
        self._holding = True
        try:
            while (cycle := self._due) is not None:
                self._due = None
                if cycle.more_body or self.flow.write_paused or not self._answered(cycle):
                    super()._start_asgi_task(cycle, self.app)
        finally:
            self._holding = False

    def _answered(self, cycle: RequestResponseCycle) -> bool:
        """Whether a request that came whole could be answered without waiting."""
        answer = self.app.direct(cycle.scope, bytes(cycle.body))
        if answer is None:
            return False
        status, headers, body = answer
        if cycle.default_headers is not self._defaults:
            self._defaults = cycle.default_headers
            self._default_lines = b"".join(b"%s: %s\r\n" % header for header in self._defaults)
        parts = [STATUS_LINE[status], self._default_lines]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        parts += (b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", body)
        cycle.response_started = cycle.response_complete = True
        self.transport.write(b"".join(parts))
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()
        return True

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if getattr(self.server_state, "draining", False):  # the client is told to send no more here
            self.cycle.keep_alive = False

    def end_if_silent(self, now: float) -> None:
        """Ends a connection whose client owes the rest of a request and has been silent for too long, or has taken
        nothing of its answer for as long.

        A body that an answer is already made of may pause: an engine may have nothing to say for minutes.
        """
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent != self._unsent:
            self._unsent, self._took = unsent, now
        elif now - self._took >= SILENT_SECONDS:
            self.transport.abort()
            return
        if now - self._heard < SILENT_SECONDS or self.flow.read_paused or self.transport.is_closing():
            return
        cycle = self.cycle
        if not self._begun:
            self.transport.close()
        elif self._head_bytes or (not cycle.response_complete and cycle.more_body and not cycle.response_started):
            self._refuse(_SILENT)

    def send_400_response(self, msg: str) -> None:
        self._refuse(_INVALID)

    def _refuse(self, error: ErrorInfo) -> None:
        """Answers what no request could be made of, and closes; requests that came whole before it are answered."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False
            self.flow.pause_reading()
            return
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = encode(ErrorResponse(error))
            self.transport.write(
                b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
                % (error.code, _REASONS[error.code], len(body), body)
            )
        self.transport.close()


def _without_upgrade(data: bytes) -> bytes:
    """A request's first bytes, its offer to upgrade renamed.

    The parser takes a request that offers an upgrade to have no body, but Java's HTTP client offers h2c with every
    POST that it sends in the clear. A server may pass over such an offer (RFC 9110, section 7.8).
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest
