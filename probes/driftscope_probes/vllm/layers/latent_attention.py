"""Multi-head latent attention: one latent per slot replaces the keys of all heads.

The cache holds [latent | rotary key] of each slot. A head's score is q_nope . (W_UK latent) +
q_rope . rotary key. If W_UK is moved to the query's side ("absorbed"), the score is one product
with the cached row: attention with a single key head of the row's size. vLLM absorbs when it
decodes and not when it prefills. The tap keeps the query before absorption, so that all depths of a
chain are measured alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from driftscope.errors import ProbeError
from driftscope_probes.drafter import Observer, Switch


def is_latent(layer: Any) -> bool:
    """Return whether a vLLM attention layer uses latent attention."""
    return hasattr(layer, "kv_lora_rank")


def query_size(layer: Any) -> int:
    """Return the count of numbers in one head's query before absorption."""
    return int(layer.qk_nope_head_dim) + int(layer.qk_rope_head_dim)


def tap_latent(layer: Any, observer: Observer, switch: Switch) -> Callable[[], None]:
    """Tap a latent layer like `tap_attention`; some implementations have no `forward`."""
    original = layer.forward_impl

    @functools.wraps(original)
    def observed(
        query: Any, latent: Any, rope: Any, cache: Any, meta: Any, *a: Any, **kw: Any
    ) -> Any:
        result = original(query, latent, rope, cache, meta, *a, **kw)
        if meta is not None and switch.should_record:
            switch.observe("attention", observer, query, None)
        return result

    layer.forward_impl = observed
    return lambda: delattr(layer, "forward_impl")


class LatentKeys:
    """Rows of the cache, [blocks, block_size, latent + rope], as keys of a single head."""

    paged = False

    def __init__(self, layer: Any) -> None:
        """Raises ProbeError if vLLM has not prepared the up-projection of the keys."""
        self._nope = int(layer.qk_nope_head_dim)
        weight = getattr(layer, "W_UK_T", None)
        if weight is None:
            raise ProbeError(
                "latent attention without an absorbed key projection (W_UK_T) is not supported by "
                "this driftscope"
            )
        self._weight: torch.Tensor = weight
        """[heads, nope, latent]."""

    def pages(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """Raise NotImplementedError: heads of this size are too large for the paged kernel."""
        raise NotImplementedError

    def score(
        self, queries: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, length: int
    ) -> torch.Tensor:
        """See KeyReader."""
        blocks, size, _ = kv_cache.shape
        wanted = block_table[:, : -(-length // size)].long().clamp(0, blocks - 1)
        keys = kv_cache[wanted].flatten(1, 2)[:, None].transpose(-1, -2).float()
        return (queries @ keys)[:, None]

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """Absorb [B, K, heads * (nope + rope)] to [B, K, heads * (latent + rope)] float32."""
        q = queries.float()
        q = q.view(*q.shape[:-1], len(self._weight), -1)
        nope, rope = q[..., : self._nope], q[..., self._nope :]
        absorbed = torch.einsum("bkhn,hnl->bkhl", nope, self._weight.float())
        return torch.cat((absorbed, rope), -1).flatten(-2)
