"""Where a model's files are: a Hugging Face directory, a hub id, or a GGUF file, and what they say of its limits."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from derender.model_files import FileRefused, is_there
from derender.tokenizer.directory import SourceMode, find_vocabulary, read_tokenizer_directory
from derender.tokenizer.files import TokenizerBroken, TokenizerSpec, read_json_object, tokenizer_spec
from derender.tokenizer.gguf import GgufBroken, read_gguf_metadata
from derender.tokenizer.gguf_tokenizer import GgufUnsupported, gguf_vocabulary

HUB_FILES = (
    "*.json",
    "*.jinja",
    "additional_chat_templates/*.jinja",
    "*.model",
    "*.model.v*",
    "*.tiktoken",
    "tokenization_*.py",  # read for the pattern of a rank file, never run
)
HUB_IGNORED = ("*.safetensors.index.json", "pytorch_model*.json", "*.bin.index.json")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_ROPE_IN_LIMIT = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
_NO_LIMIT = 10**9
_MOST = 2**63 - 1
_LARGEST = sys.float_info.max
_SHOWN = 60  # characters of a wrong value in an error


class ModelLoadError(Exception):
    """A model that cannot be served; one line says what is missing or broken."""


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """What a model's files say. `spec` describes the tokenizer; `templates` is what `TemplateSet` takes.

    `max_model_len`: tokens, None where the files do not say. `generation_config` as in its file.
    """

    path: str
    spec: TokenizerSpec
    directory: Path | None
    templates: Mapping[str, str] | None
    max_model_len: int | None
    vocab_size: int | None
    eos_token_ids: tuple[int, ...]
    generation_config: Mapping[str, Any]


def find_source(
    path: str,
    *,
    tokenizer: str | None,
    revision: str | None,
    tokenizer_revision: str | None,
    mode: SourceMode = "auto",
) -> ModelSource:
    """The files of a model. `mode`: which kind of vocabulary file to take. Raises `ModelLoadError`."""
    try:
        if path.endswith(".gguf"):
            if mode not in ("auto", "gguf"):
                raise ModelLoadError(f"{path}: --tokenizer-mode {mode} does not go with a GGUF file")
            return _gguf(path, Path(path))
        directory = _directory(path, revision)
        other = _directory(tokenizer, tokenizer_revision or revision) if tokenizer else directory
        file, others = find_vocabulary(other, mode)
        if file.kind == "gguf":
            return _gguf(path, file.path, others)
        return _hugging_face(path, directory, other, mode)
    except (FileRefused, TokenizerBroken, GgufBroken, GgufUnsupported) as error:
        raise ModelLoadError(f"{path}: {error}") from None
    except OSError as error:
        raise ModelLoadError(f"{path}: {error.filename or ''} cannot be read: {error.strerror}") from None


def _directory(path: str, revision: str | None) -> Path:
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ModelLoadError(f"{path} is a file, and not a GGUF one; give a directory, a hub id or a .gguf file")
    if path.startswith(("/", "./", "../", "~")) or not _HUB_ID.fullmatch(path):
        raise ModelLoadError(f"{path}: no such directory or file")
    return _from_hub(path, revision)


def _from_hub(name: str, revision: str | None) -> Path:
    """A snapshot of a hub model's small files, from its cache where the network is off or away."""
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=list(HUB_FILES), ignore_patterns=list(HUB_IGNORED)
            )
        )
    except Exception as error:  # the hub's client has many kinds; each means that the model is not to be had
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelLoadError(f"{name}: not a local directory, and not to be had from the hub: {first[:200]}") from None


def _hugging_face(path: str, directory: Path, tokenizer: Path, mode: SourceMode) -> ModelSource:
    spec = read_tokenizer_directory(tokenizer, mode=mode)
    # Mistral's own format has params.json in its place.
    config = read_json_object(directory / "config.json") or read_json_object(directory / "params.json")
    generation = read_json_object(directory / "generation_config.json")
    text = config.get("text_config")
    text = {**config, **text} if isinstance(text, dict) else config
    eos = [
        *_ids(text.get("eos_token_id"), where=directory / "config.json"),
        *_ids(config.get("eos_token_id"), where=directory / "config.json"),
        *_ids(generation.get("eos_token_id"), where=directory / "generation_config.json"),
    ]
    vocab_size = text.get("vocab_size")
    return ModelSource(
        path=path,
        spec=spec,
        directory=tokenizer,
        templates=None,
        max_model_len=_max_length(text, spec.config),
        vocab_size=vocab_size if isinstance(vocab_size, int) and vocab_size > 0 else None,
        eos_token_ids=tuple(dict.fromkeys(eos)),
        generation_config=generation,
    )


def _gguf(path: str, file: Path, others: tuple[str, ...] = ()) -> ModelSource:
    """A GGUF file alone: vocabulary, merges, special tokens and chat template are in its metadata."""
    if not is_there(file):
        raise ModelLoadError(f"{path}: no such file")
    vocabulary = gguf_vocabulary(read_gguf_metadata(file))
    tokens = {i: token for token, i in _named_ids(vocabulary.tokenizer_json)}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name in ("bos", "eos", "pad", "unk"):
        token_id = getattr(vocabulary, f"{name}_token_id", None)
        if token_id in tokens:
            config[f"{name}_token"] = tokens[token_id]
    return ModelSource(
        path=path,
        spec=msgspec.structs.replace(
            tokenizer_spec(_gguf_reader(file), config=config, source=f"{file.name} (GGUF)"), others=others
        ),
        directory=None,
        templates=vocabulary.chat_templates,
        max_model_len=vocabulary.context_length,
        vocab_size=vocabulary.vocab_size,
        eos_token_ids=vocabulary.eos_token_ids,
        generation_config={},
    )


