"""One model's tokenizer: text → ids by the encoder, ids → bytes by the piece table."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from functools import cached_property

from derender.tokenizer.detokenizer import Detokenizer
from derender.tokenizer.directory import SourceMode, read_tokenizer_directory
from derender.tokenizer.encoder import Encoder, EncoderChoice, EncoderName
from derender.tokenizer.files import TokenizerBroken, TokenizerSpec
from derender.tokenizer.pieces import build_pieces, spelling
from derender.tokenizer.segments import LONG, SegmentedEncoder

_SLICE = 1 << 16  # ids that are decoded at once, so that other threads have their turn


class Tokenizer:
    """Both ways between text and ids. Immutable after load; safe to use from several threads."""

    def __init__(self, spec: TokenizerSpec, *, force: EncoderName | None = None) -> None:
        """Raises `TokenizerBroken`."""
        try:
            how = spelling(spec.decoder)
            table = build_pieces(spec, how)
        except (AttributeError, KeyError, TypeError) as error:  # members of other types than a decoder has
            raise TokenizerBroken(f"tokenizer.json has a decoder that cannot be read: {error}") from None
        self.vocab_size = self.empty_id = len(table)
        """One past the highest id; as an id it stands for one outside the vocabulary, with an empty piece."""
        self.pieces: list[bytes] = [*(piece or b"" for piece in table), b""]
        """id → bytes; empty for a hole of the vocabulary (see `knows`)."""
        self.holes = frozenset(i for i, piece in enumerate(table) if piece is None)
        self.special_ids = frozenset(token.id for token in spec.added_tokens if token.special)
        self.added_tokens = spec.added_tokens
        self.visible_pieces = list(self.pieces)
        """The same with special tokens empty: what `skip_special_tokens` shows."""
        for i in self.special_ids:
            self.visible_pieces[i] = b""
        self.strips_leading_blank = how.strips_leading_blank
        self.special_tokens = dict(spec.special_tokens)
        self.config = spec.config
        self.max_bytes_per_token = self.max_chars_per_token = max(map(len, self.pieces))
        self.source = spec.source
        """The file that the vocabulary came from, and what it is."""
        self.other_sources = spec.others
        self.reload = spec.reload
        """The description again, with the vocabulary; reads files."""
        self._added = {token.content: token.id for token in spec.added_tokens}
        self._spellings: list[str] | None = None
        self._encoder = Encoder(spec, force=force)
        self.segments: SegmentedEncoder | None = None
        """What long texts are encoded by, if `keep_segments` was called."""

    @classmethod
    def from_directory(
        cls, directory: str | os.PathLike[str], *, mode: SourceMode = "auto", force: EncoderName | None = None
    ) -> Tokenizer:
        """The tokenizer of a model's directory. Raises `TokenizerBroken`."""
        return cls(read_tokenizer_directory(directory, mode=mode), force=force)

    @property
    def encoder(self) -> EncoderChoice:
        """Which library encodes, and why not the faster one."""
        return self._encoder.choice

    def keep_segments(self, boundaries: Collection[str], *, max_bytes: int) -> None:
        """Keeps the ids of long texts' segments, up to `max_bytes`. Called once, while the model is loaded.

        `boundaries`: special tokens that a template writes.
        """
        if max_bytes and not self._encoder.splits_special:
            self.segments = SegmentedEncoder(
                self._encoder.encode, boundaries=boundaries, added=self.added_tokens, max_bytes=max_bytes
            )

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The ids of a text, equal to the reference tokenizer's."""
        if self.segments is not None and len(text) >= LONG and not add_special_tokens:
            return self.segments.encode(text)
        return self._encoder.encode(text, add_special_tokens=add_special_tokens)

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids and, for each, its (start, end) in characters of the text."""
        return self._encoder.encode_with_offsets(text, add_special_tokens=add_special_tokens)

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokenizer puts before and after a text."""
        bare, full = (self.encode("a", add_special_tokens=add) for add in (False, True))
        for before in range(len(full) - len(bare) + 1):
            if full[before : before + len(bare)] == bare:
                return full[:before], full[before + len(bare) :]
        return [], []

    def knows(self, token_id: int) -> bool:
        """Whether an id is in the vocabulary."""
        return 0 <= token_id < self.vocab_size and token_id not in self.holes

    def added_id(self, token: str) -> int | None:
        """The id of an added token by its spelling, None if there is none. `token_id` knows plain tokens, too."""
        return self._added.get(token)

    def token_id(self, token: str) -> int | None:
        """The id of a vocabulary entry by its spelling, None if there is none."""
        found = self._added.get(token)
        return self._encoder.token_id(token) if found is None else found

    def piece(self, token_id: int) -> bytes:
        """The exact bytes of a token. Raises IndexError outside the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            raise IndexError(token_id)
        return self.pieces[token_id]

    def token_text(self, token_id: int) -> str:
        """What a token reads as alone: its text, `""` if it ends inside a character."""
        decoder = Detokenizer(self.pieces)
        return decoder.push((token_id,))

    def token_string(self, token_id: int) -> str:
        """The vocabulary's own spelling (`Ġworld`), `""` outside the vocabulary."""
        if self._spellings is None:
            spellings = [""] * self.vocab_size
            for token, i in self.reload().vocab.items():  # read again, since few requests need it
                spellings[i] = token
            for token, i in self._added.items():
                spellings[i] = token
            self._spellings = spellings
        return self._spellings[token_id] if 0 <= token_id < self.vocab_size else ""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of known ids. Equal to the reference's decode, but for bytes that are no UTF-8."""
        decoder = self.detokenizer(skip_special_tokens=skip_special_tokens)
        parts = [decoder.push(ids[start : start + _SLICE]) for start in range(0, len(ids), _SLICE)]
        return "".join(parts) + decoder.finish()

    def detokenizer(self, *, skip_special_tokens: bool, continues: bool = False) -> Detokenizer:
        """A new detokenizer. `continues`: the text goes on after a prompt, so a leading blank is its own."""
        return Detokenizer(
            self.visible_pieces if skip_special_tokens else self.pieces,
            strip_blank=self.strips_leading_blank and not continues,
        )
