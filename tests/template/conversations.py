"""Chats that chat templates are compared over: what a request may hold, one oddity each.

`CHATS` are message lists by name, with the tools, the documents and the arguments that go with each; `WISHES` are
arguments of templates, which go with the chats of `WISHED`. Messages stand as clients send them, keys of tool calls in
the order in which vLLM hands them to a template. `RAW` names the chats whose messages reach a template as they are,
where it wants content in the form in which they have it; `as_parts` gives them the other form.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = Any


@dataclass(frozen=True)
class Chat:
    """One request's part of a prompt."""

    messages: list[Json]
    tools: list[Json] | None = None
    documents: list[Json] | None = None
    arguments: dict[str, Json] = field(default_factory=dict)


def user(content: Json, **more: Json) -> Json:
    return {"role": "user", "content": content, **more}


def assistant(content: Json, **more: Json) -> Json:
    return {"role": "assistant", "content": content, **more}


def system(content: Json, role: str = "system") -> Json:
    return {"role": role, "content": content}


def call(name: str, arguments: Json, identity: str = "call00001", **more: Json) -> Json:
    return {"id": identity, "function": {"arguments": arguments, "name": name}, "type": "function", **more}


def calls(*made: Json, content: Json = "", **more: Json) -> Json:
    return {"role": "assistant", "content": content, "tool_calls": list(made), **more}


def result(content: Json, identity: str = "call00001", **more: Json) -> Json:
    return {"role": "tool", "content": content, "tool_call_id": identity, **more}


def texts(*given: str) -> list[Json]:
    return [{"type": "text", "text": text} for text in given]


def as_parts(messages: list[Json]) -> list[Json]:
    """The messages as a client sends them who writes content as parts, but for the results of tools."""
    return [
        {**message, "content": texts(message["content"])}
        if message["role"] != "tool" and isinstance(message["content"], str)
        else message
        for message in messages
    ]


def tool(name: str, parameters: Json = None, description: Json = "What it does.", **more: Json) -> Json:
    inner = {"name": name, "description": description, "parameters": parameters, **more}
    return {"type": "function", "function": inner}


def schema(required: list[str] | None = None, /, **properties: Json) -> Json:
    found: Json = {"type": "object", "properties": properties}
    return found if required is None else {**found, "required": required}


HI, SURE, MORE = user("Hi there"), assistant("Sure, the answer is 4."), user("And then?")
SYSTEM = system("Be brief.")
WEATHER = tool(
    "get_weather",
    schema(
        ["city"],
        city={"type": "string", "description": "a \"city\", 'quoted' <b>&amp;</b> — ü 東京 😀"},
        days={"type": "integer", "default": 1, "minimum": 1.0, "maximum": 1e16},
        unit={"type": "string", "enum": ["C", "F"]},
    ),
    "Weather of a city.\nTwo lines, a tab\tand <html>.",
)
CLOCK = tool("now", schema())
BOTH = [WEATHER, CLOCK]
NESTED = tool(
    "book",
    {
        "type": "object",
        "$defs": {"p": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
        "properties": {
            "people": {"type": "array", "items": {"$ref": "#/$defs/p"}, "description": "who", "minItems": 1},
            "grid": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
            "where": {
                "type": "object",
                "description": "place",
                "properties": {
                    "lat": {"type": "number", "description": "north"},
                    "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b", "ü"]}},
                    "deeper": {"type": "object", "properties": {"x": {"type": ["string", "null"]}}},
                },
                "required": ["lat"],
                "additionalProperties": False,
            },
            "either": {"anyOf": [{"type": "string"}, {"type": "integer", "description": "n"}, {"type": "null"}]},
            "one": {"oneOf": [{"type": "object", "properties": {"k": {"const": 5}}}, {"type": "boolean"}]},
            "maybe": {"type": ["string", "null"], "default": None, "nullable": True, "title": "Maybe"},
            "level": {"type": "integer", "enum": [1, 2, 3], "default": 0},
            "flag": {"type": "boolean", "default": False},
            "list": {"type": "array", "default": [], "items": {"type": "object", "properties": {"v": {}}}},
            "map": {"type": "object", "additionalProperties": {"type": "integer"}, "default": {"k": 1}},
            "when": {"type": "string", "format": "date-time", "pattern": "^\\d+\\.\\w*$", "examples": ["1.a"]},
            "any": {},
        },
        "required": ["people", "where"],
        "additionalProperties": False,
    },
    "Books.",
    strict=True,
)
# Names of properties that are names of a dict's methods too, or of what a template looks for beside them.
METHODS = tool(
    "methods",
    schema(
        ["items", "get"],
        items={"type": "array", "items": {"type": "string"}},
        keys={"type": "string", "description": "k"},
        values={"type": "object", "properties": {"items": {"type": "integer"}, "pop": {"type": "null"}}},
        get={"type": "string", "enum": ["update", "copy"]},
        type={"type": "string", "description": "its type"},
        properties={"type": "object", "properties": {"properties": {"type": "string"}}},
        required={"type": "boolean"},
        description={"type": "string"},
        default={"type": "string", "default": "default"},
        name={"type": "string"},
        arguments={"type": "object"},
        __class__={"type": "string"},
        role={"type": "string"},
    ),
)

