"""Multi-head latent attention: one latent per slot stands for the keys of all heads.

The cache holds [latent | rotary key] of each slot. A head's score is q_nope . (W_UK latent) +
q_rope . rotary key, so that with W_UK taken over to the query's side ("absorbed") it is one product
with the cached row: attention with a single key head, as large as that row. vLLM absorbs where it
decodes and not where it prefills; what is kept here is the query before that, so that all depths of
a chain are measured alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from driftscope.errors import ProbeError
from driftscope_probes.drafter.observer import Observer, Switch


def is_latent(layer: Any) -> bool:
    """Whether a vLLM attention layer is of this sort."""
    return hasattr(layer, "kv_lora_rank")


def query_size(layer: Any) -> int:
    """Numbers in one head's query before absorption."""
    return int(layer.qk_nope_head_dim) + int(layer.qk_rope_head_dim)


def tap_latent(layer: Any, observer: Observer, switch: Switch) -> Callable[[], None]:
    """As `attention.tap_attention`: some implementations have no `forward` to tap."""
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
    """The rows of the cache, [blocks, block_size, latent + rope], as keys of a single head."""

    paged = False

    def __init__(self, layer: Any) -> None:
        """Raises ProbeError where vLLM has not laid out the up-projection of the keys."""
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
        """See KeyReader: a head of this size is more than the paged kernel takes."""
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
        """[B, K, heads * (nope + rope)] absorbed, [B, K, heads * (latent + rope)] float32."""
        q = queries.float()
        q = q.view(*q.shape[:-1], len(self._weight), -1)
        nope, rope = q[..., : self._nope], q[..., self._nope :]
        absorbed = torch.einsum("bkhn,hnl->bkhl", nope, self._weight.float())
        return torch.cat((absorbed, rope), -1).flatten(-2)
