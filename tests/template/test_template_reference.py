"""The same prompts, to the byte, as transformers and vLLM give, over a corpus of real templates.

Needs DERENDER_REFERENCE_PYTHON, the path of a Python that has transformers (and vLLM, for the second half).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from derender.protocol.errors import ApiError, BadRequest
from derender.template.jinja import ChatTemplate
from derender.template.messages import filter_template_kwargs, normalize_messages, normalize_tools

Json = Any
CORPUS = Path(__file__).parents[2] / "../shared/templates"
NOW = datetime(2025, 3, 7, 9, 5, 1)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        "DERENDER_REFERENCE_PYTHON" not in os.environ,
        reason="DERENDER_REFERENCE_PYTHON is not set to a Python with transformers",
    ),
]

HI = {"role": "user", "content": "Hi there"}
SURE = {"role": "assistant", "content": "Sure, the "}
SYSTEM = {"role": "system", "content": "Be brief."}
PARTS = [{"type": "text", "text": "first"}, {"type": "text", "text": "second\n"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather <now> & 'later' — ü 😀",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": 'a "city"'},
                    "days": {"type": "integer", "default": 1, "minimum": 1.0},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]


def call(number: int, name: str, arguments: str) -> dict[str, Json]:
    return {"id": f"call_{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = call(1, "get_weather", '{"city":  "Z\\u00fcrich 東京", "days": 1.0, "big": 9007199254740993, "x": null}')
CLOCK = call(2, "now", "{}")
CALLS = {"role": "assistant", "content": None, "tool_calls": [WEATHER, CLOCK]}
RESULTS = [
    {"role": "tool", "tool_call_id": "call_00001", "content": "sunny", "name": "get_weather"},
    {"role": "tool", "tool_call_id": "call_00002", "content": "12:00", "name": "now"},
]
CONVERSATIONS: dict[str, list[dict[str, Json]]] = {
    "basic": [HI],
    "system": [SYSTEM, HI],
    "developer": [{"role": "developer", "content": "Be brief."}, HI],
    "turns": [SYSTEM, HI, SURE, HI],
    "prefill": [HI, SURE],
    "one call": [HI, {"role": "assistant", "content": "", "tool_calls": [WEATHER]}, RESULTS[0]],
    "parallel calls": [SYSTEM, HI, CALLS, *RESULTS, {"role": "assistant", "content": "Done"}, HI],
    "tool result parts": [HI, CALLS, RESULTS[0], {**RESULTS[1], "content": PARTS}],
    "reasoning": [HI, {"role": "assistant", "content": "ok", "reasoning": "thought"}, HI],
    "reasoning, then calls": [HI, {**CALLS, "reasoning_content": "why"}, *RESULTS],
    "think in content": [HI, {"role": "assistant", "content": "<think>\nx\n</think>\n\nok"}, HI],
    "empty content": [{"role": "user", "content": ""}],
    "null content": [HI, {"role": "assistant", "content": None}, HI],
    "user parts": [{"role": "user", "content": PARTS}],
    "unicode": [{"role": "user", "content": "é 東京 😀 \u200b\u00a0\u3000 مرحبا  \n\n\t\r\n "}],
    "name": [{"role": "user", "content": "x", "name": "bob"}],
}
ARGUMENTS: dict[str, dict[str, Json]] = {
    "plain": {"add_generation_prompt": True},
    "closed": {"add_generation_prompt": False},
    "tools": {"add_generation_prompt": True, "tools": TOOLS},
    "thinking off": {"add_generation_prompt": True, "enable_thinking": False, "thinking": False},
    "thinking on, tools": {
        "add_generation_prompt": True,
        "tools": TOOLS,
        "enable_thinking": True,
        "thinking": True,
        "reasoning_effort": "high",
    },
    "continue": {"add_generation_prompt": False, "continue_final_message": True},
    "documents": {"add_generation_prompt": True, "documents": [{"title": "t", "text": "x"}]},
}


def reference(task: dict[str, Json]) -> dict[str, Json]:
    done = subprocess.run(
        [os.environ["DERENDER_REFERENCE_PYTHON"], str(Path(__file__).with_name("reference_render.py"))],
        input=json.dumps(task).encode(),
        capture_output=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def sources() -> dict[str, str]:
    if not CORPUS.is_dir():
        pytest.skip("there is no ../shared/templates beside the repository")
    index = json.loads((CORPUS / "INDEX.json").read_bytes())
    return {entry["path"]: (CORPUS / entry["path"]).read_text(encoding="utf-8") for entry in index}


def attempt(render: Callable[[], Json]) -> list[Json]:
    try:
        return [True, render()]
    except ApiError as error:
        return [False, error.message]


def compare(kind: str, ours: list[list[Json]], theirs: list[list[Json]], labels: list[str]) -> None:
    counts = Counter((mine[0], other[0]) for mine, other in zip(ours, theirs, strict=True))
    different = [
        f"{label}\n  ours:   {mine!r}\n  theirs: {other!r}"
        for label, mine, other in zip(labels, ours, theirs, strict=True)
        if mine[0] != other[0] or (mine[0] and mine[1] != other[1])
    ]
    same = len(ours) - len(different)
    print(
        f"{kind}: {same} of {len(ours)} equal ({counts[True, True]} rendered, {counts[False, False]} refused by both)"
    )
    assert not different, f"{len(different)} of {len(ours)} differ:\n" + "\n".join(different[:5])
    assert counts[True, True] > len(ours) // 2


def test_prompts_equal_those_of_transformers() -> None:
    jobs, labels, ours = [], [], []
    for path, source in sources().items():
        template = ChatTemplate(source, now=lambda: NOW)
        for name, messages in CONVERSATIONS.items():
            conversation = normalize_messages(
                messages,
                content_format=template.content_format,
                developer_role=template.developer_role,
                model_name="m",
            )
            for wish, arguments in ARGUMENTS.items():
                if (
                    wish != "continue"
                    and name not in ("basic", "parallel calls", "reasoning", "prefill")
                    and (wish != ("tools" if "call" in name or "tool" in name else "plain"))
                ):
                    continue
                jobs.append({"source": source, "messages": conversation, "arguments": arguments})
                labels.append(f"{path}, {name}, {wish}")
                ours.append(
                    attempt(lambda: template.render(conversation, special_tokens=SPECIAL, **arguments))  # noqa: B023
                )
    theirs = reference({"transformers": jobs})["transformers"]
    compare("transformers", ours, theirs, labels)
    for label, mine, other in zip(labels, ours, theirs, strict=True):
        if not other[0] and other[1].startswith("TemplateError: "):
            assert mine[1] == other[1].removeprefix("TemplateError: "), label


def test_formats_and_variables_equal_those_of_vllm() -> None:
    corpus = sources() | {f"made {number}": source for number, source in enumerate(MADE)}
    ours = [[True, [t.content_format, sorted(t.variables)]] for t in map(ChatTemplate, corpus.values())]
    theirs = reference({"formats": list(corpus.values())})["formats"]
    for answer in theirs:  # the reference parses without the globals that a template has when it renders
        answer[1][1] = [name for name in answer[1][1] if name not in ("raise_exception", "strftime_now")]
    compare("formats and variables", ours, theirs, list(corpus))
    assert {answer[1][0] for answer in theirs} == {"string", "openai"}


LOOP = "{% for message in messages %}"
MADE = [
    LOOP + "{% for part in message.content %}{{ part.text }}{% endfor %}{% endfor %}",
    LOOP + "{% for part in message['content'] | list %}{{ part.text }}{% endfor %}{% endfor %}",
    LOOP + "{% for part in message['content'][1:] %}{{ part.text }}{% endfor %}{% endfor %}",
    LOOP + "{% for part in message['content'][0] %}{{ part.text }}{% endfor %}{% endfor %}",
    LOOP + "{% set content = message.content %}{% for part in content %}{{ part }}{% endfor %}{% endfor %}",
    LOOP + "{% set c = message.content %}{% for part in c %}{{ part }}{% endfor %}{% endfor %}",
    "{% set a = messages[1:] %}{% set b = a %}{% for m in b %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}",
    "{% set a = messages[0] %}{% for p in a.content %}{{ p }}{% endfor %}",
    "{% macro show(x) %}{% for p in x %}{{ p }}{% endfor %}{% endmacro %}"
    + LOOP
    + "{{ show(message.content) }}{% endfor %}",
    "{% macro show(x) %}{% for p in x %}{{ p }}{% endfor %}{% endmacro %}"
    + LOOP
    + "{{ show(x=message.content) }}{% endfor %}",
    "{% macro show(content) %}{% for p in content %}{{ p }}{% endfor %}{% endmacro %}"
    + LOOP
    + "{{ show(message.other) }}{% endfor %}",
    "{% macro show(x, y) %}{% for p in x %}{{ p }}{% endfor %}{% endmacro %}"
    + LOOP
    + "{{ show(1, message.content) }}{% endfor %}",
    "{% for a, b in messages %}{% endfor %}{% for content in content %}{% endfor %}",
    LOOP + "{% for a, b in message.content %}{% endfor %}{% endfor %}",
    "{% set ns = namespace() %}{% set ns.m = messages %}{% for p in content %}{% endfor %}",
    "{% for p in content %}{% endfor %}{% for a, b in content %}{% endfor %}",
    "{% for p in messages.content %}{% endfor %}",
    "{% for message in messages if message.content %}{% for p in message.content if p.text %}{% endfor %}{% endfor %}",
    "{% macro a() %}{{ hidden }}{% endmacro %}{% generation %}{{ x }}{% endgeneration %}",
]

KWARGS: dict[str, dict[str, Json]] = {
    "effort": {"reasoning_effort": "high"},
    "effort none": {"reasoning_effort": "none"},
    "effort and own": {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
    "effort and own null": {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": None}},
    "own effort": {"chat_template_kwargs": {"reasoning_effort": "low"}},
    "both efforts": {"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "low"}},
    "auto": {"chat_template_kwargs": {"enable_thinking": "auto", "thinking": None}},
    "unknown": {"chat_template_kwargs": {"zzz": 1, "enable_thinking": False}},
    "token": {"chat_template_kwargs": {"bos_token": "<b>"}},
    "tools": {"tools": TOOLS},
    "odd tools": {
        "tools": [
            {"function": {"zzz": 1, "strict": True, "parameters": {"b": 1, "a": 2.0}, "name": "f"}, "x": 1},
            {"type": "function", "defer_loading": True, "function": {"name": "g", "strict": None}},
            {"type": "function", "function": {"name": "h", "defer_loading": False, "description": None}},
        ]
    },
    "documents": {"documents": [{"title": "t", "text": "x"}]},
    "continue": {"continue_final_message": True, "add_generation_prompt": False},
    "both": {"continue_final_message": True, "add_generation_prompt": True},
}
LATE = {**SYSTEM, "content": "Late."}
DEVELOPER = {"role": "developer", "content": "Dev.", "tools": [TOOLS[1]], "name": "d"}
SHAPES: dict[str, list[Json]] = CONVERSATIONS | {
    "system later": [HI, SURE, SYSTEM, HI],
    "two systems": [SYSTEM, LATE, HI],
    "developer and systems": [SYSTEM, HI, DEVELOPER, SURE, {**LATE, "content": PARTS}, HI],
    "developer alone, later": [HI, DEVELOPER],
    "developer parts": [{**DEVELOPER, "content": PARTS}, HI],
    "developer without text": [SYSTEM, {"role": "developer", "content": ""}, HI],
    "other role": [{"role": "critic", "content": "x", "tool_calls": [CLOCK], "reasoning": "r", "task": "t"}],
    "function role": [HI, {"role": "function", "name": "f", "content": None}],
    "no content": [HI, {"role": "assistant"}, {"role": "user"}],
    "user null": [{"role": "user", "content": None}],
    "tool null": [HI, CALLS, {"role": "tool", "tool_call_id": "a", "content": None}],
    "no parts": [{"role": "user", "content": []}],
    "assistant parts": [HI, {"role": "assistant", "content": PARTS}, HI],
    "string part": [{"role": "user", "content": ["plain", {"type": "text", "text": "typed"}]}],
    "tool string part": [
        HI,
        CALLS,
        {"role": "tool", "tool_call_id": "a", "content": ["a", {"type": "text", "text": "b"}]},
    ],
    "part keys": [{"role": "user", "content": [{"text": "a", "type": "text", "cache_control": {"x": 1}, "name": "n"}]}],
    "all text kinds": [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "closed": True},
                {"type": "refusal", "refusal": "r"},
                {"type": "input_text", "text": "i"},
                {"type": "output_text", "text": "o"},
                {"type": "text", "text": ""},
            ],
        },
        HI,
    ],
    "null texts": [{"role": "user", "content": [{"type": "text", "text": None}, {"type": "text"}, *PARTS]}],
    "tool references": [
        HI,
        CALLS,
        {"role": "tool", "tool_call_id": "a", "content": [*PARTS, {"type": "tool_reference", "name": "f"}]},
    ],
    "no tool parts": [HI, CALLS, {"role": "tool", "tool_call_id": "a", "content": []}],
    "unknown part": [{"role": "user", "content": [{"type": "zzz"}]}],
    "untyped part": [{"role": "user", "content": [{"text": "x"}]}],
    "number part": [{"role": "user", "content": [5]}],
    "number content": [{"role": "user", "content": 5}],
    "number name": [{"role": "user", "content": "x", "name": 5}],
    "no role": [{"content": "x"}],
    "number role": [{"role": 5, "content": "x"}],
    "no object": ["hi"],
    "no messages": [],
    "unknown keys": [{"role": "user", "content": "x", "foo": 1, "tool_call_id": "c", "tool_calls": [CLOCK]}],
    "tool without id": [HI, CALLS, {"role": "tool", "content": "x"}],
    "call keys": [
        HI,
        {
            "role": "assistant",
            "tool_calls": [
                {"index": 0, "function": {"z": 1, "name": "f", "arguments": "{}"}, "type": "function", "id": "a"}
            ],
        },
    ],
    "no calls": [HI, {"role": "assistant", "content": "x", "tool_calls": []}, HI],
    "null calls": [HI, {"role": "assistant", "content": "x", "tool_calls": None}, HI],
    "empty arguments": [HI, {"role": "assistant", "tool_calls": [call(1, "now", "")]}, RESULTS[0]],
    "null arguments": [HI, {"role": "assistant", "tool_calls": [call(1, "now", "null")]}, RESULTS[0]],
    "call without id": [HI, {"role": "assistant", "tool_calls": [{"type": "function", "function": CLOCK["function"]}]}],
    "call without type": [HI, {"role": "assistant", "tool_calls": [{"id": "a", "function": CLOCK["function"]}]}],
    "call without name": [
        HI,
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"arguments": "{}"}}]},
    ],
    "call of another type": [HI, {"role": "assistant", "tool_calls": [{**CLOCK, "type": "custom"}]}],
    "call no object": [HI, {"role": "assistant", "tool_calls": ["x"]}],
    "reasoning twice": [HI, {"role": "assistant", "content": "x", "reasoning": "a", "reasoning_content": "b"}, HI],
    "reasoning empty": [HI, {"role": "assistant", "content": "x", "reasoning": "", "reasoning_content": "b"}, HI],
    "reasoning of a user": [{**HI, "reasoning": "r"}],
    "billing header": [{"role": "system", "content": "x-anthropic-billing-header: cch=1\nRest"}, HI],
    "billing header alone": [{"role": "system", "content": "x-anthropic-billing-header: cch=1"}, HI],
    "billing header part": [
        {"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, *PARTS]},
        HI,
    ],
    "white space": [{"role": "user", "content": "  \n\n\t x \r\n "}],
    "null character": [{"role": "user", "content": "a\0b"}],
}
# One template that prints all that it is given, in both formats, and real ones.
PRINT = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}{{ tools | tojson }}{{ documents | tojson }}"
PRINTERS = {
    "strings": PRINT + "{{ [enable_thinking, reasoning_effort, thinking, bos_token] }}{{ add_generation_prompt }}",
    "parts": PRINT + "{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}{{ enable_thinking }}",
    "developer": PRINT + "{{ 'developer' }}",
    "developer parts": PRINT + '{% for p in content %}{{ "developer" }}{% endfor %}',
}
REAL = ("qwen3", "llama-3.2", "llama3.2", "smollm2", "deepseek-v3", "hermes", "glm", "gpt-oss", "gemma", "phi")


def test_conversations_and_prompts_equal_those_of_vllm() -> None:
    corpus = PRINTERS | {p: s for p, s in sources().items() if any(name in p.lower() for name in REAL)}
    jobs, labels, ours = [], [], []
    for path, source in corpus.items():
        template = ChatTemplate(source, now=lambda: NOW)
        for name, messages in SHAPES.items():
            for wish, fields in ({"": {}} | KWARGS).items():
                if wish and wish not in ("tools", "continue") and name != "parallel calls":
                    continue
                defaults = {"thinking": True, "zz": 2} if wish == "auto" else {}
                request = json.loads(json.dumps({"model": "m", "messages": messages, **fields}))
                jobs.append({"source": source, "request": request, "defaults": defaults})
                labels.append(f"{path}, {name}, {wish}")
                ours.append(attempt(lambda: through(template, json.loads(json.dumps(request)), defaults)))  # noqa: B023
    answers = reference({"vllm": jobs})["vllm"]
    theirs = [[rendered, text[1] if rendered else text] for rendered, text in answers]
    compare("vLLM", ours, theirs, labels)


def through(template: ChatTemplate, request: dict[str, Json], defaults: dict[str, Json]) -> str:
    """What a chat request goes through on its way to a prompt."""
    conversation = normalize_messages(
        request["messages"],
        content_format=template.content_format,
        developer_role=template.developer_role,
        model_name="m",
    )
    kwargs = filter_template_kwargs(
        request.get("chat_template_kwargs"),
        template=template,
        defaults=defaults,
        reasoning_effort=request.get("reasoning_effort"),
        trusted=False,
    )
    continued = request.get("continue_final_message", False)
    if continued and request.get("add_generation_prompt"):
        raise BadRequest("both")
    return template.render(
        conversation,
        tools=normalize_tools(request.get("tools")),
        documents=request.get("documents"),
        add_generation_prompt=request.get("add_generation_prompt", True),
        continue_final_message=continued,
        special_tokens=SPECIAL,
        **kwargs,
    )
