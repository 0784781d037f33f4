"""The taps' computations as machine code: `kernels.TorchKernels` with one call per chain.

Tensors are passed by address. The interpreter would unpack a list of tensors one by one, which is
the cost that this avoids.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from driftscope_probes.base.chain_buffers import ChainBuffers
from driftscope_probes.base.float_bounds import LEAST as _LEAST
from driftscope_probes.base.numba_compile import compiled, exp_less
from driftscope_probes.taps.kernels import TorchKernels

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float32]
_Bits = npt.NDArray[np.int32]
_STATE, _COPY, _LOGITS = 7, 6, 2
"""Count of integers that describe a state, a copy and a depth's logits; see CompiledKernels."""
_LOWEST, _ZERO, _SIXTEEN = np.float32(_LEAST), np.float32(0), np.int32(16)


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_: Any, address: Any) -> Any:
    """Convert an integer to an address."""

    def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@compiled()
def _load(address: int, first: int, n: int, half: bool, bits: _Bits) -> None:
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
def _rms(states: _Ints, rows: _Ints, values: _Floats) -> None:
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
    logits: _Ints, size: int, half: bool, values: _Floats, top1: int, entropy: int
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
def _copy(copies: _Ints, rows: _Ints) -> None:
    """Copy rows, measured in 2-byte units, as `_described_queries` describes them."""
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
def _measure(
    numbers: _Ints,
    states: int,
    copies: int,
    size: int,
    half: bool,
    rows: _Ints,
    position: _Ints,
    values: _Floats,
    ints: _Bits,
    columns: _Ints,
) -> None:
    """Measure everything of one chain in one call: between two forwards the overhead of a call
    exceeds most of its work.

    `numbers` holds in sequence the descriptions of `states` states, of `copies` copies, and of the
    logits by depth. `size` and `half` describe the logits. `values` and `ints` [B, width] share
    memory. `columns` are those of the position, the top-1 probability and the entropy.
    """
    for b in range(len(position)):
        ints[b, columns[0]] = np.int32(position[b])
    at = states * _STATE
    _rms(numbers[:at].reshape(states, _STATE), rows, values)
    _copy(numbers[at : at + copies * _COPY].reshape(copies, _COPY), rows)
    logits = numbers[at + copies * _COPY :]
    if len(logits):
        depths = len(logits) // _LOGITS
        _confidence(logits.reshape(depths, _LOGITS), size, half, values, columns[1], columns[2])


_Kept = tuple[int, int, bool]
"""Data that a tap stores of a state beside its tensor: the buffer column, the number of parts, and
whether only the wanted rows are measured."""


class _Description(NamedTuple):
    """Arguments of `_measure` that describe a chain's tensors; see `_described_states`."""

    layout: tuple[Any, ...]
    """Layout of the tensors in memory and their columns, for which the description holds."""
    numbers: _Ints
    """States, copies and logits, in sequence."""
    addresses: _Ints
    """Indices of the tensors' addresses in `numbers`."""
    states: int
    copies: int
    size: int
    half: bool


