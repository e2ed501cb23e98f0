"""`derender serve`: render and derender over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from derender import cli_options as option

if TYPE_CHECKING:
    from derender.registry import ModelRegistry
    from derender.server.run import ServerSettings
    from derender.settings import ModelSettings

_MEBIBYTE = 1 << 20


def _http(*names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=option.HTTP, **settings)


def serve(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Directory, GGUF file or Hugging Face id.", show_default=False),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="[NAME=]PATH", help="A model to serve, under a name of its own. Repeatable."),
    ] = None,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Names of the model in the API. Repeatable.")
    ] = None,
    host: Annotated[str, _http(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, _http(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    uds: Annotated[str | None, _http(help="Path of a Unix socket to listen on instead.")] = None,
    workers: Annotated[int, _http(min=1, help="Processes that serve.")] = 1,
    api_key: option.ApiKey = None,
    ssl_keyfile: Annotated[str | None, _http(help="File of the TLS key.")] = None,
    ssl_certfile: Annotated[str | None, _http(help="File of the TLS certificate.")] = None,
    ssl_ca_certs: Annotated[str | None, _http(help="File of certificates that sign clients' ones.")] = None,
    ssl_cert_reqs: Annotated[int, _http(min=0, max=2, help="Client certificate: 0 none, 1 optional, 2 required.")] = 0,
    root_path: Annotated[str, _http(help="Path under which a proxy serves this.")] = "",
    allowed_origins: Annotated[list[str] | None, _http(help="Origins of browsers; * is all, none the default.")] = None,
    allowed_methods: Annotated[list[str] | None, _http(help="Methods allowed to them. Default: all.")] = None,
    allowed_headers: Annotated[list[str] | None, _http(help="Headers allowed to them. Default: all.")] = None,
    allow_credentials: Annotated[bool, _http("--allow-credentials", help="Let them send cookies and keys.")] = False,
    max_body_mb: Annotated[float, _http(help="Largest body in MiB; more is refused with 413.")] = 64,
    enable_request_id_headers: Annotated[
        bool, _http("--enable-request-id-headers", help="Answer with X-Request-Id.")
    ] = False,
    enable_tokenizer_info_endpoint: Annotated[
        bool, _http("--enable-tokenizer-info-endpoint", help="Serve /tokenizer_info.")
    ] = False,
    disable_docs: Annotated[
        bool, _http("--disable-docs", "--disable-fastapi-docs", help="Serve no /docs, /redoc, /openapi.json.")
    ] = False,
    log_level: option.LogLevel = "info",
    uvicorn_log_level: option.UvicornLogLevel = "error",
    access_log: Annotated[bool, _http("--access-log/--disable-uvicorn-access-log", help="Log each request.")] = False,
    timeout_keep_alive: Annotated[
        int,
        _http(
            min=1,
            envvar=["DERENDER_KEEP_ALIVE", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"],
            help="Seconds that an idle connection is kept.",
        ),
    ] = 5,
    shutdown_timeout: Annotated[
        int, _http(min=0, help="Seconds that requests in work may take to end after SIGTERM.")
    ] = 30,
    tokenizer: option.Tokenizer = None,
    tokenizer_mode: option.TokenizerMode = "auto",
    revision: option.Revision = None,
    tokenizer_revision: option.TokenizerRevision = None,
    max_model_len: option.MaxModelLen = None,
    max_logprobs: option.MaxLogprobs = 20,
    chat_template: option.ChatTemplate = None,
    chat_template_content_format: option.ContentFormat = "auto",
    trust_request_chat_template: option.TrustRequestChatTemplate = False,
    default_chat_template_kwargs: option.DefaultChatTemplateKwargs = None,
    generation_config: option.GenerationConfig = "auto",
    override_generation_config: option.OverrideGenerationConfig = None,
    stop_strings: option.StopStrings = "engine",
    max_tokens_over_room: option.MaxTokensOverRoom = "refuse",
    tolerate_unknown_ids: option.TolerateUnknownIds = False,
    guard_special_tokens: option.GuardSpecialTokens = False,
    encode_cache_mb: option.EncodeCacheMb = 64,
    strict_vllm: option.StrictVllm = False,
    exclude_tools_when_tool_choice_none: option.ExcludeTools = False,
    tool_call_parser: option.ToolCallParser = None,
    reasoning_parser: option.ReasoningParser = None,
    format_file: option.FormatFile = None,
    enable_auto_tool_choice: option.EnableAutoToolChoice = False,
    tool_strict_level: option.ToolStrictLevel = "auto",
    tool_call_streaming: option.ToolCallStreaming = "incremental",
    framing: option.Framing = "keep",
    reasoning_field: option.ReasoningField = "reasoning",
    state_key: option.StateKey = None,
    h11_max_incomplete_event_size: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Serve render and derender over HTTP, with vLLM's routes and flags."""
    served, settings = serving(locals())
    run_server(partial(load_registry, served), settings)


