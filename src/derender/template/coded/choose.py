"""Which of the families with code a model is: told by its own files and vocabulary, never by its name.

A model with a Jinja chat template keeps it, but for gpt-oss: servers make its prompts by harmony's own rules, and its
template differs from them (results of calls as JSON, one call a message).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from derender.model_files import LARGEST_RANKS, read_bytes
from derender.template.coded.base import CodedTemplate
from derender.template.coded.deepseek_v4 import DeepseekV4, DeepseekV41
from derender.template.coded.deepseek_v32 import DeepseekV32
from derender.template.coded.harmony import Harmony
from derender.template.coded.inkling import XML_TOKENS, Inkling
from derender.template.coded.kimi_k3 import KimiK3
from derender.template.coded.mistral import VERSIONS, EffortRule, Mistral

_FIXED: dict[str, Callable[[], CodedTemplate]] = {
    one.NAME: one for one in (Harmony, DeepseekV32, DeepseekV4, DeepseekV41, KimiK3, Inkling)
}
CODED_NAMES = (*_FIXED, Mistral.NAME)
"""What `--chat-template` may name; `mistral` also with a version, as `mistral:v7`."""

_HARMONY_TOKENS = ("<|start|>", "<|channel|>", "<|message|>", "<|return|>", "<|call|>")
_HARMONY_ARCHITECTURE = "gptoss"
_ENCODERS = {
    "encoding_dsv32.py": DeepseekV32.NAME,
    "encoding_dsv4.py": DeepseekV4.NAME,
    "encoding_dsv41.py": DeepseekV41.NAME,
    "encoding_dsv4_1.py": DeepseekV41.NAME,
    "encoding_k3.py": KimiK3.NAME,
}
"""Files that a model's repository has in the place of a template, in `encoding/` or beside the weights."""

_TOKENS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (Inkling.NAME, ("<|message_model|>", "<|content_thinking|>", "<|content_invoke_tool_json|>")),
    (KimiK3.NAME, ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")),
    (DeepseekV41.NAME, ("｜DSML｜", "<｜System｜>")),
    (DeepseekV4.NAME, ("｜DSML｜", "<｜latest_reminder｜>")),
    (DeepseekV32.NAME, ("｜DSML｜",)),
)
"""Tokens that only the family has; the first line that holds counts."""

