"""A JSON array with all calls: behind a word, in tags, or bare."""

from __future__ import annotations

from derender.formats.table import Calls, JsonMembers, OutputFormat, Reasoning, tags

_ARRAY = JsonMembers(array=True)

HUNYUAN_A13B = OutputFormat(
    name="hunyuan_a13b",
    # Plain text all of it; the newlines beside the tags belong to them. The prompt asks for the word before an answer.
    reasoning=Reasoning(tags=tags("<think>\n", "\n</think>\n"), start="content", switches=(), ended_by_call=False),
    calls=(Calls(section=tags("<tool_calls>", "</tool_calls>"), body=_ARRAY),),
    answer=tags(("<answer>\n", "助手："), "\n</answer>"),
    end_of_turn=("<|eos|>",),
)

JAMBA = OutputFormat(
    name="jamba",
    calls=(Calls(section=tags("<tool_calls>", "</tool_calls>"), body=_ARRAY),),
    end_of_turn=("<|eom|>",),
)

NEMOTRON_DECI = OutputFormat(
    name="nemotron_deci",
    reasoning=Reasoning(tags=tags("<think>", "</think>"), start="content", switches=()),
    calls=(Calls(section=tags("<TOOLCALL>", "</TOOLCALL>"), body=_ARRAY),),
    end_of_turn=("<|eot_id|>", "<|eom_id|>"),
)

PHI4_MINI_JSON = OutputFormat(
    name="phi4_mini_json",
    calls=(Calls(call=tags("functools"), body=_ARRAY),),
    end_of_turn=("<|end|>", "<|endoftext|>"),
)

APERTUS = OutputFormat(
    name="apertus",
    reasoning=Reasoning(
        tags=tags("<|inner_prefix|>", "<|inner_suffix|>"), start="content", switches=(), ended_by_call=False
    ),
    calls=(
        Calls(
            section=tags("<|tools_prefix|>", "<|tools_suffix|>"), body=JsonMembers(name=None, array=True), strip=True
        ),
    ),
    end_of_turn=("<|assistant_end|>",),
    turn_starts=("<|assistant_start|>",),
)

XLAM = OutputFormat(
    name="xlam",
    calls=(
        Calls(body=_ARRAY, strip=True),
        Calls(call=tags("```json"), body=JsonMembers(array=True, fence="```")),
        Calls(call=tags("<tool_call>", "</tool_call>"), body=_ARRAY),
        Calls(call=tags("[TOOL_CALLS]"), body=_ARRAY),
    ),
    end_of_turn=("<|im_end|>", "<|eot_id|>"),
)

COMMAND_R = OutputFormat(
    name="command-r",
    calls=(
        Calls(
            call=tags("Action: ```json"),
            body=JsonMembers(
                name="tool_name", arguments=("parameters",), array=True, no_call=("directly_answer",), fence="```"
            ),
        ),
    ),
    end_of_turn=("<|END_OF_TURN_TOKEN|>",),
)
