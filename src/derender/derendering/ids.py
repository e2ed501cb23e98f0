"""Ids of answers."""

from __future__ import annotations

import secrets


def response_id(request_id: str) -> str:
    """The generate server's request id, unchanged; a random one where it gave none."""
    return request_id or secrets.token_hex(8)
