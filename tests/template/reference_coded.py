"""Runs in the Python of DERENDER_REFERENCE_PYTHON: chats as vLLM's and mistral-common's own code makes prompts of them.

stdin: {"family": name, "requests": [chat request], ...}; stdout, last line: an answer for each, [true, text] or
[false, reason]. For Mistral: the ids, and those of the given text with its special tokens taken as such.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Json = Any


def answer(render: Any, *given: Any) -> list[Any]:
    try:
        return [True, render(*given)]
    except Exception as error:  # the answer is that the reference refuses, and why
        return [False, f"{type(error).__name__}: {error}"]


def config() -> Any:
    return SimpleNamespace(
        model="m", multimodal_config=None, enable_prompt_embeds=False, is_multimodal_model=False,
        hf_config=SimpleNamespace(model_type="llama"), allowed_local_media_path="", allowed_media_domains=None,
        revision=None, code_revision=None, tokenizer_revision=None, trust_remote_code=False,
    )  # fmt: skip


def harmony(task: Json) -> list[list[Any]]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.parser import harmony_utils as utils

    def render(body: Json) -> str:
        request = ChatCompletionRequest.model_validate(body)
        instructions, rest = utils.extract_instructions_from_messages(json.loads(json.dumps(body["messages"])))
        for message in rest:
            message["tool_calls"] = message.get("tool_calls") or []
        messages = utils.build_harmony_preamble(
            instructions=instructions, tools=request.tools, reasoning_effort=request.reasoning_effort
        )
        messages += utils.parse_chat_inputs_to_harmony_messages(rest)
        return str(utils.get_encoding().decode(utils.render_for_completion(messages)))

    return [answer(render, body) for body in task["requests"]]


def inkling(task: Json) -> list[list[Any]]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers import inkling as renderer

    pieces: list[str] = []

    class Tokenizer:
        """An id for each piece of text."""

        def encode_text(self, text: str) -> list[int]:
            pieces.append(text)
            return [len(pieces) - 1]

        def encode_special(self, token: str) -> int:
            return self.encode_text(token)[0]

    def render(body: Json) -> str:
        request = ChatCompletionRequest.model_validate(body)
        tools = [tool.model_dump() for tool in request.tools] if request.tools is not None else None
        effort = renderer._resolve_reasoning_effort(body.get("reasoning_effort"))
        ids = renderer.render_inkling_messages(body["messages"], Tokenizer(), tools=tools, reasoning_effort=effort)
        return "".join(pieces[number] for number in ids)

    return [answer(render, body) for body in task["requests"]]


def deepseek(task: Json) -> list[list[Any]]:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers.chat_utils import parse_chat_messages
    from vllm.tokenizers import deepseek_v4, deepseek_v32, deepseek_v41

    wrap, style = {
        "deepseek_v32": (deepseek_v32.get_deepseek_v32_tokenizer, "string"),
        "deepseek_v4": (deepseek_v4.get_deepseek_v4_tokenizer, "openai"),
        "deepseek_v41": (deepseek_v41.get_deepseek_v41_tokenizer, "openai"),
    }[task["family"]]
    tokenizer = wrap(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE())))

    def render(body: Json) -> str:
        request = ChatCompletionRequest.model_validate(body)
        tools = [tool.model_dump() for tool in request.tools] if request.tools is not None else None
        params = request.build_chat_params(None, "auto").with_defaults({"tools": tools})
        conversation, _, _ = parse_chat_messages(request.messages, config(), content_format=style)
        arguments = {**params.get_apply_chat_template_kwargs(), "tokenize": False}
        return str(tokenizer.apply_chat_template(conversation=conversation, messages=request.messages, **arguments))

    return [answer(render, body) for body in task["requests"]]


SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]",
    "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]",
    "[MODEL_SETTINGS]", "[/MODEL_SETTINGS]",
)  # fmt: skip


def mistral_tokenizer(kind: str, folder: Path) -> Any:
    """mistral-common's tokenizer of a version: a file of its own, or for later ones a tekken file with their tokens."""
    import mistral_common
    from mistral_common.protocol.instruct.validator import ValidationMode
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    data = Path(mistral_common.__file__).parent / "data"
    files = {
        "v1": "tokenizer.model.v1", "v2": "mistral_instruct_tokenizer_240216.model.v2",
        "v3": "mistral_instruct_tokenizer_240323.model.v3", "v7": "mistral_instruct_tokenizer_241114.model.v7",
        "tekken v3": "tekken_240718.json",
    }  # fmt: skip
    if kind in files:
        path = data / files[kind]
    else:
        tree = json.loads((data / "tekken_240718.json").read_bytes())
        tree["config"]["version"] = kind.split()[1]
        tree["special_tokens"] = [
            {"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(SPECIAL)
        ]
        if kind == "tekken v15":
            rule = {"type": "enum", "values": ["none", "high"], "accepts_none": True, "default": "none"}
            tree["model_settings_builder"] = {"reasoning_effort": rule}
        path = folder / f"{kind.replace(' ', '_')}.json"
        path.write_text(json.dumps(tree))
    return MistralTokenizer.from_file(str(path), mode=ValidationMode.test)


def mistral(task: Json) -> list[list[Any]]:
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from vllm.tokenizers.mistral import truncate_tool_call_ids

    with tempfile.TemporaryDirectory() as folder:
        whole = mistral_tokenizer(task["kind"], Path(folder))
    tokenizer = whole.instruct_tokenizer.tokenizer
    known = [token for token in SPECIAL if tokenizer.is_special(token)]
    if task["kind"] == "v1":
        known = ["<s>", "</s>"]
    split = re.compile("(" + "|".join(map(re.escape, known)) + ")")

    def ids(text: str) -> list[int]:
        """Special tokens as such, and each text between them on its own."""
        found: list[int] = []
        for piece in split.split(text):
            if piece in known:
                found.append(tokenizer.get_special_token(piece))
            elif piece:
                found += tokenizer.encode(piece, bos=False, eos=False)
        return found

    def render(body: Json) -> list[int]:
        body = json.loads(json.dumps(body))
        truncate_tool_call_ids(SimpleNamespace(messages=body["messages"]))
        options = {"reasoning_effort": body["reasoning_effort"]} if "reasoning_effort" in body else {}
        last = body["messages"][-1]["role"]
        continues = body.get("continue_final_message", False)
        if continues != (last == "assistant"):
            raise ValueError("the last message is or is not the assistant's")
        for message in body["messages"]:
            message.pop("tools", None)
            if message["role"] == "assistant" and not message.get("tool_calls"):
                message.pop("tool_calls", None)
        request = ChatCompletionRequest.from_openai(
            messages=body["messages"], tools=body.get("tools"), continue_final_message=continues, **options
        )
        return list(whole.encode_chat_completion(request).tokens)

    answers = []
    for body, text in zip(task["requests"], task["texts"], strict=True):
        answers.append([*answer(render, body), ids(text) if text is not None else None])
    return answers


def main() -> None:
    task = json.load(sys.stdin)
    run = {"harmony": harmony, "inkling": inkling, "mistral": mistral}.get(task["family"], deepseek)
    print(json.dumps(run(task)))


if __name__ == "__main__":
    main()
