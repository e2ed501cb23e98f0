"""Logprobs that name tokens by id → entries with text and exact bytes.

`bytes` are the token's own, taken from the piece table, also for a third of an emoji; joined, they are the output's
bytes. `token` is the text which that token adds in its place: a token that leaves a character unfinished adds "" and
the one that completes it adds what was left out and the character. An alternative that is a part of a character is
read in the same place, one that is whole reads as itself. Special tokens read as their own spelling.
(vllm#27300, vllm#42887, vllm#57574)
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from derender.derendering.model import DerenderModel
from derender.protocol.chat import ChatLogprob, ChatTopLogprob
from derender.protocol.completions import CompletionLogprobs
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateLogprob, GenerateTopLogprob
from derender.tokenizer import BadPlaceholder, format_token_id_placeholder, parse_token_id_placeholder

Resolved = tuple[str, list[int] | None]
_decode = codecs.utf_8_decode
MOST_WAITING = 64
"""Bytes that may wait for the end of a character. Real text needs a token's; this bounds what made-up ids can hold."""


class TokenTexts:
    """Texts and byte lists of tokens that are whole by themselves; shared by all requests of a model."""

    def __init__(self, model: DerenderModel) -> None:
        self.model = model
        self.known: dict[int | None, tuple[str, list[int]]] = {}

    def whole(self, token_id: int) -> tuple[str, list[int]] | None:
        """The text and bytes of a token; None if its bytes are not whole characters, or it is not known."""
        found = self.known.get(token_id)
        if found is None and self.model.tokenizer.knows(token_id):
            piece = self.model.tokenizer.pieces[token_id]
            try:
                found = (piece.decode("utf-8"), list(piece))
            except UnicodeDecodeError:
                return None
            self.known[token_id] = found
        return found


