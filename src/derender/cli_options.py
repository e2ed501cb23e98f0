"""Options of the commands, under vLLM's names, and how their text becomes settings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from derender.settings import ModelSettings

HTTP = "HTTP"
_MODEL = "Model"
_LEVELS = ("critical", "error", "warning", "info", "debug")
_KEYS = ("DERENDER_API_KEY", "VLLM_API_KEY")
_MULTIPLES = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
_SPREAD = frozenset({"--served-model-name", "--api-key", "--allowed-origins", "--allowed-methods", "--allowed-headers"})


class NamedModel(NamedTuple):
    """A model to serve; `name` None: under the names of `--served-model-name`, or its own path."""

    name: str | None
    path: str


def named_model(text: str) -> NamedModel:
    """`NAME=PATH`, or a path alone."""
    name, equals, path = text.partition("=")
    if not equals:
        return NamedModel(None, text)
    if not name or not path:
        raise typer.BadParameter(f"{text!r} is not NAME=PATH")
    return NamedModel(name, path)


def length(text: str) -> int:
    """A number of tokens: `8192`, `32k` (thousands) or `32K` (of 1024), as vLLM reads them."""
    digits, multiple = (text[:-1], _MULTIPLES[text[-1]]) if text[-1:] in _MULTIPLES else (text, 1)
    try:
        number = int(float(digits) * multiple) if multiple > 1 else int(digits)
    except (ValueError, OverflowError):
        number = 0
    if number < 1:
        raise typer.BadParameter(f"{text!r} is not a number of tokens")
    return number


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{text!r} is not a JSON object")
    return value


def string_list(values: Sequence[str] | None) -> tuple[str, ...]:
    """Strings given by repetition, each of which may be a JSON list of strings, as vLLM's are."""
    found: list[str] = []
    for text in values or ():
        if not text.startswith("["):
            found.append(text)
            continue
        try:
            items = json.loads(text)
        except ValueError:
            items = None
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise typer.BadParameter(f"{text!r} is not a JSON list of strings")
        found += items
    return tuple(found)


def spread(arguments: Sequence[str]) -> list[str]:
    """Command-line arguments as vLLM's parser takes them: `--served-model-name a b` is two names, `_` is `-`.

    Names are only gathered where the model stands first or is an option too, so that in
    `serve --served-model-name a MODEL` the model is not a second name.
    """
    names = [argument.partition("=")[0].replace("_", "-") for argument in arguments]
    gather = "--model" in names or (len(arguments) > 1 and not arguments[1].startswith("-"))
    spread_out: list[str] = []
    option = ""  # the last one
    values = 0  # that it has had
    for name, argument in zip(names, arguments, strict=True):
        if argument.startswith("--"):
            option, values = name, 0
            spread_out.append(name + argument[len(name) :])
            continue
        if gather and values and option in _SPREAD:
            spread_out.append(option)
        values += 1
        spread_out.append(argument)
    return spread_out


