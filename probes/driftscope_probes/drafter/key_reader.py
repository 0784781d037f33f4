"""Finds the keys of a drafter's attention layer in the engine's cache."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch


class KeyReader(Protocol):
    """Finds the keys of a layer in its cache."""

    paged: bool
    """Whether `pages` can be used; else only `score`."""

    def score(
        self, queries: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, length: int
    ) -> torch.Tensor:
        """[B, blocks, kv_heads, Q, size] float32: [B, kv_heads, Q, head_size] queries, float32,
        times the keys of the first blocks of slots, at least `length`, of B requests. A reader may
        take all slots as one block.

        `block_table` [B, blocks] int; what lies beyond a request's context may be anything.
        """

    def pages(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """A view of the keys, [blocks, block_size, kv_heads, head_size]."""

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """[B, K, heads * head_size] queries as they meet these keys."""


@runtime_checkable
class PackedKeyReader(KeyReader, Protocol):
    """Finds keys that a CPU backend has packed in blocks, in an order of its own."""

    in_order: bool
    """Whether that order is the plain one; known once `order` was called."""

    def packed(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """Return a view of the packed keys, a row for each block and head."""

    def order(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """Return [head_size * block_size] int64: where element (dim, slot) lies in such a row."""
