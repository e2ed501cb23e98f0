"""`derender gateway`: the API in front of engines that know no text."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from derender import cli_options as option
from derender.cli_serve import load_registry, run_server, serve, serving

if TYPE_CHECKING:
    from derender.gateway.settings import EngineSpec, GatewaySettings, Role
    from derender.settings import ModelSettings

_FLAGS: Mapping[str, Role] = {"engine": "any", "prefill": "prefill", "decode": "decode"}
_ENGINES = "Engines"
_LIMITS = "Limits"


def _engines(*names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_ENGINES, **settings)


def _limits(*names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_LIMITS, **settings)


def _own(
    engine: Annotated[
        list[str] | None,
        _engines(metavar="[NAME=]URL", help="Engine, for the model of a name or for all. Repeatable."),
    ] = None,
    prefill: Annotated[
        list[str] | None, _engines(metavar="[NAME=]URL", help="Engine that makes prompts' caches. Repeatable.")
    ] = None,
    decode: Annotated[
        list[str] | None, _engines(metavar="[NAME=]URL", help="Engine that goes on from such caches. Repeatable.")
    ] = None,
    engines_file: Annotated[
        Path | None, _engines(metavar="FILE.toml", help="File of engines, read again when it changes.")
    ] = None,
    engine_kind: Annotated[str, _engines(help="What they are: auto, vllm, sglang or llamacpp.")] = "auto",
    engine_api_key: Annotated[
        str | None, _engines(envvar="DERENDER_ENGINE_API_KEY", show_envvar=True, help="Key that engines ask for.")
    ] = None,
    policy: Annotated[
        str, _engines(help="How one of several is chosen: least-loaded, round-robin or prefix.")
    ] = "least-loaded",
    unguided: Annotated[
        bool,
        _engines("--unguided", help="Leave out constraints that an engine cannot apply, instead of refusing them."),
    ] = False,
    engine_parallel: Annotated[int, _engines(min=1, help="Sequences at once of the embedded engine.")] = 8,
    engine_concurrency: Annotated[int, _limits(min=0, help="Requests that one engine is given at once; 0: all.")] = 0,
    max_queue: Annotated[int, _limits(min=0, help="Requests that may wait for an engine; more get 503.")] = 1024,
    queue_timeout: Annotated[float, _limits(min=0, help="Seconds that one may wait.")] = 30,
    max_running: Annotated[int, _limits(min=1, help="Requests in work at once; more get 503.")] = 4096,
    first_token_timeout: Annotated[float, _limits(min=0.1, help="Seconds until an engine's first token.")] = 600,
    token_timeout: Annotated[float, _limits(min=0.1, help="Seconds between two chunks of an engine.")] = 60,
    request_timeout: Annotated[float, _limits(min=0.1, help="Seconds for a whole answer.")] = 3600,
    keepalive: Annotated[float, _limits(min=0.1, help="Seconds after which a silent stream gets a comment.")] = 15,
    retries: Annotated[int, _limits(min=0, help="Other engines tried where one fails before its first token.")] = 2,
    probe_interval: Annotated[float, _limits(min=0.1, help="Seconds between two looks at an engine's health.")] = 5,
    engine_failures: Annotated[int, _limits(min=1, help="Failures in a row after which an engine is down.")] = 3,
    engine_cooldown: Annotated[float, _limits(min=0.1, help="Seconds until one that is down is tried again.")] = 10,
    otlp_traces_endpoint: Annotated[
        str | None, _limits(metavar="URL", help="Where traces go, as OTLP over HTTP; needs the extra otel.")
    ] = None,
    log_prompts: Annotated[bool, _limits("--log-prompts", help="Write what was asked into the access log.")] = False,
) -> None:
    """The options that only the gateway has."""


def gateway(**given: Any) -> None:
    """Serve the OpenAI API in front of engines that take and give token ids. A GGUF file alone serves itself."""
    from derender.server.gateway_app import GatewayAppSettings, build_gateway_app

    option.check_choices(policy=given["policy"], engine_kind=given["engine_kind"])
    if given["format_file"]:  # it stands for both parsers
        given.update({name: None for name in ("tool_call_parser", "reasoning_parser") if given[name] == "detect"})
    if given["log_prompts"] and not given["access_log"]:
        raise typer.BadParameter("is for the access log: give --access-log, too", param_hint="--log-prompts")
    served, settings = serving({**given, "access_log": False})
    specs = _specs(given, served)
    _check_file(given["engines_file"])
    if any(one.url.startswith("embedded:") for one in specs) and settings.workers > 1:
        raise typer.BadParameter("the embedded engine is in one process", param_hint="--workers")
    made = GatewayAppSettings(
        gateway=_settings(given),
        engines=specs,
        engines_file=str(given["engines_file"]) if given["engines_file"] else None,
        access_log=given["access_log"],
        log_prompts=given["log_prompts"],
        traces_endpoint=_traces(given["otlp_traces_endpoint"]),
        embedded_slots=given["engine_parallel"],
    )
    settings = replace(settings, build=partial(build_gateway_app, gateway=made))
    run_server(partial(load_registry, served), settings)


def _specs(given: dict[str, Any], served: Sequence[tuple[str, ModelSettings]]) -> tuple[EngineSpec, ...]:
    """The engines of the command line; the model's own file where there are none. Raises `typer.BadParameter`."""
    from derender.gateway.settings import EngineSpec

    key = _engine_key(given["engine_api_key"])
    found: dict[tuple[str, Role], EngineSpec] = {}
    for flag, role in _FLAGS.items():
        for text in given[flag] or ():
            name, url = _named_url(text)
            _check_url(url, key=key, flag=flag)
            before = found.get((url, role))
            models: tuple[str, ...] = (name,) if name is not None else ()
            if before is not None:  # one engine for several models, or for all
                models = tuple(dict.fromkeys((*before.models, *models))) if models and before.models else ()
            kind = given["engine_kind"]
            found[url, role] = EngineSpec(url=url, kind=kind, role=role, models=models, api_key=key)
    specs = list(found.values())
    if bool(given["prefill"]) != bool(given["decode"]):
        raise typer.BadParameter("a split needs both", param_hint="--prefill, --decode")
    _check_use(specs, served)
    if specs or given["engines_file"]:
        return tuple(specs)
    for path, model in served:
        if path.startswith((".", "/", "~")) and not Path(path).expanduser().exists():
            raise typer.BadParameter(f"{path}: no such file or directory", param_hint="MODEL")
        if not path.endswith(".gguf"):
            raise typer.BadParameter(
                f"{path} has no engine: name one with --engine URL (a GGUF file has one embedded)",
                param_hint="--engine",
            )
        specs.append(EngineSpec(url=f"embedded:{path}", models=model.served_model_names or (path,)))
    return tuple(specs)


