"""Every template over every chat, ours against transformers and vLLM.

`python -m tests.template.template_table [part of a template's path ...]` prints how many prompts are equal, different,
and refused by both. `--vllm` adds whole requests through vLLM, `--each` the figures of each template, `--show` what
differs. `--times` prints instead how long prompts take, ours and with Jinja's own sandbox. Needs
DERENDER_REFERENCE_PYTHON (but for the times) and ../shared/templates.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import timeit
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from tests.template.conversations import CHATS, RAW, WISHED, WISHES, Chat, as_parts

from derender.protocol.errors import ApiError
from derender.template.jinja import ChatTemplate, TemplateBroken
from derender.template.messages import filter_template_kwargs, normalize_messages, normalize_tools

Json = Any
CORPUS = Path(__file__).parents[2] / "../shared/templates"
NOW = datetime(2025, 3, 7, 9, 5, 1)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
SHAPES = tuple((content, developer) for content in ("string", "openai") for developer in (False, True))
_THE_TEMPLATES_OWN = "TemplateError: "  # what the reference says before the words of raise_exception


@dataclass(frozen=True)
class Row:
    """One prompt: `kind` is "normal" (transformers gets messages as vLLM shapes them), "raw" (as clients send them) or
    "vllm" (vLLM gets the request)."""

    template: str
    chat: str
    wish: str
    kind: str
    ours: str | None
    theirs: str | None
    our_reason: str = ""
    their_reason: str = ""

    @property
    def outcome(self) -> str:
        if self.ours is None and self.theirs is None:
            words = self.their_reason
            if self.kind == "vllm":
                return "both refuse"
            same = not words.startswith(_THE_TEMPLATES_OWN) or self.our_reason == words[len(_THE_TEMPLATES_OWN) :]
            return "both refuse" if same else "other words"
        if self.ours is None or self.theirs is None:
            return "ours refuses" if self.ours is None else "theirs refuses"
        return "equal" if self.ours == self.theirs else "different"


def sources() -> dict[str, str]:
    """The corpus's templates by path. Raises FileNotFoundError where there is no corpus."""
    index = json.loads((CORPUS / "INDEX.json").read_bytes())
    return {entry["path"]: (CORPUS / entry["path"]).read_text(encoding="utf-8") for entry in index}


def wishes_of(name: str, chat: Chat) -> dict[str, Json]:
    """The ways in which one chat is rendered, by name: arguments as transformers takes them."""
    given = {"tools": chat.tools, "documents": chat.documents, **chat.arguments}
    given = {key: value for key, value in given.items() if value is not None}
    found = {"prompt": {**given, "add_generation_prompt": True}, "closed": {**given, "add_generation_prompt": False}}
    if chat.messages[-1]["role"] in ("assistant", "user"):
        found["continue"] = {**given, "add_generation_prompt": False, "continue_final_message": True}
    if chat.tools is None and name in ("user", "turns", "several systems", "reasoning_content", "planes"):
        found["with a tool"] = {**given, "add_generation_prompt": True, "tools": CHATS["one tool"].tools}
    if name in WISHED:
        for wish, kwargs in WISHES.items():
            found[wish] = {**given, "add_generation_prompt": True, **kwargs}
    return found


