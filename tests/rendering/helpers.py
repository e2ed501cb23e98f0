"""A small model to render for, requests as JSON bodies, and answers as they are on the wire."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from tests.vocabularies import byte_level, byte_level_json, from_json
from tokenizers import Tokenizer as Reference
from tokenizers import processors

from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.codec import Decoder, encode
from derender.protocol.completions import CompletionRequest
from derender.protocol.errors import ApiError
from derender.protocol.tokenize import TokenizeRequest
from derender.rendering import Renderer, RenderModel
from derender.template.source import TemplateSet
from derender.tokenizer import Tokenizer

Json = Any
HI = [{"role": "user", "content": "Hello"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    },
    {"type": "function", "function": {"name": "g"}},
]
NAMED = {"type": "function", "function": {"name": "f"}}
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
CHATML = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>{% endif %}{% endif %}"
)
END = "<|im_end|>"
"""One token, whatever stands beside it."""

_chat, _text, _tokenize = Decoder(ChatCompletionRequest), Decoder(CompletionRequest), Decoder(TokenizeRequest)


@functools.cache
def with_bos() -> Tokenizer:
    """The small byte-level tokenizer, putting `<|endoftext|>` before a text and `<|im_end|>` after it."""
    reference = Reference.from_str(byte_level_json())
    reference.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|im_end|>", special_tokens=[("<|endoftext|>", 0), ("<|im_end|>", 2)]
    )
    return from_json(reference.to_str(), {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"})


def renderer(*, template: str | None = CHATML, **fields: Any) -> Renderer:
    """A renderer for the small model: 1,024 tokens of context, a vocabulary padded to 448."""
    defaults: dict[str, Any] = {
        "name": "small",
        "tokenizer": byte_level(),
        "templates": None if template is None else TemplateSet(template),
        "max_model_len": 1024,
        "vocab_size": 448,
    }
    return Renderer(RenderModel(**defaults | fields))


def chat(to: Renderer, /, *, header: str | None = None, **body: Json) -> dict[str, Json]:
    """What a chat is rendered to, as JSON."""
    request = _chat(json.dumps({"messages": HI, **body}).encode())
    answer: dict[str, Json] = json.loads(encode(to.chat(request, request_id=header)))
    return answer


def text(to: Renderer, /, *, header: str | None = None, **body: Json) -> list[dict[str, Json]]:
    """What a completions request is rendered to, as JSON."""
    request = _text(json.dumps(body).encode())
    answer: list[dict[str, Json]] = json.loads(encode(to.completions(request, request_id=header)))
    return answer


def tokenize(to: Renderer, /, **body: Json) -> dict[str, Json]:
    """What a tokenize request gives, as JSON."""
    answer: dict[str, Json] = json.loads(encode(to.tokenize(_tokenize(json.dumps(body).encode()))))
    return answer


def refused(call: Any, /, *args: Any, **body: Json) -> dict[str, Json]:
    """The error inside the envelope of a request that is refused; fails where it is not."""
    with pytest.raises(ApiError) as caught:
        call(*args, **body)
    error: dict[str, Json] = json.loads(encode(caught.value.response()))["error"]
    assert error["code"] == 400
    return error
