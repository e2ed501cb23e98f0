"""Does a template want a message's content as a string or as a list of parts?

The rule is vLLM's (`vllm/renderers/hf.py`, 0.32): a template that loops over the content of a message, over a variable
called `content`, or over a macro's parameter that a message's content is passed to, wants parts. It is found in the
syntax tree, without scopes. Where the tree has a shape that vLLM's search gives up on (a loop or an assignment of
messages to something other than one name), the answer is "string", as there.
"""

from __future__ import annotations

from typing import Literal

from jinja2 import nodes

__all__ = ["ContentFormat", "detect_content_format"]

ContentFormat = Literal["string", "openai", "parts", "exact"]
"""What a template wants: texts; lists of parts; or, for prompts made by code, what the request has, a text or its parts
("parts"), and also the arguments of calls as they were written ("exact"). No Jinja template is found to want the last
two."""


class _Unclear(Exception):
    """A target that is not one name."""


def detect_content_format(tree: nodes.Template) -> ContentFormat:
    """What the template of this syntax tree wants: "string", or "openai" (a list of `{"type", "text"}`)."""
    try:
        return "openai" if _loops_over_content(tree) else "string"
    except _Unclear:
        return "string"


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Is this the variable `name` (its entry `key`), whatever filters, tests and slices stand around it?"""
    while True:
        if isinstance(node, (nodes.Filter, nodes.Test)) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        ):
            node = node.node
        else:
            break
    if key is not None:
        if isinstance(node, nodes.Getitem):
            if not (isinstance(node.arg, nodes.Const) and node.arg.value == key):
                return False
        elif not (isinstance(node, nodes.Getattr) and node.attr == key):
            return False
        node = node.node
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _reads_any(node: nodes.Node | None, names: set[str], key: str | None = None) -> bool:
    return any(_reads(node, name, key) for name in names)


def _target(node: nodes.Node) -> str:
    if not isinstance(node, nodes.Name):
        raise _Unclear
    return node.name


def _aliases(tree: nodes.Template, name: str) -> set[str]:
    """`name` and all variables that it is assigned to, directly or through others."""
    found = {name}
    todo = [name]
    assignments = list(tree.find_all(nodes.Assign))
    while todo:
        current = todo.pop()
        for assignment in assignments:
            if _reads(assignment.node, current):
                target = _target(assignment.target)
                if target not in found:
                    found.add(target)
                    todo.append(target)
    return found


def _message_names(tree: nodes.Template) -> set[str]:
    """The loop variables that stand for one message."""
    lists = _aliases(tree, "messages")
    return {_target(loop.target) for loop in tree.find_all(nodes.For) if _reads_any(loop.iter, lists)}


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, messages: set[str]) -> set[str]:
    """The parameters of a macro that some call gives a message's content to."""
    names = [argument.name for argument in macro.args]
    found: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        found.update(
            name for name, value in zip(names, call.args, strict=False) if _reads_any(value, messages, "content")
        )
        found.update(
            word.key for word in call.kwargs if word.key in names and _reads_any(word.value, messages, "content")
        )
    return found


def _loops_over_content(tree: nodes.Template) -> bool:
    messages = _message_names(tree)
    parameters: dict[int, set[str]] = {}  # id of a loop inside a macro -> parameters that hold content
    for macro in tree.find_all(nodes.Macro):
        names = _content_parameters(tree, macro, messages)
        for loop in macro.find_all(nodes.For):
            if names or id(loop) not in parameters:
                parameters[id(loop)] = names
    for loop in tree.find_all(nodes.For):
        over = loop.iter.name if isinstance(loop.iter, nodes.Name) else None
        inside = parameters.get(id(loop))
        if (
            _reads_any(loop.iter, messages, "content")
            or (inside is not None and over in inside)
            or (inside is None and over == "content")
        ):
            _target(loop.target)
            return True
    return False
