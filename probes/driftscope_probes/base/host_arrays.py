"""Small numbers on the host: NumPy's ops on them take a fraction of torch's time.

On a CPU the probe costs what its many small ops cost, so positions, masks and rows of figures are
handled as NumPy arrays there, over the tensors' own memory; on a GPU they stay tensors. Formulas
that are written with operators and `any` serve both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = Any
"""A tensor on a GPU, a NumPy array on a CPU."""


def array_of(x: torch.Tensor) -> Array:
    """The same memory as a NumPy array, if the host can reach it."""
    return x.numpy() if x.device.type == "cpu" else x


def tensor_of(x: Array) -> torch.Tensor:
    """The same memory as a tensor."""
    found: torch.Tensor = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    return found


def count_up(n: int, like: Array) -> Array:
    """0 to n - 1 as int64, where `like` is."""
    return np.arange(n) if isinstance(like, np.ndarray) else torch.arange(n, device=like.device)


def empty(shape: tuple[int, ...], like: Array, dtype: str = "float32") -> Array:
    """Room for numbers of a `dtype` that both name alike, where `like` is."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, dtype=dtype)
    return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)


def lesser(x: Array, y: Array) -> Array:
    """Of each pair, where they are."""
    return np.minimum(x, y) if isinstance(x, np.ndarray) else torch.minimum(x, y)
