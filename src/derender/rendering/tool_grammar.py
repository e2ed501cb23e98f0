"""Structural tags: what holds a guided engine to the calls that a request demands, in the model's own way of writing.

The tags are those that vLLM and xgrammar use for the same families, so that an engine that compiled one finds it in
its cache. A tool that is not `strict` is held to its name only; its arguments may be any JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from derender.formats.table import OutputFormat
from derender.protocol.chat import ChatCompletionRequest, NamedToolChoice, Tool
from derender.protocol.common import Json, StructuredOutputs
from derender.rendering.structured import json_tool_constraint

StrictLevel = Literal["auto", "function", "parameter"]
"""`--tool-strict-level`: which calls are held to a form where the model chooses whether to call. "auto": those of
requests with a `strict` tool. "function": all, to their names. "parameter": all, to their schemas as well."""

_THINK = ("<think>", "</think>")


class ToolGrammar(msgspec.Struct, frozen=True, kw_only=True):
    """How one family's calls are told to a guided engine.

    `begin`, `end`: around the arguments, `{name}` standing for the tool; several pairs are several spellings.
    `section`: around all calls; `lead`: what goes before it where calls are demanded. `index`: the name is followed by
    a number and this literal. `free`: text may go before demanded calls. `excludes`: what other text must not hold.
    """

    calls: tuple[tuple[str, str], ...]
    style: str = "json"
    section: tuple[str, str] | None = None
    lead: str = ""
    separator: str = ""
    index: str = ""
    free: bool = False
    trigger: str = ""
    excludes: tuple[str, ...] = _THINK


def _json_in(tag: str) -> ToolGrammar:
    head = '{{"name": "{name}", "arguments": '
    return ToolGrammar(
        calls=((f"<{tag}>\n{head}", f"}}}}\n</{tag}>"), (f"<{tag}>{head}", f"}}}}</{tag}>")),
        trigger=f"<{tag}>",
        excludes=(),
    )


def _deepseek(begin: str, end: str, separator: str = "") -> ToolGrammar:
    return ToolGrammar(
        calls=((f"<｜tool▁call▁begin｜>{begin}", f"{end}<｜tool▁call▁end｜>"),),
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        separator=separator,
    )


def _invoke(section: str, *, mark: str, style: str, lead: str) -> ToolGrammar:
    return ToolGrammar(
        calls=((f'<{mark}invoke name="{{name}}">\n', f"</{mark}invoke>\n"),),
        style=style,
        section=(f"<{section}>\n", f"</{section}>"),
        lead=lead,
        trigger=f"<{section}>",
    )


GRAMMARS: dict[str, ToolGrammar] = {
    "hermes": _json_in("tool_call"),
    "longcat": _json_in("longcat_tool_call"),
    "qwen_3_coder": ToolGrammar(
        calls=(("<tool_call>\n<function={name}>\n", "\n</function>\n</tool_call>"),),
        style="qwen_xml",
        free=True,
        trigger="<tool_call>\n<function=",
    ),
    "mimo": ToolGrammar(
        calls=(("<tool_call><function={name}>", "</function></tool_call>"),),
        style="qwen_xml",
        free=True,
        trigger="<tool_call>",
        excludes=(*_THINK, "</tool_call>", "<function="),
    ),
    "llama": ToolGrammar(
        calls=(('{{"name": "{name}", "parameters": ', "}}"),),
        free=True,
        trigger='{"name": ',
    ),
    "glm_4_7": ToolGrammar(
        calls=(("<tool_call>{name}", "</tool_call>"),),
        style="glm_xml",
        trigger="<tool_call>",
        excludes=(*_THINK, "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "kimi": ToolGrammar(
        calls=(("<|tool_call_begin|>functions.{name}:", "<|tool_call_end|>"),),
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        index="<|tool_call_argument_begin|>",
        excludes=(*_THINK, "<|tool_call_begin|>"),
    ),
    "deepseek_r1": _deepseek("function<｜tool▁sep｜>{name}\n```json\n", "\n```", "\n"),
    "deepseek_v3_1": _deepseek("{name}<｜tool▁sep｜>", ""),
    "deepseek_v3_2": _invoke("｜DSML｜function_calls", mark="｜DSML｜", style="deepseek_xml", lead="\n\n"),
    "deepseek_v4": _invoke("｜DSML｜tool_calls", mark="｜DSML｜", style="deepseek_xml", lead="\n\n"),
    "minimax": _invoke("minimax:tool_call", mark="", style="minimax_xml", lead="\n"),
}
"""By the name that vLLM and xgrammar give the family (`Calls.structural_tag`)."""


class ToolConstraints:
    """What holds the output to the tools of a request, for one output format; without a format, to JSON. Raises
    BadRequest as `json_tool_constraint` does."""

    def __init__(self, table: OutputFormat | None, *, level: StrictLevel = "auto") -> None:
        tags = [calls.structural_tag for calls in table.calls if calls.structural_tag] if table is not None else []
        self._grammar = GRAMMARS.get(tags[0]) if tags else None
        self._json = table is None or not table.native_only
        self._level = level

    def __call__(self, request: ChatCompletionRequest) -> StructuredOutputs | None:
        """The constraint; None where the calls are left free."""
        choice = request.effective_tool_choice
        if choice == "none":
            return None
        if self._grammar is None:
            return json_tool_constraint(request) if self._json else None
        single = request.parallel_tool_calls is False
        tools: Sequence[Tool] = request.tools or ()
        auto = choice == "auto"
        if auto:
            asked = request.response_format is not None and request.response_format.type != "text"
            if asked or request.structured_outputs is not None:
                return None  # what the client asked for holds the whole output
            if self._level == "auto" and not single and not any(tool.function.strict for tool in tools):
                return None
        if isinstance(choice, NamedToolChoice):
            tools = [tool for tool in tools if tool.function.name == choice.function.name]
            single = True
        calls = [call for tool in tools for call in self._calls(tool, self._grammar)]
        form = (_offered if auto else _demanded)(self._grammar, calls, single=single)
        tag = {"type": "structural_tag", "format": form}
        return StructuredOutputs(structural_tag=json.dumps(tag, ensure_ascii=False))

    def _calls(self, tool: Tool, grammar: ToolGrammar) -> list[Json]:
        held = self._level == "parameter" or tool.function.strict is True
        parameters = tool.function.parameters
        schema: Any = parameters if held and parameters is not None else True
        content: Json = {
            "type": "json_schema",
            "json_schema": schema,
            "style": grammar.style,
            "any_order": False,
            "max_whitespace_cnt": None,
            "excludes": [],
        }
        if schema is True and grammar.style == "glm_xml":  # pairs of tags have no form for "any JSON"
            content = {"type": "any_text", "excludes": [*_THINK, "<tool_call>", "</tool_call>"]}
        if grammar.index:
            number = {"type": "regex", "pattern": r"\d+"}
            content = {"type": "sequence", "elements": [number, _literal(grammar.index), content]}
        name = tool.function.name
        return [
            {"type": "tag", "begin": begin.format(name=name), "content": content, "end": end.format()}
            for begin, end in grammar.calls
        ]


def _literal(text: str) -> Json:
    return {"type": "const_string", "value": text}


def _chain(grammar: ToolGrammar, calls: list[Json], *, single: bool) -> Json:
    """One or more calls, one after another."""
    return {
        "type": "tags_with_separator",
        "tags": calls,
        "separator": grammar.separator,
        "at_least_one": True,
        "stop_after_first": single,
    }


def _demanded(grammar: ToolGrammar, calls: list[Json], *, single: bool) -> Json:
    if grammar.section is not None:
        begin, end = grammar.section
        chain = _chain(grammar, calls, single=single)
        return {"type": "sequence", "elements": [_literal(grammar.lead + begin), chain, _literal(end)]}
    if grammar.free and not single:
        return _triggered(grammar, calls, at_least_one=True, single=False)
    return _chain(grammar, calls, single=single)


def _offered(grammar: ToolGrammar, calls: list[Json], *, single: bool) -> Json:
    if grammar.section is not None:
        begin, end = grammar.section
        calls = [{"type": "tag", "begin": begin, "content": _chain(grammar, calls, single=single), "end": end}]
    return _triggered(grammar, calls, at_least_one=False, single=single)


def _triggered(grammar: ToolGrammar, calls: list[Json], *, at_least_one: bool, single: bool) -> Json:
    return {
        "type": "triggered_tags",
        "triggers": [grammar.trigger or (grammar.section or ("",))[0]],
        "tags": calls,
        "at_least_one": at_least_one,
        "stop_after_first": single,
        "excludes": list(grammar.excludes),
    }
