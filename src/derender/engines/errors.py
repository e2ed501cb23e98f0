"""What goes wrong between this server and an engine."""

from __future__ import annotations

from derender.protocol.errors import ApiError, Unavailable


class EngineRefused(ApiError):
    """The engine answered that the request is wrong: its status, type and message are told on."""

    def __init__(self, message: str, *, status: int, type_: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.type = type_


class EngineFailed(ApiError):
    """The engine could not be reached, broke off, or sent what is no answer.

    `begun`: whether it may have worked on the request. `overloaded`: it said that it has too much to do. `answered`:
    the status of its answer, None where there was none.
    """

    status = 502
    type = "BadGatewayError"

    def __init__(
        self, message: str, *, begun: bool = True, overloaded: bool = False, answered: int | None = None
    ) -> None:
        super().__init__(message)
        self.begun = begun
        self.overloaded = overloaded
        self.answered = answered
        if overloaded:
            self.status, self.type, self.retry_after = Unavailable.status, Unavailable.type, 1


class EngineTimeout(EngineFailed):
    """The engine did not say anything in the time that it had."""

    status = 504
    type = "GatewayTimeoutError"
