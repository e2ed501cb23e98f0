"""The C interface of llama.cpp and llguidance as the xllamacpp wheel exports it, checked to be the known one.

The wheel's own server layer cannot give exact ids: it holds back tokens whose bytes are not yet whole UTF-8, and in
streams, and in its logprobs, only the last of them is ever reported (seen with 2026.10: of the three ids of one emoji
two are lost). Its extension module exports the C functions underneath, and these give one id for one step.

Only what has been stable for years is used: functions over opaque pointers, the batch, the first four fields of the
context parameters; and `check` compares each with known values before a model is loaded, so that a wheel with another
interface is refused and never misread.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int8, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_void_p
from typing import Any

logger = logging.getLogger("derender.engine")


class EngineUnavailable(Exception):
    """The embedded engine cannot start: the message says what is missing and what to do."""


class ModelParams(ctypes.Structure):
    """`llama_model_params`, passed on as it came; larger than the real one, which is harmless by value."""

    _fields_ = [("opaque", c_uint8 * 1024)]


class ContextParams(ctypes.Structure):
    """`llama_context_params`: its first fields, and room for the others."""

    _fields_ = [
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("opaque", c_uint8 * 1024),
    ]


class Batch(ctypes.Structure):
    """`llama_batch`: columns of `n_tokens` rows."""

    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    ]


class Candidate(ctypes.Structure):
    """`llama_token_data`. Three 4-byte fields: the logits of an array of them are every third float."""

    _fields_ = [("id", c_int32), ("logit", c_float), ("p", c_float)]


class Candidates(ctypes.Structure):
    """`llama_token_data_array`: what samplers filter, reorder and select from."""

    _fields_ = [
        ("data", c_void_p),
        ("size", c_size_t),
        ("selected", c_int64),
        ("sorted", c_bool),
    ]


class TokenizerInit(ctypes.Structure):
    """`LlgTokenizerInit` with room for fields that newer versions add (zero is their default)."""

    _fields_ = [
        ("vocab_size", c_uint32),
        ("tok_eos", c_uint32),
        ("token_lens", c_void_p),
        ("token_bytes", c_void_p),
        ("tokenizer_json", c_char_p),
        ("tokenize_assumes_string", c_bool),
        ("tokenize_fn", c_void_p),
        ("use_approximate_greedy_tokenize_fn", c_bool),
        ("tokenize_user_data", c_void_p),
        ("slices", c_void_p),
        ("opaque", c_uint8 * 256),
    ]


LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)

_P = c_void_p
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "llama_backend_init": (None, []),
    "llama_log_set": (None, [LogCallback, _P]),
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_load_from_file": (_P, [c_char_p, ModelParams]),
    "llama_model_free": (None, [_P]),
    "llama_model_desc": (c_int32, [_P, c_char_p, c_size_t]),
    "llama_model_n_ctx_train": (c_int32, [_P]),
    "llama_model_has_encoder": (c_bool, [_P]),
    "llama_model_get_vocab": (_P, [_P]),
    "llama_init_from_model": (_P, [_P, ContextParams]),
    "llama_free": (None, [_P]),
    "llama_set_n_threads": (None, [_P, c_int32, c_int32]),
    "llama_n_ctx_seq": (c_uint32, [_P]),
    "llama_n_batch": (c_uint32, [_P]),
    "llama_n_seq_max": (c_uint32, [_P]),
    "llama_get_memory": (_P, [_P]),
    "llama_memory_seq_rm": (c_bool, [_P, c_int32, c_int32, c_int32]),
    "llama_batch_init": (Batch, [c_int32, c_int32, c_int32]),
    "llama_batch_free": (None, [Batch]),
    "llama_decode": (c_int32, [_P, Batch]),
    "llama_get_logits_ith": (_P, [_P, c_int32]),
    "llama_vocab_n_tokens": (c_int32, [_P]),
    "llama_vocab_eos": (c_int32, [_P]),
    "llama_vocab_is_eog": (c_bool, [_P, c_int32]),
    "llama_vocab_is_control": (c_bool, [_P, c_int32]),
    "llama_token_to_piece": (c_int32, [_P, c_int32, c_char_p, c_int32, c_int32, c_bool]),
    "llama_sampler_init_greedy": (_P, []),
    "llama_sampler_init_dist": (_P, [c_uint32]),
    "llama_sampler_init_temp": (_P, [c_float]),
    "llama_sampler_init_min_p": (_P, [c_float, c_size_t]),
    "llama_sampler_init_top_k": (_P, [c_int32]),
    "llama_sampler_init_top_p": (_P, [c_float, c_size_t]),
    "llama_sampler_apply": (None, [_P, POINTER(Candidates)]),
    "llama_sampler_free": (None, [_P]),
}
_GUIDANCE: dict[str, tuple[Any, list[Any]]] = {
    "llg_constraint_init_set_defaults": (None, [_P, _P]),
    "llg_new_tokenizer": (_P, [POINTER(TokenizerInit), c_char_p, c_size_t]),
    "llg_free_tokenizer": (None, [_P]),
    "llg_new_matcher": (_P, [_P, c_char_p, c_char_p]),
    "llg_free_matcher": (None, [_P]),
    "llg_matcher_get_error": (c_char_p, [_P]),
    "llg_matcher_compute_mask": (c_int32, [_P]),
    "llg_matcher_get_mask": (_P, [_P]),
    "llg_matcher_get_mask_byte_size": (c_size_t, [_P]),
    "llg_matcher_consume_token": (c_int32, [_P, c_uint32]),
}

_LEVEL_ERROR = 4


def _log(level: int, text: bytes, _: Any) -> None:
    if level == _LEVEL_ERROR:
        logger.error("llama.cpp: %s", text.decode("utf-8", "replace").strip())


_log_callback = LogCallback(_log)  # C keeps the pointer: it must live as long as the process


class Library:
    """The functions, with their types. `guided` says whether those of llguidance are there."""

    def __init__(self) -> None:
        # OpenMP's threads spin between steps by default and would starve the event loop beside them.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        try:
            import xllamacpp
        except ImportError as error:
            raise EngineUnavailable(
                "the embedded engine needs the package xllamacpp: pip install 'derender[engine]'"
            ) from error
        self.version = str(getattr(xllamacpp, "__version__", "unknown"))
        spec = importlib.util.find_spec("xllamacpp.xllamacpp")
        if spec is None or spec.origin is None:
            raise EngineUnavailable(f"xllamacpp {self.version} has no extension module where it is expected")
        self._dll = ctypes.CDLL(spec.origin)  # loaded already: this is a second handle; calls release the GIL
        missing = [name for name in _FUNCTIONS if not self._bind(name, _FUNCTIONS[name])]
        if missing:
            raise EngineUnavailable(f"xllamacpp {self.version} does not export {', '.join(missing)}")
        self.guided = all(self._bind(name, _GUIDANCE[name]) for name in _GUIDANCE)
        self.llama_log_set(_log_callback, None)
        self.llama_backend_init()
        self._check()

    def _bind(self, name: str, signature: tuple[Any, list[Any]]) -> bool:
        try:
            function = getattr(self._dll, name)
        except AttributeError:
            return False
        function.restype, function.argtypes = signature
        setattr(self, name, function)
        return True

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} is not a bound function of xllamacpp")

    def _check(self) -> None:
        """Raises `EngineUnavailable` unless structures and samplers are the known ones."""
        params = self.llama_context_default_params()
        known = (params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max) == (512, 2048, 512, 1)
        batch = self.llama_batch_init(4, 0, 1)
        known &= batch.n_tokens == 0 and bool(batch.token) and not batch.embd and bool(batch.logits)
        self.llama_batch_free(batch)
        known &= self._filtered(self.llama_sampler_init_temp(0.5)) == [(0, 2.0), (1, 6.0), (2, 4.0), (3, 0.0)]
        known &= self._filtered(self.llama_sampler_init_top_k(2)) == [(1, 3.0), (2, 2.0)]
        known &= self._filtered(self.llama_sampler_init_top_p(0.7, 1)) == [(1, 3.0), (2, 2.0)]
        known &= self._filtered(self.llama_sampler_init_min_p(0.3, 1)) == [(1, 3.0), (2, 2.0)]
        if not known:
            raise EngineUnavailable(
                f"xllamacpp {self.version} has another interface of llama.cpp than the one known here; "
                "install the version that derender[engine] names"
            )

    def _filtered(self, sampler: int) -> list[tuple[int, float]]:
        rows = (Candidate * 4)(*[Candidate(i, logit, 0.0) for i, logit in enumerate((1.0, 3.0, 2.0, 0.0))])
        candidates = Candidates(ctypes.addressof(rows), 4, -1, False)
        self.llama_sampler_apply(sampler, ctypes.byref(candidates))
        self.llama_sampler_free(sampler)
        left = (Candidate * candidates.size).from_address(candidates.data)
        return [(row.id, round(row.logit, 4)) for row in left]
