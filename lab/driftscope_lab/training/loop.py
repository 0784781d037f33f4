"""What a training needs beside its loss: precision, resuming, progress, and the optimiser."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn


def autocast(device: torch.device) -> torch.autocast:
    """Return a context in which matrix products run in bf16 on any device; weights stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16)


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's parameters."""
    return next(module.parameters()).device


SAVED_EVERY_S = 30.0
"""Seconds of training that an interruption loses at most, and a step."""


class Stateful(Protocol):
    """A module or an optimizer."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return everything that changes in training."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Restore the result of `state_dict`."""
        ...


class Checkpoint:
    """A file with the number of steps taken and the state of the parts after them."""

    def __init__(self, path: Path, parts: Mapping[str, Stateful]) -> None:
        self._path, self._parts, self._saved = path, parts, time.monotonic()

    def restore(self, device: torch.device) -> int:
        """Restore the parts; return the number of steps that they have taken, 0 without a file."""
        if not self._path.is_file():
            return 0
        state = torch.load(self._path, map_location=device, weights_only=True)
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        return int(state["steps"])

    def save(self, taken: int, steps: int) -> None:
        """Save the state after `taken` of `steps`, twice a minute and at the end."""
        if time.monotonic() - self._saved < SAVED_EVERY_S and taken != steps:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        torch.save({"steps": taken, **{n: p.state_dict() for n, p in self._parts.items()}}, partial)
        partial.replace(self._path)
        self._saved = time.monotonic()


class Progress:
    """Writes progress lines, each with the seconds since the start."""

    def __init__(self, path: Path, *, keep: bool = False) -> None:
        """`keep`: whether the lines of an earlier run stay."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._start = time.monotonic()
        if not keep:
            path.write_text("", encoding="utf-8")

    def note(self, text: str) -> None:
        """Write a line to stderr only."""
        sys.stderr.write(f"{self._elapsed_s():7.1f} s  {text}\n")
        sys.stderr.flush()

    def step(self, stage: str, step: int, steps: int, **figures: float | list[float]) -> None:
        """Report figures of one step."""
        shown = "  ".join(f"{name} {_short(value)}" for name, value in figures.items())
        self.note(f"{stage} {step}/{steps}  {shown}")
        record = {"stage": stage, "step": step, "elapsed_s": self._elapsed_s(), **figures}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _elapsed_s(self) -> float:
        return round(time.monotonic() - self._start, 1)


def _short(value: float | list[float]) -> str:
    if isinstance(value, list):
        return "[" + " ".join(f"{item:.3f}" for item in value) + "]"
    return f"{value:.3f}"


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
