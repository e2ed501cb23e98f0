"""One request on its way through the loop, and the generate requests that it takes."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, TypeVar

from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.completions import CompletionRequest
from derender.protocol.errors import ApiError
from derender.protocol.generate import GenerateRequest, GenerateResponse

if TYPE_CHECKING:
    from derender.gateway.backends import Backend
    from derender.gateway.pool import Lease
    from derender.model import Model

T = TypeVar("T")
MANY = 4096
"""Generated ids and logprobs. Each takes 1 to 5 µs to derender and to write; more of them leave the event loop."""

Run = Callable[[Callable[[], T]], Awaitable[T]]


class Span(Protocol):
    """What traces a request."""

    def end(self, context: Context, status: int, /) -> None:
        """The request has ended."""


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
    started: float = 0.0
    """When its engine was asked, by `perf_counter`."""

    failure: ApiError | None = None
    """What is wrong with what its engine sent, where only derender sees it."""

    stopped: bool = False
    """Whether what the engine still has is of no use: stop strings ended all its choices."""


@dataclass
class Context:
    """A request of the API and what became of it so far.

    `run` does work in a thread; None where there are none. `long`: whether the request itself takes long. `headers`
    are told on to the engine.
    """

    model: Model
    request: ChatCompletionRequest | CompletionRequest
    run: Callable[[Callable[[], object]], Awaitable[object]] | None = None
    long: bool = False
    request_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    started: float = field(default_factory=perf_counter)
    prompts: list[GenerateRequest] = field(default_factory=list)
    """What render made: one generate request for each prompt."""

    legs: list[Leg] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by stage; of stages that ran side by side, of all together."""

    marks: list[tuple[str, float, float]] = field(default_factory=list)
    """Stages with their begin and end, by `perf_counter`, in the order of their ends."""

    span: Span | None = None
    """What traces the request, where it is traced."""

    generated: int = 0
    retries: int = 0
    engines: list[str] = field(default_factory=list)

    @property
    def identity(self) -> str:
        """The id of the answer."""
        if len(self.prompts) == 1:
            return self.prompts[0].request_id
        return self.prompts[0].request_id.removesuffix("-0")

    def took(self, stage: str, began: float) -> float:
        """Seconds that a stage took which began then and ends now; they are remembered."""
        now = perf_counter()
        self.spent[stage] = self.spent.get(stage, 0.0) + now - began
        self.marks.append((stage, began, now))
        return now - began

    def left(self, total: float) -> float:
        """Seconds of `total` that the request still has; 0 where its time is over."""
        return max(0.0, self.started + total - perf_counter())

    @property
    def name(self) -> str:
        """The model's name as the client knows it."""
        return self.request.model or self.model.names[0]

    @property
    def choices(self) -> int:
        """Choices of each prompt."""
        return self.request.n or 1

    @property
    def weight(self) -> int:
        """How much there is to tell of what was generated: ids, and logprobs."""
        logprobs = self.prompts[0].sampling_params.logprobs
        if not isinstance(logprobs, int):
            return self.generated
        return self.generated * (1 + (logprobs if logprobs >= 0 else MANY))

    async def work(self, function: Callable[[], T], *, long: bool = False) -> T:
        """`function()`, in a thread where this request is a long one, or the work is. Raises what it raises."""
        if self.run is None or not (long or self.long):
            return function()
        return await self.run(function)  # type: ignore[return-value]


def engine_request_id(identity: str, leg: Leg) -> str:
    """An id for one try at an engine: ids of clients come twice, and an abort must not meet another's request."""
    return f"{identity}-{leg.prompt}-{leg.first_choice}-{secrets.token_hex(4)}"
