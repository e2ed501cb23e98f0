"""Messages with headers: the header decides what a body is, and is never text itself."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.formats.harness import compiled, read, vocabulary
from tests.parser.streams import same_for_every_split, survives_noise
from tests.vocabularies import real

from derender.formats.harmony import HARMONY
from derender.formats.muse import MUSE_GLIMMER
from derender.formats.table import Calls, JsonMembers
from derender.parser.coerce import ToolSchemas
from derender.parser.compiled import CompiledFormat
from derender.parser.engine import FormatParser, ParserOptions
from derender.parser.start import start_region

START = "<|start|>assistant"
PIECES = [
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>", "assistant"),
    *(
        "analysis",
        "final",
        "commentary",
        " to=functions.f",
        " to=python",
        "json",
        '{"a": ',
        '"x"',
        "}",
        " ",
        "é",
        "[1]",
    ),
]


def answer(reasoning: str = "", content: str = "", calls: Any = ()) -> dict[str, Any]:
    return {"reasoning": reasoning, "content": content, "calls": list(calls)}


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("<|channel|>final<|message|>", answer(content='{"a": 1}')),
        ("<|channel|> final <|constrain|>json<|message|>", answer(content='{"a": 1}')),
        ("<|message|>", answer(content='{"a": 1}')),
        ("<|channel|>analysis<|message|>", answer(reasoning='{"a": 1}')),
        ("<|channel|>commentary<|message|>", answer(content='{"a": 1}')),
        ("<|channel|>commentaryjson<|message|>", answer()),
        ("<|channel|>comment<|message|>", answer()),
        ("<|channel|>commentaryjson to=functions.f<|message|>", answer(calls=[("f", '{"a": 1}', True)])),
        ("<|channel|>commentary to=functions.f<|message|>", answer(calls=[("f", '{"a": 1}', True)])),
        ("<|channel|>commentary to=functions.f<|constrain|>json<|message|>", answer(calls=[("f", '{"a": 1}', True)])),
        ("<|channel|>commentary to= functions.a.b-c json<|message|>", answer(calls=[("a.b-c", '{"a": 1}', True)])),
        ("<|channel|>analysis to=f code<|message|>", answer(calls=[("f", '{"a": 1}', True)])),
        (" to=functions.f<|channel|>analysis<|message|>", answer(calls=[("f", '{"a": 1}', True)])),
        ("<|channel|>commentary to=functions.python<|message|>", answer(calls=[("python", '{"a": 1}', True)])),
        ("<|channel|>commentary to=pythonic<|message|>", answer(calls=[("pythonic", '{"a": 1}', True)])),
        ("<|channel|>analysis to=python code<|message|>", answer(reasoning='{"a": 1}')),
        ("<|channel|>commentary to=browser.search<|message|>", answer()),
        ("<|channel|>commentary to=assistant<|message|>", answer(content='{"a": 1}')),
        ("<|start|>functions.f to=assistant<|channel|>commentary<|message|>", answer()),
        ("<|start|>user<|message|>", answer()),
    ],
)
@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
def test_the_header_decides(header: str, expected: dict[str, Any], tokens: bool) -> None:
    form = compiled(HARMONY, tokens=tokens)
    assert same_for_every_split(form, header + '{"a": 1}<|end|>', 1, prompt_tail=START) == expected
    # the same where the template has written the header already; in letters it is longer than what is looked at
    if tokens:
        assert same_for_every_split(form, '{"a": 1}<|end|>', 1, prompt_tail=START + header) == expected


def test_messages_of_a_kind_follow_each_other() -> None:
    form = compiled(HARMONY, tokens=True)
    text = (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>b <|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": "<|end|>"}<|call|>'
        "<|start|>assistant<|channel|>analysis<|message|>c<|end|>noise<|start|>assistant<|channel|>final<|message|> d"
    )
    expected = answer("ac", "b  d", [("f", '{"x": "<|end|>"}', True)])
    assert same_for_every_split(form, text, 1, prompt_tail=START) == expected


def test_a_header_without_its_opener() -> None:
    form = compiled(HARMONY, tokens=True)
    text = "<|channel|>analysis<|message|>a<|channel|>final<|message|>b"
    assert same_for_every_split(form, text, 1, prompt_tail=START) == answer("a", "b")


def test_nothing_of_a_header_is_text() -> None:
    form = compiled(HARMONY, tokens=True)
    for text in ("", "assistant", "<|channel|>final", " to=functions.f", "<|start|>assistant<|channel|>"):
        assert same_for_every_split(form, text, 1, prompt_tail=START) == answer()


def test_arguments_are_as_written() -> None:
    form = compiled(HARMONY, tokens=True)
    header = "<|channel|>commentary to=functions.f<|message|>"
    for body in ("not json at all", '{"a": 1.50, "b": "é"}', "[1, 2]", '{"a": [}', "print(1)\nprint(2)"):
        got = same_for_every_split(form, f"{header}{body}<|call|>", 1, prompt_tail=START)
        assert got == answer(calls=[("f", body, True)])
    assert read(form, f"{header}<|call|>", prompt_tail=START) == answer(calls=[("f", "{}", True)])


def test_a_call_that_is_not_whole() -> None:
    form = compiled(HARMONY, tokens=True)
    text = '<|channel|>commentary to=functions.f<|message|>{"a": "Os'
    assert read(form, text, prompt_tail=START) == answer(calls=[("f", '{"a": "Os', False)])
    assert read(form, text, prompt_tail=START, complete=True) == answer(content='{"a": "Os')
    assert read(form, text, prompt_tail=START, calls=False) == answer(content='{"a": "Os')


def test_a_guided_engine_writes_no_header() -> None:
    guided = Calls(body=JsonMembers(arguments=("parameters",), array=True), start_only=True)
    both = HARMONY.replace(calls=(*HARMONY.calls, guided))
    markers = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>")
    form = CompiledFormat(both, vocabulary(markers))
    calls = '[{"name": "f", "parameters": {"a": 1}}]'
    for text in (calls, " \n" + calls, f"<|channel|>final<|message|>{calls}<|end|>"):
        assert same_for_every_split(form, text, 1, prompt_tail=START) == answer(calls=[("f", '{"a": 1}', True)])
    for text in ("[1, 2]", '{"a": 1}'):
        final = f"<|channel|>final<|message|>{text}<|end|>"
        assert same_for_every_split(form, final, 1, prompt_tail=START) == answer(content=text)


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
def test_noise(tokens: bool) -> None:
    survives_noise(compiled(HARMONY, tokens=tokens), PIECES, prompt_tail=START)


def muse(recipient: str, body: str) -> str:
    return f"<|start|>assistant to={recipient}<|message|>{body}<|eom|>"


def test_calls_in_the_messages_to_tools_only() -> None:
    call = (
        '<atem:function_calls>\n<atem:invoke name="f">\n<atem:parameter name="a">[1, "x"]</atem:parameter>\n'
        '<atem:parameter name="b">x y</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
    )
    form = compiled(MUSE_GLIMMER, tokens=True)
    text = muse("self", "a") + muse("user", f"b {call}") + muse("f", call) + muse("self", "c") + muse("user", " d")
    expected = answer("ac", f"b {call} d", [("f", '{"a": [1, "x"], "b": "x y"}', True)])
    assert same_for_every_split(form, text, 1, prompt_tail=START) == expected
    assert same_for_every_split(form, text.removeprefix(START), 1, prompt_tail=START) == expected
    cut = muse("f", call)[:-60]
    assert same_for_every_split(form, cut, 1, prompt_tail=START)["calls"] == [("f", '{"a": [1, "x"], "b": ', False)]
    assert same_for_every_split(form, "<|message|>hi<|eot|>", 1, prompt_tail=START) == answer("", "hi")


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
def test_noise_of_muse(tokens: bool) -> None:
    pieces = ["<|start|>", "assistant", " to=self", " to=user", " to=f", "<|message|>", "<|eom|>", "<|eot|>", "x", " "]
    pieces += ["<atem:function_calls>", '<atem:invoke name="f">', '<atem:parameter name="a">', "1", "</atem:parameter>"]
    pieces += ["</atem:invoke>", "</atem:function_calls>", "<atem:", "\n"]
    survives_noise(compiled(MUSE_GLIMMER, tokens=tokens), pieces, rounds=100, prompt_tail=START)


def test_the_real_vocabulary() -> None:
    tokenizer = real("gpt-oss")
    form = CompiledFormat(HARMONY, tokenizer)
    text = (
        "<|channel|>analysis<|message|>Naïve café 😊<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city": "Tōkyō"}<|call|>'
    )
    expected = answer("Naïve café 😊", "", [("get_weather", '{"city": "Tōkyō"}', True)])
    assert same_for_every_split(form, text, 1, prompt_tail=f"<|end|>{START}") == expected
    assert start_region(form, tokenizer.encode(f"<|end|>{START}"), None) == "header:assistant"
    rng = random.Random(5)
    size = max(token.id for token in tokenizer.added_tokens)
    for _ in range(100):
        ids = [rng.choice((rng.randint(0, size), rng.randint(200002, 200012))) for _ in range(30)]
        parser = FormatParser(form, ParserOptions(start="header:assistant"), ToolSchemas(()))
        for one in ids:
            parser.push([one])
        parser.finish()
