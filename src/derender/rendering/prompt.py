"""Prompts as token ids: encoding, truncation, and the bounds that the model's context and vocabulary set.

A text is held against a bound on its characters before it is tokenized, then its ids against the context, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from derender.protocol.errors import BadRequest, InvalidBody
from derender.rendering.guard import Guard
from derender.rendering.refusal import refuse
from derender.tokenizer import Tokenizer

Side = Literal["left", "right"]
Offsets = list[tuple[int, int]]
_SPELLED = "the messages spell control tokens: offsets, spans and masks cannot be given"


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids and, where they were asked for, the (start, end) of each in characters of the text.

    A special token that the tokenizer adds has the offsets (0, 0). Of a prompt that was truncated, `whole` is what it
    was, and `cut` cuts what runs parallel to the ids of that.
    """

    ids: list[int]
    offsets: Offsets | None = None
    whole: Prompt | None = None
    cut: Callable[[list[Any]], list[Any]] = list


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """How a prompt is cut: `limit` ids are kept, at `side`. Without a side the last ones are kept, and what the
    tokenizer adds around a text (BOS) is kept with them, as transformers truncates."""

    limit: int
    side: Side | None = None


class PromptEncoder:
    """Makes and checks the prompts of one model. Safe to use from several threads."""

    def __init__(
        self, tokenizer: Tokenizer, *, max_model_len: int, vocab_size: int, guard: Guard | None = None
    ) -> None:
        """`guard`: what chats were rendered with."""
        self._tokenizer = tokenizer
        self._guard = guard
        self._max_ids = max_model_len
        self.max_chars = max_model_len * tokenizer.max_chars_per_token
        """No text of more characters can have as few ids as the context has room for."""

        self._vocab_size = vocab_size
        bos = tokenizer.special_tokens.get("bos_token")
        self._bos = None if bos is None else tokenizer.token_id(bos)

    def shown(self, text: str) -> str:
        """The prompt of a chat with its own characters."""
        return text if self._guard is None else self._guard.show(text)

    def truncation(self, limit: int | None, side: Side | None) -> Truncation | None:
        """The truncation that a request's `truncate_prompt_tokens` and `truncation_side` ask for.

        -1 keeps what the context holds, less one token for output. Raises BadRequest for more than the context holds.
        """
        if limit is None:
            return None
        if limit > self._max_ids:
            raise refuse(
                f"truncate_prompt_tokens={limit} cannot be greater than max_model_len = {self._max_ids}. "
                "Please request a smaller truncation size.",
                param="truncate_prompt_tokens",
                value=limit,
            )
        return Truncation(limit=self._max_ids - 1 if limit < 0 else limit, side=side)

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool,
        truncation: Truncation | None = None,
        offsets: bool = False,
        one_bos: bool = False,
        bounded: bool = True,
        guarded: bool = False,
    ) -> Prompt:
        """The ids of a text. `one_bos`: the text may begin with a BOS of its own, and gets no second one. `bounded`:
        the context bounds it. `guarded`: it was rendered from guarded messages, if there is a guard.

        Raises BadRequest for a text that is too long for the context, also once it is truncated.
        """
        skipped = 0
        if bounded and len(text) > self.max_chars:
            if truncation is None:
                raise refuse(
                    f"This model's maximum context length is {self._max_ids} tokens. However, your prompt contains "
                    f"{len(text)} characters (more than {self.max_chars} characters, which is the upper bound for "
                    f"{self._max_ids} input tokens). Please reduce the length of the input prompt.",
                    param="input_text",
                    value=len(text),
                )
            if truncation.side == "left":
                skipped = len(text) - self.max_chars
                text = text[skipped:]
            elif truncation.side == "right":
                text = text[: self.max_chars]
        spans: Offsets | None = None
        guard = self._guard if guarded else None
        if offsets and guard is not None and guard.spells_control(text):
            raise BadRequest(_SPELLED, param="messages")
        if offsets:
            shown = text if guard is None else guard.show(text)
            ids, spans = self._tokenizer.encode_with_offsets(shown, add_special_tokens=add_special_tokens)
            if guard is not None and guard.made(ids, text, add_special_tokens=add_special_tokens):
                raise BadRequest(_SPELLED, param="messages")
            if skipped:
                spans = [(start + skipped, end + skipped) if end else (start, end) for start, end in spans]
        else:
            encode = self._tokenizer.encode if guard is None else guard.encode
            ids = encode(text, add_special_tokens=add_special_tokens)
        if one_bos and add_special_tokens and self._has_two_bos(ids):
            ids = ids[1:]
            spans = spans and spans[1:]
        if truncation is None or truncation.limit >= len(ids):
            if bounded:
                self.check_length(ids)
            return Prompt(ids, spans)
        cut = partial(self._cut, truncation=truncation, framed=add_special_tokens)
        prompt = Prompt(cut(ids), spans and cut(spans), Prompt(ids, spans), cut)
        self.check_length(prompt.ids)
        return prompt

    def _has_two_bos(self, ids: Sequence[int]) -> bool:
        """Whether a template wrote a BOS and the tokenizer put another one before it."""
        return len(ids) > 1 and ids[0] == ids[1] == self._bos

    def of_ids(self, ids: list[int], *, place: str, truncation: Truncation | None = None) -> Prompt:
        """The prompt of ids that the caller gives, not copied unless they are cut. Raises BadRequest."""
        self.check_ids(ids, place=place)
        if truncation is not None and truncation.limit < len(ids):
            ids = self._cut(ids, truncation=truncation, framed=False)
        self.check_length(ids)
        return Prompt(ids)

    def check_ids(self, ids: Sequence[int], *, place: str) -> None:
        """Raises InvalidBody for a negative id, BadRequest for one beyond the model's vocabulary (vllm#35231), both
        naming the first such id and where it stands in the field `place`."""
        if not ids or (min(ids) >= 0 and max(ids) < self._vocab_size):
            return
        index, wrong = next((i, token) for i, token in enumerate(ids) if not 0 <= token < self._vocab_size)
        where = f"{place}[{index}]"
        if wrong < 0:
            dotted = where.replace("[", ".").replace("]", "")
            raise InvalidBody(f"{where}: token id {wrong} must be greater than or equal to 0", param=f"body.{dotted}")
        raise refuse(
            f"Token id {wrong} is out of vocabulary: {where} must be from 0 to {self._vocab_size - 1}",
            param=place.partition("[")[0],
            value=wrong,
        )

    def check_length(self, ids: Sequence[int]) -> None:
        """Raises BadRequest for more ids than the context holds. No room for output is found by `room`."""
        if len(ids) > self._max_ids:
            raise refuse(
                f"This model's maximum context length is {self._max_ids} tokens. However, your prompt contains "
                f"{len(ids)} input tokens, which exceeds this limit even without any output tokens. "
                "Please reduce the length of the input prompt.",
                param="input_tokens",
                value=len(ids),
            )

    def room(self, ids: Sequence[int]) -> int:
        """Tokens that the context has left for output, at least one. Raises BadRequest where there are none."""
        room = self._max_ids - len(ids)
        if room < 1:
            raise refuse(
                f"max_tokens must be at least 1, got 0: the prompt's {len(ids)} input tokens fill this model's maximum "
                f"context length of {self._max_ids} tokens and leave no room for output.",
                param="max_tokens",
                value=0,
            )
        return room

    def _cut(self, entries: list[Any], *, truncation: Truncation, framed: bool) -> list[Any]:
        """Ids, or what runs parallel to them, cut to the limit, which they exceed."""
        limit = truncation.limit
        if truncation.side == "right":
            return entries[:limit]
        if truncation.side is None and framed:
            before, after = map(len, self._tokenizer.frame)
            body = entries[before : len(entries) - after]
            kept = max(limit - before - after, 0)
            entries = entries[:before] + body[len(body) - kept :] + entries[len(entries) - after :]
        return entries[-limit:] if limit else []


