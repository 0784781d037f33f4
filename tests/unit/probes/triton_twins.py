"""The Triton kernels against their twins in plain PyTorch; `test_triton_kernels` runs this file.

On its own: with TRITON_INTERPRET=1, which has to be there before Triton is first imported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from support.tiny_drafter import HEADS, Batch, Bench, chains_of

from driftscope.trace.records import edges_of
from driftscope.vocabulary import MASSES
from driftscope_probes import triton_kernels, triton_masses
from driftscope_probes.buffers import ChainBuffers, Layout
from driftscope_probes.drafter import AttentionKind, Drafter
from driftscope_probes.guard import Guard
from driftscope_probes.kernels import Kernels, TorchKernels
from driftscope_probes.torch_masses import ChainSlots, Score, masses
from driftscope_probes.triton_kernels import Captures, TritonKernels
from driftscope_probes.triton_masses import paged_masses

CPU = torch.device("cpu")
LAYOUT = Layout(depths=3, layers=1, aux=3)
REQUESTS = 6
QUERY = HEADS * 8


@dataclass
class Forwards:
    """Tensors that pass the taps while a chain is drafted; their addresses do not change."""

    depths: int
    tokens: int = 10
    """Rows at depth 1."""
    requests: int = 4
    """Rows at any later depth, and of the logits: padded, as a CUDA graph's are."""
    size: int = 1500
    """Size of a hidden state: more than a program handles at once."""
    vocabulary: int = 5000
    dtype: torch.dtype = torch.float32
    attention_follows: bool = True
    """Whether what enters a forward may wait for its attention layer."""

    def __post_init__(self) -> None:
        rows = [self.tokens, *[self.requests] * (self.depths - 1)]
        self.captured = torch.empty(self.tokens, 3 * self.size, dtype=self.dtype)
        self.hidden = [torch.empty(n, self.size, dtype=self.dtype) for n in rows]
        # Queries are a slice of what one product gives, and log-sum-exps are [heads, rows].
        self.qkv = [torch.empty(n, 2 * QUERY, dtype=self.dtype) for n in rows]
        self.lse = [torch.empty(HEADS, n) for n in rows]
        self.logits = [torch.empty(self.requests, self.vocabulary) for _ in rows]

    def fill(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for tensor in (self.captured, *self.hidden, *self.qkv, *self.lse, *self.logits):
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 3)

    def copy_query(self, kernels: Kernels, depth: int) -> None:
        query = self.qkv[depth][:, :QUERY].view(len(self.qkv[depth]), HEADS, -1)
        kernels.copy_query("a", query, self.lse[depth])

    def run(self, kernels: Kernels) -> None:
        kernels.rms_of_chunks(self.captured, "aux_rms", 3)
        kernels.rms_of_chunks(self.captured[:, : self.size], "aux_norm_rms", 1, 1)
        kernels.rms_of_chunks(self.hidden[0], "fc_rms", 1)
        for depth in range(self.depths):
            kernels.advance(self.hidden[depth], attention_follows=self.attention_follows)
            self.copy_query(kernels, depth)
            kernels.rms_of_outputs([("fed_rms", self.hidden[depth] * 9)])
            kernels.confidence(self.logits[depth])


def _buffers(dtype: torch.dtype = torch.float32) -> ChainBuffers:
    buffers = ChainBuffers(LAYOUT, REQUESTS, CPU)
    buffers.add_layer("a", QUERY, HEADS, dtype)
    return buffers


def _record(
    make: Callable[[ChainBuffers], Kernels], forwards: Forwards, rows: list[int]
) -> ChainBuffers:
    buffers = _buffers(forwards.dtype)
    kernels = make(buffers)
    kernels.begin(torch.tensor(rows), torch.arange(len(rows)))
    forwards.run(kernels)
    kernels.finish()
    return buffers


