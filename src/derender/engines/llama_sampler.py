"""Sampling of one sequence with vLLM's meaning and order of parameters, on llama.cpp's samplers.

Order (vLLM's v1 sampler): allowed ids, constraint, minimum length, bias, penalties, temperature, min_p, top_k, top_p.
Logprobs are those of the model's own distribution, before any of it. The penalties are done here: vLLM's repetition
penalty counts the prompt and the others do not, which llama.cpp's one sampler cannot say.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from ctypes import addressof, byref, c_float

from derender.engines.llama_abi import Candidate, Candidates, Library
from derender.engines.llama_guidance import Matcher
from derender.engines.sampling import Sampling
from derender.engines.scheduler import Sampled
from derender.protocol.codec import MIN_LOGPROB
from derender.protocol.generate import GenerateLogprob, GenerateTopLogprob

_NEVER = -math.inf
_LLAMA_RANDOM_SEED = 0xFFFFFFFF  # llama.cpp draws a seed of its own for this one


class Workspace:
    """One array of candidates for the whole vocabulary, filled anew for each step; for one thread."""

    def __init__(self, lib: Library, vocab_size: int) -> None:
        self._lib = lib
        self.vocab_size = vocab_size
        rows = (Candidate * vocab_size)(*[Candidate(i, 0.0, 0.0) for i in range(vocab_size)])
        self._fresh = bytes(rows)
        self._rows = rows
        self._bytes = memoryview(rows).cast("B")
        floats = self._bytes.cast("f")
        self.logits = floats[1::3]  # writable, by id until a sampler reorders the array
        self.array = Candidates()
        self._greedy = lib.llama_sampler_init_greedy()
        self._softmax = lib.llama_sampler_init_dist(0)
        self._top_k: dict[int, int] = {}

    def fill(self, logits: memoryview[float]) -> None:
        """Takes a distribution in, ids in order."""
        self._bytes[:] = self._fresh
        self.logits[:] = logits
        self.array = Candidates(addressof(self._rows), self.vocab_size, -1, False)

    def apply(self, sampler: int) -> None:
        self._lib.llama_sampler_apply(sampler, byref(self.array))

    def selected(self) -> tuple[int, float]:
        """Id and logit of what a sampler has selected."""
        row = Candidate.from_address(self.array.data + self.array.selected * ctypes.sizeof(Candidate))
        return row.id, row.logit

    def argmax(self) -> tuple[int, float]:
        self.apply(self._greedy)
        return self.selected()

    def logprobs(self, logits: memoryview[float], k: int) -> tuple[float, list[tuple[int, float]]]:
        """The log of the sum of exponentials, and the `k` highest (id, logit) in order."""
        self.fill(logits)
        _, highest = self.argmax()
        place = self.array.selected
        self.apply(self._softmax)
        p = Candidate.from_address(self.array.data + place * ctypes.sizeof(Candidate)).p
        total = highest - math.log(p)  # p is the largest of all: the one with the most exact logarithm
        if k not in self._top_k:
            self._top_k[k] = self._lib.llama_sampler_init_top_k(k)
        self.apply(self._top_k[k])
        rows = (Candidate * self.array.size).from_address(self.array.data)
        return total, [(row.id, row.logit) for row in rows]

    def close(self) -> None:
        for sampler in (self._greedy, self._softmax, *self._top_k.values()):
            self._lib.llama_sampler_free(sampler)


class LlamaSampler:
    """Samples one sequence. `logits` gives the address of a row's distribution."""

    def __init__(
        self,
        lib: Library,
        workspace: Workspace,
        sampling: Sampling,
        *,
        prompt: Sequence[int],
        logits: Callable[[int], int],
        end_ids: frozenset[int],
        matcher: Matcher | None,
    ) -> None:
        self._lib = lib
        self._workspace = workspace
        self._sampling = sampling
        self._logits = logits
        self._end_ids = end_ids
        self._held_back = sampling.stop_token_ids | end_ids if sampling.min_tokens else frozenset[int]()
        self._matcher = matcher
        self._output: Counter[int] = Counter()
        self._generated = 0
        self._repeated = set(prompt) if sampling.repetition_penalty != 1.0 else None
        size = workspace.vocab_size
        self._unmasked = (c_float * size)(*([_NEVER] * size)) if sampling.allowed is not None else None
        self._chain = [] if sampling.greedy else self._make_chain(sampling)

    def _make_chain(self, sampling: Sampling) -> list[int]:
        lib = self._lib
        chain = [lib.llama_sampler_init_temp(sampling.temperature)]
        if sampling.min_p > 0.0:
            chain.append(lib.llama_sampler_init_min_p(sampling.min_p, 1))
        if sampling.top_k > 0:
            chain.append(lib.llama_sampler_init_top_k(sampling.top_k))
        if sampling.top_p < 1.0:
            chain.append(lib.llama_sampler_init_top_p(sampling.top_p, 1))
        chain.append(lib.llama_sampler_init_dist(llama_seed(sampling.seed)))
        return chain

    def sample(self, row: int) -> Sampled | None:
        size = self._workspace.vocab_size
        raw = memoryview((c_float * size).from_address(self._logits(row))).cast("B").cast("f")
        self._workspace.fill(self._allowed_only(raw))
        self._constrain()
        self._adjust()
        if self._chain:
            for sampler in self._chain:
                self._workspace.apply(sampler)
            token, logit = self._workspace.selected()
        else:
            token, logit = self._workspace.argmax()
        if logit == _NEVER or math.isnan(logit):
            return None
        self._accept(token)
        k = self._sampling.logprobs
        return Sampled(token, None if k is None else self._logprob(raw, token, k))

    def _allowed_only(self, raw: memoryview[float]) -> memoryview[float]:
        if self._sampling.allowed is None or self._unmasked is None:
            return raw
        for token in self._sampling.allowed:
            self._unmasked[token] = raw[token]
        return memoryview(self._unmasked).cast("B").cast("f")

    def _constrain(self) -> None:
        """Rules out what the constraint does not allow next."""
        if self._matcher is not None:
            logits = self._workspace.logits
            for word, bits in enumerate(self._matcher.mask()):
                if bits == 0xFF:
                    continue
                for token in range(word * 8, min(word * 8 + 8, self._workspace.vocab_size)):
                    if not bits >> (token & 7) & 1:
                        logits[token] = _NEVER

    def _adjust(self) -> None:
        sampling = self._sampling
        logits = self._workspace.logits
        if self._generated < sampling.min_tokens:
            for token in self._held_back:
                logits[token] = _NEVER
        for token, bias in sampling.logit_bias:
            logits[token] += bias
        if self._repeated is not None:
            penalty = sampling.repetition_penalty
            for token in self._repeated:
                logit = logits[token]
                logits[token] = logit / penalty if logit > 0 else logit * penalty
        if sampling.frequency_penalty or sampling.presence_penalty:
            for token, count in self._output.items():
                logits[token] -= sampling.frequency_penalty * count + sampling.presence_penalty

    def _accept(self, token: int) -> None:
        self._generated += 1
        self._output[token] += 1
        if self._repeated is not None:
            self._repeated.add(token)
        if token in self._end_ids:
            return  # a grammar takes no token past its end, and the end itself does not move it
        if self._matcher is not None:
            self._matcher.accept(token)

    def _logprob(self, raw: memoryview[float], token: int, k: int) -> GenerateLogprob:
        """The sampled token, then the `k` best in rank order without it: k or k + 1 entries, as vLLM's engine."""
        total, top = self._workspace.logprobs(raw, k + 1)
        logit = raw[token]
        rank = _rank(logit, top, raw)
        sampled = GenerateTopLogprob(token_id=token, logprob=_finite(logit - total), rank=rank)
        others = [
            GenerateTopLogprob(token_id=other, logprob=_finite(value - total), rank=place)
            for place, (other, value) in enumerate(top[:k], 1)
            if other != token
        ]
        return GenerateLogprob(token_id=token, logprob=sampled.logprob, rank=rank, top_logprobs=[sampled, *others])

    def close(self) -> None:
        for sampler in self._chain:
            self._lib.llama_sampler_free(sampler)
        self._chain = []
        if self._matcher is not None:
            self._matcher.close()


def llama_seed(seed: int) -> int:
    """A request's seed (64 bits, may be negative) as one of llama.cpp's 32 bits, neighbours far apart."""
    digest = hashlib.blake2b(seed.to_bytes(9, "little", signed=True), digest_size=4).digest()
    value = int.from_bytes(digest, "little")
    return 0 if value == _LLAMA_RANDOM_SEED else value


def _rank(logit: float, top: Sequence[tuple[int, float]], raw: memoryview[float]) -> int:
    """How many ids are at least as likely (vLLM's rank: 1 is the best). `top` is in order and holds the best ones."""
    if logit > top[-1][1]:
        return bisect_right([-other for _, other in top], -logit)
    return sum(map(logit.__le__, raw))


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else MIN_LOGPROB
