"""`--guard-special-tokens`: no control token comes out of what a request says.

A prompt is rendered so that the control tokens that its template wrote are known (`guarded.py`), all others that it
spells have a stand-in in them, a character that Unicode keeps out of all text. Where it is encoded the characters are
put back, and a stretch between the template's own control tokens that spells another is encoded as plain text, all
others as ever.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence

from derender.protocol.errors import BadRequest
from derender.rendering.guarded import GuardedPrompts
from derender.rendering.hiding import has_stand_ins
from derender.template.jinja import ChatTemplate
from derender.tokenizer import Tokenizer
from derender.tokenizer.plain_text import PlainEncoder

_FINEST = 64  # characters of a text that is encoded one by one where nothing else keeps a control token out


class Guard:
    """Keeps one model's control tokens out of texts. Safe to use from several threads.

    `markers`: added tokens that are not special but as good as control tokens to this model: those that its template
    writes, and those that calls and reasoning are told by. `templates` are got ready at once. Raises ValueError where
    the vocabulary's control tokens are too various, TemplateBroken for a template that cannot be got ready.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, markers: Collection[str], templates: Iterable[ChatTemplate] = ()
    ) -> None:
        controls = {
            token.content: token.id
            for token in tokenizer.added_tokens
            if token.content.strip() and (token.special or token.content in markers)
        }
        self.prompts = GuardedPrompts(controls, special_tokens=tokenizer.special_tokens)
        """Renders what `encode` is given."""

        for template in templates:
            self.prompts.prepare(template)
        self._control = self.prompts.own.spelled
        self._tokenizer = tokenizer
        self._plain = PlainEncoder(tokenizer.reload)
        self._of = controls
        unknown = tokenizer.special_tokens.get("unk_token", "")
        self._unknown = (unknown,) if unknown in controls else ()
        # What a text has for a character that the vocabulary lacks is nothing that it spells.
        self._ids = frozenset(one for text, one in controls.items() if text not in self._unknown)
        self._lock = threading.Lock()
        self.count = 0
        """Spellings of control tokens that were encoded as plain text."""

    def show(self, text: str) -> str:
        """A prompt with its own characters."""
        return self.prompts.show(text)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The ids of a prompt that `prompts` rendered."""
        shown = self.show(text)
        forged = self._forged(text, shown)
        if not forged:
            ids = self._tokenizer.encode(shown, add_special_tokens=add_special_tokens)
            forged = self.made(ids, text, add_special_tokens=add_special_tokens)
            if not forged:
                return ids
        with self._lock:
            self.count += forged
        ids = self._encoded(text)
        if not add_special_tokens:
            return ids
        before, after = self._tokenizer.frame
        return [*before, *ids, *after]

    def spells_control(self, text: str) -> bool:
        """Whether texts of the request spell a control token in a prompt."""
        return bool(self._forged(text, self.show(text)))

    def made(self, ids: Sequence[int], text: str, *, add_special_tokens: bool = False) -> int:
        """How many control tokens the ids of a prompt have that neither it nor the tokenizer's frame spells.

        A tokenizer may read other characters as those of a control token (NFKC and capitals, say).
        """
        own: list[int] | None = None
        over = 0
        for one in self._ids.intersection(ids):
            if own is None:
                own = [self._of[found[0]] for found in self._control.finditer(text)]
            more = ids.count(one) - own.count(one)
            if more > 0 and add_special_tokens:
                more -= self._tokenizer.encode("a", add_special_tokens=True).count(one)
            over += max(more, 0)
        return over

    def _forged(self, text: str, shown: str) -> int:
        if not has_stand_ins(text):
            return 0
        return sum(text[one.start() : one.end()] != one[0] for one in self._control.finditer(shown))

    def _encoded(self, text: str) -> list[int]:
        """The stretches between the template's own control tokens, those with a forged one as plain text."""
        ids: list[int] = []
        done = start = 0
        own = list(self._control.finditer(text))
        for place, end in [*((one.start(), one.end()) for one in own), (len(text), len(text))]:
            stretch = text[start:place]
            if self._forged(stretch, self.show(stretch)) or not self._ids.isdisjoint(self._as_ever(stretch)):
                # What comes before is encoded as ever, in one go: a tokenizer may do something at a text's beginning.
                ids += self._as_ever(text[done:start])
                ids += self._as_text(self.show(stretch), first=not start)
                done = place
            start = end
        return ids + self._as_ever(text[done:])

    def _as_ever(self, text: str) -> list[int]:
        return self._tokenizer.encode(self.show(text)) if text else []

    def _as_text(self, text: str, *, first: bool) -> list[int]:
        ids = self._plain.encode(text, first=first)
        if self._ids.isdisjoint(ids) and not any(one in text for one in self._unknown):
            return ids
        # A vocabulary in which the spelling of a control token is a word, too: it is cut in two.
        parts: list[int] = []
        at = 0
        for found in self._control.finditer(text):
            parts += self._plain.encode(text[at : found.start() + 1], first=first and not at)
            at = found.start() + 1
        parts += self._plain.encode(text[at:], first=first and not at)
        return parts if self._ids.isdisjoint(parts) else self._in_pieces(text, first=first)

    def _in_pieces(self, text: str, *, first: bool) -> list[int]:
        """The ids of a text that is no control token in small enough pieces."""
        ids = self._plain.encode(text, first=first)
        if self._ids.isdisjoint(ids):
            return ids
        if len(text) < 2:
            raise BadRequest(
                "the messages spell a control token in a way that cannot be encoded as text", param="messages"
            )
        size = 1 if len(text) <= _FINEST else (len(text) + 1) // 2
        return [
            one
            for at in range(0, len(text), size)
            for one in self._in_pieces(text[at : at + size], first=first and not at)
        ]
