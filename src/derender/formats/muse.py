"""Muse Glimmer and Muse Spark: messages to the model itself, to the user or to a tool, calls in the last."""

from __future__ import annotations

from derender.formats.table import Calls, Message, Messages, OutputFormat, Parameters, Typing, tags

MUSE_GLIMMER = OutputFormat(
    name="muse_glimmer",
    native_only=True,
    calls=(
        Calls(
            section=tags("<atem:function_calls>", "</atem:function_calls>"),
            call=tags('<atem:invoke name="', "</atem:invoke>"),
            header=r'(?P<name>[^"<>\n]{1,256})"\s{0,8}>',
            body=Parameters(
                open='<atem:parameter name="',
                key=r'(?P<key>[^"<>\n]{0,256})"\s{0,8}>',
                close="</atem:parameter>",
                typing=Typing.VALUE,
            ),
        ),
    ),
    messages=Messages(
        open=("<|start|>",),
        body=("<|message|>",),
        close=("<|eom|>", "<|eot|>"),
        kinds=(
            Message(header=r"\A\s*(?!assistant\b|to=)\w", region="nothing"),
            Message(header=r"\bto=\s*self\s*«<|message|>»", region="reasoning"),
            Message(header=r"\bto=\s*user\s*«<|message|>»", region="content"),
            Message(header=r"\bto=\s*\S", region="calls"),
            Message(header=r"«<|message|>»", region="content"),
        ),
    ),
    turn_starts=("<|start|>",),
)
