"""Numba for CPU kernels: one call of machine code, during which the engine can use the interpreter.

Imported only where it is used, because Numba is a dependency of vLLM and not of driftscope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from driftscope_probes.base.float_bounds import LEAST as _LEAST

FAST = {"reassoc", "contract", "nsz", "arcp"}
"""Permitted optimisations of sums and products; NaN and infinity keep their meaning."""
# Single-precision exp of Cephes: error below 2e-7 on [-log(2)/2, log(2)/2].
_P = tuple(
    np.float32(c)
    for c in (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
)
_LOG2E, _LN2_HIGH, _LN2_LOW = (
    np.float32(c) for c in (1.44269504088896341, 0.693359375, -2.12194440e-4)
)
_ONE, _HALF, _LOWEST, _BIAS, _FRACTION = (
    np.float32(1),
    np.float32(0.5),
    np.float32(_LEAST),
    np.int32(127),
    np.int32(23),
)


def compiled(signature: str | None = None, **options: Any) -> Callable[[Any], Any]:
    """Apply `numba.njit` without the GIL; cached on disk if a directory is writable.

    With a `signature` the function is compiled at once and for these types only, so that no request
    waits for compilation.
    """
    how = {"nogil": True, "fastmath": FAST, **options}

    def decorate(function: Any) -> Any:
        given = () if signature is None else ([signature],)
        try:
            return njit(*given, cache=True, **how)(function)
        except RuntimeError:  # no writable directory
            return njit(*given, **how)(function)

    return decorate


@compiled(inline="always")
def exp_less(x: npt.NDArray[np.float32], most: np.float32, bits: npt.NDArray[np.int32]) -> None:
    """Replace x by exp(x - most). No element may exceed `most`; differences below LEAST count as
    LEAST. `bits` is scratch memory for as many numbers."""
    powers = bits.view(np.float32)
    for i in range(len(x)):  # with another start, Numba checks each index for negative values
        value = x[i] - most
        value = _LOWEST if value < _LOWEST else value
        n = np.int32(value * _LOG2E - _HALF)  # rounds to nearest: it is not above 0
        r = (value - np.float32(n) * _LN2_HIGH) - np.float32(n) * _LN2_LOW
        p = ((((_P[0] * r + _P[1]) * r + _P[2]) * r + _P[3]) * r + _P[4]) * r + _P[5]
        bits[i] = (n + _BIAS) << _FRACTION
        x[i] = p * (r * r) + r + _ONE
    for i in range(len(x)):
        x[i] = x[i] * powers[i]
