"""An adapter of the public suite canitoolcall: its fixtures through derender's serving path, whole and as streams.

`canitoolcall run --engine tests.conformance.canitoolcall_adapter:DerenderAdapter --env PYTHONPATH=$PWD` replays them.
A model is loaded as `derender serve` loads it, with the flags that vLLM's users set for that model; the token ids of a
fixture are the engine's answer, and the prompt's ids end in the fixture's own generation prompt.

Most of the models' vocabularies are not to be had offline. Their place is taken by a synthetic one: a token a byte, and
the model's markers as added tokens. Each case's `parser_config` says which vocabulary it was read with.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from canitoolcall.adapters.base import Adapter, ReplayInput, Support, ToolSpec
from canitoolcall.adapters.vllm import ParserChoice, resolve_parsers
from canitoolcall.results import ParsedToolCall, ParseResult, StreamAccumulator
from tests.vocabularies import REAL
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Reference

from derender.formats.choose import UnknownFormat, choose_format
from derender.model import Model, ModelSettings
from derender.protocol.codec import encode
from derender.protocol.derender import ChatStreamContext, DerenderChatRequest, decode_derender_chat
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateChunk

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "complete+trim": {"tool_call_streaming": "complete", "framing": "trim"},
}
CONFIGURATION = "DERENDER_CANITOOLCALL"
"""The environment variable that names one of them, for a worker of the suite."""
SYNTHETIC_ONLY = "DERENDER_CANITOOLCALL_SYNTHETIC"
"""The environment variable that, when set, leaves real vocabularies aside even where they are at hand."""

USER = "Use the tools to answer."
"""What stands in the prompt before the fixture's generation prompt; fixtures have no messages."""


@dataclass(frozen=True)
class Vocabulary:
    """A model's vocabulary as far as output is concerned.

    `special` and `plain`: its markers, by the flag of the added token. `real`: the directory of a real vocabulary that
    has the same ids. `eos`: what generation ends with. `ids`: the markers' own ids, for a model of which fixtures have
    markers' spellings among ordinary tokens.
    """

    eos: str
    special: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    real: str | None = None
    ids: Mapping[int, str] = field(default_factory=dict)


_CHATML = ("<|endoftext|>", "<|im_start|>")
_QWEN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_DEEPSEEK_TURN = ("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
_DEEPSEEK_CALLS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)
_HARMONY = {
    200002: "<|return|>",
    200003: "<|constrain|>",
    200005: "<|channel|>",
    200006: "<|start|>",
    200007: "<|end|>",
    200008: "<|message|>",
    200012: "<|call|>",
}
_KIMI_K3 = {163587: "<|open|>", 163588: "<|close|>", 163589: "<|sep|>"}
_THINK = ("<think>", "</think>")
_MISTRAL = ("<s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]")
_TEKKEN = {32: "[ARGS]", 33: "[CALL_ID]", 34: "[THINK]", 35: "[/THINK]"}

