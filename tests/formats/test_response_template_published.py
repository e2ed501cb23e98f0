"""Published response templates: outputs in them, read right, and as Hugging Face's own reader reads them."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest
from tests.formats.harness import compiled, read
from tests.formats.response_templates import NAMED, PUBLISHED, WHOLE, theirs

from derender.formats.choose import choose_format
from derender.formats.response_template import from_response_template

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "n": {"type": "integer"},
                    "x": {"type": "number"},
                    "on": {"type": "boolean"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "rest": {"type": ["object", "null"]},
                },
            },
        },
    }
]

Case = tuple[str, str, str, dict[str, Any]]
CASES: list[Case] = [
    (
        "cohere",
        "",
        "<|START_THINKING|>I should call a tool.<|END_THINKING|><|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "f", "parameters": {"text": "C"}},\n'
        '    {"tool_call_id": "1", "tool_name": "g", "parameters": {}}\n]<|END_ACTION|>',
        {"thinking": "I should call a tool.", "tool_calls": [("f", {"text": "C"}), ("g", {})]},
    ),
    ("cohere", "", "<|START_RESPONSE|>Hi there.<|END_RESPONSE|>", {"content": "Hi there."}),
    (
        "ernie",
        "",
        'Let me check.\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"text": "Paris"}}\n</tool_call>\n',
        {"thinking": "Let me check.", "tool_calls": [("f", {"text": "Paris"})]},
    ),
    (
        "ernie",
        "Assistant:",
        "Greet.\n</think>\n\n<response>\nHello! \n</response>\n",
        {"thinking": "Greet.", "content": "Hello!"},
    ),
    (
        "gpt_oss",
        "<|start|>user<|message|>hi<|end|><|start|>assistant",
        "<|channel|>analysis<|message|>We call.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{\n  "text": "SF"\n}<|call|>',
        {"thinking": "We call.", "tool_calls": [("f", {"text": "SF"})]},
    ),
    (
        "gpt_oss",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>2+2 = 4.<|end|><|start|>assistant<|channel|>final<|message|>4",
        {"thinking": "2+2 = 4.", "content": "4"},
    ),
    (
        "gpt_oss",
        "<|start|>assistant",
        "<|channel|>commentary<|message|>Plan.<|end|><|start|>assistant<|channel|>final<|message|> Hi <|end|>",
        {"content": "Hi"},
    ),
    (
        "smollm",
        "",
        '<think>\nOkay.\n</think>\n\n<tool_call>{"name": "f", "arguments": {"text": "I\'m <well>"}}</tool_call>',
        {"thinking": "Okay.", "tool_calls": [("f", {"text": "I'm <well>"})]},
    ),
    (
        "smollm",
        "<|im_start|>assistant\n<think>\n",
        "Hm.\n</think>\nGravity<|im_end|>",
        {"thinking": "Hm.", "content": "Gravity"},
    ),
    (
        "qwen3",
        "",
        '<tool_call>\n<function=f>\n<parameter=rest>\n{"a": [1]}\n</parameter>\n<parameter=text>\ncelsius\n'
        "</parameter>\n<parameter=n>\n7\n</parameter>\n<parameter=on>\nTrue\n</parameter>\n</function>\n</tool_call>",
        {"tool_calls": [("f", {"rest": {"a": [1]}, "text": "celsius", "n": 7, "on": True})]},
    ),
    (
        "qwen3",
        "",
        '<tool_call><function=f><parameter=n>"7"</parameter><parameter=text>7</parameter></function></tool_call>',
        {"tool_calls": [("f", {"n": 7, "text": 7})]},
    ),
    (
        "qwen2_served",
        "",
        'One moment.\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "g", '
        '"arguments": {"x": 1.5}}\n</tool_call><|im_end|>\n<|endoftext|>',
        {"content": "One moment.", "tool_calls": [("f", {}), ("g", {"x": 1.5})]},
    ),
    (
        "qwen3_5_served",
        "<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "Sure.\n\n<tool_call>\n<function=f>\n<parameter=text>\n 02139\n</parameter>\n<parameter=n>\n12\n</parameter>\n"
        "</function>\n</tool_call><|im_end|>",
        {"content": "Sure.", "tool_calls": [("f", {"text": "02139", "n": 12})]},
    ),
    (
        "inkling",
        "<|message_system|><|content_text|>Effort: 0.9<|end_message|><|message_model|>",
        "<|content_thinking|>Consider.<|end_message|><|message_model|><|content_thinking|> Tokyo.<|end_message|>"
        "<|message_model|><|content_text|>Checking now. <|end_message|><|message_model|>f<|content_invoke_tool_json|>"
        '{"name":"f","args":{"text":"Tokyo"}}<|end_message|>',
        {"thinking": "Consider. Tokyo.", "content": "Checking now. ", "tool_calls": [("f", {"text": "Tokyo"})]},
    ),
    (
        "muse",
        "<|start|>assistant",
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Hello.<|eot|>",
        {"thinking": "Hm.", "content": "Hello."},
    ),
    (
        "muse",
        "<|start|>assistant",
        '<atem:invoke name="f">\n<atem:parameter name="text">a b</atem:parameter>\n'
        '<atem:parameter name="tags" x="1">["u"]</atem:parameter>\n</atem:invoke>\n'
        '<atem:invoke name="g"></atem:invoke>',
        {"tool_calls": [("f", {"text": "a b", "tags": ["u"]}), ("g", {})]},
    ),
    (
        "beam",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>careful<|end|><|start|>assistant to=f<|channel|>analysis <|constrain|>xml"
        "<|message|>"
        '<rfl:parameter name="text"> x </rfl:parameter><rfl:parameter name="n">3</rfl:parameter><|call|>',
        {"thinking": "careful", "tool_calls": [("f", {"text": "x", "n": 3})]},
    ),
    (
        "beam",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Done.<|return|>",
        {"thinking": "hm", "content": "Done."},
    ),
]


def reads(template: dict[str, Any], text: str, *, prefix: str = "", tokens: bool = True) -> dict[str, Any]:
    """A template's reading, which is the same in any split, as `parse_response` shows it."""
    table = from_response_template(template)
    form = compiled(table, tokens=tokens)
    options: dict[str, Any] = {"prompt_tail": prefix, "tools": TOOLS, "trim": table.trim}
    found = read(form, text, **options)
    dice = random.Random(5)
    for sizes in ([1] * 600, [dice.randint(1, 6) for _ in range(300)]):
        assert read(form, text, sizes=sizes, **options) == found
    shown: dict[str, Any] = {}
    if found["reasoning"]:
        shown["thinking"] = found["reasoning"]
    if found["content"]:
        shown["content"] = found["content"]
    if found["calls"]:
        assert all(whole for _, _, whole in found["calls"])
        shown["tool_calls"] = [(name, json.loads(arguments)) for name, arguments, _ in found["calls"]]
    return shown


