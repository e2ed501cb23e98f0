"""One sequence of an answer: ids in, events out. The batch endpoints push once and finish; streams push per chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from derender.derendering.logprobs import LogprobResolver, TokenTexts
from derender.derendering.model import DerenderModel
from derender.derendering.options import DerenderOptions, Reading
from derender.derendering.state import BadState, ChoiceState
from derender.derendering.stops import StopMatcher
from derender.parser.engine import FormatParser, ParserOptions
from derender.parser.events import ContentText, Event, ReasoningText, ToolCallArguments, ToolCallBegin, ToolCallEnd
from derender.parser.plain import PlainParser
from derender.protocol.generate import GenerateLogprob
from derender.tokenizer import Detokenizer

T = TypeVar("T")


class ChoiceDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one push gave. `token_ids` and `logprobs` are those that belong to the output (none after a stop string).

    `hidden`: for each token, whether it is not to be shown (reasoning that the client does not want); None hides
    nothing. `stopped`: a stop string ended the text here. `over`: the choice had ended before this push.
    """

    events: Sequence[Event] = ()
    token_ids: Sequence[int] = ()
    logprobs: Sequence[GenerateLogprob] | None = None
    hidden: Sequence[bool] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    stopped: bool = False
    over: bool = False

    @property
    def text(self) -> str:
        """The visible text."""
        if not self.events:
            return ""
        return "".join([event.text for event in self.events if isinstance(event, ContentText)])

    @property
    def reasoning(self) -> str:
        """The text of the reasoning."""
        return "".join([event.text for event in self.events if isinstance(event, ReasoningText)])

    def shown(self, items: Sequence[T]) -> list[T]:
        """Of items one per token, those that are shown."""
        if self.hidden is None:
            return list(items)
        return [item for item, hidden in zip(items, self.hidden, strict=False) if not hidden]