def _agree_on(forwards: Forwards, rows: list[int]) -> ChainBuffers:
    """Return what the kernels record of a chain, which is what their twins do."""
    found = _record(TritonKernels, forwards, rows)
    _same(found, _record(TorchKernels, forwards, rows), len(rows))
    return found


def _same(found: ChainBuffers, wanted: ChainBuffers, batch: int) -> None:
    assert torch.equal(found.values.isnan(), wanted.values.isnan())
    torch.testing.assert_close(
        found.values[:batch], wanted.values[:batch], rtol=1e-5, atol=1e-6, equal_nan=True
    )
    assert torch.equal(found.queries["a"][:batch], wanted.queries["a"][:batch])
    torch.testing.assert_close(
        found.lse["a"][:batch], wanted.lse["a"][:batch], rtol=0, atol=0, equal_nan=True
    )


def _untouched(buffers: ChainBuffers, first: int = 0) -> None:
    assert buffers.values[first:].isnan().all()
    assert not buffers.queries["a"][first:].any()
    assert buffers.lse["a"][first:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [[2, 5, 9], [7, 0, 3, 1]])
@pytest.mark.parametrize("attention_follows", [False, True])
def test_every_figure_is_the_twins(
    rows: list[int], dtype: torch.dtype, attention_follows: bool
) -> None:
    forwards = Forwards(3, dtype=dtype, attention_follows=attention_follows)
    forwards.fill(len(rows))
    found = _agree_on(forwards, rows)
    assert not found.part("fed_rms", len(rows)).isnan().any()
    _untouched(found, len(rows))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_chains_of_another_length_than_the_buffers_hold(k: int) -> None:
    forwards = Forwards(k)
    forwards.fill(k)
    found = _agree_on(forwards, [2, 5, 9])
    measured = (~found.part("in_rms", 3).isnan()).sum(1)
    assert measured.tolist() == [min(k, LAYOUT.depths)] * 3


def test_logits_as_they_come_after_a_mask() -> None:
    forwards = Forwards(1)
    forwards.fill(1)
    forwards.logits[0][:, ::2] = -torch.inf
    forwards.logits[0][1] = -torch.inf
    forwards.logits[0][1, 7] = 3.0
    found = _agree_on(forwards, [0, 1])
    assert found.part("top1", 2)[1, 0] == 1.0
    assert found.part("entropy", 2)[1, 0] == 0.0


def test_behind_a_shut_gate_nothing_is_written() -> None:
    buffers, forwards = _buffers(), Forwards(3)
    forwards.fill(0)
    kernels = TritonKernels(buffers)
    forwards.run(kernels)
    assert not buffers.depth.any()
    _untouched(buffers)
    kernels.begin(torch.arange(3), torch.arange(3))
    buffers.values.fill_(torch.nan)
    kernels.skip()
    forwards.run(kernels)
    assert not buffers.depth.any()
    _untouched(buffers)


class TorchGraph:
    """Takes the place of torch.cuda.CUDAGraph."""

    def capture_begin(self) -> None:
        pass

    def capture_end(self) -> None:
        pass


WATCHED, UNSEEN, CUT = "watched", "unseen", "cut"
"""Captures whose start and end are both seen, neither of them, or the start alone."""


class Graph:
    """A CUDA graph as the kernels see one: launches that were made once and are then repeated."""

    def __init__(
        self,
        kernels: TritonKernels,
        capture: Callable[[], None],
        monkeypatch: pytest.MonkeyPatch,
        how: str = WATCHED,
    ) -> None:
        self.launches: list[Callable[[], Any]] = []
        with monkeypatch.context() as patched:
            patched.setattr(kernels, "_on_gpu", True)
            patched.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            for name in ("enter_forward", "measure_state", "leave_forward"):
                kernel = getattr(triton_kernels, name)
                patched.setattr(triton_kernels, name, _Launcher(kernel, self.launches))
            graph = TorchGraph()
            if how != UNSEEN:
                graph.capture_begin()
            capture()
            if how == WATCHED:
                graph.capture_end()

    def replay(self) -> None:
        assert self.launches
        for launch in self.launches:
            launch()


