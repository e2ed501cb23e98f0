"""Chat templates as transformers renders them, to the byte.

The environment is the one of `transformers.utils.chat_template_utils` (5.x): an immutable sandbox with `trim_blocks`,
`lstrip_blocks`, `break` and `continue`, a `generation` block, a `tojson` that is plain `json.dumps`, and the globals
`raise_exception` and `strftime_now`. Templates are compiled once per source text and shared by all threads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import islice
from threading import get_ident, main_thread
from time import monotonic
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.runtime

from derender.protocol.errors import BadRequest
from derender.template.content_format import ContentFormat, detect_content_format
from derender.template.sandbox import Sandbox

__all__ = ["ChatTemplate", "TemplateBroken"]

# What transformers appends to a message that is to be continued, and cuts the prompt at. The blank at its end tells
# whether the template strips the message.
_CUT = "CONTINUE_FINAL_MESSAGE_TAG "
_SHOWN = 500  # characters of a Python error that are shown
_SHOWN_REFUSAL = 4000  # characters of a template's own message that are shown
_NOTHING: Mapping[str, str] = {}
_MAIN_THREAD = main_thread().ident
MAX_SECONDS = 30.0
MAX_CHARS = 1 << 27
"""What one rendering may take and give. Templates of well-known models look through all messages for each of them
(Gemma 4, Command R7B, DeepSeek V3.2): of a history of 50,000 messages they would make a prompt for hours."""

_MARKS = " generation marks"  # a variable that no template can name
_LOOK_AT_CLOCK = 64  # pieces of a prompt between two looks at the clock


class TemplateBroken(ValueError):
    """The template's source does not compile. The message is one line and names no file."""


