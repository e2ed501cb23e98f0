"""Going on with a conversation from the very ids of its last turn: only the new messages are rendered and tokenized.

What a model sampled is not what its text tokenizes to, and templates write a history otherwise than it was: they drop
reasoning, trim, spell JSON anew. Whoever trains on sampled ids, or wants a prefix cache to hold, needs them unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from derender.protocol.common import Json
from derender.protocol.errors import BadRequest, Conflict
from derender.rendering.conversation import Chat
from derender.rendering.probing import MORE, with_more

PARAM = "previous_token_ids"
_NOTHING_SAID = "..."
_SHOWN = 40  # characters of a prompt in a message


class _Closing(NamedTuple):
    """What ends the assistant's last turn in the prompt, from `start` on. `whole`: the template ends the turn with it
    also where no message follows, so that it is no part of the next message."""

    start: int
    text: str
    whole: bool


class Continuation:
    """How one model's conversations go on. Immutable.

    `encode` gives the ids of a text, its special tokens included, and `decode` the text of ids. `turn_ends`: the
    tokens that end a turn of the assistant, spelling → id. `reasoning`: pairs of markers around reasoning.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        *,
        decode: Callable[[Sequence[int]], str],
        turn_ends: Mapping[str, int],
        reasoning: Sequence[tuple[str, str]],
    ) -> None:
        self._encode = encode
        self._decode = decode
        self._ends = dict(turn_ends)
        self._spelled = {token: text for text, token in turn_ends.items()}
        one = "|".join(map(re.escape, sorted(turn_ends, key=len, reverse=True)))
        self._end = re.compile(one or "(?!)")
        self._run = re.compile(f"(?:{one})+" if one else "(?!)")  # Inkling ends a message, and then the turn
        self._reasoning = [pair for pair in reasoning if all(pair)]
        first = dict(reversed(self._reasoning))
        self._closers = frozenset(first.values()) - turn_ends.keys()

    def ids(self, chat: Chat, previous: Sequence[int], *, keep_reasoning: bool) -> list[int]:
        """`previous` and then the ids of what the template writes behind the assistant's last turn.

        A last turn that does not end with a token that ends turns (it was cut off, or a stop string or another token
        ended it) gets what the template writes there. Raises BadRequest where there is nothing to go on from or to,
        `Conflict` where the template would now write the turns before otherwise: the previous ids would be no prefix of
        any prompt of the template's. With `keep_reasoning` it may drop reasoning from them, which then stays as it was
        sampled.
        """
        count = _turns_before(chat.messages)
        chat = _saying_something(chat, count - 1)
        prompt = chat.text()
        alone = chat.text_of(chat.messages[:count], add_generation_prompt=False)
        last = self._end_of_turn(chat, alone, count)
        turns, closing = (alone, "") if last is None else (alone[: last.start()], last[0])
        end = self._closing(prompt, self._end.match(prompt, len(turns)), closing) if prompt.startswith(turns) else None
        if end is None:  # a last turn may be written otherwise than one in a history
            end = self._closing(prompt, self._end_behind_texts(chat, prompt, count), closing)
            if end is not None:
                self._check_prefix(prompt[: end.start], turns, previous, keep_reasoning=keep_reasoning)
        if end is None:
            raise Conflict(
                "the chat template ends the assistant's turns with no token that ends an output: it cannot be told "
                "where the new messages begin",
                param=PARAM,
            )
        closers = [self._ends[text] for text in self._end.findall(end.text)]
        tail = self._encode(prompt[end.start :])
        if tail[: len(closers)] != closers:
            raise Conflict(f"the tokenizer does not read {end.text!r} as one token", param=PARAM)
        return [*previous, *tail[self._ended(previous[-1], closers, end, prompt) :]]

    def _ended(self, token: int, closers: Sequence[int], end: _Closing, prompt: str) -> int:
        """How many of the tokens that end a turn need not be written, as the last of the previous ids ends it."""
        if token in closers:
            return len(closers) - list(reversed(closers)).index(token)
        if token not in self._spelled or not end.whole:
            return 0
        # Phi-3 lists its <|assistant|> among the ends of outputs: where nothing was sampled, it asked for the answer.
        before = prompt[: end.start].rstrip().removesuffix(_NOTHING_SAID).rstrip()
        asked = before.endswith(self._spelled[token])
        return 0 if asked else len(closers)

    def _closing(self, prompt: str, found: re.Match[str] | None, closing: str) -> _Closing | None:
        if found is None:
            return None
        if closing and prompt.startswith(closing, found.start()):
            return _Closing(found.start(), closing, whole=True)
        return _Closing(found.start(), found[0], whole=False)

    def _end_behind_texts(self, chat: Chat, prompt: str, count: int) -> re.Match[str] | None:
        """What ends the assistant's last turn in the whole prompt: the first such token behind the turn's texts."""
        try:
            fragments = chat.tracked().fragments
        except BadRequest:  # the messages have noncharacters, which their places are found by
            fragments = ()
        own = max((one.end for one in fragments if one.message == count - 1), default=None)
        if own is None:
            own = self._behind_more(chat, prompt, count)
        if own is None:
            return None
        found = self._end.search(prompt, own)
        until = min((one.start for one in fragments if one.message >= count and one.start >= own), default=len(prompt))
        return found if found is not None and found.end() <= until else None

    def _behind_more(self, chat: Chat, prompt: str, count: int) -> int | None:
        """Where in the whole prompt the last turn's texts end, told by what stands behind them once there is more."""
        rest = chat.messages[count:]
        for changed in with_more(chat.messages[count - 1]):
            other = _rendered(chat, [*chat.messages[: count - 1], changed, *rest], add_generation_prompt=True)
            if other is not None and (place := self._before_rest(prompt, other)) is not None:
                return place
        return None

    def _end_of_turn(self, chat: Chat, alone: str, count: int) -> re.Match[str] | None:
        """What ends the assistant's last turn where no message follows; an end before its texts is another's."""
        message, behind = chat.messages[count - 1], 0
        for changed in with_more(message):
            other = _rendered(chat, [*chat.messages[: count - 1], changed], add_generation_prompt=False)
            if other is not None and other != alone:
                place = self._before_rest(alone, other)
                if place is not None:  # Kimi K3 says behind the turn whether tools may be called
                    return self._run.search(alone, place)
                behind = max(behind, _common(alone, other))
        return max(self._run.finditer(alone, behind), key=re.Match.start, default=None)

    def _before_rest(self, text: str, other: str) -> int | None:
        """Where in a text that begins which the other has behind its last character more, or that one's end of a turn;
        None where they are not so."""
        if MORE in text or MORE not in other:
            return None
        rest = other[other.rfind(MORE) + 1 :].lstrip()
        if not text.endswith(rest):
            end = self._run.search(rest)
            rest = rest[end.start() :] if end is not None else rest
        return len(text) - len(rest) if text.endswith(rest) else None

    def _check_prefix(self, now: str, before: str, previous: Sequence[int], *, keep_reasoning: bool) -> None:
        """Raises `Conflict` where the template writes a history otherwise now that there are more messages."""
        if now == before:
            return
        only_reasoning = self._same_but_reasoning(now, before)
        if only_reasoning and (keep_reasoning or self._thoughts(self._decode(previous)) == self._thoughts(now)):
            return
        ids, others = self._encode(before), self._encode(now)
        place, at = _common(ids, others), _common(before, now)
        reason = (
            "drops or adds reasoning in the turns before; with keep_previous_reasoning it stays as it was sampled"
            if only_reasoning
            else "writes the turns before otherwise, now that there are new messages"
        )
        raise Conflict(
            f"{PARAM} are no prefix: the chat template {reason}. First differing token: {place} "
            f"({before[at : at + _SHOWN]!r} became {now[at : at + _SHOWN]!r})",
            param=PARAM,
        )

    def _same_but_reasoning(self, one: str, other: str) -> bool:
        """Whether two texts differ in nothing but reasoning, and the white space that goes with it."""
        (first, cuts), (second, others) = self._bare(one), self._bare(other)
        cuts.append(len(first))
        others.append(len(second))
        if len(cuts) == len(others) == 1:
            return one == other
        i = j = at = to = 0
        while True:
            step = min(cuts[at] - i, others[to] - j)
            if first[i : i + step] != second[j : j + step]:
                return False
            i, j = _behind_blanks(first, i + step), _behind_blanks(second, j + step)
            if i == len(first) or j == len(second):
                return i == len(first) and j == len(second)
            while cuts[at] <= i:
                at += 1
            while others[to] <= j:
                to += 1

    def _bare(self, text: str) -> tuple[str, list[int]]:
        """A text without its reasoning, and where in it some was."""
        kept: list[str] = []
        cuts: list[int] = []
        at = size = 0
        for start, end in self._sections(text):
            kept.append(text[at:start])
            size += start - at
            cuts.append(size)
            at = end
        return "".join([*kept, text[at:]]), cuts

    def _thoughts(self, text: str) -> list[str]:
        """What reasoning a text has, also such as was cut off."""
        return [text[start:end].strip() for start, end in self._sections(text, cut_off=True)]

    def _sections(self, text: str, *, cut_off: bool = False) -> list[tuple[int, int]]:
        """Where in a text there is reasoning, its markers included, in order; also a closer that stands alone, as
        DeepSeek writes it where it leaves reasoning out. `cut_off`: also what has no end."""
        found: list[tuple[int, int]] = []
        for opener, closer in self._reasoning:
            at = 0
            while (start := text.find(opener, at)) >= 0:
                end = text.find(closer, start + len(opener))
                if end < 0 and not cut_off:
                    break
                at = end + len(closer) if end >= 0 else len(text)
                found.append((start, at))
        for closer in self._closers:
            found += ((one.start(), one.end()) for one in re.finditer(re.escape(closer), text))
        apart: list[tuple[int, int]] = []
        for start, end in sorted(found):
            if not apart or start >= apart[-1][1]:
                apart.append((start, end))
        return apart


