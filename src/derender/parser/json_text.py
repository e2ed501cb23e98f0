"""Small things about JSON text."""

from __future__ import annotations

import json
import math
from typing import Any


def quoted(text: str) -> str:
    """Text as a JSON string, characters kept as they are."""
    return json.dumps(text, ensure_ascii=False)


def is_json(text: str) -> bool:
    """Whether text is one JSON value, all its numbers finite."""
    try:
        json.loads(text, parse_constant=_refuse, parse_float=_finite, parse_int=len)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(text)
    return 0.0
