"""The commands: `serve`, `gateway`, `generate`; `render`, `derender`, `tokenize`, `parse` on files; `formats`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from derender import cli_options as option
from derender.cli_formats import formats_app, parse
from derender.cli_gateway import gateway
from derender.cli_serve import serve

app = typer.Typer(
    name="derender",
    help="The text side of disaggregated LLM serving: API requests to token ids, token ids to API responses.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve)
app.command()(gateway)
app.command()(parse)
app.add_typer(formats_app, name="formats")

RequestFile = Annotated[
    Path, typer.Argument(metavar="REQUEST", help="File with the request's JSON; - is standard input.", allow_dash=True)
]
JsonLines = Annotated[bool, typer.Option("--jsonl", help="One request a line in, one answer a line out.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"derender {version('derender')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def render(
    model: option.ModelArgument,
    request: RequestFile = Path("-"),
    jsonl: JsonLines = False,
    tokenizer: option.Tokenizer = None,
    max_model_len: option.MaxModelLen = None,
    chat_template: option.ChatTemplate = None,
    default_chat_template_kwargs: option.DefaultChatTemplateKwargs = None,
    generation_config: option.GenerationConfig = "auto",
    stop_strings: option.StopStrings = "engine",
    tool_call_parser: option.ToolCallParser = None,
    reasoning_parser: option.ReasoningParser = None,
    format_file: option.FormatFile = None,
    enable_auto_tool_choice: option.EnableAutoToolChoice = False,
    tool_strict_level: option.ToolStrictLevel = "auto",
    guard_special_tokens: option.GuardSpecialTokens = False,
) -> None:
    """Render chat requests, or completions requests (they have a prompt), to generate requests."""
    from derender.protocol.chat import ChatCompletionRequest
    from derender.protocol.completions import CompletionRequest

    settings = option.model_settings(
        tokenizer=tokenizer,
        max_model_len=max_model_len,
        chat_template=chat_template,
        default_chat_template_kwargs=default_chat_template_kwargs,
        generation_config=generation_config,
        stop_strings=stop_strings,
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
        format_file=format_file,
        enable_auto_tool_choice=enable_auto_tool_choice,
        tool_strict_level=tool_strict_level,
        guard_special_tokens=guard_special_tokens,
    )
    from derender.server.operations import decode_invocation

    _answer(model, settings, request, jsonl, decode_invocation, (ChatCompletionRequest, CompletionRequest))


@app.command()
def derender(
    model: option.ModelArgument,
    request: RequestFile = Path("-"),
    jsonl: JsonLines = False,
    tokenizer: option.Tokenizer = None,
    max_model_len: option.MaxModelLen = None,
    tolerate_unknown_ids: option.TolerateUnknownIds = False,
    tool_call_parser: option.ToolCallParser = None,
    reasoning_parser: option.ReasoningParser = None,
    format_file: option.FormatFile = None,
    tool_call_streaming: option.ToolCallStreaming = "incremental",
    framing: option.Framing = "keep",
    reasoning_field: option.ReasoningField = "reasoning",
    state_key: option.StateKey = None,
) -> None:
    """Derender generate answers, or chunks of a stream, to API answers."""
    from derender.protocol.derender import (
        DerenderChatRequest,
        DerenderChatStreamRequest,
        DerenderCompletionRequest,
        DerenderCompletionStreamRequest,
    )

    settings = option.model_settings(
        tokenizer=tokenizer,
        max_model_len=max_model_len,
        tolerate_unknown_ids=tolerate_unknown_ids,
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
        format_file=format_file,
        tool_call_streaming=tool_call_streaming,
        framing=framing,
        reasoning_field=reasoning_field,
        state_key=state_key,
    )
    from derender.server.operations import decode_invocation

    types = (
        DerenderChatRequest,
        DerenderChatStreamRequest,
        DerenderCompletionRequest,
        DerenderCompletionStreamRequest,
    )
    _answer(model, settings, request, jsonl, decode_invocation, types)


@app.command()
def tokenize(
    model: option.ModelArgument,
    request: RequestFile = Path("-"),
    jsonl: JsonLines = False,
    tokenizer: option.Tokenizer = None,
    chat_template: option.ChatTemplate = None,
) -> None:
    """Tokenize a text (prompt) or a chat (messages), or turn tokens back into text."""
    from derender.protocol.tokenize import DetokenizeRequest, TokenizeRequest
    from derender.server.operations import decode_tokens

    settings = option.model_settings(tokenizer=tokenizer, chat_template=chat_template)
    _answer(model, settings, request, jsonl, decode_tokens, (TokenizeRequest, DetokenizeRequest))


@app.command()
def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL.gguf", help="GGUF file of the model.", show_default=False)],
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Names of the model in the API. Repeatable.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8001,
    uds: Annotated[str | None, typer.Option(help="Path of a Unix socket to listen on instead.")] = None,
    api_key: option.ApiKey = None,
    max_model_len: option.MaxModelLen = None,
    parallel: Annotated[int, typer.Option(min=1, help="Sequences that are generated at once.")] = 8,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: all but one.")] = None,
    logprob_wire: option.LogprobWire = "ids",
    max_body_mb: Annotated[float, typer.Option(help="Largest body in MiB; more is refused with 413.")] = 64,
    shutdown_timeout: Annotated[
        int, typer.Option(min=0, help="Seconds that requests in work may take to end after SIGTERM.")
    ] = 30,
    log_level: option.LogLevel = "info",
) -> None:
    """Serve a generate server (token ids in, token ids out) with the embedded CPU engine."""
    option.check_choices(logprob_wire=logprob_wire, log_level=log_level)
    from derender.server.generate import run_generate

    run_generate(
        model,
        served_model_name=option.string_list(served_model_name),
        host=host,
        port=port,
        uds=uds,
        api_keys=option.api_keys(api_key),
        max_model_len=max_model_len,
        parallel=parallel,
        threads=threads,
        logprob_wire=logprob_wire,  # type: ignore[arg-type]
        max_body_mb=max_body_mb,
        shutdown_seconds=shutdown_timeout,
        log_level=log_level,
    )


def _answer(
    path: str,
    settings: Any,
    source: Path,
    jsonl: bool,
    decode: Callable[[bytes], Any],
    types: tuple[type, ...],
) -> None:
    """Answers the requests of `source` with the model at `path`, one after the other, up to the first error."""
    from derender.model import Model, ModelLoadError
    from derender.protocol.codec import encode
    from derender.protocol.errors import ApiError, BadRequest
    from derender.server.operations import ACTIONS

    try:
        model = Model.load(path, settings=settings)
    except ModelLoadError as error:
        _fail(str(error))
    for body in _bodies(source, jsonl=jsonl):
        try:
            request = decode(body)
            if not isinstance(request, types):
                names = ", ".join(one.__name__ for one in types)
                raise BadRequest(f"the body is a {type(request).__name__}; this command takes {names}")
            answer = encode(ACTIONS[type(request)](model, request, None))
        except ApiError as error:
            sys.stdout.flush()
            sys.stderr.write(encode(error.response()).decode() + "\n")
            raise typer.Exit(1) from None
        sys.stdout.buffer.write(answer + b"\n")
    sys.stdout.flush()


def _bodies(source: Path, *, jsonl: bool) -> Iterator[bytes]:
    try:
        with sys.stdin.buffer if str(source) == "-" else source.open("rb") as stream:
            if not jsonl:
                yield stream.read()
                return
            for line in stream:
                if not line.isspace():
                    yield line
    except OSError as error:
        _fail(f"cannot read {source}: {error.strerror}")


def _fail(message: str) -> NoReturn:
    """Ends with one line on standard error."""
    typer.echo(f"derender: {message}", err=True)
    raise typer.Exit(1)


def main() -> None:
    """The entry point of the `derender` command."""
    try:
        import_module("derender.limits")  # reads the environment: a wrong limit is told before anything else
    except ValueError as error:
        typer.echo(f"derender: {error}", err=True)
        sys.exit(1)
    app(option.spread(sys.argv[1:]))
