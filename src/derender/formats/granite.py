"""IBM Granite: a marker and a JSON array (3.x), Hermes' tags (4.0, 4.1), `<function_call>` (20B function calling)."""

from __future__ import annotations

from derender.formats.table import Calls, JsonMembers, OutputFormat, Reasoning, Reopen, tags

_END = ("<|end_of_text|>",)
_TURN = ("<|end_of_role|>",)

GRANITE = OutputFormat(
    name="granite",
    # 3.2 announces its parts in plain English, 3.3 was asked for tags.
    reasoning=Reasoning(
        tags=tags(
            ("Here is my thought process:", "Here's my thought process:", "<think>"),
            ("Here is my response:", "Here's my response:", "</think>"),
        ),
        start="content",
        switches=(),
        ended_by_call=False,
        duplicates=Reopen.LITERAL,
    ),
    calls=(Calls(call=tags(("<|tool_call|>", "<tool_call>")), body=JsonMembers(array=True), strip=True),),
    answer=tags("<response>", "</response>"),
    end_of_turn=_END,
    turn_starts=_TURN,
)

GRANITE4 = OutputFormat(
    name="granite4",
    # Only 4.2 reasons, and its prompt says so.
    reasoning=Reasoning(tags=tags("<think>", "</think>"), start="content", switches=()),
    calls=(Calls(call=tags("<tool_call>", "</tool_call>"), body=JsonMembers()),),
    end_of_turn=_END,
    turn_starts=_TURN,
)

GRANITE_20B_FC = OutputFormat(
    name="granite-20b-fc",
    calls=(Calls(call=tags("<function_call>"), body=JsonMembers(no_call=("no_function",))),),
    end_of_turn=("<|endoftext|>", *_END),
)
