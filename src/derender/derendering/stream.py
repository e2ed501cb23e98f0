"""What chat and completions streams share: the state in, the choices moved, the state out."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from derender.derendering.bounds import check_stream
from derender.derendering.choice import ChoiceDelta, ChoiceStream
from derender.derendering.ids import response_id
from derender.derendering.logprobs import TokenTexts
from derender.derendering.options import DerenderOptions
from derender.derendering.state import BadState, ChoiceState, StreamState, decode_state, encode_state
from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.completions import CompletionRequest
from derender.protocol.derender import VllmStreamState
from derender.protocol.errors import ApiError, BadRequest
from derender.protocol.generate import GenerateChunk, GenerateStreamChoice

logger = logging.getLogger("derender")


class ChoiceStreams:
    """The choices of one stream, from its start or from a state. Raises `BadState` while it is made."""

    def __init__(self, texts: TokenTexts, options: DerenderOptions, *, state: Any, continues: bool) -> None:
        self._texts = texts
        self._options = options
        self._continues = continues
        decoded = decode_state(state, tokenizer=texts.model.tokenizer, options=options, key=texts.model.state_key)
        self._vllm = decoded if isinstance(decoded, VllmStreamState) else None
        self._states = decoded.choices if isinstance(decoded, StreamState) else {}
        known = decoded if isinstance(decoded, StreamState) else StreamState()
        self.identity = known.id
        """The id of the answer, the same in all its chunks; empty before the first."""

        self.created = known.created or int(time.time())
        """When the answer began, in Unix seconds."""

        self.resumed = self._vllm is not None
        """Whether the state is vLLM's, which does not tell a completions stream's first chunk."""
        self.moved: dict[int, ChoiceStream] = {}
        self.stopped = False
        """Whether a stop string ended a choice in the last chunk."""

        self.cut = False
        """Whether one did in any chunk."""

        self.reads = options.reading is not None
        self._longest = max((one.count for one in self._states.values()), default=0)
        if self._vllm is not None:
            self._longest = len(self._vllm.output_token_ids)
        self._foreign = state is not None and texts.model.state_key is None

    def push(
        self, chunk: GenerateChunk, *, prompt_token_ids: Sequence[int] | None
    ) -> Iterator[tuple[GenerateStreamChoice, ChoiceStream, ChoiceDelta]]:
        """Push a chunk's choices in their order; those of choices that had ended are passed over.

        Raises `BadRequest` for a chunk that the model cannot have given.
        """
        if not self.identity:
            self.identity = response_id(chunk.request_id)
        elif chunk.request_id and chunk.request_id != self.identity:
            raise BadState  # another stream's
        if self._vllm is not None and len({choice.index for choice in chunk.choices} | self.moved.keys()) > 1:
            raise BadState  # vLLM has a state for each choice; to replay this one for all of them takes long, too
        check_stream(self._texts.model, chunk.choices, prompt=prompt_token_ids, before=self._longest)
        most = self._texts.model.max_n_sequences
        if len(self.moved) + len(chunk.choices) > most:
            count = len(self.moved.keys() | {choice.index for choice in chunk.choices})
            if count > most:
                raise BadRequest(f"choices count ({count}) exceeds server maximum ({most}).", param="choices")
        self.stopped = False
        for position, choice in enumerate(chunk.choices):
            stream, delta = self._advance(position, choice)
            if delta.stopped:
                self.stopped = self.cut = True
            if not delta.over:
                yield choice, stream, delta

    def _advance(self, position: int, choice: GenerateStreamChoice) -> tuple[ChoiceStream, ChoiceDelta]:
        """Push one choice's part of a chunk. Raises `BadRequest`, and `BadState` for a state that shows itself wrong
        only when it is used."""
        try:
            stream = self.moved.get(choice.index) or self._open(choice.index)
            self.moved[choice.index] = stream
            delta = stream.push(
                choice.token_ids,
                logprobs=choice.logprobs.content if choice.logprobs is not None else None,
                finish=choice.finish_reason is not None,
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                where=f"generate_chunk.choices.{position}.token_ids",
            )
        except ApiError:
            raise
        except Exception as error:  # of a state that the caller could write, any may be the caller's
            raise self._blamed(error) from error
        if stream.count > self._longest:
            self._longest = stream.count
        return stream, delta

    def _blamed(self, error: Exception) -> Exception:
        """`BadState` where what broke was made of a state that anyone can have written, else the error itself."""
        if not self._foreign:
            return error
        logger.warning("a stream_state could not be used: %s", type(error).__name__)
        return BadState()

    def _open(self, index: int) -> ChoiceStream:
        if self._vllm is not None:
            return self._convert(self._vllm)
        state: ChoiceState | None = self._states.get(str(index))
        return ChoiceStream(self._texts, self._options, continues=self._continues, state=state)

    def _convert(self, old: VllmStreamState) -> ChoiceStream:
        """vLLM's state as ours: its ids replayed once, or the bytes that its window has not given out yet."""
        tokenizer = self._texts.model.tokenizer
        stream = ChoiceStream(self._texts, self._options, continues=True)
        if old.output_token_ids:
            stream.push(old.output_token_ids, finish=False, where="stream_state.output_token_ids")
        else:
            unread = [tokenizer.token_id(token) for token in old.prev_tokens[old.read_offset :]]
            ids = [i for i in unread if i is not None]
            if len(ids) != len(unread):
                raise BadState
            stream.push(ids, finish=False)
        for token_id in old.logprob_context_token_ids:
            if not tokenizer.knows(token_id):
                raise BadState
            stream.logprobs.step(token_id)
        stream.logprobs.offset = old.logprob_text_offset
        stream.role_sent = old.role_sent
        return stream

    def finished(self, choices: int) -> bool:
        """Whether stop strings ended so many choices that nothing can follow but what the engine should not do."""
        return self.stopped and len(self.moved) >= choices and all(stream.ended for stream in self.moved.values())

    @property
    def reasoned(self) -> int:
        """How many tokens of all choices were reasoning so far."""
        moved = {str(index): stream.reasoning for index, stream in self.moved.items()}
        return sum({**{index: state.reasoning for index, state in self._states.items()}, **moved}.values())

    def state(self) -> dict[str, Any]:
        """The state to give out."""
        try:
            moved = {i: stream.snapshot() for i, stream in self.moved.items()}
        except Exception as error:
            raise self._blamed(error) from error
        return encode_state(
            moved,
            keep=self._states,
            identity=self.identity,
            created=self.created,
            key=self._texts.model.state_key,
        )


