"""Formats with pairs of key and value inside a section of calls: Hunyuan 3 and 4, K2 Horizon."""

from __future__ import annotations

from derender.formats.glm import NAME
from derender.formats.table import Calls, JsonMembers, OutputFormat, Parameters, Reasoning, Switch, Tags, tags

SUFFIXES = ("", ":opensource")
"""What may stand in all of Hunyuan's tags behind their names."""


def suffixed(name: str) -> Tags:
    """The tags of a name with any suffix."""
    return tags(tuple(f"<{name}{one}>" for one in SUFFIXES), tuple(f"</{name}{one}>" for one in SUFFIXES))


def hunyuan_calls(suffix: str, *, structural_tag: str | None) -> Calls:
    """Calls whose tags all have one suffix. The separator behind the name is version 3's."""
    key, value = f"arg_key{suffix}", f"arg_value{suffix}"
    return Calls(
        section=tags(f"<tool_calls{suffix}>", f"</tool_calls{suffix}>"),
        call=tags(f"<tool_call{suffix}>", f"</tool_call{suffix}>"),
        header=NAME + rf"(?:«<tool_sep{suffix}>»|(?=«<{key}>»|«</tool_call{suffix}>»))",
        bare=True,
        strip=True,
        body=Parameters(
            open=f"<{key}>",
            key=rf"(?P<key>[^<\ud800-\udfff]{{0,256}})«</{key}>»\s{{0,16}}«<{value}>»",
            close=f"</{value}>",
        ),
        structural_tag=structural_tag,
    )


HY_V3 = OutputFormat(
    name="hy_v3",
    reasoning=Reasoning(
        tags=suffixed("think"),
        start="content",
        switches=(Switch(name="reasoning_effort", off=("no_think", "none")), Switch(name="enable_thinking")),
    ),
    calls=tuple(hunyuan_calls(suffix, structural_tag=None) for suffix in SUFFIXES),
)

HY_V4 = HY_V3.replace(
    name="hy_v4",
    native_only=True,
    calls=tuple(hunyuan_calls(suffix, structural_tag=f"hy_v4{suffix}") for suffix in SUFFIXES),
)

K2_SECTION, K2_CALL = tags("<ifm|tool_calls>", "</ifm|tool_calls>"), tags("<ifm|tool_call>", "</ifm|tool_call>")

K2_HORIZON = OutputFormat(
    name="k2_horizon",
    native_only=True,
    reasoning=Reasoning(
        tags=tags(
            ("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
            ("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
        ),
        start="content",
        switches=(),
    ),
    calls=(
        Calls(
            section=K2_SECTION,
            call=K2_CALL,
            header=NAME + "(?=«<ifm|arg_key>»|«</ifm|tool_call>»)",
            bare=True,
            strip=True,
            body=Parameters(
                open="<ifm|arg_key>",
                key=(
                    r"(?P<key>[^<\ud800-\udfff]{0,128})«</ifm|arg_key>»\s{0,16}"
                    r"(?:«<ifm|arg_type>»(?P<type>[^<\ud800-\udfff]{0,64})«</ifm|arg_type>»\s{0,16})?«<ifm|arg_value>»"
                ),
                close="</ifm|arg_value>",
            ),
        ),
        Calls(section=K2_SECTION, call=K2_CALL, bare=True, strip=True, body=JsonMembers()),
    ),
)
