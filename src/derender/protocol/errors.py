"""Errors that a caller may see. Each knows its HTTP status and the body that vLLM gives for it.

The envelope is `{"error": {"message", "type", "param", "code"}}` for every error, unknown routes and bad keys
included. Messages name the field; they carry no internal path, no text of the server's and no traceback.
"""

from __future__ import annotations

import msgspec

MAX_MESSAGE = 4200
MAX_PARAM = 300
"""Characters that an error shows of a message and of the name of a place: both may hold what the caller sent."""


class ErrorInfo(msgspec.Struct, frozen=True):
    """What stands inside the envelope."""

    message: str
    type: str
    param: str | None = None
    code: int = 400


class ErrorResponse(msgspec.Struct, frozen=True):
    """The body of every error answer."""

    error: ErrorInfo


class ApiError(Exception):
    """An error with a status and a message that may be shown to whoever asked."""

    status: int = 500
    type: str = "InternalServerError"
    retry_after: int | None = None
    """Seconds after which it may be worth to try again; told as `Retry-After`."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def response(self) -> ErrorResponse:
        """The envelope for this error."""
        param = None if self.param is None else _shortened(self.param, MAX_PARAM)
        message = _shortened(self.message, MAX_MESSAGE)
        return ErrorResponse(ErrorInfo(message=message, type=self.type, param=param, code=self.status))


class BadRequest(ApiError):
    """A rule of the API was broken: a value out of range, fields that do not go together."""

    status = 400
    type = "BadRequestError"


class InvalidBody(ApiError):
    """The body is not JSON, or a field is missing or has the wrong type. Never 422, as vLLM."""

    status = 400
    type = "Bad Request"


class Unauthorized(ApiError):
    """The API key is missing or wrong."""

    status = 401
    type = "AuthenticationError"


class NotFound(ApiError):
    """No such model or route."""

    status = 404
    type = "NotFoundError"


class MethodNotAllowed(ApiError):
    """The route exists, the method does not."""

    status = 405
    type = "MethodNotAllowedError"


class Conflict(ApiError):
    """The request is well formed but cannot be fulfilled exactly in this state."""

    status = 409
    type = "ConflictError"


class BodyTooLarge(ApiError):
    """The body is over the limit; it is refused before it is read whole."""

    status = 413
    type = "RequestEntityTooLargeError"


class Unavailable(ApiError):
    """The server is draining or an engine is not there."""

    status = 503
    type = "ServiceUnavailableError"

    def __init__(self, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message, param=param)
        self.retry_after = retry_after


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "…"
