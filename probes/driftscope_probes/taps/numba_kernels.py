"""The taps' computations as machine code: `kernels.TorchKernels` with one call per chain, of
`numba_programs`."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from driftscope_probes.base.chain_buffers import ChainBuffers
from driftscope_probes.taps.kernels import TorchKernels
from driftscope_probes.taps.numba_programs import COPY, LOGITS, STATE, Ints, measure

_Kept = tuple[int, int, bool]
"""Data that a tap stores of a state beside its tensor: the buffer column, the number of parts, and
whether only the wanted rows are measured."""


class _Description(NamedTuple):
    """Arguments of `measure` that describe a chain's tensors; see `_described_states`."""

    layout: tuple[Any, ...]
    """Layout of the tensors in memory and their columns, for which the description holds."""
    numbers: Ints
    """States, copies and logits, in sequence."""
    addresses: Ints
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
        measure(
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
            *range(0, len(states), STATE),
            *range(len(states), len(states) + len(copies), COPY),
            *range(len(states) + len(copies), len(states) + len(copies) + len(logits), LOGITS),
        ]
        described = _Description(
            layout,
            np.array(states + copies + logits, dtype=np.int64),
            np.array(addresses, dtype=np.int64),
            len(states) // STATE,
            len(copies) // COPY,
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
