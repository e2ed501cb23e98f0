"""`canitoolcall probe` against a live gateway whose engine knows the right answers by heart."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from canitoolcall.probe import BUILTIN_SCENARIOS, EQUIVALENCE_CHECK, ProbeReport, Scenario, probe
from tests.e2e.client import Client
from tests.e2e.processes import DERENDER, servers
from tests.gateway.native_answers import FAMILIES, SAID, Family
from tests.gateway.scripted_engine import ScriptedEngine
from tests.server.live import running, wait_for
from tests.vocabularies import byte_level_json, real_directory

from derender.gateway.settings import EngineSpec, GatewaySettings
from derender.model import Model, ModelSettings
from derender.registry import ModelRegistry
from derender.server.app import AppSettings
from derender.server.gateway_app import GatewayAppSettings, build_gateway_app
from derender.server.http import App

NAME = "scripted"
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or () %}{{ c.function | tojson }}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: OPENED{% endif %}"
)
WARNED = (
    "forced-tool-choice",
    "finish_reason is 'stop' although tool calls were returned (OpenAI sends 'tool_calls')",
)
"""OpenAI sends it for calls that the model chose to make; where a function is named, vLLM and derender say `stop`."""

FOREIGN_ID, MISTRAL_ID = "call_probe_1", "callprobe"


def last_words(scenario: Scenario) -> str:
    """What a prompt of this scenario holds and no other does."""
    users = [message["content"] for message in scenario.messages if message["role"] == "user"]
    return "18, " if len(scenario.messages) > 1 else users[-1]


def scenario_of(prompt: str) -> str:
    found = [one.id for one in BUILTIN_SCENARIOS if last_words(one) in prompt.replace("\\", "")]
    assert len(found) == 1, (found, prompt)
    return found[0]


def engine_of(model: Model, family: Family, **options: Any) -> ScriptedEngine:
    def script(prompt: str, params: dict[str, Any]) -> str:
        asked = scenario_of(prompt)
        if asked == "forced-tool-choice" and family.tagged and options.get("constrains", True):
            assert "get_weather" in params["structured_outputs"]["structural_tag"]
        else:
            assert not params.get("structured_outputs")
        return family.write(SAID[asked])

    return ScriptedEngine(model.tokenizer, script, name=NAME, **options)


def made_model(directory: Path, family: Family) -> Path:
    """A model directory with a small vocabulary that has the family's markers."""
    tree = json.loads(byte_level_json())
    number = max([*tree["model"]["vocab"].values(), *(one["id"] for one in tree["added_tokens"])]) + 1
    known = {one["content"] for one in tree["added_tokens"]}
    for marker in family.tokens:
        if marker not in known:
            added = {**tree["added_tokens"][-1], "id": number, "content": marker, "special": False, "normalized": False}
            tree["added_tokens"].append(added)
            number += 1
    ids = {one["content"]: one["id"] for one in tree["added_tokens"]}
    for name, value in {
        "tokenizer.json": tree,
        "config.json": {"model_type": "llama", "max_position_embeddings": 8192, "eos_token_id": ids[family.end]},
        "tokenizer_config.json": {
            "eos_token": family.end,
            "chat_template": TEMPLATE.replace("OPENED", family.opened),
        },
    }.items():
        (directory / name).write_text(json.dumps(value))
    return directory


@contextmanager
def gateway(*pairs: tuple[Model, ScriptedEngine], **settings: Any) -> Iterator[str]:
    """A live gateway of models, each with an engine of its own; gives its address."""
    with ExitStack() as stack:
        specs = [
            EngineSpec(url=stack.enter_context(engine.served()), models=(model.names[0],)) for model, engine in pairs
        ]
        app = app_of([model for model, _ in pairs], specs, **settings)
        yield f"http://127.0.0.1:{stack.enter_context(running(app))}/v1"


def app_of(models: list[Model], engines: list[EngineSpec], **settings: Any) -> App:
    return build_gateway_app(
        ModelRegistry(models),
        settings=AppSettings(docs=False),
        gateway=GatewayAppSettings(gateway=GatewaySettings(**settings), engines=engines),
    )


