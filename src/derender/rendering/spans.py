"""Which of a prompt's tokens come from which message, and which of them the assistant wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from derender.protocol.errors import BadRequest
from derender.protocol.generate import MessageSpan, SpanPart
from derender.rendering.conversation import Chat
from derender.rendering.prompt import Prompt
from derender.template.tracking import Fragment, Tracked

Offsets = Sequence[tuple[int, int]]
"""For each token its start and end in characters of the prompt's text; an empty one for a token of no text."""

_REASONING_OPENERS = ("<think>", "[THINK]", "<|channel")  # what a generation prompt may end with, and a history lacks


class _Label(NamedTuple):
    message: int | None
    part: SpanPart


class Provenance:
    """Where the tokens of one prompt come from. Made from a tracked chat and its encoding.

    `turn_ends`: the ids that end an output. Of a truncated prompt, the rest is told as in the whole.
    """

    def __init__(self, chat: Chat, tracked: Tracked, *, prompt: Prompt, turn_ends: Collection[int]) -> None:
        whole = prompt.whole or prompt
        self._chat = chat
        self._tracked = tracked
        self._cut = prompt.cut
        self._ids = whole.ids
        self._offsets: Offsets = whole.offsets or []
        self._turn_ends = turn_ends
        self._spoken = [] if tracked.generated is not None else list(self._turns())

    def spans(self) -> list[MessageSpan]:
        """Spans that cover all tokens, in order and without overlap. What is no message's text is `scaffold`, with the
        message's number where it is part of what the assistant wrote: the form of a call, the end of its turn."""
        whole = [_Label(None, "scaffold")] * len(self._ids)
        for message, first, last in self._spoken:
            whole[first:last] = [_Label(message, "scaffold")] * (last - first)
        for fragment, (first, last) in zip(self._tracked.fragments, self._fragment_tokens(), strict=True):
            whole[first:last] = [_Label(fragment.message, fragment.part)] * (last - first)
        labels: list[_Label] = self._cut(whole)
        spans: list[MessageSpan] = []
        start = 0
        for index, label in enumerate(labels, 1):
            if index == len(labels) or labels[index] != label:
                spans.append(MessageSpan(start=start, end=index, message=label.message, part=label.part))
                start = index
        return spans

    def loss_mask(self) -> list[int]:
        """1 for each token that the assistant wrote, 0 for all others.

        What a template's generation blocks write, as transformers takes it. Without such blocks, of each message of
        the assistant: all from behind what a generation prompt writes, up to and with the token that ends its turn.
        """
        mask = [0] * len(self._ids)
        if self._tracked.generated is not None:
            ranges = _tokens(self._tracked.generated, self._offsets)
        else:
            ranges = [(first, last) for _, first, last in self._spoken]
        for first, last in ranges:
            mask[first:last] = [1] * (last - first)
        return self._cut(mask)

    def _fragment_tokens(self) -> list[tuple[int, int]]:
        return _tokens([(one.start, one.end) for one in self._tracked.fragments], self._offsets)

    def _turns(self) -> Iterator[tuple[int, int, int]]:
        """For each message of the assistant that has text: its number, and its tokens from first to before last."""
        fragments, places = self._tracked.fragments, self._fragment_tokens()
        openers = _openers(self._chat)
        closers: dict[Any, str] = {}
        before = 0
        at = 0
        while at < len(fragments):
            message = fragments[at].message
            end = at + 1
            while end < len(fragments) and fragments[end].message == message:
                end += 1
            follows = places[end][0] if end < len(fragments) else len(self._ids)
            if self._chat.messages[message].get("role") == "assistant" and places[end - 1][1] > places[at][0]:
                first = fragments[at]
                if not openers and first.part != "content":
                    self._note_closer(first, before, closers)
                known = openers or ([] if first.part == "content" else [closers.get(self._role_before(message), "")])
                yield (
                    message,
                    self._begin(first, places[at][0], before=before, openers=known),
                    self._end(places[end - 1][1], follows),
                )
            before, at = fragments[end - 1].end, end

    def _role_before(self, message: int) -> Any:
        return self._chat.messages[message - 1].get("role") if message else None

    def _note_closer(self, first: Fragment, before: int, closers: dict[Any, str]) -> None:
        """Where the template writes nothing to ask for an answer: what it ends the message before with, by that one's
        role. What comes behind it is the assistant's, such as the opener of its calls."""
        role = self._role_before(first.message)
        if role is None or role in closers:
            return
        closers[role] = ""
        try:
            shorter = self._chat.text_of(self._chat.messages[: first.message], add_generation_prompt=True)
        except BadRequest:
            return
        if before <= len(shorter) <= first.start and self._tracked.text.startswith(shorter):
            closers[role] = self._tracked.text[before : len(shorter)]

    def _begin(self, fragment: Fragment, first: int, *, before: int, openers: Sequence[str]) -> int:
        """The first token behind the opener of a turn, in what stands between two texts; else that of the text."""
        gap = self._tracked.text[before : fragment.start]
        for opener in filter(None, openers):
            place = gap.rfind(opener)
            if place >= 0:
                start = before + place + len(opener)
                while first and self._offsets[first - 1][0] >= start and self._offsets[first - 1][1] > start:
                    first -= 1
                return first
        return first

    def _end(self, last: int, follows: int) -> int:
        """Behind the token that ends the turn, where one comes before the next text; else behind the text."""
        for place in range(last, follows):
            if self._ids[place] in self._turn_ends:
                return place + 1
        return last


def _openers(chat: Chat) -> list[str]:
    """What the template writes where the assistant is to speak: a generation prompt, and shorter forms of it that stand
    in a history, without the beginning of reasoning or behind the first line."""
    try:
        bare = chat.text_of(chat.messages, add_generation_prompt=False)
        asked = chat.text_of(chat.messages, add_generation_prompt=True)
    except BadRequest:
        return []
    if not asked.startswith(bare) or len(asked) == len(bare):
        return []
    opener = asked[len(bare) :]
    forms = [opener]
    forms += [opener[: opener.find(mark)] for mark in _REASONING_OPENERS if opener.find(mark) > 0]
    line = opener.find("\n") + 1
    if line and opener[:line].strip():
        forms.append(opener[:line])
    return forms


def _tokens(ranges: Sequence[tuple[int, int]], offsets: Offsets) -> list[tuple[int, int]]:
    """Ranges of characters, in order, as ranges of tokens; a token of which a part is inside counts. A range without
    tokens (they were truncated) is empty."""
    found: list[tuple[int, int]] = []
    at = 0
    for start, end in ranges:
        while at < len(offsets) and offsets[at][1] <= start:
            at += 1
        first = at
        # What the tokenizer adds has (0, 0), and is in no range.
        while at < len(offsets) and offsets[at][0] < end and offsets[at][1] > start:
            at += 1
        found.append((first, at))
        if at > first and offsets[at - 1][1] > end:
            at -= 1  # a token that the next range may have a part of, too
    return found
