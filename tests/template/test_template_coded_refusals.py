"""Whatever the conversation, a prompt or a short reason comes out, soon, and the messages stay as they are."""

from __future__ import annotations

import json
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.template.coded import attempt, chat
from tests.template.coded_conversations import request
from tests.template.test_template_messages import wild

from derender.protocol.errors import ApiError, BadRequest
from derender.template.coded.base import CodedTemplate
from derender.template.coded.deepseek_v4 import DeepseekV4, DeepseekV41
from derender.template.coded.deepseek_v32 import DeepseekV32
from derender.template.coded.harmony import Harmony
from derender.template.coded.inkling import Inkling
from derender.template.coded.kimi_k3 import KimiK3
from derender.template.coded.mistral import VERSIONS, Mistral
from derender.template.content_format import ContentFormat
from derender.template.messages import normalize_messages

TEMPLATES = [
    Harmony(), DeepseekV32(), DeepseekV4(), DeepseekV41(), KimiK3(), Inkling(),
    *(Mistral(version=version, thinks=version >= 13) for version in VERSIONS),
]  # fmt: skip
ALL = pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)


@ALL
def test_a_prompt_or_a_reason(template: CodedTemplate) -> None:
    found = []
    for seed in range(300):
        body = request(seed)
        if seed % 3 == 0:
            body |= {"add_generation_prompt": False, "continue_final_message": seed % 2 == 0}
        found.append(attempt(template, body))
    assert sum(made for made, _ in found) >= 20
    assert all(made or 0 < len(text) < 300 for made, text in found)


@given(st.lists(wild, min_size=1, max_size=4), st.sampled_from(TEMPLATES), st.booleans(), st.booleans())
def test_any_messages(messages: list[Any], template: CodedTemplate, asks: bool, continues: bool) -> None:
    try:
        normal = normalize_messages(
            messages, content_format=template.content_format, developer_role=True, model_name="m"
        )
        text = template.render(normal, add_generation_prompt=asks, continue_final_message=continues)
    except ApiError:
        return
    assert text.encode()


_WRONG = (
    [],
    {},
    ["high"],
    {"type": []},
    {"type": "json_schema"},
    {"type": {}},
    5,
    1.5,
    -1,
    True,
    "",
    "no such",
    10**4200,
)


@ALL
def test_a_variable_of_any_type_gives_a_prompt_or_a_refusal_that_names_it(template: CodedTemplate) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    normal = normalize_messages(messages, content_format=template.content_format, developer_role=True, model_name="m")
    for name in sorted(template.variables):
        for value in (*_WRONG, *({"type": "json_schema", "json_schema": inner} for inner in _WRONG)):
            try:
                said = name if template.render(normal, **{name: value}).encode() else ""
            except BadRequest as error:
                said = error.param or ""
            assert said.endswith((name, "thinking_effort")), (name, value)


@pytest.mark.parametrize("name", ["model_identity", "current_date"])
@pytest.mark.parametrize("value", [5, [], {}, True, ["x"]])
def test_what_harmony_writes_as_a_text_is_one(name: str, value: object) -> None:
    with pytest.raises(BadRequest, match=f"{name} must be a string") as caught:
        Harmony().render([{"role": "user", "content": "hi"}], **{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize("value", [[], {}, ["role"]])
def test_a_call_header_that_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(BadRequest, match="call_header must be one of role, channel"):
        Harmony().render([{"role": "user", "content": "hi"}], call_header=value)


@pytest.mark.parametrize("style", ["string", "openai", "parts", "exact"])
@ALL
def test_any_content_format_that_an_operator_sets(template: CodedTemplate, style: ContentFormat) -> None:
    parts = [{"type": "text", "text": "Hi"}]
    body = chat({"role": "user", "content": parts}, "Sure", {"role": "user", "content": parts})
    normal = normalize_messages(body["messages"], content_format=style, developer_role=True, model_name="m")
    assert template.render(normal) == template.render(body["messages"])


@ALL
def test_messages_are_not_changed(template: CodedTemplate) -> None:
    for seed in range(40):
        body = request(seed)
        messages = normalize_messages(
            body["messages"], content_format=template.content_format, developer_role=True, model_name="m"
        )
        before = json.dumps([messages, body.get("tools")])
        try:
            template.render(messages, tools=body.get("tools"))
        except ApiError:
            continue
        assert json.dumps([messages, body.get("tools")]) == before


@ALL
def test_a_history_of_many_messages_takes_linear_time(template: CodedTemplate) -> None:
    def seconds(turns: int) -> float:
        body = chat(*("Hi", "Sure") * turns, "Go")
        messages = normalize_messages(
            body["messages"], content_format=template.content_format, developer_role=True, model_name="m"
        )
        started = perf_counter()
        template.render(messages)
        return perf_counter() - started

    seconds(100)
    assert seconds(20_000) < 5


@ALL
def test_no_messages(template: CodedTemplate) -> None:
    with pytest.raises(BadRequest, match="must not be empty"):
        template.render([])


@ALL
def test_a_generation_prompt_and_a_message_to_continue(template: CodedTemplate) -> None:
    with pytest.raises(BadRequest, match="Cannot set both"):
        template.render([{"role": "user", "content": "x"}], continue_final_message=True)


@ALL
def test_it_is_told_as_what_it_is(template: CodedTemplate) -> None:
    assert template.developer_role
    assert "CodedTemplate" not in repr(template)
    assert template.content_format in ("string", "openai", "parts", "exact")


def test_a_lone_surrogate() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "\ud800"}]
    with pytest.raises(BadRequest, match="lone surrogate"):
        Harmony().render(messages)
