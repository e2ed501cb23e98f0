"""The prompts of DeepSeek V3.2, V4 and V4.1, written out."""

from __future__ import annotations

from typing import Any

import pytest
from tests.template.coded import WEATHER, call, calls, chat, render, result

from derender.protocol.errors import BadRequest
from derender.template.coded.base import CodedTemplate
from derender.template.coded.deepseek_v4 import DeepseekV4, DeepseekV41
from derender.template.coded.deepseek_v32 import DeepseekV32

Json = Any
V32, V4, V41 = DeepseekV32(), DeepseekV4(), DeepseekV41()
BOS, EOS, USER, ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"
ON: Json = {"chat_template_kwargs": {"thinking": True}}
OFF: Json = {"chat_template_kwargs": {"thinking": False}}
LOW: Json = {"reasoning_effort": "low"}
EFFORT = "<｜System｜>Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
HISTORY = (
    "Hi",
    calls(call("a", "get_weather", '{"city": "Oslo", "days": [1, 2.0]}'), call("b", "now", ""), reasoning="Look."),
)
RESULTS = (result("b", "12:00"), result("a", "Rain"))


@pytest.mark.parametrize(
    ("template", "fields", "written"),
    [
        (V32, {}, f"{BOS}{USER}Hi{ASSISTANT}</think>"),
        (V32, ON, f"{BOS}{USER}Hi{ASSISTANT}<think>"),
        (V32, {"chat_template_kwargs": {"enable_thinking": True}}, f"{BOS}{USER}Hi{ASSISTANT}<think>"),
        (V4, LOW, f"{BOS}{USER}Hi{ASSISTANT}<think>"),
        (V4, OFF, f"{BOS}{USER}Hi{ASSISTANT}</think>"),
        (V4, {"reasoning_effort": "none"}, f"{BOS}{USER}Hi{ASSISTANT}</think>"),
        (V41, {}, f"{BOS}{EFFORT.format(75)}{USER}Hi{ASSISTANT}<think>"),
        (V41, {"reasoning_effort": "max"}, f"{BOS}{EFFORT.format(100)}{USER}Hi{ASSISTANT}<think>"),
        (
            V41,
            {"chat_template_kwargs": {"reasoning_effort": 7}},
            f"{BOS}{EFFORT.format(7)}{USER}Hi{ASSISTANT}<think>",
        ),
        (V41, OFF, f"{BOS}{USER}Hi{ASSISTANT}</think>"),
    ],
)
def test_a_question(template: CodedTemplate, fields: Json, written: str) -> None:
    assert render(template, chat("Hi", **fields)) == written
    bare = written.removesuffix("<think>").removesuffix("</think>").removesuffix(ASSISTANT)
    assert render(template, chat("Hi", add_generation_prompt=False, **fields)) == bare


@pytest.mark.parametrize(
    ("effort", "begins"),
    [
        ("high", "Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST"),
        ("xhigh", "Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST"),
        ("max", "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\nYou MUST"),
        ("medium", USER),
    ],
)
def test_effort_of_v4(effort: str, begins: str) -> None:
    assert render(V4, chat("Hi", reasoning_effort=effort)).startswith(BOS + begins)
    assert effort == "medium" or render(V4, chat("Hi")).startswith(f"{BOS}Reasoning Effort: Absolute maximum")


@pytest.mark.parametrize("effort", [0, 101, "medium", True, 1.5])
def test_an_effort_that_v41_lacks(effort: Json) -> None:
    with pytest.raises(BadRequest, match="an integer from 1 to 100"):
        render(V41, chat("Hi", chat_template_kwargs={"reasoning_effort": effort}))


def test_calls_of_v32() -> None:
    in_order = (result("a", "Rain"), result("b", "12:00"))
    assert render(V32, chat(*HISTORY, *in_order, **ON)) == (
        f"{BOS}{USER}Hi{ASSISTANT}<think>Look.</think>\n\n<｜DSML｜function_calls>\n"
        '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">[1, 2.0]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        f'<｜DSML｜invoke name="now">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>{EOS}'
        "\n\n<function_results>\n<result>Rain</result>\n<result>12:00</result>\n</function_results>\n\n<think>"
    )


def test_an_earlier_turn_of_v32_has_no_reasoning() -> None:
    text = render(
        V32, chat(*HISTORY, *RESULTS, {"role": "assistant", "content": "Rain."}, {"role": "user", "content": "?"}, **ON)
    )
    assert "Look." not in text
    assert text.endswith(f"</function_results>\n\n</think>Rain.{EOS}{USER}?{ASSISTANT}<think>")