class LogprobResolver:
    """Resolves the entries of one sequence in order.

    `pending`: the bytes of tokens that no text has been told of yet, since they end inside a character.
    """

    __slots__ = ("_as_ids", "_model", "_texts", "offset", "pending", "strip")

    def __init__(
        self, texts: TokenTexts, *, tokens_as_ids: bool, strip: bool, pending: bytes = b"", offset: int = 0
    ) -> None:
        self._texts = texts
        self._model = texts.model
        self._as_ids = tokens_as_ids
        self.strip = strip
        self.pending = pending
        self.offset = offset

    def chat(self, content: Sequence[GenerateLogprob], *, limit: int | None) -> list[ChatLogprob]:
        """Entries for the chat dialect, at most `limit` alternatives each. Raises `BadRequest` naming the position."""
        known = self._texts.known
        simple = not (self.strip or self._as_ids)  # a whole token reads as itself
        entries: list[ChatLogprob] = []
        for position, entry in enumerate(content):
            others: Sequence[GenerateTopLogprob] = entry.top_logprobs or ()
            if limit is not None and len(others) > limit:
                others = others[:limit]
            if simple and not self.pending:
                try:  # all tokens were seen before, and are whole: the usual case
                    text, own = known[entry.token_id]
                    tops = [ChatTopLogprob((t := known[o.token_id])[0], o.logprob, t[1]) for o in others]
                    entries.append(ChatLogprob(text, entry.logprob, own, tops))
                    continue
                except KeyError:
                    pass
            pending, strip = self.pending, self.strip
            sampled = self._sampled(entry, position)
            tops = [
                ChatTopLogprob(read[0], other.logprob, read[1])
                for other in others
                for read in (self._alternative(other, position, pending, strip, entry, sampled),)
            ]
            entries.append(ChatLogprob(sampled[0], entry.logprob, sampled[1], tops))
            simple = not (self.strip or self._as_ids)
        return entries

    def completion(self, content: Sequence[GenerateLogprob], *, hidden: frozenset[int]) -> CompletionLogprobs:
        """Entries for the completions dialect. Tokens in `hidden` add no characters to the text.

        Raises `BadRequest` naming the position.
        """
        result = CompletionLogprobs([], [], [], [])
        for position, entry in enumerate(content):
            pending, strip = self.pending, self.strip
            sampled = self._sampled(entry, position)
            own_id = self._id(entry, position)
            names: dict[str, float] | None = None
            if entry.top_logprobs:
                names = {}
                seen = {own_id}
                others: list[tuple[GenerateLogprob | GenerateTopLogprob, int | None]] = []
                for top in entry.top_logprobs:
                    top_id = self._id(top, position)
                    if top_id is None or top_id not in seen:
                        seen.add(top_id)
                        others.append((top, top_id))
                # The sampled token keeps its place in the order and its own value.
                if any(self._id(other, position) == own_id for other in entry.top_logprobs):
                    others.insert(0, (entry, own_id))
                for other, other_id in others:
                    read, own = self._alternative(other, position, pending, strip, entry, sampled)
                    names[free_name(names, read, own, other_id)] = other.logprob
            result.text_offset.append(self.offset)
            result.token_logprobs.append(entry.logprob)
            result.tokens.append(sampled[0])
            result.top_logprobs.append(names)
            if own_id not in hidden:
                self.offset += len(sampled[0])
        return result

    def _alternative(
        self,
        other: GenerateLogprob | GenerateTopLogprob,
        position: int,
        pending: bytes,
        strip: bool,
        entry: GenerateLogprob,
        sampled: Resolved,
    ) -> Resolved:
        """What an alternative reads as. The sampled token reads alike in both places."""
        other_id = self._id(other, position)
        if other_id is not None and other_id == self._id(entry, position):
            return sampled
        if pending and other_id is not None and not self._as_ids:
            tokenizer = self._model.tokenizer
            whole = self._texts.known.get(other_id) or (
                self._texts.whole(other_id) if tokenizer.knows(other_id) else None
            )
            if whole is not None:
                return whole
        return self._read(other, position, pending, strip)[0]

    def _id(self, entry: GenerateLogprob | GenerateTopLogprob, position: int) -> int | None:
        if entry.token_id is not None:
            return entry.token_id
        if entry.token is None:
            raise _bad(position, "token_id: field required")
        try:
            return parse_token_id_placeholder(entry.token)
        except BadPlaceholder as error:
            raise _bad(position, str(error)) from None

    def step(self, token_id: int) -> Resolved:
        """The text and bytes of a known token in its place, stepping past it."""
        resolved, self.pending, self.strip = self._read_id(token_id, "token_ids", self.pending, self.strip)
        return resolved

    def peek(self, token_id: int, *, where: str) -> Resolved:
        """The text and bytes of a token in its place, staying there. Raises `BadRequest` naming `where`."""
        return self._read_id(token_id, where, self.pending, self.strip)[0]

    def _sampled(self, entry: GenerateLogprob, position: int) -> Resolved:
        """Read the sampled token and step past it."""
        resolved, self.pending, self.strip = self._read(entry, position, self.pending, self.strip)
        return resolved

    def _read(
        self, entry: GenerateLogprob | GenerateTopLogprob, position: int, pending: bytes, strip: bool
    ) -> tuple[Resolved, bytes, bool]:
        """What an entry's token reads as after `pending` bytes, and the state after it."""
        token_id = self._id(entry, position)
        if token_id is None:  # a plain string: it is what it is
            return (entry.token or "", entry.bytes), pending, strip
        return self._read_id(token_id, f"logprobs.content.{position}", pending, strip)

    def _read_id(self, token_id: int, where: str, pending: bytes, strip: bool) -> tuple[Resolved, bytes, bool]:
        tokenizer = self._model.tokenizer
        if not tokenizer.knows(token_id):
            self._model.check_id(token_id, where=where)
            return (format_token_id_placeholder(token_id) if self._as_ids else "", None), pending, strip
        whole = self._texts.whole(token_id)
        special = token_id in tokenizer.special_ids
        if whole is not None and (special or not (pending or strip)):
            text, own = whole
        else:
            piece = tokenizer.pieces[token_id]
            own = list(piece)
            text, pending = _completed(pending, piece)
            if strip and text:
                text, strip = text.removeprefix(" "), False
        if self._as_ids:
            text = format_token_id_placeholder(token_id)
        return (text, own), pending, strip


def _completed(pending: bytes, piece: bytes) -> tuple[str, bytes]:
    """The text that a piece completes, and the bytes that wait for the next one."""
    data = pending + piece
    text, used = _decode(data, "replace", False)
    if used == len(data):
        return text, b""
    if len(data) <= max(MOST_WAITING, len(piece)):
        return "", data
    # Too many tokens in a row that end inside a character: what is settled is told now.
    return text, data[used:]


def free_name(taken: dict[str, float], text: str, own: list[int] | None, token_id: int | None) -> str:
    """A key that no other token has: the text, else `bytes:\\xf0\\x9f` as OpenAI writes it, else `token_id:N`."""
    if text and text not in taken:
        return text
    named = "bytes:" + "".join(f"\\x{b:02x}" for b in own or ())
    if own and named not in taken:
        return named
    if token_id is None:
        return text
    return format_token_id_placeholder(token_id)


def _bad(position: int, reason: str) -> BadRequest:
    return BadRequest(f"logprobs.content.{position}: {reason}", param=f"logprobs.content.{position}")
