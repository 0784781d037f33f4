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


class TorchKernels:
    """See Kernels."""

    def __init__(self, buffers: ChainBuffers) -> None:
        self._buffers = buffers
        self._depth = self._batch = 0
        self._scale = torch.ones(buffers.layout.width)
        self._columns = buffers.layout.columns

    def begin(self, batch: int) -> None:
        self._batch, self._depth = batch, 0

    def skip(self) -> None:
        self._batch = 0

    def finish(self) -> None:
        """What was written are lengths; one product makes them RMS."""
        self._buffers.values[: self._batch] *= self._scale
        self._batch = 0

    def advance(self) -> None:
        self._depth += 1

    def rms(self, x: torch.Tensor, name: str) -> None:
        if self._batch and self._depth <= self._buffers.layout.depths:
            at = self._columns[name][0] + self._depth - 1
            self._norm(self._wanted(x), at)

    def rms_of_chunks(self, x: torch.Tensor, name: str, chunks: int, first: int = 0) -> None:
        if not self._batch:
            return
        wanted = x.index_select(0, self._buffers.rows[: self._batch])
        for i, chunk in enumerate(wanted.chunk(chunks, dim=-1)):
            self._norm(chunk, self._columns[name][0] + first + i)

    def copy_query(self, layer: str, query: torch.Tensor) -> None:
        if self._batch and self._depth <= self._buffers.layout.depths:
            wanted = self._wanted(query.view(query.shape[0], -1))
            self._buffers.queries[layer][: self._batch, self._depth - 1] = wanted

    def copy_lse(self, layer: str, lse: torch.Tensor) -> None:
        if self._batch and self._depth <= self._buffers.layout.depths:
            self._buffers.lse[layer][: self._batch, self._depth - 1] = self._wanted(lse.T)

    def confidence(self, logits: torch.Tensor) -> None:
        if not self._batch or self._depth > self._buffers.layout.depths:
            return
        values, depth = self._buffers.values[: self._batch], self._depth - 1
        p = torch.softmax(logits[: self._batch], dim=-1, dtype=torch.float32)
        torch.amax(p, -1, out=values[:, self._columns["top1"][0] + depth])
        torch.sum(torch.special.entr(p), -1, out=values[:, self._columns["entropy"][0] + depth])

    def _wanted(self, x: torch.Tensor) -> torch.Tensor:
        if self._depth > 1:
            return x[: self._batch]
        return x.index_select(0, self._buffers.rows[: self._batch])

    def _norm(self, x: torch.Tensor, at: int) -> None:
        self._scale[at] = 1 / math.sqrt(x.shape[-1])
        out = self._buffers.values[: self._batch, at]
        torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32, out=out)
