"""Reads keys back from an engine's paged cache: one reader per attention backend.

A reader returns [B, kv_heads, head_size, length + room] float32, ready to be multiplied by a query.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from driftscope.errors import ProbeError


class KeyReader(Protocol):
    """Gathers the first `length` keys of each request."""

    def gather(
        self, kv_cache: torch.Tensor, block_table: torch.Tensor, length: int, room: int = 0
    ) -> torch.Tensor:
        """`block_table` [B, blocks] int; returns [B, kv_heads, head_size, length + room] float32.

        The `room` behind the keys is left uninitialised, for the caller to fill.
        """


class CpuAttnKeys:
    """vLLM's CPU_ATTN backend.

    It packs the keys of a (block, head) in an order that depends on the instruction set, so the
    order is found by writing known values through vLLM's own op and reading them back.
    Cache layout since vLLM 0.27: [blocks, kv_heads, block_size, 2 * head_size], keys first.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._order: torch.Tensor | None = None
        self._in_order = False

    def gather(
        self, kv_cache: torch.Tensor, block_table: torch.Tensor, length: int, room: int = 0
    ) -> torch.Tensor:
        """See KeyReader."""
        keys = self._keys(kv_cache)
        blocks, heads, block_size, head_size = keys.shape
        if self._order is None:
            self._order = self._find_order(keys.dtype, block_size, head_size)
            self._in_order = torch.equal(self._order, torch.arange(len(self._order)))
        wanted = block_table[:, : -(-length // block_size)].long().clamp(0, blocks - 1)
        packed = keys[wanted].flatten(-2)
        if not self._in_order:
            packed = packed[..., self._order]
        batch, count = wanted.shape
        blockwise = packed.view(batch, count, heads, head_size, block_size).permute(0, 2, 3, 1, 4)
        out = torch.empty(batch, heads, head_size, max(count * block_size, length + room))
        view = out[..., : count * block_size].view(batch, heads, head_size, count, block_size)
        view.copy_(blockwise)
        return out[..., : length + room]

    @staticmethod
    def _keys(kv_cache: torch.Tensor) -> torch.Tensor:
        blocks, heads, block_size, _ = kv_cache.shape
        return kv_cache.view(blocks, heads, block_size * 2, -1)[:, :, :block_size]

    def _find_order(self, dtype: torch.dtype, block_size: int, head_size: int) -> torch.Tensor:
        """[head_size * block_size]: where element (dim, token) lies in a packed block."""
        token = torch.arange(block_size).view(-1, 1, 1).expand(-1, 1, head_size)
        dim = torch.arange(head_size).view(1, 1, -1).expand(block_size, 1, -1)
        at_token, at_dim = (self._round_trip(x, dtype, block_size, head_size) for x in (token, dim))
        order = torch.empty(block_size * head_size, dtype=torch.long)
        order[at_dim * block_size + at_token] = torch.arange(block_size * head_size)
        return order

    def _round_trip(
        self, values: torch.Tensor, dtype: torch.dtype, block_size: int, head_size: int
    ) -> torch.Tensor:
        """What lies at each packed place when `values` are written as keys.

        In two digits of base 128, which every supported dtype holds exactly.
        """
        from vllm import _custom_ops as ops

        # On the layer since vLLM 0.31, set with the KV cache; on the implementation before.
        isa = getattr(self._layer, "isa", None) or self._layer.impl.isa
        low, high = values % 128, values // 128
        read = []
        for digit in (low, high):
            cache = torch.zeros(1, 1, block_size * 2, head_size, dtype=dtype)
            keys, rest = cache.chunk(2, dim=2)
            source = digit.to(dtype).contiguous()
            ops.cpu_attn_reshape_and_cache(
                source, source.clone(), keys, rest, torch.arange(block_size), isa,
                k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto",
            )  # fmt: skip
            read.append(keys.reshape(-1).float().round().long())
        return read[0] + 128 * read[1]


READERS: dict[str, Callable[[Any], KeyReader]] = {"CPU_ATTN": CpuAttnKeys}
"""By vLLM's backend name."""


def reader_for(backend: str, layer: Any) -> KeyReader:
    """The reader for an attention backend; raises ProbeError for one that is not supported."""
    if backend not in READERS:
        raise ProbeError(
            f"the drafter's attention backend {backend} is not supported by this driftscope; "
            f"supported: {', '.join(sorted(READERS))}"
        )
    return READERS[backend](layer)
