"""The lines that tell, at start, what is served and how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from derender.limits import LIMITS

if TYPE_CHECKING:
    from derender.model import Model
    from derender.registry import ModelRegistry


def describe_registry(registry: ModelRegistry, *, max_body_bytes: int) -> Sequence[str]:
    """A few lines for each model, one for the limits."""
    lines = [line for model in registry.models for line in describe_model(model)]
    lines.append(
        f"Limits: body {max_body_bytes / (1 << 20):g} MiB, n {LIMITS.max_n_sequences}, "
        f"prompts {LIMITS.max_completion_prompts}, stop strings {LIMITS.max_stop_strings}"
    )
    return lines


def describe_model(model: Model) -> Sequence[str]:
    """Its names, path, vocabulary, context, encoder, template, and output format where it was told by `auto`."""
    served = ", ".join(model.names)
    encoder = model.tokenizer.encoder
    reason = f" (not fastokens: {encoder.reason})" if encoder.reason else ""
    others = f" (also there: {', '.join(model.tokenizer.other_sources)})" if model.tokenizer.other_sources else ""
    assumed = "" if model.max_model_len_known else " (assumed: the model does not say; set --max-model-len)"
    told = (f"  output format: {model.parsers.told}",) if model.parsers.told else ()
    return (
        f"Model: {served}" + (f" ({model.path})" if model.path != served else ""),
        f"  vocabulary {model.vocab_size} tokens, context {model.max_model_len} tokens{assumed}",
        f"  encoder {encoder.name}{reason}",
        _template(model),
        f"  tokenizer from {model.tokenizer.source}{others}",
        *told,
    )


def _template(model: Model) -> str:
    if model.templates is None:
        return "  no chat template: chat requests will be refused"
    told = model.templates.told
    return f"  chat template: {told}" if told else "  chat template found"
