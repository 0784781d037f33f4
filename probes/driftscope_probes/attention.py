"""Attention mass of a drafter's queries by class of slot, for one layer over one chain.

Definition: the softmax of q.k * scale over all visible slots, summed over the slots of a class and
averaged over heads (see driftscope.trace.records.DraftRow). Context keys do not change within a
chain, so they are gathered once, at depth 1; each later depth adds its own key.
"""

from __future__ import annotations

import torch

from driftscope_probes.view import DraftStep

CLASSES = ("sink", "prompt", "generated", "self")


class ChainMasses:
    """One layer over one chain of a batch."""

    def __init__(
        self, step: DraftStep, context_keys: torch.Tensor, sink_tokens: int, scale: float
    ) -> None:
        """`context_keys`: [B, kv_heads, head_size, L] float32 with L > every position."""
        self._keys, self._scale = context_keys, scale
        self._classes, self._hidden = _classes(step, context_keys.shape[-1], sink_tokens)
        self._own: list[torch.Tensor] = []

    def measure(self, query: torch.Tensor, key: torch.Tensor, depth: int) -> torch.Tensor:
        """[B, 4] masses at `depth`, in the order of CLASSES.

        `query` [B, heads, head_size] and `key` [B, kv_heads, head_size] are the depth's own slot.
        """
        batch, heads, size = query.shape
        kv_heads = self._keys.shape[1]
        grouped = query.float().view(batch, kv_heads, heads // kv_heads, size) * self._scale
        if depth > 1:
            self._own.append(key.float())
        context = (grouped @ self._keys).masked_fill(self._hidden, -torch.inf)
        if not self._own:
            weights = context.softmax(-1)
            own = weights.new_zeros(batch)
        else:
            chain = grouped @ torch.stack(self._own, dim=-1)
            weights = torch.cat([context, chain], dim=-1).softmax(-1)
            own = weights[..., context.shape[-1] :].sum(-1).mean((1, 2))
            weights = weights[..., : context.shape[-1]]
        by_class = (weights.flatten(1, 2) @ self._classes).mean(1)
        return torch.cat([by_class, own.unsqueeze(1)], dim=1)


def _classes(step: DraftStep, length: int, sink_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, L, 3] float one-hot of sink, prompt, generated; [B, 1, 1, L] bool of hidden slots."""
    device = step.position.device
    slot = torch.arange(length, device=device).unsqueeze(0)
    visible = slot <= step.position.unsqueeze(1)
    prompt = torch.from_numpy(step.prompt_tokens).to(device, non_blocking=True).unsqueeze(1)
    sink = slot < sink_tokens
    in_prompt = slot < prompt
    parts = (sink, ~sink & in_prompt, ~sink & ~in_prompt)
    classes = torch.stack([part & visible for part in parts], dim=-1).float()
    return classes, ~visible[:, None, None, :]
