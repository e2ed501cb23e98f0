"""DeepSeek V4 and V4.1. Results of calls are blocks of the user's turn, and how long to think is said in words.

The two differ in a few rules, which `_Rules` has, and in the names of DSML's tags.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from derender.protocol.errors import BadRequest
from derender.template.coded.base import CodedTemplate, Message, no_role, text_of
from derender.template.coded.dsml import (
    ASSISTANT,
    BOS,
    EOS,
    SCHEMAS,
    THINK,
    THOUGHT,
    USER,
    Dsml,
    call_arguments,
    check_continued,
    functions_of,
    thinks,
)

_SYSTEM = "<｜System｜>"
_REMINDER = "<｜latest_reminder｜>"
_TASKS = ("action", "query", "authority", "domain", "title", "read_url")
"""Small jobs of DeepSeek's own, asked for by a message's `task`; each has a token."""

_INTRODUCTION = f"""## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜SECTION>" block like the following:

<｜DSML｜SECTION>
<｜DSML｜INVOKE name="$TOOL_NAME">
<｜DSML｜PARAMETER name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜PARAMETER>
...
</｜DSML｜INVOKE>
<｜DSML｜INVOKE name="$TOOL_NAME2">
...
</｜DSML｜INVOKE>
</｜DSML｜SECTION>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{SCHEMAS}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""  # noqa: E501

_EFFORTS = {
    "low": "",
    "high": (
        "Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST be very thorough in your thinking "
        "and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic "
        "against all potential paths, edge cases, and adversarial scenarios.\nExplicitly write out your entire "
        "deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis "
        "to ensure absolutely no assumption is left unchecked.\n\n"
    ),
    "max": (
        "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\nYou MUST reason with the "
        "utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its "
        "most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather "
        "than any surface symptom.\nDo not stop reasoning until you have independently verified the solution from "
        "multiple angles and are certain that no assumption remains unchecked and no error remains undiscovered.\n\n"
    ),
}
_LOW_EFFORTS = ("low", "minimal", "medium")
_EFFORT_NUMBERS = {"low": 50, "high": 75, "xhigh": 75, "max": 100}


def _dsml(section: str, invoke: str, parameter: str) -> Dsml:
    text = _INTRODUCTION.replace("SECTION", section).replace("INVOKE", invoke).replace("PARAMETER>", f"{parameter}>")
    text = text.replace("｜PARAMETER ", f"｜{parameter} ")
    return Dsml(section=section, invoke=invoke, parameter=parameter, introduction=text)


def _effort_v4(effort: Any) -> str:
    if not isinstance(effort, str):
        return _EFFORTS["high"]
    return _EFFORTS["max" if effort == "max" else "low" if effort in _LOW_EFFORTS else "high"]


def _effort_v41(effort: Any) -> str:
    number = _EFFORT_NUMBERS.get(effort) if isinstance(effort, str) else effort
    if type(number) is not int or not 1 <= number <= 100:
        raise BadRequest(
            "reasoning_effort must be low, high, xhigh, max, or an integer from 1 to 100", param="reasoning_effort"
        )
    return f"Reasoning Effort: {number} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"


@dataclass(frozen=True, kw_only=True)
class _Rules:
    """`effort`: the words for an effort. `system`: what begins a system message. `system_turns`: system messages after
    the first ask for an answer as a user's do."""

    dsml: Dsml
    effort: Callable[[Any], str]
    system: str = ""
    system_turns: bool = False


@dataclass
class _Turn:
    """One message, or a user's messages and the results of calls beside them as one."""

    role: str
    index: int
    message: Message
    blocks: list[tuple[str | None, str]] = field(default_factory=list)
    """(id of the call that a result is of, text) or (None, text of the user)."""

    tools: Sequence[Mapping[str, Any]] = ()

    @property
    def task(self) -> str | None:
        return self.message.get("task") if self.role != "user" or self.message["role"] == "user" else None


class _Deepseek(CodedTemplate):
    __slots__ = ()

    RULES: _Rules
    VARIABLES = frozenset(("thinking", "enable_thinking", "reasoning_effort", "drop_thinking"))

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        continue_final_message: bool,
        options: Mapping[str, Any],
    ) -> str:
        rules = self.RULES
        effort = options.get("reasoning_effort", "high")
        thinking = thinks(options, default=True) and effort != "none"
        prefix = rules.effort("high" if effort == "none" else effort)
        if continue_final_message:
            check_continued(messages)
        turns = _turns(messages, tools)
        drops = bool(options.get("drop_thinking", True)) and not any(turn.tools for turn in turns)
        if thinking and drops:
            last_user = _last_user(turns, rules)
            turns = [turn for place, turn in enumerate(turns) if place >= last_user or turn.role in _KEPT]
        last_user = _last_user(turns, rules)
        last = len(turns) - 1
        out = [BOS]
        if thinking and prefix:
            out.append(f"{rules.system}{prefix}")
        elif turns[0].role == "system":
            out.append(rules.system)
        for place, turn in enumerate(turns):
            if turn.role == "system":
                out.append(f"{rules.system if place else ''}{text_of(turn.message['content'], _BETWEEN)}")
                out.append(_tools(turn, rules.dsml))
            elif turn.role == "developer":
                text = text_of(turn.message["content"], _BETWEEN)
                if not text:
                    raise BadRequest("a developer's message must have a text", param=f"messages.{turn.index}.content")
                out.append(f"{USER}{text}{_tools(turn, rules.dsml)}")
            elif turn.role == "user":
                out.append(USER + _BETWEEN.join(_block(call, text) for call, text in turn.blocks))
            elif turn.role == "latest_reminder":
                out.append(f"{_REMINDER}{text_of(turn.message['content'], _BETWEEN)}")
            elif turn.role == "assistant":
                after_task = place > 0 and turns[place - 1].task is not None
                thought = thinking and not after_task and (not drops or place > last_user)
                out.append(self._assistant(turn, thought=thought))
                if not (continue_final_message and place == last):
                    out.append(EOS)
            else:
                no_role(turn.role, self.NAME, turn.index)
            following = turns[place + 1].role if place < last else None
            if following in (None, "assistant", "latest_reminder") and (add_generation_prompt or place < last):
                mark = THINK if thinking and (not drops or place >= last_user or turn.task is not None) else THOUGHT
                out.append(_opening(turn, following, place, rules, mark))
        return "".join(out)

    def _assistant(self, turn: _Turn, *, thought: bool) -> str:
        message = turn.message
        calls = message.get("tool_calls")
        reasoning = f"{message.get('reasoning') or ''}{THOUGHT}" if thought else ""
        written = f"\n\n{self.RULES.dsml.calls(calls, self._arguments(message, turn.index))}" if calls else ""
        return f"{reasoning}{text_of(message['content'], _BETWEEN)}{written}"

    def _arguments(self, message: Message, index: int) -> list[dict[str, Any]]:
        return call_arguments(message, index)


