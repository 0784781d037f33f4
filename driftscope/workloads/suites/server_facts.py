"""Facts about the server that prompts are sent to; a suite may depend on them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a server; None: it does not report it."""

    url: str
    """URL of the server, without user and password."""
    model: str
    max_model_len: int | None = None
    """Longest prompt and answer together, in tokens."""
    version: str | None = None
    kv_tokens: int | None = None
    """Number of tokens that its KV cache holds, those of the drafter included."""
    characters_per_token: float = 4.0
    """Characters of driftscope's filler text per token; 4, the rule of thumb for English, if the
    server has no /tokenize."""

    def to_dict(self) -> dict[str, Any]:
        """Return the facts for the manifest."""
        return asdict(self)
