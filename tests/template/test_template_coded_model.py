"""A model whose prompts are made by code, from its directory to the ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.server.tiny_model import SPECIAL, write_tiny_model

from derender.model import Model, ModelLoadError
from derender.protocol.chat import ChatCompletionRequest
from derender.server.describe import describe_model
from derender.settings import ModelSettings

HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")


def directory(path: Path, tokens: tuple[str, ...], config: dict[str, Any]) -> str:
    """The tiny model with more special tokens and another config; its template says nothing of them."""
    write_tiny_model(path)
    tree = json.loads((path / "tokenizer.json").read_text())
    like = tree["added_tokens"][0]
    tree["added_tokens"] += [
        {**like, "id": 256 + len(SPECIAL) + number, "content": token}
        for number, token in enumerate(token for token in tokens if token not in SPECIAL)
    ]
    (path / "tokenizer.json").write_text(json.dumps(tree))
    old = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**old, "vocab_size": 300, **config}))
    return str(path)


def prompt(model: Model) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "return_prompt_text": True}
    request = msgspec.json.decode(json.dumps(body), type=ChatCompletionRequest)
    rendered = model.render_chat(request)
    assert isinstance(rendered.prompt_text, str)
    assert model.tokenizer.decode(rendered.token_ids) == rendered.prompt_text
    return rendered.prompt_text


def test_gpt_oss(tmp_path: Path) -> None:
    path = directory(tmp_path, HARMONY, {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"})
    model = Model.load(path, settings=ModelSettings(tool_call_parser="auto", reasoning_parser="auto"))
    assert prompt(model).endswith("<|start|>user<|message|>Hi<|end|><|start|>assistant")
    lines = describe_model(model)
    reason = "the architecture is GptOss, and the vocabulary has harmony's tokens"
    assert f"  chat template: harmony, made by code ({reason})" in lines
    assert (model.parsers.tool, model.parsers.reasoning) == ("harmony", "harmony")


def test_its_own_template_on_demand(tmp_path: Path) -> None:
    path = directory(tmp_path, HARMONY, {"architectures": ["GptOssForCausalLM"]})
    model = Model.load(path, settings=ModelSettings(chat_template="default"))
    assert prompt(model) == "<|start|>user\nHi<|end|><|start|>assistant\n"
    assert "  chat template found" in describe_model(model)


@pytest.mark.parametrize(
    ("name", "tokens", "parsers"),
    [
        ("deepseek_v32", ("｜DSML｜", "<think>", "</think>"), ("deepseek_v32", "deepseek_v32")),
        ("deepseek_v4", ("｜DSML｜", "<think>", "</think>"), ("deepseek_v4", "deepseek_v4")),
        ("deepseek_v41", ("｜DSML｜", "<think>", "</think>"), ("deepseek_v41", "deepseek_v41")),
        ("kimi_k3", ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"), ("kimi_k3", "kimi_k3")),
        ("inkling", ("<|message_model|>", "<|content_thinking|>", "<|unused_200024|>"), ("inkling", "inkling")),
        ("mistral:v13", ("[INST]", "[/INST]", "[TOOL_CALLS]", "[THINK]", "[/THINK]"), ("mistral", "mistral")),
        ("mistral:v7", ("[INST]", "[/INST]", "[TOOL_CALLS]"), ("mistral", None)),
    ],
)
def test_named(tmp_path: Path, name: str, tokens: tuple[str, ...], parsers: tuple[str, str | None]) -> None:
    """The output format is told from the family as from a template."""
    settings = ModelSettings(chat_template=name, tool_call_parser="auto", reasoning_parser="auto")
    model = Model.load(directory(tmp_path, tokens, {}), settings=settings)
    assert "Hi" in prompt(model)
    assert (model.parsers.tool, model.parsers.reasoning) == parsers
    told = next(line for line in describe_model(model) if "chat template" in line)
    assert told == f"  chat template: {name.replace(':', ' ')}, made by code (--chat-template)"


def test_a_name_that_there_is_none_of(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="mistral may have one of v1, v2"):
        Model.load(directory(tmp_path, (), {}), settings=ModelSettings(chat_template="mistral:v99"))
