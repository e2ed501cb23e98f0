"""Going on with a conversation from the very ids of its last turn: only the new messages are rendered and tokenized.

What a model sampled is not what its text tokenizes to, and templates write a history otherwise than it was: they drop
reasoning, trim, spell JSON anew. Whoever trains on sampled ids, or wants a prefix cache to hold, needs them unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from derender.protocol.common import Json
from derender.protocol.errors import BadRequest, Conflict
from derender.rendering.conversation import Chat

PARAM = "previous_token_ids"
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
        self._reasoning = [
            re.compile(rf"{re.escape(opener)}.*?{re.escape(closer)}\s*", re.DOTALL) for opener, closer in reasoning
        ]

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
        last = self._last_end(alone)
        end = None
        if last is not None and prompt.startswith(alone[: last.start()]):
            end = self._end_at(prompt, last.start())  # a last turn may end otherwise than one in a history
        if end is None and last is not None:
            end = self._end_behind_texts(chat, prompt, count)
            if end is not None:
                self._check_prefix(prompt[: end.start()], alone[: last.start()], keep_reasoning=keep_reasoning)
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

    def _last_end(self, text: str) -> re.Match[str] | None:
        return max(self._end.finditer(text), key=re.Match.start, default=None) if self._end is not None else None

    def _check_prefix(self, now: str, before: str, *, keep_reasoning: bool) -> None:
        """Raises `Conflict` where the template writes a history otherwise now that there are more messages."""
        if now == before:
            return
        only_reasoning = self._without_reasoning(now) == self._without_reasoning(before)
        if only_reasoning and keep_reasoning:
            return
        ids, others = self._encode(before), self._encode(now)
        place = next((at for at, (one, other) in enumerate(zip(ids, others, strict=False)) if one != other), None)
        place = min(len(ids), len(others)) if place is None else place
        at = next((at for at, (one, other) in enumerate(zip(before, now, strict=False)) if one != other), len(before))
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

    def _without_reasoning(self, text: str) -> str:
        for pattern in self._reasoning:
            text = pattern.sub("", text)
        return text


def _turns_before(messages: Sequence[Json]) -> int:
    """How many messages there are up to and with the assistant's last."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") == "assistant":
            if index == len(messages) - 1:
                raise BadRequest(f"{PARAM} need messages behind the assistant's last", param="messages")
            return index + 1
    raise BadRequest(f"{PARAM} need a message of the assistant, the last turn", param="messages")
