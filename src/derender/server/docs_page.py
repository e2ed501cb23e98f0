"""`/openapi.json`, and the same as one HTML page that needs no script and no other host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from typing import Any

from derender.protocol.codec import encode
from derender.server.messages import Request, Response, Route

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --code: ui-monospace, Menlo, Consolas, monospace }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { margin-bottom: 0 } h2 { margin-top: 2.5rem }
code, td:first-child { font-family: var(--code); font-size: .9em }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; padding: .5rem .8rem }
details:target { outline: 2px solid } summary { cursor: pointer }
.method { display: inline-block; min-width: 3.2rem; font: 700 .8em var(--code) }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
td, th { text-align: left; vertical-align: top; border-top: 1px solid var(--line); padding: .25rem .6rem .25rem 0 }
th { border: 0; font-weight: 600 } .soft { opacity: .7 }
"""


def docs_routes(routes: Sequence[Route], *, root_path: str) -> list[Route]:
    """The routes that describe `routes` and themselves. The document is built when it is first asked for."""

    @cache
    def document() -> dict[str, Any]:
        from derender.server.openapi import build_document

        return build_document([*routes, *own], root_path=root_path)

    @cache
    def body() -> bytes:
        return encode(document())

    @cache
    def page() -> bytes:
        return render_page(document()).encode()

    async def openapi(_: Request) -> Response:
        return Response(body())

    async def docs(_: Request) -> Response:
        return Response(page(), content_type=b"text/html; charset=utf-8")

    own = [Route("GET", "/openapi.json", openapi), Route("GET", "/docs", docs), Route("GET", "/redoc", docs)]
    return own


def render_page(document: dict[str, Any]) -> str:
    """An OpenAPI document as HTML."""
    info = document["info"]
    paths = "".join(
        _route(method, path, described)
        for path, methods in document["paths"].items()
        for method, described in methods.items()
    )
    schemas = "".join(_schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items()))
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>{escape(info['title'])} {escape(info['version'])}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])} <span class=soft>{escape(info['version'])}</span></h1>"
        f"<p>{escape(info['description'])} <a href='openapi.json'>openapi.json</a></p>"
        f"<h2>Routes</h2>{paths}<h2>Schemas</h2>{schemas}</body></html>"
    )


def _route(method: str, path: str, described: dict[str, Any]) -> str:
    body = described.get("requestBody")
    asked = f"<p>Body: {_content(body['content'])}</p>" if body else ""
    answers = "".join(
        f"<tr><td>{status}</td><td>{escape(answer['description'])}</td>"
        f"<td>{_content(answer.get('content', {}))}</td></tr>"
        for status, answer in described["responses"].items()
    )
    return (
        f"<details><summary><span class=method>{method.upper()}</span> <code>{escape(path)}</code> "
        f"<span class=soft>{escape(described['summary'])}</span></summary>{asked}"
        f"<table><tr><th>Status</th><th></th><th>Answer</th></tr>{answers}</table></details>"
    )


def _content(content: dict[str, Any]) -> str:
    return ", ".join(
        f"{_type(described['schema'])} <span class=soft>{escape(media)}</span>" for media, described in content.items()
    )


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = "".join(
        f"<tr><td>{escape(field)}</td><td>{_type(described)}</td><td>{_default(field, described, required)}</td></tr>"
        for field, described in schema.get("properties", {}).items()
    )
    about = f"<p>{escape(schema['description'])}</p>" if "description" in schema else ""
    return (
        f"<details id='{escape(name)}'><summary><code>{escape(name)}</code></summary>{about}"
        f"<table><tr><th>Field</th><th>Type</th><th>Default</th></tr>{rows}</table></details>"
    )


def _default(field: str, described: dict[str, Any], required: Sequence[str]) -> str:
    if field in required:
        return "<span class=soft>required</span>"
    return f"<code>{escape(encode(described['default']).decode())}</code>" if "default" in described else ""


def _type(schema: Any) -> str:
    """A schema in one line."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href='#{name}'>{name}</a>"
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " | ".join(_type(one) for one in schema[union])
    if "enum" in schema:
        return " | ".join(f"<code>{escape(encode(value).decode())}</code>" for value in schema["enum"])
    if "const" in schema:
        return f"<code>{escape(encode(schema['const']).decode())}</code>"
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {_type(schema['items'])}" if schema.get("items") else "array"
    if kind == "object" and schema.get("additionalProperties"):
        inner = schema["additionalProperties"]
        return f"map of {_type(inner)}" if isinstance(inner, dict) else "object"
    bounds = "".join(
        f" {sign} {schema[bound]}" for bound, sign in (("minimum", "≥"), ("maximum", "≤")) if bound in schema
    )
    return escape(f"{kind}{bounds}")
