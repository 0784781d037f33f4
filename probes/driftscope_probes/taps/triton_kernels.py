"""The taps' computations as Triton kernels of fixed shape, which a CUDA graph can record.

Nothing here depends on the host. Whether to record, the number of requests and the depth are read
from the device, so that a replayed graph measures what it replays. The plain PyTorch twin is
`kernels.TorchKernels`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from driftscope_probes.base.chain_buffers import ChainBuffers

BLOCK = 1024
"""Number of elements of a row that a program handles at once."""


@triton.jit
def _request(gate, depth, request, depths):  # type: ignore[no-untyped-def]
    """Return (request, or -1 if the gate is closed for it; depth index)."""
    at = tl.load(depth + request) - 1
    live = (tl.load(gate) != 0) & (request < tl.load(gate + 1)) & (at >= 0) & (at < depths)
    return tl.where(live, request, -1), at


@triton.jit  # type: ignore[untyped-decorator]
def _row(gate, depth, rows, request, depths, n_rows, first: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return (wanted row or -1, depth index) of a request in the forward in progress."""
    row, at = _request(gate, depth, request, depths)
    if first:
        at = 0
        row = tl.where((tl.load(gate) != 0) & (request < tl.load(gate + 1)), request, -1)
    wanted = row.to(tl.int64)
    if (at == 0) & (row >= 0):
        wanted = tl.load(rows + request)
    return tl.where(wanted < n_rows, wanted, -1), at