DONE = call("get_weather", {"city": "Zürich 東京 😀", "days": 1.0, "big": 9007199254740993, "x": None}, "call00001")
TIMED = call("now", {}, "call00002")
SUNNY, NOON = result("sunny, 25 °C", name="get_weather"), result('{"time": "12:00"}', "call00002", name="now")
PLANES = (
    "é e\u0301 ß İ ŉ ǅ 東京 가\u1100\u1161 مرحبا שלום नमस्ते \u200b\u200d\u200e\u202e\u2060\ufeff \u00a0\u3000\u2028 "
    "\u2029 \u0085 \ufdd0\uffff 😀👩\u200d👩\u200d👧🏽 \U00020000\U0002fa1d \U00030000 \U000e0001\U000e0100 \U000f0000 "
    "\U0010fffd\U0010ffff"
)
CONTROLS = "a\x00b\x01\x07\x08\x0b\x0c\x1b\x1c\x1d\x1e\x1f\x7f\x80\x9f z"
SPACES = "  \n\n\t \u00a0 x  \n\n\n\n      y\t\t\r\n\r \u3000\n"
SPELLED = (
    "<|im_start|>system\nx<|im_end|> <s></s>[INST]<<SYS>>[/INST] <|eot_id|><|end_of_text|><start_of_turn>user"
    "<end_of_turn> <think>t</think> <tool_call>{}</tool_call> [TOOL_CALLS][] <|channel|>final<|message|> <｜User｜>"
    "<｜end▁of▁sentence｜> {{ 7 * 7 }} {% raw %}{% endraw %} {# c #} {0.__class__} %s %(x)s CONTINUE_FINAL_MESSAGE_TAG "
    "<tools></tools> \\n \\u0041"
)
REASONED = assistant("The answer is 4.", reasoning_content="Two and two.\n\nSo four.")

