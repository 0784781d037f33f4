"""Attention masses from packed keys, in one call without the interpreter.

The twin of `torch_masses` for vLLM's CPU backend, with a running maximum over blocks of slots. On a
CPU `torch_masses` costs as much as its many small operations, and the engine's thread waits for
them. This code runs parallel to that thread (see `driftscope_probes.base.side_thread`), on one
core.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba.extending import overload

from driftscope.trace.format.distance_bins import DOUBLINGS
from driftscope_probes.base.numba_compile import compiled, exp_less

_Floats = npt.NDArray[np.float32]
_Ints = npt.NDArray[np.int64]
_SIXTEEN = np.int32(16)
_ZERO = np.float32(0)
_DOUBLINGS = DOUBLINGS
_SIGNATURE = (
    "void(float32[:,:,::1], {keys}[:,::1], int64[::1], boolean, int32[:,::1], int64[::1], "
    "int64[::1], int64[::1], float32[::1], int64, boolean, int64, int64, float32, "
    "float32[:,:,:,::1], float32[:,:,:], float32[:,:,:])"
)


@functools.cache
def packed_masses(key_type: str) -> Callable[..., None]:
    """Return `_packed_masses` compiled for keys of a type, "float32" or "int16"."""
    made: Callable[..., None] = compiled(_SIGNATURE.format(keys=key_type), error_model="numpy")(
        _packed_masses
    )
    return made


def _unpack(row: Any, order: _Ints, in_order: bool, bits: npt.NDArray[np.int32]) -> None:
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
def _multiply(queries: _Floats, keys: _Floats, width: int, out: _Floats) -> None:
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
def _most(x: _Floats) -> np.float32:
    largest: np.float32 = x[0]
    for i in range(len(x)):
        largest = x[i] if x[i] > largest else largest
    return largest


@compiled()
def _sum(x: _Floats) -> np.float32:
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
    queries: _Floats,
    keys: Any,
    order: _Ints,
    in_order: bool,
    table: npt.NDArray[np.int32],
    position: _Ints,
    prompt_tokens: _Ints,
    sink_slots: _Ints,
    biases: _Floats,
    ahead: int,
    causal: bool,
    window: int,
    kv_heads: int,
    scale: np.float32,
    out: _Floats,
    mean: _Floats,
    distances: _Floats,
) -> None:
    """Fill `out` [B, K, heads, 5], and `mean` [B, K, 5] over the heads, for `queries` [B, K, heads
    * head_size]; also `distances` [B, K, bins], means over the heads by distance, unless it has no
    bins.

    `keys` [2 * blocks * kv_heads, head_size * block_size]: for each block and head a row of keys,
    float32 or the bits of a bfloat16 as int16, and a row of values. `order`: index of element (dim,
    slot) in a row; `in_order`: that index is dim * block_size + slot. `table` [B, blocks of the
    longest context]. `biases` [heads] or empty. `window`: 0 for all slots. The other arguments are
    those of `driftscope_probes.masses.torch_masses.Chains`.
    """
    batch, depths, heads = queries.shape[0], queries.shape[1], out.shape[2]
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
    by_bin = np.empty((depths, bins), np.float64)
    key_bits, bits = np.empty(size * block, np.int32), np.empty(block, np.int32)
    unpacked = key_bits.view(np.float32).reshape(size, block)
    for b in range(batch):
        first, context = position[b] + ahead, position[b] + 1
        prompt = min(prompt_tokens[b], context)
        slots = min(first + depths, table.shape[1] * block)
        begin = max(0, first - window + 1) // block if window else 0
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
                out[b, depth, head, :4] = sums[q] / total
                out[b, depth, head, 4] = null / total if biases.size else np.nan
                if bins:
                    by_bin[depth, : bins - 1] += near[q] / total
                    left = (sums[q, 1] + sums[q, 2] + sums[q, 3] - near[q].sum()) / total
                    by_bin[depth, bins - 1] += max(left, 0.0)
                own = first + depth
                unseen = window > 0 and sink_slots.size and sink_slots[-1] <= own - window
                if unseen or not sink_slots.size:
                    out[b, depth, head, 0] = np.nan
        for depth in range(depths):
            for c in range(out.shape[3]):
                of_heads = 0.0
                for head in range(heads):
                    of_heads += out[b, depth, head, c]
                mean[b, depth, c] = of_heads / heads
            for c in range(bins):
                distances[b, depth, c] = by_bin[depth, c] / heads
