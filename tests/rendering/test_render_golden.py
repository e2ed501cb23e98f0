"""What vLLM 0.32 rendered, asked of us: the same, but for the differences that are named here."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest
from tests.vocabularies import SHARED

from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.codec import Decoder, encode
from derender.protocol.completions import CompletionRequest
from derender.protocol.errors import ApiError
from derender.protocol.tokenize import TokenizeRequest
from derender.rendering import Renderer, RenderModel
from derender.template.source import TemplateSet
from derender.tokenizer import Tokenizer

GOLDEN = SHARED / "data" / "vllm032_golden"
INTERNAL = ("output_kind", "skip_clone", "skip_reading_prefix_cache", "output_text_buffer_length")
NOT_RENDERING = ("err json", "err ctype", "err method")  # refused before a request is decoded
CHAT, TEXT, TOKENIZE = "/v1/chat/completions/render", "/v1/completions/render", "/tokenize"


def pairs() -> list[Any]:
    path = GOLDEN / "pairs.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    wanted = [row for row in rows if row["path"] in (CHAT, TEXT, TOKENIZE) and row["name"] not in NOT_RENDERING]
    # The other server has parsers; of its pairs those that no parser touches are asked as well.
    asked = [row for row in wanted if row["server"] == "plain" or not row["body"].get("tools")]
    asked = [row for row in asked if row["status"] != 404]  # unknown models are the server's business
    if not asked:
        reason = f"no recorded answers at {path}"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    return [pytest.param(row, id=f"{row['server']}: {row['name']}") for row in asked]


@functools.cache
def golden_renderer() -> Renderer:
    directory = GOLDEN / "model"
    return Renderer(
        RenderModel(
            name="m",
            tokenizer=Tokenizer.from_directory(directory),
            templates=TemplateSet.load(directory),
            max_model_len=4096,
            vocab_size=6004,
            sampling_defaults={"temperature": 0.7, "top_p": 0.8, "top_k": 20},
        )
    )


def ask(row: Any) -> tuple[int, Any]:
    render = golden_renderer()
    header = (row["headers"] or {}).get("X-Request-Id")
    body = json.dumps(row["body"]).encode()
    answer: Any
    try:
        if row["path"] == CHAT:
            answer = render.chat(Decoder(ChatCompletionRequest)(body), request_id=header)
        elif row["path"] == TEXT:
            answer = render.completions(Decoder(CompletionRequest)(body), request_id=header)
        else:
            answer = render.tokenize(Decoder(TokenizeRequest)(body))
    except ApiError as error:
        return error.status, json.loads(encode(error.response()))
    return 200, json.loads(encode(answer))


def intended(row: Any, theirs: Any) -> Any:
    """vLLM's rendered request with each intended difference made."""
    params = theirs["sampling_params"]
    for name in INTERNAL:
        params.pop(name, None)
    params.setdefault("max_tokens", 16)  # left out where it is the engine's default
    if (outputs := params.get("structured_outputs")) is not None:
        outputs.pop("_backend"), outputs.pop("_backend_was_auto")
    extra = params.get("extra_args") or {}
    for name in ("kv_transfer_params", "ec_transfer_params"):
        theirs[name] = extra.get(name)
    theirs["return_token_ids"] = row["body"].get("return_token_ids")
    if row["server"] != "plain":
        theirs["reasoning_parser_kwargs"] = None
        theirs["reasoning_ended"] = True if row["body"].get("include_reasoning") is False else None
    return theirs


@pytest.mark.parametrize("row", pairs())
def test_as_vllm_renders(row: Any) -> None:
    status, ours = ask(row)
    theirs = row["response"]
    assert status == row["status"]
    if status != 200:
        assert ours["error"].keys() == theirs["error"].keys()
        assert ours["error"]["type"] == theirs["error"]["type"]
        if theirs["error"]["type"] == "BadRequestError":
            if row["name"] != "err image":  # ours names the part
                assert theirs["error"]["param"] in (None, ours["error"]["param"])
            assert similar(ours["error"]["message"], theirs["error"]["message"])
        return
    if row["path"] == TOKENIZE:
        assert ours == theirs
        return
    many = isinstance(theirs, list)
    for mine, other in zip(ours if many else [ours], theirs if many else [theirs], strict=True):
        context = mine.pop("parse_context", None)
        assert (context is None) is (row["path"] == TEXT)
        if "request_id" not in row["body"] and not row["headers"]:
            mine["request_id"] = re.sub("-[0-9a-f]{16}$", "", mine["request_id"])
            other["request_id"] = re.sub("-[0-9a-f]{16}$", "", other["request_id"])
        assert mine == intended(row, other)


def similar(ours: str, theirs: str) -> bool:
    """Whether a message says what vLLM's says: the same words, but for counts that we know exactly."""
    exact = re.sub(r"(at least )?\d+ input tokens|value=\d+", "#", ours)
    return exact == re.sub(r"(at least )?\d+ input tokens|value=\d+", "#", theirs) or ours.startswith(theirs)
