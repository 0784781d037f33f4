"""Changes of attention that has been computed: hidden slots, and a share that is kept.

To hide slots and to divide their attention among the others equals a mask before the softmax, and
to scale a set of slots to a share equals one offset of its logits per head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from driftscope.ablate.intervention import Attention
from driftscope.inspect.reference.drafter import Edit

NEAREST_SLOTS = 64
"""Number of slots that LAST_SLOTS leaves visible, the query's own among them."""
_LEAST = 1e-30


class AttentionEdit:
    """Edits the attention of one chain, depth after depth."""

    def __init__(self, kind: Attention, anchors: Tensor, context_slots: int, n_sink: int) -> None:
        """`anchors` [A] are the chains' slots, and `n_sink` is the number of slots in the sink
        set."""
        self._kind = kind
        self._anchors = anchors
        self._context = context_slots
        self._n_sink = n_sink
        self._first: dict[int, Tensor] = {}
        """Share of the sink set at depth 1 by layer, [B, N, A, 1]."""

    def at(self, depth: int) -> Edit:
        """Return the edit of one depth."""

        def edit(layer: int, weights: Tensor) -> Tensor:
            if self._kind is Attention.RESTORE_SINK:
                return self._with_first_share(layer, weights)
            kept = weights * self._seen(depth, weights.shape[-1])
            return kept / kept.sum(-1, keepdim=True).clamp_min(_LEAST)

        return edit

    def _seen(self, depth: int, slots: int) -> Tensor:
        """Return which slots are seen, [A or 1, slots]; slots of the context come first."""
        at = torch.arange(slots, device=self._anchors.device)
        if self._kind is Attention.HIDE_CHAIN:
            return (at < self._context)[None]
        if self._kind is Attention.HIDE_SINK:
            return (at >= self._n_sink)[None]
        own = self._anchors[:, None] + 1 + at - self._context
        position = torch.where(at < self._context, at, own)
        return position > self._anchors[:, None] + depth - 1 - NEAREST_SLOTS

    def _with_first_share(self, layer: int, weights: Tensor) -> Tensor:
        sink = weights[..., : self._n_sink].sum(-1, keepdim=True)
        first = self._first.setdefault(layer, sink)
        others = weights[..., self._n_sink :] * ((1 - first) / (1 - sink).clamp_min(_LEAST))
        return torch.cat(
            [weights[..., : self._n_sink] * (first / sink.clamp_min(_LEAST)), others], -1
        )
