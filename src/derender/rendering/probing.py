"""Messages with one character more, by which a prompt tells where a message's texts end."""

from __future__ import annotations

from collections.abc import Iterator

from derender.protocol.common import Json

MORE = "\ufdd2"
"""A noncharacter: no text has it, and no template looks for it."""


def with_more(message: Json) -> Iterator[Json]:
    """The message with one character more at the end of its text; of a message with calls, in the last one's arguments,
    or else in its name."""
    content, calls = message.get("content"), message.get("tool_calls")
    if calls:
        last = calls[-1]
        function = last["function"]
        arguments = function["arguments"]
        if isinstance(arguments, dict):
            more: Json = {**function, "arguments": {**arguments, MORE: MORE}}
        else:
            more = {**function, "arguments": f"{arguments}{MORE}"}
        for changed in (more, {**function, "name": function["name"] + MORE}):
            yield {**message, "tool_calls": [*calls[:-1], {**last, "function": changed}]}
    elif not isinstance(content, list):
        yield {**message, "content": (content or "") + MORE}
    elif content and isinstance(content[-1].get("text"), str):
        yield {**message, "content": [*content[:-1], {**content[-1], "text": content[-1]["text"] + MORE}]}
    else:
        yield {**message, "content": [*content, {"type": "text", "text": MORE}]}
