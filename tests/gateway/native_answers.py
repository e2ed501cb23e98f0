"""Answers of models to the scenarios of `canitoolcall probe`, and how families of models write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Said:
    """What a model says: what it thinks, what it tells, and calls as `(name, arguments)`."""

    thought: str = ""
    told: str = ""
    calls: tuple[tuple[str, Arguments], ...] = ()


SAID: Mapping[str, Said] = {
    "single-call": Said("The user wants the weather in Paris.", calls=(("get_weather", {"city": "Paris"}),)),
    "parallel-calls": Said(
        "Two cities <b>and</b> two calls.",
        calls=(("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Tokyo", "unit": "c"})),
    ),
    "no-call": Said("17 + 25 is 42.", "42"),
    "nested-args": Said(
        "An event, then.",
        calls=(
            (
                "create_event",
                {
                    "title": "Design review",
                    "start": "2026-10-01T15:00:00Z",
                    "attendees": [
                        {"name": "Ana", "email": "ana@example.com"},
                        {"name": "Bo", "email": "bo@example.com"},
                    ],
                    "location": {"city": "Berlin", "room": "4.12"},
                },
            ),
        ),
    ),
    "unicode-args": Said(
        "Exactly as it is written: ☕ 東京 🚀",
        calls=(
            ("save_note", {"title": "Grüße aus Zürich", "body": "Café ☕ in 東京 — naïve résumé 🚀"}),
        ),
    ),
    "empty-args": Said("No arguments.", calls=(("get_server_time", {}),)),
    "forced-tool-choice": Said("", calls=(("get_weather", {"city": "Lisbon"}),)),
    "tool-result-followup": Said("18 degrees, it says.", "It is 18 °C in Paris, and clear. ☀️"),
    "reasoning-then-call": Said(
        "9.9 is 9.90, and that is larger than 9.11.", calls=(("record_answer", {"answer": "9.9"}),)
    ),
}  # fmt: skip


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def hermes(said: Said) -> str:
    calls = [
        f'<tool_call>\n{{"name": "{name}", "arguments": {dumped(args)}}}\n</tool_call>' for name, args in said.calls
    ]
    thought = f"<think>\n{said.thought}\n</think>\n\n" if said.thought else ""
    return thought + "\n".join([*([said.told] if said.told else []), *calls]) + "<|im_end|>"


def qwen_xml(said: Said) -> str:
    """The turn has begun with `<think>` in the prompt."""
    calls = []
    for name, args in said.calls:
        given = "".join(
            f"<parameter={key}>\n{value if isinstance(value, str) else dumped(value)}\n</parameter>\n"
            for key, value in args.items()
        )
        calls.append(f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>")
    return f"{said.thought}\n</think>\n\n" + "\n".join([*([said.told] if said.told else []), *calls]) + "<|im_end|>"


def harmony(said: Said) -> str:
    """Behind `<|start|>assistant`."""
    messages = [f"<|channel|>analysis<|message|>{said.thought}<|end|>"] if said.thought else []
    for number, (name, args) in enumerate(said.calls, 1):
        end = "<|call|>" if number == len(said.calls) else "<|end|>"
        head = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        messages.append(head + dumped(args) + end)
    if said.told:
        messages.append(f"<|channel|>final<|message|>{said.told}<|return|>")
    return "<|start|>assistant".join(messages)


def deepseek_v31(said: Said) -> str:
    """Without a thought: its prompt has closed that already."""
    return _deepseek_calls(said) + "<｜end▁of▁sentence｜>"


def deepseek_v31_thinking(said: Said) -> str:
    """The turn has begun with `<think>` in the prompt."""
    return f"{said.thought}</think>" + _deepseek_calls(said) + "<｜end▁of▁sentence｜>"


def _deepseek_calls(said: Said) -> str:
    calls = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumped(args)}<｜tool▁call▁end｜>" for name, args in said.calls
    )
    return said.told + (f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>" if calls else "")


def deepseek_v32(said: Said) -> str:
    return said.told + _dsml(said, "function_calls") + "<｜end▁of▁sentence｜>"


def deepseek_v4(said: Said) -> str:
    return said.told + _dsml(said, "tool_calls") + "<｜end▁of▁sentence｜>"


def _dsml(said: Said, section: str) -> str:
    calls = ""
    for name, args in said.calls:
        given = "".join(
            f'<｜DSML｜parameter name="{key}" string="{dumped(isinstance(value, str))}">'
            f"{value if isinstance(value, str) else dumped(value)}</｜DSML｜parameter>\n"
            for key, value in args.items()
        )
        calls += f'<｜DSML｜invoke name="{name}">\n{given}</｜DSML｜invoke>\n'
    return f"\n\n<｜DSML｜{section}>\n{calls}</｜DSML｜{section}>" if calls else ""


def llama(said: Said) -> str:
    calls = [f'{{"name": "{name}", "parameters": {dumped(args)}}}' for name, args in said.calls]
    return said.told + "; ".join(calls) + "<|eot_id|>"


def mistral(said: Said) -> str:
    """Before Mistral's v11: one array of all calls, which have ids of nine letters or digits."""
    calls = [
        {"name": name, "arguments": args, "id": f"call0000{number}"} for number, (name, args) in enumerate(said.calls)
    ]
    return said.told + (f"[TOOL_CALLS] {dumped(calls)}" if calls else "") + "</s>"


