"""`--guard-special-tokens`: no control token comes out of what a request's messages and tools say.

Before a chat is rendered, every character of its texts that a control token begins or ends with is replaced by another,
one that Unicode keeps out of all text. What spells a control token in the rendered prompt is then the template's own,
whatever texts it put side by side. The characters are put back when the prompt is encoded; where they spell a control
token, that stretch of the prompt is encoded as plain text, and all others as ever.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from derender.protocol.common import Json
from derender.protocol.errors import BadRequest
from derender.tokenizer import Tokenizer
from derender.tokenizer.plain_text import PlainEncoder

_STAND_INS = [chr(plane << 16 | low) for plane in range(1, 17) for low in (0xFFFE, 0xFFFF)]
_STAND_IN = re.compile(f"[{''.join(_STAND_INS)}]")
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_JSON_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_ROLES = frozenset(("assistant", "developer", "function", "system", "tool", "user"))
_KEYS = frozenset(("arguments", "content", "description", "function", "id", "name", "parameters", "text", "type"))
_KINDS = frozenset(("function", "input_text", "output_text", "refusal", "text", "thinking", "tool_reference"))
_FINEST = 64  # characters of a text that is encoded one by one where nothing else keeps a control token out


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
        self._of = controls
        unknown = tokenizer.special_tokens.get("unk_token", "")
        self._unknown = (unknown,) if unknown in controls else ()
        # What a text has for a character that the vocabulary lacks is nothing that it spells.
        self._ids = frozenset(one for text, one in controls.items() if text not in self._unknown)
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

    def messages(self, messages: Sequence[Any], *, raw_arguments: bool = False) -> list[Any]:
        """Messages as a template may be given them. `raw_arguments`: it writes the arguments of calls as the text that
        they came as; others read them as JSON, in which an escape may spell a character.

        Raises BadRequest for a role or name that would make a control token between the template's own brackets, and
        for texts with noncharacters.
        """
        return [self._message(one, index, raw=raw_arguments) for index, one in enumerate(messages)]

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
        found = Counter(one for one in ids if one in self._ids)
        own = Counter(self._of[one[0]] for one in self._control.finditer(text)) if found else Counter[int]()
        if add_special_tokens and found - own:
            own.update(self._tokenizer.encode("a", add_special_tokens=True))
        return (found - own).total()

    def _forged(self, text: str, shown: str) -> int:
        if not _STAND_IN.search(text):
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
            raise BadRequest("the messages spell a control token in a way that cannot be encoded as text")
        size = 1 if len(text) <= _FINEST else (len(text) + 1) // 2
        return [
            one
            for at in range(0, len(text), size)
            for one in self._in_pieces(text[at : at + size], first=first and not at)
        ]

    def _message(self, message: Any, index: int, *, raw: bool) -> Any:
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
        return {
            key: value
            if key == "role" and value in _ROLES
            else self._value(value, keep=keep, raw=raw or key == "content")
            for key, value in message.items()
        }

    def _value(self, value: Any, *, keep: bool, raw: bool = True) -> Any:
        """`keep`: leave the markers of reasoning in texts. `raw`: texts of arguments are not read as JSON."""
        if isinstance(value, str):
            return self._text(value, keep=keep)
        if isinstance(value, list):
            return [self._value(one, keep=keep, raw=raw) for one in value]
        if isinstance(value, dict):
            return {
                key if key in _KEYS else self._text(key, keep=False): self._field(key, one, keep=keep, raw=raw)
                for key, one in value.items()
            }
        return value

    def _field(self, key: Any, value: Any, *, keep: bool, raw: bool) -> Any:
        if isinstance(value, str):
            if key == "type" and value in _KINDS:
                return value
            if key == "arguments" and not raw:
                return self._arguments(value)
        return self._value(value, keep=keep, raw=raw or key == "arguments")

    def _arguments(self, text: str) -> str:
        """Arguments as JSON text, whose own brackets stay."""
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            return self._text(text, keep=False)
        if isinstance(parsed, str):  # JSON of a JSON text: some read that, too
            return json.dumps(self._arguments(parsed), ensure_ascii=False)
        return _JSON_STRING.sub(self._json_string, text)

    def _json_string(self, found: re.Match[str]) -> str:
        text = _JSON_ESCAPE.sub(self._escape, found[0]) if "\\" in found[0] else found[0]
        if _STAND_IN.search(json.loads(found[0], strict=False)):
            raise _noncharacters()
        return self._text(text, keep=False, escaped=True)

    def _escape(self, found: re.Match[str]) -> str:
        """An escape of a character that is hidden, as what hides it; others stay."""
        code = int(found[1], 16) if found[1] else -1
        hidden: str = self._hide.get(code, found[0])
        return hidden

    def _text(self, text: str, *, keep: bool, escaped: bool = False) -> str:
        """`escaped`: its escapes are hidden already."""
        if not escaped and _STAND_IN.search(text):
            raise _noncharacters()
        if keep and self._kept is not None:
            parts = self._kept.split(text)
            return "".join(part if number % 2 else part.translate(self._hide) for number, part in enumerate(parts))
        return text.translate(self._hide)


def _noncharacters() -> BadRequest:
    return BadRequest("the messages have noncharacters (such as U+1FFFE), which no text has", param="messages")
