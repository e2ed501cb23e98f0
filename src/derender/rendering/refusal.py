"""Refusals in vLLM's words: upstream tests and clients look for the text and for its ending."""

from __future__ import annotations

from typing import Any

from derender.protocol.errors import BadRequest

_SHOWN = 8  # entries of a list that an error shows


def refuse(message: str, *, param: str | None = None, value: Any = None) -> BadRequest:
    """A BadRequest to raise, its message ended by ` (parameter=…, value=…)` as vLLM's VLLMValidationError ends."""
    ending = []
    if param is not None:
        ending.append(f"parameter={param}")
    if value is not None:
        ending.append(f"value={shown(value)}")
    return BadRequest(f"{message} ({', '.join(ending)})" if ending else message, param=param)


def shown(value: Any) -> str:
    """A value in a message: a long list by its first entries."""
    if isinstance(value, list) and len(value) > _SHOWN:
        return f"{str(value[:_SHOWN])[:-1]}, … {len(value)} in all]"
    return str(value)
