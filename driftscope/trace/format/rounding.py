"""Floats with fewer bits, which compress where full mantissas are noise."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

KEPT_BITS = 16
"""Bits of a mantissa that are kept, of 23 or 52."""
RELATIVE_ERROR = 2.0 ** -(KEPT_BITS + 1)
"""Largest relative error of a rounded number."""

Floating = TypeVar("Floating", NDArray[np.float32], NDArray[np.float64])


def rounded(values: Floating) -> Floating:
    """`values`, float32 or float64, to KEPT_BITS, ties to even.

    What cannot be rounded within RELATIVE_ERROR stays as it is: subnormal numbers, those that
    would become infinite, and what is no finite number.
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
