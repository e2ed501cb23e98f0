"""Cohere Command from R7B on: tokens around thinking, an array of calls, and the answer with its citations."""

from __future__ import annotations

from derender.formats.table import Calls, JsonMembers, OutputFormat, Reasoning, tags

COHERE_COMMAND3 = OutputFormat(
    name="cohere_command3",
    reasoning=Reasoning(
        tags=tags("<|START_THINKING|>", "<|END_THINKING|>"), start="content", switches=(), ended_by_answer=True
    ),
    calls=(
        Calls(
            section=tags("<|START_ACTION|>", "<|END_ACTION|>"),
            body=JsonMembers(name="tool_name", arguments=("parameters",), id="tool_call_id", array=True),
            ids="native",
            structural_tag="cohere",
        ),
    ),
    # RESPONSE in the third generation, TEXT in the fourth.
    answer=tags(("<|START_RESPONSE|>", "<|START_TEXT|>"), ("<|END_RESPONSE|>", "<|END_TEXT|>")),
    citations=tags("<co>", "</co:"),
    end_of_turn=("<|END_OF_TURN_TOKEN|>",),
    turn_starts=("<|CHATBOT_TOKEN|>",),
)

COHERE_COMMAND4 = COHERE_COMMAND3.replace(name="cohere_command4")