class DeepseekV4(_Deepseek):
    """Variables: `thinking` or `enable_thinking`, on by default; `reasoning_effort` (none, low, high, max);
    `drop_thinking`: false keeps the reasoning of earlier turns, as a conversation with tools always does."""

    __slots__ = ()

    NAME = "deepseek_v4"
    RULES = _Rules(dsml=_dsml("tool_calls", "invoke", "parameter"), effort=_effort_v4)
    SOURCE = RULES.dsml.source
    CONTENT_FORMAT = "openai"


class DeepseekV41(_Deepseek):
    """As V4; `reasoning_effort` may be a number from 1 to 100."""

    __slots__ = ()

    NAME = "deepseek_v41"
    RULES = _Rules(
        dsml=_dsml(" calls", " invoke", " parameter"), effort=_effort_v41, system=_SYSTEM, system_turns=True
    )  # fmt: skip
    SOURCE = RULES.dsml.source

    def _arguments(self, message: Message, index: int) -> list[dict[str, Any]]:
        return [_lenient(call["function"]["arguments"]) for call in message["tool_calls"]]


_BETWEEN = "\n\n"
_KEPT = ("user", "system", "latest_reminder", "direct_search_results", "assistant")


def _turns(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[_Turn]:
    """The turns, results in the order of their calls. The request's tools are those of the first system message."""
    turns: list[_Turn] = []
    order: dict[str, int] = {}
    for index, message in enumerate(messages):
        role = message["role"]
        before = turns[-1] if turns and turns[-1].role == "user" else None
        if role == "tool":
            if before is None:
                before = _Turn("user", index, message)
                turns.append(before)
            before.blocks.append((message.get("tool_call_id") or "", text_of(message["content"], _BETWEEN)))
        elif role == "user":
            if before is None or before.task is not None:
                before = _Turn("user", index, message)
                turns.append(before)
            before.blocks.append((None, text_of(message["content"], _BETWEEN)))
        else:
            turns.append(_Turn(role, index, message, tools=message.get("tools") or ()))
    if tools:
        first = next((turn for turn in turns if turn.role == "system"), None)
        if first is None:
            first = _Turn("system", 0, {"role": "system", "content": ""})
            turns.insert(0, first)
        first.tools = tools
    for turn in turns:
        if turn.role == "assistant" and (calls := turn.message.get("tool_calls")):
            order = {call["id"]: place for place, call in enumerate(calls) if call["id"]}
        elif turn.role == "user" and order:
            results = sorted(
                (one for one in turn.blocks if one[0] is not None), key=lambda one: order.get(one[0] or "", 0)
            )
            sorted_results = iter(results)
            turn.blocks = [one if one[0] is None else next(sorted_results) for one in turn.blocks]
    return turns


def _last_user(turns: Sequence[_Turn], rules: _Rules) -> int:
    for place in range(len(turns) - 1, -1, -1):
        role = turns[place].role
        if role in ("user", "developer") or (rules.system_turns and role == "system" and place > 0):
            return place
    return -1


def _tools(turn: _Turn, dsml: Dsml) -> str:
    return f"\n\n{dsml.tools(functions_of(turn.tools))}" if turn.tools else ""


def _block(call: str | None, text: str) -> str:
    return text if call is None else f"<tool_result>{text}</tool_result>"


def _opening(turn: _Turn, following: str | None, place: int, rules: _Rules, mark: str) -> str:
    """What opens the answer to a turn: the assistant's token with `mark`, or that of a task."""
    task = turn.task
    if task is not None:
        if task not in _TASKS:
            raise BadRequest(f"task must be one of {', '.join(_TASKS)}", param=f"messages.{turn.index}.task")
        token = f"<｜{task}｜>"
        return token if task != "action" else f"{ASSISTANT}{mark}{token}"
    asks = turn.role in ("user", "developer")
    if turn.role == "system":
        asks = place > 0 if rules.system_turns else following in (None, "assistant")
    return f"{ASSISTANT}{mark}" if asks else ""


def _lenient(arguments: Any) -> dict[str, Any]:
    """The arguments of a call, also where they were made JSON twice; what is no object is shown as one argument."""
    found = arguments
    for _ in range(2):
        if isinstance(found, str):
            try:
                found = json.loads(found)
            except ValueError:
                break
    return found if isinstance(found, dict) else {"arguments": arguments}
