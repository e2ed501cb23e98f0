"""uvicorn's HTTP/1.1 connection, with errors in our envelope and a bound on a request's head."""

from __future__ import annotations

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
_REASONS = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}


_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)
_LOOKED_AT = 8192  # bytes at a request's start in which an offer to upgrade is looked for


class Connection(HttpToolsProtocol):
    """One client connection."""

    _between = True
    _in_head = False
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        if self._between and data.find(b"pgrade", 0, _LOOKED_AT) >= 0:
            data = _without_upgrade(data)
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(_HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        self._between = False
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._between = True
        super().on_message_complete()

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
