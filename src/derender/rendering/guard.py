"""`--guard-special-tokens`: no control token comes out of what a request's messages and tools say.

Before a chat is rendered, every character of its texts that a control token begins or ends with is replaced by another,
one that Unicode keeps out of all text. What spells a control token in the rendered prompt is then the template's own,
whatever texts it put side by side. The characters are put back when the prompt is encoded; where they spell a control
token, that stretch of the prompt is encoded as plain text, and all others as ever.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Sequence
from typing import Any

from derender.protocol.common import Json
from derender.protocol.errors import BadRequest
from derender.tokenizer import Tokenizer
from derender.tokenizer.plain_text import PlainEncoder

_STAND_INS = [chr(plane << 16 | low) for plane in range(1, 17) for low in (0xFFFE, 0xFFFF)]
_STAND_IN = re.compile(f"[{''.join(_STAND_INS)}]")
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_ROLES = frozenset(("assistant", "developer", "function", "system", "tool", "user"))


class Guard:
    """Keeps one model's control tokens out of texts. Safe to use from several threads.

    `markers`: added tokens that are not special but as good as control tokens to this model: those that its template
    writes, and those that calls and reasoning are told by. `reasoning`: the ones that stay in what an assistant said,
    because the template looks for them there to take the reasoning out.
    """

    def __init__(self, tokenizer: Tokenizer, *, markers: Collection[str], reasoning: Collection[str]) -> None:
        controls = {
            token.content: token.id
            for token in tokenizer.added_tokens
            if token.content.strip() and (token.special or token.content in markers)
        }
        ends = sorted({one for text in controls for one in (text[0], text[-1])})
        if len(ends) > len(_STAND_INS):
            raise ValueError(f"control tokens begin and end with {len(ends)} different characters")
        self._tokenizer = tokenizer
        self._plain = PlainEncoder(tokenizer.reload)
        self._ids = frozenset(controls.values())
        pairs = list(zip(ends, _STAND_INS, strict=False))
        self._hide = str.maketrans(dict(pairs))
        self._show = str.maketrans({stand_in: one for one, stand_in in pairs})
        spelled = "|".join(re.escape(text) for text in sorted(controls, key=len, reverse=True))
        self._control = re.compile(spelled or r"(?!)")
        kept = "|".join(re.escape(text) for text in sorted(set(reasoning) & controls.keys(), key=len, reverse=True))
        self._kept = re.compile(f"({kept})") if kept else None
        self._names = frozenset(text.strip("<>[]|/｜▁ \n") for text in controls)
        self._lock = threading.Lock()
        self.count = 0
        """Spellings of control tokens that were encoded as plain text."""

    def messages(self, messages: Sequence[Any]) -> list[Any]:
        """Messages as a template may be given them. Raises BadRequest for a role or name that would make a control
        token between the template's own brackets, and for texts with noncharacters.
        """
        return [self._message(one, index) for index, one in enumerate(messages)]

    def tools(self, tools: list[Json] | None) -> list[Json] | None:
        """Tools, likewise."""
        hidden: list[Json] | None = self._value(tools, keep=False)
        return hidden

    def values(self, values: Any) -> Any:
        """Documents, or variables of a template, likewise."""
        return self._value(values, keep=False)

    def show(self, text: str) -> str:
        """A prompt with its own characters."""
        return text.translate(self._show)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The ids of a prompt that was rendered from guarded messages."""
        shown = self.show(text)
        forged = self._forged(text, shown)
        if not forged:
            return self._tokenizer.encode(shown, add_special_tokens=add_special_tokens)
        with self._lock:
            self.count += forged
        ids = self._encoded(text)
        return self._framed(ids) if add_special_tokens else ids

    def spells_control(self, text: str) -> bool:
        """Whether texts of the request spell a control token in a prompt."""
        return bool(self._forged(text, self.show(text)))

    def _forged(self, text: str, shown: str) -> int:
        if not _STAND_IN.search(text):
            return 0
        return sum(text[one.start() : one.end()] != one[0] for one in self._control.finditer(shown))

    def _framed(self, ids: list[int]) -> list[int]:
        """The ids with what the tokenizer puts around a text."""
        bare, full = (self._tokenizer.encode("a", add_special_tokens=add) for add in (False, True))
        for before in range(len(full) - len(bare) + 1):
            if full[before : before + len(bare)] == bare:
                return [*full[:before], *ids, *full[before + len(bare) :]]
        return ids

    def _encoded(self, text: str) -> list[int]:
        """The stretches between the template's own control tokens, those with a forged one as plain text."""
        ids: list[int] = []
        done = start = 0
        own = list(self._control.finditer(text))
        for place, end in [*((one.start(), one.end()) for one in own), (len(text), len(text))]:
            stretch = text[start:place]
            if self._forged(stretch, self.show(stretch)):
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
        if self._ids.isdisjoint(ids):
            return ids
        # A vocabulary in which the spelling of a control token is a word, too: it is cut in two.
        parts: list[int] = []
        at = 0
        for found in self._control.finditer(text):
            parts += self._plain.encode(text[at : found.start() + 1], first=first and not at)
            at = found.start() + 1
        parts += self._plain.encode(text[at:], first=False)
        if not self._ids.isdisjoint(parts):
            raise BadRequest("the messages spell a control token in a way that cannot be encoded as text")
        return parts

    def _message(self, message: Any, index: int) -> Any:
        if not isinstance(message, dict):
            return message
        role = message.get("role")
        for key in ("role", "name"):
            value = message.get(key)
            if isinstance(value, str) and value not in _ROLES and value.strip("<>[]|/｜▁ \n") in self._names:
                raise BadRequest(
                    f"messages.{index}.{key}: {value!r} is the name of a control token", param=f"messages.{index}.{key}"
                )
        keep = role == "assistant"
        return {key: value if key == "role" else self._value(value, keep=keep) for key, value in message.items()}

    def _value(self, value: Any, *, keep: bool) -> Any:
        """`keep`: leave the markers of reasoning in texts."""
        if isinstance(value, str):
            return self._text(value, keep=keep)
        if isinstance(value, list):
            return [self._value(one, keep=keep) for one in value]
        if isinstance(value, dict):
            return {
                self._text(key, keep=False): self._arguments(one)
                if key == "arguments" and isinstance(one, str)
                else self._value(one, keep=keep)
                for key, one in value.items()
            }
        return value

    def _arguments(self, text: str) -> str:
        """Arguments as JSON text, whose own brackets stay."""
        hidden, strings = _JSON_STRING.subn(lambda found: self._text(found[0], keep=False), text)
        return hidden if strings else self._text(text, keep=False)

    def _text(self, text: str, *, keep: bool) -> str:
        if _STAND_IN.search(text):
            raise BadRequest("the messages have noncharacters (such as U+1FFFE), which no text has", param="messages")
        if keep and self._kept is not None:
            parts = self._kept.split(text)
            return "".join(part if number % 2 else part.translate(self._hide) for number, part in enumerate(parts))
        return text.translate(self._hide)
