"""Constraints on the output: `structured_outputs`, `response_format` and demanded tool calls → `StructuredOutputs`.

A guided engine compiles what stands here. What every engine would refuse is refused here; whether a grammar, a regular
expression or a schema compiles, only the engine's own compiler can say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from derender.protocol.chat import ChatCompletionRequest, NamedToolChoice, Tool
from derender.protocol.common import Json, ResponseFormat, StructuredOutputs
from derender.protocol.completions import CompletionRequest
from derender.protocol.errors import BadRequest
from derender.rendering.refusal import refuse

MAX_SCHEMA_NESTING = 64
"""Nested objects and arrays in a schema; what engines spend on compiling it grows steeply with them (vLLM's limit)."""

_TAG_NESTING = MAX_SCHEMA_NESTING + 16  # a structural tag wraps its schemas
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def constraint_of(request: ChatCompletionRequest | CompletionRequest) -> StructuredOutputs | None:
    """The one constraint that a request's `structured_outputs` and `response_format` make, None for none.

    `response_format` goes before the same kind in `structured_outputs`. Raises BadRequest for none or several kinds
    in `structured_outputs`, for several in all, and for a kind whose value no engine takes.
    """
    given, wanted = request.structured_outputs, request.response_format
    if given is None and wanted is None:
        return None
    if given is not None:
        _check_client_kinds(given, request)
        _one_kind(given, place="structured_outputs")
        if given.structural_tag is not None:
            _check_tag(given.structural_tag, "structured_outputs")
    if wanted is not None and wanted.type != "text":
        given = _with_format(given, wanted)
        _one_kind(given, place="response_format")
    if given is not None:
        formed = wanted is not None and wanted.type == "json_schema"
        _check_values(given, schema="response_format" if formed else "structured_outputs.json")
    return given


def _check_client_kinds(given: StructuredOutputs, request: ChatCompletionRequest | CompletionRequest) -> None:
    kinds = sum(value is not None for value in (given.json, given.regex, given.choice))
    if kinds > 1:
        text = "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."
        if isinstance(request, ChatCompletionRequest):
            raise BadRequest(text, param="structured_outputs")
        raise refuse(text, param="structured_outputs")
    if kinds and isinstance(request, ChatCompletionRequest) and isinstance(request.tool_choice, NamedToolChoice):
        raise BadRequest(
            "You can only either use constraints for structured outputs or tools, not both.", param="structured_outputs"
        )


def _one_kind(outputs: StructuredOutputs, *, place: str) -> None:
    kinds = [kind for kind in _KINDS if getattr(outputs, kind) is not None]
    if len(kinds) > 1:
        raise BadRequest(
            "You can only use one kind of structured outputs constraint but multiple are specified: "
            + ", ".join(kinds),
            param=place,
        )
    if not kinds:
        raise BadRequest(
            "You must use one kind of structured outputs constraint but none are specified: one of "
            + ", ".join(_KINDS),
            param=place,
        )


def _with_format(given: StructuredOutputs | None, wanted: ResponseFormat) -> StructuredOutputs:
    given = given or StructuredOutputs()
    if wanted.type == "json_object":
        return msgspec.structs.replace(given, json_object=True)
    if wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise refuse(
                "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
                param="response_format",
            )
        return msgspec.structs.replace(given, json=wanted.json_schema.schema)
    tag: Json = {"type": "structural_tag"}
    for key in ("structures", "triggers", "format"):
        if (value := getattr(wanted, key)) is not None:
            tag[key] = value
    text = json.dumps(tag)
    _check_tag(text, "response_format")
    return msgspec.structs.replace(given, structural_tag=text)


def _check_tag(text: str, param: str) -> None:
    """Refuse what is no structural tag by its shape: either `format`, or `structures` with `triggers` (the older form).

    Raises BadRequest.
    """
    tag = _parsed(text)
    if isinstance(tag, dict):
        _check_nesting(tag, _TAG_NESTING, place=param)
        form = tag.get("format")
        structures, triggers = tag.get("structures"), tag.get("triggers")
        older = (
            isinstance(triggers, list)
            and all(isinstance(trigger, str) for trigger in triggers)
            and isinstance(structures, list)
            and all(
                isinstance(entry, dict)
                and isinstance(entry.get("begin"), str)
                and isinstance(entry.get("end"), str)
                and isinstance(entry.get("schema"), (dict, bool, str))
                for entry in structures
            )
        )
        newer = isinstance(form, dict) and isinstance(form.get("type"), str)
        if tag.get("type") == "structural_tag" and (older or newer):
            return
    raise refuse(f"Invalid {param} structural_tag specification.", param=param)


def _check_values(outputs: StructuredOutputs, *, schema: str) -> None:
    """What vLLM's engine refuses whatever its backend is. `schema`: the field that a schema comes from."""
    if outputs.choice is not None and not outputs.choice:
        raise BadRequest("Choice '[]' cannot be an empty list", param="structured_outputs.choice")
    for kind, place in (("grammar", "structured_outputs.grammar"), ("json", schema)):
        value = getattr(outputs, kind)
        if isinstance(value, str) and not value.strip():
            raise BadRequest(f"structured_outputs.{kind} cannot be an empty string", param=place)
    if outputs.json is not None:
        tree = _parsed(outputs.json) if isinstance(outputs.json, str) else outputs.json
        if tree is _INVALID:
            raise BadRequest("Invalid JSON grammar specification.", param=schema)
        _check_nesting(tree, MAX_SCHEMA_NESTING, place=schema)
    if outputs.json_object is False:
        raise BadRequest(
            "structured_outputs.json_object must be True if set; omit structured_outputs to disable structured outputs",
            param="structured_outputs.json_object",
        )
    if outputs.regex and "\0" in outputs.regex:
        raise BadRequest(
            "structured_outputs.regex must not contain a NUL character ('\\x00')", param="structured_outputs.regex"
        )


_INVALID = object()


def _parsed(text: str) -> Any:
    """The JSON value of a text, `_INVALID` for what is none or is nested beyond reading."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _INVALID


def _check_nesting(value: Any, limit: int, *, place: str) -> None:
    """Raises BadRequest where objects and arrays nest more than `limit` levels deep. Linear in the value's size."""
    level = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            if isinstance(node, (dict, list))
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise BadRequest(
        f"The JSON schema is nested too deeply: objects and arrays may nest at most {MAX_SCHEMA_NESTING} levels",
        param=place,
    )


# --------------------------------------------------------------------------------------------------- tool calls


def json_tool_constraint(request: ChatCompletionRequest) -> StructuredOutputs | None:
    """The constraint for demanded tool calls of a format that has no structural tag of its own.

    `required`: an array of {name, parameters}, at least one; a named tool: the object of its parameters. None for auto
    and none, and where the client has a structural tag of its own, which goes before, as in vLLM. Raises BadRequest
    where two tools define the same `$defs` entry otherwise.
    """
    choice, tools = request.tool_choice, request.tools or ()
    if request.structured_outputs is not None and request.structured_outputs.structural_tag is not None:
        return None
    if isinstance(choice, NamedToolChoice):
        named = next(tool for tool in tools if tool.function.name == choice.function.name)
        return StructuredOutputs(json=_parameters(named))
    if choice == "required":
        return StructuredOutputs(json=_any_call(tools, parallel=request.parallel_tool_calls is not False))
    return None


def _parameters(tool: Tool) -> Json:
    return tool.function.parameters or {"type": "object", "properties": {}}


def _any_call(tools: Sequence[Tool], *, parallel: bool) -> Json:
    definitions: Json = {}
    calls = []
    for tool in tools:
        parameters = _parameters(tool)
        if "$defs" in parameters:
            _collect(parameters["$defs"], tool.function.name, into=definitions)
            parameters = {key: value for key, value in parameters.items() if key != "$defs"}
        calls.append(
            {
                "properties": {"name": {"type": "string", "enum": [tool.function.name]}, "parameters": parameters},
                "required": ["name", "parameters"],
            }
        )
    schema: Json = {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": calls}}
    if not parallel:
        schema["maxItems"] = 1
    if definitions:
        schema["$defs"] = definitions
    return schema


def _collect(found: Any, tool: str, *, into: Json) -> None:
    if not isinstance(found, dict):
        raise refuse(
            f"`$defs` in the parameters of tool '{tool}' must be an object, got {type(found).__name__}.", param="tools"
        )
    for name, schema in found.items():
        if into.setdefault(name, schema) != schema:
            raise refuse(f"Tool definition '{name}' has multiple schemas, which is not supported.", param="tools")
