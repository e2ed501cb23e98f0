"""How one chat answer is to be read: from the request, the model's output format, and the prompt's tail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from derender.derendering.model import DerenderModel
from derender.derendering.options import Reading
from derender.parser.coerce import ToolSchemas
from derender.parser.start import Region, start_region
from derender.protocol.chat import ChatCompletionRequest, NamedToolChoice
from derender.protocol.errors import BadRequest
from derender.protocol.generate import ParseContext

Choice = Literal["none", "auto", "required", "named"]


def chat_reading(
    model: DerenderModel,
    asked: ChatCompletionRequest | None,
    context: ParseContext | None,
    *,
    prompt_ids: Sequence[int] | None,
    reasoning_ended: bool | None,
) -> Reading | None:
    """How to read an answer; None for a model without an output format.

    Raises `BadRequest` where neither the request nor the rendered request's context is there to tell.
    """
    formats = model.formats
    if formats is None:
        return None
    if asked is None and context is None:
        raise BadRequest(
            "chat_request is required when an output format is configured: without it the output cannot be read, and "
            "its markup would be shown as content.",
            param="chat_request",
        )
    tools: Sequence[Mapping[str, Any]]
    if asked is not None:
        tools = [msgspec.to_builtins(tool) for tool in asked.tools or ()]
        choice, name = _choice(asked.effective_tool_choice)
        parallel, visible = asked.parallel_tool_calls is not False, asked.include_reasoning
        kwargs: dict[str, Any] = {**formats.defaults, **(asked.chat_template_kwargs or {})}
        if asked.reasoning_effort is not None:
            kwargs.setdefault("enable_thinking", asked.reasoning_effort != "none")
            kwargs.setdefault("reasoning_effort", asked.reasoning_effort)
    else:
        assert context is not None
        tools = context.tools or ()
        choice, name = _choice(context.tool_choice)
        parallel, visible = context.parallel_tool_calls is not False, context.include_reasoning
        kwargs = {**formats.defaults, **(context.chat_template_kwargs or {})}
    if not tools:
        choice = "none"
    compiled = formats.compiled(choice)
    start: Region
    # Where reasoning is hidden, a rendered request says that it has ended, for the engine's sake, whatever is true.
    if reasoning_ended is None or not visible:
        start = start_region(compiled, prompt_ids, kwargs)
    else:
        start = "content" if reasoning_ended or compiled.table.reasoning is None else "reasoning"
    return Reading(
        compiled=compiled,
        schemas=ToolSchemas(tools),
        start=start,
        choice=choice,
        name=name,
        parallel=parallel,
        visible=visible,
        complete=formats.complete,
        trim=formats.trim,
    )


def _choice(asked: Any) -> tuple[Choice, str]:
    """The tool choice, and the name that it demands."""
    if isinstance(asked, NamedToolChoice):
        return "named", asked.function.name
    if isinstance(asked, dict):
        function = asked.get("function")
        return "named", str(function.get("name", "")) if isinstance(function, dict) else ""
    if asked == "auto":
        return "auto", ""
    return ("required", "") if asked == "required" else ("none", "")
