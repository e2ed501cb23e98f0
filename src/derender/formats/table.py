"""The vocabulary of output formats: frozen tables that say how one model family writes reasoning and tool calls.

A family is data. What a table cannot say, the engine (`derender.parser`) does not know: a family that needs code is a
family for which the engine lacks a concept. Literals are as the model writes them; where the vocabulary has one as a
single token, only that token is the marker, else its text.

In header and parameter patterns (regular expressions) a literal stands in `«…»`, so that markers in it can be told
from the pattern's own characters.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import msgspec


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen table; `replace` gives a changed copy."""

    def replace(self, **changes: Any) -> Any:
        """The same with some fields changed."""
        return msgspec.structs.replace(self, **changes)


class Tags(Table, frozen=True, kw_only=True):
    """A pair of markers. Each side may have several spellings, the first being the usual one."""

    open: tuple[str, ...]
    close: tuple[str, ...]


def tags(open: str | tuple[str, ...], close: str | tuple[str, ...] = ()) -> Tags:
    """`Tags` from single spellings or tuples of them."""
    return Tags(
        open=(open,) if isinstance(open, str) else open,
        close=(close,) if isinstance(close, str) else close,
    )


class Switch(Table, frozen=True, kw_only=True):
    """A chat_template_kwarg that turns reasoning on or off, and the values that mean off."""

    name: str
    off: tuple[Any, ...] = (False,)


class Reopen(Enum):
    """What a reasoning marker means where it does not open or close anything."""

    SWALLOW = "swallow"
    """A second opener in reasoning and a stray closer in content are dropped; an opener in content is text."""

    REOPEN = "reopen"
    """As swallow, but an opener in content begins reasoning again."""

    LITERAL = "literal"
    """They are text."""


class Reasoning(Table, frozen=True, kw_only=True):
    """How reasoning is written.

    `start`: the region that an output begins in when the prompt's tail has no marker of this turn and no switch says
    otherwise. `ended_by_call`: a call's opener ends it too. `ended_by_answer`: the answer's does. `strip`: white space
    at its end is dropped. `prefix`: text that the model writes after the opener and that is no reasoning.
    """

    tags: Tags
    start: Literal["reasoning", "content"] = "reasoning"
    switches: tuple[Switch, ...] = (Switch(name="enable_thinking"),)
    ended_by_call: bool = True
    ended_by_answer: bool = False
    strip: bool = False
    prefix: str = ""
    duplicates: Reopen = Reopen.SWALLOW


# -------------------------------------------------------------------------------------------- arguments


class JsonMembers(Table, frozen=True, kw_only=True, tag_field="kind", tag="json_members"):
    """A call is a JSON object with a name member and an arguments member, in any order; other members are skipped.

    The arguments are the model's own characters from the opening to the matching bracket. `name` None: the object's
    only key is the name and its value the arguments. `array`: a JSON array of such objects, one call each. `within`:
    the members, from the outside in, whose object has the name and the arguments; an id may stand in any of these
    objects. `no_call`: names by which the model says that it calls nothing. `fence`: what closes a code fence around
    it, which the call's opener has opened.
    """

    name: str | None = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: str | None = None
    array: bool = False
    within: tuple[str, ...] = ()
    no_call: tuple[str, ...] = ()
    fence: str = ""


class JsonValue(Table, frozen=True, kw_only=True, tag_field="kind", tag="json_value"):
    """The call's body is the arguments, one JSON value: the model's own characters. `fence`: what stands around it."""

    fence: tuple[str, str] = ("", "")


class Typing(Enum):
    """Where a parameter's type comes from."""

    SCHEMA = "schema"
    """From the tool's JSON schema; a parameter without one is a string."""

    ATTRIBUTE = "attribute"
    """The opener's group `string` says true (text) or false (JSON); the group `type` names a type."""

    VALUE = "value"
    """From the value itself: it is JSON where it can be read as such, else a string."""

    VALUE_OR_SCHEMA = "value_or_schema"
    """From the value itself as long as that is JSON and no string; what it says as a string is typed by the schema."""

    INTEGER = "integer"
    """All values are whole numbers; what is none is a string."""

    NUMBER = "number"
    """All values are numbers; what is none is a string."""

    BOOLEAN = "boolean"
    """All values are true or false: "true" in any case and "1" are true, all else is false."""


ATTRIBUTE = r"""["']?(?P<key>[^"'<>\n]{0,256})["']?\s{0,8}>"""
"""A parameter's key in an attribute, up to the tag's end; quotes of either kind or none."""