def run_server(load: Callable[[], ModelRegistry], settings: ServerSettings) -> NoReturn:
    """Serves until a signal, and ends the command with its exit code; what keeps it from serving is one line."""
    from derender.model import ModelLoadError
    from derender.server.listen import ListenError
    from derender.server.run import serve as run

    try:
        code = run(load, settings=settings)
    except (ModelLoadError, ListenError) as error:
        typer.echo(f"derender: {error}", err=True)
        code = 1
    raise typer.Exit(code)


_OF_MODEL = (
    *("tokenizer", "tokenizer_mode", "revision", "tokenizer_revision", "max_model_len", "max_logprobs"),
    *("chat_template", "chat_template_content_format", "trust_request_chat_template", "default_chat_template_kwargs"),
    *("generation_config", "override_generation_config", "stop_strings", "max_tokens_over_room"),
    *("tolerate_unknown_ids", "guard_special_tokens", "encode_cache_mb", "strict_vllm"),
    *("exclude_tools_when_tool_choice_none", "tool_call_parser", "reasoning_parser", "format_file"),
    *("enable_auto_tool_choice", "tool_strict_level", "tool_call_streaming", "framing", "reasoning_field", "state_key"),
)
"""The options that are a model's settings."""


def serving(given: Mapping[str, Any]) -> tuple[tuple[tuple[str, ModelSettings], ...], ServerSettings]:
    """What `serve`'s options, by their names, say: the models to load, and how to serve them.

    Raises `typer.BadParameter`.
    """
    from derender.server.app import AppSettings
    from derender.server.cors import Cors
    from derender.server.listen import Address
    from derender.server.run import ServerSettings, Tls

    option.check_choices(log_level=given["log_level"], uvicorn_log_level=given["uvicorn_log_level"])
    certificate = given["ssl_certfile"]
    if certificate is None and (given["ssl_keyfile"] or given["ssl_ca_certs"] or given["ssl_cert_reqs"]):
        raise typer.BadParameter("TLS needs a certificate", param_hint="--ssl-certfile")
    if given["h11_max_incomplete_event_size"] is not None:
        typer.echo("note: --h11-max-incomplete-event-size has no effect here; see --max-body-mb", err=True)
    model_settings = option.model_settings(**{name: given[name] for name in _OF_MODEL})
    origins = option.string_list(given["allowed_origins"])
    settings = ServerSettings(
        address=Address(host=given["host"], port=given["port"], uds=given["uds"]),
        app=AppSettings(
            max_body_bytes=int(given["max_body_mb"] * _MEBIBYTE),
            api_keys=option.api_keys(given["api_key"]),
            cors=Cors(
                origins=origins,
                methods=option.string_list(given["allowed_methods"]) or ("*",),
                request_headers=option.string_list(given["allowed_headers"]) or ("*",),
                credentials=given["allow_credentials"],
            )
            if origins
            else None,
            root_path=given["root_path"],
            request_id_headers=given["enable_request_id_headers"],
            tokenizer_info=given["enable_tokenizer_info_endpoint"],
            docs=not given["disable_docs"],
        ),
        workers=given["workers"],
        tls=Tls(
            keyfile=given["ssl_keyfile"],
            certfile=certificate,
            ca_certs=given["ssl_ca_certs"],
            cert_reqs=given["ssl_cert_reqs"],
        )
        if certificate is not None
        else None,
        log_level=given["log_level"],
        uvicorn_log_level=given["uvicorn_log_level"],
        access_log=given["access_log"],
        keep_alive_seconds=given["timeout_keep_alive"],
        shutdown_seconds=given["shutdown_timeout"],
    )
    return _served(given["model"], given["models"], given["served_model_name"], model_settings), settings


def _served(
    model: str | None, models: Sequence[str] | None, names: Sequence[str] | None, settings: ModelSettings
) -> tuple[tuple[str, ModelSettings], ...]:
    """What is to be loaded: paths with settings."""
    given = [option.NamedModel(None, model)] if model is not None else []
    given += [option.named_model(text) for text in models or ()]
    if not given:
        raise typer.BadParameter("name a model to serve", param_hint="MODEL")
    served_names = option.string_list(names)
    if served_names and len(given) > 1:
        raise typer.BadParameter(
            "of several models each has its own name: --model NAME=PATH", param_hint="--served-model-name"
        )
    return tuple(
        (path, replace(settings, served_model_names=(name,) if name is not None else served_names))
        for name, path in given
    )


def load_registry(served: Sequence[tuple[str, ModelSettings]]) -> ModelRegistry:
    """Loads all models. Raises `derender.model.ModelLoadError`."""
    from derender.model import Model
    from derender.registry import ModelRegistry

    return ModelRegistry([Model.load(path, settings=settings) for path, settings in served])
