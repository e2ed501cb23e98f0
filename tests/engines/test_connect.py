"""Which client an address gets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from tests.engines.llama_stand_in import LlamaStandIn
from tests.engines.sglang_stand_in import SglangStandIn, serving

from derender.engines.connect import connect
from derender.engines.errors import EngineFailed
from derender.engines.http import EngineHttp


def tokens_app(status: int) -> web.Application:
    """A server that has the token protocol's route and answers with a status."""

    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "token_ids: missing", "code": status}}, status=status)

    app = web.Application()
    app.router.add_post("/inference/v1/generate", refuse)
    return app


def kind_at(app: web.Application, **told: Any) -> str:
    async def inside() -> str:
        async with serving(app) as url:
            engine: Any = await connect(url, **told)
            await engine.aclose()
            return str(engine.kind)

    return asyncio.run(asyncio.wait_for(inside(), 10))


@pytest.mark.parametrize(
    ("app", "kind"),
    [
        (lambda: tokens_app(400), "vllm"),
        (lambda: tokens_app(422), "vllm"),
        (SglangStandIn().app, "sglang"),
        (SglangStandIn(new_routes=True).app, "sglang"),
        (LlamaStandIn().app, "llamacpp"),
    ],
)
def test_an_engine_is_known_by_its_routes(app, kind):
    assert kind_at(app()) == kind


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp"])
def test_a_named_kind_is_taken_without_asking(kind):
    assert kind_at(web.Application(), kind=kind) == kind


def test_a_server_that_is_no_engine_is_told_as_such():
    with pytest.raises(EngineFailed, match="no engine that is known") as failure:
        kind_at(web.Application())
    assert not failure.value.begun


def test_an_engine_that_is_not_ready_is_not_taken_for_another():
    with pytest.raises(EngineFailed, match="too much to do"):
        kind_at(tokens_app(503))
    for status in (500, 401):  # the second: it does not take the key
        with pytest.raises(EngineFailed, match=f"status {status}"):
            kind_at(tokens_app(status))


def test_an_engine_that_is_not_up_is_a_failure():
    with pytest.raises(EngineFailed, match="e1 cannot be reached"):
        asyncio.run(connect("http://127.0.0.1:9", name="e1"))


@pytest.mark.parametrize(("url", "told"), [("127.0.0.1:9", {}), ("http://127.0.0.1:9", {"kind": "tgi"})])
def test_what_is_no_address_or_no_kind_is_told(url, told):
    with pytest.raises(ValueError, match="is no "):
        asyncio.run(connect(url, **told))


def test_the_key_goes_along():
    keys: list[str | None] = []

    async def models(request: web.Request) -> web.Response:
        keys.append(request.headers.get("Authorization"))
        return web.json_response({"data": []})

    async def inside() -> None:
        app = web.Application()
        app.router.add_get("/v1/models", models)
        async with serving(app) as url:
            engine = await connect(url, kind="vllm", api_key="secret")
            await engine.models()
            await engine.aclose()

    asyncio.run(inside())
    assert keys == ["Bearer secret"]


def test_a_password_in_an_address_is_not_in_what_is_said_of_it() -> None:
    assert EngineHttp("http://user:pw123@host:8000/base").url == "http://host:8000/base"
    assert EngineHttp("unix:/run/engine").url == "unix:/run/engine"
    with pytest.raises(ValueError, match="is no address") as caught:
        EngineHttp("ftp://user:pw123@host")
    assert "pw123" not in str(caught.value)