def shown(message: dict[str, Any]) -> dict[str, Any]:
    """A message of `parse_response` in the same shape."""
    found = {key: value for key, value in message.items() if key != "role" and value}
    if "reasoning_content" in found:
        found["thinking"] = found.pop("reasoning_content")
    if "tool_calls" in found:
        calls = [call for one in found["tool_calls"] for call in (one if isinstance(one, list) else [one])]
        found["tool_calls"] = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    return found


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_outputs_in_published_templates(number: int, tokens: bool) -> None:
    name, prefix, text, expected = CASES[number]
    if not tokens and name == "muse":
        text = text.replace("<|start|>assistant", "")  # framing only where the vocabulary has a token of it
    found = reads(PUBLISHED[name], text, prefix=prefix, tokens=tokens)
    assert found == expected
    assert [list(map(type, arguments.values())) for _, arguments in found.get("tool_calls", [])] == [
        list(map(type, arguments.values())) for _, arguments in expected.get("tool_calls", [])
    ]


def test_transformers_reads_them_alike() -> None:
    cases = [(PUBLISHED[name], prefix, text, TOOLS) for name, prefix, text, _ in CASES]
    for (name, _, text, expected), message in zip(CASES, theirs(cases), strict=True):
        assert shown(message) == expected, (name, text)


def test_regions_told_apart_by_headers_are_a_parser_of_reasoning_too() -> None:
    config = {"response_template": PUBLISHED["gpt_oss"]}
    both = choose_format("hf", "hf", config=config)
    assert both is not None
    assert both.messages is not None


# --------------------------------------------------------------------------------------------------- single shapes


