"""The output formats by name: one dictionary, whatever a server calls them."""

from __future__ import annotations

from derender.formats.qwen import HERMES, QWEN3, QWEN3_CODER
from derender.formats.table import OutputFormat

FORMATS: dict[str, OutputFormat] = {table.name: table for table in (HERMES, QWEN3, QWEN3_CODER)}
"""Every table by its own name."""
