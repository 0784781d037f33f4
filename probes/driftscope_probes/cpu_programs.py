"""The probe's programs for a CPU, compiled with Numba: each is one call of machine code, during
which the engine can use the interpreter.

`measure` is the twin of `kernels.TorchKernels`, for one chain. Its tensors are passed by
address: the interpreter would unpack a list of tensors one by one, which is the cost that this
avoids. `packed_masses` is the twin of `torch_masses` for vLLM's CPU backend, with a running
maximum over blocks of slots. `cpu_kernels` calls both. It imports this module only when it is
used, because Numba is a dependency of vLLM and not of driftscope.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from driftscope.trace.records import DOUBLINGS
from driftscope_probes.buffers import LEAST as _LEAST
from driftscope_probes.cpu_kernels import COPY, LOGITS, STATE

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


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.int32]
_ZERO, _SIXTEEN = np.float32(0), np.int32(16)


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


_DOUBLINGS = DOUBLINGS
_SIGNATURE = (
    "void(float32[:,:,::1], {keys}[:,::1], int64[::1], boolean, int32[:,::1], int64[::1], "
    "int64[::1], int64[::1], float32[::1], int64, boolean, int64, int64, int64, float32, "
    "float32[:,:,:], float32[:,:,:])"
)


@functools.cache
def packed_masses(key_type: str) -> Callable[..., None]:
    """Return `_packed_masses` compiled for keys of a type, "float32" or "int16"."""
    program: Callable[..., None] = compiled(_SIGNATURE.format(keys=key_type), error_model="numpy")(
        _packed_masses
    )
    return program


def _unpack(row: Any, order: Ints, in_order: bool, bits: npt.NDArray[np.int32]) -> None:
    """Unpack a block of keys to float32 in `bits`, [head_size, block_size]."""


@overload(_unpack, inline="always")  # type: ignore[untyped-decorator]
def _overload_unpack(row: Any, order: Any, in_order: Any, bits: Any) -> Any:  # noqa: ARG001
    """Choose the implementation by key type; Numba requires the same argument names."""
    if row.dtype.bitwidth == 32:

        def unpack_float32(row: Any, order: Any, in_order: Any, bits: Any) -> None:
            values = bits.view(np.float32)
            if in_order:
                for i in range(row.size):
                    values[i] = row[i]
            else:
                for i in range(row.size):
                    values[i] = row[order[i]]

        return unpack_float32

    def unpack_bfloat16(row: Any, order: Any, in_order: Any, bits: Any) -> None:  # noqa: ARG001
        for i in range(row.size):  # a bfloat16 is the upper half of a float32
            bits[i] = np.int32(row[order[i]]) << _SIXTEEN

    return unpack_bfloat16


@compiled()
def _multiply(queries: Floats, keys: Floats, width: int, out: Floats) -> None:
    """Write [Q, size] times [size, slots] to `out` [Q, width]; `size` is a multiple of 4."""
    out[:, :width] = _ZERO
    for d in range(0, queries.shape[1], 4):
        k0, k1, k2, k3 = keys[d], keys[d + 1], keys[d + 2], keys[d + 3]
        for q in range(queries.shape[0]):
            q0, q1, q2, q3 = queries[q, d], queries[q, d + 1], queries[q, d + 2], queries[q, d + 3]
            row = out[q]
            for t in range(width):
                row[t] += (q0 * k0[t] + q1 * k1[t]) + (q2 * k2[t] + q3 * k3[t])


@compiled()
def _most(x: Floats) -> np.float32:
    largest: np.float32 = x[0]
    for i in range(len(x)):
        largest = x[i] if x[i] > largest else largest
    return largest


@compiled()
def _sum(x: Floats) -> np.float32:
    total = _ZERO
    for i in range(len(x)):
        total += x[i]
    return total


@compiled()
def _bin_of(distance: int, single: int) -> int:
    """Return the index of the bin of a distance; `single` distances have a bin each."""
    if distance < single:
        return distance
    at = single
    while distance >= single << (at - single + 1):
        at += 1
    return at


def _packed_masses(
    queries: Floats,
    keys: Any,
    order: Ints,
    in_order: bool,
    table: npt.NDArray[np.int32],
    position: Ints,
    prompt_tokens: Ints,
    sink_slots: Ints,
    biases: Floats,
    ahead: int,
    causal: bool,
    window: int,
    heads: int,
    kv_heads: int,
    scale: np.float32,
    mean: Floats,
    distances: Floats,
) -> None:
    """Fill `mean` [B, K, 5], over the heads, for `queries` [B, K, heads * head_size]; also
    `distances` [B, K, bins], means over the heads by distance, unless it has no bins.

    `keys` [2 * blocks * kv_heads, head_size * block_size]: for each block and head a row of keys,
    float32 or the bits of a bfloat16 as int16, and a row of values. `order`: index of element (dim,
    slot) in a row; `in_order`: that index is dim * block_size + slot. `table` [B, blocks of the
    longest context]. `biases` [heads] or empty. `window`: 0 for all slots. The other arguments are
    those of `driftscope_probes.torch_masses.Chains`.
    """
    batch, depths, classes = mean.shape
    size = queries.shape[2] // heads
    block, groups = keys.shape[1] // size, heads // kv_heads
    blocks = keys.shape[0] // (2 * kv_heads)
    scaled = np.empty((groups * depths, size), np.float32)
    scores = np.empty((groups * depths, block), np.float32)
    most = np.empty(groups * depths, np.float32)
    sums = np.empty((groups * depths, 4), np.float64)
    bins = distances.shape[2]
    single = bins - _DOUBLINGS - 1
    reach = single << _DOUBLINGS if bins else 0  # the last bin is what the others leave
    near = np.zeros((groups * depths, max(0, bins - 1)), np.float64)
    by_class, by_bin = np.empty((depths, classes), np.float64), np.empty((depths, bins), np.float64)
    key_bits, bits = np.empty(size * block, np.int32), np.empty(block, np.int32)
    unpacked = key_bits.view(np.float32).reshape(size, block)
    for b in range(batch):
        first, context = position[b] + ahead, position[b] + 1
        prompt = min(prompt_tokens[b], context)
        slots = min(first + depths, table.shape[1] * block)
        begin = max(0, first - window + 1) // block if window else 0
        by_class[:] = 0.0
        by_bin[:] = 0.0
        for kv in range(kv_heads):
            for q in range(groups * depths):
                head = kv * groups + q // depths
                for d in range(size):
                    scaled[q, d] = queries[b, q % depths, head * size + d] * scale
                most[q] = biases[head] if biases.size else -np.inf
                sums[q] = 0.0
                near[q] = 0.0
            for j in range(begin, (slots + block - 1) // block):
                page = min(max(table[b, j], 0), blocks - 1)
                _unpack(keys[(page * kv_heads + kv) * 2], order, in_order, key_bits)
                here, width = j * block, min(block, slots - j * block)
                _multiply(scaled, unpacked, width, scores)
                for q in range(groups * depths):
                    own = first + q % depths
                    last = own if causal else first + depths - 1
                    low = max(0, own - window + 1 - here) if window else 0
                    high = min(width, last + 1 - here)
                    if low < high:
                        row = scores[q]
                        highest = _most(row[low:high])
                        if highest > most[q]:
                            shrink = math.exp(most[q] - highest)
                            sums[q] *= shrink
                            near[q] *= shrink
                            most[q] = highest
                        exp_less(row[low:high], most[q], bits)
                        ends = min(max(context - here, low), high)
                        turns = min(max(prompt - here, low), ends)
                        for slot in sink_slots:
                            if here + low <= slot < here + ends:
                                sums[q, 0] += row[slot - here]
                                row[slot - here] = _ZERO
                        sums[q, 1] += _sum(row[low:turns])
                        sums[q, 2] += _sum(row[turns:ends])
                        sums[q, 3] += _sum(row[ends:high])
                        for i in range(max(low, own - reach + 1 - here), high if bins else 0):
                            near[q, _bin_of(own - here - i, single)] += row[i]
            for q in range(groups * depths):
                head, depth = kv * groups + q // depths, q % depths
                null = math.exp(biases[head] - most[q]) if biases.size else 0.0
                total = sums[q].sum() + null
                by_class[depth, :4] += sums[q] / total
                by_class[depth, 4] += null / total if biases.size else np.nan
                if bins:
                    by_bin[depth, : bins - 1] += near[q] / total
                    left = (sums[q, 1] + sums[q, 2] + sums[q, 3] - near[q].sum()) / total
                    by_bin[depth, bins - 1] += max(left, 0.0)
                own = first + depth
                unseen = window > 0 and sink_slots.size and sink_slots[-1] <= own - window
                if unseen or not sink_slots.size:
                    by_class[depth, 0] = np.nan
        for depth in range(depths):
            for c in range(classes):
                mean[b, depth, c] = by_class[depth, c] / heads
            for c in range(bins):
                distances[b, depth, c] = by_bin[depth, c] / heads
