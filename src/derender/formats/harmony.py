"""gpt-oss: a chain of messages whose headers say who is spoken to, and on which channel."""

from __future__ import annotations

from derender.formats.table import Calls, JsonValue, Message, Messages, OutputFormat

_CHANNEL = r"«<|channel|>»\s*"
_END_OF_CHANNEL = r"\s*(?:\bto=|«<|constrain|>»|«<|channel|>»|«<|message|>»)"
# A recipient is a function, unless it is one of gpt-oss's built-in tools or the assistant itself.
_BUILT_IN = r"(?:assistant|python|browser|container)(?![A-Za-z0-9_-])"

HARMONY = OutputFormat(
    name="harmony",
    native_only=True,
    calls=(Calls(body=JsonValue(), structural_tag="harmony"),),
    messages=Messages(
        open=("<|start|>",),
        inner=("<|channel|>",),
        body=("<|message|>",),
        close=("<|end|>", "<|call|>", "<|return|>"),
        reasoning=("<|start|>assistant<|channel|>analysis<|message|>", "<|end|>"),
        kinds=(
            # Where nothing stops the model at a call, it goes on with the tool's answer: no word of the assistant's.
            Message(header=r"\A\s*(?:functions\.|(?:user|system|developer|tool|browser|python)\b)", region="nothing"),
            Message(
                header=rf"\bto=\s*(?!{_BUILT_IN})(?:functions\.)?(?P<name>(?!functions\.)[A-Za-z0-9_.-]+)",
                region="call",
            ),
            Message(header=rf"{_CHANNEL}analysis{_END_OF_CHANNEL}", region="reasoning"),
            Message(header=rf"\bto=\s*(?!assistant){_BUILT_IN}", region="nothing"),
            Message(header=rf"{_CHANNEL}(?:final|commentary){_END_OF_CHANNEL}", region="content"),
            Message(header=r"\A(?:(?!«<|channel|>»).)*«<|message|>»", region="content"),
        ),
    ),
    end_of_turn=("<|endoftext|>",),
    turn_starts=("<|start|>",),
)
