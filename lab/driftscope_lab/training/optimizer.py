"""Muon for the matrices, AdamW for the rest, under one learning-rate schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

Schedule = Callable[[int], float]
"""Function from a step to a factor on the learning rate."""

CLIP_NORM = 1.0


class Optimizer:
    """Two optimizers that step together."""

    def __init__(
        self,
        module: nn.Module,
        *,
        adamw_rate: float,
        muon_rate: float,
        muon_weight_decay: float,
        not_muon: str,
        schedule: Schedule,
    ) -> None:
        """`not_muon`: matrices with this in their name are embeddings or heads, left to AdamW."""
        named = list(module.named_parameters())
        matrices = [p for name, p in named if p.dim() == 2 and not_muon not in name]
        rest = [p for name, p in named if p.dim() != 2 or not_muon in name]
        muon = torch.optim.Muon(
            matrices,
            lr=muon_rate,
            momentum=0.95,
            weight_decay=muon_weight_decay,
            ns_steps=5,
            adjust_lr_fn="match_rms_adamw",
        )
        adamw = torch.optim.AdamW(
            rest, lr=adamw_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        self._module = module
        self._schedule = schedule
        self._parts: list[tuple[torch.optim.Optimizer, float]] = [
            (muon, muon_rate),
            (adamw, adamw_rate),
        ]

    def state_dict(self) -> dict[str, object]:
        """Return the states of both optimizers, in order."""
        return {str(i): part.state_dict() for i, (part, _) in enumerate(self._parts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        for i, (part, _) in enumerate(self._parts):
            part.load_state_dict(state[str(i)])

    def step(self, loss: torch.Tensor, step: int) -> None:
        """Run backward, clip the gradients, update the parameters, clear the gradients."""
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._module.parameters(), CLIP_NORM)
        for optimizer, rate in self._parts:
            _set_rate(optimizer.param_groups, rate * self._schedule(step))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def _set_rate(groups: Iterable[dict[str, object]], rate: float) -> None:
    for group in groups:
        group["lr"] = rate
