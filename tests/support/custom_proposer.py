"""A proposer that only its own plugin knows, as vLLM's method "custom_class" loads one."""

from __future__ import annotations

from typing import Any


class RepeatingProposer:
    """Drafts the last token again and again."""

    def __init__(self, vllm_config: Any) -> None:
        self.k = vllm_config.speculative_config.num_speculative_tokens

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Return K tokens for each request that has sampled one."""
        return [ids[-1:] * self.k if ids else [] for ids in sampled_token_ids]

    def load_model(self, *_: Any, **__: Any) -> None:
        """Have nothing to load."""
