"""Which of the engines that may take a request gets it."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

from derender.gateway.backends import Backend
from derender.gateway.settings import Policy

BLOCK = 16
"""Ids in one block of an engine's prefix cache (vLLM's default); what is less than a block is never found again."""

_SPREAD = 8
"""Requests by which an engine may be above twice the load of the others before a prefix goes elsewhere."""


class Chooser(Protocol):
    """One policy. Called for every request that is given to an engine, in the event loop."""

    def choose(self, model: str, backends: Sequence[Backend], token_ids: Sequence[int], /) -> Backend:
        """One of `backends`, which are never none."""


class LeastLoaded:
    """The less loaded of two engines drawn by chance.

    Taking the least loaded of all would send the requests of many gateways, each of which sees only its own load, to
    the same engine at the same time (Mitzenmacher, "The power of two choices in randomized load balancing", 2001).
    """

    def __init__(self, *, rng: random.Random | None = None) -> None:
        self._rng = random.Random() if rng is None else rng

    def choose(self, model: str, backends: Sequence[Backend], token_ids: Sequence[int], /) -> Backend:
        if len(backends) == 1:
            return backends[0]
        one, other = self._rng.sample(backends, 2)
        return one if one.running <= other.running else other


class RoundRobin:
    """Each engine of a model in turn, whatever comes and goes between."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def choose(self, model: str, backends: Sequence[Backend], token_ids: Sequence[int], /) -> Backend:
        last = self._last.get(model, -1)
        chosen = min(backends, key=lambda backend: (backend.number <= last, backend.number))
        self._last[model] = chosen.number
        return chosen


class Prefix:
    """Prompts that begin alike go to the same engine, which has their prefix in its cache.

    Rendezvous hashing over the engines' names: every process of every replica chooses the same one, and an engine that
    comes or goes moves only the prefixes that it gets or had. A prompt shorter than a block, and one whose engine has
    more than twice the mean load of the others and eight, goes to the least loaded.
    """

    def __init__(self, *, prefix_tokens: int = 256, rng: random.Random | None = None) -> None:
        self._tokens = max(BLOCK, prefix_tokens // BLOCK * BLOCK)
        self._least_loaded = LeastLoaded(rng=rng)

    def choose(self, model: str, backends: Sequence[Backend], token_ids: Sequence[int], /) -> Backend:
        length = min(len(token_ids) // BLOCK * BLOCK, self._tokens)
        if len(backends) == 1 or length == 0:
            return self._least_loaded.choose(model, backends, token_ids)
        key = blake2b(struct.pack(f"<{length}q", *token_ids[:length]), digest_size=16).digest()
        chosen = max(backends, key=lambda backend: blake2b(key + backend.name.encode(), digest_size=8).digest())
        others = sum(backend.running for backend in backends) - chosen.running
        if chosen.running > 2 * others / (len(backends) - 1) + _SPREAD:
            return self._least_loaded.choose(model, backends, token_ids)
        return chosen


def chooser(policy: Policy, /, *, prefix_tokens: int = 256, rng: random.Random | None = None) -> Chooser:
    """The policy of that name."""
    if policy == "round-robin":
        return RoundRobin()
    if policy == "prefix":
        return Prefix(prefix_tokens=prefix_tokens, rng=rng)
    return LeastLoaded(rng=rng)
