"""A parsed stream is its batch, whatever the split: also for tokens without text, for ids that end the output, and for
text that is held back, which takes linear time.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.cost import least_seconds
from tests.derendering.helpers import answer, ask, chat, entry, texts
from tests.formats.harness import TOOLS, vocabulary

from derender.derendering.chat import ChatStreamDerenderer
from derender.derendering.logprobs import TokenTexts
from derender.formats.registry import FORMATS
from derender.parser.coerce import ToolSchemas
from derender.parser.engine import FormatParser, ParserOptions
from derender.parser.events import Event, ToolCallArguments
from derender.parser.formats import Formats
from derender.parser.sink import Sink
from derender.protocol.codec import Decoder, encode
from derender.protocol.derender import ChatStreamContext
from derender.protocol.generate import GenerateChunk

Json = Any
_context, _chunk = Decoder(ChatStreamContext), Decoder(GenerateChunk)


def parsed(family: str, *markers: str, complete: bool = False, special: tuple[str, ...] = ()) -> TokenTexts:
    """A model with a format, over a vocabulary that has these markers as tokens."""
    tokenizer = vocabulary(markers, special)
    return texts(tokenizer, formats=Formats(FORMATS[family], tokenizer, complete=complete))


def streamed(model: TokenTexts, groups: Sequence[Sequence[int]], request: Json, *, finish: str = "stop") -> Json:
    """A stream's chunks put together. The last chunk has no ids."""
    stream = ChatStreamDerenderer(model, _context(encode({"chat_request": request})))
    whole: Json = {"content": "", "reasoning": "", "arguments": "", "token_ids": [], "entries": [], "finish": None}
    for n, ids in enumerate((*groups, ())):
        choice = {"index": 0, "token_ids": list(ids), "logprobs": {"content": [entry(one) for one in ids]}}
        choice["finish_reason"] = finish if n == len(groups) else None
        chunk = json.loads(encode(stream.push(_chunk(encode({"request_id": "r", "choices": [choice]})))))
        for one in chunk["choices"]:
            delta = one["delta"]
            whole["content"] += delta["content"] or ""
            whole["reasoning"] += delta["reasoning"] or ""
            whole["arguments"] += "".join(call["function"]["arguments"] or "" for call in delta.get("tool_calls", ()))
            whole["token_ids"] += one["token_ids"]
            whole["entries"] += one["logprobs"]["content"]
            whole["finish"] = one["finish_reason"]
    return whole


def read(model: TokenTexts, ids: Sequence[int], request: Json, *, finish: str = "stop") -> Json:
    """An answer, the same in batch and in the streams of all places to cut it once, and token by token."""
    request = ask(logprobs=True, return_token_ids=True, tools=TOOLS, **request)
    [choice] = chat(model, answer(ids, logprobs=True, finish=finish), request)["choices"]
    message = choice["message"]
    whole = {
        "content": message["content"] or "",
        "reasoning": message["reasoning"] or "",
        "arguments": "".join(call["function"]["arguments"] for call in message.get("tool_calls", ())),
        "token_ids": choice["token_ids"],
        "entries": choice["logprobs"]["content"],
        "finish": choice["finish_reason"],
    }
    cuts = [[ids[:at], ids[at:]] for at in range(1, len(ids))]
    for groups in ([[one] for one in ids], *cuts):
        assert streamed(model, groups, request, finish=finish) == whole, groups
    return whole


@pytest.mark.parametrize("markers", [("<think>", "</think>"), ()], ids=["tokens", "text"])
def test_hidden_reasoning_ends_at_one_token(markers: tuple[str, ...]) -> None:
    """A part of a character, and an end of turn in the midst, add no text: they belong to what they stand behind."""
    model = parsed("qwen3", *markers)
    encoded = model.model.tokenizer.encode
    before, after = encoded("a<|im_end|>😊</think>"), encoded("😊<|im_end|> b")
    whole = read(model, before + after, {"include_reasoning": False})
    assert whole["content"] == "😊 b"
    assert whole["token_ids"] == after
    assert [one["bytes"] for one in whole["entries"]] == [list(model.model.tokenizer.piece(one)) for one in after]


def test_an_end_inside_of_hidden_reasoning_is_hidden() -> None:
    model = parsed("qwen3", "<think>", "</think>")
    ids = model.model.tokenizer.encode("<think>so<|im_end|>")
    whole = read(model, ids, {"include_reasoning": False})
    assert (whole["content"], whole["token_ids"], whole["entries"]) == ("", [], [])
    assert read(model, ids, {})["token_ids"] == ids


@pytest.mark.parametrize("stop", [None, ["zzz"]])
def test_reasoning_is_counted_alike_whole_and_streamed(stop: list[str] | None) -> None:
    """Also where a stop token that ends inside reasoning is held back, and then nothing follows it."""
    model = parsed("qwen3", "<think>", "</think>")
    ids = model.model.tokenizer.encode("<think>so<|im_end|>")
    request = ask(stop=stop, stream=True)
    counts = []
    for groups in ([ids], [[one] for one in ids], [*([one] for one in ids), []]):
        stream = ChatStreamDerenderer(model, _context(encode({"chat_request": request})))
        for n, group in enumerate(groups):
            finish = "stop" if n == len(groups) - 1 else None
            choice = {"index": 0, "token_ids": group, "finish_reason": finish}
            stream.push(_chunk(encode({"request_id": "r", "choices": [choice]})))
        counts.append((stream.reasoned, stream.generated))
    assert counts == [(len(ids), len(ids))] * 3


