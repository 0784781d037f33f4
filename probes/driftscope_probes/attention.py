"""Attention mass of a drafter's queries by class of slot, for one layer over one chain.

Definition: the softmax of q.k * scale over all visible slots, summed over the slots of a class and
averaged over heads (see driftscope.trace.records.DraftRow). Context keys do not change within a
chain, so they are gathered once, at depth 1; each later depth adds its own key behind them.
"""

from __future__ import annotations

import torch

from driftscope_probes.view import DraftStep

CLASSES = ("sink", "prompt", "generated", "self")


class ChainMasses:
    """One layer over one chain of a batch."""

    def __init__(self, step: DraftStep, keys: torch.Tensor, sink_tokens: int, scale: float) -> None:
        """`keys`: [B, kv_heads, head_size, L + k - 1] float32, L more than every position.

        The first L are the context's; the rest, whatever they hold, take the chain's own.
        """
        self._keys, self._scale = keys, scale
        self._context = keys.shape[-1] - (step.k - 1)
        self._classes, self._hidden = _classes(step, self._context, sink_tokens)

    def measure(self, query: torch.Tensor, key: torch.Tensor, depth: int) -> torch.Tensor:
        """[B, 4] masses at `depth`, in the order of CLASSES.

        `query` [B, heads, head_size] and `key` [B, kv_heads, head_size] are the depth's own slot.
        """
        batch, heads, size = query.shape
        kv_heads = self._keys.shape[1]
        end = self._context + depth - 1
        if depth > 1:
            self._keys[..., end - 1] = key
        grouped = query.float().view(batch, kv_heads, heads // kv_heads, size) * self._scale
        scores = grouped @ self._keys[..., :end]
        weights = scores.masked_fill_(self._hidden[..., :end], -torch.inf).softmax(-1)
        return (weights.mean((1, 2)).unsqueeze(1) @ self._classes[:, :end]).squeeze(1)


def _classes(step: DraftStep, length: int, sink_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, N, 4] float one-hot of CLASSES, [B, 1, 1, N] bool of hidden slots; N = length + k - 1."""
    device = step.position.device
    slot = torch.arange(length + step.k - 1, device=device).unsqueeze(0)
    own = slot >= length
    visible = (slot <= step.position.unsqueeze(1)) | own
    prompt = torch.from_numpy(step.prompt_tokens).to(device, non_blocking=True).unsqueeze(1)
    sink, in_prompt = (slot < sink_tokens) & ~own, (slot < prompt) & ~own
    parts = (sink, ~sink & in_prompt, ~sink & ~in_prompt & ~own, own.expand_as(visible))
    classes = torch.stack([part & visible for part in parts], dim=-1).float()
    return classes, ~visible[:, None, None, :]