class _Refused(jinja2.TemplateError):
    """The template called `raise_exception`."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}`: renders as its body, in a scope of its own as a call block has."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as an instance attribute)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body", [jinja2.nodes.ContextReference()])
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    @staticmethod
    def _body(context: jinja2.runtime.Context, caller: Callable[[], str]) -> str:
        marks = context.parent.get(_MARKS)
        return caller() if marks is None else f"{marks[0]}{caller()}{marks[1]}"


_plain_json = json.JSONEncoder(ensure_ascii=False).encode
_TOP_LEVELS = 4  # a tool's schema has its properties on the fourth


def _json_in_parts(value: Any, level: int = 0) -> str:
    """What `_plain_json` gives, but the interpreter's lock is free between the parts: one call writes a schema of 5 MB
    for 60 ms, and the server's event loop waits for it."""
    if level < _TOP_LEVELS:
        if type(value) is dict and all(type(key) is str for key in value):
            parts = [f"{_plain_json(key)}: {_json_in_parts(inner, level + 1)}" for key, inner in value.items()]
            return "{" + ", ".join(parts) + "}"
        if type(value) is list:
            return "[" + ", ".join([_json_in_parts(inner, level + 1) for inner in value]) + "]"
    return _plain_json(value)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if not ensure_ascii and indent is None and separators is None and not sort_keys:
        # What is large is worked on in a thread; what is small is written at once.
        return _plain_json(value) if get_ident() == _MAIN_THREAD else _json_in_parts(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> NoReturn:
    raise _Refused(str(message))


def _clock(now: Callable[[], datetime]) -> Callable[[str], str]:
    def strftime_now(format: str) -> str:
        return now().strftime(format)

    return strftime_now


def _environment() -> Sandbox:
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _clock(datetime.now)
    return environment


_ENVIRONMENT = _environment()
GLOBAL_NAMES: frozenset[str] = frozenset(_ENVIRONMENT.globals)
"""Names that every template has without being given them (`range`, `namespace`, `raise_exception`, ...)."""


@dataclass(frozen=True)
class _Compiled:
    template: jinja2.Template
    variables: frozenset[str]
    content_format: ContentFormat
    constants: frozenset[str]
    generation: bool


@lru_cache(maxsize=64)
def _compile(source: str) -> _Compiled:
    try:
        tree = _ENVIRONMENT.parse(source)
        return _Compiled(
            template=_ENVIRONMENT.from_string(source),
            variables=frozenset(jinja2.meta.find_undeclared_variables(tree)),
            content_format=detect_content_format(tree),
            constants=frozenset(one.value for one in tree.find_all(jinja2.nodes.Const) if isinstance(one.value, str)),
            generation=any(
                isinstance(block.call.node, jinja2.nodes.ExtensionAttribute)
                for block in tree.find_all(jinja2.nodes.CallBlock)
            ),
        )
    except jinja2.TemplateSyntaxError as error:
        raise TemplateBroken(f"chat template, line {error.lineno}: {_one_line(error.message or 'syntax')}") from error
    except Exception as error:  # a source can provoke anything: too deep nesting, a limit of the Python compiler
        raise TemplateBroken(f"chat template does not compile: {_reason(error)}") from error


def parse_template(source: str) -> jinja2.nodes.Template:
    """The tree of a template that compiles, to be changed."""
    return _ENVIRONMENT.parse(source)


def compile_template(tree: jinja2.nodes.Template) -> jinja2.Template:
    """A tree, ready to render."""
    return _ENVIRONMENT.template_class.from_code(
        _ENVIRONMENT, _ENVIRONMENT.compile(tree), _ENVIRONMENT.make_globals(None)
    )


_ROLES = ("system", "developer", "user", "assistant")


class ChatTemplate:
    """One chat template, ready to render from any thread.

    `variables` are the names that it reads from its surroundings, also where only a macro or a branch reads them;
    globals that every template has, such as `namespace`, are not among them. `content_format` says whether it wants
    `content` as a string or as a list of parts. `developer_role` says whether it knows the role `developer` (its
    source names it in quotes, as vLLM looks). `constants` are the strings in its expressions; `generation` tells
    whether it has generation blocks.
    Raises TemplateBroken where the source does not compile.
    """

    _PROBED = True  # a template of a request's own is run for that request only
    _PLACE = "messages"  # the field of a request that what the template raises is put down to

    __slots__ = (
        "_base", "_compiled", "_with_special", "constants", "content_format", "developer_role", "generation", "name",
        "source", "text_roles", "variables",
    )  # fmt: skip

    def __init__(self, source: str, *, name: str = "chat_template", now: Callable[[], datetime] | None = None) -> None:
        compiled = _compile(source)
        self.source = source
        self.name = name
        self.variables = compiled.variables
        self.content_format: ContentFormat = compiled.content_format
        self.constants = compiled.constants
        self.generation = compiled.generation
        self.developer_role = '"developer"' in source or "'developer'" in source
        self._compiled = compiled.template
        self._base: dict[str, Any] = dict(compiled.template.globals)
        if now is not None:
            self._base["strftime_now"] = _clock(now)
        self._with_special: tuple[Mapping[str, str], dict[str, Any]] | None = None
        self.text_roles = frozenset[str]()
        """Roles whose content it wants as a string though it wants that of others as parts."""
        if self.content_format == "openai" and self._PROBED:
            self.text_roles = frozenset(role for role in _ROLES if self._writes_lists(role))

    def _writes_lists(self, role: str) -> bool:
        """Whether a list of parts of this role comes out as Python writes lists: Gemma 4 loops over a user's content,
        and puts a system message's out as it is."""
        part, ask = {"type": "text", "text": "probe"}, {"role": "user", "content": "ask"}
        turns: list[dict[str, Any]] = [{"role": role, "content": [part]}]
        for messages in (turns, [*turns, ask], [ask, *turns]):
            try:
                return repr(part) in self.render(messages)
            except BadRequest:  # the role has no place there, or none at all
                continue
        return False

    def __repr__(self) -> str:
        return f"ChatTemplate({self.name!r}, {len(self.source)} characters)"

    def with_body(self, body: jinja2.Template) -> ChatTemplate:
        """The same template with another body."""
        made = copy(self)
        made._compiled = body
        return made

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        special_tokens: Mapping[str, str] = _NOTHING,
        generation_marks: tuple[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt text, as `apply_chat_template(tokenize=False)` gives it.

        `messages` are what `normalize_messages` returns; they are not copied and not changed. `kwargs` go before
        `special_tokens` of the same name. `generation_marks` are put around what generation blocks write. Raises
        BadRequest, and nothing else, whatever the template does.
        """
        if not messages:
            raise BadRequest("messages must not be empty", param="messages")
        if documents is not None and not all(isinstance(document, dict) for document in documents):
            raise BadRequest("documents must be a list of objects with title and text", param="documents")
        opened: str | None = None
        if continue_final_message:
            messages, opened = self._open_last(messages, add_generation_prompt=add_generation_prompt)
        base = self._with_special
        if base is None or base[0] is not special_tokens:  # a model has one set of them
            base = self._with_special = special_tokens, {**self._base, **special_tokens}
        variables = {
            **base[1],
            **kwargs,
            "messages": messages if isinstance(messages, list) else list(messages),
            "tools": tools if tools is None or isinstance(tools, list) else list(tools),
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        if generation_marks is not None:
            variables[_MARKS] = generation_marks
        compiled = self._compiled
        try:
            # What Template.render does, without building the globals anew and without rewriting tracebacks.
            context = compiled.environment.context_class(
                compiled.environment, variables, compiled.name, compiled.blocks
            )
            text = self._join(compiled.root_render_func(context))
        except _Refused as error:
            raise BadRequest(_printable(error.message or "", _SHOWN_REFUSAL), param=self._PLACE) from error
        except BadRequest:
            raise
        except Exception as error:  # the template is foreign code: whatever it provokes is the request's error
            raise BadRequest(f"chat template could not be rendered: {_reason(error)}", param=self._PLACE) from error
        if opened is not None:
            text = _cut(text, opened)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise BadRequest(
                    "the rendered prompt holds a lone surrogate, which is not text", param=self._PLACE
                ) from error
        return text

    def _join(self, chunks: Iterable[str]) -> str:
        kept: list[str] = []
        until, left = monotonic() + MAX_SECONDS, MAX_CHARS
        pieces = iter(chunks)
        while batch := list(islice(pieces, _LOOK_AT_CLOCK)):
            kept += batch
            left -= sum(map(len, batch))
            if left < 0 or monotonic() > until:
                limit = f"{MAX_CHARS} characters" if left < 0 else f"{MAX_SECONDS:g} seconds"
                raise BadRequest(f"the chat template needs more than {limit} for these messages", param="messages")
        return "".join(kept)

    def _open_last(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool
    ) -> tuple[list[Mapping[str, Any]], str]:
        """The messages with a mark at the end of the last one's text, and that text."""
        if add_generation_prompt:
            raise BadRequest(
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
                param="continue_final_message",
            )
        last = dict(messages[-1])
        content = last.get("content")
        if content is None:
            raise BadRequest(
                "continue_final_message is set, but the last message has no content to continue",
                param="continue_final_message",
            )
        if "content" not in self.source:
            raise BadRequest(
                "continue_final_message is set, but the chat template reads no content", param="continue_final_message"
            )
        if isinstance(content, str):
            last["content"] = content + _CUT
            return [*messages[:-1], last], content
        parts = list(content) if isinstance(content, (list, tuple)) else []
        for index in range(len(parts) - 1, -1, -1):
            part = parts[index]
            if isinstance(part, Mapping) and isinstance(text := part.get("text"), str):
                parts[index] = {**part, "text": text + _CUT}
                last["content"] = parts
                return [*messages[:-1], last], text
        raise BadRequest(
            "continue_final_message is set, but the last message has no text to continue",
            param="continue_final_message",
        )


def _cut(text: str, opened: str) -> str:
    """The prompt up to the end of the text that is to be continued (transformers' rule for templates that strip)."""
    place = text.rfind(_CUT.rstrip())
    if place < 0 or opened.strip() not in text:
        raise BadRequest(
            "continue_final_message is set, but the chat template does not keep the text of the last message",
            param="continue_final_message",
        )
    if text.startswith(_CUT, place):
        return text[:place]
    return text[:place].rstrip()


def _reason(error: BaseException) -> str:
    """A template's or Python's error in one short line."""
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = error.message if isinstance(error, jinja2.TemplateError) else str(error)
    return _one_line(text or type(error).__name__)


def _one_line(text: str) -> str:
    return _printable(" ".join(text.split()), _SHOWN)


def _printable(text: str, limit: int) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[:limit] + "..."