@pytest.fixture(autouse=True)
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    """The captures of a torch whose graphs need no GPU."""
    captures, module = Captures(), SimpleNamespace(CUDAGraph=TorchGraph)
    for name in ("capture_begin", "capture_end"):  # `watch` replaces them
        monkeypatch.setattr(TorchGraph, name, getattr(TorchGraph, name))
    captures.watch(module)
    captures.watch(module)  # once
    monkeypatch.setattr(triton_kernels, "captures", captures)
    return captures


class _Launcher:
    def __init__(self, kernel: Any, launches: list[Callable[[], Any]]) -> None:
        self._kernel, self._launches = kernel, launches

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            self._launches.append(lambda: self._kernel[grid](*args, **kwargs))

        return launch


@pytest.mark.parametrize(("how", "nodes"), [(WATCHED, 2), (UNSEEN, 4)])
def test_a_replayed_graph_measures_what_it_replays(
    monkeypatch: pytest.MonkeyPatch, how: str, nodes: int
) -> None:
    """Captured with the gate shut and before any request was there, for all depths of a chain."""
    buffers, forwards = _buffers(), Forwards(3, requests=REQUESTS)
    # A graph's own results lie in tensors that stay; nothing of it runs on the host again.
    fed = [hidden * 9 for hidden in forwards.hidden]
    kernels = TritonKernels(buffers)

    def capture() -> None:
        kernels.rms_of_chunks(forwards.captured, "aux_rms", 3)
        for depth in range(3):
            kernels.advance(forwards.hidden[depth])
            forwards.copy_query(kernels, depth)
            kernels.rms_of_outputs([("fed_rms", fed[depth])])
            kernels.confidence(forwards.logits[depth])

    kernels.advance(forwards.hidden[0], attention_follows=True)  # left by a run before it
    graph = Graph(kernels, capture, monkeypatch, how)
    assert len(graph.launches) == 1 + 3 * nodes
    _untouched(buffers)
    graph.replay()
    _untouched(buffers)
    for seed, rows in enumerate(([2, 5, 9], [7, 1], [0, 3, 4, 6, 8, 9], [5])):
        forwards.fill(seed)
        for hidden, out in zip(forwards.hidden, fed, strict=True):
            out.copy_(hidden * 9)
        wanted = _record(TorchKernels, forwards, rows)
        wanted.part("aux_norm_rms", REQUESTS).fill_(torch.nan)
        wanted.part("fc_rms", REQUESTS).fill_(torch.nan)
        buffers.values.fill_(torch.nan)
        kernels.begin(torch.tensor(rows), torch.arange(len(rows)))
        graph.replay()
        kernels.finish()
        _same(buffers, wanted, len(rows))
        # A step that is passed by replays the same graph.
        before = buffers.values.clone(), buffers.queries["a"].clone()
        kernels.skip()
        forwards.fill(100 + seed)
        graph.replay()
        assert torch.equal(buffers.values.nan_to_num(), before[0].nan_to_num())
        assert torch.equal(buffers.queries["a"], before[1])