_MISTRAL_TOKENS = (
    (15, "[MODEL_SETTINGS]"),
    (13, "[THINK]"),
    (11, "[ARGS]"),
    (7, "[SYSTEM_PROMPT]"),
    (3, "[TOOL_CALLS]"),
)
_SENTENCEPIECE = re.compile(r".*\.model\.v(\d+)(?:m\d+)?")
_PROBE = "a"


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What is asked of a tokenizer: the id of a token, None where there is none, and the ids of a text in which special
    tokens are taken as such, without any that the tokenizer adds."""

    token_id: Callable[[str], int | None]
    encode: Callable[[str], list[int]]

    def has(self, tokens: Sequence[str]) -> bool:
        return all(self.token_id(token) is not None for token in tokens)


@dataclass(frozen=True)
class Choice:
    """A template and the reason for it, a half sentence."""

    template: CodedTemplate
    reason: str


class _Rule(msgspec.Struct):
    values: list[str] = []
    accepts_none: bool = True
    default: str | None = None


class _Settings(msgspec.Struct):
    reasoning_effort: _Rule | None = None


class _TekkenConfig(msgspec.Struct):
    version: str = ""


class _Tekken(msgspec.Struct):
    """What of a tekken.json matters here; the vocabulary is passed over."""

    config: _TekkenConfig
    model_settings_builder: _Settings | None = None


def is_coded_name(name: str) -> bool:
    """Whether `--chat-template` names a family with code."""
    return name.partition(":")[0] in CODED_NAMES


def named(name: str, *, vocabulary: Vocabulary, directory: Path | None) -> Choice:
    """The family that an operator names. Raises ValueError for a version that there is none of, and for a family whose
    tokens the vocabulary lacks: its prompts would be text to the model."""
    family, _, version = name.partition(":")
    if family in _FIXED and not version:
        needed = dict(_TOKENS).get(family, _HARMONY_TOKENS if family == Harmony.NAME else ())
        if needed and not any(vocabulary.has((token,)) for token in needed):
            raise ValueError(f"--chat-template {family}: the vocabulary has no token {' and no '.join(needed)}")
        return Choice(_fixed(family, vocabulary), "--chat-template")
    known = [f"v{number}" for number in VERSIONS]
    if family != Mistral.NAME or (version and version not in known):
        raise ValueError(f"--chat-template: {name!r} is not known; mistral may have one of {', '.join(known)}")
    found = _mistral_file(directory) if directory is not None else None
    if version:
        return Choice(_mistral(int(version[1:]), vocabulary, found and found[2]), "--chat-template")
    if found is not None:
        return Choice(_mistral(found[0], vocabulary, found[2]), f"--chat-template, version of {found[1]}")
    number = next((number for number, token in _MISTRAL_TOKENS if vocabulary.has((token,))), 1)
    return Choice(_mistral(number, vocabulary, None), "--chat-template, version told by the vocabulary")


def choose(
    *, vocabulary: Vocabulary, directory: Path | None, config: Mapping[str, Any], jinja: str | None
) -> Choice | None:
    """The family that a model's files show, None where they show none.

    `config` is the model's config.json, empty where there is none; `jinja` the text of its chat template. Raises
    ValueError for a Mistral file of a version that is not known.
    """
    if vocabulary.has(_HARMONY_TOKENS):
        architectures = config.get("architectures")
        names = [*(architectures if isinstance(architectures, list) else ()), config.get("model_type")]
        if any(_HARMONY_ARCHITECTURE in str(name).lower().replace("_", "") for name in names):
            return Choice(Harmony(), "the architecture is GptOss, and the vocabulary has harmony's tokens")
        if not config and jinja is not None and all(token in jinja for token in _HARMONY_TOKENS[:3]):
            return Choice(Harmony(), "the chat template and the vocabulary are harmony's")
    if jinja is not None:
        return None
    if directory is not None:
        for file, family in _ENCODERS.items():
            for place in (directory / "encoding" / file, directory / file):
                if place.is_file():
                    return Choice(_fixed(family, vocabulary), f"no chat template, but {place.relative_to(directory)}")
        if (found := _mistral_file(directory)) is not None:
            version, name, effort = found
            return Choice(_mistral(version, vocabulary, effort), f"no chat template, but {name} of version v{version}")
    for family, tokens in _TOKENS:
        if vocabulary.has(tokens):
            return Choice(
                _fixed(family, vocabulary), f"no chat template, and the vocabulary has {' and '.join(tokens)}"
            )
    return None


def _fixed(family: str, vocabulary: Vocabulary) -> CodedTemplate:
    if family == Inkling.NAME:
        return Inkling(next((token for token in XML_TOKENS if vocabulary.has((token,))), XML_TOKENS[0]))
    return _FIXED[family]()


def _mistral(version: int, vocabulary: Vocabulary, effort: EffortRule | None) -> Mistral:
    return Mistral(
        version=version,
        blank=_blank(version, vocabulary),
        thinks=vocabulary.has(("[THINK]", "[/THINK]")),
        effort=effort if version >= 15 else None,
    )


def _blank(version: int, vocabulary: Vocabulary) -> str:
    """What text behind a special token must begin with: sentencepiece begins each with a blank, and some conversions to
    tokenizer.json do so for the first text only."""
    piece = vocabulary.token_id(f"▁{_PROBE}")
    if piece is None:
        return ""
    before = "<s>" if version == 1 else "[INST]"
    return "" if vocabulary.encode(f"{before}{_PROBE}")[-1] == piece else " "


def _mistral_file(directory: Path) -> tuple[int, str, EffortRule | None] | None:
    """The version that a file of mistral-common's says, its name, and what it allows as reasoning effort."""
    if (path := next(iter(sorted(directory.glob("tekken*.json"))), None)) is not None:
        try:
            tekken = msgspec.json.decode(read_bytes(path, largest=LARGEST_RANKS), type=_Tekken)
        except msgspec.DecodeError as error:
            raise ValueError(f"{path.name}: {error}") from None
        number = _number(tekken.config.version.removeprefix("v"), path.name)
        settings = tekken.model_settings_builder
        rule = settings.reasoning_effort if settings is not None else None
        if rule is None:
            return number, path.name, None
        return number, path.name, EffortRule(tuple(rule.values), optional=rule.accepts_none, default=rule.default)
    for path in sorted(directory.glob("*.model.v*")):
        if (found := _SENTENCEPIECE.fullmatch(path.name)) is not None:
            return _number(found[1], path.name), path.name, None
    return None


def _number(text: str, name: str) -> int:
    if not text.isdecimal() or int(text) not in VERSIONS:
        raise ValueError(f"{name}: Mistral's prompt format of version v{text} is not known")
    return int(text)