class StreamDerenderer:
    """What the derenderers of both dialects have in common: the choices, and the state they go on from."""

    def __init__(self, asked: ChatCompletionRequest | CompletionRequest | None, *, state: Any) -> None:
        self._choices = (asked.n if asked is not None else 1) or 1
        self._state = state
        self._streams: ChoiceStreams | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended a choice in the last chunk: the engine's request should be aborted."""
        return self._streams is not None and self._streams.stopped

    @property
    def finished(self) -> bool:
        """Whether stop strings ended every choice: what the engine still sends is of no use."""
        return self._streams is not None and self._streams.finished(self._choices)

    @property
    def cut(self) -> bool:
        """Whether a stop string ended a choice, in any chunk: the engine goes on with what nobody will see."""
        return self._streams is not None and self._streams.cut

    def ended(self, choices: int) -> bool:
        """Whether the first `choices` choices are at their end."""
        moved = self._streams.moved if self._streams is not None else {}
        return len(moved) >= choices and all(stream.ended for stream in moved.values())

    def count(self, choice: int) -> int:
        """The tokens of a choice so far."""
        stream = self._streams.moved.get(choice) if self._streams is not None else None
        return stream.count if stream is not None else 0

    @property
    def generated(self) -> int:
        """The tokens of all choices so far; none that came after a stop string."""
        return sum(stream.count for stream in self._streams.moved.values()) if self._streams is not None else 0

    @property
    def reasoned(self) -> int | None:
        """How many of them were reasoning; None where no output format is read."""
        return self._streams.reasoned if self._streams is not None and self._streams.reads else None

    def snapshot(self) -> Any:
        """The state after the last chunk, JSON-safe; what was given before the first."""
        return self._streams.state() if self._streams is not None else self._state