def test_calls_of_v4_with_their_results_in_order() -> None:
    """The results are the user's, so the reasoning before them is that of an earlier turn."""
    assert render(V4, chat(*HISTORY, *RESULTS, **LOW)) == (
        f"{BOS}{USER}Hi{ASSISTANT}</think>\n\n<｜DSML｜tool_calls>\n"
        '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">[1, 2.0]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        f'<｜DSML｜invoke name="now">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>{EOS}'
        f"{USER}<tool_result>Rain</tool_result>\n\n<tool_result>12:00</tool_result>{ASSISTANT}<think>"
    )


def test_tools_keep_the_reasoning_of_v4() -> None:
    text = render(V4, chat(*HISTORY, *RESULTS, tools=[WEATHER], **LOW))
    assert f"{USER}Hi{ASSISTANT}<think>Look.</think>\n\n<｜DSML｜tool_calls>" in text
    schema = '{"name": "get_weather", "description": "Weather of a city.", "parameters": {"type": "object", '
    assert text.startswith(f"{BOS}\n\n## Tools\n\nYou have access")
    assert f"### Available Tool Schemas\n\n{schema}" in text


def test_arguments_of_v41() -> None:
    """Also where they were made JSON twice, and what is no object at all."""
    made = [call("a", "f", '"{\\"x\\": 1}"'), call("b", "g", "oops")]
    text = render(V41, chat("Hi", calls(*made), result("a", "1"), result("b", "2"), **OFF))
    assert '<｜DSML｜ parameter name="x" string="false">1</｜DSML｜ parameter>' in text
    assert '<｜DSML｜ parameter name="arguments" string="true">oops</｜DSML｜ parameter>' in text


def test_system_messages_of_v41() -> None:
    system = {"role": "system", "content": "S"}
    user = {"role": "user", "content": "Hi"}
    assert render(V41, chat(system, user, **OFF)) == f"{BOS}<｜System｜>S{USER}Hi{ASSISTANT}</think>"
    assert render(V41, chat(user, system, **OFF)) == f"{BOS}{USER}Hi<｜System｜>S{ASSISTANT}</think>"


@pytest.mark.parametrize(
    ("task", "end"), [("title", "<｜title｜>"), ("action", f"{ASSISTANT}</think><｜action｜>")]
)  # fmt: skip
def test_tasks(task: str, end: str) -> None:
    body = chat({"role": "user", "content": "Hi", "task": task}, **OFF)
    assert render(V4, body) == f"{BOS}{USER}Hi{end}"


def test_a_task_that_there_is_none_of() -> None:
    with pytest.raises(BadRequest, match="task must be one of action, query") as caught:
        render(V4, chat({"role": "user", "content": "Hi", "task": "x"}))
    assert caught.value.param == "messages.0.task"


@pytest.mark.parametrize(
    ("template", "fields", "end"),
    [
        (V32, {}, f"{ASSISTANT}</think>Sure"),
        (V32, ON, f"{ASSISTANT}<think></think>Sure"),
        (V4, LOW, f"{ASSISTANT}<think></think>Sure"),
        (V41, OFF, f"{ASSISTANT}</think>Sure"),
    ],
)
def test_continue(template: CodedTemplate, fields: Json, end: str) -> None:
    body = chat("Hi", "Sure", continue_final_message=True, add_generation_prompt=False, **fields)
    assert render(template, body) == f"{BOS}{USER}Hi{end}"


@pytest.mark.parametrize("template", [V32, V4, V41])
def test_what_cannot_be_written(template: CodedTemplate) -> None:
    with pytest.raises(BadRequest, match="has no messages of role 'narrator'"):
        render(template, chat({"role": "narrator", "content": "x"}))
    with pytest.raises(BadRequest, match="a developer's message must have a text"):
        render(template, chat({"role": "developer", "content": ""}))
    with pytest.raises(BadRequest, match="not a text of the assistant"):
        render(template, chat("Hi", continue_final_message=True, add_generation_prompt=False))


def test_v32_needs_a_call_for_a_result() -> None:
    with pytest.raises(BadRequest, match="no call goes before it") as caught:
        render(V32, chat("Hi", "Sure", result("a", "x")))
    assert caught.value.param == "messages.2"


def test_v32_needs_reasoning_after_the_last_question() -> None:
    with pytest.raises(BadRequest, match="must have reasoning or calls"):
        render(V32, chat("Hi", "Sure", **ON))
