"""Rounds floats to fewer mantissa bits, which compress better where the full mantissa is noise."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

KEPT_BITS = 16
"""Number of mantissa bits that are kept, of 23 or 52."""
RELATIVE_ERROR = 2.0 ** -(KEPT_BITS + 1)
"""Largest relative error of a rounded number."""

Floating = TypeVar("Floating", NDArray[np.float32], NDArray[np.float64])


def rounded(values: Floating) -> Floating:
    """Return `values`, float32 or float64, rounded to KEPT_BITS, ties to even.

    Values that cannot be rounded within RELATIVE_ERROR stay unchanged: subnormal numbers, numbers
    that would become infinite, and non-finite values.
    """
    info: Any = np.finfo(values.dtype)
    kind: Any = np.dtype(f"u{values.dtype.itemsize}").type
    bits, spare = values.view(kind), kind(info.nmant - KEPT_BITS)
    one = kind(1)
    half_less = (one << (spare - one)) - one
    even = half_less + ((bits >> spare) & one)
    near = ((bits + even) >> spare << spare).view(values.dtype)
    normal = np.isfinite(values) & (np.abs(values) >= info.tiny) & np.isfinite(near)
    return np.where(normal, near, values)
