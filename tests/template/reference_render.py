"""Runs in the Python of DERENDER_REFERENCE_PYTHON: renders jobs with transformers, and with vLLM's own path.

stdin: {"transformers": [job], "vllm": [job], "formats": [source]}; stdout, last line: the answers, in the same order.
A job of transformers: source, messages, and the arguments of apply_chat_template. A job of vLLM: source and a chat
request. An answer is [true, text] or [false, reason].

With `--table`, for many templates over the same chats: the first line of stdin is {"messages": [list], "arguments":
[arguments], "requests": [request]}, each further line {"source": source, "jobs": [[index of the messages, index of the
arguments]]} for transformers or {"source": source, "requests": true} for vLLM, and each gets a line with its answers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

NOW = datetime(2025, 3, 7, 9, 5, 1)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


class FixedClock(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return NOW


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import chat_template_utils

    chat_template_utils.datetime = FixedClock
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL)


def answer(render: Any) -> list[Any]:
    try:
        return [True, render()]
    except Exception as error:  # the answer is that the reference refuses, and why
        return [False, f"{type(error).__name__}: {error}"]


def with_transformers(jobs: list[dict[str, Any]]) -> list[list[Any]]:
    own = tokenizer()
    return [
        answer(
            lambda job=job: own.apply_chat_template(
                job["messages"], chat_template=job["source"], tokenize=False, **job["arguments"]
            )
        )
        for job in jobs
    ]


def vllm_renderer() -> Callable[[dict[str, Any]], list[Any]]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers.chat_utils import parse_chat_messages
    from vllm.renderers.hf import resolve_chat_template_content_format, safe_apply_chat_template

    own = tokenizer()
    config = SimpleNamespace(
        model="m",
        multimodal_config=None,
        enable_prompt_embeds=False,
        is_multimodal_model=False,
        hf_config=SimpleNamespace(model_type="llama"),
        allowed_local_media_path="",
        allowed_media_domains=None,
        revision=None,
        code_revision=None,
        tokenizer_revision=None,
        trust_remote_code=False,
    )

    def render(job: dict[str, Any]) -> list[Any]:
        request = ChatCompletionRequest.model_validate(job["request"])
        tools = [tool.model_dump() for tool in request.tools] if request.tools is not None else None
        params = request.build_chat_params(job["source"], "auto").with_defaults({**job["defaults"], "tools": tools})
        style = resolve_chat_template_content_format(job["source"], tools, "auto", own, model_config=config)
        conversation, _, _ = parse_chat_messages(request.messages, config, content_format=style)
        before = json.dumps(conversation)
        kwargs = params.get_apply_chat_template_kwargs()
        kwargs["tokenize"] = False
        return [before, safe_apply_chat_template(config, own, conversation, **kwargs)]

    return render


def with_vllm(jobs: list[dict[str, Any]]) -> list[list[Any]]:
    render = vllm_renderer()
    return [answer(partial(render, job)) for job in jobs]


def formats(sources: list[str]) -> list[list[Any]]:
    from vllm.renderers.hf import _detect_content_format, _resolve_chat_template_kwargs

    return [
        answer(lambda s=s: [_detect_content_format(s, default="string"), sorted(_resolve_chat_template_kwargs(s))])
        for s in sources
    ]


def table() -> None:
    shared = json.loads(sys.stdin.readline())
    lists, arguments = shared["messages"], shared["arguments"]
    through = None
    out, sys.stdout = sys.stdout, sys.stderr  # vLLM logs to stdout
    own = tokenizer()

    def render(source: str, which: int, how: int) -> str:
        return own.apply_chat_template(lists[which], chat_template=source, tokenize=False, **arguments[how])

    for line in sys.stdin:
        task = json.loads(line)
        if task.get("requests"):
            through = through or vllm_renderer()
            given = [{"source": task["source"], "request": request, "defaults": {}} for request in shared["requests"]]
            both = [answer(partial(through, job)) for job in given]
            answers = [[rendered, text[1] if rendered else text] for rendered, text in both]
        else:
            answers = [answer(partial(render, task["source"], *job)) for job in task["jobs"]]
        out.write(json.dumps(answers) + "\n")
        out.flush()


def main() -> None:
    if "--table" in sys.argv:
        table()
        return
    task = json.load(sys.stdin)
    result = {"transformers": with_transformers(task.get("transformers", []))}
    if task.get("vllm"):
        result["vllm"] = with_vllm(task["vllm"])
    if task.get("formats"):
        result["formats"] = formats(task["formats"])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
