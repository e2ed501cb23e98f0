"""Published renders of the families with code, to the byte: those of vLLM's tests, of smg's, and of canitoolcall."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tests.template.coded import call, chat, render, result

from derender.protocol.errors import BadRequest
from derender.template.coded.base import CodedTemplate
from derender.template.coded.deepseek_v4 import DeepseekV4, DeepseekV41
from derender.template.coded.deepseek_v32 import DeepseekV32
from derender.template.coded.harmony import Harmony
from derender.template.coded.inkling import Inkling
from derender.template.coded.kimi_k3 import KimiK3
from derender.template.coded.mistral import Mistral

Json = Any
SHARED = Path(__file__).parents[2] / "../shared/data"
RUST = "vllm/rust/src/chat/src/renderer"
PYTHON = "vllm/tests/tokenizers_/fixtures"


def shared(path: str) -> str:
    file = SHARED / path
    if not file.is_file():
        pytest.skip(f"there is no ../shared/data/{path} beside the repository")
    return file.read_text(encoding="utf-8")


def request(path: str) -> Json:
    """A fixture as a request: some are lists of messages, and calls and tools lack the type that the API asks for."""
    body = json.loads(shared(path))
    if isinstance(body, list):
        body = {"messages": body}
    for tool in body.get("tools") or ():
        tool["type"] = "function"
    for message in body["messages"]:
        for tool in message.get("tools") or ():
            tool["type"] = "function"
        for number, one in enumerate(message.get("tool_calls") or ()):
            one["type"] = "function"
            one.setdefault("id", f"call_{number}")
    if "template_kwargs" in body:
        body["chat_template_kwargs"] = body.pop("template_kwargs")
    if body["messages"][-1]["role"] == "assistant":
        body["add_generation_prompt"] = False
    return body


def check(template: CodedTemplate, body: Json, golden: str, **options: Json) -> None:
    want = shared(golden)
    if want.endswith("\n"):  # of the file, no prompt ends so
        want = want[:-1]
    assert render(template, body, **options) == want


# vLLM's own server writes the recipient of a call beside the role, as the model was taught, and only its fixture, of
# openai-harmony since 0.0.10, behind the channel: `call_header` gives that too.
HARMONY = {
    "assistant_history": {},
    "developer_tools": {},
    "drop_analysis": {},
    "leading_system": {},
    "request_tools": {},
    "simple_user": {},
    "tool_roundtrip": {"call_header": "channel"},
}


@pytest.mark.parametrize("name", HARMONY)
def test_harmony(name: str) -> None:
    folder = f"{RUST}/harmony/fixtures"
    options = {"current_date": "2025-06-28", **HARMONY[name]}
    check(Harmony(), request(f"{folder}/{name}.json"), f"{folder}/{name}.txt", **options)


def test_harmony_with_instructions_in_the_system_message() -> None:
    folder = f"{RUST}/harmony/fixtures"
    body = request(f"{folder}/leading_system.json")
    golden = f"{folder}/system_instructions_env.txt"
    check(Harmony(), body, golden, current_date="2025-06-28", system_instructions=True)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("test_input", "test_output_vllm_parity"),
        ("test_input_search_wo_date", "test_output_search_wo_date"),
        ("test_input_search_w_date", "test_output_search_w_date"),
        ("test_input_developer_tools", "test_output_developer_tools"),
    ],
)
def test_deepseek_v32(given: str, wanted: str) -> None:
    folder = f"{RUST}/deepseek_v32/fixtures"
    check(DeepseekV32(), request(f"{folder}/{given}.json"), f"{folder}/{wanted}.txt", thinking=True)


# The encoder's own default effort is low, that of vLLM's server high: the fixtures are of the encoder.
@pytest.mark.parametrize(
    ("folder", "name", "options"),
    [
        (f"{RUST}/deepseek_v4/fixtures", "1", {"reasoning_effort": "low"}),
        (f"{RUST}/deepseek_v4/fixtures", "2", {"reasoning_effort": "low"}),
        (f"{RUST}/deepseek_v4/fixtures", "developer_tools", {"reasoning_effort": "low"}),
        (f"{PYTHON}/deepseek_v4", "1", {"reasoning_effort": "low"}),
        (f"{PYTHON}/deepseek_v4", "2", {"reasoning_effort": "low"}),
        (f"{PYTHON}/deepseek_v4", "3", {"reasoning_effort": "low"}),
        (f"{PYTHON}/deepseek_v4", "4", {"thinking": False}),
    ],
)
def test_deepseek_v4(folder: str, name: str, options: Json) -> None:
    check(DeepseekV4(), request(f"{folder}/test_input_{name}.json"), f"{folder}/test_output_{name}.txt", **options)


def test_deepseek_v4_with_images_is_refused() -> None:
    with pytest.raises(BadRequest, match="not a multimodal model"):
        render(DeepseekV4(), request(f"{PYTHON}/deepseek_v4/test_input_5.json"))


@pytest.mark.parametrize(
    ("inputs", "outputs", "name"),
    [
        (f"{RUST}/deepseek_v4/fixtures", f"{RUST}/deepseek_v41/fixtures", "1"),
        (f"{RUST}/deepseek_v4/fixtures", f"{RUST}/deepseek_v41/fixtures", "2"),
        (f"{RUST}/deepseek_v4/fixtures", f"{RUST}/deepseek_v41/fixtures", "developer_tools"),
        (f"{PYTHON}/deepseek_v4", f"{PYTHON}/deepseek_v41", "1"),
        (f"{PYTHON}/deepseek_v4", f"{PYTHON}/deepseek_v41", "2"),
    ],
)
def test_deepseek_v41(inputs: str, outputs: str, name: str) -> None:
    check(DeepseekV41(), request(f"{inputs}/test_input_{name}.json"), f"{outputs}/test_output_{name}.txt")


@pytest.mark.parametrize(
    "name",
    [
        "controls_thinking_off", "dynamic_only_tool_declare", "dynamic_system_tool_declare",
        "history_preserve_and_image", "tools_history_and_required",
    ],
)  # fmt: skip
def test_kimi_k3(name: str) -> None:
    folder = f"{RUST}/kimi_k3/fixtures"
    body = request(f"{folder}/{name}_input.json")
    options = {key: body.pop(key) for key in ("tool_choice", "response_format") if key in body}
    for message in body["messages"]:
        if isinstance(message.get("content"), list):  # an image's place is text here; a request with one is refused
            message["content"] = "".join(part.get("text", "<|media_pad|>") for part in message["content"])
    check(KimiK3(), body, f"{folder}/{name}_output.txt", **options)


@pytest.mark.parametrize("name", ["tool_declare", "tool_round_trip"])
def test_inkling(name: str) -> None:
    folder = f"{RUST}/inkling/fixtures"
    check(Inkling(), request(f"{folder}/{name}_input.json"), f"{folder}/{name}_output.txt")


@pytest.mark.parametrize("name", ["text_image", "text_audio"])
def test_inkling_with_media_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="not a multimodal model"):
        render(Inkling(), request(f"{RUST}/inkling/fixtures/{name}_input.json"))


LOOKUP = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": LOOKUP}]
HI = {"role": "user", "content": "Hi"}
UNSAID: Json = {"thinking_effort": None}  # no effort named, which the API has no way to say
SMG: dict[str, tuple[Json, Json]] = {
    "plain_user_thinking": (chat("Hi"), UNSAID),
    "system_user_thinking": (chat({"role": "system", "content": "You are helpful"}, HI), UNSAID),
    "plain_user_no_thinking": (chat("Hi"), {"thinking": False}),
    "assistant_prior_turn": (chat("Hi", "Hello!", "Bye"), UNSAID),
    "with_tools": (chat("weather in Paris?", tools=TOOLS), UNSAID),
    "assistant_tool_call_then_result": (
        chat(
            "weather?",
            {"role": "assistant", "content": None, "tool_calls": [call("c", "get_weather", '{"city":"Paris"}')]},
            result("c", "sunny"),
            tools=TOOLS,
        ),
        UNSAID,
    ),
    "thinking_effort_low": (chat("Hi"), {"thinking_effort": "low"}),
}


@pytest.mark.parametrize("name", SMG)
def test_kimi_k3_as_smg(name: str) -> None:
    body, options = SMG[name]
    assert render(KimiK3(), body, **options) == json.loads(shared("smg/k3_render_fixtures.json"))[name]["text"]


EOS = "<｜end▁of▁sentence｜>"
WRITERS: dict[str, tuple[CodedTemplate, str, str]] = {
    "kimi/k3-render": (KimiK3(), "kimi/k3-", "<|end_of_msg|>"),
    "deepseek/v32": (DeepseekV32(), "deepseek/v32-", EOS),
    "deepseek/v4": (DeepseekV4(), "deepseek/v4-", EOS),
    "deepseek/v41": (DeepseekV41(), "deepseek/v41-", EOS),
    "mistral/rendered": (Mistral(version=13, thinks=True), "mistral/v13", "</s>"),
}
"""File of canitoolcall → the family, the cases of it, and what ends a message."""


def recorded() -> list[tuple[str, Json]]:
    """Outputs of whole messages as the models' own encoders wrote them."""
    folder = files("canitoolcall") / "_data/fixtures"
    found = []
    for file, (_, prefix, _) in WRITERS.items():
        cases = map(json.loads, (folder / f"{file}.jsonl").read_text(encoding="utf-8").splitlines())
        whole = (case for case in cases if "expected" in case and "truncated" not in case["tags"])
        found += [(file, case) for case in whole if case["id"].startswith(prefix)]
    return found


def test_there_are_recorded_outputs_of_each_family() -> None:
    counts = Counter(file for file, _ in recorded())
    assert set(counts) == set(WRITERS)
    assert min(counts.values()) >= 13


@pytest.mark.parametrize(
    ("file", "case"), recorded(), ids=lambda value: value if isinstance(value, str) else value["id"]
)
def test_an_output_in_the_history_is_what_the_model_wrote(file: str, case: Json) -> None:
    template, _, end = WRITERS[file]
    said = case["expected"]
    message = {
        "role": "assistant",
        "content": said["content"],
        "tool_calls": [
            call(f"id{number:07}", one["name"], one["arguments"]) for number, one in enumerate(said["tool_calls"] or ())
        ],
    }
    if said["reasoning_content"] is not None:
        message["reasoning"] = said["reasoning_content"]
    kwargs = {"thinking": case["thinking"]} if "thinking" in template.variables else {}
    asked = render(template, chat("x", chat_template_kwargs=kwargs))
    answered = render(template, chat("x", message, add_generation_prompt=False, chat_template_kwargs=kwargs))
    assert answered == f"{asked}{case['raw_output']}{end}"