def _turns_before(messages: Sequence[Json]) -> int:
    """How many messages there are up to and with the assistant's last."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") == "assistant":
            if index == len(messages) - 1:
                raise BadRequest(f"{PARAM} need messages behind the assistant's last", param="messages")
            return index + 1
    raise BadRequest(f"{PARAM} need a message of the assistant, the last turn", param="messages")


def _saying_something(chat: Chat, index: int) -> Chat:
    """The chat with a text for an answer that has none. A template may leave such a turn out, not end it, or refuse it;
    what stands behind an answer is the same for any."""
    messages = chat.messages
    message = messages[index]
    content = message.get("content")
    if message.get("tool_calls") or (content.strip() if isinstance(content, str) else content):
        return chat
    said = [{"type": "text", "text": _NOTHING_SAID}] if isinstance(content, list) else _NOTHING_SAID
    return chat.replaced([*messages[:index], {**message, "content": said}, *messages[index + 1 :]])


def _rendered(chat: Chat, messages: Sequence[Json], *, add_generation_prompt: bool) -> str | None:
    try:
        return chat.text_of(messages, add_generation_prompt=add_generation_prompt)
    except BadRequest:  # a template may know the names of calls, say
        return None


def _behind_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many characters, or ids, the two have in common at their beginning."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