def _traces(endpoint: str | None) -> str | None:
    """The address for traces. Raises `typer.BadParameter` where nothing is there to write them."""
    if endpoint is not None:
        from derender.server.tracing import TracingUnavailable, check_packages

        try:
            check_packages()
        except TracingUnavailable as error:
            raise typer.BadParameter(str(error), param_hint="--otlp-traces-endpoint") from None
    return endpoint


def _check_file(path: Path | None) -> None:
    """Raises `typer.BadParameter` for a file of engines that cannot be used, before any model is loaded."""
    if path is None:
        return
    from derender.gateway.engines_file import EnginesFileError, load_engines

    try:
        load_engines(path)
    except EnginesFileError as error:
        raise typer.BadParameter(str(error), param_hint="--engines-file") from None


def _engine_key(key: str | None) -> str | None:
    """The key of `--engine-api-key`: a secret that comes out of a file has a newline. Raises `typer.BadParameter`."""
    from derender.gateway.settings import fault_of_key

    key = key and key.strip()
    if fault := fault_of_key(key):
        raise typer.BadParameter(fault, param_hint="--engine-api-key")
    return key


def _check_url(url: str, *, key: str | None, flag: str) -> None:
    """Raises `typer.BadParameter` for an address at which no engine can be."""
    from derender.gateway.backends import engine_name
    from derender.gateway.settings import fault_of_both, fault_of_url

    if fault := fault_of_url(url) or fault_of_both(url, key):
        raise typer.BadParameter(f"{engine_name(url)!r} {fault}", param_hint=f"--{flag}")


def _check_use(specs: Sequence[EngineSpec], served: Sequence[tuple[str, ModelSettings]]) -> None:
    """Raises `typer.BadParameter` for an engine that would never be given anything."""
    from derender.gateway.backends import engine_name
    from derender.gateway.unused import by_first_name, unused

    names = [model.served_model_names or (path,) for path, model in served]
    for spec, what in unused(by_first_name(specs, names=names), names=names):
        flag = next(flag for flag, role in _FLAGS.items() if role == spec.role)
        raise typer.BadParameter(f"{engine_name(spec.url)} {what}", param_hint=f"--{flag}")


def _named_url(text: str) -> tuple[str | None, str]:
    """NAME=URL or URL: an address may have an = behind its scheme."""
    name, equals, url = text.partition("=")
    return (name, url) if equals and "://" not in name and not name.startswith("unix:") else (None, text)


def _settings(given: dict[str, Any]) -> GatewaySettings:
    from derender.gateway.settings import GatewaySettings, PoolSettings

    return GatewaySettings(
        pool=PoolSettings(
            policy=given["policy"],
            concurrency=given["engine_concurrency"],
            queue=given["max_queue"],
            queue_seconds=given["queue_timeout"],
            probe_seconds=given["probe_interval"],
            failures=given["engine_failures"],
            cooldown_seconds=given["engine_cooldown"],
        ),
        first_seconds=given["first_token_timeout"],
        between_seconds=given["token_timeout"],
        total_seconds=given["request_timeout"],
        keepalive_seconds=given["keepalive"],
        retries=given["retries"],
        max_running=given["max_running"],
        unguided=given["unguided"],
    )


_DEFAULTS = {
    "stop_strings": "derender",
    "tool_call_parser": "detect",
    "reasoning_parser": "detect",
    "enable_auto_tool_choice": True,
}
"""What the gateway takes where `serve` takes something else: engines see no text, and an answer is to be read."""


def _signature() -> inspect.Signature:
    """`serve`'s options and those above."""
    params = [
        one.replace(default=_DEFAULTS.get(one.name, one.default), kind=inspect.Parameter.KEYWORD_ONLY)
        for one in (
            *inspect.signature(serve, eval_str=True).parameters.values(),
            *inspect.signature(_own, eval_str=True).parameters.values(),
        )
    ]
    return inspect.Signature(params)


gateway.__signature__ = _signature()  # type: ignore[attr-defined]
