"""The output formats by name: one dictionary, whatever a server calls them."""

from __future__ import annotations

from derender.formats.deepseek import DEEPSEEK_R1, DEEPSEEK_V3, DEEPSEEK_V31
from derender.formats.glm import GLM45, GLM47
from derender.formats.harmony import HARMONY
from derender.formats.llama import LLAMA3_JSON
from derender.formats.mistral import MISTRAL
from derender.formats.moonshot import KIMI_K2
from derender.formats.qwen import HERMES, QWEN3, QWEN3_CODER
from derender.formats.table import OutputFormat

FORMATS: dict[str, OutputFormat] = {
    table.name: table
    for table in (
        HARMONY,
        HERMES,
        QWEN3,
        QWEN3_CODER,
        GLM45,
        GLM47,
        DEEPSEEK_R1,
        DEEPSEEK_V3,
        DEEPSEEK_V31,
        KIMI_K2,
        MISTRAL,
        LLAMA3_JSON,
    )
}
"""Every table by its own name."""
