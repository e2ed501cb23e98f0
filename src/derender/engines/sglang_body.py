"""The body of SGLang's `POST /generate` for a generate request: each parameter carried, translated or refused.

Every parameter with a default is written, because a server may have others (`preferred_sampling_params`, the model's
generation config), and SGLang's `max_new_tokens` is 128 where nothing is said. Source: SGLang's `sampling_params.py`,
`io_struct.py` and the page "Sampling parameters".

Read there, and different from vLLM: `repetition_penalty` counts the output only, not the prompt, and may be 2 at most;
`seed` works on servers with `--enable-deterministic-inference` and changes nothing on others; logprobs are those after
the temperature unless the server has SGLANG_RETURN_ORIGINAL_LOGPROB set; `min_tokens` and constraints need a server
that has its tokenizer (no `--skip-tokenizer-init`); `cache_salt` keeps caches apart on servers that know `extra_key`.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET

from derender.engines.sampling import GREEDY_BELOW
from derender.protocol.codec import encode, encode_text
from derender.protocol.common import StructuredOutputs
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateRequest, SamplingParams

_LOWEST_TEMPERATURE = 0.01  # what vLLM raises a smaller one to
_BIAS = 100.0
_KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
_SPECIAL = re.compile(r"([\\.^$|?*+()\[\]{}])")

BOOTSTRAP = frozenset(
    (
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "bootstrap_pair_key",
        "decode_tp_size",
        "disagg_prefill_dp_rank",
    )
)
"""What SGLang's prefill and decode servers are told of each other: taken from `kv_transfer_params`."""

WITHOUT_EFFECT = frozenset(
    (
        "detokenize",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "include_stop_str_in_output",
        "flat_logprobs",
    )
)
"""Parameters of text, or of how vLLM holds its own data: they change no token id."""

REFUSED = (
    "stop",
    "bad_words",
    "allowed_token_ids",
    "prompt_logprob_token_ids",
    "prompt_logprob_start",
    "logprob_token_ids",
    "thinking_token_budget",
    "repetition_detection",
    "trace_decode_token_ids",
    "watermarking",
    "routed_experts_prompt_start",
)
"""Parameters that SGLang does not have, or not for a client that knows ids only."""


def body(request: GenerateRequest, *, stream: bool, rid: str, priority: int | None) -> bytes:
    """The body. `priority`: what a request's priority is multiplied with, None where the server knows no priorities.

    Raises `BadRequest` naming the field.
    """
    p = request.sampling_params
    _refuse(request, stream=stream, priority=priority)
    logprobs = _count(p, "logprobs")
    prompt_logprobs = _count(p, "prompt_logprobs")
    made: dict[str, Any] = {
        "rid": rid,
        "input_ids": request.token_ids,
        "sampling_params": _params(p),
        "stream": stream,
    }
    if logprobs is not None or prompt_logprobs is not None:
        made["return_logprob"] = True
        made["top_logprobs_num"] = max(logprobs or 0, prompt_logprobs or 0)
        made["logprob_start_len"] = -1 if prompt_logprobs is None else 0
    if request.cache_salt is not None:
        made["extra_key"] = request.cache_salt
    if request.priority and priority is not None:
        made["priority"] = request.priority * priority
    if _value(p.structured_outputs, None) is not None and request.reasoning_ended is False:
        made["require_reasoning"] = True  # the constraint waits for the end of the reasoning
    made.update(request.kv_transfer_params or {})
    return encode(made)


