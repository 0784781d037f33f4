"""Muon for the matrices, AdamW for the rest, under one learning-rate schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Schedule = Callable[[int], float]
"""Function from a step to a factor on the learning rate."""

CLIP_NORM = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Learning rates and weight decays. `muon` None: AdamW takes the matrices too.

    `adamw_decay` is that of the matrices and embeddings which AdamW takes; norms have none.
    """

    adamw: float
    muon: float | None
    muon_decay: float = 0.0
    adamw_decay: float = 0.0


class Optimizer:
    """One or two optimizers that step together."""

    def __init__(
        self, module: nn.Module, rates: Rates, *, not_muon: str, schedule: Schedule
    ) -> None:
        """`not_muon`: matrices with this in their name are embeddings or heads, left to AdamW."""
        named = list(module.named_parameters())
        matrices = [p for name, p in named if p.dim() == 2 and not_muon not in name]
        wide = [p for name, p in named if p.dim() == 2 and not_muon in name]
        norms = [p for _, p in named if p.dim() != 2]
        self._module = module
        self._schedule = schedule
        self._parts: list[tuple[torch.optim.Optimizer, float]] = []
        if rates.muon is not None:
            muon = torch.optim.Muon(
                matrices,
                lr=rates.muon,
                momentum=0.95,
                weight_decay=rates.muon_decay,
                ns_steps=5,
                adjust_lr_fn="match_rms_adamw",
            )
            self._parts.append((muon, rates.muon))
        decayed = wide if rates.muon is not None else [*matrices, *wide]
        groups = [
            {"params": decayed, "weight_decay": rates.adamw_decay},
            {"params": norms, "weight_decay": 0.0},
        ]
        adamw = torch.optim.AdamW(groups, lr=rates.adamw, betas=(0.9, 0.95), fused=True)
        self._parts.append((adamw, rates.adamw))

    def state_dict(self) -> dict[str, object]:
        """Return the states of the optimizers, in order."""
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
