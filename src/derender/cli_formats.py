"""`derender formats` and `derender parse`: output formats to look at, and one of them run on a model's output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from derender import cli_options as option

if TYPE_CHECKING:
    from derender.formats.table import OutputFormat
    from derender.parser.compiled import CompiledFormat
    from derender.parser.engine import FormatParser
    from derender.parser.events import Event
    from derender.tokenizer import Tokenizer

formats_app = typer.Typer(help="The output formats: list, show, check.", no_args_is_help=False)

_INPUTS = ("auto", "text", "ids", "stream")


@formats_app.callback(invoke_without_command=True)
def _formats(context: typer.Context) -> None:
    """List the output formats with the parser names that stand for them; see also show and check."""
    if context.invoked_subcommand is None:
        list_formats()


@formats_app.command("list")
def list_formats() -> None:
    """List the output formats with the parser names that stand for them."""
    from derender.formats.names import REASONING_PARSERS, TOOL_PARSERS
    from derender.formats.registry import FORMATS

    width = max(map(len, FORMATS))
    for name, table in sorted(FORMATS.items()):
        tools = _names(TOOL_PARSERS, name) if table.calls else []
        reasoning = _names(REASONING_PARSERS, name) if table.reasoning or table.messages else []
        typer.echo(f"{name:{width}}  tools: {', '.join(tools) or '-'}; reasoning: {', '.join(reasoning) or '-'}")


@formats_app.command("show")
def show_format(name: Annotated[str, typer.Argument(metavar="NAME", help="A format, or a parser's name.")]) -> None:
    """Show a format's table as the TOML file of a format of one's own."""
    from derender.formats.user_format import dump_format

    typer.echo(dump_format(_named(name)).rstrip("\n"))


@formats_app.command("check")
def check_format(file: Annotated[Path, typer.Argument(metavar="FILE", help="A format in TOML.")]) -> None:
    """Check a format of one's own: whether it can be read, and made ready for a vocabulary."""
    table = _from_file(file)
    _compiled(table, _byte_tokenizer())
    ways = len(table.calls)
    reasoning = ", reasoning" if table.reasoning is not None else ""
    typer.echo(f"{file}: format {table.name}: {ways} way{'' if ways == 1 else 's'} of writing calls{reasoning}")


def parse(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT",
            help="File with a model's output: text, a JSON list of ids, or a recorded generate answer or stream "
            "(JSON, JSON lines, server-sent events); - is standard input.",
            allow_dash=True,
        ),
    ] = Path("-"),
    model: Annotated[str | None, typer.Option(help="Model whose vocabulary the output is in. Ids need one.")] = None,
    format_name: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="The format: a name, or a TOML file.")
    ] = None,
    tool_call_parser: option.ToolCallParser = None,
    reasoning_parser: option.ReasoningParser = None,
    kind: Annotated[
        str, typer.Option("--input", help="What OUTPUT is: auto (tell by its looks), text, ids or stream.")
    ] = "auto",
    chunk: Annotated[
        int | None, typer.Option(min=1, help="Push a text by so many characters, ids by so many. Default: at once.")
    ] = None,
    tools: Annotated[
        Path | None, typer.Option(help="File with the request's tools (JSON), for the types of arguments.")
    ] = None,
    prompt: Annotated[str, typer.Option(help="End of the prompt: its markers say where the output begins.")] = "",
    chat_template_kwargs: Annotated[
        Any, typer.Option(parser=option.json_object, metavar="JSON", help="The request's chat_template_kwargs.")
    ] = None,
    tool_call_streaming: option.ToolCallStreaming = "incremental",
    framing: option.Framing = "keep",
) -> None:
    """Read a model's output by a format: one JSON line per event, and one with the whole at the end.

    Without a model, a text is read in a vocabulary of single bytes, with all markers as text.
    """
    option.check_choices(tool_call_streaming=tool_call_streaming, framing=framing)
    if kind not in _INPUTS:
        raise typer.BadParameter(f"{kind!r} is not one of {', '.join(_INPUTS)}", param_hint="--input")
    if (format_name is None) == (tool_call_parser is None and reasoning_parser is None):
        raise typer.BadParameter("name a format, or a tool and a reasoning parser", param_hint="--format")
    table, tokenizer = _format_and_vocabulary(model, format_name, tool_call_parser, reasoning_parser)
    compiled = _compiled(table, tokenizer)
    body = _read(source)
    kind, value = _recognized(body) if kind == "auto" else (kind, None)
    if kind != "text" and model is None:
        _fail("ids can only be read with --model, which has their vocabulary")
    run = _Run(
        compiled,
        tools=_tools(tools),
        prompt=tokenizer.encode(prompt) if prompt else None,
        kwargs=chat_template_kwargs,
        complete=tool_call_streaming == "complete",
        trim=framing == "trim" or table.trim,
        numbered=kind == "stream",
    )
    if kind == "stream":
        for record in _records(body) if value is None else [value]:
            _push_record(run, record)
    else:
        for ids in _pieces(_ids(body) if kind == "ids" else _text(body), tokenizer, chunk):
            run.push(0, ids)
    run.finish()


