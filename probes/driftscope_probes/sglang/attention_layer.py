"""An attention layer of SGLang: its parameters, its keys, and the hook that sees its queries.

Written against sglang.srt.layers.radix_attention and sglang.srt.mem_cache.memory_pool, 0.5.23.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from driftscope_probes.drafter import AttentionKind, KeyReader, Observer, Switch


class SglangAttentionLayer:
    """One RadixAttention module of a drafter; see `AttentionLayer`."""

    def __init__(self, module: Any, pool: Any) -> None:
        """`pool`: the drafter's KV pool."""
        self._module, self._pool = module, pool
        self.reader: KeyReader = PoolKeys()

    @functools.cached_property
    def kind(self) -> AttentionKind:
        """See AttentionLayer."""
        module = self._module
        return AttentionKind(
            heads=int(module.tp_q_head_num),
            kv_heads=int(module.tp_k_head_num),
            head_size=int(module.qk_head_dim),
            scale=float(module.scaling),
            softcap=float(module.logit_cap or 0.0),
        )

    @property
    def query_size(self) -> int:
        """See AttentionLayer."""
        return self.kind.head_size

    def cache(self) -> torch.Tensor:
        """Return the layer's keys, [slots, kv_heads, 1, head_size]: blocks of one slot each."""
        keys: torch.Tensor = self._pool.get_key_buffer(self._module.layer_id)
        return keys.unsqueeze(2)

    def tap(self, observer: Observer, switch: Switch) -> Callable[[], None]:
        """See AttentionLayer: the queries are those after the rotary embedding."""
        module, original = self._module, self._module.forward

        @functools.wraps(original)
        def observed(q: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(q, *args, **kwargs)
            if switch.should_record:
                switch.observe("attention", observer, q, None)
            return result

        module.forward = observed
        return lambda: delattr(module, "forward")


class PoolKeys:
    """Keys of SGLang's pool: a row for each slot, in every backend with plain attention."""

    paged = True

    def pages(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """See KeyReader."""
        return kv_cache.transpose(1, 2)

    def score(
        self, queries: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, length: int
    ) -> torch.Tensor:
        """See KeyReader."""
        wanted = block_table[:, :length].long().clamp(0, len(kv_cache) - 1)
        keys = kv_cache[:, :, 0][wanted]  # [B, slots, kv_heads, head_size]
        return (queries @ keys.permute(0, 2, 3, 1).float())[:, None]

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """See KeyReader."""
        return queries
