"""What a training needs beside its loss: precision, resuming, progress, and the optimiser."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
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
    """Appends progress lines to a file, each with the seconds since the start."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._start = path, time.monotonic()

    def step(self, stage: str, step: int, steps: int, **figures: float | list[float]) -> None:
        """Report figures of one step, on stderr too."""
        elapsed_s = round(time.monotonic() - self._start, 1)
        shown = "  ".join(f"{name} {_short(value)}" for name, value in figures.items())
        sys.stderr.write(f"{elapsed_s:7.1f} s  {stage} {step}/{steps}  {shown}\n")
        sys.stderr.flush()
        record = {"stage": stage, "step": step, "elapsed_s": elapsed_s, **figures}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _short(value: float | list[float]) -> str:
    if isinstance(value, list):
        return "[" + " ".join(f"{item:.3f}" for item in value) + "]"
    return f"{value:.3f}"


CLIP_NORM = 1.0


class Optimizer:
    """Muon for the matrices of a drafter's layers, AdamW for its head and norms; both step
    together, with rates that follow one schedule."""

    def __init__(
        self, module: nn.Module, *, adamw: float, muon: float, schedule: Callable[[int], float]
    ) -> None:
        """`adamw` and `muon` are learning rates, `schedule` gives the factor on them by step."""
        matrices, others = list[nn.Parameter](), list[nn.Parameter]()
        for name, parameter in module.named_parameters():
            in_layers = parameter.dim() == 2 and "lm_head" not in name
            (matrices if in_layers else others).append(parameter)
        self._module, self._schedule = module, schedule
        self._parts = {
            "muon": torch.optim.Muon(
                matrices, lr=muon, momentum=0.95, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
            ),
            "adamw": torch.optim.AdamW(
                others, lr=adamw, betas=(0.9, 0.95), weight_decay=0.0, fused=True
            ),
        }
        self._rates = {"muon": muon, "adamw": adamw}

    def state_dict(self) -> dict[str, object]:
        """Return the states of the optimizers by name."""
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        for name, part in self._parts.items():
            part.load_state_dict(state[name])

    def step(self, loss: torch.Tensor, step: int) -> None:
        """Run backward, clip the gradients, update the parameters, clear the gradients."""
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._module.parameters(), CLIP_NORM)
        for name, optimizer in self._parts.items():
            for group in optimizer.param_groups:
                group["lr"] = self._rates[name] * self._schedule(step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