class _Run:
    """Outputs in work, by the index of their choice; every event goes to standard output."""

    def __init__(
        self,
        compiled: CompiledFormat,
        *,
        tools: Sequence[Mapping[str, Any]],
        prompt: Sequence[int] | None,
        kwargs: Mapping[str, Any] | None,
        complete: bool,
        trim: bool,
        numbered: bool,
    ) -> None:
        self._compiled = compiled
        self._tools = tools
        self.prompt = prompt
        self._kwargs = kwargs
        self._complete = complete
        self._trim = trim
        self._numbered = numbered
        self._parsers: dict[int, FormatParser] = {}
        self._answers: dict[int, dict[str, Any]] = {}

    def push(self, choice: int, ids: Sequence[int]) -> None:
        """The next ids of a choice."""
        tokenizer = self._compiled.marks.tokenizer
        unknown = next((i for i in ids if not tokenizer.knows(i)), None)
        if unknown is not None:
            _fail(f"token id {unknown} is outside the vocabulary ({tokenizer.vocab_size} ids)")
        self._tell(choice, self._parser(choice).push(ids))

    def finish(self) -> None:
        """What was held back, and the whole of each choice."""
        if not self._parsers:
            self._parser(0)
        for choice, parser in sorted(self._parsers.items()):
            self._tell(choice, parser.finish())
            answer = self._answers[choice]
            calls = list(answer["tool_calls"].values())
            whole = {"reasoning": answer["reasoning"], "content": answer["content"], "tool_calls": calls}
            self._line(choice, "summary", whole)

    def _parser(self, choice: int) -> FormatParser:
        from derender.parser.coerce import ToolSchemas
        from derender.parser.engine import FormatParser, ParserOptions
        from derender.parser.start import start_region

        if choice not in self._parsers:
            start = start_region(self._compiled, self.prompt, self._kwargs)
            options = ParserOptions(start=start, complete=self._complete, trim=self._trim)
            self._parsers[choice] = FormatParser(self._compiled, options, ToolSchemas(self._tools))
            self._answers[choice] = {"reasoning": None, "content": None, "tool_calls": {}}
        return self._parsers[choice]

    def _tell(self, choice: int, events: Sequence[Event]) -> None:
        from derender.parser.events import ContentText, ReasoningText, ToolCallArguments, ToolCallBegin

        answer = self._answers[choice]
        for event in events:
            if isinstance(event, (ContentText, ReasoningText)):
                name = "content" if isinstance(event, ContentText) else "reasoning"
                answer[name] = (answer[name] or "") + event.text
                self._line(choice, name, {"text": event.text})
            elif isinstance(event, ToolCallBegin):
                call = {"name": event.name, "arguments": "", "complete": False}
                answer["tool_calls"][event.index] = call if event.id is None else {"id": event.id, **call}
                self._line(choice, "tool_call", {"index": event.index, "name": event.name, "id": event.id})
            elif isinstance(event, ToolCallArguments):
                answer["tool_calls"][event.index]["arguments"] += event.text
                self._line(choice, "arguments", {"index": event.index, "text": event.text})
            else:
                answer["tool_calls"][event.index]["complete"] = True
                self._line(choice, "tool_call_end", {"index": event.index})

    def _line(self, choice: int, event: str, values: Mapping[str, Any]) -> None:
        line = {"event": event, **({"choice": choice} if self._numbered else {}), **values}
        sys.stdout.buffer.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
        sys.stdout.buffer.flush()


# ----------------------------------------------------------------------------------------------- format and vocabulary


def _format_and_vocabulary(
    model: str | None, format_name: str | None, tool: str | None, reasoning: str | None
) -> tuple[OutputFormat, Tokenizer]:
    from derender.formats.choose import UnknownFormat, choose_format
    from derender.model import Model, ModelLoadError

    table = _named(format_name) if format_name is not None else None
    if model is None:
        if "auto" in (tool, reasoning):
            _fail("auto needs --model: it looks at its chat template and vocabulary")
        try:
            table = table or choose_format(tool, reasoning)
        except UnknownFormat as error:
            _fail(str(error))
        tokenizer = _byte_tokenizer()
    else:
        settings = option.model_settings(tool_call_parser=tool, reasoning_parser=reasoning)
        try:
            loaded = Model.load(model, settings=settings)
        except ModelLoadError as error:
            _fail(str(error))
        tokenizer = loaded.tokenizer
        if table is None and loaded.formats is not None:
            table = loaded.formats.table
    if table is None:
        _fail("--reasoning-parser auto: the template shows no reasoning, and no tool parser is named")
    return table, tokenizer


def _named(name: str) -> OutputFormat:
    """A table by its own name, by a parser's, or from a TOML file."""
    from difflib import get_close_matches

    from derender.formats.names import REASONING_PARSERS, TOOL_PARSERS
    from derender.formats.registry import FORMATS

    if name.endswith(".toml"):
        return _from_file(Path(name))
    meant = (name, TOOL_PARSERS.get(name), REASONING_PARSERS.get(name))
    table = next((FORMATS[known] for known in meant if known in FORMATS), None)
    if table is not None:
        return table
    near = get_close_matches(name, [*FORMATS, *TOOL_PARSERS, *REASONING_PARSERS], n=3)
    hint = f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    return _fail(f"no output format is called {name!r}{hint} (derender formats lists them)")