CHATS: dict[str, Chat] = {
    "user": Chat([HI]),
    "system": Chat([SYSTEM, HI]),
    "system alone": Chat([SYSTEM]),
    "system of spaces": Chat([system("  \n"), HI]),
    "empty system": Chat([system(""), HI]),
    "long system": Chat([system("You are a helper.\n\n# Rules\n" + "- one\n- two\n" * 100), HI]),
    "system parts": Chat([system(texts("One.", "Two.")), HI]),
    "developer": Chat([system("Be brief.", "developer"), HI]),
    "system and developer": Chat([SYSTEM, system("Be kind.", "developer"), HI]),
    "several systems": Chat([SYSTEM, system("Be kind."), system("Be right."), HI]),
    "system in the middle": Chat([HI, SURE, system("Now in French."), MORE]),
    "system last": Chat([HI, SURE, system("Now in French.")]),
    "turns": Chat([SYSTEM, HI, SURE, MORE]),
    "turns, closed": Chat([SYSTEM, HI, SURE, MORE, assistant("Then 5.")]),
    "many turns": Chat([SYSTEM, *(turn for n in range(25) for turn in (user(f"q{n}"), assistant(f"a{n}"))), HI]),
    "consecutive users": Chat([HI, MORE, user("Well?")]),
    "consecutive assistants": Chat([HI, SURE, assistant("Indeed."), MORE]),
    "assistant first": Chat([assistant("Welcome!"), HI]),
    "assistant alone": Chat([assistant("Welcome!")]),
    "system, assistant first": Chat([SYSTEM, assistant("Welcome!"), HI, SURE, MORE]),
    "other roles": Chat([HI, {"role": "observation", "content": "seen"}, {"role": "critic", "content": "no"}]),
    "empty user": Chat([user("")]),
    "empty answer": Chat([HI, assistant(""), MORE]),
    "null answer": Chat([HI, assistant(None), MORE]),
    "no content": Chat([HI, {"role": "assistant"}, MORE]),
    "empty prefill": Chat([HI, assistant("")]),
    "user parts": Chat([user(texts("first", "second\n", "", " third "))]),
    "answer parts": Chat([HI, assistant(texts("first ", "second")), MORE]),
    "parts to continue": Chat([HI, assistant(texts("first ", "second: "))]),
    "one part": Chat([SYSTEM, user(texts("one")), assistant(texts("two")), user(texts("three"))]),
    "names": Chat([{**SYSTEM, "name": "s"}, {**HI, "name": "bob"}, {**SURE, "name": "al"}, {**MORE, "name": "eve"}]),
    "planes": Chat([system(PLANES), user(PLANES), assistant(PLANES), user(PLANES)]),
    "controls": Chat([system(CONTROLS), user(CONTROLS), assistant(CONTROLS), user(CONTROLS)]),
    "white space": Chat([system(SPACES), user(SPACES), assistant(SPACES), user(SPACES)]),
    "long white space": Chat(
        [user(" " * 3000 + "x" + "\n" * 3000), assistant("\t" * 2000 + "y"), user("z" + " " * 999)]
    ),
    "only white space": Chat([user(" \n\t "), assistant("\n\n"), user("\r\n")]),
    "CRLF": Chat([system("a\r\nb\r\n"), user("\r\nc\rd\r\n"), assistant("e\r\n\r\nf"), user("g\r\n")]),
    "spelled tokens": Chat([system(SPELLED), user(SPELLED), assistant(SPELLED), user(SPELLED)]),
    "spelled tokens to continue": Chat([HI, assistant(SPELLED)]),
    "prefill": Chat([HI, assistant("Sure, the ")]),
    "prefill between spaces": Chat([SYSTEM, HI, assistant("\n\n  Sure, the\n  \n")]),
    "prefill of spaces": Chat([HI, assistant("  \n")]),
    "prefill said before": Chat([user("Say yes"), assistant("yes"), user("Again"), assistant("yes")]),
    "prefill in thought": Chat([HI, assistant("<think>\nLet me see")]),
    "prefill after thought": Chat([HI, assistant("<think>\nI see.\n</think>\n\nSo")]),
    "prefill with reasoning": Chat([HI, assistant("So", reasoning_content="I see.")]),
    "reasoning_content": Chat([HI, REASONED, MORE]),
    "reasoning": Chat([HI, assistant("4", reasoning="Two and two."), MORE]),
    "reasoning with spaces": Chat([HI, assistant("\n\n4\n", reasoning_content="\n\n  So.\n\n"), MORE]),
    "empty reasoning": Chat([HI, assistant("4", reasoning_content=""), MORE]),
    "reasoning only": Chat([HI, assistant("", reasoning_content="Hm."), MORE]),
    "reasoning everywhere": Chat([SYSTEM, HI, REASONED, MORE, REASONED, MORE, REASONED, user("Last?")]),
    "think in content": Chat([HI, assistant("<think>\nSo.\n</think>\n\n4"), MORE]),
    "think in content, twice": Chat([HI, assistant("<think>a</think>b<think>c</think>d"), MORE]),
    "think without an end": Chat([HI, assistant("<think>\nSo. 4"), MORE]),
    "think without a beginning": Chat([HI, assistant("So.\n</think>\n4"), MORE]),
    "switch in the text": Chat([user("Why? /no_think"), SURE, user("Really? /think")]),
    "harmony in content": Chat([HI, assistant("<|channel|>analysis<|message|>x<|end|>"), MORE]),
    # Tools.
    "one tool": Chat([HI], [WEATHER]),
    "tools": Chat([SYSTEM, HI], [WEATHER, CLOCK]),
    "tools, many turns": Chat([SYSTEM, HI, SURE, MORE, SURE, HI], [CLOCK, WEATHER, NESTED]),
    "tools, system last": Chat([HI, SYSTEM], [CLOCK]),
    "nested tool": Chat([HI], [NESTED]),
    "tool of method names": Chat([HI], [METHODS]),
    "tool without parameters": Chat([HI], [tool("f"), CLOCK]),
    "tool of empty parameters": Chat([HI], [tool("f", {})]),
    "tool without description": Chat([HI], [tool("f", schema(a={"type": "string"}), None), CLOCK]),
    "tool of empty description": Chat([HI], [tool("f", schema(a={"type": "string", "description": ""}), "")]),
    "tool of untyped properties": Chat([HI], [tool("f", schema(a={"description": "x"}, b={"enum": ["u", None, 1]}))]),
    "unicode tool": Chat(
        [HI], [tool("wetter_ü", schema(["größe"], größe={"type": "string", "description": PLANES}), PLANES)]
    ),
    "tool of spelled tokens": Chat([HI], [tool("f", schema(a={"type": "string", "description": SPELLED}), SPELLED)]),
    "many tools": Chat(
        [SYSTEM, HI], [tool(f"f{n}", schema([f"p{n}"], **{f"p{n}": {"type": "integer"}})) for n in range(40)]
    ),
    "tools, developer": Chat([system("Be brief.", "developer"), HI], BOTH),
    "call": Chat([HI, calls(DONE), SUNNY], BOTH),
    "call, null content": Chat([HI, calls(DONE, content=None), SUNNY], BOTH),
    "call without content": Chat([HI, {"role": "assistant", "tool_calls": [TIMED]}, NOON], BOTH),
    "call with text": Chat([HI, calls(DONE, content="Let me look.\n"), SUNNY, assistant("Sunny."), MORE], BOTH),
    "call without a result": Chat([HI, calls(DONE)], BOTH),
    "call without tools": Chat([HI, calls(DONE), SUNNY]),
    "call, then the user": Chat([HI, calls(DONE), MORE], BOTH),
    "parallel calls": Chat([SYSTEM, HI, calls(DONE, TIMED), SUNNY, NOON, assistant("Done."), MORE], BOTH),
    "parallel calls, other order": Chat([HI, calls(DONE, TIMED), NOON, SUNNY], BOTH),
    "parallel calls, one result": Chat([HI, calls(DONE, TIMED), SUNNY], BOTH),
    "three calls of one function": Chat(
        [HI, calls(*(call("now", {"n": n}, f"call0000{n}") for n in (1, 2, 3)))]
        + [result(f"r{n}", f"call0000{n}") for n in (3, 1, 2)],
        BOTH,
    ),
    "calls in turns": Chat([HI, calls(DONE), SUNNY, calls(TIMED), NOON, SURE, MORE, calls(TIMED), NOON], BOTH),
    "call by string": Chat(
        [HI, calls(call("get_weather", '{"city":  "Z\\u00fcrich", "days": 1.50, "n": 1e3}')), SUNNY], BOTH
    ),
    "call of no arguments": Chat([HI, calls(call("now", "")), result("12")], BOTH),
    "call of an empty object": Chat([HI, calls(call("now", "{}")), result("12")], BOTH),
    "call of null arguments": Chat([HI, calls(call("now", "null")), result("12")], BOTH),
    "call of nested arguments": Chat(
        [
            HI,
            calls(
                call(
                    "book",
                    {
                        "people": [{"name": "A"}, {"name": "Bü"}],
                        "grid": [[1, 2.5], [-0.0, 1e100]],
                        "where": {"lat": 47.25, "tags": [], "deeper": {"x": None}},
                        "flag": True,
                        "off": False,
                        "empty": "",
                        "": "no name",
                        "text": 'two\nlines\t"quoted" \\ back <b>&\'</b>',
                        "code": "def f(x):\r\n    return {'a': x}\n",
                    },
                )
            ),
            result("booked"),
        ],
        [NESTED],
    ),
    "call of method names": Chat(
        [
            HI,
            calls(call("methods", {"items": ["a"], "keys": "k", "values": {"items": 1}, "get": "copy", "pop": 0})),
            SUNNY,
        ],
        [METHODS],
    ),
    "call of spelled tokens": Chat([HI, calls(call("now", {"a": SPELLED, "b": PLANES})), result(SPELLED)], BOTH),
    "call with an odd id": Chat([HI, calls(call("now", {}, "functions.now:0")), result("12", "functions.now:0")], BOTH),
    "call with more keys": Chat([HI, calls(call("now", {}, index=0)), NOON], BOTH),
    "call with reasoning": Chat([HI, calls(DONE, reasoning_content="I need it."), SUNNY], BOTH),
    "calls with reasoning, turns": Chat(
        [
            SYSTEM,
            HI,
            calls(DONE, content="First.", reasoning_content="a"),
            SUNNY,
            calls(TIMED, reasoning_content="b"),
            NOON,
            assistant("Done.", reasoning_content="c"),
            MORE,
            calls(TIMED, content=None, reasoning_content="d"),
            NOON,
        ],
        BOTH,
    ),
    "call after think in content": Chat([HI, calls(DONE, content="<think>\nSo.\n</think>\n\n"), SUNNY], BOTH),
    "call to continue": Chat([HI, calls(TIMED), NOON, assistant("It is ")], BOTH),
    "result parts": Chat([HI, calls(DONE), result(texts("sunny", "25 °C"))], BOTH),
    "empty result": Chat([HI, calls(DONE), result("")], BOTH),
    "empty result parts": Chat([HI, calls(DONE), result([])], BOTH),
    "result as JSON": Chat([HI, calls(DONE), result('{"sky": ["blue", null], "n": 1.0}')], BOTH),
    "result of many lines": Chat([HI, calls(DONE), result("a\n\nb\r\n  c  \n")], BOTH),
    "result of an unknown call": Chat([HI, calls(DONE), result("x", "call99999")], BOTH),
    "result without a call": Chat([HI, result("x")], BOTH),
    "result without a name": Chat([HI, calls(DONE, TIMED), result("x"), result("y", "call00002")], BOTH),
    "result first": Chat([result("x"), HI], BOTH),
    "unicode result": Chat([HI, calls(DONE), result(PLANES + CONTROLS)], BOTH),
    "documents": Chat([SYSTEM, HI], None, [{"title": "T ü", "text": "One.\nTwo."}, {"title": "", "text": "x"}]),
    "documents of other keys": Chat([HI], None, [{"doc_id": 3, "title": "t", "text": "x", "snippet": "s"}]),
    "no documents": Chat([HI], None, []),
    "documents and tools": Chat([SYSTEM, HI, calls(DONE), SUNNY], BOTH, [{"title": "t", "text": "x"}]),
    "developer tools": Chat([{"role": "developer", "content": "Be brief.", "tools": [CLOCK]}, HI]),
    "query and document": Chat([{"role": "query", "content": "why?"}, {"role": "document", "content": "so ü"}]),
    "query, user and system": Chat(
        [SYSTEM, {"role": "query", "content": "q"}, user("d"), {"role": "document", "content": "e"}]
    ),
    "tools as definitions": Chat(
        [HI],
        [
            {
                "name": "f",
                "description": "F.",
                "parameter_definitions": {
                    "b": {"type": "str", "description": "B ü", "required": True},
                    "items": {"type": "List[int]", "description": "", "required": False},
                },
            }
        ],
    ),
    "tools as functions": Chat([HI, SURE, MORE], [CLOCK["function"], {"name": "bare"}]),
    "tools of few keys": Chat([HI], [{"type": "function", "function": {"name": "bare"}}, {"type": "function"}]),
    "no tools": Chat([HI], []),
    "functions as text": Chat(
        [SYSTEM, HI, calls(DONE), SUNNY], None, None, {"functions": '[{"name": "f"}]', "datetime": "2025-03-07"}
    ),
    "task": Chat([user("x", task="query"), SURE, MORE]),
}

