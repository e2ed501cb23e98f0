"""The request's tools in the shape that a chat template is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from derender.protocol.errors import BadRequest, InvalidBody

__all__ = ["normalize_tools"]


def normalize_tools(tools: Sequence[Any] | None) -> list[dict[str, Any]] | None:
    """Tools as vLLM's `tool.model_dump()` gives them, to the order of their keys.

    `type`, then `function` with name, description and parameters (null where missing), strict and defer_loading where
    set, then `defer_loading` where set. Other keys do not reach a template; the schemas in `parameters` are left
    alone. None stays None. Raises InvalidBody or BadRequest whose `param` names the place.
    """
    if tools is None:
        return None
    if not isinstance(tools, (list, tuple)):
        raise InvalidBody("tools must be a list", param="tools")
    if not tools:
        raise BadRequest(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.",
            param="tools",
        )
    return [_tool(tool, f"tools.{index}") for index, tool in enumerate(tools)]


def _tool(tool: Any, place: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise InvalidBody(f"{place} must be an object", param=place)
    if tool.get("type", "function") != "function":
        raise InvalidBody(f"{place}.type must be 'function'", param=f"{place}.type")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise InvalidBody(f"{place}.function must be an object", param=f"{place}.function")
    place += ".function"
    if not isinstance(function.get("name"), str):
        raise InvalidBody(f"{place}.name must be a string", param=f"{place}.name")
    inner = {
        "name": function["name"],
        "description": _typed(function, "description", str, "a string", place),
        "parameters": _typed(function, "parameters", dict, "an object", place),
    }
    if (strict := _typed(function, "strict", bool, "true or false", place)) is not None:
        inner["strict"] = strict
    outer = _typed(tool, "defer_loading", bool, "true or false", place.removesuffix(".function"))
    defer = _typed(function, "defer_loading", bool, "true or false", place)
    if defer is None:
        defer = outer
    if defer is not None:
        inner["defer_loading"] = defer
    result: dict[str, Any] = {"type": "function", "function": inner}
    if outer is not None:
        result["defer_loading"] = outer
    return result


def _typed(of: Mapping[str, Any], key: str, kind: type, called: str, place: str) -> Any:
    value = of.get(key)
    if value is not None and not isinstance(value, kind):
        raise InvalidBody(f"{place}.{key} must be {called}", param=f"{place}.{key}")
    return value
