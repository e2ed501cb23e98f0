"""Which file of a model's directory is its vocabulary, and the tokenizer that it describes.

Order where nothing is asked for: tokenizer.json, tekken.json, a tiktoken rank file, a sentencepiece model, a GGUF file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from derender.model_files import LARGEST_RANKS, FileRefused, is_there
from derender.tokenizer.files import (
    TokenizerBroken,
    TokenizerSpec,
    read_json_object,
    read_vocabulary_file,
    tokenizer_spec,
)
from derender.tokenizer.sentencepiece import blank_first, sentencepiece_kind, sentencepiece_tree
from derender.tokenizer.tekken import tekken_tree
from derender.tokenizer.tiktoken import is_rank_file, tiktoken_tree

Kind = Literal["tokenizer.json", "tekken", "tiktoken", "sentencepiece", "gguf"]
SourceMode = Literal["auto", "hf", "slow", "mistral", "tekken", "tiktoken", "sentencepiece", "gguf"]
_KINDS: dict[SourceMode, tuple[Kind, ...]] = {
    "auto": ("tokenizer.json", "tekken", "tiktoken", "sentencepiece", "gguf"),
    "hf": ("tokenizer.json", "tiktoken", "sentencepiece"),
    "slow": ("tokenizer.json", "tiktoken", "sentencepiece"),
    "mistral": ("tekken", "sentencepiece"),
    "tekken": ("tekken",),
    "tiktoken": ("tiktoken",),
    "sentencepiece": ("sentencepiece",),
    "gguf": ("gguf",),
}
"""What each mode looks for, first come first."""
_PROBE = 4096
_LARGEST_CODE = 1 << 20


@dataclass(frozen=True)
class VocabularyFile:
    """A file that can be the vocabulary."""

    kind: Kind
    path: Path


def find_vocabulary(directory: Path, mode: SourceMode = "auto") -> tuple[VocabularyFile, tuple[str, ...]]:
    """The file to take and the names of the others. Raises `TokenizerBroken`, naming what is missing."""
    try:
        found = list(_candidates(directory))
    except FileRefused as error:
        raise TokenizerBroken(str(error)) from None
    usable = [file for kind in _KINDS[mode] for file in found if file.kind == kind]
    if not usable:
        raise TokenizerBroken(_nothing(directory, mode, found))
    same = [file.path.name for file in usable if file.kind == usable[0].kind]
    if len(same) > 1 and usable[0].kind != "sentencepiece":
        raise TokenizerBroken(f"{directory} holds more than one {usable[0].kind} file: {', '.join(same)}")
    return usable[0], tuple(file.path.name for file in found if file != usable[0])


def read_tokenizer_directory(directory: str | os.PathLike[str], *, mode: SourceMode = "auto") -> TokenizerSpec:
    """The tokenizer of a directory, whatever file describes it but a GGUF one. Raises `TokenizerBroken`."""
    folder = Path(directory)
    file, others = find_vocabulary(folder, mode)
    if file.kind == "gguf":
        raise TokenizerBroken(f"{file.path} is a model of its own: give that file")
    spec = read_vocabulary(file, folder, like_mistral=mode == "mistral")
    return msgspec.structs.replace(spec, others=others)


def read_vocabulary(file: VocabularyFile, folder: Path, *, like_mistral: bool = False) -> TokenizerSpec:
    """The tokenizer that one file describes. `like_mistral`: a sentencepiece model is followed as sentencepiece does,
    whatever tokenizer_config.json says. Raises `TokenizerBroken`."""
    named, config = (
        read_json_object(folder / "special_tokens_map.json"),
        read_json_object(folder / "tokenizer_config.json"),
    )
    # transformers lets special_tokens_map.json change the config where that has no added_tokens_decoder.
    config = {**named, **config} if isinstance(config.get("added_tokens_decoder"), dict) else {**config, **named}
    path, name = file.path, file.path.name
    if file.kind == "tokenizer.json":
        return tokenizer_spec(
            lambda: read_vocabulary_file(path),
            config=config,
            source=name,
            listed_apart=read_json_object(folder / "added_tokens.json"),
            model_type=str(read_json_object(folder / "config.json").get("model_type") or ""),
        )
    try:
        return _from_ranks(file, folder, config, like_mistral=like_mistral)
    except TokenizerBroken as error:
        if str(path) in str(error):
            raise
        raise TokenizerBroken(f"{path}: {error}") from None


def _from_ranks(file: VocabularyFile, folder: Path, config: dict[str, Any], *, like_mistral: bool) -> TokenizerSpec:
    path, name = file.path, file.path.name

    def data() -> bytes:
        return read_vocabulary_file(path, largest=LARGEST_RANKS)

    if file.kind == "tekken":
        return _converted(lambda: tekken_tree(data()), config, f"{name} (tekken)")
    if file.kind == "tiktoken":
        model_type = str(read_json_object(folder / "config.json").get("model_type", ""))

        def ranks() -> tuple[dict[str, Any], dict[str, Any]]:
            return tiktoken_tree(data(), code=_code(folder), config=config, model_type=model_type)

        return _converted(ranks, config, f"{name} (tiktoken ranks)")
    first = data()
    asked = {} if like_mistral or ".model.v" in name else config
    return _converted(
        lambda: sentencepiece_tree(data(), asked),
        config,
        f"{name} (sentencepiece {sentencepiece_kind(first)})",
        blank_first(first, asked),
    )


def _converted(
    convert: Callable[[], tuple[dict[str, Any], dict[str, Any]]],
    config: dict[str, Any],
    source: str,
    blanks: tuple[str, ...] = (),
) -> TokenizerSpec:
    tree, names = convert()
    first: list[dict[str, Any] | None] = [tree]

    def read() -> bytes:
        now = first.pop() if first else None
        return msgspec.json.encode(now if now is not None else convert()[0])

    del tree
    return tokenizer_spec(read, config={**names, **config}, source=source, blank_first=blanks)


def _candidates(directory: Path) -> Iterator[VocabularyFile]:
    """The files of a directory that can be its vocabulary."""
    for path in sorted(directory.iterdir(), key=_rank):
        name = path.name
        if not _may_be_vocabulary(name) or not is_there(path):
            continue
        if name == "tokenizer.json":
            yield VocabularyFile("tokenizer.json", path)
        elif name.startswith("tekken") and name.endswith(".json"):
            yield VocabularyFile("tekken", path)
        elif name.endswith(".tiktoken"):
            yield VocabularyFile("tiktoken", path)
        elif name.endswith(".model") or ".model.v" in name:
            with path.open("rb") as file:
                yield VocabularyFile("tiktoken" if is_rank_file(file.read(_PROBE)) else "sentencepiece", path)
        elif name.endswith(".gguf") and not name.startswith("mmproj"):
            yield VocabularyFile("gguf", path)


def _may_be_vocabulary(name: str) -> bool:
    if name.endswith(".json"):
        return name == "tokenizer.json" or name.startswith("tekken")
    return name.endswith((".tiktoken", ".model", ".gguf")) or ".model.v" in name


def _rank(path: Path) -> tuple[bool, bool, str]:
    """tokenizer.model before others, and a file with Mistral's version (`tokenizer.model.v3`) after those without."""
    return (not path.name.startswith("tokenizer.model"), ".model.v" in path.name, path.name)


def _code(folder: Path) -> str:
    """The text of the tokenizer's Python file; it is read for its constants and never run."""
    for path in sorted(folder.glob("tokenization_*.py")):
        if path.stat().st_size <= _LARGEST_CODE:
            return path.read_text(encoding="utf-8", errors="replace")
    return ""


def _nothing(directory: Path, mode: SourceMode, found: list[VocabularyFile]) -> str:
    there = ", ".join(sorted({file.path.name for file in found}))
    if there:
        return f"--tokenizer-mode {mode} finds no {' or '.join(_KINDS[mode])} file in {directory}; there is {there}"
    config = read_json_object(directory / "tokenizer_config.json")
    custom = config.get("auto_map")
    custom = custom.get("AutoTokenizer") if isinstance(custom, dict) else custom
    if custom:
        name = config.get("tokenizer_class") or custom
        return (
            f"no tokenizer.json in {directory}, nor another vocabulary file that can be read: its tokenizer is the "
            f"Python class {name}, and derender runs no code of a model; convert it to tokenizer.json"
        )
    return (
        f"no tokenizer.json in {directory}, and no tekken.json, tiktoken, sentencepiece or GGUF file either; "
        "give --tokenizer a directory that has one"
    )
