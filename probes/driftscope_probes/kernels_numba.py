"""What the taps have seen, measured in one call: `kernels.TorchKernels` by machine code.

Tensors go in by address. A list of them would be taken apart by the interpreter, one by one, which
is what this saves.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from driftscope_probes.buffers import ChainBuffers
from driftscope_probes.compiled import compiled, exp_less
from driftscope_probes.kernels import TorchKernels
from driftscope_probes.masses import LEAST as _LEAST

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float32]
_Bits = npt.NDArray[np.int32]
_LOWEST, _ZERO, _SIXTEEN = np.float32(_LEAST), np.float32(0), np.int32(16)
_TYPES = (torch.float32, torch.bfloat16)


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_: Any, address: Any) -> Any:
    """An integer as an address."""

    def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@compiled()
def _load(address: int, first: int, n: int, half: bool, bits: _Bits) -> None:
    """n numbers from number `first` on as float32 in `bits`; `half`: they are bfloat16."""
    if half:
        halves = carray(_pointer(address), first + n, np.int16)
        for i in range(n):
            bits[i] = np.int32(halves[first + i]) << _SIXTEEN
    else:
        words = carray(_pointer(address), first + n, np.int32)
        for i in range(n):
            bits[i] = words[first + i]


@compiled("void(int64[:,::1], int64[::1], float32[:,::1])")
def _rms(states: _Ints, rows: _Ints, values: _Floats) -> None:
    """States as `_State` has them, of [B] requests; root mean squares into `values` [B, width]."""
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


@compiled("void(int64[:,::1], int64, boolean, float32[:,::1], int64, int64)")
def _confidence(
    logits: _Ints, size: int, half: bool, values: _Floats, top1: int, entropy: int
) -> None:
    """Logits by depth, address and row stride of [B, size] each; see `kernels._confidence`."""
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
            exp_less(e, 0, size, _ZERO, powers)
            z, mean = _ZERO, _ZERO
            for i in range(size):
                z += e[i]
                mean += e[i] * x[i]
            values[b, top1 + depth] = np.float32(1) / z
            values[b, entropy + depth] = math.log(z) - mean / z


@compiled("void(int64[:,::1], int64[::1], int64, int64, int64, int64, int64)")
def _gather(
    queries: _Ints, rows: _Ints, size: int, out: int, out_row: int, out_depth: int, itemsize: int
) -> None:
    """Queries by depth, address and row stride each; the first depth's at `rows`, each later one's
    in order. To the address `out`, with its strides."""
    words = size * itemsize // 2
    for depth in range(len(queries)):
        for b in range(len(rows)):
            row = rows[b] if depth == 0 else b
            begin = row * queries[depth, 1] * itemsize // 2
            source = carray(_pointer(queries[depth, 0]), begin + words, np.int16)
            place = (b * out_row + depth * out_depth) * itemsize // 2
            target = carray(_pointer(out), place + words, np.int16)
            for i in range(words):
                target[place + i] = source[begin + i]


_State = tuple[int, int, int, int, int, bool, bool]
"""Address, row stride, size of a part, parts, the buffers' column of the first part, whether the
wanted rows are meant (else the first B), whether it is bfloat16."""


_Kept = tuple[torch.Tensor, int, int, bool]
"""What the taps leave of a state, which is all that they do while the drafter runs: the tensor, the
buffers' column, parts, whether the wanted rows are meant."""


class CompiledKernels(TorchKernels):
    """The same, but for tensors of other types than float32 and bfloat16, which torch measures."""

    def __init__(self, buffers: ChainBuffers) -> None:
        super().__init__(buffers)
        self._row_numbers = buffers.rows.numpy()

    def rms(self, x: torch.Tensor, name: str, *, fleeting: bool = False) -> None:
        """See Kernels."""
        if self._open:
            first = self._depth == 1
            if fleeting:
                x = x.index_select(0, self._rows) if first else self._cut(x).clone()
            self._kept.append((x, self._columns[name] + self._depth - 1, 1, first and not fleeting))

    def rms_of_chunks(
        self, x: torch.Tensor, name: str, chunks: int, first: int = 0, *, fleeting: bool = False
    ) -> None:
        """See Kernels."""
        if self._batch:
            if fleeting:
                x = x.index_select(0, self._rows)
            self._kept.append((x, self._columns[name] + first, chunks, not fleeting))

    def _forget(self) -> None:
        super()._forget()
        self._kept: list[_Kept] = []

    def _measure_states(self) -> None:
        states: list[_State] = []
        for x, column, parts, at_rows in self._kept:
            if _fits(x):
                size, half = x.shape[-1] // parts, x.dtype == torch.bfloat16
                states.append((x.data_ptr(), x.stride(0), size, parts, column, at_rows, half))
            else:
                wanted = x.index_select(0, self._rows) if at_rows else self._cut(x)
                self._states.append((wanted, column, parts))
        if states:
            numbers = np.array(states, dtype=np.int64)
            _rms(numbers, self._row_numbers[: self._batch], self._values)
        super()._measure_states()

    def _measure_logits(self) -> None:
        logits = self._logits
        if not all(_fits(x) and x.dtype == logits[0].dtype for x in logits):
            super()._measure_logits()
            return
        _confidence(
            _addresses(logits), logits[0].shape[-1], logits[0].dtype == torch.bfloat16,
            self._values, self._columns["top1"], self._columns["entropy"],
        )  # fmt: skip

    def _gather_layer(self, queries: list[torch.Tensor], kept: torch.Tensor) -> None:
        if not all(_rows_fit(q) and q.dtype == kept.dtype for q in queries):
            super()._gather_layer(queries, kept)
            return
        _gather(
            _addresses(queries), self._row_numbers[: self._batch], kept.shape[-1], kept.data_ptr(),
            kept.stride(0), kept.stride(1), kept.element_size(),
        )  # fmt: skip


def _fits(x: torch.Tensor) -> bool:
    """Whether it is [rows, dim] as the kernels read it."""
    return x.dim() == 2 and _rows_fit(x)


def _rows_fit(x: torch.Tensor) -> bool:
    """Whether a row's numbers lie behind each other; it may be [rows, heads, size]."""
    plain = x.stride(-1) == 1 and (x.dim() == 2 or (x.dim() == 3 and x.stride(1) == x.shape[2]))
    return plain and x.dtype in _TYPES


def _addresses(rows: list[torch.Tensor]) -> _Ints:
    return np.array([(x.data_ptr(), x.stride(0)) for x in rows], dtype=np.int64)
