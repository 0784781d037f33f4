"""The Numba programs behind `numba_kernels`: RMS, confidence and copies of one chain.

Tensors are passed by address. The interpreter would unpack a list of tensors one by one, which is
the cost that this avoids.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from driftscope_probes.base.float_bounds import LEAST as _LEAST
from driftscope_probes.base.numba_compile import compiled, exp_less

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.int32]
STATE, COPY, LOGITS = 7, 6, 2
"""Count of integers that describe a state, a copy and a depth's logits; see CompiledKernels."""
_LOWEST, _ZERO, _SIXTEEN = np.float32(_LEAST), np.float32(0), np.int32(16)


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_: Any, address: Any) -> Any:
    """Convert an integer to an address."""

    def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@compiled()
def _load(address: int, first: int, n: int, half: bool, bits: Bits) -> None:
    """Load n numbers from index `first` on into `bits` as float32; `half`: from bfloat16."""
    if half:
        halves = carray(_pointer(address), first + n, np.int16)
        for i in range(n):
            bits[i] = np.int32(halves[first + i]) << _SIXTEEN
    else:
        words = carray(_pointer(address), first + n, np.int32)
        for i in range(n):
            bits[i] = words[first + i]


@compiled()
def _rms(states: Ints, rows: Ints, values: Floats) -> None:
    """Write RMS of states, as described by `_described_states`, to `values` [B, width]."""
    longest = 0
    for i in range(len(states)):
        longest = max(longest, states[i, 2])
    bits = np.empty(longest, np.int32)
    numbers = bits.view(np.float32)
    for i in range(len(states)):
        size, column, half = states[i, 2], states[i, 4], states[i, 6] != 0
        for b in range(len(values)):
            row = rows[b] if states[i, 5] else b
            for part in range(states[i, 3]):
                _load(states[i, 0], row * states[i, 1] + part * size, size, half, bits)
                total = _ZERO
                for j in range(size):
                    total += numbers[j] * numbers[j]
                values[b, column + part] = math.sqrt(total / np.float32(size))


@compiled()
def _confidence(
    logits: Ints, size: int, half: bool, values: Floats, top1: int, entropy: int
) -> None:
    """Write the confidence of logits, given per depth as address and row stride of [B, size]; see
    `kernels._confidence`."""
    bits, powers = np.empty(size, np.int32), np.empty(size, np.int32)
    x, e = bits.view(np.float32), np.empty(size, np.float32)
    for depth in range(len(logits)):
        for b in range(len(values)):
            _load(logits[depth, 0], b * logits[depth, 1], size, half, bits)
            most = x[0]
            for i in range(size):
                most = x[i] if x[i] > most else most
            for i in range(size):
                value = x[i] - most
                x[i] = _LOWEST if value < _LOWEST else value
                e[i] = x[i]
            exp_less(e, _ZERO, powers)
            z, mean = _ZERO, _ZERO
            for i in range(size):
                z += e[i]
                mean += e[i] * x[i]
            values[b, top1 + depth] = np.float32(1) / z
            values[b, entropy + depth] = math.log(z) - mean / z


@compiled()
def _copy(copies: Ints, rows: Ints) -> None:
    """Copy rows, measured in 2-byte units, as `numba_kernels` describes them."""
    for i in range(len(copies)):
        size = copies[i, 5]
        for b in range(len(rows)):
            begin = (rows[b] if copies[i, 2] else b) * copies[i, 1]
            source = carray(_pointer(copies[i, 0]), begin + size, np.int16)
            place = b * copies[i, 4]
            target = carray(_pointer(copies[i, 3]), place + size, np.int16)
            for j in range(size):
                target[place + j] = source[begin + j]


@compiled(
    "void(int64[::1], int64, int64, int64, boolean, int64[::1], int64[::1], float32[:,::1], "
    "int32[:,::1], int64[::1])"
)
def measure(
    numbers: Ints,
    states: int,
    copies: int,
    size: int,
    half: bool,
    rows: Ints,
    position: Ints,
    values: Floats,
    ints: Bits,
    columns: Ints,
) -> None:
    """Measure everything of one chain in one call: between two forwards the overhead of a call
    exceeds most of its work.

    `numbers` holds in sequence the descriptions of `states` states, of `copies` copies, and of the
    logits by depth. `size` and `half` describe the logits. `values` and `ints` [B, width] share
    memory. `columns` are those of the position, the top-1 probability and the entropy.
    """
    for b in range(len(position)):
        ints[b, columns[0]] = np.int32(position[b])
    at = states * STATE
    _rms(numbers[:at].reshape(states, STATE), rows, values)
    _copy(numbers[at : at + copies * COPY].reshape(copies, COPY), rows)
    logits = numbers[at + copies * COPY :]
    if len(logits):
        depths = len(logits) // LOGITS
        _confidence(logits.reshape(depths, LOGITS), size, half, values, columns[1], columns[2])
