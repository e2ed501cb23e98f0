"""Going on with a conversation from the very ids of its last turn: only the new messages are rendered and tokenized.

What a model sampled is not what its text tokenizes to, and templates write a history otherwise than it was: they drop
reasoning, trim, spell JSON anew. Whoever trains on sampled ids, or wants a prefix cache to hold, needs them unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from derender.protocol.common import Json
from derender.protocol.errors import BadRequest, Conflict
from derender.rendering.conversation import Chat

PARAM = "previous_token_ids"
_MORE = "\ufdd2"
_SHOWN = 40  # characters of a prompt in a message


class Continuation:
    """How one model's conversations go on. Immutable.

    `encode` gives the ids of a text, its special tokens included. `turn_ends`: the tokens that end a turn of the
    assistant, spelling → id. `reasoning`: pairs of markers around reasoning.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        *,
        turn_ends: Mapping[str, int],
        reasoning: Sequence[tuple[str, str]],
    ) -> None:
        self._encode = encode
        self._ends = dict(turn_ends)
        self._end_ids = frozenset(turn_ends.values())
        self._end = (
            re.compile("|".join(map(re.escape, sorted(turn_ends, key=len, reverse=True)))) if turn_ends else None
        )
        self._reasoning = [pair for pair in reasoning if all(pair)]

    def ids(self, chat: Chat, previous: Sequence[int], *, keep_reasoning: bool) -> list[int]:
        """`previous` and then the ids of what the template writes behind the assistant's last turn.

        A last turn that does not end with a token that ends turns (it was cut off) gets the one that the template
        writes. Raises BadRequest where there is nothing to go on from or to, `Conflict` where the template would now
        write the turns before otherwise: the previous ids would be no prefix of any prompt of the template's. With
        `keep_reasoning` it may drop reasoning from them, which then stays as it was sampled.
        """
        count = _turns_before(chat.messages)
        prompt = chat.text()
        alone = chat.text_of(chat.messages[:count], add_generation_prompt=False)
        last = self._last_end(alone, behind=self._behind(chat, alone, count))
        end = None
        if last is not None and prompt.startswith(alone[: last.start()]):
            end = self._end_at(prompt, last.start())  # a last turn may end otherwise than one in a history
        if end is None:
            end = self._end_behind_texts(chat, prompt, count)
            if end is not None:
                turns = alone if last is None else alone[: last.start()]
                self._check_prefix(prompt[: end.start()], turns, keep_reasoning=keep_reasoning)
        if end is None:
            raise Conflict(
                "the chat template ends the assistant's turns with no token that ends an output: it cannot be told "
                "where the new messages begin",
                param=PARAM,
            )
        tail = self._encode(prompt[end.start() :])
        if tail[:1] != [self._ends[end[0]]]:
            raise Conflict(f"the tokenizer does not read {end[0]!r} as one token", param=PARAM)
        return [*previous, *(tail[1:] if previous[-1] in self._end_ids else tail)]

    def _end_at(self, prompt: str, place: int) -> re.Match[str] | None:
        return self._end.match(prompt, place) if self._end is not None else None

    def _end_behind_texts(self, chat: Chat, prompt: str, count: int) -> re.Match[str] | None:
        """What ends the assistant's last turn in the whole prompt: the first such token behind the turn's texts."""
        fragments = chat.tracked().fragments
        own = max((one.end for one in fragments if one.message == count - 1), default=None)
        if own is None or self._end is None:
            return None
        found = self._end.search(prompt, own)
        until = min((one.start for one in fragments if one.message >= count and one.start >= own), default=len(prompt))
        return found if found is not None and found.end() <= until else None

    def _behind(self, chat: Chat, alone: str, count: int) -> int:
        """Where in the turns up to the assistant's last one the texts of that one end: an end before is another's."""
        changed = _with_more(chat.messages[count - 1])
        if changed is None:
            return 0
        try:
            other = chat.text_of([*chat.messages[: count - 1], changed], add_generation_prompt=False)
        except BadRequest:  # a template may know the names of calls, say
            return 0
        return _common(alone, other) if other != alone else 0

    def _last_end(self, text: str, *, behind: int) -> re.Match[str] | None:
        if self._end is None:
            return None
        return max(self._end.finditer(text, behind), key=re.Match.start, default=None)

    def _check_prefix(self, now: str, before: str, *, keep_reasoning: bool) -> None:
        """Raises `Conflict` where the template writes a history otherwise now that there are more messages."""
        if now == before:
            return
        only_reasoning = any(
            self._without_reasoning(now, blanks) == self._without_reasoning(before, blanks) for blanks in (None, "\n")
        )
        if only_reasoning and keep_reasoning:
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

    def _without_reasoning(self, text: str, blanks: str | None) -> str:
        """`blanks`: what goes with it where it comes behind; None for all white space."""
        for opener, closer in self._reasoning:
            kept: list[str] = []
            at = 0
            while (start := text.find(opener, at)) >= 0:
                end = text.find(closer, start + len(opener))
                if end < 0:
                    break
                kept.append(text[at:start])
                at = end + len(closer)
                while at < len(text) and (text[at] in blanks if blanks else text[at].isspace()):
                    at += 1
            text = "".join([*kept, text[at:]])
        return text


def _turns_before(messages: Sequence[Json]) -> int:
    """How many messages there are up to and with the assistant's last."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") == "assistant":
            if index == len(messages) - 1:
                raise BadRequest(f"{PARAM} need messages behind the assistant's last", param="messages")
            return index + 1
    raise BadRequest(f"{PARAM} need a message of the assistant, the last turn", param="messages")


def _with_more(message: Json) -> Json | None:
    """The message with one character more at the end of its text, or of its last call's name."""
    content, calls = message.get("content"), message.get("tool_calls")
    if calls:
        last = calls[-1]
        function = {**last["function"], "name": last["function"]["name"] + _MORE}
        return {**message, "tool_calls": [*calls[:-1], {**last, "function": function}]}
    if isinstance(content, str) and content:
        return {**message, "content": content + _MORE}
    if isinstance(content, list) and content and isinstance(content[-1].get("text"), str):
        return {**message, "content": [*content[:-1], {**content[-1], "text": content[-1]["text"] + _MORE}]}
    return None


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
