"""A model whose files are broken or hostile is refused before it is served, in one line that names the file."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.server.tiny_model import write_tiny_model

from derender.model import Model, ModelLoadError
from derender.settings import ModelSettings
from derender.tokenizer.gguf import GgufBroken, read_gguf_metadata


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model")


def refused(directory: Path, **settings: Any) -> str:
    with pytest.raises(ModelLoadError) as caught:
        Model.load(str(directory), settings=ModelSettings(**settings))
    text = str(caught.value)
    assert "\n" not in text
    return text


# ------------------------------------------------------------------------------------------------ generation_config

WRONG = [
    ("temperature", '"x"', 'a number of at least 0 and at most 2, not "x"'),
    ("temperature", "[]", "a number of at least 0 and at most 2, not []"),
    ("temperature", "NaN", "a number of at least 0 and at most 2, not NaN"),
    ("temperature", "-1", "a number of at least 0 and at most 2, not -1"),
    ("temperature", "1e400", "a number of at least 0 and at most 2, not Infinity"),
    ("temperature", "true", "a number of at least 0 and at most 2, not true"),
    ("top_k", '"x"', 'a whole number of at least -1, not "x"'),
    ("top_k", "1.5", "a whole number of at least -1, not 1.5"),
    ("top_p", "0", "a number above 0 and at most 1, not 0"),
    ("min_p", '"0.1"', 'a number of at least 0 and at most 1, not "0.1"'),
    ("repetition_penalty", "{}", "a number above 0, not {}"),
    ("repetition_penalty", "1" + "0" * 400, "a number above 0, not 1000"),
    ("max_new_tokens", '"x"', 'a whole number of at least 1, not "x"'),
    ("max_new_tokens", "[]", "a whole number of at least 1, not []"),
    ("max_new_tokens", "-5", "a whole number of at least 1, not -5"),
]


@pytest.mark.parametrize(("name", "value", "rule"), WRONG)
def test_a_wrong_generation_config_names_the_file_and_the_field(model: Path, name: str, value: str, rule: str) -> None:
    (model / "generation_config.json").write_text(f'{{"{name}": {value}}}')
    assert f"generation_config.json: {name} must be {rule}" in refused(model)
    other = model.parent / "other.json"
    (model / "generation_config.json").rename(other)
    assert f"--generation-config {other}: {name} must be {rule}" in refused(model, generation_config=str(other))
    asked = json.loads(other.read_text())
    assert f"--override-generation-config: {name} must be {rule}" in refused(model, override_generation_config=asked)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("value", ['"x"', "1.5", "true", "{}", '[1, "x"]'])
def test_a_wrong_end_of_text_is_refused(model: Path, file: str, value: str) -> None:
    (model / file).write_text(f'{{"eos_token_id": {value}}}')
    assert f"{file}: eos_token_id must be a token id or a list of them, not {value}" in refused(model)


def test_right_values_are_the_defaults(model: Path) -> None:
    config = {"temperature": 0, "top_k": 50.0, "top_p": 1, "min_p": None, "max_new_tokens": 7, "eos_token_id": [1, 2]}
    (model / "generation_config.json").write_text(json.dumps(config))
    loaded = Model.load(str(model), settings=ModelSettings(override_generation_config={"top_p": 0.5}))
    assert loaded.renderer.model.sampling_defaults == {"temperature": 0, "top_k": 50, "top_p": 0.5, "max_tokens": 7}
    assert {1, 2} <= loaded.eos_token_ids


def test_the_command_ends_with_one_line(model: Path) -> None:
    (model / "generation_config.json").write_text('{"top_k": "x"}')
    ended = subprocess.run(
        [sys.executable, "-m", "derender", "serve", str(model), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode != 0
    assert ended.stderr.count("\n") == 1
    assert 'generation_config.json: top_k must be a whole number of at least -1, not "x"' in ended.stderr


# ------------------------------------------------------------------------------------------------------------ files


def sparse(path: Path, size: int) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        ("tokenizer.json", 256 << 20),
        ("tokenizer_config.json", 32 << 20),
        ("special_tokens_map.json", 32 << 20),
        ("added_tokens.json", 32 << 20),
        ("config.json", 32 << 20),
        ("generation_config.json", 32 << 20),
        ("chat_template.jinja", 4 << 20),
    ],
)
def test_a_file_that_is_too_large_is_not_read(model: Path, name: str, largest: int) -> None:
    sparse(model / name, 1 << 40)
    assert f"{model / name} is too large: it has {1 << 40} bytes, and no such file has more than {largest}" in refused(
        model
    )


@pytest.mark.parametrize("name", ["tokenizer.model", "tekken.json", "x.tiktoken"])
def test_a_vocabulary_of_another_kind_that_is_too_large_is_not_read(model: Path, name: str) -> None:
    (model / "tokenizer.json").unlink()
    sparse(model / name, 1 << 40)
    assert f"{model / name} is too large" in refused(model)


PLACES = [
    "tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "chat_template.jinja",
]  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Path.mkdir, "is a directory, not a file"),
        (os.mkfifo, "is a named pipe, not a file"),
        (lambda path: path.symlink_to(path.name), "cannot be read: Too many levels of symbolic links"),
        (lambda path: path.symlink_to("nothing"), "is a link to a file that is not there"),
    ],
    ids=["directory", "pipe", "loop", "dangling"],
)
def test_what_is_no_file_is_not_passed_over(model: Path, name: str, make: Callable[[Path], None], says: str) -> None:
    (model / name).unlink(missing_ok=True)
    make(model / name)
    assert f"{model / name} {says}" in refused(model)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_template_in_another_encoding_is_named(model: Path, encoding: str) -> None:
    (model / "chat_template.jinja").write_text("{{ 'é' }}", encoding=encoding)
    place = {"latin-1": 4, "utf-16": 0}[encoding]
    assert f"{model / 'chat_template.jinja'} is not UTF-8 text (byte {place})" in refused(model)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json"])
def test_half_a_character_is_no_text(model: Path, name: str) -> None:
    (model / name).write_text('{"eos_token": "\\ud800"}')
    assert f"{model / name} holds a lone surrogate, which is not text" in refused(model)
    (model / name).write_text('{"pad_token": "\\ud83d\\ude00", "x": "<|eos|>"}')
    if name == "generation_config.json":
        assert Model.load(str(model))


@pytest.mark.parametrize(
    ("name", "data"), [("tokenizer.model", b"\x0a\xff"), ("x.tiktoken", b"!"), ("tekken.json", b"{}")]
)
def test_a_broken_vocabulary_of_another_kind_is_named(model: Path, name: str, data: bytes) -> None:
    (model / "tokenizer.json").unlink()
    (model / name).write_bytes(data)
    assert str(model / name) in refused(model)


@pytest.mark.parametrize("inside", [False, True])
def test_a_missing_token_around_texts_is_found_before_the_library_panics(
    model: Path, inside: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = json.loads((model / "tokenizer.json").read_text())
    step = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<gone>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {},
    }
    tree["post_processor"] = {"type": "Sequence", "processors": [tree["post_processor"], step]} if inside else step
    (model / "tokenizer.json").write_text(json.dumps(tree))
    assert "post_processor.single names '<gone>', and its special_tokens lack it" in refused(model)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("size", [24, 50, 300])
def test_a_gguf_file_that_is_cut_short_is_truncated(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.gguf"
    pair = struct.pack("<Q", 9) + b"general.x" + struct.pack("<IQ", 8, 60) + b"y" * 60
    path.write_bytes((struct.pack("<4sIQQ", b"GGUF", 3, 0, 40) + pair * 40)[:size])
    with pytest.raises(GgufBroken, match=f"is truncated: it ends at byte {size}, inside"):
        read_gguf_metadata(path)
