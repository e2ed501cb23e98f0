"""Outputs made from a format's own table: well-formed ones with what is in them, and the pieces to break them with."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from derender.formats.table import (
    Calls,
    JsonMembers,
    JsonValue,
    KeyValues,
    NestedElements,
    OutputFormat,
    Parameters,
    PythonCall,
)
from derender.parser.compiled import CompiledFormat, _all_literals
from derender.parser.engine import HEADER

NAMES = ["get_weather", "get_time", "add", "write_file", "set_flags", "no_such_tool"]
WORDS = ["Hello", "the answer", "naïve café", "日本語", "😊", "42", "x = 1", "Done.", "a, b", "👩‍👩‍👧", "e\u0301"]
LOOSE = [
    " ", "\n", "\n\n", "\t", "\u3000", "{", "}", "[", "]", "(", ")", "<", ">", "/", "«", '"', "'", "\\", ",", ":", "=",
    "{}", "[]", "{}}", "[[", "null", "true", "1e5", "-", "0x", '"a": 1', "```", "```json", "<|im_start|>", "<|im_end|>",
    "<|endoftext|>", "<think>", "</think>", "name", "arguments", "functions.", "call:", "city", "a=1", "é", "😊",
    "\ufffd", "<![CDATA[", "]]>", "&amp;", "&#x110000;", "\x00", "#", "\\u12", "\\ud83d", "𝒳",
]  # fmt: skip

# What follows a call's opener, by a part of the table's pattern; the first that is found counts.
_HEADERS: list[tuple[str, str]] = [
    ("<steptml:invoke", 'function<｜tool_sep｜><steptml:invoke name="NAME">'),
    ("<|plamo:begin_tool_name", "<|plamo:begin_tool_name:plamo|>NAME<|plamo:end_tool_name:plamo|>"
     "<|plamo:begin_tool_arguments:plamo|><|plamo:msg|>"),
    ("<|tool_call_argument_begin|>", "functions.NAME:0<|tool_call_argument_begin|>"),
    ("<|sep|>", ' tool="NAME" index="1"<|sep|>'),
    ("[ARGS]", "NAME[ARGS]"),
    ("[^\\n{`]", "function<｜tool▁sep｜>NAME\n"),
    ("<｜tool▁sep｜>", "NAME<｜tool▁sep｜>"),
    ("<tool_sep:opensource>", "NAME<tool_sep:opensource>"),
    ("<tool_sep", "NAME<tool_sep>"),
    ("(?:call", "call:NAME"),
    ("</function>", "NAME>"),
    ("(?P<name>[^\"<>\\n]{1,256})\"", 'NAME">'),
    ("""["']?(?P<name>""", '"NAME">'),
    ("(?P<name>[^\\s<>{}", "NAME"),
]  # fmt: skip


@dataclass(kw_only=True)
class Sample:
    """A well-formed output, the region that it begins in, the token that ends it, and what is in it."""

    text: str
    start: str
    end: str = ""
    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


def all_markers(table: OutputFormat) -> list[str]:
    """Every literal that the table has a meaning for."""
    return list(dict.fromkeys(text for text in (*_all_literals(table), *table.end_of_turn) if text))


def cut_calls(table: OutputFormat) -> list[str]:
    """For each way of calling, a call that is cut in the midst of its first argument."""
    found = []
    for calls in table.calls:
        whole = wrapped(calls, [("write_file", {"path": "/a/b/CUT/c", "content": "x"})])
        found.append(whole[: whole.index("CUT")])
    return found


def closers(table: OutputFormat) -> list[str]:
    """The closers of calls whose bodies are parameters."""
    found = [calls.call.close for calls in table.calls if calls.call is not None and isinstance(calls.body, Parameters)]
    return [text for several in found for text in several]


def markers(form: CompiledFormat) -> list[str]:
    """The family's markers that are single tokens of the vocabulary."""
    written = [*_all_literals(form.table), *form.table.end_of_turn]
    return [t.content for t in form.marks.tokenizer.added_tokens if any(t.content in text for text in written)]


def known_ids(form: CompiledFormat) -> tuple[list[int], list[int]]:
    """All ids, and those that tell most: markers, brackets, quotes, and letters of markers."""
    tokenizer = form.marks.tokenizer
    everything = [i for i in range(tokenizer.vocab_size) if tokenizer.knows(i)]
    telling = [token.id for token in tokenizer.added_tokens] * 2
    for text in [*LOOSE, *_all_literals(form.table)]:
        telling += tokenizer.encode(text)
    return everything, telling