class CompiledKernels(TorchKernels):
    """Kernels compiled with Numba; types other than float32 and bfloat16 use torch."""

    def __init__(self, buffers: ChainBuffers) -> None:
        super().__init__(buffers)
        self._row_numbers, self._ints = buffers.rows.numpy(), buffers.values.numpy().view(np.int32)
        names = ("position", "top1", "entropy")
        self._places_of_all = np.array([self._columns[name] for name in names], dtype=np.int64)
        self._described: _Description | None = None
        """Description of the last chain whose tensors were all described."""

    def rms(self, x: torch.Tensor, name: str, *, fleeting: bool = False) -> None:
        """See Kernels."""
        if self._open:
            first = self._depth == 1
            if fleeting:
                x = x.index_select(0, self._rows) if first else self._cut(x).clone()
            self._tensors.append(x)
            self._kept.append((self._columns[name] + self._depth - 1, 1, first and not fleeting))

    def rms_of_chunks(
        self, x: torch.Tensor, name: str, chunks: int, first: int = 0, *, fleeting: bool = False
    ) -> None:
        """See Kernels."""
        if self._batch:
            if fleeting:
                x = x.index_select(0, self._rows)
            self._tensors.append(x)
            self._kept.append((self._columns[name] + first, chunks, not fleeting))

    def finish(self) -> None:
        """See Kernels."""
        batch = self._batch
        if not batch:
            super().finish()
            return
        described = self._description()
        _measure(
            described.numbers,
            described.states,
            described.copies,
            described.size,
            described.half,
            self._row_numbers[:batch],
            self._position.numpy(),
            self._values,
            self._ints[:batch],
            self._places_of_all,
        )
        if self._described is None:  # some need torch
            if self._states:
                self._measure_states()
            if self._logits and not described.size:
                self._measure_logits()
        self.skip()  # the addresses may be invalid from here on

    def _forget(self) -> None:
        super()._forget()
        self._tensors: list[torch.Tensor] = []
        """States to measure, of which `_kept` has the rest."""
        self._kept: list[_Kept] = []

    def _description(self) -> _Description:
        """Return the description of the chain's tensors. As a rule they lie in memory as those of
        the chain before did, so that only their addresses are new."""
        queries = self._queries
        for layer in queries:
            self._check_depths(layer, len(queries[layer]))
        tensors = [*self._tensors, *chain.from_iterable(queries.values()), *self._logits]
        layout = (
            self._kept,
            list(queries),
            len(self._logits),
            [x.dtype for x in tensors],
            [x.shape for x in tensors],
            [x.stride() for x in tensors],
        )
        described = self._described
        if described is None or described.layout != layout:
            return self._describe(layout, len(tensors))
        described.numbers[described.addresses] = [x.data_ptr() for x in tensors]
        return described

    def _describe(self, layout: tuple[Any, ...], tensors: int) -> _Description:
        states, copies = self._described_states(), self._described_queries()
        logits, size, half = self._described_logits()
        addresses = [
            *range(0, len(states), _STATE),
            *range(len(states), len(states) + len(copies), _COPY),
            *range(len(states) + len(copies), len(states) + len(copies) + len(logits), _LOGITS),
        ]
        described = _Description(
            layout,
            np.array(states + copies + logits, dtype=np.int64),
            np.array(addresses, dtype=np.int64),
            len(states) // _STATE,
            len(copies) // _COPY,
            size,
            half,
        )
        self._described = described if len(addresses) == tensors else None
        return described

    def _described_states(self) -> list[int]:
        """Return for each state: address, row stride, size of a part, number of parts, buffer
        column of the first part, whether the wanted rows are meant (otherwise the first B), whether
        it is bfloat16."""
        described: list[int] = []
        for x, (column, parts, at_rows) in zip(self._tensors, self._kept, strict=True):
            half, strides = _HALF.get(x.dtype), x.stride()
            if half is None or len(strides) != 2 or strides[1] != 1:
                wanted = x.index_select(0, self._rows) if at_rows else self._cut(x)
                self._states.append((wanted, column, parts))
            else:
                size = x.size(1) // parts
                described += (x.data_ptr(), strides[0], size, parts, column, at_rows, half)
        return described

    def _described_queries(self) -> list[int]:
        """Return for each depth of a layer: address and row stride of its queries, whether the
        wanted rows are meant, address and row stride of the destination, and size of a row. Strides
        and sizes are in 2-byte units."""
        described: list[int] = []
        for layer, queries in self._queries.items():
            kept = self._buffers.queries[layer]
            if not all(_rows_fit(q) and q.dtype is kept.dtype for q in queries):
                self._gather_layer(queries, self._room_for(layer, len(queries)))
                continue
            halves = kept.element_size() // 2
            size, row, step = (n * halves for n in (kept.size(2), kept.stride(0), kept.stride(1)))
            place = kept.data_ptr()
            for depth, q in enumerate(queries):
                described += (q.data_ptr(), q.stride(0) * halves, depth == 0, place, row, size)
                place += 2 * step
        return described

    def _described_logits(self) -> tuple[list[int], int, bool]:
        """Return address and row stride by depth, the vocabulary size, whether bfloat16; size 0 if
        torch must measure them."""
        logits = self._logits
        if not logits or not all(_fits(x) and x.dtype == logits[0].dtype for x in logits):
            return [], 0, False
        described: list[int] = []
        for x in logits:
            described += (x.data_ptr(), x.stride(0))
        return described, logits[0].size(1), logits[0].dtype == torch.bfloat16


_HALF = {torch.float32: 0, torch.bfloat16: 1}
"""Data types that the compiled kernels read; the value is 1 for bfloat16."""


def _fits(x: torch.Tensor) -> bool:
    """Return whether a tensor has the layout [rows, dim] that the kernels read."""
    return x.dim() == 2 and _rows_fit(x)


def _rows_fit(x: torch.Tensor) -> bool:
    """Return whether a row's numbers are contiguous; the shape may be [rows, heads, size]."""
    strides = x.stride()
    if strides[-1] != 1 or x.dtype not in _HALF:
        return False
    return len(strides) == 2 or (len(strides) == 3 and strides[1] == x.size(2))