# ------------------------------------------------------------------------------------------- options of a model

ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Directory, GGUF file or Hugging Face id of the model.", show_default=False),
]
Tokenizer = Annotated[str | None, typer.Option(help="Tokenizer to use instead of the model's.", rich_help_panel=_MODEL)]
TokenizerMode = Annotated[
    str,
    typer.Option(
        help="Encoder (tokenizers, fastokens) or vocabulary file (hf, mistral, tekken, tiktoken, sentencepiece, gguf).",
        rich_help_panel=_MODEL,
    ),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the model.", rich_help_panel=_MODEL)]
TokenizerRevision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit of the tokenizer.", rich_help_panel=_MODEL)
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        parser=length,
        metavar="TOKENS",
        help="Context length, as 32768, 32k or 32K. Default: the model's.",
        rich_help_panel=_MODEL,
    ),
]
MaxLogprobs = Annotated[int, typer.Option(min=-1, help="Most logprobs that may be asked for.", rich_help_panel=_MODEL)]
ChatTemplate = Annotated[
    str | None,
    typer.Option(
        help="Chat template: a file, the text itself, the name of one of the model's, or a family whose prompt is made "
        "by code: harmony, deepseek_v32, deepseek_v4, deepseek_v41, kimi_k3, inkling, mistral, mistral:v7.",
        rich_help_panel=_MODEL,
    ),
]
ContentFormat = Annotated[
    str, typer.Option(help="How the template wants content: auto, string or openai.", rich_help_panel=_MODEL)
]
TrustRequestChatTemplate = Annotated[
    bool,
    typer.Option(
        "--trust-request-chat-template", help="Let requests bring their own chat template.", rich_help_panel=_MODEL
    ),
]
DefaultChatTemplateKwargs = Annotated[
    Any,
    typer.Option(
        parser=json_object,
        metavar="JSON",
        help="Template variables that requests may override.",
        rich_help_panel=_MODEL,
    ),
]
GenerationConfig = Annotated[
    str,
    typer.Option(
        help="Where sampling defaults come from: auto (the model), vllm (none), or a directory.", rich_help_panel=_MODEL
    ),
]
OverrideGenerationConfig = Annotated[
    Any,
    typer.Option(parser=json_object, metavar="JSON", help="Sampling defaults of your own.", rich_help_panel=_MODEL),
]
StopStrings = Annotated[
    str, typer.Option(help="Who ends text at a stop string: engine or derender.", rich_help_panel=_MODEL)
]
TolerateUnknownIds = Annotated[
    bool,
    typer.Option(
        "--tolerate-unknown-ids",
        help="Read token ids beyond the vocabulary as nothing instead of refusing them.",
        rich_help_panel=_MODEL,
    ),
]
GuardSpecialTokens = Annotated[
    bool,
    typer.Option(
        "--guard-special-tokens",
        help="Let no control token come out of messages and tools: what spells one there is encoded as plain text.",
        rich_help_panel=_MODEL,
    ),
]
EncodeCacheMb = Annotated[
    float,
    typer.Option(min=0, help="Memory for the ids of long prompts' segments, in MiB; 0: none.", rich_help_panel=_MODEL),
]
StrictVllm = Annotated[
    bool,
    typer.Option(
        "--strict-vllm", help="Refuse what vLLM refuses, even where there is no need.", rich_help_panel=_MODEL
    ),
]
ExcludeTools = Annotated[
    bool,
    typer.Option(
        "--exclude-tools-when-tool-choice-none",
        help="Leave tools out of the prompt when tool_choice is none.",
        rich_help_panel=_MODEL,
    ),
]
ToolCallParser = Annotated[
    str | None,
    typer.Option(
        help="Output format of tool calls; auto tells it by the model, detect takes none where it cannot. See derender "
        "formats.",
        rich_help_panel=_MODEL,
    ),
]
ReasoningParser = Annotated[
    str | None,
    typer.Option(
        help="Output format of reasoning; auto or detect tell it by the model. See derender formats.",
        rich_help_panel=_MODEL,
    ),
]
FormatFile = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FILE.toml",
        help="Output format of your own, instead of the two parsers; derender formats show NAME prints one to start "
        "from.",
        rich_help_panel=_MODEL,
    ),
]
EnableAutoToolChoice = Annotated[
    bool,
    typer.Option("--enable-auto-tool-choice", help="Let the model choose to call tools.", rich_help_panel=_MODEL),
]
ToolStrictLevel = Annotated[
    str,
    typer.Option(
        help="Which calls a guided engine is held to where the model chooses: auto (of requests with a strict tool), "
        "function (all, to their names) or parameter (all, to their schemas).",
        rich_help_panel=_MODEL,
    ),
]
StateKey = Annotated[
    str | None,
    typer.Option(
        envvar="DERENDER_STATE_KEY",
        help="Sign the state of streams that callers carry, with this secret; all replicas must have the same.",
        show_envvar=True,
        rich_help_panel=_MODEL,
    ),
]
ToolCallStreaming = Annotated[
    str,
    typer.Option(
        help="When a call is given: incremental (as it comes) or complete (closed, its arguments JSON).",
        rich_help_panel=_MODEL,
    ),
]
Framing = Annotated[
    str,
    typer.Option(help="White space at the ends of reasoning and content: keep or trim.", rich_help_panel=_MODEL),
]
ReasoningField = Annotated[
    str, typer.Option(help="Field of reasoning: reasoning, reasoning_content or both.", rich_help_panel=_MODEL)
]

MaxTokensOverRoom = Annotated[
    str,
    typer.Option(help="max_tokens beyond what the context leaves: refuse, or clamp to it.", rich_help_panel=_MODEL),
]
ApiKey = Annotated[
    list[str] | None,
    typer.Option(
        help="Key that requests must bring. Repeatable; also DERENDER_API_KEY, VLLM_API_KEY.", rich_help_panel=HTTP
    ),
]
LogLevel = Annotated[str, typer.Option(help=f"Log level of derender: {', '.join(_LEVELS)}.", rich_help_panel=HTTP)]
UvicornLogLevel = Annotated[str, typer.Option(help="Log level of the HTTP server below it.", rich_help_panel=HTTP)]
LogprobWire = Annotated[
    str, typer.Option(help="How logprobs name a token: ids (vLLM 0.30 and later) or placeholders (before).")
]

CHOICES: Mapping[str, tuple[str, ...]] = {
    "log_level": _LEVELS,
    "uvicorn_log_level": _LEVELS,
    "logprob_wire": ("ids", "placeholders"),
    "max_tokens_over_room": ("refuse", "clamp"),
    "policy": ("least-loaded", "round-robin", "prefix"),
    "engine_kind": ("auto", "vllm", "sglang", "llamacpp"),
    "tokenizer_mode": (
        *("auto", "tokenizers", "fastokens", "hf", "slow", "mistral", "tekken", "tiktoken", "sentencepiece", "gguf"),
    ),
    "chat_template_content_format": ("auto", "string", "openai"),
    "stop_strings": ("engine", "derender"),
    "tool_strict_level": ("auto", "function", "parameter"),
    "tool_call_streaming": ("incremental", "complete"),
    "framing": ("keep", "trim"),
    "reasoning_field": ("reasoning", "reasoning_content", "both"),
}


def check_choices(**options: Any) -> None:
    """Raises `typer.BadParameter` for the value of an option that is none of its choices."""
    for name, choices in CHOICES.items():
        value = options.get(name)
        if value is not None and value not in choices:
            flag = "--" + name.replace("_", "-")
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}", param_hint=flag)


def model_settings(**options: Any) -> ModelSettings:
    """The options of a model as its settings. Raises `typer.BadParameter`."""
    from derender.settings import ModelSettings

    check_choices(**options)
    for name in ("default_chat_template_kwargs", "override_generation_config"):
        if name in options:
            options[name] = options[name] or {}
    return ModelSettings(**options)


def api_keys(given: Sequence[str] | None) -> tuple[str, ...]:
    """The keys of the command line, else those of the environment. An empty one is no key and is refused."""
    keys = string_list(given) or tuple(os.environ[name] for name in _KEYS if os.environ.get(name))
    if "" in keys:
        raise typer.BadParameter("a key must not be empty", param_hint="--api-key")
    return keys