class _Body(jinja2.ext.Extension):
    """A generation block as its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @staticmethod
    def _body(caller: Callable[[], str]) -> str:
        return caller()


class _Reference:
    """The process that renders with transformers, asked for one template at a time."""

    def __init__(self, **shared: list[Json]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        self._process = subprocess.Popen(
            [os.environ["DERENDER_REFERENCE_PYTHON"], str(Path(__file__).with_name("reference_render.py")), "--table"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )
        self._send({"messages": [], "arguments": [], "requests": [], **shared})

    def _send(self, value: Json) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value).encode() + b"\n")
        self._process.stdin.flush()

    def __call__(self, source: str, **wanted: Json) -> list[Json]:
        assert self._process.stdout is not None
        self._send({"source": source, **wanted})
        line = self._process.stdout.readline()
        if not line:
            self._said.seek(0)
            raise RuntimeError("the reference ended: " + self._said.read().decode()[-3000:])
        return json.loads(line)

    def __enter__(self) -> _Reference:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()


def times(templates: dict[str, str], chat: Chat) -> dict[str, tuple[float, float]]:
    """Microseconds of a prompt by template: ours, and Jinja's own sandbox over the same messages."""
    plain = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Body, jinja2.ext.loopcontrols]
    )
    plain.filters["tojson"] = lambda value, **options: json.dumps(value, **{"ensure_ascii": False, **options})
    plain.globals["strftime_now"] = NOW.strftime
    plain.globals["raise_exception"] = lambda message: 1 / 0
    found = {}
    for path, source in templates.items():
        ours, theirs = ChatTemplate(source, now=lambda: NOW), plain.from_string(source)
        messages = normalize_messages(
            chat.messages, content_format=ours.content_format, developer_role=ours.developer_role, model_name="m"
        )
        given = {"messages": messages, "tools": chat.tools, "documents": None, "add_generation_prompt": True}

        def mine(ours: ChatTemplate = ours, messages: list[Json] = messages) -> str:
            return ours.render(messages, tools=chat.tools, special_tokens=SPECIAL)

        def other(theirs: jinja2.Template = theirs, given: Json = given) -> str:
            return theirs.render(**SPECIAL, **given)

        try:
            same = mine() == other()
        except Exception:  # a template that refuses this chat has no time
            continue
        assert same, path
        best = [min(timeit.repeat(render, number=20, repeat=15)) / 20 * 1e6 for render in (mine, other)]
        found[path] = (best[0], best[1])
    return found


def _attempt(template: ChatTemplate, messages: list[Json], arguments: Json) -> tuple[str | None, str]:
    try:
        return template.render(messages, special_tokens=SPECIAL, **arguments), ""
    except ApiError as error:
        return None, error.message


def rows(templates: dict[str, str], *, wanted: Collection[str] | None = None) -> Iterator[Row]:
    """The table, of all wishes or of those that are wanted. A template that does not compile refuses everything."""
    lists: list[Json] = []
    normal: dict[tuple[Any, str], int] = {}
    for shape in SHAPES:
        for name, chat in CHATS.items():
            content_format, developer_role = shape
            lists.append(
                normalize_messages(
                    chat.messages,
                    content_format=content_format,  # type: ignore[arg-type]
                    developer_role=developer_role,
                    model_name="m",
                )
            )
            normal[shape, name] = len(lists) - 1
    raw = {}
    for name in RAW:
        raw["string", name], raw["openai", name] = len(lists), len(lists) + 1
        lists += [CHATS[name].messages, as_parts(CHATS[name].messages)]
    before = json.dumps(lists)
    arguments: list[Json] = []
    wishes: list[tuple[str, str, int]] = []
    for name, chat in CHATS.items():
        for wish, given in wishes_of(name, chat).items():
            if wanted is None or wish in wanted:
                wishes.append((name, wish, len(arguments)))
                arguments.append(given)
    with _Reference(messages=lists, arguments=arguments) as reference:
        for path, source in templates.items():
            template, broken = None, ""
            try:
                template = ChatTemplate(source, now=lambda: NOW)
            except TemplateBroken as error:
                broken = str(error)
            shape = SHAPES[0] if template is None else (template.content_format, template.developer_role)
            jobs = [(normal[shape, name], how, name, wish, "normal") for name, wish, how in wishes]
            jobs += [
                (place, how, name, wish, "raw")
                for name, wish, how in wishes
                if wish not in WISHES and (place := raw.get((shape[0], name))) is not None
            ]
            theirs = reference(source, jobs=[job[:2] for job in jobs])
            for (_, how, name, wish, kind), (rendered, text) in zip(jobs, theirs, strict=True):
                # Ours gets the normalised messages in both tables; the reference gets the raw ones in the second.
                given = lists[normal[shape, name]]
                ours, reason = (None, broken) if template is None else _attempt(template, given, arguments[how])
                yield Row(path, name, wish, kind, ours, text if rendered else None, reason, "" if rendered else text)
    assert json.dumps(lists) == before, "a rendering changed its messages"


