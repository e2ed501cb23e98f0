"""The structural tags of requests with tools, against those of the installed vLLM: the same text, or none in both."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.interop.conftest import ENVIRONMENT, vllm

from derender.formats.names import TOOL_PARSERS
from derender.formats.registry import FORMATS
from derender.protocol.chat import ChatCompletionRequest
from derender.rendering.structured import constraint_of
from derender.rendering.tool_grammar import StrictLevel, ToolConstraints

_SCRIPT = Path(__file__).with_name("vllm_tags.py")
_SECONDS = 300.0

PARSERS = (
    *("hermes", "longcat", "qwen3_coder", "qwen3_xml", "step3p5", "mimo", "llama3_json", "glm45", "glm47", "ling3"),
    *("kimi_k2", "kimi_k3", "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "deepseek_v41"),
    *("minimax_m2", "hy_v4", "plamo3", "openai"),
    *("gemma4", "jamba", "minimax_m3", "k2_horizon", "seed_oss", "granite4"),  # without a tag
)

# What the schemas say is what some family's tag depends on.
STRING, NUMBER = {"type": "string"}, {"type": "number"}
PARAMETERS: dict[str, Any] = {
    "some": {"type": "object", "properties": {"x": STRING, "n": {"type": "integer"}}, "required": ["x"]},
    "absent": None,
    "empty": {},
    "no properties": {"type": "object", "properties": {}},
    "open": {"type": "object", "properties": {"x": STRING}, "additionalProperties": True},
    "choices": {
        "type": "object",
        "properties": {
            "unit": {"type": "string", "enum": ["c", "f"]},
            "one": {"type": "string", "const": "only"},
            "mixed": {"enum": ["a", 1, None, True, "é"]},
            "marked": {"type": "string", "enum": ["<|x|>"]},
            "single": {"type": "string", "enum": ["a"]},
        },
    },
    "types": {
        "type": "object",
        "properties": {
            'a"b&c': STRING,
            "either": {"type": ["string", "null", "integer"]},
            "or": {"type": ["null", "integer"]},
            "untyped": {"anyOf": [STRING, NUMBER]},
            "flag": {"type": "boolean"},
            "nothing": {"type": "null"},
            "list": {"type": "array", "items": {"$ref": "#/$defs/item"}},
            "map": {"type": "object", "$defs": {"own": STRING}},
            "short": {"type": "string", "minLength": 2, "maxLength": 9},
            "long": {"type": "string", "maxLength": 5000},
        },
        "$defs": {"item": NUMBER},
        "definitions": {"other": STRING},
        "required": ["or", "flag", "elsewhere"],
    },
    "contradiction": {
        "type": "object",
        "properties": {"x": {"type": "string", "minLength": 9, "maxLength": 2, "default": None}},
    },
}
NAMED = {"type": "function", "function": {"name": "fa"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
# A client's own tag, with all members, as vLLM writes it when it puts it beside the calls.
ANY_TEXT: dict[str, Any] = {"type": "any_text", "excludes": [], "max_tokens": None, "max_chars": None}
TAG = {"type": "structural_tag", "format": {"type": "tag", "begin": "<a>", "content": ANY_TEXT, "end": "</a>"}}
OLD_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}],
    "triggers": ["<a"],
}


def json_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


def with_property(**of: Any) -> dict[str, Any]:
    return json_format({"type": "object", "properties": {"a": of}})


ASKED: dict[str, dict[str, Any]] = {
    "json_object": {"response_format": {"type": "json_object"}},
    "json_schema": json_format(SCHEMA),
    "text": {"response_format": {"type": "text"}},
    "json": {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    "regex": {"structured_outputs": {"regex": r"\d+(?:a|b)"}},
    "choice": {"structured_outputs": {"choice": ["yes", "né"]}},
    "grammar": {"structured_outputs": {"grammar": 'root ::= "a" | "b"'}},
    "tag": {"response_format": TAG},
    "older tag": {"response_format": OLD_TAG},
    "tag text": {"structured_outputs": {"structural_tag": json.dumps(TAG)}},
}
# With these xgrammar alone would hold to less than is asked, or refuse; the answer's form stays alone.
NOT_JOINED: dict[str, dict[str, Any]] = {
    "multipleOf": with_property(type="integer", multipleOf=2),
    "uniqueItems": with_property(type=["array", "null"], uniqueItems=True),
    "format": with_property(type="string", format="idn-email"),
    "pattern and length": with_property(type="string", pattern="a+", maxLength=3),
    "allOf": with_property(allOf=[STRING, {"enum": ["a"]}]),
    "propertyNames": json_format({"type": "object", "propertyNames": {"maxLength": 3}, "properties": {"a": STRING}}),
    "names' length": json_format({"type": "object", "propertyNames": {"pattern": "a", "maxLength": 3}}),
    "patternProperties": json_format({"type": "object", "patternProperties": {"a": STRING, "b": STRING}}),
    "look-ahead": {"structured_outputs": {"regex": "a(?=b)"}},
    "boundary": {"structured_outputs": {"regex": r"\bab"}},
    "flags": {"structured_outputs": {"regex": "(?i)a"}},
    "reference": {"structured_outputs": {"regex": r"(a)\1"}},
}


class Case(NamedTuple):
    parser: str
    body: dict[str, Any]
    level: StrictLevel = "auto"
    suffix: str = ""
    texts: tuple[str, ...] = ()

    def __str__(self) -> str:
        tools = [(tool["function"].get("strict"), tool["function"].get("parameters")) for tool in self.body["tools"]]
        rest = {key: value for key, value in self.body.items() if key not in ("tools", "messages")}
        return f"{self.parser}{self.suffix} level={self.level} {rest} tools={tools}"

    def constraint(self) -> dict[str, Any]:
        """What derender makes: the kinds that are set."""
        table = FORMATS[TOOL_PARSERS[self.parser]]
        request = msgspec.convert(self.body, ChatCompletionRequest)
        suffix = f"{self.suffix}>"
        tools = ToolConstraints(table, level=self.level, has_token=lambda token: token.endswith(suffix))
        made = tools(request) or constraint_of(request)
        if made is None:
            return {}
        kinds = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        return {kind: value for kind in kinds if (value := getattr(made, kind)) is not None}


def tool(name: str, parameters: Any, strict: bool | None) -> dict[str, Any]:
    function = {"name": name, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def chat(choice: Any, *tools: dict[str, Any], **rest: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "m", "messages": messages, "tools": list(tools), "tool_choice": choice, **rest}


def body(choice: Any, strict: tuple[bool | None, bool | None], parameters: str = "some", **rest: Any) -> dict[str, Any]:
    first, second = (tool(name, PARAMETERS[parameters], one) for name, one in zip(("fa", "fb"), strict, strict=True))
    return chat(choice, first, second, **rest)


def cases() -> list[Case]:
    choices: tuple[Any, ...] = ("auto", "required", NAMED, "none")
    stricts: tuple[tuple[bool | None, bool | None], ...] = ((None, None), (True, None), (True, True), (False, True))
    parallel: tuple[dict[str, Any], ...] = ({}, {"parallel_tool_calls": False})
    levels: tuple[StrictLevel, ...] = ("auto", "function", "parameter")
    made = []
    for parser in PARSERS:
        for choice, strict, one, level in itertools.product(choices, stricts, parallel, levels):
            made.append(Case(parser, body(choice, strict, **one), level))
        for choice, strict, parameters in itertools.product(choices[:3], stricts[1:3], PARAMETERS):
            made.append(Case(parser, body(choice, strict, parameters)))
        for choice, strict, one, asked in itertools.product(choices[:2], stricts[:2], parallel, ASKED.values()):
            made.append(Case(parser, body(choice, strict, **one, **asked)))
        made += [Case(parser, body("auto", (True, None), **asked)) for asked in NOT_JOINED.values()]
    made += [Case("hy_v4", body(choice, (True, None)), suffix=":opensource") for choice in choices]
    return [case for case in made if not _held_by_itself(case)]


def _held_by_itself(case: Case) -> bool:
    """vLLM holds calls of GLM to their form where no tool is strict, as with `--tool-strict-level function`. derender
    does so only where that is set: an engine without a tokenizer takes no constraint, and would refuse all tools."""
    if case.parser not in ("glm45", "glm47") or case.level != "auto" or case.body["tool_choice"] != "auto":
        return False
    return not any(tool["function"].get("strict") for tool in case.body["tools"])


# ----------------------------------------------------------------------------------------- texts that a tag allows

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}


def weather(choice: Any, **rest: Any) -> dict[str, Any]:
    time = tool("get_time", {"type": "object", "properties": {}}, None)
    return chat(choice, tool("get_weather", WEATHER, True), time, **rest)


def kimi(*calls: str, response: str = "") -> str:
    tools = f"<|open|>tools<|sep|>{''.join(calls)}<|close|>tools<|sep|>" if calls else ""
    return f"{response}<|close|>response<|sep|>{tools}<|close|>message<|sep|>"


def kimi_call(name: str, index: int, *arguments: tuple[str, str, str]) -> str:
    inner = "".join(
        f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
        for key, kind, value in arguments
    )
    return f'<|open|>call tool="{name}" index="{index}"<|sep|>{inner}<|close|>call<|sep|>'


def hunyuan(*calls: str) -> str:
    return f"<tool_calls>{''.join(f'<tool_call>{call}</tool_call>' for call in calls)}</tool_calls>"


def plamo(*calls: tuple[str, str], end: str = "<|plamo:end_tool_requests:plamo|>") -> str:
    requests = "".join(
        f"<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
        f"<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{arguments}"
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
        for name, arguments in calls
    )
    return f"<|plamo:begin_tool_requests:plamo|>{requests}{end}"


OSLO, TIME = '{"city": "Oslo"}', ("get_time", "{}")
K3_WEATHER = kimi_call("get_weather", 1, ("city", "string", "Oslo"), ("days", "number", "3"))
CITY = "<arg_key>city</arg_key><arg_value>Oslo</arg_value>"
ANALYSIS = "<|channel|>analysis<|message|>Look up Oslo.<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
WEATHER_NAMED = {"type": "function", "function": {"name": "get_weather"}}
SINGLE = {"parallel_tool_calls": False}

ALLOWED: list[tuple[str, dict[str, Any], dict[str, bool]]] = [
    (
        "kimi_k3",
        weather("required"),
        {
            kimi(K3_WEATHER): True,
            kimi(K3_WEATHER, kimi_call("get_time", 2), response="Checking now."): True,
            "<|open|>response<|sep|>" + kimi(K3_WEATHER): True,  # after reasoning the model opens the response itself
            kimi(): False,
            kimi(kimi_call("get_weather", 1)): False,  # an argument is required
            kimi(kimi_call("get_weather", 1, ("days", "number", '"3"'))): False,
            kimi(kimi_call("get_weather", 1, ("town", "string", "Oslo"))): False,
            kimi(kimi_call("get_news", 1)): False,
        },
    ),
    ("kimi_k3", weather("auto"), {kimi(response="4"): True, kimi(K3_WEATHER): True, "4": False}),
    (
        "kimi_k3",
        weather("required", **SINGLE),
        {kimi(K3_WEATHER): True, kimi(K3_WEATHER, kimi_call("get_time", 2)): False},
    ),
    (
        "hy_v4",
        weather("required"),
        {
            hunyuan(f"get_weather{CITY}"): True,
            hunyuan(f"get_weather{CITY}<arg_key>days</arg_key><arg_value>3</arg_value>", "get_time"): True,
            hunyuan("get_weather<arg_key>days</arg_key><arg_value>3</arg_value>"): False,
            hunyuan("get_weather<arg_key>town</arg_key><arg_value>x</arg_value>"): False,
            hunyuan(): False,
            "Oslo": False,
        },
    ),
    ("hy_v4", weather(WEATHER_NAMED), {hunyuan(f"get_weather{CITY}"): True, hunyuan("get_time"): False}),
    (
        "plamo3",
        weather("required"),
        {
            plamo(("get_weather", OSLO)): True,
            plamo(("get_weather", OSLO), TIME, end="<|plamo:end_tool_requests:plamo|><|plamo:tag|>"): True,
            plamo(("get_weather", '{"city": 1}')): False,
            plamo(("get_news", "{}")): False,
            plamo(): False,
            "Oslo": False,
        },
    ),
    ("plamo3", weather("auto"), {"4": True, "Now " + plamo(TIME): True, "Now " + plamo(("get_news", "{}")): False}),
    (
        "openai",
        weather("required"),
        {
            CALL + OSLO: True,
            ANALYSIS + CALL + OSLO: True,
            f"{ANALYSIS}<|channel|>commentary<|message|>Checking now.<|end|><|start|>assistant{CALL}{OSLO}": True,
            " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>" + OSLO: True,
            CALL + '{"city": "Os': False,
            CALL + "{}": False,
            f"{ANALYSIS}<|channel|>final<|message|>4": False,
        },
    ),
    ("openai", weather("auto"), {f"{ANALYSIS}<|channel|>final<|message|>4": True, CALL + OSLO: True, "4": False}),
    (
        "openai",
        weather("auto", response_format={"type": "json_object"}),
        {
            f"{ANALYSIS}<|channel|>final <|constrain|>json<|message|>{OSLO}": True,
            CALL + OSLO: True,
            f"{ANALYSIS}<|channel|>final<|message|>4": False,
        },
    ),
    (
        "hermes",
        weather("auto", response_format={"type": "json_object"}),
        {
            OSLO: True,
            f'<tool_call>\n{{"name": "get_weather", "arguments": {OSLO}}}\n</tool_call>': True,
            "Oslo": False,
            f'Now <tool_call>\n{{"name": "get_weather", "arguments": {OSLO}}}\n</tool_call>': False,
        },
    ),
]

Answered = list[tuple[Case, dict[str, Any], dict[str, Any]]]


def answered(cases: list[Case]) -> Answered:
    """Each case with derender's constraint and vLLM's answer."""
    python = Path(vllm()).with_name("python")
    if not python.exists():
        pytest.skip(f"no Python beside vLLM: {python}")
    asked = [(case, case.constraint()) for case in cases]
    run = subprocess.run(
        [str(python), str(_SCRIPT)],
        input=json.dumps([{**case._asdict(), "ours": ours.get("structural_tag")} for case, ours in asked]),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        env={**os.environ, **ENVIRONMENT},
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.strip().splitlines()[-1])
    return [(case, ours, theirs) for (case, ours), theirs in zip(asked, found, strict=True)]


@pytest.fixture(scope="module")
def answers() -> Answered:
    return answered([*cases(), *(Case(parser, body, texts=tuple(texts)) for parser, body, texts in ALLOWED)])


def test_tags_are_vllms_to_the_letter(answers: Answered) -> None:
    different = [
        f"{case}\n  ours   {ours}\n  theirs {theirs['outputs']} {theirs['error'] or ''}"
        for case, ours, theirs in answers
        if ours != theirs["outputs"]
    ]
    assert len(answers) > 5000
    if different:
        pytest.fail(f"{len(different)} of {len(answers)} differ:\n" + "\n".join(different[:5]), pytrace=False)


def test_xgrammar_takes_them(answers: Answered) -> None:
    """All but those around a schema that cannot be met or an expression that it does not read, as it refuses those."""
    refused = {str(case) for case, _, theirs in answers if theirs["compiles"] is False}
    contradicted = {str(Case("hermes", body("required", (True, None), "contradiction")))}
    assert contradicted <= refused
    assert [one for one in refused if "'minLength': 9" not in one and "'regex'" not in one] == []


def test_they_allow_what_the_families_write(answers: Answered) -> None:
    found = [theirs["accepted"] for case, _, theirs in answers if case.texts]
    assert len(found) == len(ALLOWED)
    for (parser, _, texts), accepted in zip(ALLOWED, found, strict=True):
        assert dict(zip(texts, accepted, strict=True)) == texts, parser
