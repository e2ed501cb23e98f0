"""What the rank files of known vocabularies leave out: how they cut text, and their special tokens.

A family is known by the number of ranks in its file, never by a model's name. Sources: openai/tiktoken
(openai_public.py), the tokenization files in the repositories of Qwen 1, Hunyuan, Kimi K2 and GLM-4, and the
tokenizer.json files of Llama 3.2 and Qwen 3.6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RankFamily:
    """What a rank file leaves out.

    `pattern` in Oniguruma's syntax, "" for GPT-2's. `special_tokens`: id → spelling. `plain_tokens`: added tokens that
    are shown where special ones are hidden. `nfc`: text is composed first. `before`: what a text begins with, where
    special tokens are added. `reserved`: how a special id without a name is spelled, and for how many ids.
    """

    pattern: str
    special_tokens: Mapping[int, str] = field(default_factory=dict)
    plain_tokens: Mapping[int, str] = field(default_factory=dict)
    nfc: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    reserved: tuple[Callable[[int], str], int] | None = None


_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_WORDS = rf"(?i:{_CONTRACTIONS})" r"|[^\r\n\p{L}\p{N}]?%s+|\p{N}%s| ?[^\s%s\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K = _WORDS % (r"\p{L}", "{1,3}", r"\p{L}")
_QWEN = _WORDS % (r"\p{L}", "", r"\p{L}")
_QWEN35 = _WORDS % (r"[\p{L}\p{M}]", "", r"\p{L}\p{M}")
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased(without: str, symbols_end: str) -> str:
    start, end = r"[^\r\n\p{L}\p{N}]?", rf"(?i:{_CONTRACTIONS})?"
    upper, lower = f"[{_UPPER}{without}]", f"[{_LOWER}{without}]"
    return (
        f"{start}{upper}*{lower}+{end}|{start}{upper}+{lower}*{end}"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"
        rf"{symbols_end}*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_O200K = _cased("", r"[\r\n/]")
_KIMI = r"[\p{Han}]+|" + _cased(r"&&[^\p{Han}]", r"[\r\n]")


def _numbered(first: int, *texts: str) -> dict[int, str]:
    return dict(enumerate(texts, first))


_END = "<|endoftext|>"
# fmt: off
_LLAMA3 = _numbered(
    128000, "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eom_id|>", "<|eot_id|>", "<|python_tag|>", *(f"<|reserved_special_token_{n}|>" for n in range(3, 248)),
)
_KIMI_TOKENS = {
    163584: "[BOS]", 163585: "[EOS]", 163586: "<|im_end|>", 163587: "<|im_user|>", 163588: "<|im_assistant|>",
    163590: "<|start_header_id|>", 163591: "<|end_header_id|>", 163593: "[EOT]", 163594: "<|im_system|>",
    163601: "<|im_middle|>", 163838: "[UNK]", 163839: "[PAD]",
}
_KIMI_CALLS = _numbered(
    163595, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>",
)
_QWEN35_SPECIAL = _numbered(
    248044, _END, "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
) | _numbered(
    248070, "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
    "<tts_text_bos_single>", "<|audio_pad|>",
)
_QWEN35_PLAIN = _numbered(
    248058, "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)
_HARMONY = {
    199998: "<|startoftext|>", 199999: _END, 200002: "<|return|>", 200003: "<|constrain|>", 200005: "<|channel|>",
    200006: "<|start|>", 200007: "<|end|>", 200008: "<|message|>", 200012: "<|call|>", 200018: "<|endofprompt|>",
}
# fmt: on
_GPT2_FAMILY = RankFamily("", {50256: _END}, names={"eos_token": _END})
_EXTRAS = tuple(f"<|extra_{n}|>" for n in range(205))

RANK_FAMILIES: Mapping[int, RankFamily] = {
    50256: _GPT2_FAMILY,
    50280: _GPT2_FAMILY,  # p50k: its highest rank is 50280, for it leaves out 50256
    100256: RankFamily(
        _CL100K,
        {
            100257: _END,
            100258: "<|fim_prefix|>",
            100259: "<|fim_middle|>",
            100260: "<|fim_suffix|>",
            100276: "<|endofprompt|>",
        },
        names={"eos_token": _END},
    ),
    127957: RankFamily(
        _QWEN,
        _numbered(127957, _END, "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", *_EXTRAS),
        nfc=True,
        names={"bos_token": "<|startoftext|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"},
    ),
    128000: RankFamily(
        _CL100K,
        _LLAMA3,
        names={"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
        before=("<|begin_of_text|>",),
    ),
    151329: RankFamily(_CL100K, names={"eos_token": _END}, before=("[gMASK]", "<sop>")),
    151643: RankFamily(
        _QWEN,
        _numbered(151643, _END, "<|im_start|>", "<|im_end|>", *_EXTRAS),
        nfc=True,
        names={"eos_token": _END, "pad_token": _END},
    ),
    163584: RankFamily(
        _KIMI,
        {**_KIMI_TOKENS, **_KIMI_CALLS},
        names={"bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]", "pad_token": "[PAD]"},
        reserved=(lambda number: f"<|reserved_token_{number}|>", 256),
    ),
    199998: RankFamily(_O200K, {199999: _END, 200018: "<|endofprompt|>"}, names={"eos_token": _END}),
    248044: RankFamily(_QWEN35, _QWEN35_SPECIAL, _QWEN35_PLAIN, nfc=True, names={"eos_token": "<|im_end|>"}),
}
"""By the number of ranks."""

HARMONY = RankFamily(
    _O200K,
    _HARMONY,
    names={"bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": _END},
    reserved=(lambda number: f"<|reserved_{number}|>", 1090),
)
"""o200k with the special tokens of gpt-oss; its 1,090 special ids begin at 199998."""
