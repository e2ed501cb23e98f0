"""Texts of a request with other characters where control tokens begin and end, for prompts that code makes.

Each character that a control token begins or ends with is replaced by one that Unicode keeps out of all text. What
spells a control token in the prompt is then the code's own, whatever texts it puts side by side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from derender.protocol.common import Json
from derender.template.own_text import OwnText

STAND_INS = [chr(plane << 16 | low) for plane in range(1, 17) for low in (0xFFFE, 0xFFFF)]
STAND_IN = re.compile(f"[{''.join(STAND_INS)}]")
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_JSON_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_KEYS = frozenset(
    (
        *("arguments", "closed", "content", "description", "function", "id", "name", "parameters", "reasoning"),
        *("reasoning_content", "role", "task", "text", "thinking", "tool_call_id", "tool_calls", "tools", "type"),
    )
)
_KINDS = frozenset(("function", "input_text", "output_text", "refusal", "text", "thinking", "tool_reference"))
_Change = Callable[[str], str]


class StandIns:
    """The characters that stand for those that one set of control tokens begins and ends with. Immutable.

    `sparing`: only texts that may have part in a control token have stand-ins, and of one that they spell only the last
    character, so that they are sorted as ever. Raises ValueError where there are not as many stand-ins.
    """

    def __init__(self, own: OwnText, *, sparing: bool = False) -> None:
        controls = own.controls
        ends = sorted({one for text in controls for one in (text[0], text[-1])})
        if len(ends) > len(STAND_INS):
            raise ValueError(f"control tokens begin and end with {len(ends)} different characters")
        pairs = list(zip(ends, STAND_INS, strict=False))
        self._own = own
        self._sparing = sparing
        self._hide = str.maketrans(dict(pairs))
        self._show = str.maketrans({stand_in: one for one, stand_in in pairs})

    def hide(self, text: str) -> str:
        """A text with stand-ins."""
        if self._sparing:
            if self._own.mark(text) == text:
                return text
            spared = self._own.spelled.sub(lambda found: found[0][:-1] + found[0][-1].translate(self._hide), text)
            if self._own.mark(spared) == spared:
                return spared
        return text.translate(self._hide)

    def show(self, text: str) -> str:
        """A text with its own characters."""
        return text.translate(self._show) if has_stand_ins(text) else text

    def messages(self, messages: list[Json], *, raw_arguments: bool, json_results: bool) -> list[Json]:
        """Messages, as `normalize_messages` gives them, whose roles stay. `raw_arguments`: the arguments of calls are
        written as the text that they came as; others are read as JSON, in which an escape may spell a character.
        `json_results`: those of tools are read so, too."""
        return [self._message(one, raw=raw_arguments, results=json_results) for one in messages]

    def values(self, values: Any) -> Any:
        """Tools, or variables of a template."""
        return changed(values, self.hide)

    def _message(self, message: Json, *, raw: bool, results: bool) -> Json:
        found = {key: value if key == "role" else self.values(value) for key, value in message.items()}
        if results and message["role"] == "tool":
            content = message["content"]
            if not isinstance(content, str):  # read as one text
                texts = [part["text"] if "text" in part else part["name"] for part in content if "thinking" not in part]
                content = "\n\n".join(text for text in texts if text)
            found["content"] = self._json(content)
        calls = message.get("tool_calls")
        if calls and not raw:
            found["tool_calls"] = [
                {**hidden, "function": {**hidden["function"], "arguments": self._json(arguments)}}
                if isinstance(arguments := call["function"].get("arguments"), str)
                else hidden
                for call, hidden in zip(calls, found["tool_calls"], strict=True)
            ]
        return found

    def _json(self, text: str) -> str:
        """A text of JSON, whose own brackets stay; any other text as ever."""
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            return self.hide(text)
        if isinstance(parsed, str):  # JSON of a JSON text: some read that, too
            return json.dumps(self._json(parsed), ensure_ascii=False)
        return _JSON_STRING.sub(self._json_string, text)

    def _json_string(self, found: re.Match[str]) -> str:
        if "\\" not in found[0]:
            return self.hide(found[0])
        return _JSON_ESCAPE.sub(self._escape, found[0]).translate(self._hide)  # an escape may spell any part of a token

    def _escape(self, found: re.Match[str]) -> str:
        """An escape of a character that is hidden, as what hides it; others stay."""
        code = int(found[1], 16) if found[1] else -1
        hidden: str = self._hide.get(code, found[0])
        return hidden


def has_stand_ins(text: str) -> bool:
    """Whether a text has characters that stand for others."""
    if text.isascii():
        return False
    data = text.encode("utf-8", "surrogatepass")  # in which they are found many times as fast
    return (b"\xbf\xbe" in data or b"\xbf\xbf" in data) and STAND_IN.search(text) is not None


def changed(value: Any, change: _Change) -> Any:
    """JSON with its texts changed, also its keys, but for what the API gives names to."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [changed(one, change) for one in value]
    if isinstance(value, dict):
        return {
            key if key in _KEYS else change(key): one
            if key == "type" and isinstance(one, str) and one in _KINDS
            else changed(one, change)
            for key, one in value.items()
        }
    return value
