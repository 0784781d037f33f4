"""Static device memory of the taps: a row of numbers per request, filled during a draft.

Shapes never change, so a CUDA graph can record the taps that write here. A row holds everything
that is recorded of a chain, so that one copy of the first B rows moves all of it to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from driftscope.vocabulary import BY_DEPTH as PER_DEPTH
from driftscope.vocabulary import MASSES
from driftscope_probes.base.host_arrays import array_of

"""Columns of the attention classes, in the order used by every array of masses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Position of each quantity in a row of float32 numbers."""

    depths: int
    """Largest chain length."""
    layers: int
    """Number of drafter layers whose attention is measured."""
    aux: int
    """Number of captured target layers."""

    def column(self, name: str) -> int:
        """Return the index of a quantity's first number; per-depth numbers follow by depth."""
        return self.columns[name][0]

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        """Mapping from name to (index of the first number, count of numbers)."""
        columns, at = {}, 0
        for name, size in self._sizes():
            columns[name] = (at, size)
            at += size
        return columns

    @property
    def width(self) -> int:
        """Count of numbers in a row."""
        return sum(size for _, size in self._sizes())

    def _sizes(self) -> Sequence[tuple[str, int]]:
        return (
            *((name, self.depths) for name in PER_DEPTH),
            ("aux_rms", self.aux),
            ("aux_norm_rms", self.aux),
            ("fc_rms", 1),
            ("position", 1),  # an int32 stored bit for bit
            ("masses", self.depths * self.layers * len(MASSES)),  # [depths, layers, 5]
        )


def fold(values: torch.Tensor, batch: int, block: Layout, chain: Layout) -> torch.Tensor:
    """Combine rows of single queries, [B * k, block.width], into rows of chains, [B, chain.width].

    A quantity that exists once per chain is taken from the chain's first query.
    """
    k = len(values) // batch
    by_query = values.view(batch, k, -1)
    out = values.new_full((batch, chain.width), torch.nan)
    for name, (at, size) in block.columns.items():
        first = chain.column(name)
        if chain.columns[name][1] == size:
            out[:, first : first + size] = by_query[:, 0, at : at + size]
        else:
            out[:, first : first + k * size] = by_query[..., at : at + size].flatten(1)
    return out


class ChainBuffers:
    """Static tensors of one drafter, on its device, for up to R requests."""

    def __init__(self, layout: Layout, requests: int, device: torch.device) -> None:
        self.layout, self.requests, self.device = layout, requests, device
        with torch.device(device):
            self.values = torch.full((requests, layout.width), torch.nan)
            """[R, width] float32: the rows."""
            self.gate = torch.zeros(2, dtype=torch.int32)
            """[2] int32: 1 if the chains in progress are recorded, else 0; and their number."""
            self.depth = torch.zeros(requests, dtype=torch.int32)
            """[R] int32: depth of the forward in progress."""
            self.rows = torch.zeros(requests, dtype=torch.int64)
            """[R] int64: each request's row in the depth-1 forward; row b at later depths."""
        self.queries: dict[str, torch.Tensor] = {}
        """Layer -> [R, depths, heads * head_size] queries in the drafter's dtype."""
        self.lse: dict[str, torch.Tensor] = {}
        """Layer -> [R, depths, heads] float32: log-sum-exp of the serving kernel itself."""
        self._columns = layout.columns
        self._ints = array_of(self.values.view(torch.int32))

    def add_layer(self, name: str, query_size: int, heads: int, dtype: torch.dtype) -> None:
        """Allocate the buffers for a layer's queries and log-sum-exp."""
        shape = (self.requests, self.layout.depths)
        self.queries[name] = torch.zeros((*shape, query_size), dtype=dtype, device=self.device)
        self.lse[name] = torch.full((*shape, heads), torch.nan, device=self.device)

    @property
    def nbytes(self) -> int:
        """Size of all tensors, in bytes."""
        parts = (self.values, self.gate, self.depth, self.rows)
        return sum(x.nbytes for x in (*parts, *self.queries.values(), *self.lse.values()))

    def part(self, name: str, batch: int) -> torch.Tensor:
        """Return a [batch, numbers] view of a quantity."""
        at, size = self._columns[name]
        return self.values[:batch, at : at + size]

    def put_int(self, name: str, values: torch.Tensor) -> None:
        """Write integers [B] to a quantity of one number per row, as int32 bit for bit."""
        at, _ = self._columns[name]
        self._ints[: len(values), at] = array_of(values)
