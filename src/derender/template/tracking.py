"""Where in a prompt the text of each message stands.

A template is a program: it may trim, split, move, repeat or drop what it is given. So the messages are rendered once
more with marks around their texts, characters that Unicode keeps out of all text (noncharacters). Where the prompt is
the same once they are taken out, they tell where each text went. What a template looks for in texts (`</think>`, say)
stays free of marks, and so does white space at their ends where the template trims it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from derender.protocol.common import Json

Part = Literal["content", "reasoning", "tool_calls"]
Render = Callable[[Sequence[Json]], str]

GENERATION_MARKS = ("\ufdd4", "\ufdd5")
"""What a template's `generation` blocks are put between where that is asked for."""

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_DIGITS = "\ufde0\ufde1\ufde2\ufde3\ufde4\ufde5\ufde6\ufde7\ufde8\ufde9"
_AS_DIGITS = str.maketrans("0123456789", _DIGITS)
_AS_NUMBERS = str.maketrans(_DIGITS, "0123456789")
_MARK = re.compile(f"{_OPEN}([{_DIGITS}]+)|{_CLOSE}|[{''.join(GENERATION_MARKS)}]")
_NONCHARACTER = re.compile("[\ufdd0-\ufdef]")
_SHORTEST_CONSTANT = 3  # characters; shorter ones stand in texts by chance
MAX_SINGLE = 32
"""Messages that are tried one by one where all together cannot be marked."""


class Fragment(NamedTuple):
    """Text of a message in the prompt, in characters from `start` to `end`."""

    start: int
    end: int
    message: int
    part: Part


@dataclass(frozen=True)
class Tracked:
    """A prompt, the fragments of its messages in order, and what `generation` blocks wrote (None: there are none)."""

    text: str
    fragments: tuple[Fragment, ...]
    generated: tuple[tuple[int, int], ...] | None


class Untrackable(ValueError):
    """The messages hold characters that marks are made of."""


@dataclass(frozen=True)
class _Source:
    """A text that is marked: `call` numbers the tool call that it stands in, `path` the text within the message."""

    message: int
    part: Part
    call: int
    text: str


def track(
    messages: Sequence[Json], *, text: str, render: Render, constants: Iterable[str], generation: bool
) -> Tracked:
    """Finds the texts of `messages` (as `normalize_messages` gives them) in `text`, the prompt made of them.

    `render` makes a prompt of messages. `constants`: the strings that the template looks for. `generation`: whether
    `render` marks generation blocks, which `text` has no marks of. Texts that cannot be placed have no fragment. Raises
    `Untrackable`, and what `render` raises.
    """
    if _NONCHARACTER.search(text):  # looked for where no mark is: some would be taken for marks, and vanish
        raise Untrackable("the prompt has noncharacters (U+FDD0 to U+FDEF)")
    generated: tuple[tuple[int, int], ...] = ()
    if generation:
        unmarked, _, generated = _read(render(messages), [])
        if unmarked != text:
            raise Untrackable("the template writes another prompt where its generation blocks are marked")
    wanted = sorted({one for one in constants if len(one.strip()) >= _SHORTEST_CONSTANT}, key=len, reverse=True)
    kept = re.compile("|".join(map(re.escape, wanted))) if wanted else None
    everything = range(len(messages))
    for trims in (False, True):
        found = _marked(messages, everything, render=render, kept=kept, trims=trims, text=text)
        if found is not None:
            return Tracked(text, found, generated if generation else None)
    single: list[Fragment] = []
    for index in everything[:MAX_SINGLE]:
        for trims in (False, True):
            found = _marked(messages, (index,), render=render, kept=kept, trims=trims, text=text)
            if found is not None:
                single += found
                break
    return Tracked(text, _in_order(single), generated if generation else None)


def _marked(
    messages: Sequence[Json],
    which: Sequence[int],
    *,
    render: Render,
    kept: re.Pattern[str] | None,
    trims: bool,
    text: str,
) -> tuple[Fragment, ...] | None:
    """The fragments of some messages, None where marks would change the prompt."""
    marker = _Marker(kept, trims=trims)
    chosen = frozenset(which)
    marked = [marker.message(one, index) if index in chosen else one for index, one in enumerate(messages)]
    try:
        found, places, _ = _read(render(marked), marker.sources)
    except Exception:  # a template may refuse what it does not know, a tool's name with marks in it, say
        return None
    return _joined(places, marker.sources, text) if found == text else None


