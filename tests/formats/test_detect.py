"""The format that a template and a vocabulary show: real templates of 170 models, and every rule by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.server.tiny_model import write_tiny_model
from tests.vocabularies import SHARED, real

from derender.formats.detect import REASONING_RULES, TOOL_RULES, Rule, detect_format, detect_reasoning
from derender.formats.registry import FORMATS
from derender.model import Model, ModelLoadError, ModelSettings
from derender.protocol.chat import ChatCompletionRequest
from derender.protocol.codec import Decoder
from derender.protocol.derender import DerenderChatRequest
from derender.registry import ModelRegistry
from derender.server.describe import describe_model
from derender.template.jinja import ChatTemplate
from derender.template.thinking import thinks_by_default

TEMPLATES = SHARED / "templates"

NO_TABLE = {"beam", "gigachat35"}
"""Formats that are told, so that none is taken for another one, but that no table reads."""

_NAMED = """
gguf-vocab/gemma4 gemma4 gemma4
gguf-vocab/qwen3.6 qwen3_coder qwen3_coder
lenml/command-r-plus.tool_use command-r -
lenml/deepseek-v3 deepseek_v3 -
lenml/llama3.2 llama3_json -
lenml/minicpm-v4.5 hermes think
lenml/mistral-nemo-tekken mistral -
lenml/qwen2.5 hermes -
lenml/qwen3 hermes qwen3
llama.cpp/Apertus-8B-Instruct apertus apertus
llama.cpp/Apriel-1.6-15b-Thinker-fixed jamba -
llama.cpp/Bielik-11B-v3.0-Instruct hermes think
llama.cpp/ByteDance-Seed-OSS seed_oss seed_oss
llama.cpp/Cohere2MoE cohere_command4 cohere_command4
llama.cpp/CohereForAI-c4ai-command-r-plus-tool_use command-r -
llama.cpp/CohereForAI-c4ai-command-r7b-12-2024-tool_use cohere_command3 cohere_command3
llama.cpp/GLM-4.6 glm45 glm45
llama.cpp/GLM-4.7-Flash glm47 glm47
llama.cpp/GigaChat3-10B-A1.8B gigachat3 -
llama.cpp/GigaChat3.1-10B-A1.8B gigachat3 -
llama.cpp/HuggingFaceTB-SmolLM3-3B - qwen3
llama.cpp/Kimi-K2-Instruct kimi_k2 -
llama.cpp/Kimi-K2-Thinking kimi_k2 kimi_k2
llama.cpp/Kimi-K3 kimi_k3 kimi_k3
llama.cpp/LFM2.5-8B-A1B lfm2 lfm2
llama.cpp/MiMo-VL hermes -
llama.cpp/MiniMax-M2 minimax_m2 minimax_m2
llama.cpp/MiniMax-M3 minimax_m3 minimax_m3
llama.cpp/Mistral-Small-3.2-24B-Instruct-2506 mistral -
llama.cpp/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 nemotron_v3 nemotron_v3
llama.cpp/NVIDIA-Nemotron-Nano-v2 nemotron_deci nemotron_deci
llama.cpp/NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use hermes -
llama.cpp/NousResearch-Hermes-3-Llama-3.1-8B-tool_use hermes -
llama.cpp/Qwen-QwQ-32B hermes think
llama.cpp/Qwen-Qwen2.5-7B-Instruct hermes -
llama.cpp/Qwen-Qwen3-0.6B hermes qwen3
llama.cpp/Qwen3-Coder qwen3_coder -
llama.cpp/Qwen3.5-4B qwen3_coder qwen3_coder
llama.cpp/Reka-Edge hermes think
llama.cpp/Spark2.5 spark25 spark25
llama.cpp/StepFun3.5-Flash step3p5 step3p5
llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Llama-8B deepseek_v3 deepseek_r1
llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B deepseek_v3 deepseek_r1
llama.cpp/deepseek-ai-DeepSeek-V3.1 deepseek_v31 deepseek_v31
llama.cpp/deepseek-ai-DeepSeek-V3.2 deepseek_v32 deepseek_v32
llama.cpp/deepseek-ai-DeepSeek-V4-Flash-0731 deepseek_v4 deepseek_v4
llama.cpp/deepseek-ai-DeepSeek-V4 deepseek_v4 deepseek_v4
llama.cpp/fireworks-ai-llama-3-firefunction-v2 phi4_mini_json -
llama.cpp/google-gemma-4-31B-it-interleaved gemma4 gemma4
llama.cpp/google-gemma-4-31B-it gemma4 gemma4
llama.cpp/ibm-granite-granite-3.3-2B-Instruct granite granite
llama.cpp/ibm-granite-granite-4.0 granite4 -
llama.cpp/ibm-granite-granite-4.1 granite4 -
llama.cpp/inclusionai-ling-3.0-flash ling3 ling3
llama.cpp/llama-cpp-deepseek-r1 deepseek_v3 deepseek_r1
llama.cpp/llama-cpp-rwkv-world - think
llama.cpp/meta-llama-Llama-3.1-8B-Instruct llama3_json -
llama.cpp/meta-llama-Llama-3.2-3B-Instruct llama3_json -
llama.cpp/meta-llama-Llama-3.3-70B-Instruct llama3_json -
llama.cpp/mistralai-Ministral-3-14B-Reasoning-2512 mistral mistral
llama.cpp/mistralai-Mistral-Nemo-Instruct-2407 mistral -
llama.cpp/moonshotai-Kimi-K2 kimi_k2 -
llama.cpp/muse-glimmer muse_glimmer muse_glimmer
llama.cpp/openai-gpt-oss-120b harmony harmony
llama.cpp/openbmb-MiniCPM5-1B minicpm5 minicpm5
llama.cpp/poolside-Laguna-S-2.1 poolside_v1 poolside_v1
llama.cpp/poolside-Laguna-XS-2.1 poolside_v1 poolside_v1
llama.cpp/poolside-Laguna-XS.2 poolside_v1 poolside_v1
llama.cpp/tencent-Hy3 hy_v3 hy_v3
llama.cpp/unsloth-Apriel-1.5 jamba -
llama.cpp/unsloth-mistral-Devstral-Small-2507 mistral -
miles/inkling_fixed inkling inkling
miles/kimi_k25_fixed kimi_k2 kimi_k2
miles/minimax_m25_fixed minimax_m2 minimax_m2
miles/minimax_m27_fixed minimax_m2 minimax_m2
miles/qwen3.5_fixed qwen3_coder qwen3_coder
miles/qwen3_fixed hermes qwen3
miles/qwen3_thinking_2507_and_next_fixed hermes qwen3
mistral-common/v1 - -
mistral-common/v1_spm - -
smg/kimi_k25 kimi_k2 kimi_k2
vllm-builtin/template_minicpmv45 hermes think
vllm/qwen3_reranker - think
vllm/tool_chat_template_apertus apertus apertus
vllm/tool_chat_template_deepseekr1 deepseek_v3 deepseek_r1
vllm/tool_chat_template_deepseekv3 deepseek_v3 -
vllm/tool_chat_template_deepseekv31 deepseek_v31 deepseek_v31
vllm/tool_chat_template_functiongemma functiongemma -
vllm/tool_chat_template_gemma3_pythonic pythonic -
vllm/tool_chat_template_gemma4 gemma4 gemma4
vllm/tool_chat_template_glm4 glm45 -
vllm/tool_chat_template_granite granite -
vllm/tool_chat_template_granite_20b_fc granite-20b-fc -
vllm/tool_chat_template_hermes hermes -
vllm/tool_chat_template_hunyuan_a13b hunyuan_a13b hunyuan_a13b
vllm/tool_chat_template_internlm2_tool internlm -
vllm/tool_chat_template_llama3.1_json llama3_json -
vllm/tool_chat_template_llama3.2_json llama3_json -
vllm/tool_chat_template_llama3.2_pythonic pythonic -
vllm/tool_chat_template_llama4_json llama3_json -
vllm/tool_chat_template_llama4_pythonic llama4_pythonic -
vllm/tool_chat_template_mistral mistral -
vllm/tool_chat_template_mistral3 mistral -
vllm/tool_chat_template_mistral_parallel mistral -
vllm/tool_chat_template_muse_glimmer muse_glimmer muse_glimmer
vllm/tool_chat_template_phi4_mini phi4_mini_json -
vllm/tool_chat_template_qwen3coder qwen3_coder -
vllm/tool_chat_template_toolace pythonic -
vllm/tool_chat_template_xlam_llama xlam -
vllm/tool_chat_template_xlam_qwen xlam -
"""
EXPECTED = {name: (tools, thoughts) for name, tools, thoughts in map(str.split, _NAMED.split("\n")[1:-1])}
"""By hand: what calls and reasoning look like there. Of the others Mistral's write [TOOL_CALLS], and the rest none."""


