"""One served model: all that render and derender need of it, loaded once. The library's front door."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from derender.auto_format import ParserNames, parser_names, shown_format
from derender.derendering.bounds import MAX_TEXT_BYTES, text_size
from derender.derendering.chat import ChatStreamDerenderer, derender_chat, derender_chat_chunk
from derender.derendering.completions import (
    CompletionStreamDerenderer,
    derender_completion_chunk,
    derender_completions,
)
from derender.derendering.logprobs import TokenTexts
from derender.derendering.model import DerenderModel
from derender.formats.choose import UnknownFormat, choose_format
from derender.formats.table import OutputFormat
from derender.formats.user_format import FormatFileError, load_format
from derender.limits import LIMITS
from derender.parser.formats import Formats
from derender.parser.start import start_region
from derender.protocol.chat import ChatCompletionRequest, ChatCompletionResponse
from derender.protocol.codec import encode_text
from derender.protocol.completions import CompletionRequest, CompletionResponse
from derender.protocol.derender import (
    ChatStreamContext,
    CompletionStreamContext,
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
    DerenderedChatChunk,
    DerenderedCompletionChunk,
)
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateRequest
from derender.protocol.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from derender.rendering.guard import Guard
from derender.rendering.model import RenderModel
from derender.rendering.renderer import Renderer
from derender.rendering.tool_grammar import GRAMMARS, ToolConstraints
from derender.settings import ModelSettings
from derender.sources import (
    ModelLoadError,
    ModelSource,
    find_source,
    read_generation_config,
    sampling_defaults,
    trim_memory,
)
from derender.template.source import TemplateSet, Vocabulary
from derender.tokenizer import Tokenizer, TokenizerBroken
from derender.tokenizer.files import read_json_object
from derender.totals import ModelTotals

__all__ = ["Model", "ModelLoadError", "ModelSettings"]

DEFAULT_MAX_MODEL_LEN = 2048
"""Where neither the model nor the operator says one, as vLLM."""


class Model:
    """A loaded model. Immutable, and safe to use from several threads."""

    def __init__(self, source: ModelSource, settings: ModelSettings) -> None:
        """Raises `ModelLoadError`."""
        own = _own_format(settings)
        if settings.enable_auto_tool_choice and not (own.calls if own is not None else settings.tool_call_parser):
            raise ModelLoadError("--enable-auto-tool-choice requires --tool-call-parser, or --format with calls")
        self.path = source.path
        self.settings = settings
        self.names = settings.served_model_names or (source.path,)
        self.created = int(time.time())
        mode = settings.tokenizer_mode
        force = mode if mode in ("tokenizers", "fastokens") else None
        try:
            self.tokenizer = Tokenizer(source.spec, force=force)
            self.templates = _templates(source, settings.chat_template, self.tokenizer)
        except (TokenizerBroken, ValueError) as error:
            raise ModelLoadError(f"{source.path}: {error}") from None
        except OSError as error:
            raise ModelLoadError(f"{error.filename}: cannot be read: {error.strerror}") from None
        try:
            self.parsers = (
                parser_names(settings, self.templates, self.tokenizer) if own is None else _parsers_of(own, settings)
            )
            """The names of the parsers in use: those of the settings, or what stands for `auto`."""
            table = own or choose_format(self.parsers.tool, self.parsers.reasoning, config=self.tokenizer.config)
        except UnknownFormat as error:
            raise ModelLoadError(str(error)) from None
        self.max_model_len = settings.max_model_len or source.max_model_len or DEFAULT_MAX_MODEL_LEN
        self.max_model_len_known = bool(settings.max_model_len or source.max_model_len)
        self.vocab_size = max(source.vocab_size or 0, self.tokenizer.vocab_size)
        eos = self.tokenizer.special_tokens.get("eos_token")
        eos_id = self.tokenizer.token_id(eos) if eos is not None else None
        self.eos_token_ids = frozenset(source.eos_token_ids) | ({eos_id} if eos_id is not None else frozenset())
        defaults = sampling_defaults(
            {**read_generation_config(settings.generation_config, source), **settings.override_generation_config}
        )
        self.formats = None
        """The output format in use, compiled for the vocabulary; None: all that is visible is content."""
        if table is not None:
            self.formats = Formats(
                table,
                self.tokenizer,
                complete=settings.tool_call_streaming == "complete",
                trim=settings.framing == "trim",
                defaults=dict(settings.default_chat_template_kwargs),
            )
        shown = table or shown_format(self.templates, self.tokenizer)
        turn_ends = self._turn_ends(shown)
        self.tokenizer.keep_segments(self._boundaries(turn_ends), max_bytes=int(settings.encode_cache_mb * (1 << 20)))
        self.tool_constraints = ToolConstraints(
            table,
            level=settings.tool_strict_level,
            has_token=lambda token: self.tokenizer.token_id(token) is not None,
        )
        """What holds a guided engine to the tools of a request."""
        self.renderer = Renderer(
            RenderModel(
                name=self.names[0],
                tokenizer=self.tokenizer,
                templates=self.templates,
                max_model_len=self.max_model_len,
                max_logprobs=settings.max_logprobs,
                vocab_size=self.vocab_size,
                sampling_defaults=defaults,
                end_id=None if eos_id in source.eos_token_ids else eos_id,
                content_format=settings.chat_template_content_format,
                default_chat_template_kwargs=settings.default_chat_template_kwargs,
                trust_request_chat_template=settings.trust_request_chat_template,
                exclude_tools_when_tool_choice_none=settings.exclude_tools_when_tool_choice_none,
                stop_strings=settings.stop_strings,
                has_tool_parser=self.parsers.tool is not None,
                auto_tool_choice=settings.enable_auto_tool_choice,
                has_reasoning_parser=self.parsers.reasoning is not None,
                start_region=None if self.formats is None else _start_region(self.formats),
                turn_ends=turn_ends,
                guard=self._guard(shown),
                reasoning_tags=_reasoning_tags(shown),
                tool_constraint=self.tool_constraints,
                max_tokens_over_room=settings.max_tokens_over_room,
            )
        )
        self._texts = TokenTexts(
            DerenderModel(
                name=self.names[0],
                tokenizer=self.tokenizer,
                eos_token_ids=self.eos_token_ids,
                max_model_len=self.max_model_len,
                max_logprobs=settings.max_logprobs,
                max_n_sequences=LIMITS.max_n_sequences,
                tolerate_unknown_ids=settings.tolerate_unknown_ids,
                strict_vllm=settings.strict_vllm,
                formats=self.formats,
                state_key=settings.state_key.encode() if settings.state_key else None,
                reasoning_field=settings.reasoning_field,
            )
        )

    @classmethod
    def load(cls, path: str, *, settings: ModelSettings | None = None) -> Model:
        """A model from a Hugging Face directory, a hub id, or a GGUF file. Raises `ModelLoadError`."""
        settings = settings or ModelSettings()
        mode = settings.tokenizer_mode
        source = find_source(
            path,
            tokenizer=settings.tokenizer,
            revision=settings.revision,
            tokenizer_revision=settings.tokenizer_revision,
            mode="auto" if mode == "tokenizers" or mode == "fastokens" else mode,
        )
        model = cls(source, settings)
        del source
        trim_memory()
        return model

    @property
    def totals(self) -> ModelTotals:
        """What was counted since the start."""
        guard, segments = self.renderer.model.guard, self.tokenizer.segments
        return ModelTotals(
            unknown_ids=self._texts.model.unknown_ids.count,
            guarded=guard.count if guard is not None else 0,
            cache_hits=segments.hits if segments is not None else 0,
            cache_misses=segments.misses if segments is not None else 0,
        )

    def _guard(self, table: OutputFormat | None) -> Guard | None:
        """What keeps control tokens out of messages, where that is asked for."""
        if not self.settings.guard_special_tokens:
            return None
        tags = {text for pair in _reasoning_tags(table) for text in pair}
        templates = self.templates.all if self.templates else ()
        written = "".join(one.source for one in templates) + encode_text(table)
        markers = {one.content for one in self.tokenizer.added_tokens if one.content in written}
        return Guard(self.tokenizer, markers=markers | tags, templates=templates)

    def _boundaries(self, turn_ends: Collection[str]) -> set[str]:
        """The special tokens that the template writes."""
        sources = [one.source for one in self.templates.all] if self.templates else []
        special = {token.content for token in self.tokenizer.added_tokens if token.special}
        return {text for text in special if text in turn_ends or any(text in source for source in sources)}

    def _turn_ends(self, table: OutputFormat | None) -> dict[str, int]:
        """The tokens that end a turn of the assistant, spelling → id."""
        spelled: set[str] = set()
        if table is not None:
            spelled.update(table.end_of_turn, table.messages.close if table.messages else ())
        ids = {self.tokenizer.added_id(text) for text in spelled} | self.eos_token_ids
        known = [one for one in ids if one is not None and self.tokenizer.knows(one)]
        return {text: one for one in known if (text := self.tokenizer.piece(one).decode(errors="replace"))}

    def render_chat(self, request: ChatCompletionRequest, *, request_id: str | None = None) -> GenerateRequest:
        """A chat as token ids. Raises `BadRequest`, `InvalidBody`."""
        return self.renderer.chat(request, request_id=request_id)

    def render_completions(self, request: CompletionRequest, *, request_id: str | None = None) -> list[GenerateRequest]:
        """One request of token ids per prompt. Raises `BadRequest`, `InvalidBody`."""
        return self.renderer.completions(request, request_id=request_id)

    def derender_chat(self, request: DerenderChatRequest) -> ChatCompletionResponse:
        """A whole generate answer as a chat completion. Raises `BadRequest`."""
        return derender_chat(self._texts, request)

    def derender_chat_chunk(self, request: DerenderChatStreamRequest) -> DerenderedChatChunk:
        """One chunk of a generate stream as a chat chunk, and the state for the next. Raises `BadRequest`."""
        return derender_chat_chunk(self._texts, request)

    def derender_chat_stream(self, context: ChatStreamContext) -> ChatStreamDerenderer:
        """Derenders a chat stream in process: push, snapshot."""
        return ChatStreamDerenderer(self._texts, context)

    def derender_completion_stream(self, context: CompletionStreamContext) -> CompletionStreamDerenderer:
        """The same for a completions stream."""
        return CompletionStreamDerenderer(self._texts, context)

    def derender_completions(self, request: DerenderCompletionRequest) -> CompletionResponse:
        """Whole generate answers as one completion. Raises `BadRequest`."""
        return derender_completions(self._texts, request)

    def derender_completion_chunk(self, request: DerenderCompletionStreamRequest) -> DerenderedCompletionChunk:
        """One chunk of a generate stream as a completion chunk, and the state for the next. Raises `BadRequest`."""
        return derender_completion_chunk(self._texts, request)

    def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        """The ids of a text or a chat. Raises `BadRequest`, `InvalidBody`."""
        return self.renderer.tokenize(request)

    def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        """The text of ids, special tokens shown. Raises `BadRequest` for ids outside the vocabulary."""
        model, ids = self._texts.model, request.tokens
        known = model.known_ids(ids, where="tokens")
        most = len(ids) * self.tokenizer.max_bytes_per_token
        if most > MAX_TEXT_BYTES and text_size(model, ids) > MAX_TEXT_BYTES:
            raise BadRequest(f"tokens: the text of all of them has more than {MAX_TEXT_BYTES} bytes", param="tokens")
        return DetokenizeResponse(self.tokenizer.decode(known))

    def tokenizer_info(self) -> dict[str, Any]:
        """The model's tokenizer_config, with `tokenizer_class` always there."""
        return {"tokenizer_class": "PreTrainedTokenizerFast", **self.tokenizer.config}


