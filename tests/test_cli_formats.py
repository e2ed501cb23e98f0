"""`derender formats` and `derender parse`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.server.tiny_model import write_tiny_model
from typer.testing import CliRunner

from derender.cli import app
from derender.formats.registry import FORMATS
from derender.formats.user_format import read_format

OUTPUT = '<think>Hm, é.</think>Ok <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
SUMMARY = {
    "event": "summary",
    "reasoning": "Hm, é.",
    "content": "Ok ",
    "tool_calls": [{"name": "add", "arguments": '{"a": 1}', "complete": True}],
}


def run(*arguments: str, stdin: str | bytes = "", code: int = 0) -> tuple[str, str]:
    """Standard output and standard error."""
    done = CliRunner().invoke(app, arguments, input=stdin, env={"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr


def parsed(*arguments: str, stdin: str | bytes = OUTPUT) -> list[dict[str, Any]]:
    out, err = run("parse", *arguments, stdin=stdin)
    assert err == ""
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


# --------------------------------------------------------------------------------------------------------- formats


@pytest.mark.parametrize("command", [("formats",), ("formats", "list")])
def test_list(command: tuple[str, ...]) -> None:
    lines = run(*command)[0].splitlines()
    assert [line.split()[0] for line in lines] == sorted(FORMATS)
    by_name = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert by_name["gemma4"] == "tools: gemma4, gemma-4; reasoning: gemma4"
    assert by_name["functiongemma"] == "tools: functiongemma, function_gemma; reasoning: -"
    assert by_name["think"] == "tools: -; reasoning: think"


@pytest.mark.parametrize(("name", "table"), [("glm45", "glm45"), ("openai", "harmony"), ("deepseek-r1", "deepseek_r1")])
def test_show_gives_a_file_that_can_be_read(name: str, table: str) -> None:
    assert read_format(run("formats", "show", name)[0], source="shown") == FORMATS[table]


def test_show_of_an_unknown_name() -> None:
    _, err = run("formats", "show", "qwen3_code", code=1)
    assert err.startswith("derender: no output format is called 'qwen3_code'; did you mean qwen3_coder")


def test_check(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(run("formats", "show", "hermes")[0].replace("tool_call>", "my_call>").replace("hermes", "own"))
    assert run("formats", "check", str(file))[0] == f"{file}: format own: 1 way of writing calls\n"
    text = '<my_call>{"name": "f", "arguments": {}}</my_call>'
    assert parsed("--format", str(file), stdin=text)[-1]["tool_calls"][0]["name"] == "f"
    file.write_text("name = ")
    _, err = run("formats", "check", str(file), code=1)
    assert err.startswith(f"derender: {file}: ")
    assert err.count("\n") == 1


# ----------------------------------------------------------------------------------------------------------- parse


def test_events_of_a_text() -> None:
    assert parsed("--format", "qwen3") == [
        {"event": "reasoning", "text": "Hm, é."},
        {"event": "content", "text": "Ok "},
        {"event": "tool_call", "index": 0, "name": "add", "id": None},
        {"event": "arguments", "index": 0, "text": '{"a": 1}'},
        {"event": "tool_call_end", "index": 0},
        SUMMARY,
    ]


@pytest.mark.parametrize("chunk", ["1", "4", "1000"])
def test_chunks_change_only_the_deltas(chunk: str) -> None:
    lines = parsed("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--chunk", chunk)
    assert lines[-1] == SUMMARY
    assert "".join(line["text"] for line in lines if line["event"] == "arguments") == '{"a": 1}'
    reasoning = [line["text"] for line in lines if line["event"] == "reasoning"]
    assert len(reasoning) == {"1": 6, "4": 3, "1000": 1}[chunk]


def test_a_file_and_the_start_of_the_output(tmp_path: Path) -> None:
    file = tmp_path / "output.txt"
    file.write_text("Hm.</think>Hi\n", encoding="utf-8")
    arguments = ("--reasoning-parser", "deepseek_v31", str(file))
    assert parsed(*arguments)[-1]["reasoning"] is None
    told = parsed(*arguments, "--prompt", "<think>")[-1]
    assert (told["reasoning"], told["content"]) == ("Hm.", "Hi\n")
    assert parsed(*arguments, "--chat-template-kwargs", '{"thinking": true}')[-1]["reasoning"] == "Hm."


def test_tools_give_the_types(tmp_path: Path) -> None:
    text = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    file = tmp_path / "tools.json"
    tools = [
        {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}}
    ]
    for value in (tools, {"tools": tools, "messages": []}):
        file.write_text(json.dumps(value))
        lines = parsed("--tool-call-parser", "qwen3_coder", "--tools", str(file), stdin=text)
        assert lines[-1]["tool_calls"][0]["arguments"] == '{"a": 1}'
    lines = parsed("--tool-call-parser", "qwen3_coder", stdin=text)
    assert lines[-1]["tool_calls"][0]["arguments"] == '{"a": "1"}'


def test_ids(model: str) -> None:
    lines = parsed("--format", "qwen3", "--model", model, "--chunk", "7", stdin=json.dumps([*OUTPUT.encode(), 259]))
    assert lines[-1] == SUMMARY


def test_text_with_a_model_has_its_special_tokens(model: str) -> None:
    assert parsed("--format", "hermes", "--model", model, stdin="a<|eos|>")[-1]["content"] == "a"
    assert parsed("--format", "hermes", stdin="a<|eos|>")[-1]["content"] == "a<|eos|>"


def test_auto_looks_at_the_model(model: str, tmp_path: Path) -> None:
    _, err = run("parse", "--tool-call-parser", "auto", "--model", model, code=1)
    assert err.startswith(
        "derender: --tool-call-parser auto: the chat template and the vocabulary show no known format"
    )
    _, err = run("parse", "--tool-call-parser", "auto", code=1)
    assert err == "derender: auto needs --model: it looks at its chat template and vocabulary\n"
    directory = write_tiny_model(tmp_path / "hermes")
    template = directory / "chat_template.jinja"
    template.write_text("{{ '<tool_call>' + (messages[0].arguments | tojson) }}")
    lines = parsed("--tool-call-parser", "auto", "--model", str(directory))
    assert lines[-1]["tool_calls"] == SUMMARY["tool_calls"]


def _chunks() -> list[dict[str, Any]]:
    """A recorded stream of two choices, in turns."""
    ids = list(OUTPUT.encode())
    chunks: list[dict[str, Any]] = [{"choices": [], "usage": None}]
    for at in range(0, len(ids), 20):
        chunks.append({"request_id": "x", "choices": [{"index": 0, "token_ids": ids[at : at + 20]}]})
        chunks.append({"choices": [{"index": 1, "token_ids": [104]}]})
    chunks.append({"choices": [{"index": 0, "token_ids": [], "finish_reason": "stop"}]})
    return chunks


@pytest.mark.parametrize("form", ["events", "lines", "one"])
def test_recorded_streams(model: str, form: str) -> None:
    chunks = _chunks()
    if form == "events":
        text = ": hello\n\n" + "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    elif form == "lines":
        context = {"model": "m", "chat_request": {}}
        text = "\n".join(json.dumps(record) for record in (*chunks, context))
    else:
        choices = [
            {"index": 0, "token_ids": list(OUTPUT.encode()), "finish_reason": "stop"},
            {"index": 1, "token_ids": [104] * (len(chunks) // 2 - 1)},
        ]
        text = json.dumps({"request_id": "x", "choices": choices}, indent=1)
    lines = parsed("--format", "qwen3", "--model", model, stdin=text)
    first, second = lines[-2:]
    assert first == {"event": "summary", "choice": 0, **{k: v for k, v in SUMMARY.items() if k != "event"}}
    assert second["reasoning"] == "h" * (len(chunks) // 2 - 1)
    assert {line["choice"] for line in lines} == {0, 1}


def test_what_looks_like_something_else_can_be_said(model: str) -> None:
    assert parsed("--format", "hermes", "--input", "text", stdin="[1, 2]")[-1]["content"] == "[1, 2]"
    # An answer that is a JSON list of texts, or of nothing, is no list of ids.
    assert parsed("--format", "hermes", stdin='["a"]')[-1]["content"] == '["a"]'
    assert parsed("--format", "hermes", stdin="[]")[-1]["content"] == "[]"
    assert parsed("--format", "hermes", stdin="")[-1]["content"] is None
    assert parsed("--format", "hermes", "--input", "ids", "--model", model, stdin="[]")[-1]["content"] is None


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (("--format", "hermes"), "[1, 2]", "ids can only be read with --model"),
        (("--format", "hermes"), b"\xff", "the text is not UTF-8 (byte 0)"),
        (("--format", "hermes", "no-such-file"), "", "cannot read no-such-file: No such file or directory"),
        (("--tool-call-parser", "nope"), "", "--tool-call-parser nope: no such output format"),
        (
            ("--format", "hermes", "--model", "MODEL"),
            "[1, 99999]",
            "token id 99999 is outside the vocabulary (260 ids)",
        ),
        (("--format", "hermes", "--model", "MODEL", "--input", "ids"), "1", "ids are a JSON list of whole numbers"),
        (("--format", "hermes", "--model", "MODEL", "--input", "stream"), "data: {", "line 1 is not JSON"),
        (("--format", "hermes", "--model", "MODEL"), '{"choices": [1]}', "not a chunk of a generate server: "),
        (("--format", "hermes", "--tools", "no-such-file"), "", "cannot read no-such-file"),
    ],
)
def test_errors_are_one_line(model: str, arguments: tuple[str, ...], stdin: str | bytes, message: str) -> None:
    out, err = run("parse", *(model if one == "MODEL" else one for one in arguments), stdin=stdin, code=1)
    assert err.startswith(f"derender: {message}")
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    "arguments",
    [(), ("--format", "hermes", "--tool-call-parser", "hermes"), ("--format", "hermes", "--input", "words")],
)
def test_wrong_options(arguments: tuple[str, ...]) -> None:
    run("parse", *arguments, code=2)
