"""Render a template that came with a request, under limits of time, memory and output.

A template is a program: two nested loops hold a thread for minutes, `'a' * 999999999` takes the memory of the process
(vllm#52025), and neither can be stopped from within. So it runs in a process of its own, which limits itself before it
reads the template and is killed when its time is up. Compiling is done there too, since Jinja computes constants then.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from derender.protocol.codec import encode
from derender.protocol.errors import ApiError, BadRequest, InvalidBody, Unavailable
from derender.template.jinja import ChatTemplate, TemplateBroken
from derender.template.kwargs import filter_template_kwargs
from derender.template.messages import normalize_messages
from derender.template.own_text import MarkedTemplate, OwnText

__all__ = ["Asker", "render_limited", "stop_all"]

logger = logging.getLogger("derender.template")

# Runs in the child. The package is found where this process found it; `site` is not run, which saves a third of the
# start, and the package's own __init__ is passed over, so that the child loads this layer and nothing else.
_START = (
    "import sys, types, json;"
    "sys.path[:] = json.loads(sys.argv[1]);"
    "p = types.ModuleType('derender'); p.__path__ = [sys.argv[2]]; sys.modules['derender'] = p;"
    "from derender.template.limited import _child; _child()"
)
_PASSED_ON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ", "SYSTEMROOT")
_STARTING = 10.0  # seconds that a busy machine may take to start the child, outside the template's own time
_OK, _REFUSED, _READY = b"+", b"-", b"!"
_KILLED, _ALARM, _PROCESSOR_TIME = 9, 14, 24  # SIGKILL, SIGALRM, SIGXCPU, by number as not every system has them
_NOT_STARTED = "the server cannot start another process for chat templates of requests; try again later"
_OVER = "the chat template of the request went over its limit of"


T = TypeVar("T")

_running: set[subprocess.Popen[bytes]] = set()


class Asker:
    """One who asks for a prompt. Once they have left, the processes that make it are killed, and none is started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._left = False

    def run(self, function: Callable[[], T]) -> T:
        """`function()`, whose templates are rendered for this one."""
        token = _asker.set(self)
        try:
            return function()
        finally:
            _asker.reset(token)

    def leave(self) -> None:
        """From any thread: nobody waits any more."""
        with self._lock:
            self._left = True
            for process in self._processes:
                process.kill()

    def begin(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.add(process)
            if self._left:
                process.kill()

    def end(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.discard(process)

    def check(self) -> None:
        """Raises `Unavailable` where nobody waits any more."""
        if self._left:
            raise Unavailable("the client has left")


_asker: ContextVar[Asker | None] = ContextVar("derender_template_asker", default=None)


def stop_all() -> None:
    """Kills what runs now: a server that shuts down would wait for it."""
    for process in tuple(_running):
        process.kill()


def render_limited(
    source: str,
    messages: Sequence[Any],
    *,
    model_name: str,
    seconds: float,
    max_chars: int,
    memory_bytes: int = 512 << 20,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    special_tokens: Mapping[str, str] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    reasoning_effort: str | None = None,
    marked_controls: Sequence[str] | None = None,
) -> str:
    """The prompt that the template `source` gives for these API messages (as yet unnormalized), or BadRequest.

    `tools` are what normalize_tools returns, `template_kwargs` the request's own, `defaults` the operator's.
    `seconds` bounds the wall time of the template and its processor time, `max_chars` the prompt's characters, and
    `memory_bytes` the address space of the process (where the system can limit it: not on macOS). The caller's thread
    waits; the process is gone when this returns. Safe to call from a server with threads. Raises BadRequest or
    InvalidBody for all that the template or the messages provoke, Unavailable where the process cannot be started
    (the machine is out of memory, processes or file descriptors). Of `marked_controls`, those that the template itself
    writes are marked in the prompt (`OwnText`).
    """
    task = {
        "source": source,
        "messages": messages,
        "model_name": model_name,
        "seconds": seconds,
        "max_chars": max_chars,
        "memory_bytes": memory_bytes,
        "tools": tools,
        "documents": documents,
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
        "special_tokens": dict(special_tokens or {}),
        "template_kwargs": template_kwargs,
        "defaults": defaults,
        "reasoning_effort": reasoning_effort,
        "marked_controls": marked_controls,
    }
    try:
        data = encode(task)  # many times as fast as json, which holds the interpreter's lock all the while
    except UnicodeEncodeError:  # a lone surrogate, which the child refuses by its place
        data = json.dumps(task).encode()
    asker = _asker.get() or Asker()
    asker.check()
    package = Path(__file__).parents[1]
    try:
        started = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, json.dumps(sys.path), str(package)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/" if os.name == "posix" else None,
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        )
    except OSError as error:
        logger.error("the process for request templates could not be started: %s", error)
        raise Unavailable(_NOT_STARTED) from None
    with started as process:
        _running.add(process)
        asker.begin(process)
        try:
            answer, _ = process.communicate(data, timeout=seconds + _STARTING)
        except subprocess.TimeoutExpired:
            raise BadRequest(f"{_OVER} {seconds:g} seconds", param="chat_template") from None
        finally:
            _running.discard(process)
            asker.end(process)
            process.kill()
    asker.check()
    return _result(answer, process.returncode, seconds)


def _result(answer: bytes, code: int, seconds: float) -> str:
    body = answer[len(_READY) :] if answer.startswith(_READY) else b""
    if code == 0 and body.startswith(_OK):
        return body[1:].decode()
    if code == 0 and body.startswith(_REFUSED):
        kind, message, param = json.loads(body[1:])
        raise (InvalidBody if kind == InvalidBody.__name__ else BadRequest)(message, param=param)
    if not answer.startswith(_READY):
        logger.error("the process for request templates could not be started (exit status %s)", code)
        raise Unavailable(_NOT_STARTED)
    if code in (_OUT_OF_TIME, -_KILLED, -_ALARM, -_PROCESSOR_TIME):
        raise BadRequest(f"{_OVER} {seconds:g} seconds", param="chat_template")
    raise BadRequest(f"{_OVER} memory", param="chat_template")


# ------------------------------------------------------------------------------------------------- in the child

_OUT_OF_TIME, _OUT_OF_MEMORY = 3, 4
_NICENESS = 10


class _Limited(ChatTemplate):
    """A template whose output is counted while it is written."""

    _PROBED = False
    _PLACE = "chat_template"

    __slots__ = ("max_chars",)
    max_chars: int

    def _join(self, chunks: Iterable[str]) -> str:
        kept: list[str] = []
        left = self.max_chars
        for chunk in chunks:
            left -= len(chunk)
            if left < 0:
                raise BadRequest(f"{_OVER} {self.max_chars} characters", param="chat_template")
            kept.append(chunk)
        return "".join(kept)


def _child() -> None:
    out = sys.stdout.buffer
    out.write(_READY)
    out.flush()
    raw = sys.stdin.buffer.read()
    try:
        task = json.loads(raw)
        del raw
        _limit(task.pop("seconds"), task.pop("memory_bytes"))
        answer = _OK + _render(**task).encode()
    except ApiError as error:
        answer = _REFUSED + json.dumps([type(error).__name__, error.message, error.param]).encode()
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)
    out.write(answer)
    out.flush()
    os._exit(0)  # no tidying up of what the template left