def test_a_graph_that_holds_only_a_piece_of_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two pieces Python runs the attention layer, but not yet during the capture."""
    buffers, forwards = _buffers(), Forwards(3, requests=REQUESTS)
    kernels = TritonKernels(buffers)
    state = torch.empty_like(forwards.hidden[0])

    def forward(depth: int, piece: Callable[[], None], *, attention: bool) -> None:
        kernels.advance(forwards.hidden[depth], attention_follows=True)
        if attention:
            forwards.copy_query(kernels, depth)
        state[: len(forwards.hidden[depth])] = forwards.hidden[depth] * 9
        piece()
        kernels.rms_of_outputs([("fed_rms", forwards.hidden[depth] * 4)])

    forward(0, lambda: kernels.rms(state, "prenorm_rms"), attention=False)
    kernels.confidence(forwards.logits[0])
    graphs = []

    def capture() -> None:
        graphs.append(Graph(kernels, lambda: kernels.rms(state, "prenorm_rms"), monkeypatch))

    forward(0, capture, attention=False)
    (graph,) = graphs
    assert len(graph.launches) == 1
    assert not buffers.depth.any()
    for seed, rows in enumerate(([2, 5, 9], [7, 1])):
        forwards.fill(seed)
        buffers.values.fill_(torch.nan)
        found, wanted = kernels, TorchKernels(_buffers())
        found.begin(torch.tensor(rows), torch.arange(len(rows)))
        wanted.begin(torch.tensor(rows), torch.arange(len(rows)))
        for depth in range(3):
            forward(depth, graph.replay, attention=True)
            found.confidence(forwards.logits[depth])
            hidden = forwards.hidden[depth]
            wanted.advance(hidden)
            forwards.copy_query(wanted, depth)
            wanted.rms(hidden * 9, "prenorm_rms")
            wanted.rms_of_outputs([("fed_rms", hidden * 4)])
            wanted.confidence(forwards.logits[depth])
        found.finish()
        wanted.finish()
        _same(buffers, wanted._buffers, len(rows))


def test_a_graph_of_the_forward_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python sees the forward begin and its logits, and the graph holds what lies between."""
    buffers, forwards = _buffers(), Forwards(3, requests=REQUESTS)
    kernels = TritonKernels(buffers)
    # One graph for depth 1, one for the later depths, which share their tensors.
    hidden = {0: forwards.hidden[0], 1: forwards.hidden[1]}
    fed = {depth: x * 9 for depth, x in hidden.items()}
    kernels.advance(hidden[0], attention_follows=True)  # the mode is not known at first
    kernels.rms_of_outputs([("fed_rms", fed[0])])
    kernels.confidence(forwards.logits[0])

    def inside(depth: int) -> None:
        forwards.copy_query(kernels, depth)
        kernels.rms_of_outputs([("fed_rms", fed[depth])])

    graphs = {}
    for depth in hidden:
        kernels.advance(hidden[depth], attention_follows=True)
        graphs[depth] = Graph(kernels, functools.partial(inside, depth), monkeypatch)
    for seed, rows in enumerate(([2, 5, 9], [7, 1])):
        forwards.fill(seed)
        buffers.values.fill_(torch.nan)
        wanted = TorchKernels(_buffers())
        for twin in (kernels, wanted):
            twin.begin(torch.tensor(rows), torch.arange(len(rows)))
        for depth in range(3):
            at = min(depth, 1)
            hidden[at].mul_(1 + depth)
            fed[at].copy_(hidden[at] * 9)
            for twin in (kernels, wanted):
                twin.advance(hidden[at], attention_follows=False)
            graphs[at].replay()
            forwards.copy_query(wanted, at)
            wanted.rms_of_outputs([("fed_rms", fed[at].clone())])
            for twin in (kernels, wanted):
                twin.confidence(forwards.logits[depth])
        kernels.finish()
        wanted.finish()
        _same(buffers, wanted._buffers, len(rows))


@pytest.mark.parametrize("ends_before", ["query", "logits"])
def test_a_graph_that_ends_between_two_taps_holds_what_came_before(
    monkeypatch: pytest.MonkeyPatch, ends_before: str
) -> None:
    buffers, forwards = _buffers(), Forwards(1, requests=REQUESTS)
    kernels, rows = TritonKernels(buffers), [2, 5, 9]
    taps: list[Callable[[TritonKernels | TorchKernels], None]] = [
        lambda twin: twin.advance(forwards.hidden[0]),
        lambda twin: forwards.copy_query(twin, 0),
        lambda twin: twin.rms_of_outputs([("fed_rms", forwards.hidden[0])]),
        lambda twin: twin.confidence(forwards.logits[0]),
    ]
    cut = 1 if ends_before == "query" else 3

    def capture() -> None:
        for tap in taps[:cut]:
            tap(kernels)

    graph = Graph(kernels, capture, monkeypatch)
    forwards.fill(1)
    wanted = TorchKernels(_buffers())
    for twin in (kernels, wanted):
        twin.begin(torch.tensor(rows), torch.arange(3))
    for tap in taps:
        tap(wanted)
    graph.replay()
    for tap in taps[cut:]:
        tap(kernels)
    for twin in (kernels, wanted):
        twin.finish()
    _same(buffers, wanted._buffers, 3)


