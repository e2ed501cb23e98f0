"""Mistral's instruct format, of which each tokenizer version (v1 to v15) has its own.

The rules are those of mistral-common 1.13, as far as texts go: messages of one role that follow each other are one, the
system prompt and the tools stand where the version has them, and arguments and results are JSON as Python writes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import groupby
from typing import Any, NamedTuple

from derender.protocol.errors import BadRequest
from derender.template.coded.base import CodedTemplate, Message, to_json

_BOS, _EOS = "<s>", "</s>"
_BETWEEN = "\n\n"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID = re.compile(r"[a-zA-Z0-9]{9}")
_NO_MARKS = dict.fromkeys(range(0xFDD0, 0xFDF0))
_ID_LENGTH = 9
_FOLLOWERS = {
    "system": ("user", "assistant", "system"),
    "user": ("assistant", "system", "user"),
    "assistant": ("assistant", "user", "tool"),
    "tool": ("assistant", "tool", "user"),
}
VERSIONS = (1, 2, 3, 7, 11, 13, 15)


@dataclass(frozen=True)
class EffortRule:
    """The reasoning efforts of a v15 model; `default` is what a request without one gets, None for saying nothing."""

    values: tuple[str, ...]
    _: KW_ONLY
    optional: bool = True
    default: str | None = None


class _Chunk(NamedTuple):
    text: str
    thought: bool = False
    closed: bool = True


class _Turn(NamedTuple):
    """Messages of one role. `first`: the number of the first one. `call`: the id that a result is of; `name`: of its
    function."""

    role: str
    first: int
    chunks: list[_Chunk]
    calls: Sequence[Mapping[str, Any]] = ()
    call: str | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)


class Mistral(CodedTemplate):
    """`version`: of the tokenizer, one of VERSIONS. `blank`: what a piece of text begins with (sentencepiece puts a
    blank before each; " " where the tokenizer does not do so behind a special token). `thinks`: whether the vocabulary
    has [THINK] (v13 and later). Variables: `reasoning_effort`, where the model has it.
    """

    __slots__ = ("_blank", "_effort", "_thinks", "_version")

    NAME = "mistral"
    SOURCE = "[INST] [/INST]"
    VARIABLES = frozenset()

    def __init__(
        self, *, version: int, blank: str = "", thinks: bool = False, effort: EffortRule | None = None
    ) -> None:
        super().__init__()
        if version not in VERSIONS:
            raise ValueError(f"Mistral's tokenizers have no version v{version}")
        self.name = f"{self.NAME} v{version}"
        self.source = self.SOURCE + (" [TOOL_CALLS]" if version > 1 else "") + (" [THINK] [/THINK]" if thinks else "")
        self.variables = frozenset(("reasoning_effort",)) if effort is not None else frozenset()
        self._version = version
        self._blank = blank
        self._thinks = thinks and version >= 13
        self._effort = effort

    @property
    def reads_results(self) -> bool:
        return self._version in (2, 3)

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        continue_final_message: bool,
        options: Mapping[str, Any],
    ) -> str:
        version = self._version
        _check_order(messages, asks=add_generation_prompt)
        _check_results(messages, by_id=version >= 11, one_each=version == 2)
        if continue_final_message and messages[-1]["role"] != "assistant":
            raise BadRequest(
                "Cannot set `continue_final_message` to True when the last message is not from the assistant.",
                param="continue_final_message",
            )
        if tools and version == 1:
            raise BadRequest("this model's prompt format (Mistral v1) has no tools", param="tools")
        turns = self._turns(messages)
        users = [place for place, turn in enumerate(turns) if turn.role == "user"]
        first, last = (users[0], users[-1]) if users else (-1, -1)
        system = None
        if version < 7:
            system = _BETWEEN.join(turn.text for turn in self._systems(messages) if turn.text) or None
        settings = self._tools(tools) + self._settings(options)
        with_settings = first if version >= 13 else last
        with_system = first if version == 1 else last
        out = [_BOS]
        for place, turn in enumerate(turns):
            if turn.role == "user":
                text = turn.text
                if system is not None and place == with_system:
                    text = f"{system}{_BETWEEN}{text}"
                if settings and place == with_settings:
                    out.append(settings)
                if version == 1:  # no tokens, but text: also behind that of a user's message before it
                    out.append(f"{self._blank if out[-1] in (_BOS, _EOS) else ' '}[INST] {text} [/INST]")
                else:
                    out.append(f"[INST]{self._text(text)}[/INST]")
            elif turn.role == "system":
                out.append(f"[SYSTEM_PROMPT]{self._chunks(turn)}[/SYSTEM_PROMPT]")
            elif turn.role == "tool":
                out.append("" if version == 2 and place < last else self._result(turn))
            elif version != 2 or not turn.calls or place > last:
                out.append(self._assistant(turn))
                if not (continue_final_message and place == len(turns) - 1):
                    out.append(_EOS)
        return "".join(out)

    # ------------------------------------------------------------------------------------------------- messages

    def _turns(self, messages: Sequence[Message]) -> list[_Turn]:
        """The turns, without the system messages where they go into a user's. Results of calls that have ids stand in
        the order of the calls from v11 on."""
        version = self._version
        turns: list[_Turn] = []
        order: dict[str | None, int] = {}
        for role, group in groupby(enumerate(messages), key=lambda one: _role(one[1])):
            run = list(group)
            if role == "tool":
                results = [self._tool(index, message) for index, message in run]
                if version >= 11:
                    results.sort(key=lambda turn: order.get(turn.call, len(order)))
                turns += results
            elif role == "system":
                turns += self._systems(message for _, message in run) if version >= 7 else ()
            else:
                calls = [
                    self._call(call, f"messages.{index}.tool_calls.{number}")
                    for index, message in run
                    for number, call in enumerate(message.get("tool_calls") or ())
                ]
                index = run[0][0]
                turn = _Turn(role, index, self._joined([message for _, message in run], index), calls)
                if role == "assistant":
                    self._check_assistant(turn)
                    order = {call["id"]: number for number, call in enumerate(calls)}
                turns.append(turn)
        if not turns or (version < 7 and turns[0].role != "user"):
            turns.insert(0, _Turn("user", 0, []))
        return turns

    def _systems(self, messages: Any) -> list[_Turn]:
        return [_Turn("system", 0, self._joined([message], 0)) for message in messages if _role(message) == "system"]

    def _joined(self, messages: Sequence[Message], index: int) -> list[_Chunk]:
        """What messages have to say, neighbouring texts as one."""
        within = _BETWEEN if self._version < 15 else ""
        found: list[_Chunk] = []
        for message in messages:
            between = _BETWEEN
            for chunk in _chunks(message, index):
                if chunk.thought:
                    if not (chunk.text or self._thinks):
                        continue
                    if not self._thinks or message["role"] == "user":
                        raise BadRequest(
                            "this model's prompt format has no place for reasoning here", param=f"messages.{index}"
                        )
                    found.append(chunk)
                elif chunk.text:
                    if found and not found[-1].thought:
                        found[-1] = _Chunk(f"{found[-1].text}{between}{chunk.text}")
                    else:
                        found.append(chunk)
                    between = within
        return found

    def _call(self, call: Mapping[str, Any], place: str) -> dict[str, Any]:
        """A call with its arguments as a value; text that is no JSON stays text."""
        name = call["function"]["name"]
        _check_name(name, f"{place}.function.name")
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str):
            arguments = _value(arguments or "{}")
        return {"name": name, "arguments": arguments, "id": self._id(call["id"], f"{place}.id")}

    def _tool(self, index: int, message: Message) -> _Turn:
        name = message.get("name")
        if name is not None:
            _check_name(name, f"messages.{index}.name")
        call = self._id(message.get("tool_call_id"), f"messages.{index}.tool_call_id")
        return _Turn("tool", index, self._joined([message], index), call=call, name=name)

    def _id(self, given: str | None, place: str) -> str | None:
        """The id of a call, its last nine characters (vllm's rule for clients that make longer ones)."""
        if self._version < 3:
            return given
        if not given:
            raise BadRequest(f"{place}: a call's id is required", param=place)
        given = given[-_ID_LENGTH:]
        if self._version < 13 and not _ID.fullmatch(given):
            raise BadRequest(
                f"{place}: this model's ids of calls are 9 letters (a-z, A-Z) or digits, not {given!r}", param=place
            )
        return given

    def _check_assistant(self, turn: _Turn) -> None:
        if self._version < 7 and turn.chunks and turn.calls:
            raise BadRequest(
                f"messages.{turn.first}: this model's prompt format has no message with both content and tool_calls",
                param=f"messages.{turn.first}",
            )
        if self._version == 1 and turn.calls:
            raise BadRequest(
                "this model's prompt format (Mistral v1) has no tools", param=f"messages.{turn.first}.tool_calls"
            )
        if not turn.chunks and not turn.calls:
            raise BadRequest(
                f"messages.{turn.first}: an assistant's message must have content or tool_calls",
                param=f"messages.{turn.first}.content",
            )

    # ---------------------------------------------------------------------------------------------------- pieces

    def _text(self, text: str) -> str:
        return f"{self._blank}{text}" if text else ""

    def _chunks(self, turn: _Turn) -> str:
        return "".join(
            f"[THINK]{self._text(chunk.text)}{'[/THINK]' if chunk.closed else ''}"
            if chunk.thought
            else self._text(chunk.text)
            for chunk in turn.chunks
        )

    def _assistant(self, turn: _Turn) -> str:
        version = self._version
        if version == 1:
            return f" {turn.text}"  # behind the text [/INST], not behind a token
        thinks = any(chunk.thought for chunk in turn.chunks)
        text = self._chunks(turn) if thinks else self._text(turn.text.rstrip(" "))
        if not turn.calls:
            return text
        if version < 11:
            kept = ("name", "arguments") if version == 2 else ("name", "arguments", "id")
            listed = [{key: call[key] for key in kept if call[key] != "null"} for call in turn.calls]
            return f"{text}[TOOL_CALLS]{self._text(to_json(listed))}"
        for call in turn.calls:
            called = f"[CALL_ID]{self._text(call['id'])}" if version == 11 else ""
            text += (
                f"[TOOL_CALLS]{self._text(call['name'])}{called}[ARGS]{self._text(to_json(call['arguments']))}"
            )  # fmt: skip
        return text

    def _result(self, turn: _Turn) -> str:
        version, text = self._version, turn.text
        if version == 1:
            raise BadRequest("this model's prompt format (Mistral v1) has no tools", param=f"messages.{turn.first}")
        if version == 2:
            body = self._text(to_json([{"name": turn.name, "content": _value(text or "{}")}]))
        elif version == 3:
            body = self._text(to_json({"content": _value(text or "{}"), "call_id": turn.call}))
        elif version < 13:
            body = f"{self._text(turn.call or '')}[TOOL_CONTENT]{self._text(text)}"
        else:
            body = self._text(text)
        return f"[TOOL_RESULTS]{body}[/TOOL_RESULTS]"

    def _tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        if not tools:
            return ""
        listed = []
        for number, tool in enumerate(tools):
            function = tool["function"]
            _check_name(function["name"], f"tools.{number}.function.name")
            stated = {
                "name": function["name"],
                "description": function.get("description") or "",
                "parameters": function.get("parameters") or {},
            }
            listed.append({"type": "function", "function": stated})
        return f"[AVAILABLE_TOOLS]{self._text(to_json(listed))}[/AVAILABLE_TOOLS]"

    def _settings(self, options: Mapping[str, Any]) -> str:
        rule = self._effort
        if rule is None or self._version < 15:
            return ""
        effort = options.get("reasoning_effort")
        if effort is None:
            if not rule.optional:
                raise BadRequest("reasoning_effort should be set for this model.", param="reasoning_effort")
            effort = rule.default
        elif effort not in rule.values:
            raise BadRequest(f"reasoning_effort must be one of {', '.join(rule.values)}", param="reasoning_effort")
        if effort is None:
            return ""
        return f"[MODEL_SETTINGS]{self._text(to_json({'reasoning_effort': effort}))}[/MODEL_SETTINGS]"


def _check_name(name: str, place: str) -> None:
    """Refuses what is no function's name; marks in it by which the places of texts are found are let through."""
    if not _NAME.fullmatch(name.translate(_NO_MARKS)):
        raise BadRequest(f"{place}: a function's name must be 1 to 64 of a-z, A-Z, 0-9, _ and -", param=place)


def _role(message: Message) -> str:
    role: str = message["role"]
    return "system" if role == "developer" else role


def _chunks(message: Message, index: int) -> list[_Chunk]:
    content = message["content"]
    parts: Sequence[Mapping[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    chunks = [
        _Chunk(part["thinking"], thought=True, closed=bool(part["closed"]))
        if part["type"] == "thinking"
        else _Chunk(part["text"] if "text" in part else part["name"])
        for part in parts
    ]
    reasoning = message.get("reasoning")
    if reasoning is not None:
        if any(chunk.thought for chunk in chunks):
            raise BadRequest(
                "a message cannot have both parts of type thinking and reasoning", param=f"messages.{index}"
            )
        chunks.insert(0, _Chunk(reasoning, thought=True))
    return chunks


def _value(text: str) -> Any:
    """The JSON value of a text, the text itself where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _check_order(messages: Sequence[Message], *, asks: bool) -> None:
    """Refuses roles that cannot follow each other. `asks`: an answer is asked for, to what is not the assistant's."""
    before = None
    for index, message in enumerate(messages):
        role = _role(message)
        if role not in _FOLLOWERS:
            raise BadRequest(f"Mistral has no messages of role {role!r}", param=f"messages.{index}.role")
        if before is not None and role not in _FOLLOWERS[before]:
            raise BadRequest(f"Unexpected role '{role}' after role '{before}'", param=f"messages.{index}.role")
        if before is None and role == "tool":
            raise BadRequest("a conversation cannot begin with a tool's message", param="messages.0.role")
        before = role
    if asks and before == "assistant":
        raise BadRequest(
            "Cannot set `add_generation_prompt` to True when the last message is from the assistant. Consider using "
            "`continue_final_message` instead.",
            param="add_generation_prompt",
        )


def _check_results(messages: Sequence[Message], *, by_id: bool, one_each: bool) -> None:
    """Refuses results that are not those of the calls before them. `one_each`: of the calls that the prompt shows,
    those after the last message of the user, each message of the assistant may have one."""
    calls: set[str] = set()
    due = 0
    results: list[str] = []
    last_user = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=0)
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            results.append((message.get("tool_call_id") or "")[-_ID_LENGTH:])
            if by_id and (results[-1] not in calls or results.count(results[-1]) > 1):
                raise BadRequest(
                    f"messages.{index}: the result of no call before it, or a second result",
                    param=f"messages.{index}.tool_call_id",
                )
            if one_each and len(results) > 1 and index > last_user:
                raise BadRequest(
                    f"messages.{index}: this model's prompt format (Mistral v2) has one result of a call for each "
                    "message of the assistant",
                    param=f"messages.{index}",
                )
        elif message["role"] == "assistant":
            if due != len(results):
                raise BadRequest("Not the same number of function calls and responses", param=f"messages.{index}")
            made = message.get("tool_calls") or ()
            calls, due, results = {call["id"][-_ID_LENGTH:] for call in made}, len(made), []
            if by_id and len(calls) < due:
                raise BadRequest("two calls have the same id", param=f"messages.{index}.tool_calls")