def _names(parsers: Mapping[str, str], table: str) -> list[str]:
    """Every parser name that stands for a table, its own first."""
    own = [table] if parsers.get(table, table) == table else []
    return [*own, *sorted(name for name, other in parsers.items() if other == table and name != table)]


def _from_file(file: Path) -> OutputFormat:
    from derender.formats.user_format import FormatFileError, load_format

    try:
        return load_format(file)
    except FormatFileError as error:
        _fail(str(error))


def _compiled(table: OutputFormat, tokenizer: Tokenizer) -> CompiledFormat:
    from derender.parser.compiled import CompiledFormat

    return CompiledFormat(table, tokenizer)


def _byte_tokenizer() -> Tokenizer:
    """A vocabulary of the 256 bytes, in which every marker is text."""
    from derender.tokenizer import Tokenizer
    from derender.tokenizer.files import tokenizer_spec

    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    tree = {
        "model": {"type": "BPE", "byte_fallback": True, "vocab": vocab, "merges": []},
        "added_tokens": [],
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    }
    body = json.dumps(tree).encode()
    return Tokenizer(tokenizer_spec(lambda: body, config={}), force="tokenizers")


# --------------------------------------------------------------------------------------------------------------- input


def _read(source: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(source) == "-" else source.read_bytes()
    except OSError as error:
        _fail(f"cannot read {source}: {error.strerror}")


def _recognized(body: bytes) -> tuple[str, Any]:
    """What a body is, by its looks; of a stream that is one JSON value, the value."""
    start = body.lstrip()[:1]
    if start in (b"[", b"{"):
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, list) and value and all(type(item) is int for item in value):
            return "ids", None
        if isinstance(value, dict) and "choices" in value:
            return "stream", value
    first = next((line.strip() for line in body.splitlines() if line.strip()), b"")
    if first.startswith((b"data:", b"event:", b":")) or (first.startswith(b"{") and b'"choices"' in first):
        return "stream", None
    return "text", None


def _records(body: bytes) -> Iterator[Any]:
    """The JSON values of events or lines; comments, other fields of events and `[DONE]` are passed over."""
    for number, line in enumerate(body.splitlines(), 1):
        text = line.strip()
        if text.startswith(b"data:"):
            text = text[5:].strip()
        elif not text.startswith(b"{"):
            continue
        if text in (b"", b"[DONE]"):
            continue
        try:
            yield json.loads(text)
        except (ValueError, RecursionError) as error:
            _fail(f"line {number} is not JSON: {error}")


def _push_record(run: _Run, record: Any) -> None:
    """One answer or chunk of a generate server. A context, an error or anything else has no choices."""
    from derender.protocol.codec import Decoder
    from derender.protocol.errors import ApiError
    from derender.protocol.generate import GenerateChunk

    if not isinstance(record, dict) or not isinstance(record.get("choices"), list):
        return
    try:
        chunk = Decoder(GenerateChunk, lenient_numbers=True).convert(record)
    except ApiError as error:
        _fail(f"not a chunk of a generate server: {error.message}")
    if chunk.prompt_token_ids and run.prompt is None:
        run.prompt = chunk.prompt_token_ids
    for choice in chunk.choices:
        run.push(choice.index, choice.token_ids or ())


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        _fail(f"the text is not UTF-8 (byte {error.start})")


def _ids(body: bytes) -> list[int]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        _fail(f"the ids are not JSON: {error}")
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        _fail("ids are a JSON list of whole numbers")
    return value


def _pieces(output: str | list[int], tokenizer: Tokenizer, chunk: int | None) -> Iterator[Sequence[int]]:
    """Ids in the parts in which they are to be pushed; a text's tokens belong where they begin."""
    if isinstance(output, list):
        size = chunk or max(1, len(output))
        yield from (output[at : at + size] for at in range(0, len(output), size))
    elif chunk is None:
        yield tokenizer.encode(output)
    else:
        ids, offsets = tokenizer.encode_with_offsets(output)
        part: list[int] = []
        number = 0
        for token_id, (start, _) in zip(ids, offsets, strict=True):
            if start // chunk != number:
                yield part
                part, number = [], start // chunk
            part.append(token_id)
        yield part


def _tools(file: Path | None) -> list[Mapping[str, Any]]:
    if file is None:
        return []
    try:
        value = json.loads(_read(file))
    except (ValueError, RecursionError) as error:
        _fail(f"{file} is not JSON: {error}")
    tools = value.get("tools") if isinstance(value, dict) else value
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        _fail(f"{file}: tools are a JSON list of objects, or a request that has them")
    return tools


def _fail(message: str) -> NoReturn:
    """Ends with one line on standard error."""
    typer.echo(f"derender: {message}", err=True)
    raise typer.Exit(1)
