"""Kimi K3's prompts, written out."""

from __future__ import annotations

from typing import Any

import pytest
from tests.template.coded import WEATHER, call, calls, chat, render, result

from derender.protocol.errors import BadRequest
from derender.template.coded.kimi_k3 import KimiK3

Json = Any
K3 = KimiK3()
OFF: Json = {"chat_template_kwargs": {"thinking": False}}
USER = '<|open|>message role="user"<|sep|>Hi<|close|>message<|sep|><|end_of_msg|>'
ANSWER = '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>'
THINK = '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
EFFORT = (
    '<|open|>message role="system" type="thinking-effort"<|sep|>`thinking_effort` guides on how much to think in your '
    "thinking channel (not including the response channel), supported values include `low`, `medium`, `high`, and "
    "`max`.\nNow the system is invoked with `thinking_effort={}`.<|close|>message<|sep|><|end_of_msg|>"
)


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        (OFF, USER + ANSWER),
        ({"chat_template_kwargs": {"enable_thinking": False}}, USER + ANSWER),
        ({"reasoning_effort": "none"}, USER + ANSWER),
        ({}, EFFORT.format("max") + USER + THINK),
        ({"reasoning_effort": "low"}, EFFORT.format("low") + USER + THINK),
        ({"chat_template_kwargs": {"thinking_effort": "high"}}, EFFORT.format("high") + USER + THINK),
        ({**OFF, "add_generation_prompt": False}, USER),
    ],
)
def test_a_question(fields: Json, written: str) -> None:
    assert render(K3, chat("Hi", **fields)) == written


def test_an_effort_that_k3_lacks() -> None:
    with pytest.raises(BadRequest, match="low, high, max") as caught:
        render(K3, chat("Hi", reasoning_effort="medium"))
    assert caught.value.param == "thinking_effort"


def test_tools_are_sorted_json_without_nulls() -> None:
    tool = {"type": "function", "function": {"name": "now", "strict": True}}
    assert render(K3, chat("Hi", tools=[WEATHER, tool], **OFF)) == (
        '<|open|>message role="system" type="tool-declare"<|sep|># Tools\n'
        "Here are the available tools, described in JSONSchema.\n\n```json\n"
        '[{"function":{"description":"Weather of a city.","name":"get_weather","parameters":{"properties":{"city":'
        '{"type":"string"}},"required":["city"],"type":"object"}},"type":"function"},'
        '{"function":{"name":"now","strict":true},"type":"function"}]\n'
        f"```<|close|>message<|sep|><|end_of_msg|>{USER}{ANSWER}"
    )


def test_calls_and_results() -> None:
    made = [
        call("x", "f", '{"a&\\"b": "t", "n": 1.50, "b": true, "l": [1], "o": {"k": null}, "z": null}'),
        call("y", "g", ""),
    ]
    text = render(K3, chat("Hi", calls(*made, content="Wait."), result("g:1", "two"), result("x", "one"), **OFF))
    assert text == (
        f"{USER}{ANSWER}Wait.<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="f" index="1"<|sep|>'
        '<|open|>argument key="a&amp;&quot;b" type="string"<|sep|>t<|close|>argument<|sep|>'
        '<|open|>argument key="n" type="number"<|sep|>1.5<|close|>argument<|sep|>'
        '<|open|>argument key="b" type="boolean"<|sep|>true<|close|>argument<|sep|>'
        '<|open|>argument key="l" type="array"<|sep|>[1]<|close|>argument<|sep|>'
        '<|open|>argument key="o" type="object"<|sep|>{"k": null}<|close|>argument<|sep|>'
        '<|open|>argument key="z" type="null"<|sep|>null<|close|>argument<|sep|><|close|>call<|sep|>'
        '<|open|>call tool="g" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
        "<|close|>message<|sep|><|end_of_msg|>"
        '<|open|>message role="tool" tool="f" index="1"<|sep|>one<|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="tool" tool="g" index="2"<|sep|>two<|close|>message<|sep|><|end_of_msg|>'
        f"{ANSWER}"
    )


def test_results_that_name_no_call_are_taken_in_order() -> None:
    made = [call("x", "f", "{}"), call("y", "g", "{}")]
    text = render(K3, chat("Hi", calls(*made), result("y", "one"), result("?", "two"), **OFF))
    assert 'tool="f" index="1"<|sep|>one<' in text
    assert 'tool="g" index="2"<|sep|>two<' in text
    with pytest.raises(BadRequest, match="needs the id of a call before it") as caught:
        render(K3, chat("Hi", result("?", "two"), **OFF))
    assert caught.value.param == "messages.1.tool_call_id"


@pytest.mark.parametrize(
    ("choice", "written"),
    [
        ("none", "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message."),
        ("required", "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message."),
        ("auto", None),
        ({"type": "function", "function": {"name": "f"}}, None),
    ],
)
def test_tool_choice(choice: Json, written: str | None) -> None:
    said = "" if written is None else (
        f'<|open|>message role="system" type="tool-choice"<|sep|>{written}<|close|>message<|sep|><|end_of_msg|>'
    )  # fmt: skip
    assert render(K3, chat("Hi", **OFF), tool_choice=choice) == USER + said + ANSWER


def test_response_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    text = render(K3, chat("Hi", **OFF), response_format=form)
    assert text.endswith(
        "The JSON data must match the following schema:\n```json\n"
        '{"properties":{"a":{"type":"string"}},"type":"object"}\n'
        f"```<|close|>message<|sep|><|end_of_msg|>{ANSWER}"
    )
    assert render(K3, chat("Hi", **OFF), response_format={"type": "text"}) == USER + ANSWER


def test_names_and_developers() -> None:
    body = chat({"role": "developer", "content": "D"}, {"role": "user", "content": "Hi", "name": 'a"b'}, **OFF)
    assert render(K3, body) == (
        '<|open|>message role="system"<|sep|>D<|close|>message<|sep|><|end_of_msg|>'
        f'<|open|>message role="user" name="a&quot;b"<|sep|>Hi<|close|>message<|sep|><|end_of_msg|>{ANSWER}'
    )


def test_continue() -> None:
    message = {"role": "assistant", "content": "Su", "reasoning": "Hm."}
    body = chat("Hi", message, continue_final_message=True, add_generation_prompt=False)
    assert render(K3, body) == (f"{EFFORT.format('max')}{USER}{THINK}Hm.<|close|>think<|sep|><|open|>response<|sep|>Su")
    with pytest.raises(BadRequest, match="not a text of the assistant"):
        render(K3, chat("Hi", continue_final_message=True, add_generation_prompt=False))


def test_arguments_that_are_no_object() -> None:
    with pytest.raises(BadRequest, match="not a JSON object"):
        render(K3, chat("Hi", calls(call("x", "f", "[1]"))))
