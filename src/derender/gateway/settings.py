"""What an operator sets for a gateway: its engines, how one is chosen, and how long each step may take."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

Policy = Literal["least-loaded", "round-robin", "prefix"]
Role = Literal["any", "prefill", "decode"]
"""What an engine is asked for: everything, or one of the two steps of a split."""

EngineKind = Literal["auto", "vllm", "sglang", "llamacpp"]


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """One engine. `models`: the served models that it is for, by name; empty: all."""

    url: str
    kind: EngineKind = "auto"
    role: Role = "any"
    models: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)


_KEY = re.compile(r"[!-~]+")


def fault_of_url(url: str, /) -> str:
    """What is wrong with the address of an engine behind HTTP; empty where nothing is."""
    if url.startswith("unix:"):
        path = url.removeprefix("unix:")
        return "" if path.startswith("/") else "is no unix:/PATH with an absolute path"
    wanted = "is not of the form http://HOST:PORT, https://… or unix:/PATH"
    if not url.isprintable() or " " in url:
        return wanted
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return wanted
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return wanted
    return "has a query or a fragment" if "?" in url or "#" in url else ""


def fault_of_key(key: str | None, /) -> str:
    """What is wrong with an engine's key; empty where nothing is."""
    if key is None or _KEY.fullmatch(key):
        return ""
    return "the key is empty, or has more than printable ASCII without spaces"


def fault_of_both(url: str, key: str | None, /) -> str:
    """What is wrong with an address beside that key; empty where nothing is."""
    if key is not None and "@" in url.partition("://")[2].partition("/")[0]:
        return "has a user in it, and there is a key; the engine can be told only one"
    return ""


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """How engines are watched and chosen. Times are seconds.

    `concurrency`: requests that one engine is given at once, more wait here; 0: as many as come. `queue`: how many may
    wait, `queue_seconds` for how long. `failures` in a row open an engine's circuit for `cooldown_seconds`, after which
    one request or a probe may try it again.
    """

    policy: Policy = "least-loaded"
    concurrency: int = 0
    queue: int = 1024
    queue_seconds: float = 30.0
    probe_seconds: float = 5.0
    failures: int = 3
    cooldown_seconds: float = 10.0
    prefix_tokens: int = 256


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    """The loop's limits. Times are seconds.

    `first_seconds`: until an engine's first token (its own queue counts); `between_seconds`: between two chunks;
    `total_seconds`: for a whole answer. `keepalive_seconds`: how long a stream's client hears nothing before it gets a
    comment. `retries`: how often a request that failed before its first token is tried on another engine.
    `max_running`: requests in work at once; more are refused.
    """

    pool: PoolSettings = PoolSettings()
    first_seconds: float = 600.0
    between_seconds: float = 60.0
    total_seconds: float = 3600.0
    keepalive_seconds: float = 15.0
    retries: int = 2
    max_running: int = 4096
    unguided: bool = False
    """Whether a constraint on the output may be left out where the engine knows none."""
