"""uvicorn's HTTP/1.1 connection, with errors in our envelope and a bound on a request's head."""

from __future__ import annotations

import asyncio
import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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
    """One client connection."""

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
        cycle = self.cycle
        if (cycle is None or not cycle.more_body) and data.find(b"pgrade", 0, _LOOKED_AT) >= 0:
            data = _without_upgrade(data)
        super().data_received(data)
        cycle = self.cycle
        # A message's scope is made at its first byte, its cycle when its head is whole.
        if self.scope is None or (cycle is not None and cycle.scope is self.scope):
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(_HEAD_TOO_LARGE)

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