# Chats that templates with string content are to get just as clients send them: no parts, no null, arguments as
# objects, reasoning under one name, no role that a template may lack.
_CHANGED = frozenset(
    {
        "developer", "system and developer", "tools, developer", "developer tools", "null answer", "no content",
        "call, null content", "call without content", "reasoning", "empty reasoning", "prefill with reasoning",
        "call by string", "call of no arguments", "call of an empty object", "call of null arguments",
        "calls with reasoning, turns", "result parts", "empty result parts", "system parts", "user parts",
        "answer parts", "parts to continue", "one part", "query and document", "query, user and system",
    }
)  # fmt: skip
RAW = tuple(name for name in CHATS if name not in _CHANGED)

WISHED = ("turns", "reasoning everywhere", "tools", "calls with reasoning, turns")
WISHES: dict[str, dict[str, Json]] = {
    "thinking on": {"enable_thinking": True, "thinking": True},
    "thinking off": {"enable_thinking": False, "thinking": False},
    "thinking null": {"enable_thinking": None, "thinking": None, "reasoning_effort": None},
    "thinking as text": {"enable_thinking": "true", "thinking": "enabled"},
    **{
        f"effort {effort}": {"reasoning_effort": effort, "thinking_effort": effort, "reasoning_strength": effort}
        for effort in ("none", "no_think", "minimal", "low", "medium", "high", "xhigh", "max", "Zzz", 7)
    },
    **{
        f"mode {mode}": {"thinking_mode": mode, "thinking_option": mode, "reasoning_mode": f"/{mode}"}
        for mode in ("enabled", "disabled", "adaptive", "on", "off", "auto", "chat", "think", "no_think")
    },
    **{f"budget {budget}": {"thinking_budget": budget} for budget in (-1, 0, 1, 512, 4096, 100_000)},
    "keep thoughts": {
        "preserve_thinking": True, "clear_thinking": False, "drop_thinking": False, "keep_reasoning": True,
        "preserved_thinking": True, "keep_past_thinking": True, "truncate_history_thinking": False,
        "think_render_option": "all", "include_thinking": True, "render_assistant_messages_raw": True,
    },
    "drop thoughts": {
        "preserve_thinking": False, "clear_thinking": True, "drop_thinking": True, "keep_reasoning": False,
        "preserved_thinking": False, "keep_past_thinking": False, "truncate_history_thinking": True,
        "think_render_option": "lastthink", "include_thinking": False, "skip_thinking": True,
    },
    "dates": {"date_string": "26 Jul 2024", "current_date": "2025-01-02", "knowledge_cutoff": "2024-06"},
    "builtin tools": {"builtin_tools": ["browser", "python", "brave_search"]},
    "no builtin tools": {"builtin_tools": []},
    "available tools": {"available_tools": [WEATHER], "custom_tools": [CLOCK], "functions": [CLOCK["function"]]},
    "tools outside of user messages": {"tools_in_user_message": False},
    "tools in user messages": {"tools_in_user_message": True},
    "identity": {
        "model_identity": "You are Bob.", "default_system_prompt": "D", "system_prompt": "S", "role_name": "R",
        "custom_instructions": "C", "developer_instruction": "I", "platform_instruction_override": "P",
        "instruct": "Find.", "instruction": "Judge.", "tool_instruction": "T", "format_instruction": "F",
    },
    "retrieval": {"citation_mode": "accurate", "enable_citations": True, "grounding": "ENABLED", "safety_mode": "NONE"},
    "answer as JSON": {
        "response_format": {"type": "json_object", "json_schema": {"schema": {"type": "object"}}},
        "response_schema": {"type": "object", "properties": {"a": {"type": "string"}}},
    },
    "answer by schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    },
    "tool choice": {"tool_choice": "required", "parallel_tool_prompt": True, "use_json_tooldef": True},
    "no tool choice": {"tool_choice": "none"},
    "namespaces": {"tool_namespace_descriptions": {"functions": "F", "x": "y"}, "full_function_description": True},
    "controls": {
        "controls": {"length": "short", "a": 1}, "formats": ["x"], "fallback_strategy": "reasoning_toolcall_retry",
    },
    "training": {"is_training": True, "training_prompt": True, "add_vision_id": True},
    "own tokens": {"bos_token": "<BOS>", "eos_token": "", "unk_token": "<u>", "pad_token": None},
    "names of the language": {"loop": 1, "message": "m", "content": "c", "role": "r", "ns": {"items": 1}, "text": "x"},
    "data of all kinds": {"data": [1, 2.5, None, True, {"items": [{}]}], "datetime": "x", "context": {"a": 1}},
}  # fmt: skip
