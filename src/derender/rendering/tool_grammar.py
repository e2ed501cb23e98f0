"""Structural tags: what holds a guided engine to the calls that a request demands, in the model's own way of writing.

The tags are those that vLLM 0.32 and xgrammar use for the same families, to the letter, so that an engine that compiled
one finds it in its cache. A tool that is not `strict` is held to its name only; its arguments may be any JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from derender.formats.pairs import SUFFIXES
from derender.formats.table import Calls, OutputFormat
from derender.protocol.chat import ChatCompletionRequest, NamedToolChoice, Tool
from derender.protocol.common import Json, StructuredOutputs
from derender.protocol.errors import BadRequest
from derender.rendering.answer_form import binding, form_of, readable
from derender.rendering.family_tags import (
    Choice,
    Grammar,
    glm,
    harmony,
    harmony_answer,
    hunyuan_4,
    kimi_k3,
    plamo_3,
)
from derender.rendering.structured import constraint_of, json_tool_constraint
from derender.rendering.tag_nodes import (
    HeldTool,
    chain,
    either,
    json_schema,
    literal,
    pattern,
    sequence,
    single_call,
    structural_tag,
    tag,
    triggered,
)

StrictLevel = Literal["auto", "function", "parameter"]
"""`--tool-strict-level`: which calls are held to a form where the model chooses whether to call. "auto": those of
requests with a `strict` tool. "function": all, to their names. "parameter": all, to their schemas as well."""

_THINK = ("<think>", "</think>")


class ToolGrammar(msgspec.Struct, frozen=True, kw_only=True):
    """How one family's calls are told to a guided engine, where their arguments stand between two strings.

    `begin`, `end`: around the arguments, `{name}` standing for the tool; several pairs are several spellings.
    `section`: around all calls; `lead`: what goes before it where calls are demanded. `index`: the name is followed by
    a number and this literal. `free`: text may go before demanded calls. `excludes`: what other text must not hold.
    `joined`: the section is a tag of its own, and one with the call of a named tool. `listed`: the call of a named tool
    is a list that ends after the first.
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
    joined: bool = False
    listed: bool = False

    def __call__(self, tools: Sequence[HeldTool], choice: Choice) -> Json:
        """The form of a structural tag."""
        calls = [call for tool in tools for call in self._calls(tool)]
        if choice == "auto":
            if self.section is not None:
                calls = [tag(self.section[0], chain(calls, separator=self.separator), self.section[1])]
            return self._triggered(calls, at_least_one=False)
        one = choice == "named" and not self.listed
        if self.section is None:
            if one:
                return calls[0]
            return self._triggered(calls, at_least_one=True) if self.free else chain(calls, single=choice == "named")
        begin, end = self.section
        if one and self.joined:
            return tag(begin + calls[0]["begin"], calls[0]["content"], calls[0]["end"] + end)
        body = calls[0] if one else chain(calls, separator=self.separator, single=choice == "named")
        return tag(begin, body, end) if self.joined else sequence(literal(self.lead + begin), body, literal(end))

    def _calls(self, tool: HeldTool) -> list[Json]:
        content = json_schema(tool.schema, style=self.style)
        if self.index:
            content = sequence(pattern(r"\d+"), literal(self.index), content)
        return [tag(begin.format(name=tool.name), content, end.format()) for begin, end in self.calls]

    def _triggered(self, calls: list[Json], *, at_least_one: bool) -> Json:
        trigger = self.trigger or (self.section or ("",))[0]
        return triggered([trigger], calls, at_least_one=at_least_one, excludes=self.excludes)


def _json_in(name: str) -> ToolGrammar:
    head = '{{"name": "{name}", "arguments": '
    return ToolGrammar(
        calls=((f"<{name}>\n{head}", f"}}}}\n</{name}>"), (f"<{name}>{head}", f"}}}}</{name}>")),
        trigger=f"<{name}>",
        excludes=(),
        listed=True,
    )


