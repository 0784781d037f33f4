"""What is known of a server that prompts are sent to: a suite may depend on it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a server; None: it does not say."""

    url: str
    """Without user and password."""
    model: str
    max_model_len: int | None = None
    """Longest prompt and answer together, tokens."""
    version: str | None = None
    kv_tokens: int | None = None
    """Tokens that its KV cache holds, those of the drafter included."""
    characters_per_token: float = 4.0
    """Of driftscope's filler text; 4, the rule of thumb for English, where it has no /tokenize."""

    def to_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)