def check(report: ProbeReport, family: Family, engine: ScriptedEngine) -> None:
    """All is right, and what came is what the engine was told to say."""
    assert not engine.failures, engine.failures
    bad = [(one.scenario_id, one.check, one.stream, one.detail) for one in report.outcomes if one.status != "pass"]
    assert not bad, bad
    assert {(one.scenario_id, told) for one in report.outcomes for told in one.warnings} == {WARNED}
    assert len(report.outcomes) == 3 * len(BUILTIN_SCENARIOS)
    for one in report.outcomes:
        if one.check == EQUIVALENCE_CHECK:
            continue
        said, seen = SAID[one.scenario_id], one.observed
        assert seen is not None
        assert [(call.name, call.arguments()) for call in seen.tool_calls] == [(n, dict(a)) for n, a in said.calls]
        assert (seen.content or "").lstrip() == said.told  # what a template has before it is kept
        assert (seen.reasoning_content or "").strip("\n") == (said.thought if family.thinks else "")
    assert len(engine.asked) == 2 * len(BUILTIN_SCENARIOS)


def mistral_ids(scenario: Scenario) -> Scenario:
    """Mistral's templates and mistral-common refuse ids of calls that are not of nine letters or digits."""
    messages = json.loads(json.dumps(scenario.messages).replace(FOREIGN_ID, MISTRAL_ID))
    return replace(scenario, messages=tuple(messages))


def loaded(path: Path, *, name: str = NAME, **settings: Any) -> Model:
    return Model.load(
        str(path),
        settings=ModelSettings(
            served_model_names=(name,), enable_auto_tool_choice=True, stop_strings="derender", **settings
        ),
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, ScriptedEngine]]]:
    """A gateway of all families, each with a small vocabulary of its own; its address, and the engines by family."""
    pairs = {}
    for name, family in FAMILIES.items():
        model = small_model(tmp_path_factory.mktemp("model"), family, name=name)
        pairs[name] = model, engine_of(model, family)
    with gateway(*pairs.values()) as url:
        yield url, {name: engine for name, (_, engine) in pairs.items()}


def small_model(directory: Path, family: Family, *, name: str = NAME) -> Model:
    path = made_model(directory, family)
    return loaded(path, name=name, tool_call_parser=family.parser, reasoning_parser=family.reasoning)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_all_scenarios_pass_with_a_small_vocabulary(small: tuple[str, dict[str, ScriptedEngine]], name: str) -> None:
    url, engines = small
    check(probe(url, name), FAMILIES[name], engines[name])


@pytest.mark.parametrize("name", list(FAMILIES))
def test_all_scenarios_pass_with_the_real_vocabulary(name: str) -> None:
    """The real template and vocabulary, from which the format is found out."""
    family = FAMILIES[name]
    vocabulary, _, mode = name.partition(", ")
    settings: dict[str, Any] = {"default_chat_template_kwargs": {"thinking": True}} if mode == "thinking" else {}
    model = loaded(real_directory(vocabulary), tool_call_parser="detect", reasoning_parser="detect", **settings)
    engine = engine_of(model, family)
    scenarios = [mistral_ids(one) if vocabulary.startswith("mistral") else one for one in BUILTIN_SCENARIOS]
    with gateway((model, engine)) as url:
        check(probe(url, NAME, scenarios=scenarios), family, engine)


def test_an_engine_without_constraints(tmp_path: Path) -> None:
    """A demanded call is refused; where the operator lets constraints go, the model is taken at its word."""
    family = FAMILIES["qwen3"]
    model = small_model(tmp_path, family)
    engine = engine_of(model, family, constrains=False)
    with gateway((model, engine)) as url:
        report = probe(url, NAME)
    bad = {one.scenario_id: one.detail for one in report.outcomes if one.status not in ("pass", "skip")}
    assert list(bad) == ["forced-tool-choice"]
    assert "HTTP 400" in bad["forced-tool-choice"]
    assert "structured_outputs: the engine cannot hold its output to a form" in bad["forced-tool-choice"]
    assert len(engine.asked) == 2 * len(BUILTIN_SCENARIOS) - 2
    engine = engine_of(model, family, constrains=False)
    with gateway((model, engine), unguided=True) as url:
        check(probe(url, NAME), family, engine)