def _deepseek(begin: str, end: str, separator: str = "") -> ToolGrammar:
    return ToolGrammar(
        calls=((f"<｜tool▁call▁begin｜>{begin}", f"{end}<｜tool▁call▁end｜>"),),
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        separator=separator,
        joined=True,
    )


def _invoke(section: str, *, mark: str = "", style: str, lead: str, listed: bool = False) -> ToolGrammar:
    return ToolGrammar(
        calls=((f'<{mark}invoke name="{{name}}">\n', f"</{mark}invoke>\n"),),
        style=style,
        section=(f"<{mark}{section}>\n", f"</{mark}{section}>"),
        lead=lead,
        trigger=f"<{mark}{section}>",
        listed=listed,
    )


GRAMMARS: dict[str, Grammar] = {
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
    "glm_4_7": glm,
    "kimi": ToolGrammar(
        calls=(("<|tool_call_begin|>functions.{name}:", "<|tool_call_end|>"),),
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        index="<|tool_call_argument_begin|>",
        excludes=(*_THINK, "<|tool_call_begin|>"),
    ),
    "deepseek_r1": _deepseek("function<｜tool▁sep｜>{name}\n```json\n", "\n```", "\n"),
    "deepseek_v3_1": _deepseek("{name}<｜tool▁sep｜>", ""),
    "deepseek_v3_2": _invoke("function_calls", mark="｜DSML｜", style="deepseek_xml", lead="\n\n"),
    "deepseek_v4": _invoke("tool_calls", mark="｜DSML｜", style="deepseek_xml", lead="\n\n"),
    "deepseek_v4_1": _invoke("calls", mark="｜DSML｜ ", style="deepseek_v4_1_xml", lead="\n\n"),
    "minimax": _invoke("minimax:tool_call", style="minimax_xml", lead="\n", listed=True),
    "kimi_k3": kimi_k3,
    **{f"hy_v4{suffix}": hunyuan_4(suffix) for suffix in SUFFIXES},
    "plamo3": plamo_3,
    "harmony": harmony,
}
"""By the name that vLLM and xgrammar give the family (`Calls.structural_tag`), Hunyuan's with its tags' suffix."""

ANSWERS: dict[str, Callable[[Json], Json]] = {"harmony": harmony_answer}
"""By the same names, the form of an output whose answer has a form. For families that are not here an engine takes the
answer for all that comes after the reasoning."""


