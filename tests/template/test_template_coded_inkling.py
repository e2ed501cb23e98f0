"""Inkling's prompts, written out."""

from __future__ import annotations

from typing import Any

import pytest
from tests.template.coded import WEATHER, call, calls, chat, render, result

from derender.protocol.errors import BadRequest
from derender.template.coded.inkling import Inkling

USER = "<|message_user|><|content_text|>Hi<|end_message|>"
EFFORT = "<|message_system|><|content_text|>Thinking effort level: {}<|end_message|>"
MODEL = "<|message_model|>"


def test_a_question() -> None:
    assert render(Inkling(), chat("Hi")) == f"{EFFORT.format(0.9)}{USER}{MODEL}"
    assert render(Inkling(), chat("Hi", add_generation_prompt=False)) == f"{EFFORT.format(0.9)}{USER}"


def test_instructions_go_before_the_effort() -> None:
    body = chat({"role": "developer", "content": "D"}, {"role": "user", "content": "Hi"}, reasoning_effort="none")
    text = f"<|message_system|><|content_text|>D<|end_message|>{EFFORT.format('0.0')}{USER}{MODEL}"
    assert render(Inkling(), body) == text


@pytest.mark.parametrize(("effort", "written"), [(0, "0.0"), (0.5, "0.5"), (0.99, "0.99"), ("max", "0.99")])
def test_efforts(effort: Any, written: str) -> None:
    body = chat("Hi", chat_template_kwargs={"reasoning_effort": effort})
    assert render(Inkling(), body).startswith(EFFORT.format(written))


@pytest.mark.parametrize("effort", ["much", 1, -0.1, True, []])
def test_an_effort_that_there_is_none_of(effort: Any) -> None:
    with pytest.raises(BadRequest, match=r"a number from 0 to 0\.99"):
        render(Inkling(), chat("Hi", chat_template_kwargs={"reasoning_effort": effort}))


def test_tools_and_calls() -> None:
    made = [call("a", "f", '{"z": 1, "a": {"c": 1.0, "b": "é"}}')]
    assert render(
        Inkling("<|unused_200024|>"), chat("Hi", calls(*made, reasoning="Hm"), result("a", "x"), tools=[WEATHER])
    ) == (
        '<|message_system|>tool_declare<|unused_200024|>[{"description":"Weather of a city.","name":"get_weather",'
        '"parameters":{"properties":{"city":{"type":"string"}},"required":["city"],"type":"object"},"type":"function"}]'
        f"<|end_message|>{EFFORT.format(0.9)}{USER}{MODEL}<|content_thinking|>Hm<|end_message|>"
        f'{MODEL}f<|content_invoke_tool_json|>{{"name":"f","args":{{"a":{{"b":"é","c":1.0}},"z":1}}}}<|end_message|>'
        f"<|content_model_end_sampling|><|message_tool|>f<|content_text|>x<|end_message|>{MODEL}"
    )


def test_continue() -> None:
    body = chat("Hi", "Su", continue_final_message=True, add_generation_prompt=False)
    assert render(Inkling(), body) == f"{EFFORT.format(0.9)}{USER}{MODEL}<|content_text|>Su"
    for turns in (("Hi",), ("Hi", "")):
        with pytest.raises(BadRequest, match="not a text of the assistant"):
            render(Inkling(), chat(*turns, continue_final_message=True, add_generation_prompt=False))