class _Marker:
    """Puts marks into messages and remembers which mark is for what."""

    def __init__(self, kept: re.Pattern[str] | None, *, trims: bool) -> None:
        self.sources: list[_Source] = []
        self._kept = kept
        self._trims = trims
        self._at: tuple[int, Part, int] = (0, "content", 0)

    def message(self, message: Json, index: int) -> Json:
        """The message with marks around its texts; the message itself stays as it is."""
        marked = dict(message)
        if "content" in message:
            marked["content"] = self._value(message["content"], index, "content", 0, key="text")
        for name in ("reasoning", "reasoning_content"):
            if isinstance(message.get(name), str):
                marked[name] = self._text(message[name], index, "reasoning", 0)
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            marked["tool_calls"] = [self._call(call, index, number) for number, call in enumerate(calls)]
        return marked

    def _call(self, call: Json, index: int, number: int) -> Json:
        function = call.get("function")
        if not isinstance(function, dict):
            return call
        marked = dict(function)
        for name in ("name", "arguments"):
            if name in function:
                marked[name] = self._value(function[name], index, "tool_calls", number, key=None)
        return {**call, "function": marked}

    def _value(self, value: Any, index: int, part: Part, call: int, *, key: str | None) -> Any:
        """Strings in a value; of objects only those under `key`, if there is one."""
        if isinstance(value, str):
            return self._text(value, index, part, call)
        if isinstance(value, list):
            return [self._value(one, index, part, call, key=key) for one in value]
        if isinstance(value, dict):
            return {
                name: self._value(one, index, part, call, key=key) if key is None or name == key else one
                for name, one in value.items()
            }
        return value

    def _text(self, text: str, index: int, part: Part, call: int) -> str:
        if self._kept is None:
            return self._piece(text, index, part, call)
        parts: list[str] = []
        at = 0
        for found in self._kept.finditer(text):
            parts += (self._piece(text[at : found.start()], index, part, call), found[0])
            at = found.end()
        parts.append(self._piece(text[at:], index, part, call))
        return "".join(parts)

    def _piece(self, text: str, index: int, part: Part, call: int) -> str:
        bare = text.strip() if self._trims else text
        if not bare:
            return text
        before, _, after = text.partition(bare)
        number = str(len(self.sources)).translate(_AS_DIGITS)
        self.sources.append(_Source(index, part, call, text))
        return f"{before}{_OPEN}{number}{bare}{_CLOSE}{after}"


class _Place(NamedTuple):
    start: int
    end: int
    source: int


def _read(marked: str, sources: Sequence[_Source]) -> tuple[str, list[_Place], tuple[tuple[int, int], ...]]:
    """A prompt without its marks, the places of texts, and what stood between generation marks."""
    kept: list[str] = []
    places: list[_Place] = []
    generated: list[tuple[int, int]] = []
    at = size = 0
    opened: tuple[int, int] | None = None
    begun: int | None = None
    for found in _MARK.finditer(marked):
        kept.append(marked[at : found.start()])
        size += found.start() - at
        at = found.end()
        if found[1] is not None:
            opened = size, int(found[1].translate(_AS_NUMBERS))
        elif found[0] == _CLOSE:
            if opened is not None and opened[1] < len(sources) and size > opened[0]:
                places.append(_Place(opened[0], size, opened[1]))
            opened = None
        elif found[0] == GENERATION_MARKS[0]:
            begun = size
        elif begun is not None:
            generated.append((begun, size))
            begun = None
    kept.append(marked[at:])
    return "".join(kept), places, tuple(generated)


def _joined(places: list[_Place], sources: Sequence[_Source], text: str) -> tuple[Fragment, ...]:
    """Places of one text, or of one tool call, as one fragment where nothing of another stands between them.

    What stands between two pieces of a text is its own, a string that the template looks for; what stands between the
    texts of a call is how the call is written. A text of a call that comes once more (harmony writes its name before
    the tool's answer) is no part of it.
    """
    fragments: list[Fragment] = []
    last: _Source | None = None
    written: set[int] = set()
    for place in places:
        source = sources[place.source]
        if source.part == "tool_calls":
            if place.source in written:
                continue
            written.add(place.source)
        if last is not None and (last.message, last.part, last.call) == (source.message, source.part, source.call):
            fragments[-1] = fragments[-1]._replace(end=place.end)
        else:
            fragments.append(Fragment(place.start, place.end, source.message, source.part))
        last = source
    return tuple(fragments)


def _in_order(fragments: list[Fragment]) -> tuple[Fragment, ...]:
    """Fragments by their place; of two at one place the first."""
    kept: list[Fragment] = []
    for fragment in sorted(fragments):
        if not kept or fragment.start >= kept[-1].end:
            kept.append(fragment)
    return tuple(kept)