class ToolConstraints:
    """What holds the output to the tools of a request, for one output format; without a format, to JSON.

    `has_token` tells which spelling of a family's markers the vocabulary has; without it, the first is taken. Raises
    BadRequest as `constraint_of` and `json_tool_constraint` do.
    """

    def __init__(
        self,
        table: OutputFormat | None,
        *,
        level: StrictLevel = "auto",
        has_token: Callable[[str], bool] | None = None,
    ) -> None:
        name = _tag_name(table.calls if table is not None else (), has_token)
        self._grammar = GRAMMARS.get(name)
        self._answer = ANSWERS.get(name)
        self._json = table is None or not table.native_only
        self._level = level

    def __call__(self, request: ChatCompletionRequest) -> StructuredOutputs | None:
        """The constraint; None where the calls are left free, and what the client asked for holds as it is.

        Of a family whose answer is one of several messages, what the client asked for becomes the form of that one.
        """
        choice = request.effective_tool_choice
        calls = bool(request.tools) and choice is not None and choice != "none"
        if calls and self._grammar is None:
            return json_tool_constraint(request) if self._json else None
        asked = constraint_of(request)
        if not calls or self._grammar is None:
            return self._wrapped(asked)
        if choice == "auto":
            return self._offered(request, self._grammar, asked) or self._wrapped(asked)
        return self._demanded(request, self._grammar)

    def untagged(self, request: ChatCompletionRequest) -> StructuredOutputs | None:
        """The same for an engine that knows no structural tags: demanded calls as JSON, which derender reads as well.

        None where nothing need hold the output: a tag that only keeps the model to one call is done without, since
        derender gives the first call alone. Raises BadRequest where nothing but a tag does what was asked for.
        """
        asked = constraint_of(request)
        choice = request.effective_tool_choice
        if not request.tools or choice is None or choice == "none" or (asked is not None and asked.structural_tag):
            raise _needs_tags("the form of the answer")
        if choice != "auto":
            if self._json:
                return json_tool_constraint(request)
            raise _needs_tags("a demanded tool call")
        if self._level != "auto" or any(tool.function.strict for tool in request.tools):
            raise _needs_tags("strict tools")
        if self._answer is not None and asked is not None:
            raise _needs_tags("the form of the answer")
        return asked

    def _wrapped(self, asked: StructuredOutputs | None) -> StructuredOutputs | None:
        """What was asked for, where the family's answer is one of several messages."""
        if asked is None or self._answer is None or (form := form_of(asked)) is None:
            return None
        told = _text(self._answer(form))
        return msgspec.structs.replace(
            asked, json=None, regex=None, choice=None, grammar=None, json_object=None, structural_tag=told
        )

    def _demanded(self, request: ChatCompletionRequest, grammar: Grammar) -> StructuredOutputs | None:
        choice, tools = request.tool_choice, request.tools or ()
        named = isinstance(choice, NamedToolChoice)
        if isinstance(choice, NamedToolChoice):
            tools = [tool for tool in tools if tool.function.name == choice.function.name]
        form = grammar(self._held(tools), "named" if named else "required")
        return _outputs(single_call(form) if request.parallel_tool_calls is False else form)

    def _offered(
        self, request: ChatCompletionRequest, grammar: Grammar, asked: StructuredOutputs | None
    ) -> StructuredOutputs | None:
        """Calls that the model may make, or an answer of the form that was asked for besides."""
        tools, single = request.tools or (), request.parallel_tool_calls is False
        # One call at most needs the calls' form, but not where a form would make calls possible that are not now.
        held = self._level != "auto" or (single and asked is None)
        if not held and not any(tool.function.strict for tool in tools):
            return None
        answer = None
        if asked is not None and (answer := self._answer_form(asked)) is None:
            return None
        # Free text beside the calls would undo the answer's form.
        form = grammar(self._held(tools), "auto" if answer is None else "required")
        if form is None:
            return None
        if single:
            form = single_call(form)
        return _outputs(form if answer is None else either([form, answer]))

    def _answer_form(self, asked: StructuredOutputs) -> Json | None:
        """None where what is asked for is better left as it is."""
        form = form_of(asked) if readable(asked) else None
        if form is None:
            return None
        if self._answer is not None:
            return self._answer(form)  # in the engine's eyes a tag, in which no schema is looked at
        return form if binding(asked) else None

    def _held(self, tools: Sequence[Tool]) -> list[HeldTool]:
        return [
            HeldTool(
                name=tool.function.name,
                parameters=tool.function.parameters,
                strict=self._level == "parameter" or tool.function.strict is True,
            )
            for tool in tools
        ]


def _tag_name(ways: Sequence[Calls], has_token: Callable[[str], bool] | None) -> str:
    """The structural tag of the first way of writing calls that has one and whose opener the vocabulary has; of the
    first that has one, where the vocabulary has none of them."""
    told = [way for way in ways if way.structural_tag]
    if has_token is not None and len(told) > 1:  # to look a token up, the vocabulary may have to be read again
        openers = ((way, marks.open) for way in told if (marks := way.section or way.call) is not None)
        told = [way for way, spellings in openers if any(map(has_token, spellings))] or told
    return (told[0].structural_tag or "") if told else ""


def _needs_tags(what: str) -> BadRequest:
    return BadRequest(f"{what} needs an engine that knows structural tags", param="structured_outputs")


def _outputs(form: Json | None) -> StructuredOutputs | None:
    return None if form is None else StructuredOutputs(structural_tag=_text(form))


def _text(form: Json) -> str:
    return json.dumps(structural_tag(form))
