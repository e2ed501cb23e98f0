"""API messages and tools in the shape that templates get them."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derender.protocol.errors import ApiError, BadRequest, InvalidBody
from derender.template.content_format import ContentFormat
from derender.template.messages import normalize_messages, normalize_tools

HI = {"role": "user", "content": "hi"}
PARTS = [{"type": "text", "text": "15 C"}, {"type": "text", "text": "cloudy"}]


def strings(*messages: Any, developer_role: bool = True) -> list[dict[str, Any]]:
    return normalize_messages(messages, content_format="string", developer_role=developer_role, model_name="the-model")


def parts(*messages: Any, developer_role: bool = True) -> list[dict[str, Any]]:
    return normalize_messages(messages, content_format="openai", developer_role=developer_role, model_name="the-model")


def calls(arguments: Any, **function: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": arguments, **function}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def in_order(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def exact(*messages: Any) -> list[dict[str, Any]]:
    return normalize_messages(messages, content_format="exact", developer_role=True, model_name="the-model")


# ------------------------------------------------------------------------------------ content


@pytest.mark.parametrize(
    ("message", "as_string", "as_parts"),
    [
        (HI, "hi", [{"type": "text", "text": "hi"}]),
        ({"role": "user", "content": ""}, "", [{"type": "text", "text": ""}]),
        ({"role": "user"}, "", []),
        ({"role": "assistant", "content": None}, "", []),
        ({"role": "user", "content": []}, "", []),
        ({"role": "user", "content": PARTS}, "15 C\ncloudy", PARTS),
        ({"role": "critic", "content": ["a", *PARTS[:1]]}, "a\n15 C", [{"type": "text", "text": "a"}, PARTS[0]]),
        ({"role": "tool", "content": "x"}, "x", "x"),
        ({"role": "tool", "content": PARTS}, "15 C\ncloudy", "15 C\ncloudy"),
        ({"role": "tool", "content": []}, "", ""),
        (
            {"role": "tool", "content": [PARTS[0], {"type": "tool_reference", "name": "f"}]},
            "15 C\nf",
            [PARTS[0], {"type": "tool_reference", "name": "f"}],
        ),
        (
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "t"}, {"type": "refusal", "refusal": "r"}],
            },
            "t\nr",
            [{"type": "text", "text": "t"}, {"type": "text", "text": "r"}],
        ),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "a", "cache_control": {"x": 1}, "uuid": None}]},
            "a",
            [{"type": "text", "text": "a", "cache_control": {"x": 1}}],
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": None}, PARTS[0]]},
            "15 C",
            [{"type": "text", "text": ""}, PARTS[0]],
        ),
    ],
)
def test_content(message: dict[str, Any], as_string: str, as_parts: Any) -> None:
    assert strings(message)[0]["content"] == as_string
    assert parts(message)[0]["content"] == as_parts


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        (HI, "hi"),
        ({"role": "user"}, ""),
        ({"role": "assistant", "content": None}, ""),
        ({"role": "tool", "tool_call_id": "c", "content": PARTS}, PARTS),
        ({"role": "user", "content": ["a", {"type": "input_text", "text": "b"}]}, ["a", "b"]),
        ({"role": "system", "content": "x-anthropic-billing-header: 1"}, ""),
    ],
)
def test_exact_content(message: dict[str, Any], kept: Any) -> None:
    texts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in kept]
    assert exact(message)[0]["content"] == (kept if isinstance(kept, str) else texts)


def test_exact_thinking_parts() -> None:
    thoughts = [{"type": "thinking", "thinking": "a"}, {"type": "thinking", "thinking": "b", "closed": False}]
    assert exact({"role": "assistant", "content": thoughts})[0]["content"] == [
        {"type": "thinking", "thinking": "a", "closed": True},
        {"type": "thinking", "thinking": "b", "closed": False},
    ]
    assert strings({"role": "assistant", "content": thoughts})[0]["content"] == "a\nb"


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [('{"a":  1}', '{"a":  1}'), ("", ""), ("oops", "oops"), (None, {}), ({"a": 1}, {"a": 1})],
)
def test_exact_arguments(arguments: Any, kept: Any) -> None:
    assert exact(calls(arguments))[0]["tool_calls"][0]["function"]["arguments"] == kept


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ('{"a":  1}', {"a": 1}),
        ("", ""),
        ("oops", "oops"),
        ("[1]", "[1]"),
        ("null", "null"),
        (None, {}),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_arguments_beside_parts(arguments: Any, kept: Any) -> None:
    message = {**calls(arguments), "content": PARTS}
    made = normalize_messages([message], content_format="parts", developer_role=True, model_name="m")
    assert made[0]["tool_calls"][0]["function"]["arguments"] == kept
    assert made[0]["content"] == PARTS


@pytest.mark.parametrize("arguments", ["\ud800", 5, ["x"]])
def test_exact_arguments_that_are_refused(arguments: Any) -> None:
    with pytest.raises(ApiError) as caught:
        exact(calls(arguments))
    assert caught.value.param == "messages.0.tool_calls.0.function.arguments"


@pytest.mark.parametrize("part", ["image_url", "input_audio", "video_url", "file", "image_embeds", "prompt_embeds"])
def test_media_are_refused_by_the_models_name(part: str) -> None:
    for content in ([{"type": part}], [{part: {}}]):
        with pytest.raises(BadRequest, match=r"^the-model is not a multimodal model$") as caught:
            strings(HI, {"role": "user", "content": [PARTS[0], *content]})
        assert caught.value.param == "messages.1.content.1.type"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_parts_equal_their_joined_string(texts: list[str]) -> None:
    listed = [{"type": "text", "text": text} for text in texts]
    whole = "\n".join(texts)
    for role in ("user", "assistant", "system", "tool"):
        assert strings({"role": role, "content": listed}) == strings({"role": role, "content": whole})
    assert parts({"role": "tool", "content": listed}) == parts({"role": "tool", "content": whole})


def test_billing_header_of_claude_code_is_dropped() -> None:
    header = "x-anthropic-billing-header: cch=1"
    assert strings({"role": "system", "content": header + "\nRest\nmore"})[0]["content"] == "Rest\nmore"
    assert strings({"role": "system", "content": header})[0]["content"] == ""
    assert parts({"role": "system", "content": header})[0]["content"] == []
    assert parts({"role": "system", "content": [{"type": "text", "text": header}, "x"]})[0]["content"] == [
        {"type": "text", "text": "x"}
    ]
    assert strings({"role": "user", "content": header})[0]["content"] == header


# ------------------------------------------------------------------------------------ other fields


def test_what_survives_of_a_message() -> None:
    message = {
        "foo": 1, "task": "t", "name": "bob", "reasoning": "why", "refusal": None, "content": "x", "role": "assistant",
        "tool_call_id": "c",
    }  # fmt: skip
    assert in_order(strings(message)[0]) == (
        '{"role": "assistant", "content": "x", "reasoning": "why", "reasoning_content": "why", "name": "bob", '
        '"task": "t"}'
    )
    assert strings({**HI, "reasoning": "r", "tool_calls": [], "tool_call_id": "c", "tools": []}) == [HI]
    assert strings({**HI, "name": None, "task": None}) == [HI]
    tool = {"role": "tool", "tool_call_id": "c", "content": "x", "name": "f"}
    assert in_order(strings(tool)[0]) == '{"role": "tool", "content": "x", "tool_call_id": "c", "name": "f"}'


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"reasoning_content": "b"}, "b"),
        ({"reasoning": "a", "reasoning_content": "b"}, "a"),
        ({"reasoning": "", "reasoning_content": "b"}, ""),
        ({"reasoning": None, "reasoning_content": "b"}, "b"),
    ],
)
def test_reasoning_has_both_names(given: dict[str, Any], kept: str) -> None:
    message = strings({"role": "assistant", "content": "x", **given})[0]
    assert (message["reasoning"], message["reasoning_content"]) == (kept, kept)


# ------------------------------------------------------------------------------------ tool calls


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": "Oslo"}', '{"city": "Oslo"}'),
        ('{"b": 1, "a": 1.0, "big": 90071992547409930000, "e": 1e2, "n": null}',
         '{"b": 1, "a": 1.0, "big": 90071992547409930000, "e": 100.0, "n": null}'),
        ("", "{}"),
        (" \n", "{}"),
        ("null", "{}"),
        (None, "{}"),
        ("{}", "{}"),
        ({"b": 1, "a": 2}, '{"b": 1, "a": 2}'),
        ('{"x": "\\u00fc\\ud83d\\ude00"}', '{"x": "ü😀"}'),
    ],
)  # fmt: skip
def test_arguments_become_mappings(arguments: Any, expected: str) -> None:
    message = strings(calls(arguments))[0]
    assert in_order(message["tool_calls"][0]["function"]["arguments"]) == expected


@pytest.mark.parametrize("arguments", ["not json", "[1]", "5", '"x"', "{bad", "[" * 100_000, "9" * 5000])
def test_arguments_that_are_no_object_name_the_message(arguments: str) -> None:
    with pytest.raises(BadRequest, match=r"^messages\.1: the arguments of tool call 0 ") as caught:
        strings(HI, calls(arguments))
    assert caught.value.param == "messages.1.tool_calls.0.function.arguments"


def test_keys_of_a_call_in_the_order_of_vllm() -> None:
    call = {"index": 0, "type": "function", "function": {"z": 1, "name": "f", "arguments": "{}"}, "id": "a"}
    message = strings({"role": "assistant", "tool_calls": [call]})[0]
    assert in_order(message["tool_calls"]) == (
        '[{"id": "a", "function": {"arguments": {}, "name": "f", "z": 1}, "type": "function", "index": 0}]'
    )


@pytest.mark.parametrize("value", [None, []])
def test_no_calls_leave_no_key(value: Any) -> None:
    assert "tool_calls" not in strings({"role": "assistant", "content": "x", "tool_calls": value})[0]


# ------------------------------------------------------------------------------------ developer

DEVELOPER = {"role": "developer", "content": "Dev.", "tools": [{"type": "function", "function": {"name": "f"}}]}
SYSTEM = {"role": "system", "content": "Sys."}


def test_developer_stays_where_the_template_knows_it() -> None:
    assert in_order(strings(DEVELOPER)) == (
        '[{"role": "developer", "content": "Dev.", "tools": [{"function": {"name": "f"}, "type": "function"}]}]'
    )
    assert strings({"role": "developer", "content": "x"})[0]["tools"] is None


def test_developer_becomes_system() -> None:
    assert strings({**DEVELOPER, "name": "d"}, HI, developer_role=False) == [
        {"role": "system", "content": "Dev.", "name": "d"},
        HI,
    ]
    assert strings(SYSTEM, HI, DEVELOPER, HI, developer_role=False) == [
        {"role": "system", "content": "Sys.\n\nDev."},
        HI,
        HI,
    ]
    assert parts(SYSTEM, HI, {**DEVELOPER, "content": PARTS}, developer_role=False) == [
        {"role": "system", "content": "Sys.\n\n15 C\ncloudy"},
        parts(HI)[0],
    ]


def test_systems_alone_are_not_merged() -> None:
    assert strings(SYSTEM, HI, SYSTEM, developer_role=False) == [SYSTEM, HI, SYSTEM]


# ------------------------------------------------------------------------------------ refusals

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def broken_call(**changes: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [CALL, {**CALL, **changes}]}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages.1"),
        (None, "messages.1"),
        ({"content": "x"}, "messages.1.role"),
        ({"role": 5}, "messages.1.role"),
        ({"role": "user", "content": None}, "messages.1.content"),
        ({"role": "tool", "content": None}, "messages.1.content"),
        ({"role": "user", "content": 5}, "messages.1.content"),
        ({"role": "user", "content": {"a": 1}}, "messages.1.content"),
        ({"role": "user", "content": ["a", 5]}, "messages.1.content.1"),
        ({"role": "user", "content": [None]}, "messages.1.content.0"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages.1.content.0.text"),
        ({"role": "user", "content": [{"type": "thinking"}]}, "messages.1.content.0.thinking"),
        ({"role": "user", "content": [{"type": "tool_reference"}]}, "messages.1.content.0.name"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages.1.content.0.type"),
        ({"role": "user", "content": [{"type": "zzz"}]}, "messages.1.content.0.type"),
        ({"role": "user", "content": [{"type": ["x"]}]}, "messages.1.content.0.type"),
        ({"role": "user", "content": "x", "name": 5}, "messages.1.name"),
        ({"role": "user", "content": "x", "task": 5}, "messages.1.task"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "messages.1.tool_call_id"),
        ({"role": "assistant", "reasoning": 5}, "messages.1.reasoning"),
        ({"role": "assistant", "reasoning_content": 5}, "messages.1.reasoning_content"),
        ({"role": "assistant", "tool_calls": {}}, "messages.1.tool_calls"),
        ({"role": "assistant", "tool_calls": ["x"]}, "messages.1.tool_calls.0"),
        (broken_call(id=None), "messages.1.tool_calls.1.id"),
        (broken_call(type="custom"), "messages.1.tool_calls.1.type"),
        (broken_call(function=None), "messages.1.tool_calls.1.function"),
        (broken_call(function={"arguments": "{}"}), "messages.1.tool_calls.1.function.name"),
        (broken_call(function={"name": "f", "arguments": 5}), "messages.1.tool_calls.1.function.arguments"),
        ({"role": "developer", "content": "x", "tools": [{}]}, "messages.1.tools.0"),
        ({"role": "developer", "content": "x", "tools": 5}, "messages.1.tools"),
    ],
)
def test_refusals_name_the_place(message: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        strings(HI, message)
    assert isinstance(caught.value, (BadRequest, InvalidBody))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user\ud800", "content": "x"}, "messages.0.role"),
        ({"role": "user", "content": "a\ud800b"}, "messages.0.content"),
        ({"role": "user", "content": ["\udfff"]}, "messages.0.content.0"),
        ({"role": "user", "content": [{"type": "text", "text": "\udfff"}]}, "messages.0.content.0.text"),
        ({"role": "user", "content": "x", "name": "\ud800"}, "messages.0.name"),
        ({"role": "assistant", "reasoning": "\ud800"}, "messages.0.reasoning"),
        ({"role": "tool", "content": "", "tool_call_id": "\ud800"}, "messages.0.tool_call_id"),
        (calls('{"a": "\\ud800"}'), "messages.0.tool_calls.0.function.arguments"),
        (calls('{"a": "\ud800"}'), "messages.0.tool_calls.0.function.arguments"),
    ],
)
def test_lone_surrogates_name_the_place(message: Any, param: str) -> None:
    with pytest.raises(BadRequest, match="lone surrogate") as caught:
        strings(message)
    assert caught.value.param == param
    caught.value.message.encode()


@pytest.mark.parametrize(("messages", "kind"), [([], BadRequest), ("hi", InvalidBody), (None, InvalidBody)])
def test_messages_that_are_none(messages: Any, kind: type[ApiError]) -> None:
    with pytest.raises(kind) as caught:
        normalize_messages(messages, content_format="string", developer_role=True, model_name="m")
    assert caught.value.param == "messages"


# ------------------------------------------------------------------------------------ properties

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "function", "arguments", "name", "id", "tools", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
wild = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "developer", "x"])},
    optional={
        "content": anything | texts,
        "tool_calls": st.lists(st.fixed_dictionaries({"id": texts, "type": st.just("function"), "function": anything})),
        "reasoning": texts,
        "name": texts,
        "tools": anything,
    },
)


@given(st.lists(wild, min_size=1, max_size=4), st.sampled_from(["string", "openai", "parts", "exact"]), st.booleans())
def test_any_messages(messages: list[Any], style: ContentFormat, developer_role: bool) -> None:
    before = copy.deepcopy(messages)
    try:
        result = normalize_messages(messages, content_format=style, developer_role=developer_role, model_name="m")
    except (BadRequest, InvalidBody):
        return
    finally:
        assert messages == before
    if developer_role:
        assert [message["role"] for message in result] == [message["role"] for message in messages]
    else:
        assert all(message["role"] != "developer" for message in result)
    for message in result:
        assert isinstance(message["content"], (str, list))
        assert isinstance(message["content"], str) or style != "string"


def test_five_megabytes_take_no_time() -> None:
    start = time.perf_counter()
    listed = [{"role": "user", "content": [{"type": "text", "text": "語x" * 10}] * 50_000} for _ in range(5)]
    strings(*listed, {"role": "user", "content": "語" * 5_000_000}, calls(json.dumps({"a": "é" * 5_000_000})))
    assert time.perf_counter() - start < 5


# ------------------------------------------------------------------------------------ tools


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (
            {"x": 1, "function": {"parameters": {"b": 1.0, "a": 2}, "z": 1, "name": "f"}, "type": "function"},
            '{"type": "function", "function": {"name": "f", "description": null, "parameters": {"b": 1.0, "a": 2}}}',
        ),
        (
            {"function": {"strict": True, "name": "f", "description": "d"}, "defer_loading": True},
            '{"type": "function", "function": {"name": "f", "description": "d", "parameters": null, "strict": true, '
            '"defer_loading": true}, "defer_loading": true}',
        ),
        (
            {"type": "function", "function": {"name": "f", "strict": None, "defer_loading": False}},
            '{"type": "function", "function": {"name": "f", "description": null, "parameters": null, '
            '"defer_loading": false}}',
        ),
    ],
)
def test_tools_have_the_shape_of_vllm(tool: Any, expected: str) -> None:
    assert in_order(normalize_tools([tool])) == f"[{expected}]"


def test_no_tools() -> None:
    assert normalize_tools(None) is None
    with pytest.raises(BadRequest, match="must not be an empty array"):
        normalize_tools([])


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ("x", "tools.1"),
        ({"type": "function"}, "tools.1.function"),
        ({"type": "custom", "function": {"name": "f"}}, "tools.1.type"),
        ({"type": "function", "function": {}}, "tools.1.function.name"),
        ({"type": "function", "function": {"name": "f", "parameters": []}}, "tools.1.function.parameters"),
        ({"type": "function", "function": {"name": "f", "strict": "yes"}}, "tools.1.function.strict"),
    ],
)
def test_refused_tools_name_the_place(tool: Any, param: str) -> None:
    with pytest.raises(InvalidBody) as caught:
        normalize_tools([{"type": "function", "function": {"name": "f"}}, tool])
    assert caught.value.param == param
