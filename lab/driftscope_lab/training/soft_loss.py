"""Cross-entropy of a large head against given distributions, without keeping the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS = {"cpu": 256}
"""Device -> rows whose logits are in memory at a time: 8 MB at a vocabulary of 8,192, which a
CPU's caches hold."""
MOST_ROWS = 16_384
"""Those of any other device."""


class _SoftCrossEntropy(torch.autograd.Function):
    """Computes the gradients with the loss, so that no logits are kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, head: Tensor, wanted: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        weights = head.to(dtype)
        grad_states = torch.empty_like(states)
        grad_head = torch.zeros_like(head, dtype=torch.float32)
        total, tops = torch.zeros((), device=states.device), []
        size = ROWS.get(states.device.type, MOST_ROWS)
        parts = (torch.split(tensor, size) for tensor in (states, grad_states, wanted))
        for rows, into, given in zip(*parts, strict=True):
            low = rows.to(dtype)
            logits = (low @ weights.T).float()
            tops.append(logits.argmax(-1))
            norm = logits.logsumexp(-1, keepdim=True)
            total += norm.sum() - torch.linalg.vecdot(given.float(), logits).sum()
            wrong = ((logits - norm).exp_() - given).to(dtype)
            into.copy_(wrong @ weights)
            grad_head += wrong.T @ low
        ctx.save_for_backward(grad_states, grad_head)
        ctx.rows = len(states)
        top = torch.cat(tops)
        ctx.mark_non_differentiable(top)
        return total / len(states), top

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _top: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_states, grad_head = ctx.saved_tensors
        by = grad / ctx.rows
        return grad_states * by.to(grad_states.dtype), grad_head * by, None, None


def soft_cross_entropy(
    states: Tensor, head: Tensor, wanted: Tensor, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy (nats) of softmax(states @ head.T) against `wanted`, and the
    rows' largest logits' indices [N].

    `states` [N, H], `head` [V, H]; `wanted` [N, V] holds distributions. Products run in `dtype`,
    sums in float32.
    """
    loss, top = _SoftCrossEntropy.apply(states, head, wanted, dtype)  # type: ignore[no-untyped-call]
    return loss, top