def completion_prompts(prompt: Any) -> list[str | list[int]]:
    """The prompts in a completions request's `prompt`: a text, texts, ids, or lists of ids.

    Lists of ids are not copied, and what ids they hold is not checked. Raises InvalidBody for anything else, naming the
    place of what is wrong.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise InvalidBody(
            f"prompt must be a string, a list of strings, a list of token ids or a list of lists of token ids, "
            f"not {_called(prompt)}",
            param="body.prompt",
        )
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return [prompt]
    if kinds <= {str}:
        return prompt
    if kinds == {list}:
        for index, ids in enumerate(prompt):
            if not set(map(type, ids)) <= {int}:
                number, wrong = next((i, x) for i, x in enumerate(ids) if type(x) is not int)
                raise InvalidBody(
                    f"prompt[{index}][{number}] must be a token id (an integer), not {_called(wrong)}",
                    param=f"body.prompt.{index}.{number}",
                )
        return prompt
    index, wrong = next((i, x) for i, x in enumerate(prompt) if type(x) is not type(prompt[0]) or type(x) not in _KINDS)
    raise InvalidBody(
        f"prompt[{index}] is {_called(wrong)}; all entries of prompt must be strings, all token ids, "
        "or all lists of token ids",
        param=f"body.prompt.{index}",
    )


_KINDS = (str, int, list)


def _called(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float, str)):
        text = repr(value)
        return text if len(text) <= 80 else text[:80] + "…"
    return "an object" if isinstance(value, dict) else "a list"
