"""Runs in the Python of DERENDER_REFERENCE_PYTHON: renders jobs with transformers, and with vLLM's own path.

stdin: {"transformers": [job], "vllm": [job], "formats": [source]}; stdout, last line: the answers, in the same order.
A job of transformers: source, messages, and the arguments of apply_chat_template. A job of vLLM: source and a chat
request. An answer is [true, text] or [false, reason].
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
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


def with_vllm(jobs: list[dict[str, Any]]) -> list[list[Any]]:
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

    return [answer(lambda job=job: render(job)) for job in jobs]


def formats(sources: list[str]) -> list[list[Any]]:
    from vllm.renderers.hf import _detect_content_format, _resolve_chat_template_kwargs

    return [
        answer(lambda s=s: [_detect_content_format(s, default="string"), sorted(_resolve_chat_template_kwargs(s))])
        for s in sources
    ]


def main() -> None:
    task = json.load(sys.stdin)
    result = {"transformers": with_transformers(task.get("transformers", []))}
    if task.get("vllm"):
        result["vllm"] = with_vllm(task["vllm"])
    if task.get("formats"):
        result["formats"] = formats(task["formats"])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