@pytest.mark.parametrize("skips", [False, True])
def test_after_a_graph_without_all_taps_no_chain_is_recorded(
    monkeypatch: pytest.MonkeyPatch, skips: bool
) -> None:
    """Its end was not seen, so that it lacks what waited for it."""
    forwards = Forwards(1, requests=REQUESTS)
    kernels = TritonKernels(_buffers())
    Graph(kernels, lambda: kernels.advance(forwards.hidden[0]), monkeypatch, CUT)
    if skips:
        kernels.skip()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="without all of driftscope's taps"):
            kernels.begin(torch.arange(3), torch.arange(3))


def test_a_capture_ends_even_if_a_tap_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    forwards = Forwards(1, requests=REQUESTS)
    kernels = TritonKernels(_buffers())

    def capture() -> None:
        kernels.advance(forwards.hidden[0])
        monkeypatch.setattr(kernels, "_buffers", None)

    Graph(kernels, capture, monkeypatch)
    with pytest.raises(RuntimeError, match="without all of driftscope's taps"):
        kernels.begin(torch.arange(3), torch.arange(3))


def test_a_long_row_of_logits_is_split() -> None:
    """Each program takes a part, one of which holds nothing that may be drafted."""
    splits = 5
    forwards = Forwards(2, vocabulary=splits * triton_kernels.SPLIT - 77)
    forwards.fill(3)
    forwards.logits[0][:, : triton_kernels.SPLIT] = -torch.inf
    forwards.logits[1][1] = -torch.inf
    forwards.logits[1][1, -1] = 2.0
    for _ in range(2):  # the count of programs that have arrived begins anew
        found = _agree_on(forwards, [2, 5, 9])
    assert found.part("top1", 3)[1, 1] == 1.0


