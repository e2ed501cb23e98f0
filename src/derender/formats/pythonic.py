"""Calls that are Python: Llama 3.2 and 4, ToolACE, OLMo 3, LFM2."""

from __future__ import annotations

from derender.formats.table import Calls, JsonMembers, OutputFormat, PythonCall, Reasoning, tags

# The answer is the list, or there is none in it.
_BARE = Calls(body=PythonCall(), start_only=True)

PYTHONIC = OutputFormat(name="pythonic", calls=(_BARE,), end_of_turn=("<|eot_id|>", "<|eom_id|>", "<|eot|>"))

LLAMA4_PYTHONIC = OutputFormat(
    name="llama4_pythonic",
    calls=(Calls(call=tags("<|python_start|>", "<|python_end|>"), body=PythonCall()), _BARE),
    end_of_turn=("<|eot|>", "<|eom|>", "<|eot_id|>"),
)

OLMO3 = OutputFormat(
    name="olmo3",
    # The Think models' template opens reasoning itself.
    reasoning=Reasoning(tags=tags("<think>", "</think>"), start="content", switches=()),
    calls=(Calls(call=tags("<function_calls>", "</function_calls>"), body=PythonCall(brackets=False)),),
    end_of_turn=("<|im_end|>", "<|endoftext|>"),
)

_LFM2 = tags("<|tool_call_start|>", "<|tool_call_end|>")

LFM2 = OutputFormat(
    name="lfm2",
    reasoning=Reasoning(tags=tags("<think>", "</think>"), start="content", switches=()),
    # A system prompt may ask for JSON in place of Python.
    calls=(Calls(call=_LFM2, body=PythonCall()), Calls(call=_LFM2, body=JsonMembers(array=True))),
    end_of_turn=("<|im_end|>",),
)
