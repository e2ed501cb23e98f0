"""Which of a prompt's tokens come from which message, and which of them the assistant wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from derender.protocol.errors import BadRequest
from derender.protocol.generate import MessageSpan, SpanPart
from derender.rendering.conversation import Chat
from derender.rendering.probing import MORE, with_more
from derender.rendering.prompt import Prompt
from derender.template.tracking import MAX_SINGLE, Fragment, Tracked

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
        self._fragments: Sequence[Fragment] = tracked.fragments
        self._spoken: list[tuple[int, int, int]] = []
        if tracked.generated is None:
            self._fragments = sorted([*tracked.fragments, *_silent(chat, tracked)])
            self._spoken = list(self._turns())

    def spans(self) -> list[MessageSpan]:
        """Spans that cover all tokens, in order and without overlap. What is no message's text is `scaffold`, with the
        message's number where it is part of what the assistant wrote: the form of a call, the end of its turn."""
        whole = [_Label(None, "scaffold")] * len(self._ids)
        for message, first, last in self._spoken:
            whole[first:last] = [_Label(message, "scaffold")] * (last - first)
        for fragment, (first, last) in zip(self._fragments, self._fragment_tokens(), strict=True):
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
        the assistant: all from behind what a generation prompt writes, up to and with the token that ends its turn,
        also where the turn has no other.
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
        return _tokens([(one.start, one.end) for one in self._fragments], self._offsets)

    def _turns(self) -> Iterator[tuple[int, int, int]]:
        """For each message of the assistant that has a place: its number, and its tokens from first to before last."""
        fragments, places = self._fragments, self._fragment_tokens()
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
            if self._chat.messages[message].get("role") == "assistant" and places[at][0] < follows:
                first = fragments[at]
                if not openers and first.part != "content":
                    self._note_closer(first, before, closers)
                known = openers or ([] if first.part == "content" else [closers.get(self._role_before(message), "")])
                yield (
                    message,
                    self._begin(first, places[at][0], before=before, openers=known),
                    self._end(places[end - 1][1], follows, openers),
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

    def _end(self, last: int, follows: int, openers: Sequence[str]) -> int:
        """Behind the token that ends the turn, where one comes before the next text, and any that ends it too (Inkling
        ends the message and then the turn); else behind the text."""
        for place in range(last, follows):
            if self._ids[place] in self._turn_ends:
                place += 1
                while place < follows and self._ids[place] in self._turn_ends and not self._opens(place, openers):
                    place += 1
                return place
        return last

    def _opens(self, place: int, openers: Sequence[str]) -> bool:
        """Whether a token begins the next turn: Phi-3 lists its <|assistant|> among the ends of outputs."""
        start, end = self._offsets[place]
        return any(self._tracked.text[start:end].strip() in opener for opener in openers)


def _silent(chat: Chat, tracked: Tracked) -> list[Fragment]:
    """Where the messages of the assistant stand that have no text in the prompt: the end of such a turn is what the
    assistant wrote. One that the template leaves out, or writes otherwise where it has a text, has no place."""
    told = {one.message for one in tracked.fragments}
    silent = [
        index
        for index, message in enumerate(chat.messages)
        if message.get("role") == "assistant" and index not in told and not message.get("tool_calls")
    ]
    if not silent or MORE in tracked.text:
        return []
    together = _places(chat, silent, tracked.text)
    if together is not None:
        return together
    return [one for index in silent[:MAX_SINGLE] for one in _places(chat, [index], tracked.text) or ()]


def _places(chat: Chat, which: Sequence[int], text: str) -> list[Fragment] | None:
    """Places of messages without text, by one character more in each; None where it changes the prompt otherwise."""
    chosen = frozenset(which)
    changed = [next(with_more(one)) if index in chosen else one for index, one in enumerate(chat.messages)]
    try:
        parts = chat.replaced(changed).text().split(MORE)
    except BadRequest:
        return None
    if len(parts) != len(which) + 1 or "".join(parts) != text:
        return None
    ends = list(accumulate(map(len, parts)))
    return [Fragment(end, end, index, "content") for end, index in zip(ends, which, strict=False)]


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
