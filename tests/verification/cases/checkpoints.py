"""Checkpoints of the cases: configs as they were posted, tensors of these shapes with random
values, and the shipped drafter with captured layers that are not named, or not those that it was
trained with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support.checkpoints import captured, changed
from torch import Tensor

SHAPES = Path(__file__).parent / "checkpoints.json"
"""Config and shapes of each checkpoint, scaled down."""
_TYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
}


def write_checkpoints(folder: Path) -> None:
    """Write every checkpoint as NUMBER/NAME."""
    for place, held in json.loads(SHAPES.read_text()).items():
        path = folder / place
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(held["config"], indent=1))
        tensors = _tensors(held["tensors"])
        if held["file"].endswith(".safetensors"):
            save_file(tensors, path / held["file"], metadata={"format": "pt"})
        else:
            torch.save(tensors, path / held["file"])
    changed(folder / "61" / "drafter", config=captured())
    # A drafter that was trained on 2, 3 and 5.
    changed(folder / "62" / "drafter", config=captured(1, 4, 6))


def _tensors(shapes: dict[str, list[Any]]) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    made = {
        name: _values(kind, size, random)
        for name, (kind, *size) in shapes.items()
        if kind in _TYPES
    }
    if "t2d" in shapes:
        (most,), (kept,) = shapes["t2d"][1:], shapes["d2t"][1:]
        tokens = torch.randperm(most, generator=random)[:kept].sort().values
        made["d2t"] = tokens - torch.arange(kept)
        made["t2d"] = torch.zeros(most, dtype=torch.bool).index_fill(0, tokens, True)
    return made


def _values(kind: str, size: list[int], random: torch.Generator) -> Tensor:
    values = torch.randn(size, generator=random) * 0.05
    return (values + 1.0 if len(size) == 1 else values).to(_TYPES[kind])
