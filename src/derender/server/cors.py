"""Cross-origin requests from browsers: which origins, methods and headers are allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from derender.protocol.codec import encode
from derender.protocol.errors import BadRequest
from derender.server.messages import Header, Response

_ALL_METHODS = b"DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
_MAX_AGE = b"600"  # seconds a browser may remember a preflight's answer
_VARY = (b"vary", b"Origin")


@dataclass(frozen=True)
class Cors:
    """What a browser may do from another origin; `*` in a list allows all.

    With `credentials` the origin is named instead of `*`, as browsers demand.
    """

    origins: Sequence[str] = ("*",)
    methods: Sequence[str] = ("*",)
    request_headers: Sequence[str] = ("*",)
    credentials: bool = False
    _origins: frozenset[bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_origins", frozenset(origin.encode() for origin in self.origins))

    def is_preflight(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether an OPTIONS request is a browser's question."""
        return b"origin" in headers and b"access-control-request-method" in headers

    def headers(self, headers: Mapping[bytes, bytes]) -> Sequence[Header]:
        """What is added to an answer; nothing where the request came from no other origin."""
        origin = headers.get(b"origin")
        if origin is None:
            return ()
        if b"*" in self._origins and not self.credentials:
            return ((b"access-control-allow-origin", b"*"),)
        if b"*" not in self._origins and origin not in self._origins:
            return (_VARY,)
        allowed = [(b"access-control-allow-origin", origin), _VARY]
        if self.credentials:
            allowed.append((b"access-control-allow-credentials", b"true"))
        return allowed

    def preflight(self, headers: Mapping[bytes, bytes]) -> Response:
        """The answer to a preflight, without `headers`: 200, or 400 for what is not allowed."""
        if b"*" not in self._origins and headers[b"origin"] not in self._origins:
            return _refused("origin")
        method = headers[b"access-control-request-method"]
        if "*" not in self.methods and method.decode("latin-1") not in self.methods:
            return _refused("method")
        asked = headers.get(b"access-control-request-headers", b"")
        names = [name.strip().lower() for name in asked.decode("latin-1").split(",") if name.strip()]
        allowed = {name.lower() for name in self.request_headers}
        if "*" not in allowed and not all(name in allowed for name in names):
            return _refused("headers")
        answer: list[Header] = [
            (
                b"access-control-allow-methods",
                _ALL_METHODS if "*" in self.methods else ", ".join(self.methods).encode(),
            ),
            (b"access-control-max-age", _MAX_AGE),
        ]
        if asked:
            answer.append((b"access-control-allow-headers", asked))
        return Response(status=200, content_type=None, headers=answer)


def _refused(what: str) -> Response:
    error = BadRequest(f"Disallowed CORS {what}")
    return Response(encode(error.response()), status=error.status)