def shape(body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A template with calls of this kind, beside content without an opener."""
    calls = {"open_pattern": r"<call (?P<name>\w+)>", "close": "</call>", "repeats": True, "transform": NAMED, **body}
    return {"start_anchor": "<|im_start|>assistant\n", "fields": {"tool_calls": calls, "content": {}, **fields}}


def members(transform: Any, **more: Any) -> dict[str, Any]:
    calls = {"open": "<call>", "close": "</call>", "repeats": True, "content": "json", "transform": transform, **more}
    return {"start_anchor": "<|im_start|>assistant\n", "fields": {"tool_calls": calls, "content": {}}}


def params(**args: Any) -> dict[str, Any]:
    tag = r"<p (?P<key>\w+)>(?P<value>.*?)</p>"
    return shape({"content": "xml-inline", "content_args": {"tag_pattern": tag, **args}})


def lines(**args: Any) -> dict[str, Any]:
    return shape({"content": "kv-lines", "content_args": args})


BEGUN = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"close": "</think>"},
        "content": {"open": "<answer>", "close": "</answer>"},
        "tool_calls": {
            "open": "<call>",
            "close": "</call>",
            "content": "json",
            "transform": WHOLE,
        },
    },
}
UNTIL = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {"thinking": {}, "content": {"open": "</think>", "close": "<|im_end|>"}},
}
OPTIONAL = shape({"open_pattern": r'<call (?P<name>\w+)(?:\s+id="\d+")?>', "content": "json"})
FRONT = shape({"open_pattern": r"(?:<tools>)?<call (?P<name>\w+)>", "content": "json"})

SHAPES: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    # lines
    (
        lines(),
        "<call f>text: a: b \nn : 7\nno pair\n\nx:1e3\non: 1\nrest: None\ntext2:\n</call>",
        {"tool_calls": [("f", {"text": "a: b", "n": 7, "x": 1000, "on": True, "rest": None, "text2": ""})]},
    ),
    (lines(), "Hi <call f></call><call g>a:1</call>", {"content": "Hi", "tool_calls": [("f", {}), ("g", {"a": "1"})]}),
    (lines(), "<call f>text: x</call>", {"tool_calls": [("f", {"text": "x"})]}),
    (lines(), "<call f>n: seven\nn: 8</call>", {"tool_calls": [("f", {"n": 8})]}),
    (
        lines(line_sep=";;", kv_sep="=>", strip=False),
        "<call f>text=> a = b ;;n=>3;;k=>;x</call>",
        {"tool_calls": [("f", {"text": " a = b ", "n": 3, "k": ";x"})]},
    ),
    (
        lines(value_parser={"name": "json", "args": {"allow_non_json": True}}),
        '<call f>text: [1, "a"]\nn: "7"\nk: "7"\non: True\ntags: x</call>',
        {"tool_calls": [("f", {"text": [1, "a"], "n": 7, "k": "7", "on": True, "tags": "x"})]},
    ),
    (lines(value_parser={"name": "int"}), "<call g>a: 7\nb: -12</call>", {"tool_calls": [("g", {"a": 7, "b": -12})]}),
    # types of values
    (params(value_parser={"name": "int"}), "<call g><p a> 7 </p></call>", {"tool_calls": [("g", {"a": 7})]}),
    (params(value_parser={"name": "float"}), "<call g><p a>7.5</p></call>", {"tool_calls": [("g", {"a": 7.5})]}),
    (
        params(value_parser={"name": "bool"}),
        "<call g><p a>TRUE</p><p b>1</p><p c>0</p><p d>yes</p></call>",
        {"tool_calls": [("g", {"a": True, "b": True, "c": False, "d": False})]},
    ),
    (params(), "<call f><p text> a </p><p n>4</p></call>", {"tool_calls": [("f", {"text": " a ", "n": 4})]}),
    # values of one key
    (
        params(merge_duplicates=True),
        "<call f><p tags>a</p><p n>1</p><p tags>[2]</p><p n>2</p><p text>x</p></call>",
        {"tool_calls": [("f", {"tags": ["a", "[2]"], "n": [1, 2], "text": "x"})]},
    ),
    (
        params(merge_duplicates=True, value_parser={"name": "json", "args": {"allow_non_json": True}}),
        "<call g><p a>[1, 2]</p><p a>3</p><p b>[]</p><p b>x</p><p c>4</p></call><call g></call>",
        {"tool_calls": [("g", {"a": [1, 2, 3], "b": ["x"], "c": 4}), ("g", {})]},
    ),
    # members
    (
        members({"function": {"name": "{content.fn.name}", "arguments": "{content.fn.args}"}}),
        '<call>{"k": 1, "fn": {"x": {"name": "no"}, "args": {"fn": {"name": 1}}, "name": "f"}, "name": "no"}</call>',
        {"tool_calls": [("f", {"fn": {"name": 1}})]},
    ),
    (
        members({"type": "function", "function": "{content.a.b}"}),
        '<call>{"a": {"name": "no", "b": {"name": "f", "arguments": {}}, "arguments": 1}}</call>',
        {"tool_calls": [("f", {})]},
    ),
    (
        members("{content}"),
        '<call>{"type": "function", "function": {"name": "f", "arguments": {"n": 1}}}</call>',
        {"tool_calls": [("f", {"n": 1})]},
    ),
    (
        members({"function": {"name": "{fn.name}", "arguments": "{fn.args}"}}, transform_each=True, repeats=False),
        '<call>[{"fn": {"name": "f", "args": {"n": 1}}}, {"k": 2, "fn": {"args": {}, "name": "g"}}]</call>',
        {"tool_calls": [("f", {"n": 1}), ("g", {})]},
    ),
    # openers with parts that may be missing
    (
        OPTIONAL,
        '<call f  id="12">{"n": 1}</call><call g>{}</call>',
        {"tool_calls": [("f", {"n": 1}), ("g", {})]},
    ),
    (FRONT, "<tools><call f>{}</call><call g>{}</call>", {"tool_calls": [("f", {}), ("g", {})]}),
    # reasoning without an opener
    (BEGUN, "Let me see.\n</think><answer> Yes. </answer>", {"thinking": "Let me see.", "content": "Yes."}),
    (BEGUN, "Hm. <answer>Yes.</answer>", {"thinking": "Hm.", "content": "Yes."}),
    (UNTIL, "Let me see.\n</think>\n\nYes.<|im_end|>", {"thinking": "Let me see.", "content": "Yes."}),
]  # fmt: skip


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_shapes(number: int, tokens: bool) -> None:
    template, text, expected = SHAPES[number]
    assert reads(template, text, tokens=tokens) == expected


def test_transformers_reads_the_shapes_alike() -> None:
    for (_, text, expected), message in zip(
        SHAPES, theirs([(t, "", text, TOOLS) for t, text, _ in SHAPES]), strict=True
    ):
        assert shown(message) == expected, text


def test_a_call_ends_reasoning_that_nothing_opens() -> None:
    text = 'Hm. <call>{"name": "f", "arguments": {"n": 1}}</call>'
    assert reads(BEGUN, text) == {"thinking": "Hm.", "tool_calls": [("f", {"n": 1})]}
    assert reads(BEGUN, "Yes.</answer>", prefix="<|im_start|>assistant\nx</think>")["content"] == "Yes."


def test_lines_that_the_output_cuts() -> None:
    form = compiled(from_response_template(lines()), tokens=True)
    for text, arguments in [
        ("<call f>text: a b", '{"text": "a b'),
        ("<call f>n: 12", '{"n": '),
        ("<call f>n: 12\nte", '{"n": 12'),
        ("<call f>te", ""),
    ]:
        whole = read(form, text, tools=TOOLS)
        assert whole["calls"] == [("f", arguments, False)]
        assert read(form, text, sizes=[1] * 60, tools=TOOLS) == whole


def test_lines_take_linear_time_and_a_small_state() -> None:
    """Long lines, many lines, lines that are none and blanks, character by character."""
    form = compiled(from_response_template(lines()), tokens=True)
    for body in ("text: " + "a " * 4000, "n: 1\n" * 1500, "none\n" * 1500, "text:" + " " * 8000 + "x", "k" * 8000):
        text = f"<call f>{body}</call>"
        whole = read(form, text, tools=TOOLS)
        assert read(form, text, sizes=[3] * 4000, tools=TOOLS, snapshots=False) == whole
        assert whole["calls"][0][2]


def test_random_output_is_split_invariant() -> None:
    dice = random.Random(11)
    parts = [
        "<call ", "f>", "<call f>", "</call>", "<p ", "n>", "</p>", ":", "\n", " ", "text", "n: 4", ";;", "=>", "[1]",
        '"a"', "<tools>", "<call>", '{"fn": ', '{"name": "f"', ', "args": {}', "}", "]", "</think>", "<answer>",
        "</answer>", "<|im_end|>", "<|message_model|>", "<|content_text|>", "<|content_invoke_tool_json|>",
        "<|end_message|>", "<|channel|>", "analysis", "<|message|>", "<|end|>", "commentary to=functions.f",
        "<|start|>assistant", "to=user", "<response>\n", "</response>",
    ]  # fmt: skip
    templates = [*(copy.deepcopy(template) for template, _, _ in SHAPES), *PUBLISHED.values()]
    forms = [
        (compiled(table, tokens=tokens), table.trim)
        for one in templates
        if (table := from_response_template(one))
        for tokens in (True, False)
    ]
    for form, trim in forms:
        for _ in range(12):
            text = "".join(dice.choices(parts, k=14))
            whole = read(form, text, trim=trim, tools=TOOLS)
            sizes = [dice.randint(1, 4) for _ in range(200)]
            assert read(form, text, sizes=sizes, trim=trim, tools=TOOLS) == whole, text