@triton.jit(do_not_specialize=["requests"])  # type: ignore[untyped-decorator]
def _advance(gate, depth, requests, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    request = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = request < requests
    if tl.load(gate) != 0:
        d = tl.load(depth + request, mask=live, other=0)
        tl.store(depth + request, d + 1, mask=live)


@triton.jit(do_not_specialize=["n_rows", "stride"])  # type: ignore[untyped-decorator]
def _rms(  # type: ignore[no-untyped-def]
    x,
    stride,
    n_rows,
    gate,
    depth,
    rows,
    out,
    width,
    column,
    depths,
    DIM: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request, chunk = tl.program_id(0), tl.program_id(1)
    row, at = _row(gate, depth, rows, request, depths, n_rows, FIRST)
    if row >= 0:
        total = tl.zeros((BLOCK,), tl.float32)
        base = x + row * stride + chunk * DIM
        for start in range(0, DIM, BLOCK):
            i = start + tl.arange(0, BLOCK)
            part = tl.load(base + i, mask=i < DIM, other=0.0).to(tl.float32)
            total += part * part
        tl.store(out + request * width + column + at + chunk, tl.sqrt(tl.sum(total) / DIM))


@triton.jit(do_not_specialize=["n_rows", "row_stride", "stride"])  # type: ignore[untyped-decorator]
def _copy(  # type: ignore[no-untyped-def]
    x,
    row_stride,
    stride,
    n_rows,
    gate,
    depth,
    rows,
    out,
    depths,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    row, at = _row(gate, depth, rows, request, depths, n_rows, False)
    if row >= 0:
        to = out + (request.to(tl.int64) * depths + at) * DIM
        for start in range(0, DIM, BLOCK):
            i = start + tl.arange(0, BLOCK)
            part = tl.load(x + row * row_stride + i * stride, mask=i < DIM)
            tl.store(to + i, part.to(out.dtype.element_ty), mask=i < DIM)


@triton.jit(do_not_specialize=["n_rows", "stride", "size"])  # type: ignore[untyped-decorator]
def _confidence(  # type: ignore[no-untyped-def]
    x,
    stride,
    n_rows,
    size,
    gate,
    depth,
    rows,
    out,
    width,
    top1,
    entropy,
    depths,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    # The logits have one row per request at every depth.
    wanted, at = _request(gate, depth, request, depths)
    if wanted >= 0:
        base = x + request.to(tl.int64) * stride
        # Sums of exp(x - m) and of (x - m) exp(x - m), per lane, with a running maximum m.
        m = tl.full((BLOCK,), -1e30, tl.float32)
        s, t = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
        for start in range(0, size, BLOCK):
            i = start + tl.arange(0, BLOCK)
            part = tl.load(base + i, mask=i < size, other=-1e30).to(tl.float32)
            part = tl.maximum(part, -1e30)
            new = tl.maximum(m, part)
            old = tl.exp(m - new)
            t = old * (t + (m - new) * s) + (part - new) * tl.exp(part - new)
            s = old * s + tl.exp(part - new)
            m = new
        top = tl.max(m)
        old = tl.exp(m - top)
        t = tl.sum(old * (t + (m - top) * s))
        s = tl.sum(old * s)
        to = out + request * width + at
        tl.store(to + top1, 1.0 / s)
        tl.store(to + entropy, tl.log(s) - t / s)


class TritonKernels:
    """Kernels in Triton; see kernels.Kernels."""

    def __init__(self, buffers: ChainBuffers) -> None:
        self._buffers = buffers
        self._columns = buffers.layout.columns
        self._state = (buffers.gate, buffers.depth, buffers.rows)
        self._open = -1

    def begin(self, batch: int) -> None:
        self._buffers.depth.zero_()
        if self._open != batch:
            # Set from the host without waiting: the number is part of the launch.
            self._buffers.gate.fill_(1)
            self._buffers.gate[1:].fill_(batch)
            self._open = batch

    def finish(self, position: torch.Tensor) -> None:
        """Write the positions; everything else is already final."""
        self._buffers.put_int("position", position)

    def skip(self) -> None:
        if self._open != 0:
            self._buffers.gate.zero_()
            self._open = 0

    def advance(self) -> None:
        buffers = self._buffers
        grid = (triton.cdiv(buffers.requests, BLOCK),)
        _advance[grid](buffers.gate, buffers.depth, buffers.requests, BLOCK=BLOCK)

    def rms(self, x: torch.Tensor, name: str, *, fleeting: bool = False) -> None:  # noqa: ARG002
        self._rms(x, self._columns[name][0], 1, first=False)

    def rms_of_chunks(
        self,
        x: torch.Tensor,
        name: str,
        chunks: int,
        first: int = 0,
        *,
        fleeting: bool = False,  # noqa: ARG002
    ) -> None:
        self._rms(x, self._columns[name][0] + first, chunks, first=True)

    def copy_query(self, layer: str, query: torch.Tensor, *, fleeting: bool = False) -> None:  # noqa: ARG002
        flat = query.view(query.shape[0], -1)
        self._copy(flat, flat.stride(0), flat.stride(1), self._buffers.queries[layer])

    def copy_lse(self, layer: str, lse: torch.Tensor) -> None:
        self._copy(lse.T, lse.stride(1), lse.stride(0), self._buffers.lse[layer])

    def keeps(self, logits: torch.Tensor) -> bool:  # noqa: ARG002
        """Return False: measuring one depth's logits costs only a launch."""
        return False

    def confidence(self, logits: torch.Tensor, *, fleeting: bool = False) -> None:  # noqa: ARG002
        buffers = self._buffers
        _confidence[(self._programs(logits),)](
            logits,
            logits.stride(0),
            logits.shape[0],
            logits.shape[1],
            *self._state,
            buffers.values,
            buffers.layout.width,
            self._columns["top1"][0],
            self._columns["entropy"][0],
            buffers.layout.depths,
            BLOCK=4 * BLOCK,
            num_warps=8,
        )

    def _rms(self, x: torch.Tensor, column: int, chunks: int, *, first: bool) -> None:
        buffers = self._buffers
        _rms[(self._programs(x), chunks)](
            x,
            x.stride(0),
            x.shape[0],
            *self._state,
            buffers.values,
            buffers.layout.width,
            column,
            buffers.layout.depths,
            DIM=x.shape[1] // chunks,
            FIRST=first,
            BLOCK=BLOCK,
        )

    def _copy(self, x: torch.Tensor, row_stride: int, stride: int, out: torch.Tensor) -> None:
        buffers: Any = self._buffers
        _copy[(self._programs(x),)](
            x,
            row_stride,
            stride,
            x.shape[0],
            *self._state,
            out,
            buffers.layout.depths,
            DIM=x.shape[1],
            BLOCK=BLOCK,
        )

    def _programs(self, x: torch.Tensor) -> int:
        """Return the number of programs: a forward of n rows holds at most n requests."""
        return min(self._buffers.requests, x.shape[0])
