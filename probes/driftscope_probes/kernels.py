"""What the taps compute, in plain PyTorch: the twin of `kernels_triton`, and what runs on a CPU.

The host knows the depth here, because every forward passes through Python.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch

from driftscope_probes.buffers import ChainBuffers


class Kernels(Protocol):
    """Writes what passes a tap into the chain's buffers, for the depth under way.

    A tensor has one row per token at depth 1 and one per request later; the buffers say which rows
    are wanted. Nothing happens while the gate is shut.
    """

    def begin(self, batch: int) -> None:
        """Open the gate for `batch` requests, whose `rows` stand in the buffers; depth 0."""

    def finish(self) -> None:
        """The chain is drafted: what stands in the buffers becomes final."""

    def skip(self) -> None:
        """Shut the gate: the chains to come are not recorded."""

    def advance(self) -> None:
        """The next depth's forward is about to run."""

    def rms(self, x: torch.Tensor, name: str) -> None:
        """||row||_2 / sqrt(dim) of the wanted rows of [rows, dim] into `name` at this depth."""

    def rms_of_chunks(self, x: torch.Tensor, name: str, chunks: int, first: int = 0) -> None:
        """The same of each of `chunks` equal parts of a row, before depth 1, from number `first`
        of the quantity on."""

    def copy_query(self, layer: str, query: torch.Tensor) -> None:
        """Keep the wanted rows of [rows, heads * head_size] for the masses."""

    def copy_lse(self, layer: str, lse: torch.Tensor) -> None:
        """Keep the wanted columns of [heads, rows]."""

    def confidence(self, logits: torch.Tensor) -> None:
        """Top-1 probability and entropy (nats) of the softmax of [requests, vocabulary]."""


class _Views:
    """The buffers cut to a batch, made once per batch size: cutting takes longer than filling."""

    def __init__(self, buffers: ChainBuffers, batch: int) -> None:
        self.values = buffers.values[:batch]
        self.column = self.values.unbind(1)
        """Each number of a row, [batch]."""
        self.rows = buffers.rows[:batch]
        self.queries = {name: q[:batch].unbind(1) for name, q in buffers.queries.items()}
        self.lse = {name: lse[:batch].unbind(1) for name, lse in buffers.lse.items()}


class TorchKernels:
    """See Kernels."""

    def __init__(self, buffers: ChainBuffers) -> None:
        self._buffers = buffers
        self._depth = self._batch = 0
        self._columns = {name: at for name, (at, _) in buffers.layout.columns.items()}
        self._scale = torch.ones(buffers.layout.width)
        self._dims: dict[int, int] = {}
        """Column -> size of the states whose length is in it; the scale follows from it."""
        self._cut: dict[int, _Views] = {}

    def begin(self, batch: int) -> None:
        self._batch, self._depth = batch, 0
        if batch not in self._cut:
            self._cut[batch] = _Views(self._buffers, batch)
        self._views = self._cut[batch]

    def skip(self) -> None:
        self._batch = 0

    def finish(self) -> None:
        """What was written are lengths; one product makes them RMS."""
        self._views.values.mul_(self._scale)
        self._batch = 0

    def advance(self) -> None:
        self._depth += 1

    def rms(self, x: torch.Tensor, name: str) -> None:
        if self._open:
            self._norm(self._wanted(x), self._columns[name] + self._depth - 1)

    def rms_of_chunks(self, x: torch.Tensor, name: str, chunks: int, first: int = 0) -> None:
        if not self._batch:
            return
        wanted = x.index_select(0, self._views.rows)
        for i, chunk in enumerate(wanted.chunk(chunks, dim=-1)):
            self._norm(chunk, self._columns[name] + first + i)

    def copy_query(self, layer: str, query: torch.Tensor) -> None:
        if self._open:
            wanted = self._wanted(query.view(query.shape[0], -1))
            self._views.queries[layer][self._depth - 1].copy_(wanted)

    def copy_lse(self, layer: str, lse: torch.Tensor) -> None:
        if self._open:
            self._views.lse[layer][self._depth - 1].copy_(self._wanted(lse.T))

    def confidence(self, logits: torch.Tensor) -> None:
        if not self._open:
            return
        column, depth = self._views.column, self._depth - 1
        if len(logits) != self._batch:
            logits = logits[: self._batch]
        p = torch.softmax(logits, dim=-1, dtype=torch.float32)
        torch.amax(p, -1, out=column[self._columns["top1"] + depth])
        torch.sum(torch.special.entr(p), -1, out=column[self._columns["entropy"] + depth])

    @property
    def _open(self) -> bool:
        return bool(self._batch) and self._depth <= self._buffers.layout.depths

    def _wanted(self, x: torch.Tensor) -> torch.Tensor:
        if self._depth == 1:
            return x.index_select(0, self._views.rows)
        return x if len(x) == self._batch else x[: self._batch]

    def _norm(self, x: torch.Tensor, at: int) -> None:
        if self._dims.get(at) != (size := x.shape[-1]):
            self._dims[at], self._scale[at] = size, 1 / math.sqrt(size)
        torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32, out=self._views.column[at])