def nothing(token: str) -> bool:
    return False


def everything(token: str) -> bool:
    return True


def told(source: str, has_token=nothing) -> tuple[str, str]:
    tools = detect_format(source, has_token)
    thoughts = detect_reasoning(source, has_token, thinks=thinks_by_default(ChatTemplate(source), {}))
    return tools.name if tools else "-", thoughts.name if thoughts else "-"


def test_real_templates() -> None:
    if not TEMPLATES.is_dir():
        pytest.skip(f"no templates at {TEMPLATES}")
    files = {str(path.relative_to(TEMPLATES).with_suffix("")): path for path in sorted(TEMPLATES.rglob("*.jinja"))}
    assert set(EXPECTED) <= set(files)
    wrong = {}
    for name, path in files.items():
        default = (
            ("mistral", "mistral" if "think" in name else "-") if name.startswith("mistral-common") else ("-", "-")
        )
        found = told(path.read_text(encoding="utf-8"))
        if found != EXPECTED.get(name, default):
            wrong[name] = found
    assert wrong == {}


@pytest.mark.parametrize(
    ("vocabulary", "template", "family"),
    [
        ("llama3.2", "llama.cpp/meetkai-functionary-medium-v3.2", "-"),
        ("llama3.2", "vllm/tool_chat_template_toolace", "pythonic"),
        ("llama3.2", "lenml/llama3.2", "llama3_json"),
        ("mistral-nemo-tekken", "vllm/tool_chat_template_hermes", "hermes"),
        ("mistral-nemo-tekken", "lenml/mistral-nemo-tekken", "mistral"),
        ("mistral-v1", "mistral-common/v1", "-"),
        ("qwen3", "lenml/qwen3", "hermes"),
        ("gpt-oss", "llama.cpp/openai-gpt-oss-120b", "harmony"),
        ("deepseek-v3", "lenml/deepseek-v3", "deepseek_v3"),
        ("gemma3", "lenml/gemma3", "-"),
        ("smollm2", "smollm2/smollm2-135m-instruct", "-"),
    ],
)
def test_with_real_vocabularies(vocabulary: str, template: str, family: str) -> None:
    path = TEMPLATES / f"{template}.jinja"
    if not path.is_file():
        pytest.skip(f"no template at {path}")
    tokenizer = real(vocabulary)
    tools, _ = told(path.read_text(encoding="utf-8"), lambda token: tokenizer.token_id(token) is not None)
    assert tools == family


