"""The taps' computations as Triton kernels of fixed shape, which a CUDA graph can record.

Nothing here depends on the host. Whether to record, the number of requests and the depth are read
from the device, so that a replayed graph measures what it replays. The plain PyTorch twin is
`kernels.TorchKernels`.

A launch costs the host more time than its work takes on the device, and in a graph it is a node
that the following ones wait for. A depth therefore takes two: one at its first attention layer and
one at its logits, plus one for each tensor that compiled code reuses in between. What waits for the
next tap is launched at the end of a graph's capture at the latest: a graph holds all of its taps,
whatever part of the drafter it is.

`gate` [2] int32, `depth` [R] int32 and `rows` [R] int64 are those of `ChainBuffers`; `depths` is
the largest chain length. A program handles one request, or a part of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
import triton
import triton.language as tl

from driftscope_probes.buffers import ChainBuffers
from driftscope_probes.guard import hook_method


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
                own_sums = sums + (request * SPLITS + part) * 3
                tl.store(own_sums, top)
                tl.store(own_sums + 1, s)
                tl.store(own_sums + 2, t)
                tl.debug_barrier()
                if tl.atomic_add(arrived + request, 1, sem="acq_rel", scope="gpu") == SPLITS - 1:
                    lane = tl.arange(0, LANES)
                    every = sums + (request * SPLITS + lane) * 3
                    is_split = lane < SPLITS
                    tops = tl.load(every, mask=is_split, other=-1e30, cache_modifier=".cg")
                    ss = tl.load(every + 1, mask=is_split, other=0.0, cache_modifier=".cg")
                    ts = tl.load(every + 2, mask=is_split, other=0.0, cache_modifier=".cg")
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


BLOCK = 4096
"""Number of elements of a row that a program handles at once."""
LOGITS_BLOCK = 2 * BLOCK
"""Number of logits that a program handles at once."""
SPLIT = 2 * LOGITS_BLOCK
"""Number of logits of a row that one program handles: its time is that of its reads one after
another."""
MOST_SPLITS = 16
OUTPUTS = 3
"""Number of outputs of a forward that one launch measures."""

_Output = tuple[str, torch.Tensor]
"""Column and tensor of what a forward returned."""

HOST, UNSEEN = 0, -1
"""Places that are no watched capture: outside of every capture, and in one whose start was not
seen."""


class Captures:
    """The captures of CUDA graphs that a process makes through torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.place = UNSEEN
        """Number of the capture in progress, from 1; UNSEEN if there is none, or none known."""
        self.before_end: list[Callable[[], None]] = []
        """Functions that complete the graph being captured; they must not raise."""
        self._begun = 0
        self._watched: Any = None

    def watch(self, module: Any) -> None:
        """Follow the captures of `module`, torch.cuda; raises AttributeError."""
        if self._watched is module:
            return
        self._watched = module
        hook_method(module, "CUDAGraph.capture_begin", self._around_begin)
        hook_method(module, "CUDAGraph.capture_end", self._around_end)

    def _around_begin(self, original: Any) -> Callable[..., Any]:
        def begin(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._begun += 1
            self.place = self._begun
            return result

        return begin

    def _around_end(self, original: Any) -> Callable[..., Any]:
        def end(*args: Any, **kwargs: Any) -> Any:
            complete, self.before_end = self.before_end, []
            for function in complete:
                function()
            self.place = UNSEEN
            return original(*args, **kwargs)

        return end


captures = Captures()


class TritonKernels:
    """Kernels in Triton; see kernels.Kernels.

    What must be measured at a depth's first attention layer or with its logits is kept until then
    and measured in one launch. If neither comes, the next call that needs its place launches it, or
    the end of the graph that is being captured. That graph gets only what is called meanwhile: what
    is kept from before would be repeated by each replay. If a graph was captured without what was
    kept for it, no chain is recorded any more: `begin` raises RuntimeError.
    """

    def __init__(self, buffers: ChainBuffers) -> None:
        self._buffers = buffers
        self._columns = buffers.layout.columns
        self._at = (buffers.gate, buffers.depth, buffers.rows, buffers.layout.depths)
        self._ints = buffers.values.view(torch.int32)
        self._on_gpu = buffers.device.type == "cuda"
        if self._on_gpu:
            with contextlib.suppress(AttributeError):  # every capture is then UNSEEN
                captures.watch(torch.cuda)
        self._place = HOST
        """Place of the previous tap, see `Captures.place`."""
        self._graph_lacks_taps = False
        self._is_open = False
        self._logits_follow = False
        """Whether outputs are known to be followed by logits: so they were at the last depth."""
        with torch.device(buffers.device):
            self._sums = torch.zeros(buffers.requests, MOST_SPLITS, 3)
            self._arrived = torch.zeros(buffers.requests, dtype=torch.int32)
        self._forget()

    def _forget(self) -> None:
        self._advances = False
        """Whether the depth is still to be advanced."""
        self._entering: torch.Tensor | None = None
        """Input of the forward in progress that is still to be measured."""
        self._outputs: list[_Output] = []
        """Outputs of the forward in progress that are still to be measured."""

    def begin(self, rows: torch.Tensor, position: torch.Tensor) -> None:
        self._enter_place()
        if self._graph_lacks_taps:
            raise RuntimeError("a CUDA graph was captured without all of driftscope's taps")
        self._forget()
        buffers, batch = self._buffers, len(rows)
        first, *others = buffers.lse.values() if buffers.lse else (buffers.values,)
        for lse in others:
            lse[:batch].fill_(torch.nan)
        clear_chain[(batch,)](
            rows,
            position,
            batch,
            buffers.gate,
            buffers.depth,
            buffers.rows,
            self._ints,
            first,
            self._columns["position"][0],
            WIDTH=buffers.layout.width,
            LSE=first[0].numel() if buffers.lse else 0,
            BLOCK=BLOCK // 4,
            num_warps=4,
        )
        self._is_open = True

    def finish(self) -> None:
        """Launch what is left; everything else is already final."""
        self._launch_all()

    def skip(self) -> None:
        self._enter_place()
        self._forget()
        if self._is_open:
            self._buffers.gate.zero_()
            self._is_open = False

    def advance(
        self, entering: torch.Tensor | None = None, *, attention_follows: bool = False
    ) -> None:
        place = self._enter_place()
        self._launch_all()
        self._advances, self._entering = True, entering
        waits = attention_follows if place == HOST else place != UNSEEN
        if not waits or not self._buffers.queries:
            self._launch_entering()

    def rms(self, x: torch.Tensor, name: str, *, fleeting: bool = False) -> None:  # noqa: ARG002
        # On the host it launches nothing else: the attention layer has done so.
        if self._enter_place() != HOST:
            self._launch_entering()
        self._rms(x, self._columns[name][0], 1, first=False)

    def rms_of_outputs(self, outputs: Sequence[_Output], *, fleeting: bool = False) -> None:  # noqa: ARG002
        place = self._enter_place()
        self._launch_entering()
        self._outputs += outputs
        if place == UNSEEN or (place == HOST and not self._logits_follow):
            self._launch_outputs()

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

    def copy_query(
        self,
        layer: str,
        query: torch.Tensor,
        lse: torch.Tensor | None = None,
        *,
        fleeting: bool = False,  # noqa: ARG002
    ) -> None:
        self._enter_place()
        self._enter(query.view(query.shape[0], -1), layer, lse)

    def keeps(self, vocabulary: int) -> bool:  # noqa: ARG002
        """Return False: measuring one depth's logits costs only a launch."""
        return False

    def confidence(self, logits: torch.Tensor, *, fleeting: bool = False) -> None:  # noqa: ARG002
        self._enter_place()
        self._launch_entering()
        self._logits_follow = True
        self._launch_outputs(logits)

    @property
    def device_bytes(self) -> int:
        """See Kernels."""
        return self._sums.nbytes + self._arrived.nbytes

    def _enter_place(self) -> int:
        """Return where a tap is called now: on the host, in a capture, or in one not watched.

        Forgets what was kept elsewhere. If a capture has ended without it, its graph lacks it.
        """
        on_host = not self._on_gpu or not torch.cuda.is_current_stream_capturing()
        place = HOST if on_host else captures.place
        if place != self._place:
            before, self._place = self._place, place
            if before > HOST and (self._advances or self._outputs):
                self._graph_lacks_taps = True
            self._forget()
            if place > HOST:
                captures.before_end.append(self._complete_graph)
        return place

    def _complete_graph(self) -> None:
        """Launch what waits in the capture that is about to end."""
        try:
            self._launch_all()
        except Exception:  # the border: the engine captures its graphs, with the probe or without
            self._graph_lacks_taps = True

    def _launch_all(self) -> None:
        self._launch_entering()
        if self._outputs:
            self._logits_follow = False  # they did not
            self._launch_outputs()

    def _launch_entering(self) -> None:
        if self._advances:
            self._enter(None, "", None)

    def _enter(self, query: torch.Tensor | None, layer: str, lse: torch.Tensor | None) -> None:
        """Do what waits for the attention layer, then keep a query."""
        buffers, nothing = self._buffers, self._buffers.values
        advances, self._advances = self._advances, False
        x, self._entering = self._entering, None
        sizes = [buffers.requests, *(len(given) for given in (x, query) if given is not None)]
        enter_forward[(min(sizes),)](
            *self._at,
            buffers.requests,
            nothing if x is None else x,
            0 if x is None else x.shape[0],
            0 if x is None else x.stride(0),
            buffers.values,
            buffers.layout.width,
            self._columns["in_rms"][0],
            nothing if query is None else query,
            0 if query is None else query.shape[0],
            0 if query is None else query.stride(0),
            nothing if query is None else buffers.queries[layer],
            nothing if lse is None else lse,
            0 if lse is None else lse.stride(0),
            nothing if lse is None else buffers.lse[layer],
            ADVANCE=advances,
            DIM=0 if x is None else x.shape[1],
            QUERY=0 if query is None else query.shape[1],
            HEADS=0 if lse is None else lse.shape[0],
            BLOCK=BLOCK,
            num_warps=8,
        )

    def _launch_outputs(self, logits: torch.Tensor | None = None) -> None:
        """Measure the outputs that are kept, the last of them together with the logits."""
        groups, self._outputs = _same_shape_groups(self._outputs), []
        last: tuple[_Output, ...] = groups.pop() if groups and logits is not None else ()
        for part in groups:
            self._leave(part, None)
        if logits is not None:
            self._leave(last, logits)

    def _leave(self, outputs: tuple[_Output, ...], logits: torch.Tensor | None) -> None:
        buffers, columns, nothing = self._buffers, self._columns, self._buffers.values
        given = [x for _, x in outputs]
        at = [columns[name][0] for name, _ in outputs]
        more = OUTPUTS - len(given)
        sizes = [len(x) for x in (*given[:1], logits) if x is not None]
        splits = 0 if logits is None else min(MOST_SPLITS, triton.cdiv(logits.shape[1], SPLIT))
        leave_forward[(min(buffers.requests, max(sizes)), splits + len(given))](
            *self._at,
            buffers.values,
            buffers.layout.width,
            *given,
            *[nothing] * more,
            *(x.stride(0) for x in given),
            *[0] * more,
            *at,
            *[0] * more,
            len(given[0]) if given else 0,
            nothing if logits is None else logits,
            0 if logits is None else logits.shape[0],
            0 if logits is None else logits.stride(0),
            0 if logits is None else logits.shape[1],
            columns["top1"][0],
            columns["entropy"][0],
            self._sums,
            self._arrived,
            COUNT=len(given),
            SPLITS=splits,
            LANES=triton.next_power_of_2(max(1, splits)),
            DIM=given[0].shape[1] if given else 1,
            BLOCK=BLOCK,
            WIDE=LOGITS_BLOCK,
            num_warps=8,
        )

    def _rms(self, x: torch.Tensor, column: int, chunks: int, *, first: bool) -> None:
        buffers: Any = self._buffers
        measure_state[(min(buffers.requests, len(x)), chunks)](
            x,
            x.stride(0),
            x.shape[0],
            buffers.gate,
            buffers.depth,
            buffers.rows,
            buffers.values,
            buffers.layout.width,
            column,
            buffers.layout.depths,
            DIM=x.shape[1] // chunks,
            FIRST=first,
            BLOCK=BLOCK,
            num_warps=8,
        )


def _same_shape_groups(outputs: Sequence[_Output]) -> list[tuple[_Output, ...]]:
    """Return outputs of one shape together, as many as one launch measures."""
    groups = (list(same) for _, same in groupby(outputs, key=lambda output: output[1].shape))
    return [
        tuple(same[first : first + OUTPUTS])
        for same in groups
        for first in range(0, len(same), OUTPUTS)
    ]