def starts(table: OutputFormat) -> list[str]:
    """The regions that an output of the format may begin in."""
    if table.messages is None:
        return ["content", "reasoning"] if table.reasoning is not None else ["content"]
    opener = table.messages.open[0]
    return [HEADER, f"{HEADER}assistant", f"{HEADER}assistant{table.messages.body[0]}", f"{HEADER}{opener}"]


def pieces(table: OutputFormat) -> list[str]:
    """What outputs are made of at random: markers, headers, whole calls and bodies, and loose characters."""
    found = [text for text in _all_literals(table) if text]
    found += [text[: len(text) // 2] for text in found]
    found += [*table.end_of_turn, *WORDS, *LOOSE, *NAMES]
    rng = random.Random(table.name)
    for calls in table.calls:
        for _ in range(3):
            name, arguments = draw_call(rng)
            found += [one_call(calls, name, arguments), header(calls, name), body(calls.body, name, arguments)]
            found.append(wrapped(calls, [(name, arguments)]))
    return list(dict.fromkeys(text for text in found if text))


def broken(text: str, rng: random.Random) -> str:
    """A text with a character dropped, doubled or changed, a part cut out, or its end gone."""
    for _ in range(rng.randint(1, 3)):
        if not text:
            break
        at = rng.randrange(len(text))
        match rng.randrange(5):
            case 0:
                text = text[:at] + text[at + 1 :]
            case 1:
                text = text[:at] + text[at] + text[at:]
            case 2:
                text = text[:at] + rng.choice(LOOSE) + text[at + 1 :]
            case 3:
                text = text[:at] + text[at + rng.randint(1, 12) :]
            case _:
                text = text[:at]
    return text


# ----------------------------------------------------------------------------------------------------- well formed


def draw_call(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A call of one of the tools, with arguments of the types that its schema says."""
    word = rng.choice(WORDS).strip()
    drawn: list[tuple[str, dict[str, Any]]] = [
        ("get_time", {}),
        ("get_weather", {"city": word}),
        ("get_weather", {"city": word, "unit": "c"}),
        ("add", {"a": rng.randint(-5, 1000), "b": rng.randint(1, 9) + 0.5}),
        ("set_flags", {"on": rng.random() < 0.5, "zip": "00123"}),
    ]
    return rng.choice(drawn)


def header(calls: Calls, name: str) -> str:
    """What stands between a call's opener and its body."""
    if calls.header is None:
        return ""
    return next(text for part, text in _HEADERS if part in calls.header).replace("NAME", name)


def one_call(calls: Calls, name: str, arguments: dict[str, Any]) -> str:
    """A call with its own tags."""
    opener, closer = (calls.call.open[0], (calls.call.close or ("",))[0]) if calls.call is not None else ("", "")
    if opener == "<|open|>call":
        return f"{opener}{header(calls, name)}{body(calls.body, name, arguments)}{closer}"
    fence = calls.body.fence if isinstance(calls.body, JsonMembers) else ""
    return opener + header(calls, name) + body(calls.body, name, arguments) + (f"\n{fence}" if fence else "") + closer


def wrapped(calls: Calls, drawn: list[tuple[str, dict[str, Any]]]) -> str:
    """Some calls as the format writes them: in its section, and in one list where it has lists."""
    listed = isinstance(calls.body, PythonCall) or (isinstance(calls.body, JsonMembers) and calls.body.array)
    if listed and isinstance(calls.body, PythonCall):
        between = ", " if calls.body.brackets else "\n"
        joined = between.join(_python(name, arguments) for name, arguments in drawn)
        text = _tagged(calls, f"[{joined}]" if calls.body.brackets else joined)
    elif listed and isinstance(calls.body, JsonMembers):
        objects = [_object(calls.body, name, arguments) for name, arguments in drawn]
        text = _tagged(calls, json.dumps(objects) + (f"\n{calls.body.fence}" if calls.body.fence else ""))
    else:
        between = (calls.separators or "\n") if calls.section is None else ""
        text = between.join(one_call(calls, name, arguments) for name, arguments in drawn)
    return f"{calls.section.open[0]}{text}{calls.section.close[0]}" if calls.section is not None else text


def _tagged(calls: Calls, text: str) -> str:
    return f"{calls.call.open[0]}{text}{(calls.call.close or ('',))[0]}" if calls.call is not None else text


def _object(table: JsonMembers, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: arguments} if table.name is None else {table.name: name, table.arguments[0]: arguments}


def _python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def body(table: object, name: str, arguments: dict[str, Any]) -> str:
    """A call's body."""
    match table:
        case JsonMembers():
            one = json.dumps(_object(table, name, arguments), ensure_ascii=False)
            return f"[{one}]" if table.array else one
        case JsonValue():
            opened, closed = table.fence
            text = json.dumps(arguments, ensure_ascii=False)
            return f"{opened}\n{text}\n{closed}" if opened else text
        case Parameters():
            return "".join(_parameter(table, key, value) for key, value in arguments.items())
        case KeyValues():
            written = (
                f"{key}:{table.fence}{value}{table.fence}" if isinstance(value, str) else f"{key}:{json.dumps(value)}"
                for key, value in arguments.items()
            )
            return f"{{{','.join(written)}}}"
        case PythonCall():
            return f"[{_python(name, arguments)}]" if table.brackets else _python(name, arguments)
        case NestedElements():
            return "".join(f"{table.mark}<{key}>{_text(value)}{table.mark}</{key}>" for key, value in arguments.items())
        case _:
            raise NotImplementedError(type(table).__name__)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _parameter(table: Parameters, key: str, value: Any) -> str:
    """One parameter with its opener; the key's end is the table's pattern."""
    if "«</" in table.key:  # a key with its own closer, and an opener of the value
        literals = [part.split("»")[0] for part in table.key.split("«")[1:]]
        closer, opener = literals[0], literals[-1]
        return f"{table.open}{key}{closer}{opener}{_text(value)}{table.close}"
    if "<|sep|>" in table.key:
        kind = {str: "string", bool: "boolean", int: "number", float: "number"}[type(value)]
        return f'{table.open} key="{key}" type="{kind}"<|sep|>{_text(value)}{table.close}'
    if "string" in table.key:
        return f'{table.open}{key}" string="{str(isinstance(value, str)).lower()}">{_text(value)}{table.close}'
    end = '">' if table.open.endswith('"') else ">"
    if table.open.endswith("name="):
        key = f'"{key}"'
    text = f"\n{_text(value)}\n" if table.newline else _text(value)
    return f"{table.open}{key}{end}{text}{table.close}"


def well_formed(table: OutputFormat, rng: random.Random) -> Sample:
    """An output as the family's models write it: reasoning, an answer or a text before the calls, and the calls."""
    calls = [draw_call(rng) for _ in range(rng.randint(0, 3))] if table.calls else []
    thought = rng.choice(["", rng.choice(WORDS)])
    said = rng.choice(["", rng.choice(WORDS)])
    if table.messages is not None:
        return _messages(table, rng, thought, said, calls)
    text, start = "", "content"
    if table.reasoning is not None:
        tags = table.reasoning.tags
        if table.reasoning.start == "reasoning" or rng.random() < 0.5:
            text, start = f"{thought}{tags.close[0]}", "reasoning"
        elif thought:
            text = f"{tags.open[0]}{table.reasoning.prefix}{thought}{tags.close[0]}"
    if table.reasoning is None:
        thought = ""
    grammar = rng.choice(table.calls) if table.calls else None
    if calls and grammar is not None:
        if grammar.section is None and grammar.call is None:
            said = ""
        text += said + ("\n" if said else "") + wrapped(grammar, calls)
    elif table.answer is not None and table.answer.close and rng.random() < 0.5:
        text += f"{table.answer.open[0]}{said}{table.answer.close[0]}"
    else:
        text += said
    end = rng.choice(table.end_of_turn) if table.end_of_turn and rng.random() < 0.7 else ""
    return Sample(text=text, end=end, start=start, reasoning=thought, content=said, calls=calls)


def _messages(
    table: OutputFormat, rng: random.Random, thought: str, said: str, calls: list[tuple[str, dict[str, Any]]]
) -> Sample:
    """A chain of messages; the prompt has the opener of the first."""
    parts: list[str] = []
    match table.name:
        case "harmony":
            start, opener = "assistant", "<|start|>assistant"
            parts += [f"<|channel|>analysis<|message|>{thought}<|end|>"] if thought else []
            parts += [f"<|channel|>commentary<|message|>{said}<|end|>"] if said else []
            parts += [
                f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(arguments)}<|call|>"
                for name, arguments in calls
            ]
        case "inkling":
            start, opener = "", "<|message_model|>"
            parts += [f"<|content_thinking|>{thought}<|end_message|>"] if thought else []
            parts += [f"<|content_text|>{said}<|end_message|>"] if said else []
            parts += [
                f"<|content_invoke_tool_json|>{json.dumps({'name': name, 'args': arguments})}<|end_message|>"
                for name, arguments in calls
            ]
        case _:
            start, opener = "assistant", "<|start|>assistant"
            parts += [f" to=self<|message|>{thought}<|eom|>"] if thought else []
            parts += [f" to=user<|message|>{said}<|eom|>"] if said else []
            parts += [f" to=tool<|message|>{wrapped(table.calls[0], calls)}<|eot|>"] if calls else []
    return Sample(text=opener.join(parts), start=HEADER + start, reasoning=thought, content=said, calls=calls)