# ------------------------------------------------------------------------------------------------------- the rules


@pytest.mark.parametrize(
    "rule", TOOL_RULES, ids=lambda rule: f"{rule.name}:{'+'.join(rule.template + rule.vocabulary)}"
)
def test_every_rule_counts_where_it_alone_holds(rule: Rule) -> None:
    found = detect_format("\n".join(rule.template), lambda token: token in rule.vocabulary)
    assert found is not None
    assert (found.name, found.reason) == (rule.name, rule.reason)


@pytest.mark.parametrize("rule", REASONING_RULES, ids=lambda rule: rule.name)
def test_every_rule_of_reasoning_counts(rule: Rule) -> None:
    found = detect_reasoning("\n".join(rule.template), nothing, thinks=bool(rule.thinks))
    assert found is not None
    assert (found.name, found.reason) == (rule.name, rule.reason)


def test_rules_name_formats() -> None:
    assert {rule.name for rule in TOOL_RULES} - set(FORMATS) == NO_TABLE
    assert {rule.name for rule in REASONING_RULES} <= set(FORMATS)
    assert {rule.reasons_as for rule in TOOL_RULES if rule.reasons_as} <= set(FORMATS)


@pytest.mark.parametrize(
    ("source", "family"),
    [
        # GLM 4.5 puts a newline behind the name, 4.7 does not.
        ("[gMASK]<sop> <tool_call>{function-name}\n<arg_key>", "glm45"),
        ("[gMASK]<sop> <tool_call>{function-name}<arg_key>", "glm47"),
        ("<tool_call>' + name + '<arg_key>", "glm45"),
        ("<tool_calls:opensource><tool_call:opensource>f<tool_sep:opensource><arg_key:opensource>", "hy_v3"),
        ("<tool_calls><tool_call>f<arg_key>", "hy_v4"),
        ("<ifm|tool_calls><ifm|tool_call>f<ifm|arg_key>", "k2_horizon"),
        ("<｜DSML｜ calls>\n<｜DSML｜ invoke name=", "deepseek_v41"),
        ("<｜DSML｜function_calls>", "deepseek_v32"),
        ("<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=", "step3"),
        ('<longcat_tool_call>{"name": "f", "arguments": {}}</longcat_tool_call>', "longcat"),
        ('<think></think><response></response><tool_call>{"name": "f", "arguments": {}}</tool_call>', "ernie45"),
        ('<dots_function_call><invoke name="f"><parameter name="a">1</parameter></invoke>', "dots"),
        ("<functions>[]</functions> <function_calls>f(a=1)</function_calls>", "olmo3"),
        (
            "<|start_of_role|> <tool_call><function=f><parameter=a> truncate_history_thinking defer_loading",
            "nemotron_v3",
        ),
        # Markers in a comment, and those of no format.
        ("{# as <tool_call> with arguments #}{{ messages }}", "-"),
        ("<|tool_call:begin|>id<|tool_call:name|>f<|tool_call:args|>{}<|tool_call:end|>", "-"),
        ("<function=f>{}</function>", "-"),
        ("", "-"),
    ],
)
def test_what_a_template_writes(source: str, family: str) -> None:
    found = detect_format(source, nothing)
    assert (found.name if found else "-") == family


