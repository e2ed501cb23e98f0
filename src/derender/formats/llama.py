"""Llama 3.1 to 3.3 with JSON calls: the answer is `{"name": …, "parameters": {…}}`, with no marker that says so."""

from __future__ import annotations

from derender.formats.table import Calls, JsonMembers, OutputFormat, tags

LLAMA3_JSON = OutputFormat(
    name="llama3_json",
    calls=(Calls(body=JsonMembers(arguments=("parameters", "arguments")), separators=";", structural_tag="llama"),),
    # The tag announces a call or code of a built-in tool, which is text. Neither needs it.
    answer=tags("<|python_tag|>"),
    end_of_turn=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    turn_starts=("<|end_header_id|>",),
)

JSON = OutputFormat(
    name="json",
    calls=(Calls(body=JsonMembers(), separators=";"), Calls(body=JsonMembers(array=True))),
)
"""Objects or an array of objects, with no marker at all."""
