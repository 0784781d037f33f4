"""The taps' computations in plain PyTorch: the twin of `triton_kernels`, used on a CPU.

The depth is known on the host here, because every forward passes through Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from driftscope_probes.buffers import LEAST, ChainBuffers


class Kernels(Protocol):
    """Writes what passes a tap into the chain buffers, for the depth in progress.

    A tensor has one row per token at depth 1 and one row per request at later depths; the buffers
    say which rows are wanted. The caller leaves a tensor unchanged until `finish`, unless it marks
    it as `fleeting`. Nothing is written while the gate is closed.
    """

    def begin(self, rows: torch.Tensor, position: torch.Tensor) -> None:
        """Clear the buffers of the previous chain and open the gate at depth 0.

        `rows` [B] int64: each request's row at depth 1; `position` [B] int64: that row's position,
        which is kept for the trace.
        """

    def finish(self) -> None:
        """Finalise the buffers of the drafted chain."""

    def skip(self) -> None:
        """Close the gate: the following chains are not recorded."""

    def advance(
        self, entering: torch.Tensor | None = None, *, attention_follows: bool = False
    ) -> None:
        """Advance the depth by one, before the forward of that depth runs.

        `entering` [rows, dim], if given, is its input, whose RMS is written to "in_rms". The caller
        leaves it unchanged until the forward's first attention layer. `attention_follows`: whether
        Python runs these layers, so that all of this may wait for the first of them.
        """

    def rms(self, x: torch.Tensor, name: str, *, fleeting: bool = False) -> None:
        """Write the RMS, ||row||_2 / sqrt(dim), of the wanted rows of [rows, dim] to `name`."""

    def rms_of_outputs(
        self, outputs: Sequence[tuple[str, torch.Tensor]], *, fleeting: bool = False
    ) -> None:
        """Write the RMS of what a forward returned, by name. Even what is `fleeting` stays
        unchanged until the logits of this depth are computed."""

    def rms_of_chunks(
        self, x: torch.Tensor, name: str, chunks: int, first: int = 0, *, fleeting: bool = False
    ) -> None:
        """Write the RMS of each of `chunks` equal parts of a row, before depth 1, to the quantity's
        numbers from index `first` on."""

    def copy_query(
        self,
        layer: str,
        query: torch.Tensor,
        lse: torch.Tensor | None = None,
        *,
        fleeting: bool = False,
    ) -> None:
        """Keep the wanted rows of `query` [rows, heads * head_size] for the masses, and the wanted
        columns of `lse` [heads, rows], the serving kernel's log-sum-exp, if there is one."""

    def confidence(self, logits: torch.Tensor, *, fleeting: bool = False) -> None:
        """Write top-1 probability and entropy (nats) of the softmax of [requests, vocabulary]."""

    def keeps(self, vocabulary: int) -> bool:
        """Return whether the logits of the chain that begins, so many for each depth and request,
        are few enough to be kept until it is drafted."""

    @property
    def device_bytes(self) -> int:
        """Memory beside the buffers that is kept on the drafter's device, in bytes."""


IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

LOGITS_AT_ONCE = 1 << 18
"""Number of a chain's logits, in elements, up to which they are measured together. Above it each
depth's logits are measured while they are in the core's cache."""


_States = tuple[torch.Tensor, int, int]
"""Hidden states to measure, [B, parts * dim]; buffer column of the first part; number of parts."""