def test_what_is_written_goes_before_what_the_vocabulary_has() -> None:
    found = detect_format('<tool_call>{"name": "f", "arguments": {}}</tool_call>', everything)
    assert found is not None
    assert found.name == "hermes"


def test_a_vocabulary_with_think_tags_shows_no_reasoning() -> None:
    """Siblings that do not reason have the tags too: all that they say would be taken for reasoning."""
    assert detect_reasoning("<tool_call><function=f><parameter=a>", {"<think>"}.__contains__, thinks=False) is None
    found = detect_reasoning("", {"[TOOL_CALLS]", "[THINK]"}.__contains__, thinks=False)
    assert found is not None
    assert (found.name, found.reason) == ("mistral", "the vocabulary has [THINK]")


# ------------------------------------------------------------------------------------------------ thinking by default

_START = "{% for m in messages %}{{ m.content }}{% endfor %}A:"
_OFF = _START + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
_ON = _START + "{% if enable_thinking is defined and enable_thinking %} Think first.{% endif %}"


@pytest.mark.parametrize(
    ("source", "kwargs", "thinks"),
    [
        (_START, {}, False),
        (_START + "<think>\n", {}, True),
        (_START + "<think></think>", {}, False),
        (_OFF, {}, True),
        (_OFF, {"enable_thinking": False}, False),
        (_ON, {}, False),
        (_ON, {"enable_thinking": True}, True),
        (_ON, {"messages": [], "unread": 1}, False),
        (_START + "{{ raise_exception('no') }}", {}, False),
    ],
)
def test_thinks_by_default(source: str, kwargs: dict[str, object], thinks: bool) -> None:
    assert thinks_by_default(ChatTemplate(source), kwargs) is thinks


