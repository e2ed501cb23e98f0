"""The models of a server that lists them as OpenAI's API does."""

from __future__ import annotations

import msgspec

from derender.engines.base import EngineModel
from derender.engines.errors import EngineFailed
from derender.engines.http import EngineHttp


class _Card(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    root: str | None = None


class _Models(msgspec.Struct):
    data: list[_Card]


_decode = msgspec.json.Decoder(_Models).decode


async def served_models(http: EngineHttp, *, seconds: float) -> list[EngineModel]:
    """What `/v1/models` tells. Raises `EngineFailed`, `EngineRefused`."""
    body = await http.get("/v1/models", seconds=seconds)
    try:
        cards = _decode(body).data
    except msgspec.DecodeError:
        raise EngineFailed(f"{http.name} does not tell its models") from None
    return [EngineModel(name=card.id, max_model_len=card.max_model_len, root=card.root) for card in cards]