class ChoiceStream:
    """The state of one sequence.

    `continues`: the prompt is known, so the output goes on after it and keeps a leading blank.
    """

    __slots__ = (
        "_held_stop",
        "_matcher",
        "_model",
        "_options",
        "_parser",
        "count",
        "ended",
        "logprobs",
        "reasoning",
        "role_sent",
    )

    def __init__(
        self,
        texts: TokenTexts,
        options: DerenderOptions,
        *,
        continues: bool = False,
        state: ChoiceState | None = None,
    ) -> None:
        model = texts.model
        tokenizer = model.tokenizer
        strip = tokenizer.strips_leading_blank and not continues
        if state is None:
            state = ChoiceState.initial(strip_blank=strip)
        self._model: DerenderModel = model
        self._options = options
        self._parser = _parser(options, texts, strip=strip, state=state.parser)
        self.reasoning = state.reasoning
        self._held_stop: list[int] = list(state.held_stop)
        self._matcher = StopMatcher(options.stop, keep=options.keep_stop, held=state.held_text)
        self.logprobs = LogprobResolver(
            texts,
            tokens_as_ids=options.tokens_as_ids,
            strip=state.logprob_strip,
            pending=bytes(state.logprob_pending),
            offset=state.text_offset,
        )
        self.count = state.count
        self.ended = state.ended
        self.role_sent = state.role_sent

    def push(
        self,
        token_ids: Sequence[int] | None,
        *,
        logprobs: Sequence[GenerateLogprob] | None = None,
        finish: bool,
        finish_reason: str | None = None,
        stop_reason: int | str | None = None,
        where: str = "token_ids",
    ) -> ChoiceDelta:
        """The next ids of the sequence. `finish` flushes what is held back; nothing comes after it.

        Raises `BadRequest` for ids outside the vocabulary, named by `where` and their position.
        """
        if self.ended:
            return ChoiceDelta(over=True)
        reading = self._options.reading
        ids: Sequence[int] = token_ids or ()
        known = self._model.known_ids(ids, where=where)
        before = self.count
        self.count += len(ids)
        first = before - len(self._held_stop)
        shown = self._without_stop_token(known, finish=finish, stop_reason=stop_reason)
        reported = stop_reason if finish_reason == "stop" and isinstance(stop_reason, str) else None
        if reported is not None:
            self._matcher.also(reported)
        if self._options.stop or reported is not None:
            events, kept, reasoning = self._push_watched(shown, before=first, finish=finish)
            # Without a match all belong to the output, a stop token that is held back among them.
            kept = len(ids) if self._matcher.matched is None else max(0, kept - before)
        else:
            events, kept = self._parser.push(shown), len(ids)
            reasoning = self._parser.reasoning
            if finish:
                events += self._parser.finish()
        matched = self._matcher.matched
        if matched is not None:
            self.count = before + kept
            finish_reason, stop_reason = "stop", matched
        self.ended = finish or matched is not None
        hidden: Sequence[bool] | None = None
        if reading is not None:
            hidden = self._regions(len(ids), first - before, reasoning)
            self.reasoning += sum(hidden[:kept])
            events = _asked_for(events, reading)
            called = self._parser.calls_ended and reading.choice in ("auto", "required")
            if self.ended and finish_reason == "stop" and called:
                finish_reason = "tool_calls"
        cut = matched is not None and kept < len(ids)
        return ChoiceDelta(
            events=events,
            token_ids=ids[:kept] if cut else ids,
            logprobs=logprobs[:kept] if cut and logprobs is not None else logprobs,
            hidden=hidden if reading is not None and not reading.visible else None,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            stopped=matched is not None,
        )

    def _regions(self, size: int, skip: int, last: bool) -> list[bool]:
        """For each of this push's ids, whether it was reasoning. `skip`: minus the ids held back before it. `last`: of
        an id that is held back now."""
        regions = self._parser.take_regions()[-skip if skip else 0 :]
        return [*regions, *[last] * (size - len(regions))][:size]

    def _without_stop_token(self, ids: Sequence[int], *, finish: bool, stop_reason: int | str | None) -> Sequence[int]:
        """The ids whose text is output. A last id that ends the output is held back until another one follows it."""
        options = self._options
        if not options.hides_stop_token:
            return ids
        if self._held_stop and ids:
            ids = [*self._held_stop, *ids]
            self._held_stop = []
        if ids and (ids[-1] in options.stop_ids or (finish and ids[-1] == stop_reason and type(stop_reason) is int)):
            self._held_stop = [ids[-1]]
            ids = ids[:-1]
        return ids

    def _push_watched(self, ids: Sequence[int], *, before: int, finish: bool) -> tuple[list[Event], int, bool]:
        """Push id by id, looking for stop strings: the events, how many tokens the output has in all, and whether it is
        in reasoning then.

        `before`: how many tokens there were before these.
        """
        matcher, parser, least = self._matcher, self._parser, self._options.min_tokens
        events: list[Event] = []
        count = before
        for token_id in ids:
            count += 1
            self._watch(parser.push((token_id,)), events, live=count > least)
            if matcher.matched is not None:
                return events, count, parser.reasoning
        reasoning = parser.reasoning
        if finish:
            count += len(self._held_stop)  # it came before what is given out now
            self._watch(parser.finish(), events, live=count > least)
            if matcher.matched is None and (rest := matcher.finish()):
                events.append(ContentText(rest))
        return events, count, reasoning

    def _watch(self, new: Sequence[Event], events: list[Event], *, live: bool) -> None:
        for event in new:
            if not isinstance(event, ContentText):
                events.append(event)
            elif text := self._matcher.push(event.text, live=live):
                events.append(ContentText(text))
            if self._matcher.matched is not None:
                return

    def snapshot(self) -> ChoiceState:
        """The state from which another replica goes on."""
        return ChoiceState(
            parser=self._parser.snapshot(),
            reasoning=self.reasoning,
            held_stop=list(self._held_stop),
            held_text=self._matcher.held,
            count=self.count,
            logprob_strip=self.logprobs.strip,
            logprob_pending=list(self.logprobs.pending),
            text_offset=self.logprobs.offset,
            role_sent=self.role_sent,
            ended=self.ended,
        )


def _parser(
    options: DerenderOptions, texts: TokenTexts, *, strip: bool, state: list[Any] | None
) -> PlainParser | FormatParser:
    """The parser of an output, at its start or from a state. Raises `BadState`."""
    tokenizer, reading = texts.model.tokenizer, options.reading
    try:
        if reading is None:
            pieces = tokenizer.visible_pieces if options.skip_special_tokens else tokenizer.pieces
            plain = PlainParser(Detokenizer(pieces, strip_blank=strip))
            if state is not None:
                plain.restore(state)
            return plain
        parser = FormatParser(
            reading.compiled,
            ParserOptions(
                start=reading.start,
                calls=reading.choice != "none",
                complete=reading.complete,
                trim=reading.trim,
                show_special=not options.skip_special_tokens,
                strip_blank=strip,
                name=reading.name,
                ending=options.stop_ids if options.hides_stop_token else frozenset(),
            ),
            reading.schemas,
        )
        if state is not None:
            parser.restore(state)
    except ValueError:
        raise BadState from None
    return parser


def _asked_for(events: Sequence[Event], reading: Reading) -> list[Event]:
    """The events that the client wants: no hidden reasoning, one call only where it asked for one."""
    if reading.visible and reading.parallel:
        return list(events)
    return [
        event
        for event in events
        if (reading.visible or not isinstance(event, ReasoningText))
        and (
            reading.parallel
            or not isinstance(event, (ToolCallBegin, ToolCallArguments, ToolCallEnd))
            or event.index == 0
        )
    ]
