"""Which control tokens of a prompt its template wrote itself.

A template's own constants are marked, not the texts that it is given: in a copy of the template each character of a
control token that stands in a constant is another character, one that no request has. What the copy renders is the
same prompt with the template's own control tokens in marked characters, whatever the template does with the texts
(escapes, slices, comparisons, keys). This is positive tainting (Halfond, Orso and Manolios, WASP, 2006).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jinja2.nodes as n
from jinja2 import pass_context
from jinja2.runtime import Context

from derender.protocol.errors import BadRequest
from derender.template.jinja import ChatTemplate, TemplateBroken, compile_template, parse_template
from derender.template.trie import any_of

_FIRST, _LAST = 0x10F000, 0x10FFFD
MARKED = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]+")
"""Marked characters: the last private ones of Unicode."""

_MARKED_BYTES = b"\xf4\x8f"  # how they begin in UTF-8, and few others
_WHOLE = frozenset(("d", "default", "safe", "string", "trim"))  # filters that look at no character but blanks
_LOOKING = frozenset(
    {
        "capitalize", "count", "e", "escape", "filesizeformat", "float", "forceescape", "format", "int", "length",
        "lower", "pprint", "striptags", "title", "truncate", "upper", "urlencode", "urlize", "wordcount", "wordwrap",
        "xmlattr",
    }
)  # fmt: skip
"""Filters of whose text nothing is marked."""

_WRITING = frozenset(("d", "default", "indent", "join", "replace"))
"""Filters that write their arguments."""

_OF_TEXT = frozenset(
    {
        "endswith", "find", "lstrip", "partition", "removeprefix", "removesuffix", "rfind", "rpartition", "rsplit",
        "rstrip", "split", "startswith", "strip",
    }
)  # fmt: skip
_SEARCHING = _OF_TEXT | {"count", "get", "index", "pop", "rindex"}
"""Methods whose arguments are looked for."""

_ESCAPED = re.compile(rb"\\u[dD][bB][fF][c-fC-F]")
_WORKED_ON = (
    "the chat template works on its own control tokens in a way that does not go with --guard-special-tokens for "
    "these messages"
)
_COMPARING = frozenset(("==", "eq", "equalto", "in", "ne", "!="))
_PERCENT, _BRACES = re.compile(r"(%(?:\([^)]*\))?[-+ #0-9.]*[a-zA-Z%])"), re.compile(r"(\{\{|\}\}|\{[^{}]*\})")
_SHOWN, _SEARCH = "own_text_shown", "own_text_search"  # what a marked template calls
_REFUSING = frozenset(("raise_exception", "strftime_now", "range"))


class OwnText:
    """The marks for one set of control tokens. Immutable.

    Raises ValueError for tokens of more different characters than there are marks.
    """

    def __init__(self, controls: Collection[str]) -> None:
        self.controls = sorted(controls)
        characters = sorted(set("".join(self.controls)))
        if len(characters) > _LAST - _FIRST + 1:
            raise ValueError(f"the control tokens have {len(characters)} different characters")
        self.blank = any(one.isspace() for one in characters)
        pairs = [(one, chr(_FIRST + number)) for number, one in enumerate(characters)]
        self._mark = str.maketrans(dict(pairs))
        self._show = str.maketrans({mark: one for one, mark in pairs})
        self.spelled = any_of(self.controls)
        self._joined = "\0" + "\0".join(self.controls) + "\0"
        self._marked = frozenset(one.translate(self._mark) for one in self.controls)
        self._firsts = {one[0] for one in self.controls}
        self._lasts = {one[-1] for one in self.controls}
        self._own = any_of(self._marked)
        self.longest = max(map(len, self.controls), default=0)

    def mark(self, text: str) -> str:
        """A constant with its control tokens marked, and what of it may be part of one: it may stand within one, such
        as `im_end`, or begin or end one."""
        if 0 < len(text) <= self.longest and text in self._joined:
            return text.translate(self._mark)
        ends = range(min(len(text), self.longest) - 1, 0, -1)
        joined, firsts, lasts = self._joined, self._firsts, self._lasts
        begun = next((size for size in ends if text[-size] in firsts and f"\0{text[-size:]}" in joined), 0)
        ended = next((size for size in ends if text[size - 1] in lasts and f"{text[:size]}\0" in joined), 0)
        text = self.mark_whole(text)
        rest = max(len(text) - begun, ended)
        return text[:ended].translate(self._mark) + text[ended:rest] + text[rest:].translate(self._mark)

    def owns(self, text: str) -> bool:
        """Whether a piece of a marked prompt is a control token that the template wrote."""
        return text in self._marked

    def mark_whole(self, text: str) -> str:
        """A text with the control tokens marked that it has as a whole."""
        return self.spelled.sub(lambda found: found[0].translate(self._mark), text)

    def mark_all(self, text: str) -> str:
        """A text with all its characters marked that have marks."""
        return text.translate(self._mark)

    def written(self, text: str, start: int, end: int) -> Iterator[re.Match[str]]:
        """The template's own control tokens that begin in a stretch of a marked prompt."""
        return self._own.finditer(text, start, end + self.longest)

    def show(self, text: str, *, common: Collection[tuple[str, str]] = ()) -> str:
        """A text with its own characters in place of marked ones. `common`: control tokens that it is likely to have,
        marked and not: a pattern takes ten times as long for a long text."""
        for marked, own in common:
            if text.isascii():
                break
            text = text.replace(marked, own)
        if text.isascii() or _MARKED_BYTES not in text.encode("utf-8", "surrogatepass"):
            return text
        return MARKED.sub(lambda found: found[0].translate(self._show), text)

    def shown(self, value: Any) -> Any:
        """A value of a template, a text or a list of texts with their own characters."""
        if type(value) is str:
            return self.show(value)
        if type(value) in (list, tuple) and any(type(one) is str and not one.isascii() for one in value):
            return type(value)(map(self.shown, value))
        return value

    @pass_context
    def search(self, context: Context, value: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """A method's answer, that of a text as if it had no marks; the parts of it that come back have theirs."""
        args = tuple(map(self.shown, args))
        if type(value) is not str or value.isascii() or kwargs or not MARKED.search(value):
            return context.call(context.environment.getattr(value, method), *args, **kwargs)
        text = self.show(value)
        found = getattr(text, method)(*args)
        if isinstance(found, str):
            cut = 0
            if method in ("lstrip", "removeprefix"):
                cut = len(text) - len(found)
            elif method == "strip":
                cut = len(text) - len(text.lstrip(*args))
            return value[cut : cut + len(found)]
        if not isinstance(found, (list, tuple)):
            return found
        between = args[0] if method.endswith("split") and args and args[0] else ""
        parts: list[str] = []
        at = 0
        for one in found:
            at = text.index(one, at + len(between) if parts else 0)
            parts.append(value[at : at + len(one)])
            at += len(one)
        return type(found)(parts)

    def has_marks(self, data: bytes) -> bool:
        """Whether JSON as UTF-8 holds marked characters, also as escapes within a text of JSON."""
        return _MARKED_BYTES in data or (b"\\u" in data and _ESCAPED.search(data) is not None)


class Marked(NamedTuple):
    """A prompt, and the same with the template's own control tokens in marked characters."""

    text: str
    marked: str


class MarkedTemplate:
    """A Jinja template, and its copy that marks what is its own. `special_tokens` are its own text too.

    Safe to use from several threads. Raises TemplateBroken.
    """

    def __init__(self, template: ChatTemplate, own: OwnText, *, special_tokens: Mapping[str, str]) -> None:
        try:
            marker = _Marker(own, special_tokens=special_tokens)
            tree, exact = marker.marked(template.source)
            if not exact:
                marker = _Marker(own, special_tokens=special_tokens, careful=True)
                tree, _ = marker.marked(template.source)
            self._marked = template.with_body(compile_template(tree))
        except RecursionError as error:
            raise TemplateBroken("chat template is nested too deeply") from error
        self.exact = exact
        """Whether no marked constant can meet anything but the output, so that the prompt is that of the template
        itself. Else the two are compared."""

        self._common = [(own.mark_all(one), one) for one in sorted(marker.written, key=len, reverse=True)]
        self._plain = template
        self._own = own
        self._special_tokens = special_tokens
        self._helpers = {_SHOWN: own.shown, _SEARCH: own.search}
        self._marked_tokens = {name: own.mark(value) for name, value in special_tokens.items()}

    def render(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], *, own: Mapping[str, Any]
    ) -> Marked:
        """The prompt. `own`: options that are the operator's own, marked.

        Raises BadRequest for what the template raises, and where it works on its own control tokens so that marks
        would change the prompt.
        """
        marked = {**options, **own, "special_tokens": self._marked_tokens}
        if self.exact and not own:
            made = self._marked.render(messages, **marked)
            return Marked(self._own.show(made, common=self._common), made)
        if not self.exact:
            marked |= self._helpers
        for _ in range(2):  # a clock may go on between two renderings
            plain = self._plain.render(messages, **options, special_tokens=self._special_tokens)
            try:
                made = self._marked.render(messages, **marked)
            except BadRequest:
                continue
            if self._own.show(made, common=self._common) == plain:
                return Marked(plain, made)
        raise BadRequest(_WORKED_ON, param="messages")


