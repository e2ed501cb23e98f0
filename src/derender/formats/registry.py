"""The output formats by name: one dictionary, whatever a server calls them."""

from __future__ import annotations

from derender.formats.arrays import APERTUS, COMMAND_R, HUNYUAN_A13B, JAMBA, NEMOTRON_DECI, PHI4_MINI_JSON, XLAM
from derender.formats.coder import MIMO, NEMOTRON_V3, SEED_OSS, STEP3P5
from derender.formats.cohere import COHERE_COMMAND3, COHERE_COMMAND4
from derender.formats.deepseek import DEEPSEEK_R1, DEEPSEEK_V3, DEEPSEEK_V31, HOLO2
from derender.formats.deepseek_dsml import DEEPSEEK_V4, DEEPSEEK_V32, DEEPSEEK_V41
from derender.formats.elements import KIMI_K3, MINIMAX_M3
from derender.formats.gemma import FUNCTIONGEMMA, GEMMA4
from derender.formats.glm import GLM45, GLM47, IQUEST_Q1, LING3, POOLSIDE_V1, SPARK25
from derender.formats.granite import GRANITE, GRANITE4, GRANITE_20B_FC
from derender.formats.harmony import HARMONY
from derender.formats.headed import GIGACHAT3, PLAMO3
from derender.formats.invoke import DOTS, MINICPM5, STEP3
from derender.formats.llama import JSON, LLAMA3_JSON
from derender.formats.minimax import MINIMAX_M2
from derender.formats.mistral import MISTRAL
from derender.formats.moonshot import KIMI_K2
from derender.formats.muse import MUSE_GLIMMER
from derender.formats.pairs import HY_V3, HY_V4, K2_HORIZON
from derender.formats.pythonic import LFM2, LLAMA4_PYTHONIC, OLMO3, PYTHONIC
from derender.formats.qwen import HERMES, QWEN3, QWEN3_CODER, THINK_TAGS
from derender.formats.table import OutputFormat
from derender.formats.tagged import ERNIE45, INKLING, INTERNLM, LONGCAT, TRINITY

FORMATS: dict[str, OutputFormat] = {
    table.name: table
    for table in (
        FUNCTIONGEMMA,
        GEMMA4,
        HARMONY,
        MUSE_GLIMMER,
        MINIMAX_M3,
        KIMI_K3,
        LFM2,
        LLAMA4_PYTHONIC,
        OLMO3,
        PYTHONIC,
        HERMES,
        QWEN3,
        QWEN3_CODER,
        THINK_TAGS,
        GLM45,
        GLM47,
        DEEPSEEK_V32,
        DEEPSEEK_V4,
        DEEPSEEK_V41,
        MINIMAX_M2,
        LING3,
        POOLSIDE_V1,
        SPARK25,
        IQUEST_Q1,
        HY_V3,
        HY_V4,
        K2_HORIZON,
        NEMOTRON_V3,
        STEP3P5,
        MIMO,
        SEED_OSS,
        STEP3,
        MINICPM5,
        DOTS,
        DEEPSEEK_R1,
        DEEPSEEK_V3,
        DEEPSEEK_V31,
        KIMI_K2,
        MISTRAL,
        LLAMA3_JSON,
        JSON,
        HOLO2,
        GRANITE,
        GRANITE4,
        GRANITE_20B_FC,
        ERNIE45,
        LONGCAT,
        INTERNLM,
        TRINITY,
        INKLING,
        HUNYUAN_A13B,
        JAMBA,
        NEMOTRON_DECI,
        PHI4_MINI_JSON,
        APERTUS,
        XLAM,
        COMMAND_R,
        COHERE_COMMAND3,
        COHERE_COMMAND4,
        GIGACHAT3,
        PLAMO3,
    )
}
"""Every table by its own name."""
