"""Names under which PyTorch pickles hold a checkpoint's weights."""

from __future__ import annotations

from pathlib import Path

INDEX, SINGLE = "pytorch_model.bin.index.json", "pytorch_model.bin"
SHARDS = "pytorch_model-*.bin"
KINDS = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_OF_TRAINERS = ("training_args", "optimizer", "scheduler", "rng_state", "scaler", "random_states")
"""Beginnings of the names of files that hold a trainer's state, not weights."""


def weight_pickles(folder: Path) -> tuple[Path, ...]:
    """Return the pickles that may hold weights: those of transformers if there are any."""
    if (folder / SINGLE).exists():
        return (folder / SINGLE,)
    shards = tuple(sorted(folder.glob(SHARDS)))
    others = sorted(path for kind in KINDS for path in folder.glob(kind))
    return shards or tuple(path for path in others if not path.name.startswith(_OF_TRAINERS))
