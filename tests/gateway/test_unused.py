"""Engines that would never be given anything."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.gateway.fakes import spec
from tests.gateway.under_test import registry

from derender.cli_gateway import _specs
from derender.gateway.settings import EngineSpec, GatewaySettings
from derender.gateway.unused import by_first_name, unused
from derender.server.app import AppSettings
from derender.server.gateway_app import GatewayAppSettings, build_gateway_app
from derender.settings import ModelSettings

NAMES = (("x", "alias"), ("y",))
NO_DECODE = "is never used: its models have no engine for decode"
NO_PREFILL = "is never used: its models have no engine for prefill"
SPLIT = "is never used: its models have engines for prefill and for decode"


def test_any_name_of_a_model_is_that_model() -> None:
    specs = [spec("a", models=("alias", "x", "y")), spec("b"), spec("c", models=("z",))]
    assert [one.models for one in by_first_name(specs, names=NAMES)] == [("x", "y"), (), ("z",)]


@pytest.mark.parametrize(
    ("specs", "found"),
    [
        ([], {}),
        ([spec("a"), spec("b", models=("x",))], {}),
        ([spec("a", models=("z",))], {"a": "is for 'z', which is not served; served: x, alias, y"}),
        ([spec("a", models=("x", "z"))], {"a": "is for 'z', which is not served; served: x, alias, y"}),
        ([spec("p", role="prefill"), spec("d", role="decode")], {}),
        ([spec("p", role="prefill")], {"p": NO_DECODE}),
        ([spec("p", role="prefill"), spec("d", role="decode"), spec("a")], {"a": SPLIT}),
        ([spec("p", role="prefill", models=("x",)), spec("d", role="decode"), spec("a")], {}),
        (
            [spec("p", role="prefill", models=("x",)), spec("d", role="decode"), spec("a", models=("x",))],
            {"a": SPLIT},
        ),
        (
            [spec("p", role="prefill", models=("x",)), spec("d", role="decode", models=("y",))],
            {"p": NO_DECODE, "d": NO_PREFILL},
        ),
    ],
)
def test_what_is_unused(specs: list[EngineSpec], found: dict[str, str]) -> None:
    assert {one.url[7:8]: what for one, what in unused(specs, names=NAMES)} == found


# ------------------------------------------------------------------------------------------------------- flags


def flags(**given: Any) -> tuple[EngineSpec, ...]:
    defaults = {"engine_kind": "auto", "engine_api_key": None, "engines_file": None}
    lists = dict.fromkeys(("engine", "prefill", "decode"), ())
    served = [(path, ModelSettings(served_model_names=names)) for path, names in (("/m/x", NAMES[0]), ("y", ()))]
    return _specs({**defaults, **lists, **given}, served)


def refused(**given: Any) -> str:
    with pytest.raises(typer.BadParameter) as error:
        flags(**given)
    return f"{error.value.param_hint}: {error.value.message}"


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("http://", "is not of the form"),
        ("http://127.0.0.1:99999", "is not of the form"),
        ("http://127.0.0.1:0", "is not of the form"),
        ("127.0.0.1:8000", "is not of the form"),
        ("embedded:/m.gguf", "is not of the form"),
        ("http://a:1/x?y=1", "has a query or a fragment"),
        ("unix:relative/path", "is no unix:/PATH with an absolute path"),
    ],
)
@pytest.mark.parametrize("name", ["", "x="])
def test_addresses_of_flags_are_checked_as_those_of_the_file(url: str, fault: str, name: str) -> None:
    assert fault in refused(engine=[name + url])
    assert refused(prefill=[name + url], decode=["http://b:1"]).startswith("--prefill: ")


def test_keys_of_flags_are_checked_as_those_of_the_file() -> None:
    assert flags(engine=["http://a:1"], engine_api_key=" k\n")[0].api_key == "k"
    assert refused(engine=["http://a:1"], engine_api_key="a b").startswith("--engine-api-key: the key is empty, or")
    told = refused(engine=["http://u:s3cret@a:1"], engine_api_key="k")
    assert "has a user in it, and there is a key" in told
    assert "s3cret" not in told


def test_names_of_flags_are_served_ones() -> None:
    assert [one.models for one in flags(engine=["x=http://a:1", "alias=http://b:1", "http://c:1"])] == [
        ("x",), ("alias",), (),
    ]  # fmt: skip
    assert refused(engine=["z=http://a:1"]) == (
        "--engine: http://a:1 is for 'z', which is not served; served: x, alias, y"
    )


def test_one_address_for_two_models_is_one_engine() -> None:
    one, other = flags(engine=["x=http://a:1", "y=http://a:1", "x=http://a:1", "y=http://b:1"])
    assert (one.models, other.models) == (("x", "y"), ("y",))
    [one] = flags(engine=["x=http://a:1", "http://a:1"])
    assert one.models == ()


def test_flags_of_a_split() -> None:
    split = {"prefill": ["x=http://p:1"], "decode": ["x=http://d:1"]}
    assert [one.role for one in flags(**split, engine=["http://a:1"])] == ["any", "prefill", "decode"]
    assert refused(**split, engine=["x=http://a:1"]) == f"--engine: http://a:1 {SPLIT}"
    assert refused(prefill=["http://p:1"], decode=["http://d:1"], engine=["http://a:1"]).startswith("--engine: ")
    assert refused(prefill=["x=http://p:1"], decode=["y=http://d:1"]) == f"--prefill: http://p:1 {NO_DECODE}"


# -------------------------------------------------------------------------------------------------------- file


def test_a_file_is_told_of_at_the_start_and_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "engines.toml"
    wrong = '[[engine]]\nurl = "http://127.0.0.1:{port}"\nmodels = ["z"]\n'
    file.write_text(wrong.format(port=1))

    async def main() -> None:
        app = build_gateway_app(
            registry(),
            settings=AppSettings(docs=False),
            gateway=GatewayAppSettings(gateway=GatewaySettings(), engines_file=str(file)),
        )
        sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        life = asyncio.ensure_future(app({"type": "lifespan"}, heard.get, sent.put))
        await heard.put({"type": "lifespan.startup"})
        assert (await sent.get())["type"] == "lifespan.startup.complete"
        new = tmp_path / "new"
        new.write_text(wrong.format(port=2) + '[[engine]]\nurl = "http://127.0.0.1:3"\nrole = "decode"\n')
        new.replace(file)
        for _ in range(100):
            if "http://127.0.0.1:3" in caplog.text:
                break
            await asyncio.sleep(0.05)
        await heard.put({"type": "lifespan.shutdown"})
        await life

    with caplog.at_level(logging.WARNING, logger="derender.gateway"):
        asyncio.run(main())
    assert [message for message in caplog.messages if "is down" not in message] == [
        "engine http://127.0.0.1:1 is for 'z', which is not served; served: tiny",
        "engine http://127.0.0.1:2 is for 'z', which is not served; served: tiny",
        f"engine http://127.0.0.1:3 (decode) {NO_PREFILL}",
    ]
