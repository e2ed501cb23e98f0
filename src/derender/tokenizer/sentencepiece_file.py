"""What a sentencepiece `.model` file says (sentencepiece_model.proto of google/sentencepiece)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from derender.tokenizer.files import TokenizerBroken
from derender.tokenizer.protobuf import ProtobufBroken, Value, fields, signed

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of pieces; tokenizer.ggml.token_type has the same."""
_TRIE = struct.Struct("<I")  # bytes of the trie that normalization rules begin with
UNIGRAM, BPE = 1, 2
"""Kinds of models; WORD is 3 and CHAR is 4."""


@dataclass
class SentencePieceFile:
    """The fields that decide ids. The index of a piece is its id."""

    texts: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    whitespace_as_suffix: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = -1
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


def read_sentencepiece(data: bytes) -> SentencePieceFile:
    """Raises `TokenizerBroken` for what is no such file."""
    file = SentencePieceFile()
    try:
        for number, value in fields(data):
            if number == 1:
                _piece(_message(value), file)
            elif number == 2:
                _trainer(_message(value), file)
            elif number == 3:
                _normalizer(_message(value), file)
    except (ValueError, OverflowError) as error:
        raise TokenizerBroken(f"it is no sentencepiece model: {error}") from None
    if not file.texts or UNKNOWN not in file.types:
        raise TokenizerBroken("it is no sentencepiece model: it has no pieces")
    return file


def _message(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ProtobufBroken("a number where a message belongs")
    return value


def _piece(data: bytes, file: SentencePieceFile) -> None:
    text, score, kind = "", 0.0, NORMAL
    for number, value in fields(data):
        if number == 1:
            text = _message(value).decode("utf-8")
        elif number == 2:
            score = float(value)
        elif number == 3:
            kind = int(value)
    file.texts.append(text)
    file.scores.append(score)
    file.types.append(kind)


def _trainer(data: bytes, file: SentencePieceFile) -> None:
    for number, value in fields(data):
        match number:
            case 3:
                file.model_type = int(value)
            case 24:
                file.whitespace_as_suffix = bool(value)
            case 35:
                file.byte_fallback = bool(value)
            case 40:
                file.unk_id = signed(value)
            case 41:
                file.bos_id = signed(value)
            case 42:
                file.eos_id = signed(value)
            case 43:
                file.pad_id = signed(value)


def _normalizer(data: bytes, file: SentencePieceFile) -> None:
    for number, value in fields(data):
        match number:
            case 2:
                file.charsmap = _message(value)
                if file.charsmap and not 4 <= _TRIE.unpack_from(file.charsmap.ljust(4))[0] + 4 <= len(file.charsmap):
                    raise ProtobufBroken("its normalization rules are cut short")  # the library would make room for all
            case 3:
                file.add_dummy_prefix = bool(value)
            case 4:
                file.remove_extra_whitespaces = bool(value)
            case 5:
                file.escape_whitespaces = bool(value)