def _requests() -> list[tuple[str, str, Json]]:
    """The chats as requests: arguments of calls are strings there, as are all values of documents."""
    found = []
    for name, chat in CHATS.items():
        messages = json.loads(json.dumps(chat.messages))
        for call in (call for message in messages for call in message.get("tool_calls", ())):
            if not isinstance(given := call["function"]["arguments"], str):
                call["function"]["arguments"] = json.dumps(given, ensure_ascii=False)
        for wish, arguments in wishes_of(name, chat).items():
            if wish in WISHES and name != WISHED[-1]:
                continue
            given = dict(arguments)
            request = {"model": "m", "messages": messages}
            for key in ("tools", "documents", "add_generation_prompt", "continue_final_message"):
                if key in given:
                    request[key] = given.pop(key)
            if "documents" in request:
                request["documents"] = [{k: str(v) for k, v in one.items()} for one in request["documents"]]
            if given:
                request["chat_template_kwargs"] = given
            found.append((name, wish, request))
    return found


def _through(template: ChatTemplate, request: Json) -> tuple[str | None, str]:
    try:
        messages = normalize_messages(
            request["messages"],
            content_format=template.content_format,
            developer_role=template.developer_role,
            model_name="m",
        )
        kwargs = filter_template_kwargs(
            request.get("chat_template_kwargs"), template=template, defaults=None, reasoning_effort=None, trusted=False
        )
        rest = {key: request[key] for key in request if key not in ("model", "messages", "chat_template_kwargs")}
        rest["tools"] = normalize_tools(rest.get("tools"))
    except ApiError as error:
        return None, error.message
    return _attempt(template, messages, {**rest, **kwargs})


def rows_of_vllm(templates: dict[str, str]) -> Iterator[Row]:
    """The table of whole requests against vLLM's own way to a prompt."""
    requests = _requests()
    with _Reference(requests=[request for _, _, request in requests]) as reference:
        for path, source in templates.items():
            template = ChatTemplate(source, now=lambda: NOW)
            theirs = reference(source, requests=True)
            for (name, wish, request), (rendered, text) in zip(requests, theirs, strict=True):
                ours, reason = _through(template, request)
                yield Row(path, name, wish, "vllm", ours, text if rendered else None, reason, "" if rendered else text)


def main(arguments: list[str]) -> None:
    parts = [argument for argument in arguments if not argument.startswith("--")]
    chosen = {path: text for path, text in sources().items() if not parts or any(part in path for part in parts)}
    if "--times" in arguments:
        for name in ("user", "calls with reasoning, turns"):
            for path, (ours, plain) in sorted(times(chosen, CHATS[name]).items(), key=lambda of: of[1][0] / of[1][1]):
                print(f"{path}, {name}: {ours:.0f} µs, Jinja's own sandbox {plain:.0f} µs, {ours / plain:.2f} of it")
        return
    total: Counter[tuple[str, str]] = Counter()
    each: dict[str, Counter[tuple[str, str]]] = {path: Counter() for path in chosen}
    for row in chain(rows(chosen), rows_of_vllm(chosen) if "--vllm" in arguments else ()):
        total[row.kind, row.outcome] += 1
        each[row.template][row.kind, row.outcome] += 1
        if "--show" in arguments and row.outcome not in ("equal", "both refuse"):
            print(f"{row.outcome}: {row.template}, {row.chat}, {row.wish}, {row.kind}")
            print(f"  ours:   {row.ours!r} {row.our_reason}\n  theirs: {row.theirs!r} {row.their_reason}")
    for title, counts in [*(each.items() if "--each" in arguments else ()), ("all", total)]:
        told = (f"{kind}, {outcome}: {number}" for (kind, outcome), number in sorted(counts.items()))
        print(f"{title}: {'; '.join(told)}")


if __name__ == "__main__":
    main(sys.argv[1:])
