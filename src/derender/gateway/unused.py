"""Engines that are listed but would never be given a request: what an operator wants to be told of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from derender.gateway.settings import EngineSpec

Names = Sequence[Sequence[str]]
"""The served models, each with all its names."""


def by_first_name(specs: Iterable[EngineSpec], /, *, names: Names) -> tuple[EngineSpec, ...]:
    """The specs with the first name of each model in place of any of its names. Names of no model stay."""
    first: Mapping[str, str] = {name: every[0] for every in reversed(names) for name in every}
    return tuple(
        replace(spec, models=tuple(dict.fromkeys(first.get(name, name) for name in spec.models))) for spec in specs
    )


def unused(specs: Iterable[EngineSpec], /, *, names: Names) -> list[tuple[EngineSpec, str]]:
    """The engines with something that is never used, and what that is.

    `specs` have first names (`by_first_name`). A model that has engines for prefill and for decode is split: engines
    for everything get nothing of it. One side alone gets nothing either.
    """
    every = list(specs) if names else []
    models = [one[0] for one in names]
    found: list[tuple[EngineSpec, str]] = []
    for spec in every:
        if lacking := [name for name in spec.models if name not in models]:
            served = ", ".join(name for one in names for name in one)
            found.append((spec, f"is for {', '.join(map(repr, lacking))}, which is not served; served: {served}"))
            if len(lacking) == len(spec.models):
                continue
        own = [model for model in models if _serves(spec, model)]
        split = [model for model in own if _has(every, model, "prefill") and _has(every, model, "decode")]
        if spec.role == "any" and split == own:
            found.append((spec, "is never used: its models have engines for prefill and for decode"))
        elif spec.role != "any" and not split:
            other = "decode" if spec.role == "prefill" else "prefill"
            found.append((spec, f"is never used: its models have no engine for {other}"))
    return found


def _has(specs: Iterable[EngineSpec], model: str, role: Literal["prefill", "decode"]) -> bool:
    return any(spec.role == role and _serves(spec, model) for spec in specs)


def _serves(spec: EngineSpec, model: str) -> bool:
    return not spec.models or model in spec.models
