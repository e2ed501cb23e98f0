"""Jinja's immutable sandbox, with a short way for what chat templates do all the time.

The short way answers just what the base class would: attributes of a plain dict that no dict has are its keys, those
of a namespace what was put there, and harmless methods of plain strings, lists, dicts and loops are handed out and
called. All else goes the long way, where the checks are. It takes two thirds off the cost of a short prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from copy import copy
from functools import cached_property
from typing import Any

import jinja2.compiler
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox
from jinja2.runtime import Context
from jinja2.utils import Namespace

_OF_DICT = frozenset(dir(dict))
_slot = object.__getattribute__
_PLAIN: frozenset[type] = frozenset((str, list, dict))
_BUILTIN_METHOD: Any = type("".join)
_FORMATS = frozenset(("format", "format_map"))  # the sandbox wraps these


def _harmless(kind: type, example: Any) -> set[tuple[type, str]]:
    return {
        (kind, name)
        for name in dir(kind)
        if not (name.startswith("_") or name in _FORMATS or jinja2.sandbox.modifies_known_mutable(example, name))
    }


_HARMLESS = frozenset(
    _harmless(str, "") | _harmless(list, []) | _harmless(dict, {}) | _harmless(jinja2.runtime.LoopContext, object())
)


class _Compiler(jinja2.compiler.CodeGenerator):
    """Writes the commonest case of an attribute, a key of a plain dict, into the template's own code."""

    def visit_Getattr(self, node: jinja2.nodes.Getattr, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        if node.attr in _OF_DICT:
            super().visit_Getattr(node, frame)
            return
        # One name serves all: it is read right after it is set, and never again.
        key = repr(node.attr)
        self.write(f"(_of[{key}] if type(_of := ")
        self.visit(node.node, frame)
        self.write(f") is dict and {key} in _of else environment.getattr(_of, {key}))")


class _Context(Context):
    """A template's variables. What few filters ask for is made when they do."""

    def __init__(
        self,
        environment: jinja2.Environment,
        parent: dict[str, Any],
        name: str | None,
        blocks: dict[str, Callable[[Context], Iterator[str]]],
        globals: MutableMapping[str, Any] | None = None,
    ) -> None:
        self.parent = parent
        self.vars = {}
        self.environment = environment
        self.exported_vars = set()
        self.name = name
        self.globals_keys = set() if globals is None else set(globals)
        self.blocks = {key: [block] for key, block in blocks.items()} if blocks else {}

    @cached_property
    def eval_ctx(self) -> jinja2.nodes.EvalContext:  # type: ignore[override]
        return jinja2.nodes.EvalContext(self.environment, self.name)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """`ImmutableSandboxedEnvironment`, faster."""

    code_generator_class: type[jinja2.compiler.CodeGenerator] = _Compiler
    context_class = _Context

    def compile(
        self,
        source: Any,
        name: str | None = None,
        filename: str | None = None,
        raw: bool = False,
        defer_init: bool = False,
    ) -> Any:
        """What the base class compiles compiles here. The short way nests twice as deep for `a.b.c`, and Python takes
        no more than 200 parentheses within each other; so what does not compile is tried again without it."""
        try:
            return super().compile(source, name, filename, raw, defer_init)  # type: ignore[call-overload]
        except (SyntaxError, RecursionError, MemoryError):
            plain = copy(self)
            plain.code_generator_class = jinja2.compiler.CodeGenerator
            return super(Sandbox, plain).compile(source, name, filename, raw, defer_init)  # type: ignore[call-overload]

    def getattr(self, obj: Any, attribute: str) -> Any:
        """An attribute as a template sees it."""
        kind = type(obj)
        if kind is dict and attribute not in _OF_DICT:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        if (kind, attribute) in _HARMLESS:
            return getattr(obj, attribute)
        if kind is Namespace and not attribute.startswith("_"):
            value = _slot(obj, "_Namespace__attrs").get(attribute)
            if value is not None and type(value) is not _BUILTIN_METHOD:
                return value
        return super().getattr(obj, attribute)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """What a template's call of `obj` gives."""
        if obj is Namespace or (type(obj) is _BUILTIN_METHOD and type(obj.__self__) in _PLAIN):
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return obj(*args, **kwargs)
        return super().call(context, obj, *args, **kwargs)
