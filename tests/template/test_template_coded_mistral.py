"""Mistral's prompts, a version each, written out."""

from __future__ import annotations

from typing import Any

import pytest
from tests.template.coded import WEATHER, call, calls, chat, render, result

from derender.protocol.errors import BadRequest
from derender.template.coded.mistral import VERSIONS, EffortRule, Mistral

Json = Any
SYSTEM = {"role": "system", "content": "S"}
USER = {"role": "user", "content": "Hi"}
CALL = call("abcdefghi", "f", '{"a":1,"b":"é"}')
CALLED = chat(USER, calls(CALL), result("abcdefghi", '{"x":1}'))
TOOLS = (
    '[AVAILABLE_TOOLS][{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", '
    '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]'
    "[/AVAILABLE_TOOLS]"
)


def mistral(version: int, **options: Json) -> Mistral:
    return Mistral(version=version, thinks=version >= 13, **options)


@pytest.mark.parametrize(
    ("version", "written"),
    [
        (1, "<s>[INST] S\n\nHi [/INST] Ok</s>[INST] Go [/INST]"),
        (2, "<s>[INST]Hi[/INST]Ok</s>[INST]S\n\nGo[/INST]"),
        (3, "<s>[INST]Hi[/INST]Ok</s>[INST]S\n\nGo[/INST]"),
        (7, "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]Hi[/INST]Ok</s>[INST]Go[/INST]"),
        (11, "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]Hi[/INST]Ok</s>[INST]Go[/INST]"),
        (13, "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]Hi[/INST]Ok</s>[INST]Go[/INST]"),
        (15, "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]Hi[/INST]Ok</s>[INST]Go[/INST]"),
    ],
)
def test_turns(version: int, written: str) -> None:
    answer = {"role": "assistant", "content": "Ok"}
    assert render(mistral(version), chat(SYSTEM, USER, answer, {"role": "user", "content": "Go"})) == written


@pytest.mark.parametrize(
    ("version", "written"),
    [
        (
            2,
            '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1, "b": "é"}}]</s>'
            '[TOOL_RESULTS][{"name": null, "content": {"x": 1}}][/TOOL_RESULTS]',
        ),
        (
            3,
            '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1, "b": "é"}, "id": "abcdefghi"}]</s>'
            '[TOOL_RESULTS]{"content": {"x": 1}, "call_id": "abcdefghi"}[/TOOL_RESULTS]',
        ),
        (
            7,
            '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1, "b": "é"}, "id": "abcdefghi"}]</s>'
            '[TOOL_RESULTS]abcdefghi[TOOL_CONTENT]{"x":1}[/TOOL_RESULTS]',
        ),
        (
            11,
            '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1, "b": "é"}</s>'
            '[TOOL_RESULTS]abcdefghi[TOOL_CONTENT]{"x":1}[/TOOL_RESULTS]',
        ),
        (13, '[TOOL_CALLS]f[ARGS]{"a": 1, "b": "é"}</s>[TOOL_RESULTS]{"x":1}[/TOOL_RESULTS]'),
    ],
)
def test_calls(version: int, written: str) -> None:
    assert render(mistral(version), CALLED) == f"<s>[INST]Hi[/INST]{written}"


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_tools_stand_before_the_last_or_the_first_question(version: int) -> None:
    text = render(mistral(version), chat("Hi", "Ok", "Go", tools=[WEATHER]))
    first, last = (TOOLS, "") if version >= 13 else ("", TOOLS)
    assert text == f"<s>{first}[INST]Hi[/INST]Ok</s>{last}[INST]Go[/INST]"


def test_v1_has_no_tools() -> None:
    for body in (chat("Hi", tools=[WEATHER]), CALLED):
        with pytest.raises(BadRequest, match=r"\(Mistral v1\) has no tools"):
            render(mistral(1), body)


def test_pieces_begin_with_a_blank_where_the_tokenizer_makes_none() -> None:
    template = Mistral(version=7, blank=" ")
    assert render(template, chat(SYSTEM, USER, calls(CALL, content="Ok"), result("abcdefghi", "x"))) == (
        "<s>[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] Hi[/INST] Ok"
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1, "b": "é"}, "id": "abcdefghi"}]</s>'
        "[TOOL_RESULTS] abcdefghi[TOOL_CONTENT] x[/TOOL_RESULTS]"
    )
    assert render(template, chat("")) == "<s>[INST][/INST]"
    assert render(Mistral(version=1, blank=" "), chat("a", "b", "c")) == "<s> [INST] a [/INST] b</s> [INST] c [/INST]"


def test_messages_of_one_role_are_one() -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    body = chat({"role": "user", "content": "a"}, {"role": "user", "content": parts})
    assert render(mistral(13), body) == "<s>[INST]a\n\nb\n\nc[/INST]"
    assert render(mistral(15), body) == "<s>[INST]a\n\nbc[/INST]"


def test_reasoning() -> None:
    body = chat("Hi", {"role": "assistant", "content": "Ok ", "reasoning": "Hm"}, "Go")
    body["messages"][2]["role"] = "user"
    assert render(mistral(13), body) == "<s>[INST]Hi[/INST][THINK]Hm[/THINK]Ok </s>[INST]Go[/INST]"
    with pytest.raises(BadRequest, match="no place for reasoning") as caught:
        render(mistral(7), body)
    assert caught.value.param == "messages.1"


