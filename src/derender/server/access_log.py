"""One line of JSON for each request of the gateway, on standard error. It holds no text of prompts or answers, unless
that is asked for."""

from __future__ import annotations

import logging
import sys
from time import perf_counter, time
from typing import Any

from msgspec import to_builtins

from derender.gateway.context import Context
from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.codec import encode_text
from derender.server.messages import Request

_MOST_ENGINES = 16  # of a request with many prompts, each of which is asked for apart

logger = logging.getLogger("derender.access")


def open_access_log() -> None:
    """Lets the lines out as they are, whatever the other logs look like."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


class AccessLog:
    """Writes the line. `prompts`: with what was asked."""

    def __init__(self, *, prompts: bool = False) -> None:
        self._prompts = prompts

    def __call__(self, http: Request, context: Context, status: int) -> None:
        request = context.request
        line: dict[str, Any] = {
            "time": round(time(), 3),
            "route": http.path,
            "status": status,
            "request_id": context.identity if context.prompts else context.request_id,
            "model": context.name,
            "stream": bool(request.stream),
            "choices": context.choices,
            "prompt_tokens": sum(len(one.token_ids) for one in context.prompts),
            "generated_tokens": context.generated,
            "engines": context.engines[:_MOST_ENGINES],
            "retries": context.retries,
            "seconds": round(perf_counter() - context.started, 6),
            **{f"{stage}_seconds": round(seconds, 6) for stage, seconds in context.spent.items()},
        }
        client = http.client
        if client:
            line["client"] = client[0]
        if self._prompts:
            name = "messages" if isinstance(request, ChatCompletionRequest) else "prompt"
            line[name] = to_builtins(getattr(request, name))
        logger.info("%s", encode_text(line))
