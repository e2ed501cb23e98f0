"""`--tool-call-parser auto` and `--reasoning-parser auto`: names for what a model's template and vocabulary show.

`detect` is the same where a model that shows no known format is to be served without one.
"""

from __future__ import annotations

from dataclasses import dataclass

from derender.formats.choose import UnknownFormat
from derender.formats.detect import detect_format, detect_reasoning
from derender.formats.names import TOOL_PARSERS
from derender.formats.registry import FORMATS
from derender.formats.table import OutputFormat
from derender.protocol.errors import BadRequest
from derender.settings import ModelSettings
from derender.template.jinja import ChatTemplate
from derender.template.source import TemplateSet
from derender.template.thinking import thinks_by_default
from derender.tokenizer import Tokenizer

AUTO = "auto"
DETECT = "detect"


@dataclass(frozen=True)
class ParserNames:
    """The parsers in use, None for none. `told`: what was found and why, for the operator; empty if nothing was asked.

    Names that an operator gave are as given.
    """

    tool: str | None
    reasoning: str | None
    told: str = ""


def parser_names(settings: ModelSettings, templates: TemplateSet | None, tokenizer: Tokenizer) -> ParserNames:
    """The settings' parsers, with names in the place of `auto`.

    Raises `UnknownFormat` where the calls' format cannot be told. A model without reasoning is nothing unusual.
    """
    tool, reasoning = settings.tool_call_parser, settings.reasoning_parser
    if AUTO not in (tool, reasoning) and DETECT not in (tool, reasoning):
        return ParserNames(tool, reasoning)
    template = _template(templates)
    source = template.source if template is not None else ""
    told = []

    def has_token(token: str) -> bool:
        return tokenizer.token_id(token) is not None

    if tool == DETECT:
        found = detect_format(source, has_token)
        tool = found.name if found is not None and found.known else None
        if found is None:
            told.append("no tool calls (the template and the vocabulary show no known format)")
        elif tool is None:
            told.append(f"no tool calls ({found.reason}: that is the format {found.name}, which cannot be read yet)")
        else:
            told.append(f"tool calls {tool} ({found.reason})")
    elif tool == AUTO:
        found = detect_format(source, has_token)
        if found is None:
            raise UnknownFormat(
                "--tool-call-parser auto: the chat template and the vocabulary show no known format; " + _name_one()
            )
        if not found.known:
            raise UnknownFormat(
                f"--tool-call-parser auto: {found.reason}: that is the format {found.name}, which cannot be read yet; "
                + _name_one()
            )
        tool = found.name
        told.append(f"tool calls {tool} ({found.reason})")
    if reasoning in (AUTO, DETECT):
        thinks = template is not None and thinks_by_default(
            template, settings.default_chat_template_kwargs, special_tokens=tokenizer.special_tokens
        )
        found = detect_reasoning(source, has_token, thinks=thinks)
        reasoning = found.name if found is not None else None
        shown = f"reasoning {found.name} ({found.reason})" if found is not None else ""
        told.append(shown or "no reasoning (the template shows none)")
    return ParserNames(tool, reasoning, "; ".join(told))


def shown_format(templates: TemplateSet | None, tokenizer: Tokenizer) -> OutputFormat | None:
    """The format that the template and the added tokens show, for what matters also where no output is parsed: what
    ends a turn, and what stands around reasoning."""
    template = _template(templates)
    source = template.source if template is not None else ""
    found = detect_format(source, lambda token: tokenizer.added_id(token) is not None)
    return FORMATS.get(found.name) if found is not None else None


def _template(templates: TemplateSet | None) -> ChatTemplate | None:
    """The template of a request with tools."""
    if templates is None:
        return None
    try:
        return templates.pick(tools=True)
    except BadRequest:  # several, and none of them the default
        return None


def _name_one() -> str:
    names = sorted({name for name, table in TOOL_PARSERS.items() if table in FORMATS})
    return f"name one of {', '.join(names)}"
