"""The command line: options, and the commands that work on files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.server.tiny_model import write_tiny_model

from derender import cli_options
from derender.limits import Limits


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


def run(*arguments: str, stdin: str = "", environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "derender", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb", **(environment or {})},
    )
    return done.returncode, done.stdout, done.stderr


def answered(*arguments: str, stdin: str = "") -> Any:
    code, out, err = run(*arguments, stdin=stdin)
    assert (code, err) == (0, "")
    return json.loads(out)


def test_version() -> None:
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("derender 0.")


def test_render_a_chat(model: str, tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text('{"messages": [{"role": "user", "content": "hi"}]}')
    rendered = answered("render", model, str(file))
    assert rendered["token_ids"] == [257, *b"user\nhi", 258, 257, *b"assistant\n"]


def test_render_completions(model: str) -> None:
    rendered = answered("render", model, "-", stdin='{"prompt": "hi"}')
    assert [one["token_ids"] for one in rendered] == [[104, 105]]


def test_render_with_another_template(model: str) -> None:
    body = '{"messages": [{"role": "user", "content": "hi"}]}'
    rendered = answered("render", model, "--chat-template", "{{ messages[0].content }}!", stdin=body)
    assert bytes(rendered["token_ids"]) == b"hi!"


def test_derender(model: str) -> None:
    body = {"generate_response": {"choices": [{"index": 0, "token_ids": [104, 105, 259]}]}}
    answer = answered("derender", model, stdin=json.dumps(body))
    assert answer["choices"][0]["message"]["content"] == "hi"


def test_render_and_derender_with_an_output_format(model: str) -> None:
    flags = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    chat = {"messages": [{"role": "user", "content": "hi"}], "tools": tools, "tool_choice": "required"}
    rendered = answered("render", model, "-", *flags, stdin=json.dumps(chat))
    assert "structural_tag" in rendered["sampling_params"]["structured_outputs"]
    output = 'a</think>\n\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    body = {
        "chat_request": {**chat, "tool_choice": "auto"},
        "generate_response": {"request_id": "r", "choices": [{"index": 0, "token_ids": list(output.encode())}]},
    }
    (choice,) = answered("derender", model, "-", *flags, stdin=json.dumps(body))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning"] == "a"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}


def test_json_lines(model: str) -> None:
    code, out, err = run("tokenize", model, "--jsonl", stdin='{"prompt": "a"}\n\n{"tokens": [98]}\n{"prompt": "c"}')
    assert (code, err) == (0, "")
    assert [json.loads(line).get("tokens", line) for line in out.splitlines()] == [[97], '{"prompt":"b"}', [99]]


def test_errors_are_envelopes_on_standard_error(model: str) -> None:
    code, out, err = run("tokenize", model, "--jsonl", stdin='{"prompt": "a"}\n{"prompt": 1}\n{"prompt": "c"}\n')
    assert code == 1
    assert len(out.splitlines()) == 1
    assert json.loads(err)["error"]["param"] == "body.prompt"


@pytest.mark.parametrize(
    ("command", "body", "message"),
    [
        ("derender", '{"prompt": "x"}', "the body is a CompletionRequest; this command takes DerenderChatRequest"),
        ("render", '{"generate_responses": []}', "the body is a DerenderCompletionRequest; this command takes Chat"),
        ("render", "{}", "Cannot find suitable handler"),
        ("render", "{", "body is not valid JSON"),
    ],
)
def test_a_body_of_another_kind_is_refused(model: str, command: str, body: str, message: str) -> None:
    code, out, err = run(command, model, stdin=body)
    assert (code, out) == (1, "")
    assert message in json.loads(err)["error"]["message"]


def test_what_is_missing_is_one_line(model: str, tmp_path: Path) -> None:
    code, out, err = run("render", model, str(tmp_path / "none.json"))
    assert (code, out, err) == (1, "", f"derender: cannot read {tmp_path / 'none.json'}: No such file or directory\n")
    code, out, err = run("render", str(tmp_path / "none"), stdin="{}")
    assert (code, out) == (1, "")
    assert err.startswith("derender: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tensor-parallel-size", "2"], "No such option: --tensor-parallel-size"),
        (["--gpu-memory-utilization=0.9"], "No such option: --gpu-memory-utilization"),
        (["--log-level", "loud"], "'loud' is not one of"),
        (["--stop-strings", "both"], "'both' is not one of engine, derender"),
        (["--max-model-len", "-5"], "is not a number of tokens"),
        (["--default-chat-template-kwargs", "[1]"], "is not a JSON object"),
        (["--ssl-keyfile", "x"], "TLS needs a certificate"),
        (["--model", "=x"], "is not NAME=PATH"),
        (["--model", "a=x", "--served-model-name", "y"], "each has its own name"),
        (["--api-key", ""], "a key must not be empty"),
        (["--workers", "0"], "Invalid value for '--workers'"),
    ],
)
def test_wrong_options_are_refused(model: str, arguments: list[str], message: str) -> None:
    code, out, err = run("serve", model, *arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.replace("│", " ").split())


def test_serve_needs_a_model() -> None:
    code, _, err = run("serve")
    assert code == 2
    assert "name a model to serve" in err


@pytest.mark.parametrize("flag", ["--tool-call-parser", "--reasoning-parser"])
def test_an_unknown_parser_is_one_line_with_those_that_are_known(model: str, flag: str) -> None:
    code, out, err = run("serve", model, flag, "herpes", "--port", "0")
    assert (code, out) == (1, "")
    assert f"{flag} herpes: no such output format; known are " in err
    assert "qwen3" in err
    assert err.count("\n") == 1


def test_generate_needs_its_file(tmp_path: Path) -> None:
    code, out, err = run("generate", str(tmp_path / "none.gguf"), "--host", "127.0.0.1", "--port", "0")
    assert (code, out) == (1, "")
    assert err == f"derender: {tmp_path / 'none.gguf'}: no such file\n"
    code, _, err = run("generate", "x.gguf", "--logprob-wire", "words")
    assert code == 2
    assert "'words' is not one of ids, placeholders" in " ".join(err.replace("│", " ").split())


def test_a_wrong_limit_is_one_line(model: str) -> None:
    code, out, err = run("render", model, stdin="{}", environment={"VLLM_MAX_N_SEQUENCES": "many"})
    assert (code, out) == (1, "")
    assert err == "derender: VLLM_MAX_N_SEQUENCES must be a positive integer, not 'many'\n"


# ------------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize(
    ("text", "number"), [("8192", 8192), ("32k", 32000), ("32K", 32768), ("1.5k", 1500), ("1M", 1048576)]
)
def test_lengths(text: str, number: int) -> None:
    assert cli_options.length(text) == number


@pytest.mark.parametrize("text", ["", "k", "0", "-1", "x", "1.5", "nank", "infk"])
def test_wrong_lengths(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        cli_options.length(text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("serve M --served-model-name a b --port 1", "serve M --served-model-name a --served-model-name b --port 1"),
        ("serve --served-model-name a M", "serve --served-model-name a M"),
        ("serve --model x=M --api-key a b", "serve --model x=M --api-key a --api-key b"),
        ("serve M --max_model_len=4_0 --served_model_name a_b", "serve M --max-model-len=4_0 --served-model-name a_b"),
        ("serve M --port 1 2", "serve M --port 1 2"),
        ("render M a_b.json", "render M a_b.json"),
        ("", ""),
    ],
)
def test_arguments_are_taken_as_vllm_does(before: str, after: str) -> None:
    assert cli_options.spread(before.split()) == after.split()


def test_lists_by_repetition_or_as_json() -> None:
    assert cli_options.string_list(["a", '["b", "c"]']) == ("a", "b", "c")
    assert cli_options.string_list(None) == ()
    with pytest.raises(typer.BadParameter):
        cli_options.string_list(["[1]"])


def test_limits_come_from_the_environment() -> None:
    assert Limits.from_environment({}) == Limits(max_n_sequences=16384, max_completion_prompts=1024, max_stop_strings=4)
    assert Limits.from_environment({"VLLM_MAX_STOP_STRINGS": "9"}).max_stop_strings == 9
    with pytest.raises(ValueError, match="VLLM_MAX_COMPLETION_PROMPTS must be a positive integer, not '0'"):
        Limits.from_environment({"VLLM_MAX_COMPLETION_PROMPTS": "0"})


def test_a_hub_id_comes_from_the_hubs_cache(model: str, tmp_path: Path) -> None:
    """As huggingface_hub lays its cache out; offline, so that nothing else can serve it."""
    repository = tmp_path / "models--some--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0123abcd")
    shutil.copytree(model, repository / "snapshots" / "0123abcd")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)}
    code, out, err = run("tokenize", "some/tiny", stdin='{"prompt": "hi"}', environment=offline)
    assert (code, err) == (0, "")
    assert json.loads(out)["tokens"] == [104, 105]
    code, out, err = run("tokenize", "some/other", stdin='{"prompt": "hi"}', environment=offline)
    assert (code, out) == (1, "")
    assert "some/other: not a local directory, and not to be had from the hub" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gateway", "./none"), "no such file or directory"),
        (("gateway", "org/model"), "name one with --engine URL"),
        (("gateway", "./m.gguf", "--log-prompts"), "give --access-log"),
        (("gateway", "m", "--engine", "localhost:8000"), "--engine"),
        (("gateway", "m", "--prefill", "http://h:1"), "--decode"),
    ],
)
def test_what_a_gateway_cannot_do_is_said_before_it_starts(arguments: tuple[str, ...], says: str) -> None:
    code, out, err = run(*arguments, "--port", "0")
    assert (code, out) == (2, "")
    assert says in " ".join(err.replace("│", " ").split())