def test_both_commands(tmp_path: Path) -> None:
    """`canitoolcall probe` against `derender gateway`, as one types them."""
    family = FAMILIES["qwen3"]
    directory = made_model(tmp_path, family)
    engine = engine_of(loaded(directory, tool_call_parser=family.parser), family)
    served = [
        str(directory),
        "--served-model-name",
        NAME,
        "--tool-call-parser",
        "hermes",
        "--reasoning-parser",
        "qwen3",
    ]
    with engine.served() as address:
        commands = {"gateway": [*DERENDER, "gateway", *served, "--engine", address]}
        with servers(commands, logs=tmp_path, patience=30) as running_servers:
            client: Client = running_servers["gateway"]
            wait_for(lambda: client.ask("GET", "/ready").status == 200)
            done = subprocess.run(
                [sys.executable, "-m", "canitoolcall", "probe", "--base-url", f"{client.url}/v1", "--model", NAME],
                capture_output=True,
                text=True,
                timeout=60,
            )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"summary: {3 * len(BUILTIN_SCENARIOS)} pass, 0 fail, 0 error, 0 skip" in done.stdout


def test_a_client_s_request_id_is_not_the_engine_s(tmp_path: Path) -> None:
    """vLLM takes X-Request-Id for the id to abort by, and clients may bring the same one: each request has its own."""
    model = small_model(tmp_path, FAMILIES["qwen3"])
    engine = engine_of(model, FAMILIES["qwen3"])
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with gateway((model, engine)) as url:
        port = int(url.removesuffix("/v1").rsplit(":", 1)[1])
        for stream in (False, True):
            asked = BUILTIN_SCENARIOS[0].request_body(NAME, stream=stream)
            reply = Client(port).ask(
                "POST", "/v1/chat/completions", asked, {"X-Request-Id": "twice", "traceparent": trace}
            )
            assert reply.status == 200
            assert "chatcmpl-twice" in str(reply.body)
    ids = [body["request_id"] for body in engine.asked]
    assert len(set(ids)) == 2
    assert all(one.startswith("chatcmpl-twice-") for one in ids)
    told = engine.headers[-2:]
    assert [one["traceparent"] for one in told] == [trace] * 2
    assert not any("x-request-id" in one for one in told)


def test_continuous_usage_is_told_from_the_first_event(small: tuple[str, dict[str, ScriptedEngine]]) -> None:
    url, engines = small
    asked = BUILTIN_SCENARIOS[0].request_body("qwen3", stream=True)
    asked["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    port = int(url.removesuffix("/v1").rsplit(":", 1)[1])
    events = list(Client(port).events("/v1/chat/completions", asked))
    prompt = len(engines["qwen3"].asked.pop()["token_ids"])
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    counts = [one["usage"]["completion_tokens"] for one in events]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert [one["usage"]["prompt_tokens"] for one in events] == [prompt] * len(events)
    assert all(one["usage"]["total_tokens"] == prompt + one["usage"]["completion_tokens"] for one in events)


def test_what_engines_can_do_is_not_known_before_one_is_up(tmp_path: Path) -> None:
    """No request is refused for good while there is nobody to serve it."""
    model = small_model(tmp_path, FAMILIES["qwen3"])
    asked = {"model": NAME, "messages": [{"role": "user", "content": "hello"}]}
    with running(app_of([model], [EngineSpec(url="http://127.0.0.1:1")])) as port:
        for fields in (
            {},
            {"response_format": {"type": "json_object"}},
            {"logprobs": True, "top_logprobs": 2},
            {"prompt_logprobs": 1},
            {"bad_words": ["a"]},
        ):
            reply = Client(port).ask("POST", "/v1/chat/completions", {**asked, **fields})
            assert reply.status == 503, fields
            assert reply.body["error"]["message"] == "no engine is up for this model"
            assert int(reply.headers["retry-after"]) > 0