def test_thinking_parts_of_a_system_prompt() -> None:
    content = [
        {"type": "text", "text": "Think so: "},
        {"type": "thinking", "thinking": "draft", "closed": True},
        {"type": "text", "text": "Then answer."},
    ]
    body = chat({"role": "system", "content": content}, USER)
    assert render(mistral(13), body) == (
        "<s>[SYSTEM_PROMPT]Think so: [THINK]draft[/THINK]Then answer.[/SYSTEM_PROMPT][INST]Hi[/INST]"
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_continue(version: int) -> None:
    body = chat("Hi", "Su ", continue_final_message=True, add_generation_prompt=False)
    end = "[INST] Hi [/INST] Su " if version == 1 else "[INST]Hi[/INST]Su"
    assert render(mistral(version), body) == f"<s>{end}"


def test_settings_of_v15() -> None:
    template = mistral(15, effort=EffortRule(("none", "high"), default="none"))
    text = '<s>[MODEL_SETTINGS]{{"reasoning_effort": "{}"}}[/MODEL_SETTINGS][INST]Hi[/INST]'
    assert render(template, chat("Hi")) == text.format("none")
    assert render(template, chat("Hi", reasoning_effort="high")) == text.format("high")
    with pytest.raises(BadRequest, match="one of none, high"):
        render(template, chat("Hi", reasoning_effort="low"))
    silent = mistral(15, effort=EffortRule(("high",)))
    assert render(silent, chat("Hi")) == "<s>[INST]Hi[/INST]"
    demanding = mistral(15, effort=EffortRule(("high",), optional=False))
    with pytest.raises(BadRequest, match="should be set"):
        render(demanding, chat("Hi"))


def test_results_in_the_order_of_the_calls() -> None:
    made = [call("aaaaaaaaa", "f", "{}"), call("bbbbbbbbb", "g", "{}")]
    body = chat("Hi", calls(*made), result("bbbbbbbbb", "two"), result("aaaaaaaaa", "one"))
    assert render(mistral(13), body).endswith("[TOOL_RESULTS]one[/TOOL_RESULTS][TOOL_RESULTS]two[/TOOL_RESULTS]")
    assert render(mistral(7), body).endswith(
        "two[/TOOL_RESULTS][TOOL_RESULTS]aaaaaaaaa[TOOL_CONTENT]one[/TOOL_RESULTS]"
    )


def test_long_ids_are_cut() -> None:
    body = chat("Hi", calls(call("chatcmpl-tool-123456789", "f", "{}")), result("chatcmpl-tool-123456789", "x"))
    assert "[CALL_ID]123456789[ARGS]" in render(mistral(11), body)


def test_arguments_that_are_no_json_are_a_text() -> None:
    body = chat("Hi", calls(call("abcdefghi", "f", "oops")), result("abcdefghi", "x"))
    assert '[ARGS]"oops"</s>' in render(mistral(13), body)


OTHER = call("bbbbbbbbb", "g", "{}")


@pytest.mark.parametrize(
    ("version", "body", "why"),
    [
        (3, chat("Hi", calls(call("call_1", "f", "{}")), result("call_1", "x")), "9 letters"),
        (13, chat("Hi", calls(call("", "f", "{}"))), "id is required"),
        (3, chat("Hi", calls(CALL, content="x")), "both content and tool_calls"),
        (7, chat("Hi", {"role": "assistant", "content": ""}, USER), "must have content or tool_calls"),
        (7, chat("Hi", "Ok", SYSTEM), "Unexpected role 'system' after role 'assistant'"),
        (7, chat({"role": "narrator", "content": "x"}), "no messages of role 'narrator'"),
        (7, chat(result("abcdefghi", "x")), "cannot begin with a tool's"),
        (7, chat("Hi", calls(CALL), {"role": "assistant", "content": "x"}, USER), "Not the same number"),
        (13, chat("Hi", calls(CALL, CALL), result("abcdefghi", "x")), "same id"),
        (7, chat("Hi", calls(CALL), USER, {"role": "assistant", "content": "x"}, USER), "Not the same number"),
        (13, chat("Hi", calls(CALL), result("aaaaaaaaa", "x")), "result of no call"),
        (2, chat("Hi", calls(CALL, OTHER), result("abcdefghi", "x"), result("bbbbbbbbb", "x")), "one result"),
        (7, chat("Hi", calls(call("abcdefghi", "f g", "{}"))), "a function's name"),
        (7, chat("Hi", tools=[{"type": "function", "function": {"name": "é"}}]), "a function's name"),
        (7, chat("Hi", continue_final_message=True, add_generation_prompt=False), "not from the assistant"),
    ],
)
def test_what_cannot_be_written(version: int, body: Json, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        render(mistral(version), {"add_generation_prompt": False, **body})


def test_an_answer_to_the_assistants_own_message_is_refused() -> None:
    with pytest.raises(BadRequest, match="continue_final_message"):
        render(mistral(7), chat("Hi", "Ok"))
    assert render(mistral(7), chat("Hi", "Ok", add_generation_prompt=False)) == "<s>[INST]Hi[/INST]Ok</s>"


def test_versions() -> None:
    with pytest.raises(ValueError, match="no version v5"):
        Mistral(version=5)
    assert [mistral(version).name for version in (1, 15)] == ["mistral v1", "mistral v15"]
