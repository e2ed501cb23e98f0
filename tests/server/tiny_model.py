"""A model directory small enough to write in a test: one token a byte, four special tokens, a chat template."""

from __future__ import annotations

import json
from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
SPECIAL = ("<|pad|>", "<|start|>", "<|end|>", "<|eos|>")
MAX_MODEL_LEN = 4096


def _alphabet() -> list[str]:
    """How byte-level BPE spells the 256 bytes: printable ones as themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + n) for n, byte in enumerate(others)}
    return [spelled[byte] for byte in range(256)]


def write_tiny_model(directory: Path) -> Path:
    """Writes it. The id of a byte is its value; the special tokens are 256 to 259."""
    directory.mkdir(parents=True, exist_ok=True)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 256 + number,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, content in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: byte for byte, text in enumerate(_alphabet())},
            "merges": [],
        },
    }
    config = {"model_type": "llama", "max_position_embeddings": MAX_MODEL_LEN, "vocab_size": 260, "eos_token_id": 259}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|eos|>",
        "pad_token": "<|pad|>",
        "chat_template": TEMPLATE,
    }
    for name, value in (
        ("tokenizer.json", tokenizer),
        ("config.json", config),
        ("tokenizer_config.json", tokenizer_config),
    ):
        (directory / name).write_text(json.dumps(value))
    return directory
