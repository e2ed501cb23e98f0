"""What the families whose prompt is made by code have in common: the interface of a chat template, text and JSON."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from derender.protocol.errors import BadRequest
from derender.template.content_format import ContentFormat
from derender.template.jinja import MAX_CHARS, ChatTemplate

Message = Mapping[str, Any]
_NOTHING: Mapping[str, str] = {}

to_json = json.JSONEncoder(ensure_ascii=False).encode
"""JSON as Python's `json.dumps(ensure_ascii=False)`: a blank after commas and colons."""

to_compact_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
to_sorted_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode
"""Compact, with the keys of all objects sorted."""


class CodedTemplate(ChatTemplate):
    """A chat template without a text of its own: a subclass makes the prompt in `prompt`.

    `source` lists what the family writes, so that the output format can be told from it as from a Jinja template.
    Safe to use from several threads: an object holds no state of a request.
    """

    __slots__ = ()

    NAME: ClassVar[str]
    SOURCE: ClassVar[str]
    VARIABLES: ClassVar[frozenset[str]]
    CONTENT_FORMAT: ClassVar[ContentFormat] = "parts"
    DEVELOPER_ROLE: ClassVar[bool] = True
    RAW_ARGUMENTS: ClassVar[bool] = False
    """Whether the arguments of calls are written as the text that they came as, and not read as JSON."""

    def __init__(self) -> None:  # the base class compiles a text, and there is none
        self.name = self.NAME
        self.source = self.SOURCE
        self.variables = self.VARIABLES
        self.content_format = self.CONTENT_FORMAT
        self.text_roles = frozenset[str]()
        self.developer_role = self.DEVELOPER_ROLE
        self.constants = frozenset()
        self.generation = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    def reads_results(self) -> bool:
        """Whether what tools say is read as JSON, in which an escape may spell any character."""
        return False

    @abstractmethod
    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        continue_final_message: bool,
        options: Mapping[str, Any],
    ) -> str:
        """The prompt. `messages` are not empty and are not changed; `options` are the template's variables that the
        request or the operator set. Raises BadRequest for what the family has no way to write."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        special_tokens: Mapping[str, str] = _NOTHING,
        **kwargs: Any,
    ) -> str:
        """As `ChatTemplate.render`. No family here has a place for `documents`."""
        if not messages:
            raise BadRequest("messages must not be empty", param="messages")
        if continue_final_message and add_generation_prompt:
            raise BadRequest(
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
                param="continue_final_message",
            )
        try:
            text = self.prompt(
                messages,
                tools=tools or (),
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                options=kwargs,
            )
        except RecursionError as error:
            raise BadRequest("a tool's schema or a call's arguments are nested too deeply", param="messages") from error
        if len(text) > MAX_CHARS:
            raise BadRequest(f"the prompt of these messages has more than {MAX_CHARS} characters", param="messages")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise BadRequest(
                    "the rendered prompt holds a lone surrogate, which is not text", param="messages"
                ) from error
        return text


def text_of(content: Any, separator: str = "") -> str:
    """The text of a message's content, a string or a list of parts. Raises BadRequest for parts of type thinking, whose
    place in the prompt is that of `reasoning`."""
    if isinstance(content, str):
        return content
    if any(part["type"] == "thinking" for part in content):
        raise BadRequest(
            "this model's prompt format has no content parts of type thinking; send them as `reasoning`",
            param="messages",
        )
    # A part that names a tool has no text but the name.
    return separator.join(part["text"] if "text" in part else part["name"] for part in content)


def says_something(message: Message) -> bool:
    """Whether a message of the assistant has a text, reasoning or calls."""
    return bool(message.get("reasoning") or message.get("tool_calls") or text_of(message["content"]))


def arguments_of(call: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The arguments of a tool call as an object. Raises BadRequest where their text is not that of an object."""
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments and not arguments.isspace() else {}
        except ValueError:
            arguments = None
    if not isinstance(arguments, dict):
        raise BadRequest(f"{place}: the arguments of {call['function']['name']!r} are not a JSON object", param=place)
    return arguments


def no_role(role: str, family: str, index: int) -> NoReturn:
    """Refuses a message whose role the family does not have."""
    raise BadRequest(f"{family} has no messages of role {role!r}", param=f"messages.{index}.role")