class TorchKernels:
    """Kernels in plain PyTorch. Tensors that stay unchanged until the chain is drafted are measured
    then, all together, because a tap's cost on a CPU is the number of small operations."""

    def __init__(self, buffers: ChainBuffers) -> None:
        self._buffers = buffers
        self._depth = self._batch = 0
        self._open = False
        """Whether the depth in progress is recorded."""
        self._row_numbers = buffers.rows.numpy()
        self._columns = {name: at for name, (at, _) in buffers.layout.columns.items()}
        self._host = buffers.values.numpy()
        self._rows, self._values = buffers.rows[:0], self._host[:0]
        self._place_cache: dict[tuple[Any, ...], tuple[IntArray, IntArray]] = {}
        """Cached buffer indices (row, column), by batch size and measured states."""
        self._forget()

    def begin(self, rows: torch.Tensor, position: torch.Tensor) -> None:
        self._forget()
        batch = rows.shape[0]  # `len` of a tensor takes fourteen times as long
        self._batch, self._depth, self._open = batch, 0, True
        if batch != len(self._values):
            self._rows, self._values = self._buffers.rows[:batch], self._host[:batch]
        self._row_numbers[:batch] = rows.numpy()
        self._values.fill(np.nan)
        self._position = position

    def skip(self) -> None:
        if self._batch:
            self._batch, self._open = 0, False
            self._forget()

    def finish(self) -> None:
        if self._batch:
            self._buffers.put_int("position", self._position)
            self._measure_states()
            for layer, queries in self._queries.items():
                self._check_depths(layer, len(queries))
                self._gather_layer(queries, self._room_for(layer, len(queries)))
            if self._logits:
                self._measure_logits()
        self.skip()

    def advance(
        self,
        entering: torch.Tensor | None = None,
        *,
        attention_follows: bool = False,  # noqa: ARG002
    ) -> None:
        self._depth += 1
        self._open = self._batch > 0 and self._depth <= self._buffers.layout.depths
        if entering is not None:
            self.rms(entering, "in_rms", fleeting=True)

    def rms_of_outputs(
        self, outputs: Sequence[tuple[str, torch.Tensor]], *, fleeting: bool = False
    ) -> None:
        for name, x in outputs:
            self.rms(x, name, fleeting=fleeting)

    def rms(self, x: torch.Tensor, name: str, *, fleeting: bool = False) -> None:
        if self._open:
            states = self._own_rows(x)
            if fleeting and self._depth > 1:
                states = states.clone()
            self._states.append((states, self._columns[name] + self._depth - 1, 1))

    def rms_of_chunks(
        self,
        x: torch.Tensor,
        name: str,
        chunks: int,
        first: int = 0,
        *,
        fleeting: bool = False,  # noqa: ARG002  the wanted rows are copied
    ) -> None:
        if self._batch:
            wanted = x.index_select(0, self._rows)
            self._states.append((wanted, self._columns[name] + first, chunks))

    def copy_query(
        self,
        layer: str,
        query: torch.Tensor,
        lse: torch.Tensor | None = None,
        *,
        fleeting: bool = False,
    ) -> None:
        if self._open:
            self._queries.setdefault(layer, []).append(query.clone() if fleeting else query)
            if lse is not None:
                at = self._depth - 1
                self._buffers.lse[layer][: self._batch, at] = self._own_rows(lse.T)

    def confidence(self, logits: torch.Tensor, *, fleeting: bool = False) -> None:
        if not self._open:
            return
        logits = self._cut(logits)
        if self.keeps(logits.shape[-1]):
            self._logits.append(logits.clone() if fleeting else logits)
        else:
            self._put_confidence(logits[None], self._depth - 1)

    def keeps(self, vocabulary: int) -> bool:
        return self._buffers.layout.depths * self._batch * vocabulary <= LOGITS_AT_ONCE

    @property
    def device_bytes(self) -> int:
        """See Kernels: what is kept belongs to the drafter."""
        return 0

    def _forget(self) -> None:
        self._states: list[_States] = []
        self._queries: dict[str, list[torch.Tensor]] = {}
        """Layer -> queries by depth."""
        self._logits: list[torch.Tensor] = []
        """Logits by depth, if they are measured together."""

    def _measure_states(self) -> None:
        by_shape: dict[tuple[int, torch.dtype], list[_States]] = {}
        for states in self._states:
            x, _, parts = states
            by_shape.setdefault((x.shape[-1] // parts, x.dtype), []).append(states)
        for (size, _), of_size in by_shape.items():
            every = torch.cat([x if parts == 1 else x.reshape(-1, size) for x, _, parts in of_size])
            length = torch.linalg.vector_norm(every, dim=-1, dtype=torch.float32).numpy()
            self._values[self._places(of_size)] = length * size**-0.5

    def _places(self, of_size: list[_States]) -> tuple[IntArray, IntArray]:
        """Return the buffer row and column for each part of each state, in order."""
        key = (self._batch, *(states[1:] for states in of_size))
        if key not in self._place_cache:
            sizes = [self._batch * parts for *_, parts in of_size]
            request = [np.arange(n) // parts for n, (*_, parts) in zip(sizes, of_size, strict=True)]
            column = [
                first + np.arange(n) % parts
                for n, (_, first, parts) in zip(sizes, of_size, strict=True)
            ]
            self._place_cache[key] = np.concatenate(request), np.concatenate(column)
        return self._place_cache[key]

    def _check_depths(self, layer: str, depths: int) -> None:
        if depths != min(self._depth, self._buffers.layout.depths):
            raise ValueError(f"{layer}: {depths} queries seen at {self._depth} depths")

    def _room_for(self, layer: str, depths: int) -> torch.Tensor:
        """Return the [B, depths, heads * head_size] view of the buffers."""
        return self._buffers.queries[layer][: self._batch, :depths]

    def _gather_layer(self, queries: list[torch.Tensor], kept: torch.Tensor) -> None:
        """Copy one layer's queries, a list by depth, into `kept` [B, depths, heads * head_size]."""
        first = queries[0].index_select(0, self._rows)
        room = kept.view(*kept.shape[:2], *first.shape[1:])
        torch.stack([first, *(self._cut(q) for q in queries[1:])], 1, out=room)

    def _measure_logits(self) -> None:
        """Measure the logits of all depths at once."""
        self._put_confidence(torch.stack(self._logits), 0)

    def _put_confidence(self, logits: torch.Tensor, depth: int) -> None:
        """Write the confidence of [depths, B, vocabulary], from the 0-based index `depth` on."""
        for name, values in zip(("top1", "entropy"), _confidence(logits), strict=True):
            at = self._columns[name] + depth
            self._values[:, at : at + len(values)] = values.T

    def _own_rows(self, x: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, self._rows) if self._depth == 1 else self._cut(x)

    def _cut(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows without the batch's padding."""
        return x if x.shape[0] == self._batch else x[: self._batch]


def _confidence(logits: torch.Tensor) -> tuple[FloatArray, FloatArray]:
    """Return top-1 probability and entropy in nats of the softmax over the last dimension.

    With x the logits minus their maximum and Z the sum of exp(x), they are 1 / Z and log Z -
    sum(exp(x) x) / Z. A logit may be -inf, as for a token that must not be drafted.
    """
    x = logits.float()
    x = (x - x.amax(-1, keepdim=True)).clamp_min_(LEAST)
    e = x.exp()
    z: FloatArray = e.sum(-1).numpy()
    mean: FloatArray = e.mul_(x).sum(-1).numpy()
    return np.reciprocal(z), np.log(z) - mean / z