def gemma4(said: Said) -> str:
    calls = "".join(f"<|tool_call>call:{name}{_gemma(args)}<tool_call|>" for name, args in said.calls)
    return said.told + calls + "<turn|>"


def _gemma(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma, value)) + "]"
    return "{" + ",".join(f"{key}:{_gemma(one)}" for key, one in value.items()) + "}"


@dataclass(frozen=True)
class Family:
    """How a family writes. `tokens`: what is one token in its vocabulary; `thinks`: whether it tells what it thinks;
    `tagged`: whether a demanded call is held to its form by a structural tag; `opened`: how its prompt's turn begins.
    """

    write: Callable[[Said], str]
    parser: str
    tokens: tuple[str, ...]
    end: str
    reasoning: str | None = None
    thinks: bool = False
    tagged: bool = True
    opened: str = ""


_CHATML = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
_DEEPSEEK = (
    "<｜end▁of▁sentence｜>", "<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "｜DSML｜",
)  # fmt: skip
_HARMONY = (
    "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>",
)  # fmt: skip

FAMILIES: Mapping[str, Family] = {
    "qwen3": Family(hermes, "hermes", _CHATML, "<|im_end|>", reasoning="qwen3", thinks=True),
    "qwen3.6": Family(
        qwen_xml, "qwen3_coder", _CHATML, "<|im_end|>", reasoning="qwen3_coder", thinks=True, opened="<think>\n"
    ),
    "gpt-oss": Family(harmony, "harmony", _HARMONY, "<|return|>", reasoning="harmony", thinks=True),
    "deepseek-v3.1": Family(
        deepseek_v31, "deepseek_v31", _DEEPSEEK, "<｜end▁of▁sentence｜>", reasoning="deepseek_v31", opened="</think>"
    ),
    "deepseek-v3.1, thinking": Family(
        deepseek_v31_thinking, "deepseek_v31", _DEEPSEEK, "<｜end▁of▁sentence｜>", reasoning="deepseek_v31",
        thinks=True, opened="<think>",
    ),
    "deepseek-v3.2": Family(
        deepseek_v32, "deepseek_v32", _DEEPSEEK, "<｜end▁of▁sentence｜>", reasoning="deepseek_v32",
        opened="<think></think>",
    ),
    "deepseek-v4": Family(
        deepseek_v4, "deepseek_v4", _DEEPSEEK, "<｜end▁of▁sentence｜>", reasoning="deepseek_v4", opened="</think>"
    ),
    "llama3.2": Family(llama, "llama3_json", ("<|eot_id|>", "<|python_tag|>"), "<|eot_id|>"),
    "mistral-7b-v3": Family(mistral, "mistral", ("</s>", "[TOOL_CALLS]"), "</s>", tagged=False),
    "gemma4": Family(
        gemma4, "gemma4", ("<turn|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"), "<turn|>",
        reasoning="gemma4", tagged=False, opened="<|channel>thought\n<channel|>",
    ),
}  # fmt: skip
"""By the name of the real vocabulary."""