def _own_format(settings: ModelSettings) -> OutputFormat | None:
    """The format of `--format`. Raises `ModelLoadError`."""
    path = settings.format_file
    if path is None:
        return None
    for flag, other in (
        ("--tool-call-parser", settings.tool_call_parser),
        ("--reasoning-parser", settings.reasoning_parser),
    ):
        if other:
            raise ModelLoadError(f"--format has the calls and the reasoning in it: leave {flag} out")
    try:
        table = load_format(path)
    except FormatFileError as error:
        raise ModelLoadError(f"--format {error}") from None
    for n, way in enumerate(table.calls):
        if way.structural_tag is not None and way.structural_tag not in GRAMMARS:
            known = ", ".join(sorted(GRAMMARS))
            raise ModelLoadError(
                f"--format {path}: calls[{n}].structural_tag: {way.structural_tag!r} is none of {known}"
            )
    return table


def _parsers_of(own: OutputFormat, settings: ModelSettings) -> ParserNames:
    """What stands for the parsers' names where the format comes from a file."""
    thinks = own.reasoning is not None or own.messages is not None
    return ParserNames(
        own.name if own.calls else None, own.name if thinks else None, f"{own.name} ({settings.format_file})"
    )


def _reasoning_tags(table: OutputFormat | None) -> Sequence[tuple[str, str]]:
    """What stands around reasoning in a history: the format's own markers, and the common ones."""
    found = [("<think>", "</think>")]
    if table is not None and table.reasoning is not None:
        tags = table.reasoning.tags
        found += [(opener, closer) for opener in tags.open for closer in tags.close]
    if table is not None and table.messages is not None and table.messages.reasoning is not None:
        found.append(table.messages.reasoning)
    return tuple(dict.fromkeys(found))


def _start_region(formats: Formats) -> Callable[[Sequence[int], Mapping[str, Any]], str | None]:
    """Tells rendering in which region the output of a prompt begins."""

    def region(prompt_ids: Sequence[int], kwargs: Mapping[str, Any]) -> str | None:
        if formats.table.reasoning is None:
            return None
        return start_region(formats.native, prompt_ids, kwargs)

    return region


def _templates(source: ModelSource, chosen: str | None, tokenizer: Tokenizer) -> TemplateSet | None:
    found = TemplateSet.of_model(
        source.directory,
        templates=source.templates,
        chat_template=chosen,
        vocabulary=Vocabulary(
            token_id=tokenizer.token_id, encode=lambda text: tokenizer.encode(text, add_special_tokens=False)
        ),
        config=_config(source),
    )
    return found or None


def _config(source: ModelSource) -> Mapping[str, Any]:
    """The model's config.json; where another tokenizer is used and the model is not a local directory, that of the
    tokenizer. Empty for a GGUF file."""
    for directory in (Path(source.path).expanduser(), source.directory):
        if directory is not None and (found := read_json_object(directory / "config.json")):
            return found
    return {}