def test_a_stop_token_of_the_request_is_reasoning_where_it_stands_in_it() -> None:
    model = parsed("qwen3", "<think>", "</think>")
    ids = model.model.tokenizer.encode("<think>x</think>y")
    [x] = model.model.tokenizer.encode("x")
    whole = read(model, ids, {"include_reasoning": False, "stop_token_ids": [x]})
    assert whole["token_ids"] == ids[-1:]


def test_a_stop_string_in_what_was_held_back_leaves_the_end_of_turn() -> None:
    """The text that may become a marker is given out at the end, behind the token that ended the output."""
    model = parsed("hermes")
    ids = model.model.tokenizer.encode("ok <tool_ca<|im_end|>")
    whole = read(model, ids, {"stop": ["a"]})
    assert (whole["content"], whole["finish"]) == ("ok <tool_c", "stop")
    assert whole["token_ids"] == ids


def test_a_hidden_token_before_a_call_that_must_stand_first() -> None:
    model = parsed("pythonic", special=("<|hidden|>",))
    ids = model.model.tokenizer.encode("<|hidden|>[add(a=1)]")
    whole = read(model, ids, {})
    assert (whole["content"], whole["arguments"], whole["finish"]) == ("", '{"a": 1}', "tool_calls")
    whole = read(model, ids, {"skip_special_tokens": False})
    assert (whole["content"], whole["arguments"]) == ("<|hidden|>[add(a=1)]", "")


@pytest.mark.parametrize("complete", [False, True])
def test_a_bracket_in_a_marker_is_not_that_of_a_guided_engine(complete: bool) -> None:
    """`]<]minimax[>[` has the bracket that a JSON array of calls begins with; the marker begins before it."""
    model = parsed("minimax_m3", complete=complete)
    own = "]<]minimax[>["
    text = f'hi{own}<tool_call>{own}<invoke name="add">{own}<a>1{own}</a>{own}</invoke>{own}</tool_call>'
    ids = model.model.tokenizer.encode(text)
    whole = read(model, ids, {"tool_choice": "required"})
    assert (whole["content"], whole["arguments"]) == ("hi", '{"a": 1}')


@pytest.mark.parametrize("arguments", ['{"a": NaN}', '{"a": -Infinity}'])
def test_a_whole_call_is_strict_json(arguments: str) -> None:
    """Python's reader takes `NaN`; a client's does not."""
    model = parsed("hermes", "<tool_call>", "</tool_call>", complete=True)
    text = f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>'
    whole = read(model, model.model.tokenizer.encode(text), {})
    assert (whole["content"], whole["arguments"], whole["finish"]) == (text, "", "stop")


@pytest.mark.parametrize("number", ["1" * 5000, "1e999", "-0.0"], ids=["5000 digits", "1e999", "-0.0"])
def test_a_whole_call_may_have_any_number(number: str) -> None:
    """Python makes no integer of more than 4,300 digits; it is JSON all the same."""
    events: list[Event] = []
    sink = Sink(events, complete=True)
    sink.begin("add")
    sink.arguments(f'{{"a": {number}}}')
    assert sink.end()
    assert ToolCallArguments(0, f'{{"a": {number}}}') in events


HELD = [
    ("hermes", "", " "),
    ("hermes", "so", " "),
    ("hermes", '<tool_call>{"arguments": {"a": "', "x"),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": "', "x"),
    ("hermes", '<tool_call>{"name": "add", "arguments": "', " "),
    ("hermes", '<tool_call>{"name": "add", "arguments": "{', " "),
    ("hermes", '<tool_call>{"name": "add", "arguments": {]', " "),
    ("hermes", "<tool_call>", " "),
    ("qwen3", "<think>so", "\n"),
    ("minicpm5", '<function name="write_file"><param name="content">x', " "),
]


@pytest.mark.parametrize(("family", "before", "unit"), HELD, ids=[f"{f} {b[-12:]!r}{u!r}" for f, b, u in HELD])
def test_what_is_held_back_takes_linear_time(family: str, before: str, unit: str) -> None:
    """Token by token: some vocabularies have tokens of 256 blanks, and what waits must not be copied for each."""
    model = parsed(family, "<tool_call>", "</tool_call>", "<think>", "</think>")
    assert model.model.formats is not None
    ready = model.model.formats.native
    for complete, trim in itertools.product((False, True), repeat=2):
        options = ParserOptions(complete=complete, trim=trim)

        def work(options: ParserOptions = options) -> None:
            parser = FormatParser(ready, options, ToolSchemas(TOOLS))
            parser.push(model.model.tokenizer.encode(before))
            for _ in range(6000):
                parser._take(unit * 512, [512])

        assert least_seconds(work, within=1.5) < 1.5, (complete, trim)