class _Marker:
    """Marks the constants of a template's tree. `careful`: also has it compare and search texts as they are without
    marks."""

    def __init__(self, own: OwnText, *, special_tokens: Mapping[str, str], careful: bool = False) -> None:
        self.written = {found[0] for found in own.spelled.finditer("\0".join(special_tokens.values()))}
        """Control tokens that constants have."""

        self._exact = True
        self._own = own
        self._variables = frozenset(special_tokens)
        self._careful = careful

    def marked(self, source: str) -> tuple[n.Template, bool]:
        """The tree, and whether no marked constant of it can meet anything but the output."""
        tree = parse_template(source)
        self.visit(tree, marks=True, direct=True)
        return tree, self._exact and not self._own.blank

    def visit(self, node: n.Node, *, marks: bool, direct: bool) -> None:
        """`marks`: what the node gives may come to the output. `direct`: it comes nowhere else."""
        match node:
            case n.TemplateData():
                node.data = self._text(node.data, marks=marks, direct=direct)
            case n.Const() if isinstance(node.value, str):
                node.value = self._text(node.value, marks=marks, direct=direct)
            case n.Name():
                self._exact &= node.name not in self._variables or (marks and direct)
            case n.Compare():
                self._children(node, marks=False, direct=False)
                node.expr = self._shown(node.expr)
                for operand in node.ops:
                    operand.expr = self._shown(operand.expr)
            case n.Test():
                self._children(node, marks=False, direct=False)
                if node.name in _COMPARING:
                    node.node = self._shown(node.node)
            case n.Not():
                self._children(node, marks=False, direct=False)
            case n.Mod() if isinstance(node.left, n.Const) and isinstance(node.left.value, str):
                node.left.value = self._pattern(node.left.value, _PERCENT, marks=marks)
                self.visit(node.right, marks=marks, direct=False)
            case n.Filter():
                self._filter(node, marks=marks, direct=direct)
            case n.Call():
                self._call(node, marks=marks)
            case n.Getitem():
                self.visit(node.node, marks=marks, direct=False)
                self.visit(node.arg, marks=False, direct=False)
                node.arg = self._shown(node.arg)
            case n.Pair():
                self.visit(node.key, marks=False, direct=False)
                self.visit(node.value, marks=marks, direct=False)
            case n.CondExpr() | n.If():
                self._branches(node, marks=marks, direct=direct)
            case n.For():
                self.visit(node.iter, marks=marks, direct=False)
                if node.test is not None:
                    self.visit(node.test, marks=False, direct=False)
                for one in (*node.body, *node.else_):
                    self.visit(one, marks=marks, direct=direct)
            case n.CallBlock() if isinstance(node.call.node, n.ExtensionAttribute):  # {% generation %}
                for one in node.body:
                    self.visit(one, marks=marks, direct=direct)
            case n.Template() | n.Output() | n.Scope() | n.Add() | n.Concat() | n.And() | n.Or():
                self._children(node, marks=marks, direct=direct)
            case _:
                self._children(node, marks=marks, direct=False)

    def _text(self, text: str, *, marks: bool, direct: bool) -> str:
        made = self._own.mark(text) if marks else text
        self._exact &= direct or made == text
        if made != text:
            self.written.update(found[0] for found in self._own.spelled.finditer(text))
        return made

    def _children(self, node: n.Node, *, marks: bool, direct: bool) -> None:
        for one in node.iter_child_nodes():
            self.visit(one, marks=marks, direct=direct)

    def _branches(self, node: n.Node, *, marks: bool, direct: bool) -> None:
        for name, value in node.iter_fields():
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, n.Node):
                    self.visit(one, marks=marks and name != "test", direct=direct and name != "test")

    def _filter(self, node: n.Filter, *, marks: bool, direct: bool) -> None:
        direct = direct and node.name in _WHOLE
        looks = node.name in _LOOKING or any(one.key == "ensure_ascii" for one in node.kwargs)
        if node.node is not None:
            self.visit(node.node, marks=marks and not looks, direct=direct)
        writes = marks and node.name in _WRITING
        for number, one in enumerate(node.args):
            self.visit(one, marks=writes and (node.name, number) != ("replace", 0), direct=direct)
        for keyword in node.kwargs:
            self.visit(keyword.value, marks=writes, direct=direct)

    def _call(self, node: n.Call, *, marks: bool) -> None:
        method = node.node.attr if isinstance(node.node, n.Getattr) else None
        refuses = isinstance(node.node, n.Name) and node.node.name in _REFUSING
        if isinstance(node.node, n.Getattr) and method == "format" and isinstance(node.node.node, n.Const):
            node.node.node.value = self._pattern(node.node.node.value, _BRACES, marks=marks)
        else:
            self.visit(node.node, marks=marks, direct=False)
        for number, one in enumerate(node.args):
            looks = refuses or method in _SEARCHING or (method, number) == ("replace", 0)
            self.visit(one, marks=marks and not looks, direct=False)
        for keyword in node.kwargs:
            self.visit(keyword.value, marks=marks and not refuses, direct=False)
        if self._careful and method in _OF_TEXT and isinstance(node.node, n.Getattr):
            node.args = [node.node.node, n.Const(method), *node.args]
            node.node = n.Name(_SEARCH, "load")

    def _pattern(self, text: Any, placeholder: re.Pattern[str], *, marks: bool) -> Any:
        """A constant that other texts are put into: what stands between them is marked."""
        if not marks or not isinstance(text, str):
            return text
        parts = placeholder.split(text)
        made = [part if number % 2 else self._own.mark(part) for number, part in enumerate(parts)]
        self._exact &= made == parts
        return "".join(made)

    def _shown(self, node: n.Expr) -> n.Expr:
        if not self._careful or isinstance(node, (n.Const, n.Slice)):
            return node
        return n.Call(n.Name(_SHOWN, "load"), [node], [], None, None)
