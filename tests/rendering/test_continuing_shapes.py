"""Going on from last turns of all shapes, whatever the model wrote and however it ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.rendering.helpers import chat, renderer
from tests.template.test_template_coded_model import directory
from tests.vocabularies import REAL

from derender.model import Model
from derender.protocol.errors import ApiError, Conflict
from derender.settings import ModelSettings

Json = Any
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def call(number: int) -> Json:
    arguments = json.dumps({"x": "a b"})
    return {"id": f"call0000{number}", "type": "function", "function": {"name": "look", "arguments": arguments}}


SAID: dict[str, Json] = {
    "text": {"content": "Hi  there"},
    "empty": {"content": ""},
    "nothing": {"content": None},
    "blanks": {"content": "\n\n"},
    "no reasoning": {"content": "", "reasoning": ""},
    "reasoning": {"content": "", "reasoning": "hm so"},
    "reasoning alone": {"content": None, "reasoning": "hm so"},
    "reasoning and text": {"content": "Hi", "reasoning": "hm"},
}
CALLED: dict[str, Json] = {
    "call": {"content": None, "tool_calls": [call(1)]},
    "call of an empty text": {"content": "", "tool_calls": [call(1)]},
    "text and call": {"content": "Let me", "tool_calls": [call(1)]},
    "reasoning and call": {"content": "", "reasoning": "hm", "tool_calls": [call(1)]},
}
SEVERAL: Json = {"content": "", "tool_calls": [call(1), call(2)]}
OUTPUTS = {
    "nothing": "",
    "in reasoning": "<think>\nhm s",
    "in a call": '<tool_call>\n{"name": "lo',
    "by a stop string": "Hi STOP",
}
"""What was sampled before it was cut off, or a stop string or a token that the request named ended it."""


class Family(NamedTuple):
    """`end`: what the template ends a turn with, `user` what follows it with a question behind. `result`: the same
    with the result of a call, `called` the end before it where it is another. `others`: further tokens that the model
    may end with. `several`: whether one of several calls may have its result."""

    end: str
    user: str
    result: str = ""
    called: str = ""
    others: tuple[str, ...] = ()
    several: bool = True


QWEN = "\n<|im_start|>user\nHow?<|im_end|>\n<|im_start|>assistant\n"
QWEN_RESULT = "\n<|im_start|>user\n<tool_response>\n21\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
LLAMA = "<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
EOS = "<｜end▁of▁sentence｜>"
FAMILIES = {
    "qwen2.5": Family("<|im_end|>", QWEN, QWEN_RESULT, others=("<|endoftext|>",)),
    "qwen3": Family("<|im_end|>", QWEN, QWEN_RESULT, others=("<|endoftext|>",)),
    "qwen3.6": Family("<|im_end|>", QWEN + "<think>\n", QWEN_RESULT + "<think>\n", others=("<|endoftext|>",)),
    "llama3.2": Family(
        "<|eot_id|>",
        LLAMA.format("user", "How?"),
        LLAMA.format("ipython", '"21"'),
        others=("<|eom_id|>", "<|end_of_text|>"),
        several=False,
    ),
    "gpt-oss": Family(
        "<|end|>",
        "<|start|>user<|message|>How?<|end|><|start|>assistant",
        "<|start|>functions.look<|channel|>commentary to=assistant<|message|>21<|end|><|start|>assistant",
        called="<|call|>",
        others=("<|return|>",),
    ),
    "deepseek-v3.1": Family(
        EOS,
        "<｜User｜>How?<｜Assistant｜><think></think>",
        "<｜tool▁output▁begin｜>21<｜tool▁output▁end｜>",
    ),
    "deepseek-v3.2": Family(
        EOS,
        "<｜User｜>How?<｜Assistant｜><think></think>",
        "\n\n<function_results>\n<result>21</result>\n</function_results>\n\n<think></think>",
        several=False,
    ),
    "deepseek-v4": Family(
        EOS,
        "<｜User｜>How?<｜Assistant｜></think>",
        "<｜User｜><tool_result>21</tool_result><｜Assistant｜></think>",
    ),
    "gemma3": Family("<end_of_turn>", "\n<start_of_turn>user\nHow?<end_of_turn>\n<start_of_turn>model\n"),
    "gemma4": Family(
        "<turn|>",
        "\n<|turn>user\nHow?<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
        "\n<|turn>tool\n21<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
        others=("<eos>",),
    ),
    "mistral-v1": Family("</s>", " [INST] How? [/INST]"),
    "mistral-7b-v3": Family(
        "</s>", "[INST] How?[/INST]", '[TOOL_RESULTS] {"content": 21, "call_id": "call00001"}[/TOOL_RESULTS]'
    ),
    "mistral-nemo-tekken": Family(
        "</s>", "[INST]How?[/INST]", '[TOOL_RESULTS]{"content": 21, "call_id": "call00001"}[/TOOL_RESULTS]'
    ),
    "smollm2": Family("<|im_end|>", QWEN),
    "phi-3": Family("<|end|>", "\n<|user|>\nHow?<|end|>\n<|assistant|>\n", others=("<|endoftext|>",)),
    "command-r-plus": Family(
        "<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>How?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ),
}


def family_model(family: str) -> Model:
    if not (REAL / family / "tokenizer.json").is_file():
        pytest.skip(f"the vocabulary {family} is not in {REAL}")
    return Model.load(str(REAL / family))


def check(to: Model, said: Json, *, followed: list[Json], end: str, tail: str, others: tuple[str, ...] = ()) -> None:
    """All ends of an output, with and without a turn before, behind one message of the assistant."""
    tools: Json = {"tools": [TOOL], "tool_choice": "none"} if "tool_calls" in said else {}
    ends = to.renderer.model.turn_ends
    closed = to.tokenizer.encode(end + tail)
    assert closed[0] == ends[end]
    before = [{"role": "user", "content": "Hey"}, {"role": "assistant", "content": "Yes"}]
    for turns in ([], before):
        asked = [*turns, {"role": "user", "content": "Hello"}]
        body = {"messages": [*asked, {"role": "assistant", **said}, *followed], **tools}
        prompt = chat(to.renderer, messages=asked, **tools)["token_ids"]
        for name, output in OUTPUTS.items():
            sampled = [*prompt, *(to.tokenizer.encode(output) if output else [])]
            for ended in ("", end, *others):
                previous = [*sampled, *([ends[ended]] if ended else [])]
                made = chat(to.renderer, **body, previous_token_ids=previous, keep_previous_reasoning=True)
                expected = [*previous, *(closed[1:] if ended else closed)]
                assert made["token_ids"] == expected, (said, name, ended)


@pytest.mark.real
@pytest.mark.parametrize("family", FAMILIES)
def test_any_last_turn_keeps_its_ids(family: str) -> None:
    to, made = family_model(family), FAMILIES[family]
    question = [{"role": "user", "content": "How?"}]
    for said in SAID.values():
        check(to, said, followed=question, end=made.end, tail=made.user, others=made.others)
    if not made.result:
        return
    result = {"role": "tool", "tool_call_id": "call00001", "name": "look", "content": "21"}
    end = made.called or made.end
    for said in CALLED.values():
        check(to, said, followed=[result], end=end, tail=made.result, others=made.others)
    if made.several:
        check(to, SEVERAL, followed=[result], end=end, tail=made.result, others=made.others)


# ------------------------------------------------------------------------------------------ without reasoning


@pytest.mark.real
@pytest.mark.parametrize("family", ["qwen3", "qwen3.6"])
@pytest.mark.parametrize("said", [SAID["text"], SAID["empty"], SAID["nothing"], SAID["no reasoning"]])
def test_a_turn_without_reasoning_loses_none(family: str, said: Json) -> None:
    """The template writes an empty reasoning into a last turn and leaves it out of a history: nothing to keep."""
    to = family_model(family)
    asked = [{"role": "user", "content": "Hello"}]
    prompt = to.tokenizer.encode("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    messages = [*asked, {"role": "assistant", **said}, {"role": "user", "content": "How?"}]
    for output in ("", "Hi there<|im_end|>", "<|im_end|>"):
        previous = [*prompt, *(to.tokenizer.encode(output) if output else [])]
        made = chat(to.renderer, messages=messages, previous_token_ids=previous)["token_ids"]
        assert made[: len(previous)] == previous
        text = to.tokenizer.decode(made)
        assert f"assistant\n{output.removesuffix('<|im_end|>')}<|im_end|>\n<|im_start|>user\nHow?" in text
    thought = [*prompt, *to.tokenizer.encode("<think>\nhm")]
    with pytest.raises(Conflict, match="keep_previous_reasoning"):
        chat(to.renderer, messages=messages, previous_token_ids=thought)


@pytest.mark.parametrize("output", ["", "Hi"])
def test_a_template_that_refuses_or_does_not_end_a_turn_without_text(output: str) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }} {% if m.role == 'user' %}{{ m.content }}<|im_end|>"
        "{% elif not m.content %}{{ raise_exception('no text') }}"
        "{% elif m.content | trim %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    )
    to = renderer(template=template, turn_ends={"<|im_end|>": 2})
    previous = [1, 5, *([6] if output else [])]
    for said in ("", "  "):
        turns = [("user", "Hello"), ("assistant", said), ("user", "How?")]
        messages = [{"role": role, "content": text} for role, text in turns]
        made = chat(to, messages=messages, previous_token_ids=previous, return_prompt_text=True)
        assert made["token_ids"][: len(previous) + 1] == [*previous, 2]
        assert made["prompt_text"].endswith("<|im_end|><|im_start|>user How?<|im_end|>")
        assert made["prompt_text"].count("<|im_end|>") == 2


def test_the_end_of_the_question_is_not_that_of_an_empty_answer() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>user {{ m.content }}<|im_end|>"
        "{% else %}assistant: {{ m.content }}\n{% endif %}{% endfor %}"
    )
    turns = [("user", "Hello"), ("assistant", ""), ("user", "How?")]
    messages = [{"role": role, "content": text} for role, text in turns]
    with pytest.raises(Conflict, match="no token that ends an output"):
        chat(renderer(template=template, turn_ends={"<|im_end|>": 2}), messages=messages, previous_token_ids=[5])


# --------------------------------------------------------------------------------- ends of more than one token

INKLING = (
    "<|message_model|>", "<|message_user|>", "<|message_tool|>", "<|message_system|>", "<|content_thinking|>",
    "<|content_text|>", "<|content_invoke_tool_json|>", "<|end_message|>", "<|content_model_end_sampling|>",
    "<|unused_200024|>",
)  # fmt: skip
KIMI = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")


def coded(path: Path, name: str, tokens: tuple[str, ...]) -> Model:
    settings = ModelSettings(chat_template=name, tool_call_parser="auto", reasoning_parser="auto")
    return Model.load(directory(path, tokens, {}), settings=settings)


@pytest.mark.parametrize("said", [*SAID, *CALLED])
def test_inkling_ends_a_message_and_then_the_turn(tmp_path: Path, said: str) -> None:
    to = coded(tmp_path, "inkling", INKLING)
    message = {**SAID, **CALLED}[said]
    followed: Json = {"role": "user", "content": "How?"}
    tail = "<|message_user|><|content_text|>How?<|end_message|><|message_model|>"
    if said in CALLED:
        followed = {"role": "tool", "tool_call_id": "call00001", "name": "look", "content": "21"}
        tail = "<|message_tool|>look<|content_text|>21<|end_message|><|message_model|>"
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", **message}, followed]
    done, over = "<|end_message|>", "<|content_model_end_sampling|>"
    for sampled, closing in (("", done + over), (done, over), (done + over, ""), (over, "")):
        previous = to.tokenizer.encode(f"<|message_model|><|content_text|>Hi{sampled}")
        made = chat(to.renderer, messages=messages, previous_token_ids=previous)["token_ids"]
        assert made == [*previous, *to.tokenizer.encode(closing + tail)]


@pytest.mark.parametrize("said", [*SAID, *CALLED])
def test_kimi_k3_says_more_behind_a_turn(tmp_path: Path, said: str) -> None:
    """With `tool_choice` none, a message of the system stands at the end: its end is not that of the turn."""
    to = coded(tmp_path, "kimi_k3", KIMI)
    message = {**SAID, **CALLED}[said]
    followed: Json = {"role": "user", "content": "How?"}
    tail = '<|open|>message role="user"<|sep|>How?<|close|>message<|sep|><|end_of_msg|>'
    if said in CALLED:
        followed = {"role": "tool", "tool_call_id": "call00001", "content": "21"}
        tail = (
            '<|open|>message role="tool" tool="look" index="1"<|sep|>21<|close|>message<|sep|><|end_of_msg|>'
        )  # fmt: skip
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", **message}, followed]
    for ended in ("", "<|end_of_msg|>"):
        previous = to.tokenizer.encode(f"Hi{ended}")
        made = chat(
            to.renderer, messages=messages, tools=[TOOL], tool_choice="none", previous_token_ids=previous
        )["token_ids"]  # fmt: skip
        assert made[: len(previous)] == previous
        behind = to.tokenizer.decode(made[len(previous) :])
        assert behind.startswith(("" if ended else "<|end_of_msg|>") + tail)
        assert behind.count("tool_choice=none") == 1


GLM = (
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}"
    "{% elif m.role == 'tool' %}<|observation|>{{ m.content }}"
    "{% else %}<|assistant|>{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.name }}</tool_call>{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.mark.parametrize("said", ["text", "empty", "nothing", "call"])
def test_an_end_that_begins_the_next_message(tmp_path: Path, said: str) -> None:
    """GLM's turns end with the token of the role that comes next; another end does not stand for it."""
    path = directory(tmp_path, ("<|user|>", "<|observation|>", "<|assistant|>", "<|endoftext|>"), {})
    (tmp_path / "chat_template.jinja").write_text(GLM)
    to = Model.load(path, settings=ModelSettings(tool_call_parser="glm45", reasoning_parser="glm45"))
    assert {"<|user|>", "<|observation|>", "<|endoftext|>"} <= to.renderer.model.turn_ends.keys()
    message = {**SAID, **CALLED}[said]
    opener, answer = ("<|observation|>", "tool") if said == "call" else ("<|user|>", "user")
    followed = {"role": answer, "tool_call_id": "call00001", "content": "How?"}
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", **message}, followed]
    for ended, written in (("", opener), (opener, ""), ("<|endoftext|>", opener)):
        previous = to.tokenizer.encode(f"<|user|>Hello<|assistant|>Hi{ended}")
        try:
            made = chat(to.renderer, messages=messages, previous_token_ids=previous)["token_ids"]
        except ApiError as error:
            pytest.fail(f"{said} {ended}: {error}")
        assert to.tokenizer.decode(made[len(previous) :]) == f"{written}How?<|assistant|>"


def test_reasoning_that_leaves_its_closer_is_only_reasoning(tmp_path: Path) -> None:
    """DeepSeek writes `</think>` alone where a history's reasoning is left out."""
    tokens = ("｜DSML｜", "<think>", "</think>", EOS, "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
    to = coded(tmp_path, "deepseek_v4", tokens)
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi", "reasoning": "hm"}]
    messages = [*turns, {"role": "user", "content": "How?"}]
    previous = to.tokenizer.encode(f"<｜User｜>Hello<｜Assistant｜><think>hm</think>Hi{EOS}")
    with pytest.raises(Conflict, match="keep_previous_reasoning"):
        chat(to.renderer, messages=messages, previous_token_ids=previous)
    made = chat(to.renderer, messages=messages, previous_token_ids=previous, keep_previous_reasoning=True)["token_ids"]
    assert made == [*previous, *to.tokenizer.encode("<｜User｜>How?<｜Assistant｜><think>")]
