"""Small arrays on the host: NumPy's operations on them take a fraction of torch's time.

On a CPU the probe's cost is that of its many small operations. Positions, masks and rows of figures
are therefore handled there as NumPy arrays that share the tensors' memory; on a GPU they stay
tensors. Formulas written with operators and `any` work for both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = Any
"""A tensor on a GPU, a NumPy array on a CPU."""


def array_of(x: torch.Tensor) -> Array:
    """Return a NumPy array that shares the tensor's memory on a CPU, else the tensor."""
    return x.numpy() if x.device.type == "cpu" else x


def tensor_of(x: Array) -> torch.Tensor:
    """Return a tensor that shares the array's memory."""
    tensor: torch.Tensor = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    return tensor


def count_up(n: int, like: Array) -> Array:
    """Return 0 to n - 1 as int64, on the device of `like`."""
    return np.arange(n) if isinstance(like, np.ndarray) else torch.arange(n, device=like.device)


def empty(shape: tuple[int, ...], like: Array, dtype: str = "float32") -> Array:
    """Return an uninitialised array on the device of `like`; both libraries know `dtype`."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, dtype=dtype)
    return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)


def lesser(x: Array, y: Array) -> Array:
    """Return the element-wise minimum."""
    return np.minimum(x, y) if isinstance(x, np.ndarray) else torch.minimum(x, y)