VOCABULARIES: tuple[tuple[str, Vocabulary], ...] = (
    (r"^Qwen/Qwen3\.[5-9]", Vocabulary("<|im_end|>", _CHATML, _QWEN)),
    (r"^Qwen/Qwen3-", Vocabulary("<|im_end|>", _CHATML, _QWEN, real="qwen3")),
    (
        r"^openai/gpt-oss",
        Vocabulary(
            "<|return|>",
            ("<|endoftext|>", *(text for text in _HARMONY.values() if text != "<|return|>")),
            real="gpt-oss",
            ids=_HARMONY,
        ),
    ),
    (
        r"DeepSeek-V3-0324$",
        Vocabulary("<｜end▁of▁sentence｜>", _DEEPSEEK_TURN, _DEEPSEEK_CALLS, real="deepseek-v3"),
    ),
    (r"DeepSeek-V3\.1$", Vocabulary("<｜end▁of▁sentence｜>", _DEEPSEEK_TURN, (*_DEEPSEEK_CALLS, *_THINK))),
    (r"DeepSeek-V(3\.2|4)", Vocabulary("<｜end▁of▁sentence｜>", _DEEPSEEK_TURN, ("｜DSML｜", *_THINK))),
    (
        r"/Kimi-K2",
        Vocabulary(
            "<|im_end|>",
            ("<|im_assistant|>", "<|im_user|>", "<|im_system|>", "<|im_middle|>", "[BOS]", "[EOS]"),
            (
                "<|tool_calls_section_begin|>",
                "<|tool_calls_section_end|>",
                "<|tool_call_begin|>",
                "<|tool_call_end|>",
                "<|tool_call_argument_begin|>",
                *_THINK,
            ),
        ),
    ),
    (r"/Kimi-K3", Vocabulary("<|end_of_msg|>", tuple(_KIMI_K3.values()), ids=_KIMI_K3)),
    (
        r"/GLM-",
        Vocabulary(
            "<|user|>",
            ("<|endoftext|>", "<|system|>", "<|assistant|>", "<|observation|>"),
            (
                "<tool_call>",
                "</tool_call>",
                "<arg_key>",
                "</arg_key>",
                "<arg_value>",
                "</arg_value>",
                "<tool_response>",
                "</tool_response>",
                *_THINK,
            ),
        ),
    ),
    (
        r"/Llama-3",
        Vocabulary(
            "<|eot_id|>",
            (
                "<|begin_of_text|>",
                "<|end_of_text|>",
                "<|start_header_id|>",
                "<|end_header_id|>",
                "<|eom_id|>",
                "<|python_tag|>",
            ),
            real="llama3.2",
        ),
    ),
    (
        r"/Llama-4",
        Vocabulary(
            "<|eot|>",
            (
                "<|begin_of_text|>",
                "<|end_of_text|>",
                "<|header_start|>",
                "<|header_end|>",
                "<|eom|>",
                "<|python_start|>",
                "<|python_end|>",
            ),
        ),
    ),
    (r"Mistral-7B-Instruct-v0\.3$", Vocabulary("</s>", (*_MISTRAL, "[/AVAILABLE_TOOLS]"), ids={5: "[TOOL_CALLS]"})),
    (
        r"(?i)mistral|ministral|devstral|magistral",
        Vocabulary("</s>", (*_MISTRAL, *_TEKKEN.values()), ids={9: "[TOOL_CALLS]", **_TEKKEN}),
    ),
    (
        r"/gemma-4",
        Vocabulary(
            "<turn|>",
            (
                "<eos>",
                "<bos>",
                "<|turn>",
                "<|tool_call>",
                "<tool_call|>",
                "<|tool_response>",
                "<tool_response|>",
                '<|"|>',
                "<|channel>",
                "<channel|>",
                "<|think|>",
            ),
        ),
    ),
)
"""Vocabularies by a pattern of the model's name; the first that is found counts. From the models' own tokenizers."""


def vocabulary_of(model: str) -> Vocabulary | None:
    """What is known of a model's vocabulary."""
    return next((known for pattern, known in VOCABULARIES if re.search(pattern, model)), None)


