"""Reads keys from an engine's paged cache: one reader per memory layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from driftscope.errors import ProbeError
from driftscope_probes.drafter import KeyReader
from driftscope_probes.vllm.layers.latent_attention import LatentKeys, is_latent


class PagedKeys:
    """Keys of vLLM's GPU backends: FLASH_ATTN, TRITON_ATTN, FLASHINFER.

    Cache since vLLM 0.27: [blocks, kv_heads, block_size, 2 * head_size], keys first. Before:
    [blocks, 2, block_size, kv_heads, head_size].
    """

    paged = True

    def __init__(self, layer: Any) -> None:
        self._size = int(layer.head_size)

    def pages(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """See KeyReader."""
        if kv_cache.dim() == 5:
            return kv_cache[:, 0]
        return kv_cache.transpose(1, 2)[..., : self._size]

    def score(
        self, queries: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, length: int
    ) -> torch.Tensor:
        """See KeyReader."""
        pages = self.pages(kv_cache)
        wanted = block_table[:, : -(-length // pages.shape[1])].long().clamp(0, len(pages) - 1)
        slots = pages[wanted].flatten(1, 2)  # [B, N, kv_heads, head_size]
        return (queries @ slots.permute(0, 2, 3, 1).float())[:, None]

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """See KeyReader."""
        return queries


class CpuAttnKeys:
    """Keys of vLLM's CPU_ATTN backend.

    The backend packs the keys of a (block, head) in an order that depends on the instruction set,
    so the order is found by writing known values through vLLM's own op and reading them back. Cache
    layout since vLLM 0.27: [blocks, kv_heads, block_size, 2 * head_size], keys first.
    """

    paged = False

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._order: torch.Tensor | None = None
        self.in_order = False
        """Whether the packed order is the plain one; valid once the order is known."""
        self._heads = np.arange(0)
        """[kv_heads] int64: rows of each head's keys, among those of a block."""

    def pages(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """Raise NotImplementedError: keys are packed differently here."""
        raise NotImplementedError

    def score(
        self, queries: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, length: int
    ) -> torch.Tensor:
        """See KeyReader."""
        blocks, heads, block_size, size = kv_cache.shape
        head_size = size // 2
        order = self.order(kv_cache)
        table = block_table[:, : -(-length // block_size)].numpy()
        wanted = np.maximum(np.minimum(table, blocks - 1), 0)
        rows = wanted[..., None] * (2 * heads) + self._heads
        packed = self.packed(kv_cache).index_select(0, torch.from_numpy(rows.ravel()))
        if not self.in_order:
            packed = packed[..., order]
        blockwise = packed.view(*wanted.shape, heads, head_size, block_size).float()
        return queries[:, None] @ blockwise

    def packed(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """Return a view of the cache with alternating rows: the keys, then the values, of each
        block and head, [2 * blocks * kv_heads, head_size * block_size]."""
        blocks, heads, block_size, size = kv_cache.shape
        return kv_cache.view(2 * blocks * heads, block_size * size // 2)

    def order(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """Return [head_size * block_size] int64: index of (dim, slot) in a row of `packed`."""
        if self._order is None:
            _, heads, block_size, size = kv_cache.shape
            self._order = self._find_order(kv_cache.dtype, block_size, size // 2)
            self.in_order = torch.equal(self._order, torch.arange(len(self._order)))
            self._heads = 2 * np.arange(heads)
        return self._order

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """See KeyReader."""
        return queries

    def _find_order(self, dtype: torch.dtype, block_size: int, head_size: int) -> torch.Tensor:
        """Return [head_size * block_size]: the index of element (dim, token) in a packed block."""
        token = torch.arange(block_size).view(-1, 1, 1).expand(-1, 1, head_size)
        dim = torch.arange(head_size).view(1, 1, -1).expand(block_size, 1, -1)
        at_token, at_dim = (self._round_trip(x, dtype, block_size, head_size) for x in (token, dim))
        order = torch.empty(block_size * head_size, dtype=torch.long)
        order[at_dim * block_size + at_token] = torch.arange(block_size * head_size)
        return order

    def _round_trip(
        self, values: torch.Tensor, dtype: torch.dtype, block_size: int, head_size: int
    ) -> torch.Tensor:
        """Return the value found at each packed index after `values` are written as keys.

        Values are written as two digits of base 128, which every supported dtype represents
        exactly.
        """
        from vllm import _custom_ops as ops

        # The attribute is on the layer since vLLM 0.31, set with the KV cache; before, on the
        # implementation.
        isa = getattr(self._layer, "isa", None) or self._layer.impl.isa
        low, high = values % 128, values // 128
        read = []
        for digit in (low, high):
            cache = torch.zeros(1, 1, block_size * 2, head_size, dtype=dtype)
            keys, rest = cache.chunk(2, dim=2)
            source = digit.to(dtype).contiguous()
            ops.cpu_attn_reshape_and_cache(
                source,
                source.clone(),
                keys,
                rest,
                torch.arange(block_size),
                isa,
                k_scale=1.0,
                v_scale=1.0,
                kv_cache_dtype="auto",
            )
            read.append(keys.reshape(-1).float().round().long())
        return read[0] + 128 * read[1]


READERS: dict[str, Callable[[Any], KeyReader]] = {
    "CPU_ATTN": CpuAttnKeys,
    "FLASH_ATTN": PagedKeys,
    "TRITON_ATTN": PagedKeys,
    "FLASHINFER": PagedKeys,
}
"""Readers by vLLM's backend name."""


def reader_for(backend: str, layer: Any) -> KeyReader:
    """Return the reader for an attention backend; raises ProbeError for an unsupported backend."""
    if is_latent(layer):
        return LatentKeys(layer)
    if backend not in READERS:
        raise ProbeError(
            f"the drafter's attention backend {backend} is not supported by this driftscope; "
            f"supported: {', '.join(sorted(READERS))}"
        )
    return READERS[backend](layer)
