"""Request fields that rendering reads over, each with the reason. Every other field is carried, applied or refused."""

from __future__ import annotations

from collections.abc import Mapping

NO_EFFECT: Mapping[str, str] = {
    "user": "a label of the caller's; the token protocol has no place for it (vLLM ignores it too)",
    "session_id": "engines take the session from a header, which the gateway passes on",
    "length_penalty": "a parameter of beam search, which is refused",
    "mm_payload": "says how media are sent; a request with media is refused",
    "return_mm_kwargs": "the older spelling of mm_payload",
    "return_tokens_as_token_ids": "how logprobs are written: derender reads it from the same request",
}
"""Of chat and completions alike. `documents`, too, change nothing where the chat template does not read them."""