def write_synthetic(directory: Path, known: Vocabulary, *, markers: bool) -> Path:
    """A model directory whose vocabulary is the 256 bytes and, with `markers`, the markers."""
    alphabet = {text: number for number, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    reference = Reference(models.BPE(vocab=alphabet, merges=[]))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    reference.decoder = decoders.ByteLevel()
    special = (known.eos, *known.special) if markers else (known.eos,)
    reference.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    if markers:
        reference.add_tokens([AddedToken(text, special=False, normalized=False) for text in known.plain])
    directory.mkdir()
    reference.save(str(directory / "tokenizer.json"))
    config = {"model_type": "llama", "max_position_embeddings": 1 << 20, "vocab_size": reference.get_vocab_size()}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": known.eos}
    (directory / "tokenizer_config.json").write_text(json.dumps(named), encoding="utf-8")
    return directory


def marker_places(text: str, ids: Sequence[int], names: Mapping[int, str]) -> list[tuple[int, str]]:
    """Where in a text the markers stand that are tokens among its ids, spellings in ordinary tokens left aside.

    Of the ways to place them, the one in which the text between two markers is the likeliest for its number of tokens.
    """
    markers: list[str] = []
    between = [0]
    for token in ids:
        if token in names:
            markers.append(names[token])
            between.append(0)
        else:
            between[-1] += 1

    def cost(size: int, tokens: int) -> float:
        return math.inf if (size == 0) != (tokens == 0) else float((size - 4 * tokens) ** 2)

    ways: dict[int, tuple[float, list[tuple[int, str]]]] = {0: (0.0, [])}  # by where the last marker ends
    for marker, tokens in zip(markers, between, strict=False):
        found: dict[int, tuple[float, list[tuple[int, str]]]] = {}
        for match in re.finditer(re.escape(marker), text):
            here = [
                (spent + cost(match.start() - end, tokens), [*places, (match.start(), marker)])
                for end, (spent, places) in ways.items()
                if end <= match.start()
            ]
            if here:
                found[match.end()] = min(here)
        ways = found
    return min((spent + cost(len(text) - end, between[-1]), places) for end, (spent, places) in ways.items())[1]


def template_kwargs(thinking: bool | None) -> dict[str, Any]:
    """The request's chat_template_kwargs; both spellings, as templates read one or the other."""
    return {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}


class DerenderAdapter(Adapter):
    """derender, in one of `CONFIGURATIONS`."""

    name: ClassVar[str] = "derender"
    pinned_version: ClassVar[str] = metadata.version("derender")
    supports_text_deltas: ClassVar[bool] = True

    def __init__(self, configuration: str | None = None, *, synthetic: bool | None = None) -> None:
        """What is not said is taken from the environment."""
        self.configuration = configuration or os.environ.get(CONFIGURATION) or "defaults"
        self.synthetic = bool(os.environ.get(SYNTHETIC_ONLY)) if synthetic is None else synthetic
        self._settings = CONFIGURATIONS[self.configuration]
        self._directory = tempfile.TemporaryDirectory(prefix="derender-canitoolcall-")
        self._models: dict[tuple[str, bool], Model] = {}

    def version(self) -> str:
        """The version, and the configuration, which tells two runs apart."""
        return f"{self.pinned_version}-{self.configuration}"

    def engine_details(self) -> dict[str, Any]:
        """The settings, and which vocabularies stand in for real ones."""
        return {
            **self._settings,
            "configuration": self.configuration,
            "vocabularies": {pattern: self._vocabulary_name(known) for pattern, known in VOCABULARIES},
        }

    def supports(self, family: str, model: str) -> Support:
        """Whether there is a format for the flags that this model is served with."""
        choice = _flags(family, model)
        if choice is None or vocabulary_of(model) is None:
            return Support(False, f"no parser names or vocabulary known for {model}")
        try:
            choose_format(choice.tool_parser, choice.reasoning_parser)
        except UnknownFormat as error:
            return Support(False, str(error).split(";")[0])
        return Support(True)

    def parser_config(self, raw: ReplayInput) -> dict[str, Any]:
        """The flags, the request's switches, the prompt's end, and which vocabulary was used."""
        choice, known = _flags(raw.family, raw.model), vocabulary_of(raw.model)
        assert choice is not None
        assert known is not None
        return {
            **self._settings,
            "tool_call_parser": choice.tool_parser,
            "reasoning_parser": choice.reasoning_parser,
            "parser_source": choice.source,
            "vocabulary": self._vocabulary_name(known),
            "chat_template_kwargs": template_kwargs(raw.thinking),
            "prompt": self._prompt(raw),
            "stop_token": self._stop_token(raw),
        }

    def units(self, raw: ReplayInput) -> list[int]:
        """The fixture's own ids with the model's own vocabulary; else the text in the synthetic one."""
        known = vocabulary_of(raw.model)
        assert known is not None
        if raw.token_ids is None or (self._real(raw.model) is None and not known.ids):
            return self._model(raw).tokenizer.encode(raw.text)
        if self._real(raw.model) is not None:
            return list(raw.token_ids)
        return self._translated(raw, known.ids)

    def _translated(self, raw: ReplayInput, names: Mapping[int, str]) -> list[int]:
        """The text in the synthetic vocabulary, with those markers as tokens that are tokens in the fixture."""
        tokenizer, letters = self._model(raw).tokenizer, self._model(raw, markers=False).tokenizer
        ids: list[int] = []
        at = 0
        for start, marker in marker_places(raw.text, raw.token_ids or (), names):
            token = tokenizer.token_id(marker)
            assert token is not None
            ids += [*letters.encode(raw.text[at:start]), token]
            at = start + len(marker)
        return [*ids, *letters.encode(raw.text[at:])]

    def special_token_ids(self, raw: ReplayInput) -> Collection[int]:
        """The added tokens: markers are among them, special or not."""
        return frozenset(token.id for token in self._model(raw).tokenizer.added_tokens)

    def parse(self, raw: ReplayInput, tools: Sequence[ToolSpec]) -> ParseResult:
        """The batch answer, from JSON to JSON."""
        model = self._model(raw)
        choice = {"index": 0, "token_ids": self._whole(model, raw, self.units(raw)), "finish_reason": _finish(raw)}
        body = {
            **self._context(model, raw, tools),
            "generate_response": {"request_id": raw.fixture_id, "choices": [choice]},
        }
        try:
            request = decode_derender_chat(encode(body))
            assert isinstance(request, DerenderChatRequest)
            answer = msgspec.json.decode(encode(model.derender_chat(request)))
        except BadRequest as error:
            return ParseResult(exception=f"{type(error).__name__}: {error}")
        message = answer["choices"][0]["message"]
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        return ParseResult(
            content=message["content"],
            reasoning_content=message.get("reasoning"),
            tool_calls=tuple(ParsedToolCall(call["name"], call["arguments"]) for call in calls),
        )

    def parse_stream(self, raw: ReplayInput, chunks: Sequence[Sequence[int]], tools: Sequence[ToolSpec]) -> ParseResult:
        """The stream, a chunk per group; the last brings the stop token and the finish reason."""
        model = self._model(raw)
        groups = [list(group) for group in chunks] or [[]]
        groups[-1] = self._whole(model, raw, groups[-1])
        return self._stream(model, raw, groups, tools)

    def parse_stream_text(self, raw: ReplayInput, deltas: Sequence[str], tools: Sequence[ToolSpec]) -> ParseResult:
        """The stream with a vocabulary that has no markers: they are text, cut anywhere."""
        model = self._model(raw, markers=False)
        groups = [model.tokenizer.encode(delta) for delta in deltas] or [[]]
        return self._stream(model, raw, groups, tools)

    def close(self) -> None:
        """Removes the synthetic vocabularies' files."""
        self._directory.cleanup()

    # ---------------------------------------------------------------------------------------- the model

    def _real(self, model: str) -> Path | None:
        """The directory of the model's own vocabulary, where it is at hand."""
        known = vocabulary_of(model)
        if self.synthetic or known is None or known.real is None:
            return None
        directory = REAL / known.real
        return directory if (directory / "tokenizer.json").is_file() else None

    def _vocabulary_name(self, known: Vocabulary) -> str:
        real = known.real is not None and not self.synthetic and (REAL / known.real / "tokenizer.json").is_file()
        markers = len(known.special) + len(known.plain)
        return f"real: {known.real}" if real else f"synthetic: bytes and {markers} markers"

    def _model(self, raw: ReplayInput, *, markers: bool = True) -> Model:
        key = (raw.model, markers)
        if key not in self._models:
            choice, known = _flags(raw.family, raw.model), vocabulary_of(raw.model)
            assert choice is not None
            assert known is not None
            directory = self._real(raw.model) if markers else None
            if directory is None:
                place = Path(self._directory.name) / str(len(self._models))
                directory = write_synthetic(place, known, markers=markers)
            settings = ModelSettings(
                tool_call_parser=choice.tool_parser,
                reasoning_parser=choice.reasoning_parser,
                enable_auto_tool_choice=True,
                **self._settings,
            )
            self._models[key] = Model.load(str(directory), settings=settings)
        return self._models[key]

    # ---------------------------------------------------------------------------------------- the request

    @staticmethod
    def _prompt(raw: ReplayInput) -> str:
        return USER + (raw.generation_prompt or "")

    def _context(self, model: Model, raw: ReplayInput, tools: Sequence[ToolSpec]) -> dict[str, Any]:
        """What a whole answer and a stream are both derendered with."""
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": USER}]}
        if tools:
            asked |= {"tools": [dict(tool) for tool in tools], "tool_choice": "auto"}
        if raw.thinking is not None:
            asked["chat_template_kwargs"] = template_kwargs(raw.thinking)
        return {"chat_request": asked, "prompt_token_ids": model.tokenizer.encode(self._prompt(raw))}

    @staticmethod
    def _stop_token(raw: ReplayInput) -> str | None:
        """What the engine's ids end with: a stop token, unless `max_tokens` cut the output."""
        if raw.truncated or not raw.stop_tokens:
            return None
        if raw.family == "gpt-oss":
            last = raw.text[max(raw.text.rfind("<|start|>"), raw.text.rfind("<|end|>"), 0) :]
            return "<|call|>" if " to=" in last.partition("<|message|>")[0] else "<|return|>"
        return raw.stop_tokens[-1]

    def _whole(self, model: Model, raw: ReplayInput, ids: Sequence[int]) -> list[int]:
        """The last ids of an output with its stop token."""
        stop = self._stop_token(raw)
        token = model.tokenizer.token_id(stop) if stop is not None else None
        return [*ids] if token is None else [*ids, token]

    def _stream(
        self, model: Model, raw: ReplayInput, groups: Sequence[Sequence[int]], tools: Sequence[ToolSpec]
    ) -> ParseResult:
        got = StreamAccumulator()
        try:
            context = msgspec.convert(self._context(model, raw, tools), ChatStreamContext)
            stream = model.derender_chat_stream(context)
            for number, group in enumerate(groups):
                last = number == len(groups) - 1
                choice = {"index": 0, "token_ids": list(group), "finish_reason": _finish(raw) if last else None}
                chunk = msgspec.convert({"request_id": raw.fixture_id, "choices": [choice]}, GenerateChunk)
                for sent in msgspec.json.decode(encode(stream.push(chunk)))["choices"]:
                    got.add_openai_delta(sent["delta"])
        except BadRequest as error:
            return got.result(exception=f"{type(error).__name__}: {error}")
        return got.result()


def _finish(raw: ReplayInput) -> str:
    return "length" if raw.truncated else "stop"


@functools.cache
def _flags(family: str, model: str) -> ParserChoice | None:
    """`--tool-call-parser` and `--reasoning-parser` as vLLM's users set them; derender knows the names."""
    rule = resolve_parsers(family, model)
    return rule.choice if rule is not None else None
