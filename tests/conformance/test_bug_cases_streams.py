"""Public faults of reasoning parsers (D), and those of text, logprobs, rendering and serving (A10, B07, B08, E11, F11)
that show with parsers only, each with the value that is right. How texts are read: test_bug_cases_parsers.py.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.conformance.helpers import CHAT_DERENDER, CHAT_RENDER, chat, ok, refused
from tests.conformance.parsed import (
    Served,
    context_of,
    function,
    of_batch,
    of_stream,
    read,
    real_served,
    reread,
    served,
    streamed,
)
from tests.derendering.helpers import answer, ask, entry
from tests.server.asgi_client import JSON, call, post

Json = Any

THINK = ("<think>", "</think>")
CALLS = ("<tool_call>", "</tool_call>")
KIMI = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
)
OPEN, CLOSED = "<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"
NAMED = {"type": "function", "function": {"name": "f"}}


def thinking(reasoning: str, tool: str | None = None, *more: str, **settings: Any) -> list[Served]:
    """Without the markers as tokens, and with them."""
    return [served(tool, reasoning, markers=markers, **settings) for markers in ((), (*THINK, *more))]


@pytest.mark.parametrize("kwargs", [{"enable_thinking": False}, {}, {"enable_thinking": True}], ids=str)
def test_d01_the_prompt_says_where_an_answer_begins(kwargs: Json) -> None:
    """Start state taken from a flag and not from the rendered prompt (vllm#53284)."""
    how = {"chat_template_kwargs": kwargs} if kwargs else {}
    got = reread(thinking("qwen3"), "It is 42.", tail=CLOSED, **how)
    assert (got.reasoning, got.content, got.finish) == (None, "It is 42.", "stop")
    # Told that no reasoning is wanted, the answer is still there.
    got = reread(thinking("qwen3"), "It is 42.", tail=CLOSED, include_reasoning=False, **how)
    assert (got.reasoning, got.content) == (None, "It is 42.")
    # A marker of an earlier turn says nothing of this one.
    got = reread(thinking("qwen3"), "hm</think>It is 42.", tail=f"{CLOSED}yes<|im_end|>\n{OPEN}", **how)
    assert (got.reasoning, got.content) == ("hm", "It is 42.")


def test_d01_render_tells_where_an_answer_begins() -> None:
    """The same through render: a caller passes the prompt on, or what render found in it."""
    template = (
        "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}<|start|>assistant\n"
        "{% if not think %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
    )
    for model in thinking("qwen3", chat_template=template):
        for think, right in ((False, (None, "It is 42.")), (True, ("It is 42.", None))):
            request = ask(chat_template_kwargs={"think": think})
            rendered = ok(model.app, CHAT_RENDER, request)
            assert rendered["reasoning_ended"] is not think
            given: list[Json] = [{"prompt_token_ids": rendered["token_ids"]}]
            given.append({"reasoning_ended": rendered["reasoning_ended"]})
            ids = model.tokenizer.encode("It is 42.")
            for fields in given:
                got = of_batch(chat(model.app, answer(ids), request, **fields))
                assert (got.reasoning, got.content or None) == right
                got = of_stream(streamed(model, [[one] for one in ids], {"chat_request": request, **fields}))
                assert (got.reasoning, got.content) == right


CUT = "A list of three points is wanted, so"


def test_d02_reasoning_that_was_cut_is_reasoning() -> None:
    """No marker in the output (vllm#57353): batch and stream agree."""
    got = reread(thinking("qwen3"), CUT, tail=OPEN, finish="length")
    assert (got.reasoning, got.content or None, got.finish) == (CUT, None, "length")
    got = reread(thinking("kimi_k2", "kimi_k2", *KIMI), CUT, tail="<think>", finish="length")
    assert (got.reasoning, got.content or None, got.finish) == (CUT, None, "length")


def test_d02_an_answer_of_reasoning_alone_has_empty_content() -> None:
    """Null stands beside calls only: a client that reads the content gets a string."""
    assert reread(thinking("qwen3"), CUT, tail=OPEN, finish="length").content == ""


@pytest.mark.parametrize(
    ("pieces", "right"),
    [
        (["<think>one ", "two</thi", "nk>done"], ("one two", "done")),
        (["why<", "/think>so"], ("why", "so")),
        (["a </thin <", "/thin", "king> </think>b"], ("a </thin </thinking> ", "b")),
    ],
)
@pytest.mark.parametrize("tail", [None, "<｜Assistant｜><think>\n"])
def test_d04_a_marker_may_be_cut_anywhere(pieces: list[str], right: tuple[str, str], tail: str | None) -> None:
    """Partial marker only recognised when it is the whole buffer (smg-project/smg#1751)."""
    got = reread(thinking("deepseek_r1"), pieces, tail=tail)
    assert (got.reasoning, got.content) == right
    assert got.parts == [("reasoning", right[0]), ("content", right[1])]


@pytest.mark.parametrize(("reasoning", "tail"), [("deepseek_v3", None)])
def test_d04_text_before_a_marker_is_content(reasoning: str, tail: str | None) -> None:
    """The third of its splits, for a family whose answer begins outside of reasoning: where it begins in reasoning, as
    deepseek_r1's does, text before the opener is reasoning, as its first two splits have it."""
    got = reread(thinking(reasoning), ["pre <thin", "k>r</think>a"], tail=tail)
    assert got.parts == [("content", "pre "), ("reasoning", "r"), ("content", "a")]


@pytest.mark.parametrize(
    ("pieces", "right"),
    [
        (["</think>", "<", "note", ">", " p < q"], (None, "<note> p < q")),
        (["</think>", "a<th"], (None, "a<th")),
        (["</think>", "a</thi"], (None, "a</thi")),
        (["why <"], ("why <", None)),
        (["why </thin"], ("why </thin", None)),
    ],
)
def test_d05_text_that_only_looks_like_a_marker_is_told(
    pieces: list[str], right: tuple[str | None, str | None]
) -> None:
    """Held-back text not released (sgl-project/sglang#8606)."""
    got = reread(thinking("deepseek_r1"), pieces)
    assert (got.reasoning, got.content or None) == right


def test_d05_nothing_is_held_back_without_need() -> None:
    """Its second half: `p < q` is told as soon as it can be no marker."""
    model = thinking("deepseek_r1")[0]
    context = context_of(model, (), None, {})
    groups = [model.tokenizer.encode(piece) for piece in ("</think>", "p <", " q", "<note>", "!")]
    told = [of_stream([chunk]).content for chunk in streamed(model, groups, context)]
    assert told == [None, "p <", " q", "<note>", "!"]  # `<` was held back for nothing: no tag is due in content


WEATHER = (
    '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Oslo"}'
    "<|tool_call_end|><|tool_calls_section_end|>"
)


def test_d07_a_call_ends_reasoning() -> None:
    """Tool marker is an implicit end of reasoning (vllm#32216), in the families that leave out the closer."""
    tools = [function("get_weather", city="string")]
    models = thinking("kimi_k2", "kimi_k2", *KIMI)
    got = reread(models, f"I need the weather{WEATHER}", tools=tools, tail="<think>")
    assert got.reasoning == "I need the weather"
    assert got.calls == [("functions.get_weather:0", "get_weather", '{"city": "Oslo"}')]
    assert (got.content, got.finish) == (None, "tool_calls")
    for how in ({}, {"tools": tools, "tool_choice": "none"}):  # no calls are read where none were asked for
        got = reread(models, f"I need the weather{WEATHER}", tail="<think>", **how)
        assert (got.calls, got.finish) == ([], "stop")
        assert (got.reasoning or "") + (got.content or "") == f"I need the weather{WEATHER}"


def test_d08_reasoning_may_come_again() -> None:
    """State machine without a way back (ai-dynamo/dynamo#6422)."""
    for pieces in (["<think>a</think>x<think>b</think>y"], ["<think>a</think>x<think>b", "</think>y"]):
        got = reread(thinking("glm45", "glm45"), pieces)
        assert (got.reasoning, got.content) == ("ab", "xy")
        assert got.parts == [("reasoning", "a"), ("content", "x"), ("reasoning", "b"), ("content", "y")]


def test_d10_both_names_of_the_field_are_understood() -> None:
    """Field name drift (vllm#50624): a template may read either, a client may send either."""
    for key in ("reasoning_content", "reasoning"):
        template = f"{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.{key} }}}}|{{{{ m.content }}}}{{% endfor %}}"
        model = served(None, "qwen3", chat_template=template)
        prompts = [
            ok(model.app, CHAT_RENDER, {"messages": [{"role": "assistant", "content": "c1", sent: "r1"}]})["token_ids"]
            for sent in ("reasoning_content", "reasoning")
        ]
        assert prompts[0] == prompts[1] == model.tokenizer.encode("<assistant>r1|c1")
    for field, there in (("reasoning", [True, False]), ("reasoning_content", [False, True]), ("both", [True, True])):
        model = served(None, "qwen3", reasoning_field=field)
        ids = model.tokenizer.encode("<think>r1</think>c1")
        message = chat(model.app, answer(ids), ask())["choices"][0]["message"]
        assert [message.get(key) for key in ("reasoning", "reasoning_content")] == [
            "r1" if one else None for one in there
        ]
        deltas = [c["delta"] for chunk in streamed(model, [ids], {"chat_request": ask()}) for c in chunk["choices"]]
        for key, told in zip(("reasoning", "reasoning_content"), there, strict=True):
            assert "".join(delta.get(key) or "" for delta in deltas) == ("r1" if told else "")


@pytest.mark.parametrize("choice", [NAMED, "required", "auto"], ids=str)
def test_d11_reasoning_that_took_all_is_no_error(choice: Json) -> None:
    """Assertion on model output (vllm#40148): a call was demanded, and there is none."""
    models = thinking("glm45", "glm45")
    for finish in ("length", "stop"):
        how: Json = {"tools": [function("f")], "tool_choice": choice, "tail": "<|assistant|>\n<think>"}
        got = reread(models, "only thoughts", finish=finish, **how)
        assert (got.reasoning, got.content or "", got.calls, got.finish) == ("only thoughts", "", [], finish)


# ------------------------------------------------------------------------------------ text and logprobs

F = [function("f", a="integer")]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CALL_ID = "call_eaf4b262a6a35975afce3968"


@pytest.mark.parametrize("skips", [None, True, False])
def test_a10_a_parser_sees_markers_that_are_not_shown(skips: bool | None) -> None:
    """Request option not carried to decode (ai-dynamo/dynamo#14602): the visible text alone follows it."""
    model = served("hermes", "qwen3", special=(*THINK, *CALLS))
    how: Json = {} if skips is None else {"skip_special_tokens": skips}
    text = f"<think>hm</think><|pad|>hi{CALL}"
    got = read(model, text, end="<|eos|>", tools=F, **how)
    assert (got.reasoning, [call[1:] for call in got.calls]) == ("hm", [("f", '{"a": 1}')])
    assert (got.content, got.finish) == ("<|pad|>hi<|eos|>" if skips is False else "hi", "tool_calls")


B07 = '<think>ab</think>ok<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def flat(chunks: Sequence[Json]) -> list[Json]:
    """The logprob entries of a stream."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return list(itertools.chain.from_iterable(c["logprobs"]["content"] for c in choices if c["logprobs"]))


def test_b07_entries_are_told_once_whatever_is_parsed() -> None:
    """Logprobs bound to content branch only (sgl-project/sglang#28601)."""
    rng = random.Random("b07")
    for model in (real_served("smollm2", "hermes", "qwen3"), *thinking("qwen3", "hermes", *CALLS)):
        ids = model.tokenizer.encode(B07)
        given = [entry(one) for one in ids]
        context = context_of(model, [function("f")], None, {"logprobs": True, "top_logprobs": 1})
        whole = chat(model.app, answer(ids, logprobs=True), **context)
        got = of_batch(whole)
        assert (got.reasoning, got.content, got.arguments) == ("ab", "ok", [("f", {})])
        entries = whole["choices"][0]["logprobs"]["content"]
        assert "".join(one["token"] for one in entries) == B07
        assert len(entries) == len(ids) == whole["usage"]["completion_tokens"]
        for most in (1, 2, 5, len(ids)):
            groups, at = [], 0
            while at < len(ids):
                size = rng.randint(1, most)
                groups.append(ids[at : at + size])
                at += size
            chunks = streamed(model, groups, context, entries=given)
            assert flat(chunks) == entries
            assert of_stream(chunks).arguments == [("f", {})]


def test_b08_entries_count_reasoning_too() -> None:
    """Two layers in one field (sgl-project/sglang#25055): one entry per generated token; of hidden reasoning, none."""
    for model in (real_served("smollm2", "glm45", "glm45"), *thinking("glm45", "glm45")):
        ids = model.tokenizer.encode("<think>hm</think>I am X")
        for shown in (True, False):
            context = context_of(model, (), None, {"logprobs": True, "top_logprobs": 1, "include_reasoning": shown})
            whole = chat(model.app, answer(ids, logprobs=True), **context)
            got = of_batch(whole)
            assert (got.reasoning, got.content) == ("hm" if shown else None, "I am X")
            entries = whole["choices"][0]["logprobs"]["content"]
            told = "".join(one["token"] for one in entries)
            assert whole["usage"]["completion_tokens"] == len(ids)
            if shown:
                assert told == "<think>hm</think>I am X"
                assert len(entries) == len(ids)
            else:
                assert "hm" not in told
                assert told.endswith("I am X")
            chunks = streamed(model, [[one] for one in ids], context, entries=[entry(one) for one in ids])
            assert flat(chunks) == entries


# ---------------------------------------------------------------------------------- rendering and serving


@pytest.mark.parametrize("thought", ["", "<think>\nhm\n</think>\n\n"])
@pytest.mark.parametrize("arguments", ['{"ok": false, "n": 1.0}', '{"z": null, "a": "ä\\n", "l": [1, {}]}', "{}"])
def test_e11_a_parsed_turn_is_rendered_as_it_was_sampled(thought: str, arguments: str) -> None:
    """Re-rendered history differs from sampled ids (verl-project/verl#6501), with the call parsed in between."""
    model = real_served("qwen3", "hermes", "qwen3")
    messages = [{"role": "user", "content": "q"}]
    tools = [function("w", ok="boolean", n="number", z={}, a="string", l="array")]
    request = {"messages": messages, "tools": tools}
    prompt = ok(model.app, CHAT_RENDER, request)["token_ids"]
    wrote = f'{thought}<tool_call>\n{{"name": "w", "arguments": {arguments}}}\n</tool_call><|im_end|>'
    output = model.tokenizer.encode(wrote)
    answered = chat(model.app, answer(output), request, prompt_token_ids=prompt)
    got = of_batch(answered)
    assert got.reasoning == ("\nhm\n" if thought else None)
    assert [call[1:] for call in got.calls] == [("w", arguments)]  # the model's own characters
    [one] = got.calls
    told = {"role": "tool", "tool_call_id": one[0], "content": "ok"}
    following = ok(
        model.app, CHAT_RENDER, {**request, "messages": [*messages, answered["choices"][0]["message"], told]}
    )["token_ids"]
    reached = [*prompt, *output]
    differs = next((i for i, (a, b) in enumerate(zip(reached, following, strict=False)) if a != b), None)
    assert differs is None, f"the next prompt differs from position {differs} on"
    assert following[len(reached)] == model.tokenizer.encode("\n")[0]  # after <|im_end|>


def test_f11_a_call_has_one_id() -> None:
    """Stateless replay (vllm#47161, vllm#56851): the same in every chunk, whole, as a stream and on a retry."""
    for model in thinking("qwen3", "hermes", *CALLS):
        got = read(model, f"<think>hm</think>{CALL}\n{CALL}", tools=F)
        assert got.calls[0] == (CALL_ID, "f", '{"a": 1}')
        assert got.calls[1][0] != CALL_ID
        assert read(model, f"<think>hm</think>{CALL}\n{CALL}", tools=F, splits=False).calls == got.calls
        context = context_of(model, F, None, {})
        ids = model.tokenizer.encode(CALL)
        another = of_batch(chat(model.app, {**answer(ids), "request_id": "another"}, **context))
        assert another.calls[0][0] != CALL_ID


def test_f11_a_parsed_stream_takes_linear_time() -> None:
    """The cost of replay in vllm#47161, inside an argument that does not end."""
    model = served("hermes", "qwen3", markers=(*THINK, *CALLS), max_model_len=10000)
    context = context_of(model, [function("f", a="string")], None, {})
    ids = model.tokenizer.encode('<think>hm</think><tool_call>\n{"name": "f", "arguments": {"a": "' + "text " * 800)
    spent: list[float] = []
    told: list[Json] = []

    async def run() -> None:
        state: Json = None
        for at in range(0, len(ids), 500):
            began = time.process_time()
            for token in ids[at : at + 500]:
                chunk = {"request_id": "r", "choices": [{"index": 0, "token_ids": [token]}]}
                body = {"stream": True, "generate_chunk": chunk, "stream_state": state, **context}
                data = json.dumps(body).encode()
                headers = [JSON, ("content-length", str(len(data)))]
                got = (await call(model.app, "POST", CHAT_DERENDER, parts=[data], headers=headers)).json
                state = got["stream_state"]
                told.append(got["chunk"])
                assert len(json.dumps(state)) < 4096
            spent.append(time.process_time() - began)

    asyncio.run(run())
    got = of_stream(told)
    assert (got.reasoning, got.calls) == ("hm", [(CALL_ID, "f", '{"a": "' + "text " * 800)])
    half = len(spent) // 2
    assert min(spent[half:-1]) < 2 * min(spent[:half])


def changed(value: Json, bad: Sequence[Json]) -> Iterator[Json]:
    """A JSON value with one of its parts changed, each part in turn."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from ({**value, key: other} for other in changed(part, bad))
    elif isinstance(value, list):
        for at, part in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in changed(part, bad))
            yield [*value[:at], *value[at + 1 :]]
    for other in bad:
        if other != value or type(other) is not type(value):
            yield other


def test_f11_a_hostile_state_of_a_parser_is_refused() -> None:
    """Internal errors shown, in vllm#47161: a fixed text, whatever stands in the place of any part of a state."""
    model = served("hermes", "qwen3", markers=(*THINK, *CALLS))
    context = context_of(model, F, None, {})
    ids = model.tokenizer.encode(f"<think>hm</think>{CALL[:40]}")
    body: Json = {"stream": True, "generate_chunk": {"request_id": "r", "choices": [{"index": 0, "token_ids": ids}]}}
    body |= context
    state = ok(model.app, CHAT_DERENDER, body)["stream_state"]
    body["generate_chunk"]["choices"][0]["token_ids"] = model.tokenizer.encode(CALL[40:])
    ok(model.app, CHAT_DERENDER, {**body, "stream_state": state})

    def said(bad: Json) -> str:
        return str(refused(model.app, CHAT_DERENDER, {**body, "stream_state": bad})["message"])

    texts = {said(bad) for bad in ({"role_sent": "x"}, {"prev_tokens": ["a"], "prefix_offset": -1})}
    choices: list[Json] = [[], 7, {"0": []}, {"0": [None] * 40}, {"x": []}]
    texts |= {said({**state, "choices": bad}) for bad in choices}
    texts.add(said({"chunk_lens": [10**9]}))
    another = {**body["generate_chunk"], "request_id": "another"}
    refused(model.app, CHAT_DERENDER, {**body, "generate_chunk": another, "stream_state": state})
    for bad in changed(state, (None, -1, 5000, "x", [], {}, True)):
        got = post(model.app, CHAT_DERENDER, {**body, "stream_state": bad})
        assert got.status in (200, 400), (bad, got.body)  # what another stream might have had is no fault
        if got.status == 400:
            texts.add(got.error["message"])
    assert len(texts) <= 4, texts
    assert not any(word in text for text in texts for word in ("Error", "Traceback", "object", "NoneType"))


def test_f11_a_number_in_a_state_is_bounded() -> None:
    """A hostile state costs no more than a good one: a number is no list of bytes, and makes no such list."""
    model = served("hermes", "qwen3", markers=(*THINK, *CALLS))
    body: Json = {"stream": True, **context_of(model, F, None, {})}
    ids = model.tokenizer.encode(CALL)
    body["generate_chunk"] = {"request_id": "r", "choices": [{"index": 0, "token_ids": ids[:40]}]}
    state = ok(model.app, CHAT_DERENDER, body)["stream_state"]
    body["generate_chunk"]["choices"][0]["token_ids"] = ids[40:]
    states = []
    for number in (3, 100_000):
        states.append(copy.deepcopy(state))
        assert states[-1]["choices"]["0"][0][-1] == []  # the bytes of a character that is not finished
        states[-1]["choices"]["0"][0][-1] = number
    assert [post(model.app, CHAT_DERENDER, {**body, "stream_state": bad}).status for bad in states] == [400, 400]