# ---------------------------------------------------------------------------------------------------------- a model

_HYBRID = "Calls: <tool_call>\\n<function=f>\\n<parameter=a>. " + _START
_HERMES = '{{ \'<tool_call>{"name": "f", "arguments": {}}</tool_call>\' }}{# <think> #}' + _START


def load(tmp_path: Path, template: str, **settings: str) -> Model:
    path = str(write_tiny_model(tmp_path / "tiny"))
    return Model.load(path, settings=ModelSettings(chat_template=template, **settings))


def test_auto_is_told_and_read(tmp_path: Path) -> None:
    source = _HERMES + "{% if enable_thinking is defined and enable_thinking %}<think>{% endif %}"
    model = load(tmp_path, source, tool_call_parser="auto", reasoning_parser="auto")
    assert (model.parsers.tool, model.parsers.reasoning) == ("hermes", "think")
    assert describe_model(model)[-1] == (
        "  output format: tool calls hermes (the template writes <tool_call> and arguments); "
        "reasoning think (the template writes <think>)"
    )
    card = ModelRegistry([model]).cards()[0].derender
    assert card == {
        "tokenizer": "tokenizer.json",
        "encoder": "fastokens",
        "encoder_fallback": "",
        "tool_call_parser": "hermes",
        "reasoning_parser": "think",
    }
    # The prompt says nothing of reasoning: what the model says is content, unless it opens reasoning itself.
    assert message(model, "Hi") == (None, "Hi")
    assert message(model, "<think>Hm.</think>Hi") == ("Hm.", "Hi")


def test_auto_without_reasoning(tmp_path: Path) -> None:
    model = load(tmp_path, _HYBRID, tool_call_parser="auto", reasoning_parser="auto")
    assert (model.parsers.tool, model.parsers.reasoning) == ("qwen3_coder", None)
    assert describe_model(model)[-1].endswith("; no reasoning (the template shows none)")
    assert message(model, "<think>Hm.</think>Hi") == (None, "<think>Hm.</think>Hi")


def test_names_are_kept(tmp_path: Path) -> None:
    model = load(tmp_path, _HYBRID, tool_call_parser="qwen3_xml", reasoning_parser="auto")
    assert (model.parsers.tool, model.parsers.reasoning) == ("qwen3_xml", None)
    plain = load(tmp_path / "plain", _HYBRID)
    assert (plain.parsers.tool, plain.parsers.reasoning, plain.formats) == (None, None, None)
    assert list(describe_model(plain)[-2:]) == ["  chat template found", "  tokenizer from tokenizer.json"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (_START, "--tool-call-parser auto: the chat template and the vocabulary show no known format; name one of "),
        (
            "<｜GCML｜tool_calls>" + _START,
            "--tool-call-parser auto: the template writes ｜GCML｜: that is the format gigachat35, which cannot be "
            "read yet; name one of ",
        ),
    ],
)
def test_a_format_that_cannot_be_told_is_an_error(tmp_path: Path, template: str, message: str) -> None:
    with pytest.raises(ModelLoadError) as failed:
        load(tmp_path, template, tool_call_parser="auto", reasoning_parser="auto")
    assert str(failed.value).startswith(message)
    assert "qwen3_coder" in str(failed.value)
    assert "\n" not in str(failed.value)


def test_only_reasoning_can_be_told_too(tmp_path: Path) -> None:
    model = load(tmp_path, _START, reasoning_parser="auto")
    assert (model.parsers.reasoning, model.formats) == (None, None)
    assert describe_model(model)[-1] == "  output format: no reasoning (the template shows none)"


def message(model: Model, text: str) -> tuple[str | None, str | None]:
    """Reasoning and content of an answer."""
    request = Decoder(DerenderChatRequest).convert(
        {
            "chat_request": {"messages": [{"role": "user", "content": "x"}]},
            "generate_response": {"choices": [{"index": 0, "token_ids": list(text.encode())}]},
        }
    )
    assert isinstance(request.chat_request, ChatCompletionRequest)
    answer = model.derender_chat(request).choices[0].message
    return answer.reasoning, answer.content
