"""Mistral: `[TOOL_CALLS]` and then a JSON array (tokenizers up to v7) or `NAME[ARGS]{…}` (v11 and later)."""

from __future__ import annotations

from derender.formats.table import Calls, JsonMembers, JsonValue, OutputFormat, Reasoning, tags

_CALL = tags("[TOOL_CALLS]", "[/TOOL_CALLS]")  # no template writes the closer

MISTRAL = OutputFormat(
    name="mistral",
    native_only=True,
    # The model opens reasoning by itself; Magistral-2506 has the tags of others, as text.
    reasoning=Reasoning(tags=tags(("[THINK]", "<think>"), ("[/THINK]", "</think>")), start="content", switches=()),
    calls=(
        Calls(call=_CALL, body=JsonMembers(id="id", array=True), ids="mistral"),
        Calls(
            call=_CALL,
            header=(
                r"\s*(?P<name>[^\s\[{\ud800-\udfff]+)\s*"
                r"(?:«[CALL_ID]»\s*(?P<id>[^\s\[{\ud800-\udfff]+)\s*)?(?:«[ARGS]»|(?={))"
            ),
            body=JsonValue(),
            ids="mistral",
        ),
    ),
    end_of_turn=("</s>",),
    turn_starts=("[/INST]",),
)
