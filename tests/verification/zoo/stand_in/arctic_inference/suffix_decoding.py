"""The only class that vLLM imports from the package."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any


class SuffixDecodingCache:
    """Drafts the tokens that followed an earlier occurrence of the last token."""

    def __init__(self, **_: Any) -> None:
        self.active_requests: set[str] = set()
        self.cached_requests: set[str] = set()
        self._tokens: dict[str, list[int]] = {}

    def start_request(self, request: str, prompt: Sequence[int]) -> None:
        self.active_requests.add(request)
        self._tokens[request] = [int(token) for token in prompt]

    def add_active_response(self, request: str, tokens: Sequence[int]) -> None:
        self._tokens[request] += [int(token) for token in tokens]

    def stop_request(self, request: str) -> None:
        self.active_requests.discard(request)

    def evict_cached_response(self, request: str) -> None:
        self.cached_requests.discard(request)

    def speculate(
        self, request: str, pattern: Sequence[int], *, max_spec_tokens: int, **_: Any
    ) -> Any:
        past = self._tokens[request]
        before = [i for i, token in enumerate(past[:-1]) if token == int(pattern[-1])]
        found = past[before[-1] + 1 :][:max_spec_tokens] if before else []
        return SimpleNamespace(token_ids=found)
