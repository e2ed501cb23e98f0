"""The models of one server, by served name."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from derender.model import Model
from derender.protocol.common import ModelCard, ModelPermission
from derender.protocol.errors import NotFound
from derender.sources import ModelLoadError
from derender.totals import ModelTotals


class ModelRegistry:
    """Served names → models. The first model is the default, for requests that name none."""

    def __init__(self, models: Sequence[Model]) -> None:
        """Raises `ModelLoadError` for a name that two models have."""
        self.models = tuple(models)
        self._by_name: dict[str, Model] = {}
        for model in models:
            for name in model.names:
                if self._by_name.setdefault(name, model) is not model:
                    raise ModelLoadError(f"two models are served as {name!r}")

    def get(self, name: str | None) -> Model:
        """The model of a served name, the default one for None or "". Raises `NotFound`, which lists the names."""
        if not name:
            return self.models[0]
        model = self._by_name.get(name)
        if model is None:
            aliases = ", ".join("<path>" if "/" in known[:1] else known for known in self._by_name)
            raise NotFound(f"The model `{name[:200]}` does not exist. Valid aliases: {aliases}.", param="model")
        return model

    def totals(self) -> ModelTotals:
        """What all models counted."""
        return ModelTotals(*map(sum, zip(*(model.totals for model in self.models), strict=True)))

    def cards(self) -> list[ModelCard]:
        """One card per served name, with what encodes for it and which formats are read."""
        return [
            ModelCard(
                id=name,
                created=model.created,
                root=model.path,
                max_model_len=model.max_model_len,
                permission=[ModelPermission(id=f"modelperm-{secrets.token_hex(8)}", created=model.created)],
                derender={
                    "tokenizer": model.tokenizer.source,
                    "encoder": model.tokenizer.encoder.name,
                    "encoder_fallback": model.tokenizer.encoder.reason,
                    "tool_call_parser": model.parsers.tool,
                    "reasoning_parser": model.parsers.reasoning,
                },
            )
            for name, model in self._by_name.items()
        ]
