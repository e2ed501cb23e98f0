"""Which output format a model has, told from its own chat template and vocabulary, never from its name.

A template shows how calls are written: it says so to the model, or writes the calls of earlier turns. Where it shows
nothing, a marker that only one family's vocabulary has tells. The rules stand in an order in which a special one comes
before a general one with the same markers; what a template writes goes before what a vocabulary merely has, since a
vocabulary outlives the format that it was made for: a model trained further on Mistral's may well write Hermes' calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from derender.formats.registry import FORMATS
from derender.formats.table import Table

HasToken = Callable[[str], bool]

THINK = "<think>"
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


class Rule(Table, frozen=True, kw_only=True):
    """A family, and what must be there for it.

    `template`: texts that the template has, all of them. `without`: texts of which it has none. `vocabulary`: tokens.
    `thinks`: the rule is for templates that have the model think unless they are told otherwise. `reasoning`: texts
    that show, in a template of this family, that the model reasons; by default the openers of its table.
    `reasons_as`: whose reasoning that is, where it is another table's.
    """

    name: str
    template: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    thinks: bool | None = None
    reasoning: tuple[str, ...] = ()
    reasons_as: str | None = None

    def holds(self, template: str, has_token: HasToken, *, thinks: bool = False) -> bool:
        """Whether all of it is there."""
        return (
            all(text in template for text in self.template)
            and not any(text in template for text in self.without)
            and (self.thinks is None or self.thinks == thinks)
            and all(map(has_token, self.vocabulary))
        )

    @property
    def reason(self) -> str:
        """What was found, as a half sentence."""
        parts = []
        if self.template:
            parts.append(f"the template writes {_listed(self.template)}")
        if self.vocabulary:
            parts.append(f"the vocabulary has {_listed(self.vocabulary)}")
        return " and ".join(parts)


class Detected(Table, frozen=True, kw_only=True):
    """A family and why. `known`: whether there is a table for it."""

    name: str
    reason: str

    @property
    def known(self) -> bool:
        return self.name in FORMATS


def _rule(name: str, *template: str, without: Sequence[str] = ()) -> Rule:
    return Rule(name=name, template=template, without=tuple(without))


_XML = ("<function=", "<parameter=")
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>")

TOOL_RULES: tuple[Rule, ...] = (
    # What a template writes. First the markers of one family alone, then those that several share.
    _rule("iquest_q1", "<|iquest_assistant|>"),
    _rule("gigachat35", "｜GCML｜"),
    _rule("k2_horizon", "<ifm|tool_call"),
    Rule(name="apertus", template=("<|tools_prefix|>",), reasoning=("<|inner_prefix|>",)),
    _rule("gemma4", "<|channel>", "<|tool_call>"),
    _rule("beam", "<|channel|>", "<rfl:parameter"),
    Rule(name="harmony", template=("<|channel|>", "<|message|>"), reasoning=("<|channel|>",)),
    Rule(name="muse_glimmer", template=("<atem:function_calls>",), reasoning=("<|message|>",)),
    Rule(name="inkling", template=("<|content_invoke_tool_json|>",), reasoning=("<|content_thinking|>",)),
    _rule("kimi_k2", "<|tool_calls_section_begin|>"),
    Rule(name="kimi_k3", template=("<|open|>", "<|close|>", "<|sep|>"), reasoning=("think",)),
    _rule("minimax_m3", "]<]minimax[>["),
    _rule("minimax_m2", "<minimax:tool_call>"),
    _rule("internlm", "default_thinking_sys", "<|action_start|>"),
    _rule("mistral", "[TOOL_CALLS]"),
    # The piece inside DSML's tags often stands in a variable: the tag's rest tells the version.
    _rule("deepseek_v41", "｜DSML｜", " calls>"),
    _rule("deepseek_v4", "｜DSML｜", "tool_calls>"),
    _rule("deepseek_v32", "｜DSML｜", "function_calls>"),
    Rule(name="deepseek_v3", template=(*_DEEPSEEK, "```json"), reasoning=("</think>",), reasons_as="deepseek_r1"),
    _rule("deepseek_v31", *_DEEPSEEK),
    _rule("lfm2", "<|tool_call_start|>"),
    _rule("glm47", "[gMASK]<sop>", "<tool_call>{function-name}<arg_key>"),
    _rule("glm45", "[gMASK]<sop>", "<arg_key>"),
    _rule("ling3", "<role>ASSISTANT</role>", "<arg_key>"),
    _rule("minicpm5", "<function name=", "<param name="),
    # Hunyuan's tags may have a suffix, which a template may keep in a variable.
    Rule(name="hy_v3", template=("<tool_calls", "<tool_sep", "<arg_key"), reasoning=("<think",)),
    Rule(name="hy_v4", template=("<tool_calls", "<arg_key"), reasoning=("<think",)),
    _rule("spark25", "<arg_key>", "<|Bot|>"),
    _rule("poolside_v1", "<arg_key>", "</assistant>"),
    _rule("longcat", "<longcat_tool_call>"),
    _rule("glm45", "<arg_key>", "<tool_call>"),
    _rule("step3", "<steptml:"),
    _rule("seed_oss", "<seed:tool_call>"),
    _rule("dots", "<dots_function_call>"),
    _rule("plamo3", "<|plamo:begin_tool_request"),
    _rule("cohere_command4", "<|START_ACTION|>", "<|START_TEXT|>"),
    _rule("cohere_command3", "<|START_ACTION|>"),
    _rule("nemotron_v3", *_XML, "truncate_history_thinking"),
    _rule("step3p5", *_XML, "<im_patch>"),
    _rule("step3p5", *_XML, "Reasoning: ", "reasoning_effort"),
    _rule("qwen3_coder", *_XML),
    _rule("functiongemma", "<start_function_call>"),
    _rule("gigachat3", "<|message_sep|>", "function call"),
    _rule("granite-20b-fc", "<function_call>", "no_function"),
    _rule("granite", "<|start_of_role|>", "<|tool_call|>"),
    _rule("nemotron_deci", "<TOOLCALL>["),
    _rule("hunyuan_a13b", "<tool_calls>[", "助手："),
    _rule("jamba", "<tool_calls>["),
    _rule("internlm", "<|action_start|>", "<|plugin|>"),
    _rule("phi4_mini_json", "functools["),
    _rule("command-r", "Action:", "```json", "<|CHATBOT_TOKEN|>"),
    _rule("olmo3", "<function_calls>", "<functions>"),
    _rule("ernie45", "<tool_call>", "<response>"),
    _rule("granite4", "<tool_call>", "<|start_of_role|>"),
    _rule("hermes", "<tool_call>", "arguments"),
    # No markers, but the template says in so many words what a call looks like.
    _rule("xlam", "in a single JSON array", '"arguments"'),
    _rule("llama4_pythonic", "[func_name1(param", "<|header_start|>"),
    _rule("pythonic", "[func_name1(param"),
    _rule("llama3_json", '{"name": function name, "parameters": dictionary of argument name and its value}'),
    # What only the vocabulary has. Llama 3's is left out: models of every format were made from it.
    Rule(name="apertus", vocabulary=("<|tools_prefix|>", "<|inner_prefix|>")),
    Rule(name="kimi_k2", vocabulary=("<|tool_calls_section_begin|>",)),
    Rule(name="mistral", vocabulary=("[TOOL_CALLS]",)),
    Rule(name="lfm2", vocabulary=("<|tool_call_start|>", "<|tool_call_end|>")),
    Rule(name="minicpm5", vocabulary=("<function", "<param")),
    Rule(name="cohere_command4", vocabulary=("<|START_ACTION|>", "<|START_TEXT|>")),
    Rule(name="cohere_command3", vocabulary=("<|START_ACTION|>",)),
    Rule(name="jamba", vocabulary=("<tool_calls>", "</tool_calls>")),
)
"""How calls are told. The first that holds counts."""

REASONING_RULES: tuple[Rule, ...] = (
    _rule("seed_oss", "<seed:think>"),
    _rule("mistral", "[THINK]"),
    _rule("minimax_m3", "<mm:think>"),
    _rule("apertus", "<|inner_prefix|>"),
    _rule("deepseek_r1", "<｜Assistant｜>", "</think>"),
    Rule(name="qwen3", template=(THINK,), thinks=True),
    Rule(name="think", template=(THINK,), thinks=False),
)
"""How reasoning is told where the family that the calls are told by has none of its own, or shows none."""


def detect_format(template: str, has_token: HasToken) -> Detected | None:
    """The family whose calls a model writes; None where nothing shows one.

    `template`: the source of the chat template that a request with tools is rendered with, "" for a model without one.
    `has_token`: whether the vocabulary has a token.
    """
    rule = _first(TOOL_RULES, _without_comments(template), has_token)
    return None if rule is None else Detected(name=rule.name, reason=rule.reason)


def detect_reasoning(template: str, has_token: HasToken, *, thinks: bool) -> Detected | None:
    """The family whose reasoning a model writes; None where its template shows none.

    `thinks`: whether the template has the model think unless it is told otherwise. A model that does not is read as
    one that opens its reasoning itself, so that an answer without any is never taken for it.
    """
    template = _without_comments(template)
    family = _first(TOOL_RULES, template, has_token)
    if family is not None and (found := _own_reasoning(family, template, has_token)) is not None:
        return found
    rule = _first(REASONING_RULES, template, has_token, thinks=thinks)
    return None if rule is None else Detected(name=rule.name, reason=rule.reason)


def _own_reasoning(rule: Rule, template: str, has_token: HasToken) -> Detected | None:
    name = rule.reasons_as or rule.name
    table = FORMATS.get(name)
    if table is None or (table.reasoning is None and table.messages is None):
        return None
    openers = rule.reasoning or (tuple(map(str.strip, table.reasoning.tags.open)) if table.reasoning else ())
    shown = next((text for text in openers if text in template), None)
    if shown is not None:
        return Detected(name=name, reason=f"the template writes {shown}")
    if rule.template:
        return None
    # Told by the vocabulary alone. <think> says nothing there: siblings that do not reason have it too.
    held = next((text for text in openers if text != THINK and has_token(text)), None)
    return Detected(name=name, reason=f"the vocabulary has {held}") if held is not None else None


def _first(rules: Sequence[Rule], template: str, has_token: HasToken, *, thinks: bool = False) -> Rule | None:
    return next((rule for rule in rules if rule.holds(template, has_token, thinks=thinks)), None)


def _without_comments(template: str) -> str:
    """A template's own comments may speak of other formats."""
    return _COMMENT.sub("", template)


def _listed(texts: Sequence[str]) -> str:
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last
