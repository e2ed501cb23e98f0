"""`response_template` of a tokenizer's configuration, read into an output format.

Hugging Face's description (version 1) of how a model's answer is to be read: fields, each a region of the output with
an opener, a closer and a parser of its body. What of it the engine knows becomes a table; anything else is refused by
its key (`ResponseTemplateError`), never read otherwise. The known differences are those of this server in general:
text that belongs to no region is content, as is a region that proves to be no call; regions of one field follow each
other in the answer, where a template without `repeats` keeps the last; a closer that nothing opened is dropped; a call
that the output's end cuts is no whole call; types of a schema are tried in the order of `parser.coerce`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from derender.formats.patterns import Literals
from derender.formats.table import OutputFormat, Reasoning, Reopen, Tags
from derender.formats.template_calls import read_calls
from derender.formats.template_fields import Field, ResponseTemplateError, check_keys, literals, mapping
from derender.formats.template_messages import as_messages

__all__ = ["NAME", "ResponseTemplateError", "from_response_template"]

NAME = "hf"
"""The format's name, and that of the parsers that use it."""

_TOP = frozenset(("version", "defaults", "fields", "start_anchor", "start_anchor_pattern"))
_THINKING = ("thinking", "reasoning_content")
_TEXT, _CALLS = "content", "tool_calls"


def from_response_template(template: Mapping[str, Any]) -> OutputFormat:
    """The output format that a response_template describes. Raises `ResponseTemplateError`."""
    check_keys(template, _TOP, "")
    if template.get("version", 1) != 1 or isinstance(template.get("version"), bool):
        raise ResponseTemplateError("version", f"{template['version']!r} is not known, only 1")
    found = _fields(template)
    for name, value in mapping(template.get("defaults", {}), "defaults").items():
        if name != "role" and (name not in found or value):
            raise ResponseTemplateError(f"defaults.{name}", "only a role can be given, and empty values of fields")
    thoughts = [found[name] for name in _THINKING if name in found]
    if len(thoughts) > 1:
        raise ResponseTemplateError(f"fields.{_THINKING[1]}", "is there beside thinking")
    thinking, text, calls = thoughts[0] if thoughts else None, found.get(_TEXT), found.get(_CALLS)
    anchors = literals(template, "start_anchor", "", edges=True).texts
    if not anchors:
        raise ResponseTemplateError("start_anchor", "is missing")
    trim = _trim([field for field in (thinking, text) if field is not None])
    messages = as_messages(thinking, text, calls, anchors=anchors)
    if messages is not None:
        chain, ways = messages
        return OutputFormat(name=NAME, messages=chain, calls=ways, turn_starts=anchors, trim=trim)
    answer = text.literals("open", edges=trim) if text is not None else Literals(())
    ends = text.literals("close", edges=trim).texts if text is not None else ()
    if text is not None and (answer.bare or answer.first):
        raise text.fault("open_pattern", "^ cannot be used")
    reasoning, marked = None, bool(answer.texts)
    if thinking is not None:
        reasoning = _reasoning(thinking, answer.texts, anchors=anchors, trim=trim, beside=text is not None)
        marked = marked and reasoning.tags.close != answer.texts
    return OutputFormat(
        name=NAME,
        reasoning=reasoning,
        calls=(read_calls(calls),) if calls is not None else (),
        answer=Tags(open=answer.texts, close=ends) if marked else None,
        framing=anchors if answer.texts and not any(field.implicit for field in found.values()) else (),
        end_of_turn=() if marked else ends,
        turn_starts=anchors,
        trim=trim,
    )


def _fields(template: Mapping[str, Any]) -> dict[str, Field]:
    fields = mapping(template.get("fields"), "fields")
    if not fields:
        raise ResponseTemplateError("fields", "is empty")
    found = {str(name): Field(str(name), spec) for name, spec in fields.items()}
    for name in found.keys() - {*_THINKING, _TEXT, _CALLS}:
        raise ResponseTemplateError(f"fields.{name}", "only thinking, content and tool_calls can be answered with")
    return found


def _trim(texts: list[Field]) -> bool:
    """Whether the fields of text are without the white space at their ends; all of them are, or none."""
    trims = {field: field.stripped() for field in texts}
    if len(set(trims.values())) > 1:
        loose = next(field for field, stripped in trims.items() if not stripped)
        raise loose.fault("content_args.strip", "must be the same in all texts")
    return all(trims.values())


def _reasoning(
    field: Field, answer: tuple[str, ...], *, anchors: tuple[str, ...], trim: bool, beside: bool
) -> Reasoning:
    """`answer`: what opens the content, if something does. `beside`: whether there is a field for the content."""
    opens, closes = field.literals("open", edges=trim), field.literals("close", edges=trim).texts
    if not field.implicit:
        if not closes:
            raise field.fault("close", "is missing: reasoning without it cannot be told from the rest")
        return Reasoning(
            tags=Tags(open=opens.texts or anchors, close=closes),
            start="reasoning" if opens.bare else "content",
            switches=(),
            ended_by_call=False,
            duplicates=Reopen.SWALLOW if opens.first else Reopen.REOPEN,
        )
    # All that stands outside of the others: it begins where the turn does, and the opener of any other ends it.
    if not answer:
        there = "as content has none either" if beside else "and there is no content that something else opens"
        raise field.fault("open", f"is missing: reasoning without it cannot be told from the rest, {there}")
    return Reasoning(
        tags=Tags(open=anchors, close=closes or answer),
        switches=(),
        ended_by_answer=bool(closes),
        duplicates=Reopen.SWALLOW,
    )
