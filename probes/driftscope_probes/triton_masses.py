"""The masses of `driftscope_probes.torch_masses`, as Triton kernels on a paged cache.

Each chain's keys are read once for all of its queries, in splits that run in parallel; keys are not
gathered, and nothing waits for the host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from driftscope.trace.records import longest_of
from driftscope_probes.drafter import AttentionKind
from driftscope_probes.torch_masses import ChainSlots

BLOCK_N = 64
"""Number of slots that a program handles at once."""
MAX_SPLITS = 32
TARGET_PROGRAMS = 264
"""Number of programs that fills a large GPU twice (132 multiprocessors on Hopper)."""
FAR = -1.0e30


@triton.jit(do_not_specialize=["blocks_in_row", "splits"])  # type: ignore[untyped-decorator]
def _partial(  # type: ignore[no-untyped-def]
    queries,
    cache,
    table,
    position,
    prompt,
    sinks_at,
    lse,
    partial,
    q_request,
    q_depth,
    k_block,
    k_slot,
    k_head,
    blocks_in_row,
    splits,
    scale,
    softcap,
    K: tl.constexpr,
    GROUPS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    LSE: tl.constexpr,
    ROWS: tl.constexpr,
    D_PADDED: tl.constexpr,
    N: tl.constexpr,
    SINGLE: tl.constexpr,
    NEAR: tl.constexpr,
    NEAR_PADDED: tl.constexpr,
):
    """Compute the running maximum and each class's sum of exp(score - maximum) over one split.

    A split is a range of slots. With LSE the maximum is the serving kernel's log-sum-exp, and the
    longer of the two classes prompt and generated is not read: its mass is 1 minus the others.

    With NEAR bins, SINGLE of which hold one distance each, the sums by distance follow those of the
    classes; slots that these bins reach are then always read.
    """
    b, h, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    p = tl.load(position + b).to(tl.int32)
    prompt_end = tl.load(prompt + b).to(tl.int32)
    row = tl.arange(0, ROWS)  # group-major: group * K + depth - 1
    d = row % K
    live_row = row < GROUPS * K
    head = h * GROUPS + row // K
    dim = tl.arange(0, D_PADDED)
    q = tl.load(
        queries + b * q_request + d[:, None] * q_depth + head[:, None] * D + dim[None, :],
        mask=live_row[:, None] & (dim < D)[None, :],
        other=0.0,
    )
    own = p + d
    if LSE:
        m = tl.load(lse + (b * K + d) * (GROUPS * KV_HEADS) + head, mask=live_row, other=0.0)
    else:
        m = tl.full((ROWS,), -1.0e30, tl.float32)
    sink = tl.zeros((ROWS,), tl.float32)
    in_prompt = tl.zeros((ROWS,), tl.float32)
    generated = tl.zeros((ROWS,), tl.float32)
    self_ = tl.zeros((ROWS,), tl.float32)
    bin_of = tl.arange(0, NEAR_PADDED)
    near = tl.zeros((ROWS, NEAR_PADDED), tl.float32)
    reach = SINGLE << (NEAR - SINGLE)

    # With LSE, skip the slots of the longer class.
    skip_from, skip_to = 0, 0
    if LSE:
        last_sink = tl.load(sinks_at + SINKS - 1).to(tl.int32) + 1 if SINKS > 0 else 0
        if prompt_end - last_sink > p + 1 - prompt_end:
            skip_from, skip_to = last_sink, prompt_end
        else:
            skip_from, skip_to = tl.maximum(prompt_end, last_sink), p + 1
        if NEAR > 0:
            skip_to = tl.minimum(skip_to, p + 1 - reach)
        # Skip whole tiles only; the conditions of the classes handle the rest.
        skip_from = tl.cdiv(skip_from, N) * N
        skip_to = tl.maximum(skip_to // N * N, skip_from)
    total = p + K - (skip_to - skip_from)
    tiles = tl.cdiv(total, N)
    per_split = tl.cdiv(tiles, splits)
    first = split * per_split
    for tile in range(first, tl.minimum(first + per_split, tiles)):
        start = tile * N
        if LSE:
            start = tl.where(start >= skip_from, start + (skip_to - skip_from), start)
        slot = start + tl.arange(0, N)
        valid = slot < p + K
        page = tl.load(table + b * blocks_in_row + slot // PAGE, mask=valid, other=0).to(tl.int64)
        keys = tl.load(
            cache
            + page[None, :] * k_block
            + (slot % PAGE)[None, :] * k_slot
            + h * k_head
            + dim[:, None],
            mask=valid[None, :] & (dim < D)[:, None],
            other=0.0,
        )
        scores = tl.dot(q, keys, input_precision="ieee").to(tl.float32) * scale
        if SOFTCAP:
            x = scores / softcap
            scores = softcap * (2.0 * tl.sigmoid(2.0 * x) - 1.0)
        visible = (slot[None, :] <= own[:, None]) & live_row[:, None]
        if WINDOW > 0:
            visible = visible & (slot[None, :] > own[:, None] - WINDOW)
        if LSE:
            e = tl.where(visible, tl.exp(scores - m[:, None]), 0.0)
        else:
            scores = tl.where(visible, scores, -1.0e30)
            new = tl.maximum(m, tl.max(scores, 1))
            shrink = tl.exp(m - new)
            sink, in_prompt = sink * shrink, in_prompt * shrink
            generated, self_ = generated * shrink, self_ * shrink
            if NEAR > 0:
                near = near * shrink[:, None]
            m = new
            e = tl.where(visible, tl.exp(scores - m[:, None]), 0.0)
        is_self = slot > p
        is_sink = slot < 0
        for i in tl.static_range(SINKS):
            is_sink = is_sink | (slot == tl.load(sinks_at + i).to(tl.int32))
        is_sink = is_sink & (slot <= p)
        is_prompt = (slot < prompt_end) & (slot <= p) & (is_sink == 0)
        is_generated = (slot <= p) & (slot >= prompt_end) & (is_sink == 0)
        sink += tl.sum(tl.where(is_sink[None, :], e, 0.0), 1)
        in_prompt += tl.sum(tl.where(is_prompt[None, :], e, 0.0), 1)
        generated += tl.sum(tl.where(is_generated[None, :], e, 0.0), 1)
        self_ += tl.sum(tl.where(is_self[None, :], e, 0.0), 1)
        if NEAR > 0:  # noqa: SIM102  decided when the kernel is compiled, the next when it runs
            if start + N > p + 1 - reach:
                outside = tl.where(is_sink[None, :], 0.0, e)
                away = own[:, None] - slot[None, :]
                for i in tl.static_range(NEAR):
                    if i < SINGLE:
                        inside = away == i
                    else:
                        inside = away >= (SINGLE << (i - SINGLE))
                        inside = inside & (away < (SINGLE << (i - SINGLE + 1)))
                    in_bin = tl.sum(tl.where(inside, outside, 0.0), 1)
                    near += tl.where(bin_of[None, :] == i, in_bin[:, None], 0.0)
    to = partial + (((b * KV_HEADS + h) * splits + split) * ROWS + row) * (5 + NEAR)
    tl.store(to, m)
    tl.store(to + 1, sink)
    tl.store(to + 2, in_prompt)
    tl.store(to + 3, generated)
    tl.store(to + 4, self_)
    if NEAR > 0:
        tl.store(to[:, None] + 5 + bin_of[None, :], near, mask=(bin_of < NEAR)[None, :])


@triton.jit(do_not_specialize=["splits"])  # type: ignore[untyped-decorator]
def _combine(  # type: ignore[no-untyped-def]
    partial,
    bias,
    position,
    prompt,
    sinks_at,
    out,
    distances,
    out_request,
    out_depth,
    bins_request,
    bins_depth,
    splits,
    K: tl.constexpr,
    GROUPS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    BIAS: tl.constexpr,
    LSE: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    SINGLE: tl.constexpr,
    NEAR: tl.constexpr,
    NEAR_PADDED: tl.constexpr,
):
    """Combine the splits of all heads of one (request, depth) and average over heads."""
    b, d = tl.program_id(0).to(tl.int64), tl.program_id(1)
    p = tl.load(position + b).to(tl.int32)
    heads: tl.constexpr = GROUPS * KV_HEADS
    head = tl.arange(0, HEADS_PADDED)
    live = head < heads
    at = (b * KV_HEADS + head // GROUPS) * splits * ROWS + (head % GROUPS) * K + d
    m = tl.full((HEADS_PADDED,), -1.0e30, tl.float32)
    if BIAS:
        m = tl.load(bias + head, mask=live, other=0.0).to(tl.float32)
    for split in range(splits):
        m = tl.maximum(
            m, tl.load(partial + (at + split * ROWS) * (5 + NEAR), mask=live, other=-1.0e30)
        )
    sink = tl.zeros((HEADS_PADDED,), tl.float32)
    in_prompt = tl.zeros((HEADS_PADDED,), tl.float32)
    generated = tl.zeros((HEADS_PADDED,), tl.float32)
    self_ = tl.zeros((HEADS_PADDED,), tl.float32)
    bin_of = tl.arange(0, NEAR_PADDED)
    near = tl.zeros((HEADS_PADDED, NEAR_PADDED), tl.float32)
    is_near = live[:, None] & (bin_of < NEAR)[None, :]
    for split in range(splits):
        source = partial + (at + split * ROWS) * (5 + NEAR)
        weight = tl.exp(tl.load(source, mask=live, other=-1.0e30) - m)
        sink += weight * tl.load(source + 1, mask=live, other=0.0)
        in_prompt += weight * tl.load(source + 2, mask=live, other=0.0)
        generated += weight * tl.load(source + 3, mask=live, other=0.0)
        self_ += weight * tl.load(source + 4, mask=live, other=0.0)
        if NEAR > 0:
            by_bin = tl.load(source[:, None] + 5 + bin_of[None, :], mask=is_near, other=0.0)
            near += weight[:, None] * by_bin
    null = tl.zeros((HEADS_PADDED,), tl.float32)
    if BIAS:
        null = tl.exp(tl.load(bias + head, mask=live, other=0.0).to(tl.float32) - m)
    if LSE:
        prompt_end = tl.load(prompt + b).to(tl.int32)
        last_sink = tl.load(sinks_at + SINKS - 1).to(tl.int32) + 1 if SINKS > 0 else 0
        if prompt_end - last_sink > p + 1 - prompt_end:
            in_prompt = 1.0 - sink - generated - self_
        else:
            generated = 1.0 - sink - in_prompt - self_
    else:
        total = sink + in_prompt + generated + self_ + null
        sink, in_prompt = sink / total, in_prompt / total
        generated, self_, null = generated / total, self_ / total, null / total
        if NEAR > 0:
            near = near / total[:, None]
    if NEAR > 0:
        rest = tl.maximum(in_prompt + generated + self_ - tl.sum(near, 1), 0.0)
        mean = tl.sum(tl.where(is_near, near, 0.0), 0) / heads
        bins = distances + b * bins_request + d * bins_depth
        tl.store(bins + bin_of, mean, mask=bin_of < NEAR)
        tl.store(bins + NEAR, tl.sum(tl.where(live, rest, 0.0)) / heads)
    nan = float("nan")
    if SINKS == 0:
        sink = tl.full((HEADS_PADDED,), nan, tl.float32)
    elif WINDOW > 0:
        last = tl.load(sinks_at + SINKS - 1).to(tl.int32)
        if last <= p + d - WINDOW:
            sink = tl.full((HEADS_PADDED,), nan, tl.float32)
    if not BIAS:
        null = tl.full((HEADS_PADDED,), nan, tl.float32)
    to = out + b * out_request + d * out_depth
    tl.store(to, tl.sum(tl.where(live, sink, 0.0)) / heads)
    tl.store(to + 1, tl.sum(tl.where(live, in_prompt, 0.0)) / heads)
    tl.store(to + 2, tl.sum(tl.where(live, generated, 0.0)) / heads)
    tl.store(to + 3, tl.sum(tl.where(live, self_, 0.0)) / heads)
    tl.store(to + 4, tl.sum(tl.where(live, null, 0.0)) / heads)


def paged_masses(
    queries: torch.Tensor,
    keys: torch.Tensor,
    block_table: torch.Tensor,
    chains: ChainSlots,
    kind: AttentionKind,
    out: torch.Tensor,
    *,
    max_context: int,
    lse: torch.Tensor | None = None,
    distances: torch.Tensor | None = None,
) -> None:
    """Write mean masses over heads into `out` [B, K, 5] float32 (last dimension dense).

    `queries` [B, >= K, heads * head_size]; `keys` [blocks, block_size, kv_heads, head_size], whose
    last dimension is dense; `block_table` [B, blocks] int; `lse` [B, K, heads] float32 dense, if
    the serving kernel provides it; `distances` [B, K, bins] float32 (last dimension dense), if
    wanted.
    """
    batch, groups = len(chains.position), kind.heads // kind.kv_heads
    rows = max(16, triton.next_power_of_2(groups * chains.k))
    free = max(1, TARGET_PROGRAMS // max(1, batch * kind.kv_heads))
    splits = max(1, min(MAX_SPLITS, free, triton.cdiv(max_context, 4 * BLOCK_N)))
    bins = 0 if distances is None else distances.shape[-1]
    near = max(0, bins - 1)  # the last bin is what the others leave
    partial = torch.empty(
        (batch, kind.kv_heads, splits, rows, 5 + near), dtype=torch.float32, device=out.device
    )
    table = block_table[:batch]
    same = {
        "K": chains.k,
        "GROUPS": groups,
        "KV_HEADS": kind.kv_heads,
        "ROWS": rows,
        "WINDOW": kind.window or 0,
        "SINKS": len(chains.sink_slots),
        "LSE": lse is not None,
        "SINGLE": bins and longest_of(bins),
        "NEAR": near,
        "NEAR_PADDED": triton.next_power_of_2(max(1, near)),
    }
    queries = queries if queries.dtype == keys.dtype else queries.to(keys.dtype)
    _partial[(batch, kind.kv_heads, splits)](
        queries,
        keys,
        table,
        chains.position,
        chains.prompt_tokens,
        chains.sink_slots,
        lse,
        partial,
        queries.stride(0),
        queries.stride(1),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        table.stride(0),
        splits,
        kind.scale,
        kind.softcap,
        **same,
        D=kind.head_size,
        PAGE=keys.shape[1],
        SOFTCAP=kind.softcap > 0,
        D_PADDED=triton.next_power_of_2(kind.head_size),
        N=BLOCK_N,
        num_warps=4,
    )
    _combine[(batch, chains.k)](
        partial,
        kind.sinks,
        chains.position,
        chains.prompt_tokens,
        chains.sink_slots,
        out,
        distances,
        out.stride(0),
        out.stride(1),
        0 if distances is None else distances.stride(0),
        0 if distances is None else distances.stride(1),
        splits,
        **same,
        BIAS=kind.sinks is not None,
        HEADS_PADDED=triton.next_power_of_2(kind.heads),
        num_warps=1,
    )