@dataclass(frozen=True, kw_only=True)
class Paged:
    """B chains whose keys lie in pages in disorder."""

    positions: tuple[int, ...] = (700, 5, 350)
    prompts: tuple[int, ...] = (640, 4, 30)
    k: int = 3
    depths: int = 3
    """Depths of the buffers that hold the queries."""
    kind: AttentionKind = AttentionKind(heads=4, kv_heads=2, head_size=16, scale=0.3)  # noqa: RUF009
    sink_slots: tuple[int, ...] = (0, 1, 2, 3)
    page: int = 16
    dtype: torch.dtype = torch.float32
    max_context: int = 0
    """0: the longest context."""
    longest: int = 5
    """Largest chain length of the run, which the bins by distance are made for."""

    @property
    def chains(self) -> ChainSlots:
        return chains_of(self.k, self.positions, self.prompts, self.sink_slots)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [B, depths, size], pages as vLLM's cache lies, block table."""
        generator = torch.Generator().manual_seed(5)
        kind, batch = self.kind, len(self.positions)
        blocks = -(-(max(self.positions) + self.k) // self.page)
        cache = torch.randn(
            batch * blocks + 1, kind.kv_heads, self.page, 2 * kind.head_size, generator=generator
        )
        table = torch.randperm(batch * blocks, generator=generator).view(batch, blocks).int()
        for b, position in enumerate(self.positions):
            table[b, -(-(position + self.k) // self.page) :] = -1
        queries = torch.randn(batch, self.depths, kind.heads * kind.head_size, generator=generator)
        pages = cache.to(self.dtype).transpose(1, 2)[..., : kind.head_size]
        return queries.to(self.dtype), pages, table

    def keys(self, pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """[B, kv_heads, head_size, slots]."""
        return pages[table.long()].flatten(1, 2).permute(0, 2, 3, 1).float()

    def bins(self) -> torch.Tensor:
        """[B, K, bins], not filled."""
        shape = (len(self.positions), self.k, len(edges_of(self.longest)))
        return torch.full(shape, torch.nan)

    def wanted(self, distances: torch.Tensor | None = None) -> torch.Tensor:
        """[B, K, heads, 5] by the twin."""
        queries, pages, table = self.tensors()
        keys = self.keys(pages, table)
        queries = queries[:, : self.chains.k]
        score: Score = lambda q: (q @ keys)[:, None]  # noqa: E731
        return masses(queries, score, self.chains, self.kind, distances)

    def lse(self) -> torch.Tensor:
        """[B, K, heads] as the served kernel has it."""
        queries, pages, table = self.tensors()
        keys, kind, k = self.keys(pages, table), self.kind, self.k
        q = queries[:, :k].float().view(len(queries), k, kind.heads, kind.head_size) * kind.scale
        shared = keys.repeat_interleave(kind.heads // kind.kv_heads, 1)
        scores = torch.einsum("bkhs,bhsn->bkhn", q, shared)
        if kind.softcap:
            scores = kind.softcap * torch.tanh(scores / kind.softcap)
        slot, own = torch.arange(keys.shape[-1]), self.chains.position[:, None] + torch.arange(k)
        hidden = slot > own[..., None]
        if kind.window is not None:
            hidden |= slot <= own[..., None] - kind.window
        return scores.masked_fill(hidden[:, :, None], -torch.inf).logsumexp(-1)

    def found(
        self,
        *,
        lse: bool = False,
        pages: torch.Tensor | None = None,
        distances: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[B, K, 5] by the kernel."""
        queries, own_pages, table = self.tensors()
        batch = len(queries)
        # As in a row of the buffers: other layers' numbers lie between.
        out = torch.full((batch, self.depths, 2, 5), -7.0)
        paged_masses(
            queries[:, : self.k],
            own_pages if pages is None else pages,
            table,
            self.chains,
            self.kind,
            out[:, : self.k, 1],
            max_context=self.max_context or max(self.positions) + 1,
            lse=self.lse() if lse else None,
            distances=distances,
        )
        assert (out[:, :, 0] == -7.0).all(), "another layer's"
        assert (out[:, self.k :] == -7.0).all(), "depths that were not drafted"
        return out[:, : self.k, 1]


def _agree(case: Paged, **how: Any) -> None:
    """Masses by class and by distance are the twin's."""
    room = torch.full((*case.bins().shape[:2], 2, case.bins().shape[-1]), torch.nan)
    found, bins = room[:, :, 1], case.bins()
    by_class = case.found(**how, distances=found)
    wanted = case.wanted(bins).mean(2)
    torch.testing.assert_close(by_class, wanted, atol=2e-6, rtol=0, equal_nan=True)
    torch.testing.assert_close(found, bins, atol=2e-6, rtol=0)
    assert room[:, :, 0].isnan().all(), "another layer's"


PLAIN = Paged()
KINDS = {
    "plain": PLAIN,
    "window": replace(PLAIN, kind=replace(PLAIN.kind, window=40)),
    "wide window": replace(PLAIN, kind=replace(PLAIN.kind, window=352)),
    "soft cap": replace(PLAIN, kind=replace(PLAIN.kind, softcap=2.0)),
    "odd head": replace(PLAIN, kind=AttentionKind(heads=6, kv_heads=1, head_size=24, scale=0.2)),
    "prompt shorter": replace(PLAIN, prompts=(20, 1, 300)),
    "long chain": replace(PLAIN, k=5, depths=5),
    "shorter than the buffers": replace(PLAIN, k=2, depths=4),
    "one slot is the sink": replace(PLAIN, sink_slots=(0,)),
    "sink set of any slots": replace(PLAIN, sink_slots=(1, 64, 300, 655)),
    "sink set at the end": replace(PLAIN, prompts=(10, 2, 340), sink_slots=(3, 699)),
    "no sink": replace(PLAIN, sink_slots=()),
    "no sink in a window": replace(PLAIN, sink_slots=(), kind=replace(PLAIN.kind, window=40)),
    "larger pages": replace(PLAIN, page=64),
    # Not bfloat16, whose products the interpreter gets wrong.
    "half precision": replace(PLAIN, dtype=torch.float16),
    "an upper bound of the context": replace(PLAIN, max_context=1500),
}


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """In how many splits each pass reads its slots."""
    seen: list[int] = []
    kernel: Any = triton_masses._partial

    class Seen:
        def __getitem__(self, grid: Any) -> Any:
            seen.append(grid[2])
            return kernel[grid]

    monkeypatch.setattr(triton_masses, "_partial", Seen())
    return seen


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_masses_from_pages_are_the_twins(kind: str, lse: bool, splits: list[int]) -> None:
    _agree(KINDS[kind], lse=lse)
    assert lse or min(splits) > 1, "joined from several splits"


def test_a_learned_bias_is_a_class_of_its_own() -> None:
    biased = replace(PLAIN, kind=replace(PLAIN.kind, sinks=torch.linspace(-1.0, 6.0, 4)))
    found = biased.found()
    torch.testing.assert_close(found, biased.wanted().mean(2), atol=2e-6, rtol=0, equal_nan=True)
    assert (found[..., MASSES.index("null_mass")] > 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(3, 3), atol=1e-5, rtol=0)
    _agree(biased)


@pytest.mark.parametrize(
    ("prompts", "unread"),
    # The longer class but for the tiles that it shares with others.
    [((640, 640), (64, 640)), ((20, 20), (64, 640))],
)
def test_with_the_log_sum_exp_the_longer_class_is_not_read(
    prompts: tuple[int, int], unread: tuple[int, int]
) -> None:
    case = Paged(positions=(700, 699), prompts=prompts)
    _, pages, table = case.tensors()
    spoiled = pages.clone()
    slot = torch.arange(*unread)
    spoiled[table[:, slot // case.page].long(), slot % case.page] = torch.nan
    bins = case.bins()
    found = case.found(lse=True, pages=spoiled, distances=bins)
    assert bins.isfinite().all()
    torch.testing.assert_close(found, case.wanted().mean(2), atol=2e-6, rtol=0, equal_nan=True)
    assert case.found(pages=spoiled).isnan().any(), "the other way reads every key"


@pytest.mark.parametrize("longest", [3, 8, 40])
@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("prompts", [(640, 640), (20, 20)])
def test_slots_that_bins_reach_are_read_of_the_longer_class_too(
    longest: int, lse: bool, prompts: tuple[int, int]
) -> None:
    """The last of 40 single distances, and the bins after it, lie within the longer class."""
    _agree(Paged(positions=(700, 699), prompts=prompts, longest=longest), lse=lse)


class TritonBench(Bench):
    make_kernels = TritonKernels
    use_triton = True


@pytest.mark.parametrize("flags", [{}, {"fc_norm": True, "norm_output": True}])
def test_a_drafters_chain_is_the_one_computed_by_hand(
    make_drafter: Callable[..., Drafter], flags: dict[str, bool]
) -> None:
    errors: list[Any] = []
    writer: Any = SimpleNamespace(count_error=lambda *error: errors.append(error))
    bench = TritonBench(make_drafter(**flags), Guard(writer), in_graph=True)
    batch = Batch(bench.proposer)
    bench.record(batch)
    assert errors == []
    bench.figures_are_by_hand(batch)


assert triton.knobs.runtime.interpret, "set TRITON_INTERPRET=1"
