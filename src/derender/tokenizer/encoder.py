"""Text → ids. fastokens where it proved equal to `tokenizers` on a corpus at load; `tokenizers` otherwise, visibly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from derender.tokenizer.corpus import verification_corpus
from derender.tokenizer.files import TokenizerBroken, TokenizerSpec

EncoderName = Literal["fastokens", "tokenizers"]

_SHORT = 2048
"""Characters of a text that is encoded with the interpreter's lock held: at most some milliseconds."""

_AT_ONCE = 1 << 15
"""Tokens whose places are asked for at once, which holds the lock, too: half a second for three million."""


@dataclass(frozen=True)
class EncoderChoice:
    """What encodes for a model. `reason` says why it is not the faster one; empty where it is."""

    name: EncoderName
    reason: str


class Encoder:
    """Encodes for one model; safe to use from several threads.

    The reference stays loaded beside fastokens, which has no offsets: it could be loaded again when they are asked for,
    but that holds the interpreter's lock from start to end, up to two seconds.
    """

    def __init__(self, spec: TokenizerSpec, *, force: EncoderName | None = None) -> None:
        """Raises `TokenizerBroken` if the tokenizer cannot be loaded, or not with the encoder that is forced."""
        self._fast: Any = None
        self._blank_first = spec.blank_first
        self.splits_special = bool(spec.config.get("split_special_tokens"))
        """Whether special tokens in a text are no tokens."""
        reason = "asked for by --tokenizer-mode" if force == "tokenizers" else ""
        with ThreadPoolExecutor(1) as pool:
            # Beside the reference, which holds the interpreter's lock while it is loaded; fastokens does not.
            loading = None if reason or self.splits_special else pool.submit(_load_fast, spec)
            self._reference = _load_reference(spec, splits_special=self.splits_special)
        if not reason:
            reason = self._try_fast(spec, loading)
            if reason and force == "fastokens":
                raise TokenizerBroken(f"fastokens cannot be used for this tokenizer: {reason}")
        self.choice = EncoderChoice(name="tokenizers" if reason else "fastokens", reason=reason)

    def _try_fast(self, spec: TokenizerSpec, loading: Future[Any] | None) -> str:
        """Hold fastokens against the reference; the reason why not, or an empty string."""
        if loading is None:
            return "it has no split_special_tokens, which tokenizer_config.json asks for"
        corpus = verification_corpus(token.content for token in spec.added_tokens)
        _check_added_ids(self._reference, spec)
        try:
            with _panics_raised():
                truth = [
                    [self._reference.encode(text, add_special_tokens=add).ids for text in corpus]
                    for add in (False, True)
                ]
        except Exception as error:  # tokenizers raises bare Exception
            raise TokenizerBroken(f"{spec.source} cannot be used: {str(error)[:200]}") from None
        try:
            with _panics_raised():
                fast = loading.result()
                for add, expected in zip((False, True), truth, strict=True):
                    for text, ids in zip(corpus, expected, strict=True):
                        if list(fast.encode(text, add_special_tokens=add).ids) != ids:
                            return f"it encodes {text[:40]!r} otherwise than tokenizers"
        except ImportError as error:
            return f"it cannot be imported: {error}"
        except Exception as error:  # a Rust library's own exception types: any of them means "not this tokenizer"
            return f"it refuses this tokenizer: {str(error).splitlines()[0][:160]}"
        self._fast = fast
        return ""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The ids of a text; special tokens spelled in it become their ids, as in the reference."""
        if self._blank_first and text.startswith(self._blank_first):
            text = "▁" + text
        try:
            if self._fast is not None:
                ids: list[int] = self._fast.encode(text, add_special_tokens=add_special_tokens).ids
            else:
                ids = encode_unlocked(self._reference, text, add_special_tokens=add_special_tokens).ids
        except BaseException as error:
            raise _raised(error) from None
        return ids

    def token_id(self, token: str) -> int | None:
        """The id of a vocabulary entry by its spelling, None if there is none."""
        found: int | None = (self._fast or self._reference).token_to_id(token)
        return found

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids and, for each, its (start, end) in characters of the text. Uses the reference."""
        before = "▁" if self._blank_first and text.startswith(self._blank_first) else ""
        encoding = encode_unlocked(self._reference, before + text, add_special_tokens=add_special_tokens)
        if len(encoding) <= _AT_ONCE:
            offsets: list[tuple[int, int]] = encoding.offsets
        else:
            # One by one, so that other threads have their turn; what the tokenizer adds around a text has no place.
            place = encoding.token_to_chars
            offsets = [place(token) or (0, 0) for token in range(len(encoding))]
        if not before:
            return encoding.ids, offsets
        return encoding.ids, [(max(start - 1, 0), max(end - 1, 0)) for start, end in offsets]


def encode_unlocked(tokenizer: Any, text: str, *, add_special_tokens: bool) -> Any:
    """The encoding of a text by a Tokenizer of the tokenizers library, without the interpreter's lock where the text is
    long. `encode` holds it (0.5 s for a megabyte), `encode_batch` does not."""
    if len(text) < _SHORT:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]


def _raised(error: BaseException) -> BaseException:
    """The error, or one that is an `Exception` in the place of a panic in a Rust library, which is none."""
    return RuntimeError(str(error)) if type(error).__name__ == "PanicException" else error


@contextlib.contextmanager
def _panics_raised() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        raise _raised(error) from None


def _load_reference(spec: TokenizerSpec, *, splits_special: bool) -> Any:
    from tokenizers import Tokenizer

    try:
        with _panics_raised():
            reference = Tokenizer.from_str(spec.json_text.decode("utf-8"))
    except Exception as error:  # tokenizers raises bare Exception
        raise TokenizerBroken(f"{spec.source} cannot be loaded: {str(error)[:200]}") from None
    reference.no_truncation()
    reference.no_padding()
    reference.encode_special_tokens = splits_special
    return reference


def _load_fast(spec: TokenizerSpec) -> Any:
    from fastokens import Tokenizer

    fast = Tokenizer.from_json_str(spec.json_text.decode("utf-8"))
    fast.no_truncation()
    fast.no_padding()
    return fast


def _check_added_ids(reference: Any, spec: TokenizerSpec) -> None:
    """Raises `TokenizerBroken` for an added token that the library would give another id than its file says."""
    for token in spec.added_tokens:
        given = reference.token_to_id(token.content)
        if given != token.id:
            raise TokenizerBroken(
                f"added token {token.content!r} has the id {token.id}, and the tokenizers library makes it {given}"
            )
