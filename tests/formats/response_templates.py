"""Response templates as they are published, and a way to ask Hugging Face's own reader about them."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

WHOLE = {"type": "function", "function": "{content}"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
JSON_VALUES = {"name": "json", "args": {"allow_non_json": True}}
THINK = {"open": "<think>", "close": "</think>", "content": "text"}

PUBLISHED: dict[str, dict[str, Any]] = {
    "cohere": {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        "fields": {
            "content": {"open": "<|START_RESPONSE|>", "close": "<|END_RESPONSE|>", "content": "text"},
            "thinking": {"open": "<|START_THINKING|>", "close": "<|END_THINKING|>", "content": "text"},
            "tool_calls": {
                "open": "<|START_ACTION|>",
                "close": "<|END_ACTION|>",
                "content": "json",
                "transform_each": True,
                "transform": {"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
            },
        },
    },
    "ernie": {
        "defaults": {"role": "assistant"},
        "start_anchor": "Assistant:",
        "fields": {
            "thinking": {"open_pattern": r"(?:^|<think>\s*)", "close": "</think>", "content": "text"},
            "content": {"open": "<response>\n", "close_pattern": r"\n?</response>", "content": "text"},
            "tool_calls": {
                "open": "<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": WHOLE,
            },
        },
    },
    "gpt_oss": {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|start|>assistant",
        "fields": {
            "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>", "content": "text"},
            "content": {"open": "<|channel|>final<|message|>", "close": "<|end|>", "content": "text"},
            "tool_calls": {
                "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
                "close": "<|call|>",
                "repeats": True,
                "content": "json",
                "transform": NAMED,
            },
        },
    },
    "smollm": {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": THINK,
            "tool_calls": {
                "open": "<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": WHOLE,
            },
            "content": {"close": "<|im_end|>", "content": "text"},
        },
    },
    "qwen3": {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": THINK,
            "tool_calls": {
                "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>",
                    "value_parser": JSON_VALUES,
                },
                "transform": NAMED,
            },
        },
    },
    "qwen2_served": {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": THINK,
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": WHOLE,
            },
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>)", "content": "text"},
        },
    },
    "qwen3_5_served": {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": THINK,
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                "close_pattern": r"</function>\s*</tool_call>",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
                "transform": NAMED,
            },
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)", "content": "text"},
        },
    },
    "inkling": {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|message_model|>",
        "fields": {
            "thinking": {
                "open_pattern": r"(?:<\|message_model\|>)?[^<]*<\|content_thinking\|>",
                "close": "<|end_message|>",
                "repeats": True,
                "join": "",
                "content_args": {"strip": False},
            },
            "content": {
                "open_pattern": r"(?:<\|message_model\|>)?[^<]*<\|content_text\|>",
                "close": "<|end_message|>",
                "repeats": True,
                "join": "",
                "content_args": {"strip": False},
            },
            "tool_calls": {
                "open_pattern": r"(?:<\|message_model\|>)?[^<]*<\|content_invoke_tool_json\|>",
                "close": "<|end_message|>",
                "repeats": True,
                "content": "json",
                "transform": {
                    "type": "function",
                    "function": {"name": "{content.name}", "arguments": "{content.args}"},
                },
            },
        },
    },
    "muse": {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|start|>assistant",
        "fields": {
            "reasoning_content": {"open_pattern": r"to=self<\|message\|>", "close": "<|eom|>", "content": "text"},
            "tool_calls": {
                "open_pattern": r'<atem:invoke\b[^>]*?\bname="(?P<name>[^"]+)">',
                "close": "</atem:invoke>",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": (
                        r'<atem:parameter\b[^>]*?\bname="(?P<key>[^"]+)"[^>]*?>(?P<value>.*?)</atem:parameter>'
                    ),
                    "value_parser": JSON_VALUES,
                },
                "transform": NAMED,
            },
            "content": {"open_pattern": r"to=user<\|message\|>", "close": ["<|eot|>", "<|eom|>"], "content": "text"},
        },
    },
    "beam": {
        "defaults": {"thinking": "", "content": "", "tool_calls": []},
        "start_anchor_pattern": r"<\|start\|>assistant",
        "fields": {
            "thinking": {"open_pattern": r"<\|channel\|>analysis<\|message\|>", "close": "<|end|>", "content": "text"},
            "content": {
                "open_pattern": r"<\|channel\|>final<\|message\|>",
                "close": ["<|return|>", "<|end|>"],
                "content": "text",
            },
            "tool_calls": {
                "open_pattern": (
                    r"(?:<\|start\|>assistant )?to=(?P<name>.+?)"
                    r"<\|channel\|>analysis(?: <\|constrain\|>xml)?<\|message\|>"
                ),
                "close": ["<|call|>", "<|end|>"],
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": r'<rfl:parameter name="(?P<key>[^"]+)">(?P<value>.*?)</rfl:parameter>',
                    "value_parser": {"name": "text", "args": {"strip": True}},
                },
                "repeats": True,
                "transform": NAMED,
            },
        },
    },
}
"""Of Transformers' tests and its `serve`, of Muse Glimmer and of Beam."""

_SCRIPT = """
import json, sys
from transformers.utils.chat_parsing import parse_response
for template, prefix, text, tools in json.load(sys.stdin):
    try:
        found = parse_response(text, template, prefix=prefix, tools=tools or None)
    except ValueError as error:
        found = {"error": str(error)}
    print(json.dumps(found))
"""


def theirs(cases: Sequence[tuple[Mapping[str, Any], str, str, Sequence[Mapping[str, Any]]]]) -> list[dict[str, Any]]:
    """What Transformers' `parse_response` makes of these: template, prompt, output and tools each."""
    python = _python()
    if python is None:
        pytest.skip("transformers with utils.chat_parsing is not here, nor named by DERENDER_REFERENCE_PYTHON")
    done = subprocess.run(
        [python, "-W", "ignore", "-c", _SCRIPT], input=json.dumps(cases), capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@functools.cache
def _python() -> str | None:
    named = os.environ.get("DERENDER_REFERENCE_PYTHON")
    if named:
        return named
    here = importlib.util.find_spec("transformers") and importlib.util.find_spec("transformers.utils.chat_parsing")
    return sys.executable if here else None
