"""The Triton programs of the taps, which the launches of `triton_kernels` run on the device.

`gate` [2] int32, `depth` [R] int32 and `rows` [R] int64 are those of `ChainBuffers`; `depths` is
the largest chain length. A program handles one request, or a part of it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _request(gate, depth, request, depths):  # type: ignore[no-untyped-def]
    """Return (request, or -1 if the gate is closed for it; depth index)."""
    at = tl.load(depth + request) - 1
    live = (tl.load(gate) != 0) & (request < tl.load(gate + 1)) & (at >= 0) & (at < depths)
    return tl.where(live, request, -1), at


@triton.jit
def _row(rows, request, at, n_rows):  # type: ignore[no-untyped-def]
    """Return the wanted row of a request at a depth index, -1 if the forward has no such row."""
    wanted = request.to(tl.int64)
    if (at == 0) & (request >= 0):
        wanted = tl.load(rows + request)
    return tl.where(wanted < n_rows, wanted, -1)


@triton.jit  # type: ignore[untyped-decorator]
def _root_mean_square(base, DIM: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the RMS of DIM numbers."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, DIM, BLOCK):
        i = start + tl.arange(0, BLOCK)
        part = tl.load(base + i, mask=i < DIM, other=0.0).to(tl.float32)
        total += part * part
    return tl.sqrt(tl.sum(total) / DIM)


@triton.jit  # type: ignore[untyped-decorator]
def _copy_row(base, stride, to, DIM: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Copy DIM numbers, `stride` apart, to adjacent ones of the target's type."""
    for start in range(0, DIM, BLOCK):
        i = start + tl.arange(0, BLOCK)
        part = tl.load(base + i * stride, mask=i < DIM)
        tl.store(to + i, part.to(to.dtype.element_ty), mask=i < DIM)


