"""One request on its way through the loop, and the generate requests that it takes."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.completions import CompletionRequest
from derender.protocol.generate import GenerateChunk, GenerateRequest, GenerateResponse

if TYPE_CHECKING:
    from derender.gateway.backends import Backend
    from derender.gateway.pool import Lease
    from derender.model import Model

T = TypeVar("T")
Run = Callable[[Callable[[], T]], Awaitable[T]]


@dataclass
class Leg:
    """One generate request: that of a prompt, or of one choice of it where the engine gives one choice at a time.

    `first_choice`: the number, among all choices of the answer, of the first one that it gives; `choices`: how many.
    """

    request: GenerateRequest
    prompt: int
    first_choice: int
    choices: int
    lease: Lease | None = None
    tried: list[Backend] = field(default_factory=list)
    sent: GenerateRequest | None = None
    """The request as the engine in `lease` gets it."""

    response: GenerateResponse | None = None
    chunks: AsyncGenerator[GenerateChunk, None] | None = None
    started: float = 0.0
    """When its engine was asked, by `perf_counter`."""

    stopped: bool = False
    """Whether what the engine still has is of no use: stop strings ended all its choices."""


@dataclass
class Context:
    """A request of the API and what became of it so far.

    `run` does work that takes long: in a thread, or at once where the request is short. `headers` are told on to the
    engine. `size`: bytes of the request's body.
    """

    model: Model
    request: ChatCompletionRequest | CompletionRequest
    run: Callable[[Callable[[], object]], Awaitable[object]] | None = None
    request_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    started: float = field(default_factory=perf_counter)
    prompts: list[GenerateRequest] = field(default_factory=list)
    """What render made: one generate request for each prompt."""

    legs: list[Leg] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by stage."""

    generated: int = 0
    retries: int = 0
    engines: list[str] = field(default_factory=list)

    @property
    def identity(self) -> str:
        """The id of the answer."""
        if len(self.prompts) == 1:
            return self.prompts[0].request_id
        return self.prompts[0].request_id.removesuffix("-0")

    @property
    def name(self) -> str:
        """The model's name as the client knows it."""
        return self.request.model or self.model.names[0]

    @property
    def choices(self) -> int:
        """Choices of each prompt."""
        return self.request.n or 1

    async def work(self, function: Callable[[], T]) -> T:
        """`function()`, in a thread where this request is a long one. Raises what it raises."""
        if self.run is None:
            return function()
        return await self.run(function)  # type: ignore[return-value]


def engine_request_id(identity: str, leg: Leg) -> str:
    """An id for one try at an engine: ids of clients come twice, and an abort must not meet another's request."""
    return f"{identity}-{leg.prompt}-{leg.first_choice}-{secrets.token_hex(4)}"
