"""The loop: the stages in their order, and a second try at another engine where that is safe."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from derender.engines.errors import EngineFailed
from derender.engines.owned import Owned
from derender.gateway.collect import collected, needs_watching
from derender.gateway.context import Context, Leg
from derender.gateway.meter import Meter, NoMeter
from derender.gateway.settings import GatewaySettings
from derender.gateway.stages import derender, generate, prefill, render, select, stream
from derender.gateway.streaming import Chunk, Streaming, chunks_of_answer, tells_more_when_whole
from derender.gateway.together import merged, together
from derender.protocol.chat import ChatCompletionResponse
from derender.protocol.completions import CompletionResponse
from derender.protocol.errors import Unavailable
from derender.protocol.generate import GenerateChunk

if TYPE_CHECKING:
    from derender.gateway.pool import EnginePool


class Gateway:
    """Runs requests of the API through the loop. Belongs to one event loop."""

    def __init__(self, pool: EnginePool, *, settings: GatewaySettings, meter: Meter | None = None) -> None:
        self.pool = pool
        self.settings = settings
        self.meter = meter or NoMeter()
        self.running = 0
        """Requests in work."""

    async def answer(self, context: Context) -> ChatCompletionResponse | CompletionResponse:
        """The whole answer. Raises `ApiError`. Cancelling it ends the work at the engines."""
        self._admit()
        try:
            await render(self, context)
            await together([self._whole(context, leg) for leg in context.legs])
            return await derender(self, context)
        finally:
            self.running -= 1

    async def stream(self, context: Context) -> AsyncGenerator[list[Chunk], None]:
        """The chunks of the answer, those that were made together in one list. What is wrong before an engine's first
        token is raised when this is awaited; after that by the iterator, whose closing ends the work at the engines."""
        self._admit()
        try:
            await render(self, context)
            if tells_more_when_whole(context.request):
                await together([self._whole(context, leg) for leg in context.legs])
                return self._told(chunks_of_answer(await derender(self, context), context))
            streaming = Streaming(self, context)
            if len(context.legs) == 1:
                chunks = merged([await self._begun(context, context.legs[0])])
            else:
                chunks = merged([self._begins(context, leg) for leg in context.legs])
            return await streaming.begun(chunks)
        except BaseException:
            self.running -= 1
            raise

    async def ended(self) -> None:
        """Called once for each stream that had begun."""
        self.running -= 1

    # ------------------------------------------------------------------------------------------------------- legs

    async def _whole(self, context: Context, leg: Leg) -> None:
        """A leg's whole answer, in `leg.response`."""
        failed: EngineFailed | None = None
        while True:
            await self._selected(context, leg, failed)
            try:
                await self._prefilled(context, leg)
                if needs_watching(context):
                    leg.response = await collected(context, leg, await stream(self, context, leg))
                else:
                    await generate(self, context, leg)
                return
            except EngineFailed as error:
                failed = self._again(context, leg, error)

    async def _begun(self, context: Context, leg: Leg) -> AsyncGenerator[list[GenerateChunk], None]:
        """A leg's stream, its first chunk there."""
        failed: EngineFailed | None = None
        while True:
            await self._selected(context, leg, failed)
            try:
                await self._prefilled(context, leg)
                return await stream(self, context, leg)
            except EngineFailed as error:
                failed = self._again(context, leg, error)

    async def _begins(self, context: Context, leg: Leg) -> AsyncGenerator[list[GenerateChunk], None]:
        """The same as a stream that has yet to begin, for one leg of several."""
        several = await self._begun(context, leg)
        try:
            async for chunks in several:
                yield chunks
        finally:
            await several.aclose()

    async def _selected(self, context: Context, leg: Leg, failed: EngineFailed | None) -> None:
        """The select stage. `failed`: what went wrong at the engine before, told where there is no other."""
        try:
            await select(self, context, leg)
        except Unavailable:
            if failed is not None:
                raise failed from None
            raise
        if failed is not None:
            context.retries += 1
            self.meter.retried()

    async def _prefilled(self, context: Context, leg: Leg) -> None:
        """The prefill stage; a lease of the decode engine does not outlive its failure."""
        assert leg.lease is not None
        try:
            await prefill(self, context, leg)
        except BaseException:
            leg.lease.release(answered=False)
            raise

    def _again(self, context: Context, leg: Leg, error: EngineFailed) -> EngineFailed:
        """`error` again where the leg may be tried on another engine, else raises it.

        No token of it has come. Whoever transfers a cache has prepared one engine for it, so that is not repeated.
        """
        transfers = leg.request.kv_transfer_params or leg.request.ec_transfer_params
        over = context.left(self.settings.total_seconds) == 0
        if len(leg.tried) > self.settings.retries or transfers or over:
            raise error
        return error

    def _admit(self) -> None:
        if self.running >= self.settings.max_running:
            raise Unavailable("the gateway has too many requests in work; try again later", retry_after=1)
        self.running += 1

    def _told(self, chunks: list[Chunk]) -> AsyncGenerator[list[Chunk], None]:
        async def told() -> AsyncGenerator[list[Chunk], None]:
            try:
                yield chunks
            finally:
                await self.ended()

        return Owned(told(), end=self.ended)