class Parameters(Table, frozen=True, kw_only=True, tag_field="kind", tag="parameters"):
    """The body is a list of parameters, each an opener with its key, a value, and a closer.

    `open`: what stands before a key; blanks after its first `<`, around `=` and where it has some may be any or none.
    `key`: the pattern from there to the value, with the group `key`. `close`: the value's closer; it counts where only
    another parameter or the call's real end follows. `unclosed`: a value whose closer is missing ends at the opener of
    another parameter that the tool has. `newline`: one newline at each end of a value is framing. `trim`: white space
    at both ends is. `xml`: entities stand for characters, and CDATA sections are text as it is. `entities`: entities
    in keys stand for characters. `wrappers`: keys under which a model may put all arguments as one object. `first`: a
    value's first closer counts, whatever follows it. `merge`: the values of a key that comes more than once are a list,
    so that nothing of the arguments can be given before the call's end.
    """

    open: str
    key: str = ATTRIBUTE
    close: str
    unclosed: bool = False
    newline: bool = False
    trim: bool = False
    xml: bool = False
    entities: bool = False
    wrappers: tuple[str, ...] = ()
    typing: Typing = Typing.SCHEMA
    first: bool = False
    merge: bool = False


class KeyLines(Table, frozen=True, kw_only=True, tag_field="kind", tag="key_lines"):
    """The body is a parameter a line, `key: value`; a line without the mark between the two is none.

    `line`: what ends a line. `pair`: what ends a key. `trim`: white space around keys and values is framing.
    """

    line: str = "\n"
    pair: str = ":"
    trim: bool = True
    typing: Typing = Typing.SCHEMA


class KeyValues(Table, frozen=True, kw_only=True, tag_field="kind", tag="key_values"):
    """The body is `{key: value, …}` with bare keys; strings stand between fences, other values are bare scalars."""

    fence: str


class PythonCall(Table, frozen=True, kw_only=True, tag_field="kind", tag="python_call"):
    """The calls are Python: `[name(key=literal, …), …]`, in brackets or one a line."""

    brackets: bool = True


class NestedElements(Table, frozen=True, kw_only=True, tag_field="kind", tag="nested_elements"):
    """The body is elements named by their keys, nested for objects and lists; `mark` stands before each tag."""

    mark: str


Body = JsonMembers | JsonValue | Parameters | KeyLines | KeyValues | PythonCall | NestedElements


class Calls(Table, frozen=True, kw_only=True):
    """How calls are written.

    `section` wraps all calls of a turn, `call` each of them; both may be absent (a call then begins with its header or
    body). `header`: pattern with the group `name` (and `id`) between opener and body. `noise`: text in a section that
    is no call, or a call without a name, belongs to nothing. `bare`: calls are also recognised without their section.
    `strip`: white space between content and a call is framing. `start_only`: a call can only begin where nothing was
    said yet. `named`: the call's name is the one that the request demands. `separators`: characters that stand between
    two calls and belong to nothing.
    """

    body: Body
    section: Tags | None = None
    call: Tags | None = None
    header: str | None = None
    bare: bool = False
    noise: bool = False
    strip: bool = False
    start_only: bool = False
    named: bool = False
    separators: str = ""
    ids: Literal["made", "kimi", "mistral", "native"] = "made"
    structural_tag: str | None = None


class Message(Table, frozen=True, kw_only=True):
    """A kind of message. `header`: pattern that is looked for in the header (the marker before the body belongs to it).

    `region`: what the body is. "call": the body of one call of the format's first way of calling, whose name is the
    header's group `name`, if it has one; "calls": content in which calls are looked for; "content": content in which
    they are not; "nothing": left out.
    """

    header: str
    region: Literal["reasoning", "content", "calls", "call", "nothing"]


class Messages(Table, frozen=True, kw_only=True):
    """The output is a chain of messages: a header, which is no text, then a body.

    `open`: before a header; text after a message and before the next body is a header too. `inner`: markers of a
    header itself; where one stands in a body, a header has begun without its opener. `body`: between header and body.
    `close`: after a body. `kinds`: the first whose pattern is found decides; where none is, the body is left out.
    `reasoning`: what a prompt has before and behind a message of reasoning.
    """

    open: tuple[str, ...]
    body: tuple[str, ...]
    close: tuple[str, ...]
    kinds: tuple[Message, ...]
    inner: tuple[str, ...] = ()
    reasoning: tuple[str, str] | None = None


class OutputFormat(Table, frozen=True, kw_only=True):
    """One family. `answer`: markers around the visible answer, dropped, and with them white space outside of them.
    `citations`: markers around a part of the answer that has a source, dropped; the closer goes on up to a `>`.
    `framing`: texts between regions that belong to nothing, as far as a token of the vocabulary stands in them.
    `end_of_turn`: tokens that end the output and never are text. `calls`: the ways in which calls are written, all of
    them understood; of several with one opener, the next is tried where one does not read what follows. `messages`:
    for a format whose regions are told apart by headers. `trim`: white space at the ends of reasoning and content is
    framing. `native_only`: where the family has no structural tag, its calls are not held to plain JSON either, as in
    vLLM: it only ever writes its own form."""

    name: str
    reasoning: Reasoning | None = None
    calls: tuple[Calls, ...] = ()
    messages: Messages | None = None
    answer: Tags | None = None
    citations: Tags | None = None
    framing: tuple[str, ...] = ()
    end_of_turn: tuple[str, ...] = ()
    turn_starts: tuple[str, ...] = ()
    trim: bool = False
    native_only: bool = False
