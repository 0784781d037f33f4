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


LOGITS_AT_ONCE = 1 << 20
"""Logits of a chain, in elements, up to which they are kept and measured together: so many small
ops cost more than a copy. Beyond, each depth's are measured at once."""


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
        self._memory = torch.empty(0)
        self._logits: torch.Tensor | None = None
        """[depths, B, vocabulary] float32 of the chains under way, if they are kept."""
        self._kept = 0
        """Depths of them that are there."""

    def begin(self, batch: int) -> None:
        self._batch, self._depth, self._logits = batch, 0, None
        if batch not in self._cut:
            self._cut[batch] = _Views(self._buffers, batch)
        self._views = self._cut[batch]

    def skip(self) -> None:
        self._batch = 0

    def finish(self) -> None:
        """What was written are lengths; one product makes them RMS."""
        self._views.values.mul_(self._scale)
        if self._logits is not None:
            top1, entropy = _confidence(self._logits[: self._kept])
            self._put("top1", top1)
            self._put("entropy", entropy)
        self._batch = 0

    def advance(self) -> None:
        self._depth += 1

    def rms(self, x: torch.Tensor, name: str) -> None:
        if self._open:
            self._norm(self._wanted(x), self._columns[name] + self._depth - 1)

    def rms_of_chunks(self, x: torch.Tensor, name: str, chunks: int, first: int = 0) -> None:
        if not self._batch:
            return
        wanted = x.index_select(0, self._views.rows).view(self._batch, chunks, -1)
        at = self._columns[name] + first
        out = self._views.values[:, at : at + chunks]
        self._is_length(at, chunks, wanted.shape[-1])
        torch.linalg.vector_norm(wanted, dim=-1, dtype=torch.float32, out=out)

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
        depth = self._depth - 1
        if len(logits) != self._batch:
            logits = logits[: self._batch]
        if depth == 0:
            self._logits = self._room_for(logits)
        if self._logits is not None:
            self._logits[depth].copy_(logits)
            self._kept = self._depth
            return
        top1, entropy = _confidence(logits)
        self._views.column[self._columns["top1"] + depth].copy_(top1)
        self._views.column[self._columns["entropy"] + depth].copy_(entropy)

    def _room_for(self, logits: torch.Tensor) -> torch.Tensor | None:
        """Memory for the logits of all depths, unless they are many."""
        depths = self._buffers.layout.depths
        if depths == 1 or depths * logits.numel() > LOGITS_AT_ONCE:
            return None
        if not len(self._memory):
            self._memory = torch.empty(LOGITS_AT_ONCE)
        return self._memory[: depths * logits.numel()].view(depths, *logits.shape)

    def _put(self, name: str, found: torch.Tensor) -> None:
        """[depths, B] into a quantity's columns."""
        at = self._columns[name]
        self._views.values[:, at : at + len(found)] = found.T

    @property
    def _open(self) -> bool:
        return bool(self._batch) and self._depth <= self._buffers.layout.depths

    def _wanted(self, x: torch.Tensor) -> torch.Tensor:
        if self._depth == 1:
            return x.index_select(0, self._views.rows)
        return x if len(x) == self._batch else x[: self._batch]

    def _norm(self, x: torch.Tensor, at: int) -> None:
        self._is_length(at, 1, x.shape[-1])
        torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32, out=self._views.column[at])

    def _is_length(self, at: int, columns: int, size: int) -> None:
        """Columns from `at` on hold lengths of states of that size."""
        if self._dims.get(at) != size:
            self._dims[at], self._scale[at : at + columns] = size, 1 / math.sqrt(size)


def _confidence(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Top-1 probability and entropy of the last dimension's softmax."""
    p = torch.softmax(logits, dim=-1, dtype=torch.float32)
    return p.amax(-1), torch.special.entr(p).sum(-1)