def _refuse(request: GenerateRequest, *, stream: bool, priority: int | None) -> None:
    p = request.sampling_params
    if _value(p.n, 1) != 1:
        raise BadRequest("n must be 1: this engine is asked for one choice at a time", param="n")
    for name in REFUSED:
        if _value(getattr(p, name), None):
            raise BadRequest(f"{name} is not supported by this engine", param=name)
    for key, value in (_value(p.extra_args, None) or {}).items():
        if value is not None:
            raise BadRequest(f"extra_args.{key} is not supported by this engine", param="extra_args")
    if stream and _value(p.prompt_logprobs, None) is not None:
        raise BadRequest("prompt_logprobs are not available when stream is true", param="prompt_logprobs")
    if _value(p.ignore_eos, False) and _value(p.stop_token_ids, None):
        raise BadRequest(
            "stop_token_ids do not go with ignore_eos on this engine, which then stops at no id", param="stop_token_ids"
        )
    if request.output_mode != "tokens":
        raise BadRequest(
            f"output_mode {request.output_mode!r} is not supported: this engine is asked for ids", param="output_mode"
        )
    if request.features is not None or request.content_parts:
        name = "features" if request.features is not None else "content_parts"
        raise BadRequest(f"{name} is not supported by this engine", param=name)
    if request.ec_transfer_params:
        raise BadRequest("ec_transfer_params is not supported by this engine", param="ec_transfer_params")
    if unknown := sorted((request.kv_transfer_params or {}).keys() - BOOTSTRAP):
        raise BadRequest(f"kv_transfer_params.{unknown[0]} is not known to this engine", param="kv_transfer_params")
    if request.priority and priority is None:
        raise BadRequest("priority is not supported: the engine schedules without priorities", param="priority")


def _params(p: SamplingParams) -> dict[str, Any]:
    temperature = _value(p.temperature, 1.0)
    if 0.0 <= temperature < GREEDY_BELOW:
        temperature = 0.0
    elif temperature > 0.0:
        temperature = max(temperature, _LOWEST_TEMPERATURE)
    made: dict[str, Any] = {
        "max_new_tokens": _value(p.max_tokens, None),  # null: to the end of the context
        "min_new_tokens": _value(p.min_tokens, 0),
        "temperature": temperature,
        "top_p": _value(p.top_p, 1.0),
        "top_k": _value(p.top_k, 0) or -1,
        "min_p": _value(p.min_p, 0.0),
        "presence_penalty": _value(p.presence_penalty, 0.0),
        "frequency_penalty": _value(p.frequency_penalty, 0.0),
        "repetition_penalty": _value(p.repetition_penalty, 1.0),
        "ignore_eos": _value(p.ignore_eos, False),
        "stop": None,
        "stop_token_ids": _value(p.stop_token_ids, None) or None,
        "n": 1,
    }
    if (bias := _value(p.logit_bias, None)) is not None:
        made["logit_bias"] = {token: min(_BIAS, max(-_BIAS, value)) for token, value in bias.items()}
    # Older servers refuse parameters that they do not know, so that these are written only where they are asked.
    seed = _value(p.seed, None)
    if seed is not None and seed != -1:
        made["sampling_seed"] = seed
    if (interval := _value(p.stream_interval, None)) is not None:
        made["stream_interval"] = interval
    if (asked := _value(p.structured_outputs, None)) is not None:
        name, value = _constraint(asked)
        made[name] = value
    return made


def _constraint(asked: StructuredOutputs) -> tuple[str, str]:
    """The one constraint, as SGLang's parameter for it."""
    given = [name for name in _KINDS if getattr(asked, name) not in (None, False)]
    if len(given) != 1:
        raise BadRequest(f"structured_outputs must have exactly one of {', '.join(_KINDS)}", param="structured_outputs")
    for name in ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties"):
        if getattr(asked, name):
            place = f"structured_outputs.{name}"
            raise BadRequest(f"{place} is not supported by this engine", param=place)
    if asked.json is not None:
        return "json_schema", asked.json if isinstance(asked.json, str) else encode_text(asked.json)
    if asked.regex is not None:
        return "regex", asked.regex
    if asked.grammar is not None:
        return "ebnf", asked.grammar
    if asked.structural_tag is not None:
        return "structural_tag", asked.structural_tag
    if asked.choice is None:
        return "json_schema", '{"type":"object"}'
    if not asked.choice:
        raise BadRequest("structured_outputs.choice cannot be empty", param="structured_outputs.choice")
    return "regex", "(" + "|".join(_SPECIAL.sub(r"\\\1", text) for text in asked.choice) + ")"


def _count(p: SamplingParams, name: str) -> int | None:
    count: int | None = _value(getattr(p, name), None)
    if count is not None and count < 0:
        raise BadRequest(f"{name} of {count} is not supported by this engine: it must be 0 or more", param=name)
    return count


def _value(given: Any, default: Any) -> Any:
    return default if given is UNSET else given
