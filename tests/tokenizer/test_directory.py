"""Which file of a directory is its vocabulary, and that each kind serves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.server.asgi_client import JSON, post, request
from tests.server.live import running
from tests.tokenizer.makers import TEMPLATE, rank_file, sentencepiece, tekken, write
from tests.vocabularies import byte_level_json, real_model

from derender.model import Model, ModelLoadError, ModelSettings
from derender.registry import ModelRegistry
from derender.server.app import AppSettings, build_app
from derender.server.describe import describe_model
from derender.server.http import App
from derender.server.metrics import TextMetrics
from derender.tokenizer import Tokenizer, TokenizerBroken
from derender.tokenizer.directory import SourceMode, find_vocabulary

CODE = "PAT_STR = r'\\p{L}+|\\p{N}|\\s+|[^\\s\\p{L}\\p{N}]+'"
SPECIAL = {"263": {"content": "<s>", "special": True}, "264": {"content": "[INST]", "special": True}}
ALONE: dict[str, dict[str, Any]] = {
    "tekken.json (tekken)": {"tekken__json": tekken()},
    "x.tiktoken (tiktoken ranks)": {
        "x__tiktoken": rank_file(),
        "tokenization_x__py": CODE,
        "tokenizer_config__json": {"added_tokens_decoder": SPECIAL},
    },
    "tokenizer.model (sentencepiece BPE)": {"tokenizer__model": sentencepiece()},
    "tokenizer.model.v3 (sentencepiece BPE)": {"tokenizer__model__v3": sentencepiece()},
}
TEXT = "ab é the\n"


def served(path: str, **more: Any) -> tuple[Model, App]:
    model = Model.load(path, settings=ModelSettings(chat_template=TEMPLATE, served_model_names=("m",), **more))
    return model, build_app(ModelRegistry([model]), settings=AppSettings(), metrics=TextMetrics())


def renders_and_derenders(model: Model, app: App) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 4}
    rendered = post(app, "/v1/chat/completions/render", body, headers=[JSON]).json
    prompt = f"<s>[INST]{TEXT}[/INST]"
    assert rendered["token_ids"] == model.tokenizer.encode(prompt)
    ids = model.tokenizer.encode(TEXT)
    body = {"generate_response": {"choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop"}]}}
    derendered = post(app, "/v1/chat/completions/derender", body, headers=[JSON]).json
    assert derendered["choices"][0]["message"]["content"] == TEXT


@pytest.mark.parametrize(("source", "files"), ALONE.items())
def test_a_directory_with_one_kind_alone_serves(tmp_path: Path, source: str, files: dict[str, Any]) -> None:
    model, app = served(str(write(tmp_path, **files)))
    assert model.tokenizer.source == source
    assert f"  tokenizer from {source}" in describe_model(model)
    card = request(app, "GET", "/v1/models").json["data"][0]
    assert card["derender"]["tokenizer"] == source
    renders_and_derenders(model, app)


@pytest.mark.real
def test_a_gguf_file_alone_serves() -> None:
    path = real_model("smollm2")
    file = path if path.endswith(".gguf") else str(Path(path) / "model.gguf")
    if not Path(file).is_file():
        pytest.skip(f"{path} has no GGUF file")
    model, app = served(file)
    assert model.tokenizer.source == f"{Path(file).name} (GGUF)"
    renders_and_derenders(model, app)


def test_a_directory_without_tokenizer_json_over_http(tmp_path: Path) -> None:
    import json
    import urllib.request

    model, app = served(str(write(tmp_path, **ALONE["tekken.json (tekken)"])))
    with running(app) as port:
        call = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions/render",
            data=json.dumps({"prompt": TEXT, "max_tokens": 2}).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(call, timeout=10) as answer:
            (rendered,) = json.load(answer)
    assert rendered["token_ids"] == [1, *model.tokenizer.encode(TEXT)]


FOUR: dict[str, Any] = {
    "tokenizer__json": byte_level_json(),
    "tekken__json": tekken(),
    "tiktoken__model": rank_file(),
    "tokenizer__model": sentencepiece(),
    "tokenization_x__py": CODE,
}


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("auto", "tokenizer.json"),
        ("hf", "tokenizer.json"),
        ("slow", "tokenizer.json"),
        ("mistral", "tekken.json"),
        ("tekken", "tekken.json"),
        ("tiktoken", "tiktoken.model"),
        ("sentencepiece", "tokenizer.model"),
        ("gguf", "model.gguf"),
    ],
)
def test_each_mode_takes_its_file_and_the_others_are_told(tmp_path: Path, mode: SourceMode, name: str) -> None:
    write(tmp_path, **FOUR, model__gguf=b"GGUF")
    file, others = find_vocabulary(tmp_path, mode)
    names = {"tokenizer.json", "tekken.json", "tiktoken.model", "tokenizer.model", "model.gguf"}
    assert file.path.name == name
    assert set(others) == names - {name}


def test_the_mode_of_a_model(tmp_path: Path) -> None:
    path = str(write(tmp_path, **FOUR))
    model, _ = served(path, tokenizer_mode="mistral")
    assert model.tokenizer.source == "tekken.json (tekken)"
    told = "  tokenizer from tekken.json (tekken) (also there: tokenizer.json, tokenizer.model, tiktoken.model)"
    assert sorted(told) == sorted(next(line for line in describe_model(model) if "also there" in line))
    model, _ = served(path, tokenizer_mode="tokenizers")
    assert (model.tokenizer.source, model.tokenizer.encoder.name) == ("tokenizer.json", "tokenizers")
    write(tmp_path / "one", tokenizer__json=byte_level_json())
    with pytest.raises(
        ModelLoadError, match=r"--tokenizer-mode tekken finds no tekken file in .*; there is tokenizer\.json"
    ):
        served(str(tmp_path / "one"), tokenizer_mode="tekken")
    with pytest.raises(ModelLoadError, match="--tokenizer-mode mistral does not go with a GGUF file"):
        served("model.gguf", tokenizer_mode="mistral")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "no tekken.json, tiktoken, sentencepiece or GGUF file either"),
        (
            {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["code.OwnTokenizer", None]}},
            "its tokenizer is the Python class OwnTokenizer, and derender runs no code of a model",
        ),
    ],
)
def test_a_directory_without_a_vocabulary_says_what_to_do(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    write(tmp_path, tokenizer_config__json=config)
    with pytest.raises(TokenizerBroken, match=says) as caught:
        Tokenizer.from_directory(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tekken.json", "tokenizer.model", "x.tiktoken"])
def test_a_folder_is_no_vocabulary_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(TokenizerBroken, match=f"{name} is a directory, not a file"):
        Tokenizer.from_directory(tmp_path)


def test_params_json_says_what_config_json_would(tmp_path: Path) -> None:
    write(tmp_path, tekken__json=tekken(), params__json={"vocab_size": 300, "max_seq_len": 777})
    model, _ = served(str(tmp_path))
    assert (model.vocab_size, model.max_model_len) == (300, 777)
    assert model.eos_token_ids == {2}