def _gguf_reader(path: Path) -> Callable[[], bytes]:
    def read() -> bytes:
        tree = gguf_vocabulary(read_gguf_metadata(path)).tokenizer_json
        return json.dumps(tree, ensure_ascii=False).encode("utf-8")

    return read


def _named_ids(tree: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    vocab = tree["model"]["vocab"]
    yield from vocab.items() if isinstance(vocab, dict) else ((token, i) for i, (token, _) in enumerate(vocab))
    for added in tree.get("added_tokens", ()):
        yield added["content"], added["id"]


def _ids(value: Any, *, where: Path) -> list[int]:
    """`eos_token_id`: an id or several. Raises `ModelLoadError`."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(one) is not int for one in ids):
        raise ModelLoadError(f"{where}: eos_token_id must be a token id or a list of them, not {_shown(value)}")
    return ids


def _max_length(config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> int | None:
    """The longest context, as vLLM 0.32 derives it: the least of the config's limits and the tokenizer's
    `model_max_length`, times a linear RoPE factor; YaRN's and Llama 3's are in the limits already."""
    lengths = [v for key in _LENGTH_KEYS if (v := _positive(config.get(key))) is not None]
    said = tokenizer_config.get("model_max_length")
    if isinstance(said, (int, float)) and 0 < said < _NO_LIMIT:  # transformers writes 1e30 for "not known"
        lengths.append(int(said))
    if not lengths:
        return None
    longest = min(lengths)
    for rope in _rope_parameters(config):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "longrope":
            return _positive(config.get("original_max_position_embeddings")) or longest
        factor = rope.get("factor")
        if kind not in _ROPE_IN_LIMIT and isinstance(factor, (int, float)) and factor > 0:
            return int(longest * factor)
    return longest


def _rope_parameters(config: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """The RoPE parameters, one set or one for each kind of layer. Gemma 3's limit has its factor in it already."""
    if "gemma3" in str(config.get("model_type", "")):
        return
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if isinstance(rope, dict):
        nested = [value for value in rope.values() if isinstance(value, dict)]
        yield from nested or [rope]


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


class _Range(NamedTuple):
    """The values of a number in a generation_config: `low` to `high`, `low` itself only if `closed`."""

    low: float
    high: float
    closed: bool = True
    whole: bool = False

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        least = f"of at least {self.low:g}" if self.closed else f"above {self.low:g}"
        return f"{kind} {least}" + (f" and at most {self.high:g}" if self.high not in (_MOST, _LARGEST) else "")

    def has(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if not self.low <= value <= self.high or (value == self.low and not self.closed):
            return False
        return not self.whole or value == int(value)


_SAMPLING: Mapping[str, _Range] = {
    "repetition_penalty": _Range(0, _LARGEST, closed=False),
    "temperature": _Range(0, 2),
    "top_k": _Range(-1, _MOST, whole=True),
    "top_p": _Range(0, 1, closed=False),
    "min_p": _Range(0, 1),
    "max_new_tokens": _Range(1, _MOST, whole=True),
}
"""What is read of a generation_config besides the ends of a text, with the ranges of a request's own values."""


def check_generation_config(config: Mapping[str, Any], *, where: str) -> None:
    """Raises `ModelLoadError` that names `where` and the field for a value that no request could have."""
    for name, range_ in _SAMPLING.items():
        value = config.get(name)
        if value is not None and not range_.has(value):
            raise ModelLoadError(f"{where}: {name} must be {range_}, not {_shown(value)}")


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling defaults that a generation_config sets; its max_new_tokens is our max_tokens.

    It is a file's, which is checked where it is read, and the operator's own on top. Raises `ModelLoadError` for what
    is wrong in those.
    """
    check_generation_config(generation_config, where="--override-generation-config")
    found = {}
    for name, range_ in _SAMPLING.items():
        value = generation_config.get(name)
        if value is not None:
            found["max_tokens" if name == "max_new_tokens" else name] = int(value) if range_.whole else value
    return found


def read_generation_config(where: str, source: ModelSource) -> Mapping[str, Any]:
    """`--generation-config`: auto (the model's own), vllm (none), or a directory or file. Raises `ModelLoadError`."""
    if where == "auto":
        check_generation_config(source.generation_config, where=f"{source.path}: generation_config.json")
        return source.generation_config
    if where == "vllm":
        return {}
    path = Path(where)
    file = path / "generation_config.json" if path.is_dir() else path
    if not file.exists():
        raise ModelLoadError(f"--generation-config {where}: no such directory or file")
    try:
        config = read_json_object(file)
    except TokenizerBroken as error:
        raise ModelLoadError(f"--generation-config {error}") from None
    check_generation_config(config, where=f"--generation-config {file}")
    return config


def _shown(value: Any) -> str:
    """A value in an error, on one line: shortened, or only its kind where Python cannot write it."""
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):
        return "such a number" if isinstance(value, int) else "such a value"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def trim_memory() -> None:
    """Give what a load freed back to the system, where the C library can (glibc)."""
    import ctypes

    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return
