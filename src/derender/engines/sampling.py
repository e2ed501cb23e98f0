"""What a generate request asks, checked against one engine's limits and put into plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import UNSET

from derender.engines.gbnf import GrammarError, lark_of_gbnf
from derender.limits import LIMITS
from derender.protocol.codec import encode_text
from derender.protocol.common import StructuredOutputs
from derender.protocol.errors import BadRequest, NotFound
from derender.protocol.generate import GenerateRequest, SamplingParams

GREEDY_BELOW = 1e-5  # a temperature under this is greedy, as in vLLM
_LOWEST_TEMPERATURE = 0.01  # what vLLM raises a smaller one to
_BIAS = 100.0
MAX_GRAMMAR = 65536  # bytes of a constraint
_MAX_STREAM_INTERVAL = 2**31
FEW, _MANY_LISTED = 64, 4096  # choices and listed ids that are planned within a millisecond
_MOST_LISTED = 4  # ids in a list, for each of the vocabulary

ConstraintKind = Literal["json_schema", "regex", "lark"]


@dataclass(frozen=True)
class Constraint:
    """A grammar that the output must follow: its language, its text, and the request's field for error messages."""

    kind: ConstraintKind
    text: str
    field: str


@dataclass(frozen=True)
class Sampling:
    """How one choice is sampled. `seed` is set for every choice; `allowed` None means every id."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed: tuple[int, ...] | None = None
    constraint: Constraint | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True)
class Plan:
    """One request, resolved: the choices with a seed each, and how often a stream speaks."""

    choices: tuple[Sampling, ...]
    stream_interval: int = 1


@dataclass(frozen=True)
class Limits:
    """What bounds a request. Lengths are in tokens; `constraints` are the languages that the engine applies."""

    names: Collection[str]
    vocab_size: int
    max_model_len: int
    max_logprobs: int = 20
    max_n: int = LIMITS.max_n_sequences
    constraints: Collection[ConstraintKind] = field(default_factory=frozenset)


def plans_long(request: GenerateRequest) -> bool:
    """Whether `plan` may take more than some milliseconds for a request."""
    p = request.sampling_params
    listed = sum(len(_value(ids, None) or ()) for ids in (p.stop_token_ids, p.allowed_token_ids, p.logit_bias))
    return _value(p.n, 1) > FEW or listed > _MANY_LISTED or _value(p.structured_outputs, None) is not None


def plan(request: GenerateRequest, limits: Limits, *, random_seed: Callable[[], int]) -> Plan:
    """The request as values, its limits checked. Raises `BadRequest` naming the field, `NotFound` for the model."""
    if request.model is not None and request.model not in limits.names:
        raise NotFound(f"The model `{request.model}` does not exist.", param="model")
    _refuse_what_is_not_done(request)
    p = request.sampling_params
    _check_ranges(p)
    _check_prompt_length(len(request.token_ids), limits.max_model_len)
    _check_ids("token_ids", request.token_ids, limits.vocab_size)
    logprobs = _logprobs(p, limits)
    n = _value(p.n, 1)
    if n < 1:
        raise BadRequest(f"n must be at least 1, got {n}.", param="n")
    if n > limits.max_n:
        raise BadRequest(
            f"n must be at most {limits.max_n}, got {n}. "
            "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable.",
            param="n",
        )
    temperature = _value(p.temperature, 1.0)
    greedy = temperature < GREEDY_BELOW
    if greedy and n > 1:
        raise BadRequest(f"n must be 1 when using greedy sampling, got {n}.", param="n")
    stops = _value(p.stop_token_ids, None) or []
    _check_list("stop_token_ids", stops, limits.vocab_size)
    allowed = _value(p.allowed_token_ids, None)
    if allowed is not None:
        if not allowed:
            raise BadRequest("allowed_token_ids is not None and empty!", param="allowed_token_ids")
        _check_list("allowed_token_ids", allowed, limits.vocab_size)
    seed = _value(p.seed, None)
    if seed is None or seed == -1:
        seed = random_seed()
    base = Sampling(
        temperature=temperature if greedy else max(temperature, _LOWEST_TEMPERATURE),
        top_p=_value(p.top_p, 1.0),
        top_k=max(_value(p.top_k, 0), 0),
        min_p=_value(p.min_p, 0.0),
        presence_penalty=_value(p.presence_penalty, 0.0),
        frequency_penalty=_value(p.frequency_penalty, 0.0),
        repetition_penalty=_value(p.repetition_penalty, 1.0),
        max_tokens=_max_tokens(p, prompt=len(request.token_ids), max_model_len=limits.max_model_len),
        min_tokens=_value(p.min_tokens, 0),
        ignore_eos=_value(p.ignore_eos, False),
        stop_token_ids=frozenset(stops),
        logprobs=logprobs,
        logit_bias=_bias(p, limits.vocab_size),
        allowed=None if allowed is None else tuple(sorted(set(allowed))),
        constraint=constraint_of(_value(p.structured_outputs, None), known=limits.constraints),
    )
    # Choice i of a seeded request has the seed that vLLM gives it: the request's plus i.
    choices = tuple(dataclasses.replace(base, seed=seed + index) for index in range(n))
    interval = _value(p.stream_interval, None)
    return Plan(choices=choices, stream_interval=1 if interval is None else min(interval, _MAX_STREAM_INTERVAL))


def _value(given: Any, default: Any) -> Any:
    return default if given is UNSET else given


def _refuse_what_is_not_done(request: GenerateRequest) -> None:
    p = request.sampling_params
    if _value(p.stop, None):
        raise BadRequest(
            "stop strings are not supported on a --tokens-only server because detokenization is disabled. "
            "Check stop strings on the coordinator, or use stop_token_ids.",
            param="stop",
        )
    if request.output_mode != "tokens":
        raise BadRequest(
            f"output_mode='{request.output_mode}' requires a tokenizer, but this server does not load one. "
            "Send the request to a server that loads a tokenizer, or use output_mode='tokens'.",
            param="output_mode",
        )
    if request.features is not None or request.content_parts:
        name = "features" if request.features is not None else "content_parts"
        raise BadRequest(f"{name} is not supported: the model is not multimodal", param=name)
    for name in ("kv_transfer_params", "ec_transfer_params"):
        if getattr(request, name):
            raise BadRequest(f"{name} is not supported: this engine transfers no caches", param=name)
    if _value(p.bad_words, None):
        raise BadRequest(
            "bad_words is not supported: it needs a tokenizer, and this server has none", param="bad_words"
        )
    for name in (
        "prompt_logprobs",
        "prompt_logprob_token_ids",
        "prompt_logprob_start",
        "logprob_token_ids",
        "thinking_token_budget",
        "repetition_detection",
        "trace_decode_token_ids",
    ):
        if _value(getattr(p, name), None) is not None:
            raise BadRequest(f"{name} is not supported by this engine", param=name)
    for name in ("watermarking", "routed_experts_prompt_start"):
        if _value(getattr(p, name), None):
            raise BadRequest(f"{name} is not supported by this engine", param=name)
    for key, value in (_value(p.extra_args, None) or {}).items():
        if value is not None:
            raise BadRequest(f"extra_args.{key} is not supported by this engine", param="extra_args")


def _check_ranges(p: SamplingParams) -> None:
    """The ranges, and the words for them, of vLLM's sampling parameters."""

    def bounded(name: str, low: float, high: float, default: float) -> None:
        value = _value(getattr(p, name), default)
        if not low <= value <= high:
            raise BadRequest(f"{name} must be in [{low:g}, {high:g}], got {value}.", param=name)

    bounded("presence_penalty", -2, 2, 0.0)
    bounded("frequency_penalty", -2, 2, 0.0)
    bounded("min_p", 0, 1, 0.0)
    repetition = _value(p.repetition_penalty, 1.0)
    if repetition <= 0.0:
        raise BadRequest(f"repetition_penalty must be greater than zero, got {repetition}.", param="repetition_penalty")
    temperature = _value(p.temperature, 1.0)
    if temperature < 0.0:
        raise BadRequest(f"temperature must be non-negative, got {temperature}.", param="temperature")
    bounded("temperature", 0, 2, 1.0)
    top_p = _value(p.top_p, 1.0)
    if not 0.0 < top_p <= 1.0:
        raise BadRequest(f"top_p must be in (0, 1], got {top_p}.", param="top_p")
    top_k = _value(p.top_k, 0)
    if not -1 <= top_k < 2**31:
        raise BadRequest(f"top_k must be 0 (disable), or at least 1, got {top_k}.", param="top_k")
    seed = _value(p.seed, None)
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise BadRequest(f"seed must be a signed 64-bit integer, got {seed}.", param="seed")
    interval = _value(p.stream_interval, None)
    if interval is not None and interval < 1:
        raise BadRequest(f"stream_interval must be at least 1, got {interval}.", param="stream_interval")
    max_tokens = _value(p.max_tokens, None)
    if max_tokens is not None and max_tokens < 1:
        raise BadRequest(f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens")
    min_tokens = _value(p.min_tokens, 0)
    if min_tokens < 0:
        raise BadRequest(f"min_tokens must be greater than or equal to 0, got {min_tokens}.", param="min_tokens")
    if max_tokens is not None and min_tokens > max_tokens:
        raise BadRequest(
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.", param="min_tokens"
        )


def _check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    if not ids or (max(ids) < vocab_size and min(ids) >= 0):
        return
    position = next(i for i, token in enumerate(ids) if not 0 <= token < vocab_size)
    raise BadRequest(
        f"{name}[{position}]: token id {ids[position]} is out of vocabulary (vocabulary size {vocab_size})", param=name
    )


def _check_list(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """The same for a list that is looked through for each choice."""
    if len(ids) > _MOST_LISTED * vocab_size:
        raise BadRequest(f"{name} has {len(ids)} ids, of a vocabulary of {vocab_size}", param=name)
    _check_ids(name, ids, vocab_size)


def _logprobs(p: SamplingParams, limits: Limits) -> int | None:
    k: int | None = _value(p.logprobs, None)
    if k is None:
        return None
    if k < -1:
        raise BadRequest(f"logprobs must be non-negative or -1, got {k}.", param="logprobs")
    asked = limits.vocab_size if k == -1 else k
    if asked > limits.max_logprobs:
        raise BadRequest(
            f"Requested sample logprobs of {asked}, which is greater than max allowed: {limits.max_logprobs}",
            param="logprobs",
        )
    return asked


def _check_prompt_length(prompt: int, max_model_len: int) -> None:
    if prompt > max_model_len:
        raise BadRequest(
            f"The decoder prompt (length {prompt}) is longer than the maximum model length of {max_model_len}. "
            "Make sure that `max_model_len` is no smaller than the number of text tokens.",
            param="token_ids",
        )


def _max_tokens(p: SamplingParams, *, prompt: int, max_model_len: int) -> int:
    """The most tokens to generate: what was asked, or what is left of the context. The words are vLLM's."""
    asked: int | None = _value(p.max_tokens, None)
    if prompt + (asked or 1) > max_model_len:
        wanted = "at least 1" if asked is None else asked
        raise BadRequest(
            f"The decoder prompt (length {prompt}) plus the number of requested output tokens ({wanted}) is longer "
            f"than the maximum model length of {max_model_len}. Make sure that `max_model_len` is no smaller than "
            "the number of text tokens (prompt + requested output tokens).",
            param="token_ids" if asked is None else "max_tokens",
        )
    return max_model_len - prompt if asked is None else asked


def _bias(p: SamplingParams, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """Ids with what is added to their logits, within [-100, 100] as in vLLM."""
    given: dict[str, float] = _value(p.logit_bias, None) or {}
    pairs = []
    for key, bias in given.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise BadRequest(f"logit_bias: key {key[:40]!r} is not a token id", param="logit_bias")
        pairs.append((int(key), min(_BIAS, max(-_BIAS, bias))))
    _check_ids("logit_bias", [token for token, _ in pairs], vocab_size)
    return tuple(pairs)


def constraint_of(asked: StructuredOutputs | None, *, known: Collection[ConstraintKind]) -> Constraint | None:
    """The one constraint of `structured_outputs`. Raises `BadRequest` for none, several, or one that is not done."""
    if asked is None:
        return None
    given = [
        name
        for name in ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        if getattr(asked, name) not in (None, False)
    ]
    where = "structured_outputs"
    if len(given) != 1:
        raise BadRequest(
            "structured_outputs must have exactly one of json, regex, choice, grammar, json_object, structural_tag",
            param=where,
        )
    if asked.whitespace_pattern is not None or asked.disable_additional_properties:
        name = "whitespace_pattern" if asked.whitespace_pattern is not None else "disable_additional_properties"
        raise BadRequest(f"{where}.{name} is not supported by this engine", param=f"{where}.{name}")
    name = given[0]
    place = f"{where}.{name}"
    constraint: Constraint | None = None
    if name == "json":
        schema = asked.json if isinstance(asked.json, str) else encode_text(asked.json)
        constraint = Constraint("json_schema", _spaced(schema, asked.disable_any_whitespace), place)
    elif name == "json_object":
        constraint = Constraint("json_schema", _spaced('{"type":"object"}', asked.disable_any_whitespace), place)
    elif name == "regex" and asked.regex is not None:
        constraint = Constraint("regex", asked.regex, place)
    elif name == "choice" and asked.choice is not None:
        if not asked.choice:
            raise BadRequest("structured_outputs.choice cannot be empty", param=place)
        constraint = Constraint("lark", "start: " + " | ".join(encode_text(text) for text in asked.choice), place)
    elif name == "grammar" and asked.grammar is not None:
        if len(asked.grammar) > MAX_GRAMMAR:
            raise BadRequest(f"{place} is larger than {MAX_GRAMMAR} bytes", param=place)
        try:
            constraint = Constraint("lark", lark_of_gbnf(asked.grammar), place)
        except GrammarError as error:
            raise BadRequest(f"{place} is not a GBNF grammar: {error}", param=place) from None
    if constraint is None or constraint.kind not in known:
        raise BadRequest(f"{place} is not supported by this engine", param=place)
    return constraint


def _spaced(schema: str, tight: bool) -> str:
    """The schema, with llguidance's option for JSON without whitespace where that is asked."""
    body = schema.strip()
    if not tight or not body.startswith("{"):
        return schema
    rest = body[1:].lstrip()
    return '{"x-guidance":{"whitespace_flexible":false}' + ("" if rest.startswith("}") else ",") + rest
