"""A GGUF model under the scheduler: loading, decoding, and the cache of each slot. Ids in, distributions out."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from derender.engines.llama_abi import EngineUnavailable, Library
from derender.engines.llama_guidance import Guidance, Matcher
from derender.engines.llama_sampler import LlamaSampler, Workspace
from derender.engines.sampling import MAX_GRAMMAR, Constraint, ConstraintKind, Sampling
from derender.engines.scheduler import BackendFailed, Row
from derender.protocol.errors import BadRequest, Unavailable

# Rows of one decode. A step over a whole batch is what other streams and an abort wait for: 64 rows of a 135M model
# take a quarter of a second on one slow core, and larger batches were no faster there.
BATCH_ROWS = 64
DEFAULT_CONTEXT = 8192  # of a slot, where no length was asked: a cache for a model's full length may be many GiB
_MAX_NESTING = 64


@dataclass(frozen=True)
class BackendOptions:
    """`max_model_len` None: the model's own, at most 8192. `threads` None: all cores that may be used, less one."""

    slots: int = 8
    threads: int | None = None
    max_model_len: int | None = None


class LlamaBackend:
    """The model and one context with `slots` sequences. See `scheduler.Backend` for the verbs."""

    def __init__(self, path: Path, options: BackendOptions) -> None:
        """Loads the model (seconds, blocks). Raises `EngineUnavailable`."""
        lib = self._lib = Library()
        if not path.is_file():
            raise EngineUnavailable(f"{path}: no such file")
        self._model: int | None = lib.llama_model_load_from_file(os.fsencode(path), lib.llama_model_default_params())
        if not self._model:
            raise EngineUnavailable(f"{path}: llama.cpp cannot load this file (is it a GGUF model?)")
        try:
            if lib.llama_model_has_encoder(self._model):
                raise EngineUnavailable(f"{path}: encoder-decoder models are not supported")
            self._read_vocabulary()
            self._make_context(path, options)
        except EngineUnavailable:
            lib.llama_model_free(self._model)
            raise
        self._workspace = Workspace(lib, self.vocab_size)
        self._guidance = Guidance(lib, self._vocab, self.vocab_size, self.eos_id) if lib.guided else None
        self._closing = threading.Lock()

    def _read_vocabulary(self) -> None:
        lib = self._lib
        self._vocab: int = lib.llama_model_get_vocab(self._model)
        self.vocab_size: int = lib.llama_vocab_n_tokens(self._vocab)
        if self.vocab_size < 1:
            raise EngineUnavailable("the model has no vocabulary")
        self.eos_id: int = lib.llama_vocab_eos(self._vocab)
        self.end_ids = frozenset(i for i in range(self.vocab_size) if lib.llama_vocab_is_eog(self._vocab, i))

    def _make_context(self, path: Path, options: BackendOptions) -> None:
        lib = self._lib
        trained: int = lib.llama_model_n_ctx_train(self._model)
        length = options.max_model_len or min(trained, DEFAULT_CONTEXT)
        if length > trained:
            raise EngineUnavailable(
                f"max_model_len {length} is more than the {trained} tokens that {path.name} can take"
            )
        self.slots = options.slots
        self.batch_size = max(BATCH_ROWS, options.slots)
        padded = -(-length // 256) * 256  # llama.cpp rounds a sequence's cells up to 256
        params = lib.llama_context_default_params()
        params.n_ctx = padded * options.slots
        params.n_batch = params.n_ubatch = self.batch_size
        params.n_seq_max = options.slots
        self._context: int | None = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise EngineUnavailable(
                f"no memory for the caches of {options.slots} sequences of {length} tokens; "
                "lower --parallel or --max-model-len"
            )
        self.max_model_len = min(length, lib.llama_n_ctx_seq(self._context))
        sizes = (lib.llama_n_seq_max(self._context), lib.llama_n_batch(self._context))
        if sizes != (options.slots, self.batch_size) or self.max_model_len < length:
            lib.llama_free(self._context)
            raise EngineUnavailable(f"xllamacpp {lib.version} did not take the context's parameters")
        self.threads = options.threads or max(1, _cores() - 1)
        lib.llama_set_n_threads(self._context, self.threads, self.threads)
        self._memory: int = lib.llama_get_memory(self._context)
        self._batch = lib.llama_batch_init(self.batch_size, 0, 1)

    @property
    def description(self) -> str:
        """The model in words, as llama.cpp has it, and the version of the wheel."""
        text = ctypes.create_string_buffer(256)
        self._lib.llama_model_desc(self._model, text, len(text))
        return f"{text.value.decode('utf-8', 'replace')}, xllamacpp {self._lib.version}"

    @property
    def constraints(self) -> frozenset[ConstraintKind]:
        """The languages of constraints that this wheel can apply."""
        return frozenset({"json_schema", "regex", "lark"} if self._guidance is not None else ())

    def check(self, constraint: Constraint) -> None:
        """Raises `BadRequest` for a constraint that is not well formed, too large or nested too deeply."""
        text = constraint.text
        if "\0" in text:
            raise BadRequest(f"{constraint.field} has a NUL character", param=constraint.field)
        if len(text.encode()) > MAX_GRAMMAR:
            raise BadRequest(f"{constraint.field} is larger than {MAX_GRAMMAR} bytes", param=constraint.field)
        if _nesting(text) > _MAX_NESTING:
            # The parsers below are recursive, in C++: what is too deep for their stack ends the process.
            raise BadRequest(f"{constraint.field} is nested more than {_MAX_NESTING} deep", param=constraint.field)
        with self._closing:
            if not self._context:
                raise Unavailable("the engine is not running")
            self._matcher(constraint).close()

    def _matcher(self, constraint: Constraint) -> Matcher:
        if self._guidance is None:
            raise BadRequest(f"{constraint.field} is not supported by this engine", param=constraint.field)
        return self._guidance.matcher(constraint)

    def sampler(self, sampling: Sampling, prompt: Sequence[int]) -> LlamaSampler:
        matcher = None if sampling.constraint is None else self._matcher(sampling.constraint)
        return LlamaSampler(
            self._lib,
            self._workspace,
            sampling,
            prompt=prompt,
            logits=self._logits,
            end_ids=self.end_ids,
            matcher=matcher,
        )

    def _logits(self, row: int) -> int:
        """The address of the distribution after a row of the last batch: `vocab_size` floats."""
        address: int | None = self._lib.llama_get_logits_ith(self._context, row)
        if not address:
            raise BackendFailed(f"llama.cpp has no logits for row {row}")
        return address

    def decode(self, rows: Sequence[Row]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (slot, position, token, wanted) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = slot
            batch.logits[i] = wanted
        status = self._lib.llama_decode(self._context, batch)
        if status != 0:
            raise BackendFailed(f"llama_decode failed with {status} on a batch of {len(rows)}")

    def truncate(self, slot: int, length: int) -> int:
        # Recurrent models cannot cut a sequence in the middle; clearing one whole never fails.
        if length and self._lib.llama_memory_seq_rm(self._memory, slot, length, -1):
            return length
        self._lib.llama_memory_seq_rm(self._memory, slot, -1, -1)
        return 0

    def close(self) -> None:
        """Frees context and model. Nothing else may be called afterwards."""
        with self._closing:
            if not self._context:
                return
            if self._guidance is not None:
                self._guidance.close()
            self._workspace.close()
            self._lib.llama_batch_free(self._batch)
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)
            self._context = self._model = None


def _cores() -> int:
    """How many cores this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def _nesting(text: str) -> int:
    """The deepest nesting of brackets in a text, strings in it included."""
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth = max(0, depth - 1)
    return deepest
