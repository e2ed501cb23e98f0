"""DeepSeek V3.2 and later: tags with the piece ｜DSML｜ in them, each argument saying whether it is a string.

The piece is a token of the vocabulary, the rest of a tag is ordinary text.
"""

from __future__ import annotations

from derender.formats.table import Calls, OutputFormat, Parameters, Reasoning, Switch, Typing, tags

SWITCHES = (Switch(name="thinking"), Switch(name="enable_thinking"), Switch(name="reasoning_effort", off=("none",)))


def dialect(name: str, *, sections: tuple[str, ...], blank: str, start: str, structural_tag: str) -> OutputFormat:
    """One version. `sections`: names of the wrapper, the usual one first; `blank`: what stands behind the piece."""
    piece = f"｜DSML｜{blank}"
    return OutputFormat(
        name=name,
        reasoning=Reasoning(
            tags=tags("<think>", "</think>"),
            start="reasoning" if start == "reasoning" else "content",
            switches=SWITCHES,
            strip=True,
        ),
        calls=(
            Calls(
                section=tags(
                    tuple(f"<{piece}{section}>" for section in sections),
                    tuple(f"</{piece}{section}>" for section in sections),
                ),
                call=tags(f'<{piece}invoke name="', (f"</{piece}invoke>", "/>")),
                header=r'(?P<name>[^"<>\n]{1,256})"\s{0,8}(?:>|(?=/>))',  # without arguments it may close itself
                bare=True,
                noise=True,
                body=Parameters(
                    open=f'<{piece}parameter name="',
                    key=r'(?P<key>[^"<>\n]{0,256})"(?:\s{1,8}string\s{0,4}=\s{0,4}"(?P<string>true|false)")?\s{0,8}>',
                    close=f"</{piece}parameter>",
                    unclosed=True,
                    wrappers=("arguments", "input"),
                    typing=Typing.ATTRIBUTE,
                ),
                structural_tag=structural_tag,
            ),
        ),
        end_of_turn=("<｜end▁of▁sentence｜>",),
        turn_starts=("<｜Assistant｜>",),
    )


DEEPSEEK_V32 = dialect(
    "deepseek_v32", sections=("function_calls",), blank="", start="content", structural_tag="deepseek_v3_2"
)
DEEPSEEK_V4 = dialect(
    "deepseek_v4",
    sections=("tool_calls", "toolcalls", "tool"),
    blank="",
    start="reasoning",
    structural_tag="deepseek_v4",
)
DEEPSEEK_V41 = dialect(
    "deepseek_v41", sections=("calls",), blank=" ", start="reasoning", structural_tag="deepseek_v4_1"
)
