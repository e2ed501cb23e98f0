"""Harmony's prompts, written out."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from tests.template.coded import WEATHER, call, calls, chat, render, result

from derender.protocol.errors import BadRequest
from derender.template.coded.harmony import Harmony
from derender.template.coded.typescript import type_of

Json = Any
SYSTEM = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
    "Knowledge cutoff: 2024-06\nCurrent date: 2025-03-07\n\nReasoning: {}\n\n"
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
)
MEDIUM = SYSTEM.format("medium") + "<|end|>"
USER = "<|start|>user<|message|>Hi<|end|>"
CALL = call("c1", "get_weather", '{"city":  "Oslo"}')


def prompt(body: Json, **options: Json) -> str:
    return render(Harmony(), body, current_date="2025-03-07", **options)


def test_a_question() -> None:
    assert prompt(chat("Hi")) == f"{MEDIUM}{USER}<|start|>assistant"


def test_today_is_the_date() -> None:
    assert f"\nCurrent date: {datetime.now():%Y-%m-%d}\n" in render(Harmony(), chat("Hi"))


def test_no_generation_prompt() -> None:
    assert prompt(chat("Hi", add_generation_prompt=False)) == f"{MEDIUM}{USER}"


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_effort(effort: str) -> None:
    assert prompt(chat("Hi", reasoning_effort=effort)).startswith(SYSTEM.format(effort))


@pytest.mark.parametrize("effort", ["none", "max"])
def test_an_effort_that_harmony_lacks(effort: str) -> None:
    with pytest.raises(BadRequest, match=r"Supported values are: high, medium, low\.") as caught:
        prompt(chat("Hi", reasoning_effort=effort))
    assert caught.value.param == "reasoning_effort"


@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_are_the_developers(role: str) -> None:
    body = chat({"role": role, "content": "Be brief."}, {"role": "user", "content": "Hi"})
    assert prompt(body) == (
        f"{MEDIUM}<|start|>developer<|message|># Instructions\n\nBe brief.<|end|>{USER}<|start|>assistant"
    )


def test_own_identity() -> None:
    text = prompt(chat("Hi", chat_template_kwargs={"model_identity": "You are Bo."}))
    assert text.startswith("<|start|>system<|message|>You are Bo.\nKnowledge cutoff: 2024-06\n")


def test_tools() -> None:
    assert prompt(chat("Hi", tools=[WEATHER])) == (
        SYSTEM.format("medium") + "\nCalls to these tools must go to the commentary channel: 'functions'.<|end|>"
        "<|start|>developer<|message|># Tools\n\n## functions\n\nnamespace functions {\n\n// Weather of a city.\n"
        "type get_weather = (_: {\ncity: string,\n}) => any;\n\n} // namespace functions<|end|>"
        f"{USER}<|start|>assistant"
    )


def test_a_call_is_the_models_own_text() -> None:
    """Also where it has blanks that JSON does not need, so that the prefix cache of an engine holds."""
    assert prompt(chat("Hi", calls(CALL, reasoning="Look."), result("c1", "Rain"))) == (
        f"{MEDIUM}{USER}<|start|>assistant<|channel|>analysis<|message|>Look.<|end|>"
        "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>"
        '{"city":  "Oslo"}<|call|>'
        "<|start|>functions.get_weather<|channel|>commentary to=assistant<|message|>Rain<|end|><|start|>assistant"
    )


def test_analysis_goes_once_there_is_an_answer() -> None:
    history = (calls(CALL, reasoning="Look."), result("c1", "Rain"))
    answer = {"role": "assistant", "content": "It rains.", "reasoning": "Say so."}
    text = prompt(chat("Hi", *history, answer, {"role": "user", "content": "Ok"}))
    assert "Look." not in text
    assert "Say so." not in text
    assert "<|start|>assistant<|channel|>final<|message|>It rains.<|end|><|start|>user<|message|>Ok<|end|>" in text


@pytest.mark.parametrize(
    ("last", "end"),
    [
        ({"content": "It rai"}, "<|channel|>final<|message|>It rai"),
        (
            {"content": "It rai", "reasoning": "Hm."},
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It rai",
        ),
        ({"content": None, "reasoning": "Hm"}, "<|channel|>analysis<|message|>Hm"),
    ],
)
def test_continue(last: Json, end: str) -> None:
    body = chat(
        "Hi", {"role": "assistant", **last}, continue_final_message=True, add_generation_prompt=False
    )  # fmt: skip
    assert prompt(body) == f"{MEDIUM}{USER}<|start|>assistant{end}"


@pytest.mark.parametrize("turns", [("Hi",), ("Hi", ""), ({"role": "system", "content": "S"},)])
def test_only_what_the_assistant_said_is_continued(turns: tuple[Json, ...]) -> None:
    with pytest.raises(BadRequest, match="not one of the assistant"):
        prompt(chat(*turns, continue_final_message=True, add_generation_prompt=False))


def test_parts_are_joined_as_they_are() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "<|start|>user<|message|>ab<|end|>" in prompt(chat({"role": "user", "content": parts}))


def test_thinking_parts_are_refused() -> None:
    with pytest.raises(BadRequest, match="send them as `reasoning`"):
        prompt(chat("Hi", {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}))


def test_a_role_that_harmony_lacks() -> None:
    with pytest.raises(BadRequest, match="harmony has no messages of role 'function'") as caught:
        prompt(chat("Hi", {"role": "function", "content": "x"}))
    assert caught.value.param == "messages.1.role"


def deep(levels: int) -> Json:
    schema: Json = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_a_schema_nested_too_deeply() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": deep(20_000)}}
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(BadRequest, match="nested too deeply"):
        Harmony().render(messages, tools=[tool])


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({}, "any"),
        (True, "any"),
        ({"type": "integer"}, "number"),
        ({"type": ["integer", "null"]}, "number | null"),
        ({"type": "array"}, "Array<any>"),
        ({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}, '"a" | "b"[]'),
        ({"type": "string", "enum": [1]}, "string"),
        ({"oneOf": [{"type": "string"}, {"type": "number", "description": "n"}]}, "\n | string\n | number // n"),
        ({"type": "object"}, "{\n}"),
        (
            {"type": "object", "properties": {"a": {"type": "string", "default": 'x"y'}}, "required": ["a"]},
            '{\na: string, // default: "x"y"\n}',
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string", "enum": ["s"], "default": "s"}}},
            '{\na?: "s", // default: s\n}',
        ),
        (
            {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"description": "B"}}}}},
            "{\na?: {\n    // B\n    b?: any,\n    },\n}",
        ),
        (
            {"type": "object", "properties": {"a": {"title": "T", "examples": ["e", 1], "nullable": True}}},
            '{\n// T\n//\n// Examples:\n// - "e"\na?: any | null,\n}',
        ),
        (
            {"type": "object", "properties": {"a": {"oneOf": [{"type": "string"}], "description": "D", "default": 1}}},
            "{\n// D\n// default: 1\na?:\n | string\n,\n}",
        ),
        (
            {"type": "object", "properties": {"a": {"default": [1e21, 1e-7, 0.5, None]}}},
            "{\na?: any, // default: [1e+21,1e-7,0.5,null]\n}",
        ),
    ],
)
def test_types(schema: Json, written: str) -> None:
    assert type_of(schema) == written