def _limit(seconds: float, memory_bytes: int) -> None:
    if sys.platform != "win32":
        import resource

        processor = math.ceil(seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (processor, processor))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        if sys.platform != "darwin":
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        os.nice(_NICENESS)  # the server answers others meanwhile
        # The alarm's default action ends the process, whatever it is computing.
        signal.setitimer(signal.ITIMER_REAL, seconds)
    else:
        timer = threading.Timer(seconds, os._exit, (_OUT_OF_TIME,))
        timer.daemon = True
        timer.start()


def _render(
    *,
    source: str,
    messages: list[Any],
    model_name: str,
    max_chars: int,
    template_kwargs: Mapping[str, Any] | None,
    defaults: Mapping[str, Any] | None,
    reasoning_effort: str | None,
    marked_controls: Sequence[str] | None,
    special_tokens: Mapping[str, str],
    **rest: Any,
) -> str:
    try:
        template = _Limited(source, name="of the request")
    except TemplateBroken as error:
        raise BadRequest(str(error), param="chat_template") from error
    template.max_chars = max_chars
    conversation = normalize_messages(
        messages,
        content_format=template.content_format,
        developer_role=template.developer_role,
        model_name=model_name,
    )
    kwargs = filter_template_kwargs(
        template_kwargs, template=template, defaults=defaults, reasoning_effort=reasoning_effort, trusted=True
    )
    if marked_controls is None:
        return template.render(conversation, **rest, **kwargs, special_tokens=special_tokens)
    marked = MarkedTemplate(template, OwnText(marked_controls), special_tokens=special_tokens)
    return marked.render(conversation, {**rest, **kwargs}, own={}).marked
