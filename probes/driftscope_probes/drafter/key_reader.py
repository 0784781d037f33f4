"""Reads the keys of a drafter's attention layer from the engine's cache."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch


class KeyReader(Protocol):
    """Reads the keys of a layer from its cache."""

    paged: bool
    """Whether `pages` can be used; otherwise only `score` can."""

    def score(
        self, queries: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, length: int
    ) -> torch.Tensor:
        """Return the products of queries and keys, [B, blocks, kv_heads, Q, size] float32.

        `queries` [B, kv_heads, Q, head_size] float32 are multiplied with the keys of the first
        blocks of B requests, which cover at least `length` slots. A reader may treat all slots as
        one block. `block_table` [B, blocks] int; entries beyond a request's context may have any
        value.
        """

    def pages(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """Return a view of the keys, [blocks, block_size, kv_heads, head_size]."""

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """Return the queries [B, K, heads * head_size], transformed to match these keys."""


@runtime_checkable
class PackedKeyReader(KeyReader, Protocol):
    """Reads keys that a CPU backend has packed in blocks, in its own order."""

    in_order: bool
    """Whether the packed order is the plain one; valid after `order` was called."""

    def packed(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """Return a view of the packed keys, with a row for each block and head."""

    def order(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """Return [head_size * block_size] int64: the index of element (dim, slot) in such a row."""
