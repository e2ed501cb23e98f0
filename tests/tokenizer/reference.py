"""Reference ids by other projects' libraries, run by their own Python (DERENDER_TEST_REFERENCE), never by ours.

Standard input: {"kind", "path", "strings", "pattern", "special", "nfc"}; standard output: {"ids": […], "texts": […]}.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from typing import Any


def tiktoken_file(job: dict[str, Any]) -> tuple[list[list[int]], list[str]]:
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    encoding = tiktoken.Encoding(
        "reference",
        pat_str=job["pattern"],
        mergeable_ranks=load_tiktoken_bpe(job["path"]),
        special_tokens=job["special"],
    )
    texts = [unicodedata.normalize("NFC", text) if job["nfc"] else text for text in job["strings"]]
    ids = [encoding.encode(text, allowed_special="all") for text in texts]
    return ids, [encoding.decode(row) for row in ids]


def mistral(job: dict[str, Any]) -> tuple[list[list[int]], list[str]]:
    if job["path"].endswith(".json"):
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        tokenizer: Any = Tekkenizer.from_file(job["path"])
    else:
        from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer

        tokenizer = SentencePieceTokenizer(job["path"])
    ids = [tokenizer.encode(text, bos=False, eos=False) for text in job["strings"]]
    return ids, [tokenizer.decode(row) for row in ids]


def sentencepiece(job: dict[str, Any]) -> tuple[list[list[int]], list[str]]:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=job["path"])
    ids = [processor.encode(text) for text in job["strings"]]
    return ids, [processor.decode(row) for row in ids]


def train(job: dict[str, Any]) -> tuple[list[list[int]], list[str]]:
    """Make a sentencepiece model at `path` from the strings, with the trainer's options in `pattern`."""
    import io

    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    options = {"vocab_size": 600, "hard_vocab_limit": False, "minloglevel": 2, **job["options"]}
    SentencePieceTrainer.train(sentence_iterator=iter(job["strings"]), model_writer=model, **options)
    with open(job["path"], "wb") as file:
        file.write(model.getvalue())
    return [], []


def transformers(job: dict[str, Any]) -> tuple[list[list[int]], list[str]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(job["path"])
    ids = [tokenizer.encode(text, add_special_tokens=job["add_special_tokens"]) for text in job["strings"]]
    texts = [tokenizer.decode(row, skip_special_tokens=False, clean_up_tokenization_spaces=False) for row in ids]
    return ids, texts


def main() -> None:
    job = json.load(sys.stdin)
    ids, texts = globals()[job["kind"]](job)
    json.dump({"ids": ids, "texts": texts}, sys.stdout)


main()
