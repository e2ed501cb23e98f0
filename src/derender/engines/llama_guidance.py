"""Constraints by llguidance: JSON schemas, regular expressions and Lark grammars as masks over the vocabulary.

The vocabulary's pieces are read once, when the first constrained request comes; plain requests never need them.
"""

from __future__ import annotations

import ctypes
import threading
from ctypes import addressof, byref, c_uint8, c_uint32, create_string_buffer
from typing import Any

from derender.engines.llama_abi import EngineUnavailable, Library, TokenizerInit
from derender.engines.sampling import Constraint
from derender.protocol.errors import BadRequest

# llguidance's convention: a token whose bytes begin with 0xFF is special, no text matches it.
_SPECIAL = b"\xff"
_INIT_BYTES = 1024  # room for LlgConstraintInit, whose defaults are written by llguidance itself


class Matcher:
    """The state of one constraint along one sequence."""

    def __init__(self, lib: Library, pointer: int, *, field: str) -> None:
        self._lib = lib
        self._field = field
        self._pointer: int | None = pointer

    def mask(self) -> memoryview:
        """Bytes of little-endian bits, one for each id: whether it may come next. Valid until the next call.

        Raises `BadRequest` where the constraint has no way on, or outgrows llguidance's limits.
        """
        lib = self._lib
        if lib.llg_matcher_compute_mask(self._pointer) != 0:
            raise self._failure()
        size: int = lib.llg_matcher_get_mask_byte_size(self._pointer)
        words = (c_uint8 * size).from_address(lib.llg_matcher_get_mask(self._pointer))
        return memoryview(words).cast("B")

    def accept(self, token: int) -> None:
        """Goes on past one token, which the mask allowed."""
        if self._lib.llg_matcher_consume_token(self._pointer, token) != 0:
            raise self._failure()

    def _failure(self) -> BadRequest:
        text: bytes | None = self._lib.llg_matcher_get_error(self._pointer)
        return BadRequest(f"{self._field} could not be followed: {_first_line(text or b'')}", param=self._field)

    def close(self) -> None:
        pointer, self._pointer = self._pointer, None
        if pointer:
            self._lib.llg_free_matcher(pointer)


class Guidance:
    """Makes matchers over one vocabulary."""

    def __init__(self, lib: Library, vocab: int, vocab_size: int, eos_id: int) -> None:
        self._lib = lib
        self._vocab = vocab
        self._vocab_size = vocab_size
        self._eos_id = eos_id
        self._tokenizer: int | None = None
        self._init = (c_uint8 * _INIT_BYTES)()
        self._lock = threading.Lock()

    def matcher(self, constraint: Constraint) -> Matcher:
        """A matcher at its start. Raises `BadRequest` where the constraint cannot be read."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._make_tokenizer()
                self._lib.llg_constraint_init_set_defaults(addressof(self._init), self._tokenizer)
                # The second 4-byte word after the tokenizer is the level of its own messages on stderr: none.
                c_uint32.from_buffer(self._init, ctypes.sizeof(ctypes.c_void_p) + 4).value = 0
        pointer = self._lib.llg_new_matcher(addressof(self._init), constraint.kind.encode(), constraint.text.encode())
        error: bytes | None = self._lib.llg_matcher_get_error(pointer)
        if error:
            self._lib.llg_free_matcher(pointer)
            raise BadRequest(f"{constraint.field} cannot be applied: {_first_line(error)}", param=constraint.field)
        return Matcher(self._lib, pointer, field=constraint.field)

    def _make_tokenizer(self) -> int:
        pieces = [self._piece(token) for token in range(self._vocab_size)]
        lengths = (c_uint32 * len(pieces))(*map(len, pieces))
        joined = b"".join(pieces)
        data = (c_uint8 * len(joined)).from_buffer_copy(joined)
        init = TokenizerInit(
            vocab_size=self._vocab_size,
            tok_eos=self._eos_id if self._eos_id >= 0 else 0xFFFFFFFF,
            token_lens=addressof(lengths),
            token_bytes=addressof(data),
            use_approximate_greedy_tokenize_fn=True,
        )
        error = create_string_buffer(512)
        tokenizer: int | None = self._lib.llg_new_tokenizer(byref(init), error, len(error))
        if not tokenizer:
            raise EngineUnavailable(f"llguidance refuses the vocabulary: {_first_line(error.value)}")
        return tokenizer

    def _piece(self, token: int) -> bytes:
        special = bool(self._lib.llama_vocab_is_control(self._vocab, token))
        room: Any = create_string_buffer(64)
        size = self._lib.llama_token_to_piece(self._vocab, token, room, 64, 0, True)
        if size < 0:
            room = create_string_buffer(-size)
            size = self._lib.llama_token_to_piece(self._vocab, token, room, -size, 0, True)
        text: bytes = room.raw[: max(size, 0)]
        return _SPECIAL + text if special else text

    def close(self) -> None:
        if self._tokenizer:
            self._lib.llg_free_tokenizer(self._tokenizer)
            self._tokenizer = None


def _first_line(text: bytes) -> str:
    return text.decode("utf-8", "replace").strip().split("\n", 1)[0][:200]