@triton.jit(do_not_specialize=["batch"])  # type: ignore[untyped-decorator]
def clear_chain(  # type: ignore[no-untyped-def]
    wanted,
    position,
    batch,
    gate,
    depth,
    rows,
    ints,
    lse,
    column,
    WIDTH: tl.constexpr,
    LSE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Clear a request's buffers and open the gate for all of them."""
    request = tl.program_id(0)
    for start in range(0, WIDTH, BLOCK):
        i = start + tl.arange(0, BLOCK)
        bits = tl.where(i == column, tl.load(position + request).to(tl.int32), 0x7FC00000)
        tl.store(ints + request * WIDTH + i, bits, mask=i < WIDTH)
    for start in range(0, LSE, BLOCK):
        i = start + tl.arange(0, BLOCK)
        empty = tl.full((BLOCK,), float("nan"), tl.float32)
        tl.store(lse + request.to(tl.int64) * LSE + i, empty, mask=i < LSE)
    tl.store(rows + request, tl.load(wanted + request).to(tl.int64))
    tl.store(depth + request, 0)
    if request == 0:
        tl.store(gate, 1)
        tl.store(gate + 1, batch)


@triton.jit(do_not_specialize=["x_rows", "x_stride", "q_rows", "q_stride", "lse_stride"])  # type: ignore[untyped-decorator]
def enter_forward(  # type: ignore[no-untyped-def]
    gate,
    depth,
    rows,
    depths,
    requests,
    x,
    x_rows,
    x_stride,
    values,
    width,
    column,
    query,
    q_rows,
    q_stride,
    queries,
    lse,
    lse_stride,
    lses,
    ADVANCE: tl.constexpr,
    DIM: tl.constexpr,
    QUERY: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Advance a request's depth, measure the forward's input, keep its query and log-sum-exp.

    A size of 0 leaves its part out. One program does all of a request, because the others would
    read the depth that it advances.
    """
    request = tl.program_id(0)
    live = (tl.load(gate) != 0) & (request < tl.load(gate + 1)) & (request < requests)
    if live:
        at = tl.load(depth + request)
        if ADVANCE:
            tl.store(depth + request, at + 1)
        else:
            at -= 1
        if (at >= 0) & (at < depths):
            if DIM > 0:
                row = _row(rows, request, at, x_rows)
                if row >= 0:
                    size = _root_mean_square(x + row * x_stride, DIM, BLOCK)
                    tl.store(values + request * width + column + at, size)
            if QUERY > 0:
                row = _row(rows, request, at, q_rows)
                if row >= 0:
                    to = request.to(tl.int64) * depths + at
                    _copy_row(query + row * q_stride, 1, queries + to * QUERY, QUERY, BLOCK)
                    if HEADS > 0:
                        _copy_row(lse + row, lse_stride, lses + to * HEADS, HEADS, BLOCK)


@triton.jit(do_not_specialize=["n_rows", "stride"])  # type: ignore[untyped-decorator]
def measure_state(  # type: ignore[no-untyped-def]
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
    """Measure one tensor of the forward in progress or, with FIRST, equal parts of a row that
    precedes depth 1."""
    request, chunk = tl.program_id(0), tl.program_id(1)
    if FIRST:
        at = 0
        live = (tl.load(gate) != 0) & (request < tl.load(gate + 1))
        wanted = tl.where(live, request, -1)
    else:
        wanted, at = _request(gate, depth, request, depths)
    row = _row(rows, wanted, at, n_rows)
    if row >= 0:
        size = _root_mean_square(x + row * stride + chunk * DIM, DIM, BLOCK)
        tl.store(out + request * width + column + at + chunk, size)


@triton.jit(do_not_specialize=["n_rows", "s0", "s1", "s2", "l_rows", "l_stride", "size"])  # type: ignore[untyped-decorator]
def leave_forward(  # type: ignore[no-untyped-def]
    gate,
    depth,
    rows,
    depths,
    out,
    width,
    x0,
    x1,
    x2,
    s0,
    s1,
    s2,
    c0,
    c1,
    c2,
    n_rows,
    logits,
    l_rows,
    l_stride,
    size,
    top1,
    entropy,
    sums,
    arrived,
    COUNT: tl.constexpr,
    SPLITS: tl.constexpr,
    LANES: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Measure up to three outputs of the forward in progress and, with SPLITS, its logits.

    The logits come first, because they take longest. Each of SPLITS programs sums up a part of a
    row, and the last one to arrive joins the sums.
    """
    request, part = tl.program_id(0), tl.program_id(1)
    wanted, at = _request(gate, depth, request, depths)
    to = out + request * width + at
    if SPLITS > 0:
        # The logits have one row per request at every depth.
        if (part < SPLITS) & (wanted >= 0) & (request < l_rows):
            base = logits + request.to(tl.int64) * l_stride
            share = tl.cdiv(tl.cdiv(size, WIDE), SPLITS) * WIDE
            # Sums of exp(x - m) and of (x - m) exp(x - m), per lane, with a running maximum m.
            m = tl.full((WIDE,), -1e30, tl.float32)
            s, t = tl.zeros((WIDE,), tl.float32), tl.zeros((WIDE,), tl.float32)
            for start in range(part * share, tl.minimum((part + 1) * share, size), WIDE):
                i = start + tl.arange(0, WIDE)
                x = tl.load(base + i, mask=i < size, other=-1e30).to(tl.float32)
                x = tl.maximum(x, -1e30)
                new = tl.maximum(m, x)
                old = tl.exp(m - new)
                e = tl.exp(x - new)
                t = old * (t + (m - new) * s) + (x - new) * e
                s = old * s + e
                m = new
            top = tl.max(m)
            old = tl.exp(m - top)
            t = tl.sum(old * (t + (m - top) * s))
            s = tl.sum(old * s)
            if SPLITS > 1:
                mine = sums + (request * SPLITS + part) * 3
                tl.store(mine, top)
                tl.store(mine + 1, s)
                tl.store(mine + 2, t)
                tl.debug_barrier()
                if tl.atomic_add(arrived + request, 1, sem="acq_rel", scope="gpu") == SPLITS - 1:
                    lane = tl.arange(0, LANES)
                    every = sums + (request * SPLITS + lane) * 3
                    there = lane < SPLITS
                    tops = tl.load(every, mask=there, other=-1e30, cache_modifier=".cg")
                    ss = tl.load(every + 1, mask=there, other=0.0, cache_modifier=".cg")
                    ts = tl.load(every + 2, mask=there, other=0.0, cache_modifier=".cg")
                    highest = tl.max(tops)
                    shrink = tl.exp(tops - highest)
                    total = tl.sum(shrink * ss)
                    mean = tl.sum(shrink * (ts + (tops - highest) * ss)) / total
                    tl.store(to + top1, 1.0 / total)
                    tl.store(to + entropy, tl.log(total) - mean)
                    tl.store(arrived + request, 0)
            else:
                tl.store(to + top1, 1.0 / s)
                tl.store(to + entropy, tl.log(s) - t / s)
        part -= SPLITS
    if COUNT > 0:
        row = _row(rows, tl.where(part >= 0, wanted, -1), at, n_rows)
        if row >= 0:
            if part == 0:
                tl.store(to + c0, _root_mean_square(x0 + row * s0, DIM, BLOCK))
            elif part == 1:
                tl.store(to + c1, _root_mean_square(x1 + row * s1, DIM, BLOCK))
            else:
                tl.store(to + c2, _root_mean_square(x2 + row * s2, DIM, BLOCK))
