"""`POST /completion` of a llama.cpp server: what it is asked, and what its answers mean.

Every sampler is named in every request, because the server's own defaults (top_k 40, top_p 0.95, min_p 0.05,
temperature 0.8) are not those of the token protocol. The order is vLLM's: bias, penalties, temperature, min_p, top_k,
top_p. Source of the fields: the server's README; seen on the build inside xllamacpp 2026.10.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from derender.engines.errors import EngineFailed
from derender.engines.sampling import Limits, Plan, Sampling, plan
from derender.protocol.codec import MIN_LOGPROB, encode
from derender.protocol.errors import BadRequest
from derender.protocol.generate import GenerateLogprob, GenerateRequest, GenerateTopLogprob

_SAMPLERS = ["penalties", "temperature", "min_p", "top_k", "top_p"]
_FIELDS = ["tokens", "content", "stop_type", "truncated", "completion_probabilities", "timings/cache_n"]
_RANDOM_SEED = 0xFFFFFFFF  # llama.cpp takes this one for "any"
_CONTROL = re.compile(r'["\\\x00-\x1f\x7f]')
_JSON_BEGINS = frozenset('{["-0123456789tfn')


class _Candidate(msgspec.Struct):
    id: int
    logprob: float | None = None


class _Position(msgspec.Struct):
    id: int
    logprob: float | None = None
    top_logprobs: list[_Candidate] = []


class Completion(msgspec.Struct):
    """One answer. `tokens` has every id, the one that ended it included; `positions` leaves some out (`whole`)."""

    tokens: list[int] = []
    content: str = ""
    stop_type: str = ""
    truncated: bool = False
    positions: list[_Position] = msgspec.field(name="completion_probabilities", default_factory=list)
    cached: int | None = msgspec.field(name="timings/cache_n", default=None)

    @property
    def whole(self) -> bool:
        """Whether each id has its logprobs. The server gives none for an id whose bytes end inside a character."""
        return len(self.positions) == len(self.tokens)


_completion = msgspec.json.Decoder(Completion)


def read(body: bytes, *, name: str) -> Completion:
    """An answer's body. Raises `EngineFailed`."""
    try:
        return _completion.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineFailed(f"{name} sent what is no answer") from None


def planned(request: GenerateRequest, limits: Limits, *, random_seed: int) -> Plan:
    """The request as values. Raises `BadRequest` naming the field for what a llama.cpp server does not do.

    Refused beyond what `engines.sampling.plan` refuses: `n` over 1; `allowed_token_ids`; the penalties for presence
    and frequency, which llama.cpp counts over the prompt too and vLLM over the output only; and beside a constraint
    `min_tokens` and `ignore_eos`, because its grammar decides when the output ends.
    """
    n = request.sampling_params.n
    if n is not UNSET and n > 1:
        raise BadRequest("n must be 1: this engine makes one choice of a request", param="n")
    # The engine serves one model, whatever its name is.
    made = plan(replace(request, model=None), limits, random_seed=lambda: random_seed)
    sampling = made.choices[0]
    for field in ("presence_penalty", "frequency_penalty"):
        if getattr(sampling, field):
            raise BadRequest(f"{field} is not supported by this engine, which counts the prompt's tokens", param=field)
    if sampling.allowed is not None:
        raise BadRequest("allowed_token_ids is not supported by this engine", param="allowed_token_ids")
    if sampling.constraint is not None:
        if sampling.min_tokens:
            raise BadRequest("min_tokens does not go with structured_outputs on this engine", param="min_tokens")
        if sampling.ignore_eos:
            raise BadRequest("ignore_eos does not go with structured_outputs on this engine", param="ignore_eos")
        asked = request.sampling_params.structured_outputs
        if asked and asked.disable_any_whitespace:
            field = "structured_outputs.disable_any_whitespace"
            raise BadRequest(f"{field} is not supported by this engine", param=field)
    return made


