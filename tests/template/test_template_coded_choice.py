"""Which models' prompts are made by code, and by which family's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from derender.template.coded.choose import CODED_NAMES
from derender.template.source import TemplateSet, Vocabulary

Json = Any
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|return|>", "<|call|>")
JINJA = "{{ messages[0].content }}"


def vocabulary(*tokens: str, blank: bool | None = None) -> Vocabulary:
    """`blank`: whether text behind a special token gets its blank by itself; None for a vocabulary without such."""
    ids = {token: number for number, token in enumerate(tokens)}
    if blank is not None:
        ids["▁a"] = 100
    return Vocabulary(token_id=ids.get, encode=lambda text: [1, 100] if blank else [1, 101])


def chosen(
    known: Vocabulary,
    directory: Path | None = None,
    *,
    config: Json = {},  # noqa: B006
    templates: Json = None,
    chat_template: str | None = None,
) -> tuple[str, str]:
    found = TemplateSet.of_model(
        directory, templates=templates, chat_template=chat_template, vocabulary=known, config=config
    )
    return (found.pick(tools=True).name, found.told) if found else ("", found.told)


@pytest.mark.parametrize(
    "config", [{"architectures": ["GptOssForCausalLM"]}, {"model_type": "gpt_oss"}, {"architectures": ["GptOssX"]}]
)
def test_gpt_oss_is_harmony_in_spite_of_its_template(tmp_path: Path, config: Json) -> None:
    (tmp_path / "chat_template.jinja").write_text(JINJA)
    assert chosen(vocabulary(*HARMONY), tmp_path, config=config) == (
        "harmony",
        "harmony, made by code (the architecture is GptOss, and the vocabulary has harmony's tokens)",
    )
    assert chosen(vocabulary(*HARMONY), tmp_path, config=config, chat_template="default") == ("default", "")


@pytest.mark.parametrize(
    ("tokens", "config"),
    [
        (HARMONY, {"architectures": ["LlamaForCausalLM"]}),
        (HARMONY, {"architectures": "GptOssForCausalLM"}),
        (HARMONY[:4], {"architectures": ["GptOssForCausalLM"]}),
        (HARMONY, {}),
    ],
)
def test_what_is_not_harmony(tmp_path: Path, tokens: tuple[str, ...], config: Json) -> None:
    (tmp_path / "chat_template.jinja").write_text(JINJA)
    assert chosen(vocabulary(*tokens), tmp_path, config=config) == ("default", "")


def test_a_gguf_file_of_gpt_oss() -> None:
    template = "{{ '<|start|>assistant<|channel|>final<|message|>' }}"
    name, told = chosen(vocabulary(*HARMONY), templates={"default": template})
    assert (name, told) == ("harmony", "harmony, made by code (the chat template and the vocabulary are harmony's)")


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (("｜DSML｜",), "deepseek_v32"),
        (("｜DSML｜", "<｜latest_reminder｜>"), "deepseek_v4"),
        (("｜DSML｜", "<｜latest_reminder｜>", "<｜System｜>"), "deepseek_v41"),
        (("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"), "kimi_k3"),
        (("<|open|>", "<|close|>"), ""),
        (("<|message_model|>", "<|content_thinking|>", "<|content_invoke_tool_json|>"), "inkling"),
        (("[TOOL_CALLS]",), ""),
    ],
)
def test_told_by_the_vocabulary(tmp_path: Path, tokens: tuple[str, ...], name: str) -> None:
    found, told = chosen(vocabulary(*tokens), tmp_path)
    assert found == name
    assert bool(told) == bool(name)
    (tmp_path / "chat_template.jinja").write_text(JINJA)
    assert chosen(vocabulary(*tokens), tmp_path) == ("default", "")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("encoding/encoding_dsv32.py", "deepseek_v32"),
        ("encoding/encoding_dsv4.py", "deepseek_v4"),
        ("encoding/encoding_dsv41.py", "deepseek_v41"),
        ("encoding_k3.py", "kimi_k3"),
    ],
)
def test_told_by_an_encoder(tmp_path: Path, file: str, name: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise SystemExit('never run')")
    assert chosen(vocabulary("｜DSML｜"), tmp_path) == (name, f"{name}, made by code (no chat template, but {file})")


@pytest.mark.parametrize(
    ("version", "tokens", "name"),
    [("v3", (), "mistral v3"), ("v11", (), "mistral v11"), ("v13", ("[THINK]", "[/THINK]"), "mistral v13")],
)
def test_a_tekken_file(tmp_path: Path, version: str, tokens: tuple[str, ...], name: str) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps({"config": {"version": version}, "vocab": [{"rank": 0}]}))
    found = TemplateSet.of_model(tmp_path, vocabulary=vocabulary(*tokens), config={})
    template = found.pick(tools=False)
    assert template.name == name
    assert found.told == f"{name}, made by code (no chat template, but tekken.json of version {version})"
    assert ("[THINK]" in template.source) == bool(tokens)
    assert template.render([{"role": "user", "content": "a"}]) == "<s>[INST]a[/INST]"


def test_the_reasoning_efforts_of_a_tekken_file(tmp_path: Path) -> None:
    rule = {"type": "enum", "values": ["none", "high"], "accepts_none": True, "default": "none"}
    tree = {"config": {"version": "v15"}, "model_settings_builder": {"reasoning_effort": rule}}
    (tmp_path / "tekken.json").write_text(json.dumps(tree))
    template = TemplateSet.of_model(tmp_path, vocabulary=vocabulary(), config={}).pick(tools=False)
    text = template.render([{"role": "user", "content": "a"}], reasoning_effort="high")
    assert text == '<s>[MODEL_SETTINGS]{"reasoning_effort": "high"}[/MODEL_SETTINGS][INST]a[/INST]'


@pytest.mark.parametrize("text", ['{"config": {"version": "v99"}}', '{"config": {}}', "{", "[]"])
def test_a_tekken_file_that_is_not_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "tekken.json").write_text(text)
    with pytest.raises(ValueError, match=r"tekken\.json"):
        chosen(vocabulary(), tmp_path)


@pytest.mark.parametrize(
    ("file", "blank", "written"),
    [
        ("tokenizer.model.v3", True, "<s>[INST]a[/INST]"),
        ("tokenizer.model.v3", False, "<s>[INST] a[/INST]"),
        ("mistral_instruct_tokenizer_241114.model.v7m1", False, "<s>[INST] a[/INST]"),
        ("tokenizer.model.v1", False, "<s> [INST] a [/INST]"),
    ],
)
def test_a_sentencepiece_file(tmp_path: Path, file: str, blank: bool, written: str) -> None:
    (tmp_path / file).write_bytes(b"")
    found = TemplateSet.of_model(tmp_path, vocabulary=vocabulary(blank=blank), config={})
    assert found.told.endswith(f"(no chat template, but {file} of version {file.split('.')[-1].split('m')[0]})")
    assert found.pick(tools=False).render([{"role": "user", "content": "a"}]) == written


@pytest.mark.parametrize("name", sorted(set(CODED_NAMES) - {"mistral"}))
def test_a_family_whose_tokens_the_vocabulary_lacks_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"--chat-template {name}: the vocabulary has no token"):
        chosen(vocabulary("<|im_start|>"), tmp_path, chat_template=name)


def test_a_tekken_file_may_have_a_date_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "tekken_240911.json").write_text('{"config": {"version": "v3"}}')
    _, told = chosen(vocabulary("[INST]"), tmp_path)
    assert "tekken_240911.json of version v3" in told


@pytest.mark.parametrize("name", CODED_NAMES)
def test_named_by_the_operator(tmp_path: Path, name: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(JINJA)
    tokens = ("<|start|>", "<|open|>", "｜DSML｜", "<|message_model|>")
    found, told = chosen(vocabulary(*tokens), tmp_path, chat_template=name)
    assert found.partition(" ")[0] == name
    assert told.startswith(f"{found}, made by code (--chat-template")


@pytest.mark.parametrize(
    ("tokens", "version"),
    [
        ((), 1),
        (("[TOOL_CALLS]",), 3),
        (("[TOOL_CALLS]", "[SYSTEM_PROMPT]"), 7),
        (("[SYSTEM_PROMPT]", "[ARGS]"), 11),
        (("[ARGS]", "[THINK]", "[/THINK]"), 13),
        (("[THINK]", "[/THINK]", "[MODEL_SETTINGS]"), 15),
    ],
)
def test_a_version_of_mistral_is_told_by_the_vocabulary(tokens: tuple[str, ...], version: int) -> None:
    assert chosen(vocabulary(*tokens), chat_template="mistral")[0] == f"mistral v{version}"
    assert chosen(vocabulary(*tokens), chat_template="mistral:v2")[0] == "mistral v2"


@pytest.mark.parametrize("name", ["mistral:v5", "mistral:7", "harmony:v1", "llama"])
def test_a_name_that_there_is_none_of(name: str) -> None:
    with pytest.raises(ValueError, match=r"--chat-template: '" + name):
        chosen(vocabulary(), chat_template=name)
