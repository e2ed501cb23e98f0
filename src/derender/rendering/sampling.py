"""Requests → `SamplingParams`: the request's value, else the model's default, else the API's; then the ranges.

What is on the wire follows vLLM's own encoding, which leaves a field out where it has its default, except that
`max_tokens` is always written: a generate server that finds none runs to the end of the context. What vLLM's engine
refuses once it has the request is refused here, with the same words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from derender.limits import LIMITS
from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.common import Json, RepetitionDetection, StructuredOutputs
from derender.protocol.completions import CompletionRequest
from derender.protocol.errors import BadRequest, InvalidBody
from derender.protocol.generate import SamplingParams
from derender.rendering.refusal import refuse, shown

MAX_LOGPROB_TOKEN_IDS = 128
"""Most entries of `logprob_token_ids` (the width of the engine's row)."""

COMPLETION_MAX_TOKENS = 16
"""The completions API's default for `max_tokens`, also where the request says null."""

_LOWEST_TEMPERATURE = 0.01  # positive temperatures below it are raised to it: logits would overflow
_GREEDY = 1e-5  # below it sampling is greedy
_API_DEFAULTS: Mapping[str, float] = {
    "temperature": 1.0, "top_p": 1.0, "min_p": 0.0,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip


class Sampler:
    """Makes the sampling parameters for one model's requests."""

    def __init__(
        self,
        *,
        defaults: Mapping[str, Any],
        vocab_size: int,
        max_model_len: int,
        max_logprobs: int,
        stop_strings: Literal["engine", "derender"],
        over_room: Literal["clamp", "refuse"],
        end_id: int | None = None,
    ) -> None:
        numbers = {name: float(defaults.get(name, value)) for name, value in _API_DEFAULTS.items()}
        self._temperature = numbers["temperature"]
        self._top_p = numbers["top_p"]
        self._min_p = numbers["min_p"]
        self._repetition = numbers["repetition_penalty"]
        self._presence = numbers["presence_penalty"]
        self._frequency = numbers["frequency_penalty"]
        self._top_k = int(defaults.get("top_k", 0))
        self._max_tokens: int | None = defaults.get("max_tokens")
        self._stop_token_ids = list(defaults.get("stop_token_ids") or ())
        self._end_id = end_id
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._max_logprobs = max_logprobs if max_logprobs != -1 else vocab_size
        self._keeps_stop = stop_strings == "engine"
        self._clamps = over_room == "clamp"

    # ---------------------------------------------------------------------------------- parameters but max_tokens

    def chat(
        self, request: ChatCompletionRequest, *, kv: Json | None, structured: StructuredOutputs | None
    ) -> dict[str, Any]:
        """The parameters of a chat but max_tokens, for `SamplingParams`. `kv`: its kv_transfer_params.

        Raises BadRequest or InvalidBody, as `completion` does.
        """
        params = self._common(request, kv=kv, structured=structured)
        top = request.top_logprobs or 0
        if request.logprobs and not request.logprob_token_ids:
            params["logprobs"] = self._logprobs(top, "logprobs", "sample")
        if request.prompt_logprobs is not None:
            params["prompt_logprobs"] = self._logprobs(request.prompt_logprobs, "prompt_logprobs", "prompt")
        elif request.echo:
            params["prompt_logprobs"] = self._logprobs(top, "prompt_logprobs", "prompt")
        return params

    def completion(self, request: CompletionRequest, *, structured: StructuredOutputs | None) -> dict[str, Any]:
        """The parameters of a completion but max_tokens, for `SamplingParams`."""
        params = self._common(request, kv=request.kv_transfer_params, structured=structured)
        if request.logprobs is not None and not request.logprob_token_ids:
            params["logprobs"] = self._logprobs(request.logprobs, "logprobs", "sample")
        prompt = request.prompt_logprobs
        if prompt is None and request.echo:
            prompt = request.logprobs
        if prompt is not None:
            params["prompt_logprobs"] = self._logprobs(prompt, "prompt_logprobs", "prompt")
        return params

    def _common(
        self,
        request: ChatCompletionRequest | CompletionRequest,
        *,
        kv: Json | None,
        structured: StructuredOutputs | None,
    ) -> dict[str, Any]:
        params = self._distribution(request)
        if request.n is not None and request.n != 1:
            params["n"] = _count(request.n, greedy=params["temperature"] < _GREEDY)
        stop = self._stops(request.stop)
        params["stop"] = stop if self._keeps_stop else []
        params["stop_token_ids"] = self._stop_ids(request.stop_token_ids)
        params["bad_words"] = _bad_words(request.bad_words) if request.bad_words else []
        if request.seed is not None and request.seed != -1:
            params["seed"] = request.seed
        if request.min_tokens:
            if request.min_tokens < 0:
                raise BadRequest(
                    f"min_tokens must be greater than or equal to 0, got {request.min_tokens}.", param="min_tokens"
                )
            params["min_tokens"] = request.min_tokens
        if request.watermarking is not None:
            params["watermarking"] = request.watermarking
        if request.ignore_eos:
            params["ignore_eos"] = True
        elif self._end_id is not None and self._end_id not in params["stop_token_ids"]:
            params["stop_token_ids"].append(self._end_id)
        if request.include_stop_str_in_output:
            params["include_stop_str_in_output"] = True
        if not request.skip_special_tokens:
            params["skip_special_tokens"] = False
        if not request.spaces_between_special_tokens:
            params["spaces_between_special_tokens"] = False
        if request.stream_interval is not None:
            params["stream_interval"] = request.stream_interval
        if request.routed_experts_prompt_start:
            params["routed_experts_prompt_start"] = request.routed_experts_prompt_start
        if request.logit_bias is not None:
            params["logit_bias"] = self._logit_bias(request.logit_bias)
        if request.allowed_token_ids is not None:
            params["allowed_token_ids"] = self._allowed(request.allowed_token_ids)
        if request.logprob_token_ids:
            params["logprob_token_ids"] = self._logprob_ids(request.logprob_token_ids)
        if request.thinking_token_budget is not None and request.thinking_token_budget != -1:
            params["thinking_token_budget"] = _budget(request.thinking_token_budget)
        if request.repetition_detection is not None:
            params["repetition_detection"] = _detection(request.repetition_detection)
        if structured is not None:
            params["structured_outputs"] = structured
        if kv or request.ec_transfer_params or request.vllm_xargs:
            params["extra_args"] = _extra_args(request.vllm_xargs, kv=kv, ec=request.ec_transfer_params)
        return params

    def _distribution(self, request: ChatCompletionRequest | CompletionRequest) -> dict[str, Any]:
        """Temperature, cut-offs and penalties. Greedy sampling has no cut-offs, so they are left out."""
        temperature, top_p, top_k, min_p = request.temperature, request.top_p, request.top_k, request.min_p
        repetition, presence = request.repetition_penalty, request.presence_penalty
        frequency = request.frequency_penalty
        temperature = self._temperature if temperature is None else temperature
        top_p = self._top_p if top_p is None else top_p
        top_k = self._top_k if top_k is None else top_k
        min_p = self._min_p if min_p is None else min_p
        repetition = self._repetition if repetition is None else repetition
        presence = self._presence if presence is None else presence
        frequency = self._frequency if frequency is None else frequency
        if not -2.0 <= presence <= 2.0:
            raise BadRequest(f"presence_penalty must be in [-2, 2], got {presence}.", param="presence_penalty")
        if not -2.0 <= frequency <= 2.0:
            raise BadRequest(f"frequency_penalty must be in [-2, 2], got {frequency}.", param="frequency_penalty")
        if not 0.0 < repetition < math.inf:
            rule = "greater than zero" if repetition <= 0.0 else "a finite number"
            raise BadRequest(f"repetition_penalty must be {rule}, got {repetition}.", param="repetition_penalty")
        if not 0.0 <= temperature <= 2.0:
            rule = (
                "must be a finite number" if not math.isfinite(temperature)
                else "must be non-negative" if temperature < 0.0
                else "must be in [0, 2]"
            )  # fmt: skip
            raise refuse(f"temperature {rule}, got {temperature}.", param="temperature", value=temperature)
        if not 0.0 < top_p <= 1.0:
            raise refuse(f"top_p must be in (0, 1], got {top_p}.", param="top_p", value=top_p)
        if top_k < -1:
            raise BadRequest(f"top_k must be 0 (disable), or at least 1, got {top_k}.", param="top_k")
        if not 0.0 <= min_p <= 1.0:
            raise BadRequest(f"min_p must be in [0, 1], got {min_p}.", param="min_p")
        params: dict[str, Any] = {
            "presence_penalty": presence,
            "frequency_penalty": frequency,
            "repetition_penalty": repetition,
            "temperature": temperature,
        }
        if temperature < _GREEDY and not temperature > 0.0:
            return params
        if temperature < _LOWEST_TEMPERATURE:
            params["temperature"] = _LOWEST_TEMPERATURE
        params["top_p"] = top_p
        if top_k:
            params["top_k"] = top_k
        params["min_p"] = min_p
        return params

    # ------------------------------------------------------------------------------------------------ max_tokens

    def check_max_tokens(self, asked: int | None, name: str) -> None:
        """Raises BadRequest for more output than any prompt leaves room for, and for none under the newer name; under
        `max_tokens` that is looked for once the prompt is known."""
        if asked is not None and asked < 1 and name != "max_tokens":
            raise refuse(f"{name} must be at least 1, got {asked}.", param=name, value=asked)
        if asked is not None and asked > self._max_model_len:
            raise refuse(
                f"{name}={asked} cannot be greater than max_model_len={self._max_model_len}. "
                "Please request fewer output tokens.",
                param=name,
                value=asked,
            )

    def finish(self, params: Mapping[str, Any], *, asked: int | None, room: int, prompt_len: int) -> SamplingParams:
        """The parameters with max_tokens: what is asked, else the model's default, and at most `room`."""
        if asked is None:
            asked = room if self._max_tokens is None else self._max_tokens
        elif asked > room and not self._clamps:
            raise refuse(
                f"This model's maximum context length is {self._max_model_len} tokens. However, you requested {asked} "
                f"output tokens and your prompt contains {prompt_len} input tokens, for a total of "
                f"{asked + prompt_len} tokens. Please reduce the length of the input prompt or the number of "
                "requested output tokens.",
                param="input_tokens",
                value=prompt_len,
            )
        max_tokens = min(asked, room)
        if max_tokens < 1:
            raise refuse(f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens", value=max_tokens)
        least = params.get("min_tokens", 0)
        if least > max_tokens:
            raise BadRequest(
                f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {least}.", param="min_tokens"
            )
        return SamplingParams(max_tokens=max_tokens, **params)

    # --------------------------------------------------------------------------------------- strings and token ids

    def _stops(self, stop: str | list[str] | None) -> list[str]:
        if not stop:
            if stop == "":
                raise BadRequest("stop cannot contain an empty string.", param="stop")
            return []
        if isinstance(stop, str):
            return [stop]
        if len(stop) > LIMITS.max_stop_strings:
            raise InvalidBody(
                f"stop: list should have at most {LIMITS.max_stop_strings} items, not {len(stop)}", param="body.stop"
            )
        if "" in stop:
            raise BadRequest("stop cannot contain an empty string.", param="stop")
        return stop

    def _stop_ids(self, ids: list[int] | None) -> list[int]:
        """The request's ids, each once, then the model's own that are not among them."""
        if not ids:
            return list(self._stop_token_ids)
        self._check_ids(ids, "stop_token_ids")
        return list(dict.fromkeys((*ids, *self._stop_token_ids)))

    def _allowed(self, ids: list[int]) -> list[int]:
        if not ids:
            raise refuse("allowed_token_ids is not None and empty!", param="allowed_token_ids", value=ids)
        self._check_ids(ids, "allowed_token_ids")
        return ids

    def _logprob_ids(self, ids: list[int]) -> list[int]:
        if len(ids) > MAX_LOGPROB_TOKEN_IDS:
            raise refuse(
                f"Requested logprob_token_ids of length {len(ids)}, which is greater than max allowed: "
                f"{MAX_LOGPROB_TOKEN_IDS}",
                param="logprob_token_ids",
                value=len(ids),
            )
        self._check_ids(ids, "logprob_token_ids")
        return ids

    def _logit_bias(self, bias: Mapping[str, float]) -> dict[str, float]:
        """Biases cut to [-100, 100], keys in their plain spelling. Raises BadRequest."""
        ids: dict[int, float] = {}
        bad: list[str] = []
        for key, value in bias.items():
            try:
                token = int(key)
            except ValueError:
                bad.append(key)
                continue
            if token in ids:
                raise refuse(f"logit_bias names token {token} twice", param="logit_bias", value=token)
            ids[token] = min(100.0, max(-100.0, value))
        if bad:
            raise refuse(
                f"logit_bias contains key(s) that cannot be converted to integer token IDs: {shown(bad)}",
                param="logit_bias",
                value=bad,
            )
        self._check_ids(ids.keys(), "logit_bias")
        return {str(token): value for token, value in ids.items()}

    def _check_ids(self, ids: Any, name: str) -> None:
        """Ids index the engine's logits, so the model's vocabulary bounds them (vllm#35231). Raises BadRequest."""
        if ids and not 0 <= min(ids) <= max(ids) < self._vocab_size:
            wrong = [token for token in ids if not 0 <= token < self._vocab_size]
            raise refuse(
                f"token_id(s) {shown(wrong)} in {name} contain out-of-vocab token ids. "
                f"Vocabulary size: {self._vocab_size}",
                param=name,
                value=wrong,
            )

    def _logprobs(self, count: int, name: str, what: str) -> int:
        """A number of logprobs that the engine may give; -1, for all of them, is left to the engine's own limit."""
        if count > self._max_logprobs:
            raise refuse(
                f"Requested {what} logprobs of {count}, which is greater than max allowed: {self._max_logprobs}",
                param=name,
                value=count,
            )
        return count


def _count(n: int, *, greedy: bool) -> int:
    if n < 1:
        raise BadRequest(f"n must be at least 1, got {n}.", param="n")
    if n > LIMITS.max_n_sequences:
        raise BadRequest(
            f"n must be at most {LIMITS.max_n_sequences}, got {n}. "
            "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable.",
            param="n",
        )
    if greedy:
        raise BadRequest(f"n must be 1 when using greedy sampling, got {n}.", param="n")
    return n


def _bad_words(words: Sequence[str]) -> list[str]:
    if "" in words:
        raise BadRequest(
            f"bad_words cannot contain an empty string. Got bad_words={shown(list(words))}", param="bad_words"
        )
    return list(dict.fromkeys(words))


def _budget(tokens: int) -> int:
    if tokens < 0:
        raise refuse(
            "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.",
            param="thinking_token_budget",
            value=tokens,
        )
    return tokens


def _detection(detection: RepetitionDetection) -> RepetitionDetection:
    least, most = detection.min_pattern_size, detection.max_pattern_size
    if most < 0 or least < 0 or least > most:
        raise BadRequest(
            "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= max_pattern_size. "
            "Set both to 0 to disable repetitive pattern detection.",
            param="repetition_detection",
        )
    if most > 0 and detection.min_count < 2:
        raise BadRequest(
            "min_count must be >= 2 to detect repetitive patterns in engine output. "
            "If you do not wish to detect repetitive patterns, set max_pattern_size to 0.",
            param="repetition_detection",
        )
    return detection


def _extra_args(xargs: Mapping[str, Any] | None, *, kv: Json | None, ec: Json | None) -> Json:
    """What engines up to 0.32 read from `extra_args`: the caller's own arguments and the transfer parameters."""
    extra: Json = dict(xargs or {})
    if kv:
        extra["kv_transfer_params"] = kv
    if ec:
        extra["ec_transfer_params"] = ec
    # The engine passes them on as MessagePack, whose integers have 64 bits.
    pending: list[Any] = [extra]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise refuse("extra_args integers must be between -2**63 and 2**64 - 1.", param="extra_args")
    return extra
