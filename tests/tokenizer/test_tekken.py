"""tekken.json: ids by hand."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from tests.tokenizer.makers import tekken, write

from derender.tokenizer import Tokenizer, TokenizerBroken

ROOM = 8


def load(directory: Path, file: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_directory(write(directory, tekken__json=file))


def test_ranks_come_after_the_special_tokens(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, tekken())
    assert tokenizer.source == "tekken.json (tekken)"
    assert tokenizer.encode("a the") == [ROOM + 97, ROOM + 259]
    assert tokenizer.encode("é") == [ROOM + 262]
    assert tokenizer.vocab_size == ROOM + 263
    assert tokenizer.piece(ROOM + 0xE9) == b"\xe9"
    assert tokenizer.decode(tokenizer.encode("x1 \x00 日本 the\n\n")) == "x1 \x00 日本 the\n\n"


def test_control_tokens_have_their_ids_and_are_special(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, tekken())
    assert tokenizer.encode("<s>[INST]a[/INST]</s>") == [1, 3, ROOM + 97, 4, 2]
    assert tokenizer.encode("a", add_special_tokens=True) == [1, ROOM + 97]
    assert tokenizer.decode([1, 3, ROOM + 97], skip_special_tokens=True) == "a"
    assert tokenizer.encode("<SPECIAL_7>") == [7]
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_old_files_list_no_special_tokens(tmp_path: Path) -> None:
    file = tekken(room=32, version="v3")
    del file["special_tokens"]
    tokenizer = load(tmp_path, file)
    assert tokenizer.encode("[TOOL_CALLS]<pad>[/SYSTEM_PROMPT]<SPECIAL_31>") == [9, 11, 18, 31]
    assert tokenizer.encode("a") == [32 + 97]


LONG = b64encode(b"a" * 200_000).decode()


def broken(change: Any) -> dict[str, Any]:
    file = tekken()
    change(file)
    return file


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ({"config": {}}, "cannot be read"),
        (broken(lambda file: file.pop("special_tokens")), "lists no special_tokens"),
        (broken(lambda file: file["vocab"][5].update(token_bytes="@")), "rank 5 is no base64"),
        (broken(lambda file: file["vocab"][5].update(token_bytes="é")), "rank 5 is no base64"),
        (tekken(default_num_special_tokens=10**12, default_vocab_size=10**12 + 263), "room for 10+ special tokens"),
        (broken(lambda file: file["vocab"][262].update(token_bytes=LONG)), "a token of more than 4096 bytes"),
        (broken(lambda file: file["vocab"].pop(5)), "is not the 263 ranks it says"),
        (tekken(default_vocab_size=500), "is not the 492 ranks it says"),
        (tekken(room=3), "5 special tokens in a room for 3"),
        (tekken(special=[(0, "<s>"), (1, "<s>")]), "the same spelling or rank twice"),
        (tekken(special=[(0, "<s>"), (0, "</s>")]), "the same spelling or rank twice"),
        (tekken(special=[(0, "a")]), "is a plain token, too"),
    ],
)
def test_a_broken_file_is_one_clear_line(tmp_path: Path, file: dict[str, Any], says: str) -> None:
    with pytest.raises(TokenizerBroken, match=says) as caught:
        load(tmp_path, file)
    assert "\n" not in str(caught.value)