def constraint_fields(request: GenerateRequest) -> Mapping[str, Any]:
    """How the server is told of a constraint that `planned` took."""
    asked = request.sampling_params.structured_outputs
    if not asked:
        return {}
    if asked.grammar is not None:
        return {"grammar": asked.grammar}
    if asked.choice is not None:
        return {"grammar": "root ::= " + " | ".join(map(_literal, asked.choice))}
    if asked.json is None:
        return {"json_schema": {"type": "object"}}
    return {"json_schema": msgspec.json.decode(asked.json) if isinstance(asked.json, str) else asked.json}


def _literal(text: str) -> str:
    """A text as a string of GBNF, which knows fewer escapes than JSON."""
    return '"' + _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02X}", text) + '"'


def looks_like_json(completion: Completion) -> bool:
    """Whether an answer may be what a JSON schema asked for.

    The server samples freely, and says nothing, where its grammar engine cannot read a schema.
    """
    text = completion.content.lstrip()
    if completion.stop_type != "eos":
        return not text or text[0] in _JSON_BEGINS
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def body(
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    tokens: int,
    position: int,
    window: int,
    hold_end: bool,
    constraint: Mapping[str, Any],
) -> bytes:
    """The body that asks for up to `tokens` more ids after `prompt`, the first of which is the output's `position`.

    `window`: how far back repetition counts, which is all the way where it is the context's length. `hold_end`: the
    output does not end yet, whatever its ids are.
    """
    bias: list[tuple[int, float | bool]] = list(sampling.logit_bias)
    if hold_end:
        held = set(sampling.stop_token_ids)
        bias = [pair for pair in bias if pair[0] not in held] + [(token, False) for token in sorted(held)]
    greedy = sampling.greedy
    return encode(
        {
            "prompt": prompt,
            "n_predict": tokens,
            "stream": False,
            "cache_prompt": True,
            "return_tokens": True,
            "response_fields": _FIELDS,
            "samplers": _SAMPLERS,
            "temperature": 0.0 if greedy else sampling.temperature,
            "dynatemp_range": 0.0,
            "mirostat": 0,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": window,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": _seed(sampling.seed, position),
            "logit_bias": bias,
            "ignore_eos": hold_end,
            "stop": [],
            "n_probs": 0 if sampling.logprobs is None else max(1, sampling.logprobs),
            "post_sampling_probs": False,
            **constraint,
        }
    )


def scoring_body(prompt: Sequence[int], *, candidates: int) -> bytes:
    """The body that asks for the most likely ids after `prompt`, whatever comes: the one id that the server makes is
    held to a letter, because it tells no logprobs at an id that ends inside a character."""
    return encode(
        {
            "prompt": prompt,
            "n_predict": 1,
            "stream": False,
            "cache_prompt": True,
            "return_tokens": True,
            "response_fields": _FIELDS,
            "temperature": 0.0,
            "n_probs": candidates,
            "post_sampling_probs": False,
            "grammar": 'root ::= "a"',
        }
    )


def _seed(seed: int, position: int) -> int:
    """A seed of llama.cpp's 32 bits for what is sampled from a position on: each request to the server starts its
    generator anew, and must not start it at the same place."""
    digest = hashlib.blake2b(seed.to_bytes(9, "little", signed=True) + position.to_bytes(8, "little"), digest_size=4)
    value = int.from_bytes(digest.digest(), "little")
    return 0 if value == _RANDOM_SEED else value


def logprob(token: int, position: _Position, *, k: int) -> GenerateLogprob | None:
    """The entry of one id: it, then the `k` best without it. None where the position does not tell of this id.

    The rank is None for an id that is not among the candidates: the server does not tell it.
    """
    ranked = list(enumerate(position.top_logprobs, 1))
    rank, value = next(((rank, one.logprob) for rank, one in ranked if one.id == token), (None, position.logprob))
    if rank is None and position.id != token:
        return None
    first = GenerateTopLogprob(token_id=token, logprob=_finite(value), rank=rank)
    others = [
        GenerateTopLogprob(token_id=one.id, logprob=_finite(one.logprob), rank=other)
        for other, one in ranked[:k]
        if one.id != token
    ]
    return GenerateLogprob(token_id=token, logprob=first.logprob, rank=rank, top_logprobs=[first, *others])


def _finite(value: float | None) -> float:
    return MIN_LOGPROB if value is None else max(MIN_LOGPROB, value)
