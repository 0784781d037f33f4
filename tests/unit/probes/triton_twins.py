"""The Triton kernels against their twins in plain PyTorch; `test_triton_kernels` runs this file.

On its own: with TRITON_INTERPRET=1, which has to be there before Triton is first imported.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from support.mass_cases import MassCase
from support.tiny_drafter import HEADS, Batch, Bench, tiny_drafter

from driftscope.vocabulary import MASSES
from driftscope_probes import triton_kernels, triton_masses
from driftscope_probes.buffers import ChainBuffers, Layout
from driftscope_probes.guard import Guard
from driftscope_probes.kernels import Kernels, TorchKernels
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


@contextlib.contextmanager
def _compared(kernels: TritonKernels, rows: list[int]) -> Iterator[TorchKernels]:
    """Begin a chain with the kernels and with their twins, and end it with equal figures."""
    found = kernels._buffers
    wanted = _buffers(found.queries["a"].dtype)
    twins, batch = TorchKernels(wanted), len(rows)
    found.values.fill_(torch.nan)
    for each in (kernels, twins):
        each.begin(torch.tensor(rows), torch.arange(batch))
    yield twins
    for each in (kernels, twins):
        each.finish()
    assert torch.equal(found.values.isnan(), wanted.values.isnan())
    torch.testing.assert_close(
        found.values[:batch], wanted.values[:batch], rtol=1e-5, atol=1e-6, equal_nan=True
    )
    assert torch.equal(found.queries["a"][:batch], wanted.queries["a"][:batch])
    torch.testing.assert_close(
        found.lse["a"][:batch], wanted.lse["a"][:batch], rtol=0, atol=0, equal_nan=True
    )


def _agree_on(forwards: Forwards, rows: list[int]) -> ChainBuffers:
    """Return what the kernels record of a chain, which is what their twins do."""
    kernels = TritonKernels(_buffers(forwards.dtype))
    with _compared(kernels, rows) as twins:
        forwards.run(kernels)
        forwards.run(twins)
    return kernels._buffers


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

    def taps(twin: Kernels) -> None:
        twin.rms_of_chunks(forwards.captured, "aux_rms", 3)
        for depth in range(3):
            twin.advance(forwards.hidden[depth])
            forwards.copy_query(twin, depth)
            twin.rms_of_outputs([("fed_rms", fed[depth])])
            twin.confidence(forwards.logits[depth])

    kernels.advance(forwards.hidden[0], attention_follows=True)  # left by a run before it
    graph = Graph(kernels, lambda: taps(kernels), monkeypatch, how)
    assert len(graph.launches) == 1 + 3 * nodes
    _untouched(buffers)
    graph.replay()
    _untouched(buffers)
    for seed, rows in enumerate(([2, 5, 9], [7, 1], [0, 3, 4, 6, 8, 9], [5])):
        forwards.fill(seed)
        for hidden, out in zip(forwards.hidden, fed, strict=True):
            out.copy_(hidden * 9)
        with _compared(kernels, rows) as twins:
            graph.replay()
            taps(twins)
        # A step that is passed by replays the same graph.
        before = buffers.values.clone(), buffers.queries["a"].clone()
        kernels.skip()
        forwards.fill(100 + seed)
        graph.replay()
        assert torch.equal(buffers.values.nan_to_num(), before[0].nan_to_num())
        assert torch.equal(buffers.queries["a"], before[1])


def test_a_graph_that_holds_only_a_piece_of_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two pieces Python runs the attention layer, but not yet during the capture."""
    forwards, kernels = Forwards(3, requests=REQUESTS), TritonKernels(_buffers())
    state = torch.empty_like(forwards.hidden[0])

    def forward(
        twin: Kernels, depth: int, piece: Callable[[], Any], *, attention: bool = True
    ) -> None:
        hidden = forwards.hidden[depth]
        twin.advance(hidden, attention_follows=True)
        if attention:
            forwards.copy_query(twin, depth)
        state[: len(hidden)] = hidden * 9
        piece()
        twin.rms_of_outputs([("fed_rms", hidden * 4)])

    tap = functools.partial(kernels.rms, state, "prenorm_rms")
    forward(kernels, 0, tap, attention=False)
    kernels.confidence(forwards.logits[0])
    graphs = list[Graph]()
    capture = lambda: graphs.append(Graph(kernels, tap, monkeypatch))  # noqa: E731
    forward(kernels, 0, capture, attention=False)
    (graph,) = graphs
    assert len(graph.launches) == 1
    assert not kernels._buffers.depth.any()
    for seed, rows in enumerate(([2, 5, 9], [7, 1])):
        forwards.fill(seed)
        with _compared(kernels, rows) as twins:
            for depth in range(3):
                forward(kernels, depth, graph.replay)
                own = forwards.hidden[depth] * 9  # the twin measures it later
                forward(twins, depth, functools.partial(twins.rms, own, "prenorm_rms"))
                for twin in (kernels, twins):
                    twin.confidence(forwards.logits[depth])


def test_a_graph_of_the_forward_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python sees the forward begin and its logits, and the graph holds what lies between."""
    forwards, kernels = Forwards(3, requests=REQUESTS), TritonKernels(_buffers())
    # One graph for depth 1, one for the later depths, which share their tensors.
    hidden = forwards.hidden[:2]
    fed = [x * 9 for x in hidden]
    kernels.advance(hidden[0], attention_follows=True)  # the mode is not known at first
    kernels.rms_of_outputs([("fed_rms", fed[0])])
    kernels.confidence(forwards.logits[0])

    def inside(depth: int) -> None:
        forwards.copy_query(kernels, depth)
        kernels.rms_of_outputs([("fed_rms", fed[depth])])

    graphs = []
    for depth, entering in enumerate(hidden):
        kernels.advance(entering, attention_follows=True)
        graphs.append(Graph(kernels, functools.partial(inside, depth), monkeypatch))
    for seed, rows in enumerate(([2, 5, 9], [7, 1])):
        forwards.fill(seed)
        with _compared(kernels, rows) as twins:
            for depth in range(3):
                at = min(depth, 1)
                hidden[at].mul_(1 + depth)
                fed[at].copy_(hidden[at] * 9)
                for twin in (kernels, twins):
                    twin.advance(hidden[at], attention_follows=False)
                graphs[at].replay()
                forwards.copy_query(twins, at)
                twins.rms_of_outputs([("fed_rms", fed[at].clone())])
                for twin in (kernels, twins):
                    twin.confidence(forwards.logits[depth])


@pytest.mark.parametrize("cut", [1, 3], ids=["query", "logits"])
def test_a_graph_that_ends_between_two_taps_holds_what_came_before(
    monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    forwards, kernels = Forwards(1, requests=REQUESTS), TritonKernels(_buffers())
    taps: list[Callable[[Kernels], None]] = [
        lambda twin: twin.advance(forwards.hidden[0]),
        lambda twin: forwards.copy_query(twin, 0),
        lambda twin: twin.rms_of_outputs([("fed_rms", forwards.hidden[0])]),
        lambda twin: twin.confidence(forwards.logits[0]),
    ]

    def run(twin: Kernels, some: slice) -> None:
        for tap in taps[some]:
            tap(twin)

    graph = Graph(kernels, lambda: run(kernels, slice(cut)), monkeypatch)
    forwards.fill(1)
    with _compared(kernels, [2, 5, 9]) as twins:
        run(twins, slice(None))
        graph.replay()
        run(kernels, slice(cut, None))


@pytest.mark.parametrize("how", ["cut", "skips", "fails"])
def test_after_a_graph_without_all_taps_no_chain_is_recorded(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its end was not seen, or a tap failed, so that it lacks what waited for it."""
    forwards, kernels = Forwards(1, requests=REQUESTS), TritonKernels(_buffers())

    def capture() -> None:
        kernels.advance(forwards.hidden[0])
        if how == "fails":
            monkeypatch.setattr(kernels, "_buffers", None)

    Graph(kernels, capture, monkeypatch, WATCHED if how == "fails" else CUT)
    if how == "skips":
        kernels.skip()
    for _ in range(2):
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
class Paged(MassCase):
    """B chains whose keys lie in pages in disorder."""

    positions: tuple[int, ...] = (700, 5, 350)
    prompts: tuple[int, ...] = (640, 4, 30)
    size: int = 16
    depths: int = 3
    sharpness: float = 1.2
    longest: int = 5
    page: int = 16
    max_context: int = 0
    """0: the longest context."""

    def pages(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Pages as vLLM's cache lies, and the block table."""
        generator, (keys, _) = torch.Generator().manual_seed(5), self.tensors()
        batch, blocks = len(keys), -(-keys.shape[-1] // self.page)
        shape = (batch * blocks + 1, self.kv_heads, self.page, 2 * self.size)
        cache = torch.randn(shape, generator=generator).to(self.dtype)
        pages = cache.transpose(1, 2)[..., : self.size]
        table = torch.randperm(batch * blocks, generator=generator).view(batch, blocks).int()
        for b, position in enumerate(self.positions):
            slot = torch.arange(position + self.depths)
            block = table[b, slot // self.page].long()
            pages[block, slot % self.page] = keys[b][..., slot].permute(2, 0, 1)
            table[b, -(-len(slot) // self.page) :] = -1
        return pages, table

    def found(
        self,
        *,
        lse: bool = False,
        pages: torch.Tensor | None = None,
        distances: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[B, K, 5] by the kernel; `lse`: given that of each head, as the served kernel has it."""
        (_, queries), (own_pages, table), k = self.tensors(), self.pages(), self.depths
        # Buffers hold longer chains; as in their rows, other layers' numbers lie between.
        held = torch.nn.functional.pad(queries.flatten(2), (0, 0, 0, 1), value=7.0)
        out = torch.full((len(queries), k + 1, 2, 5), -7.0)
        sums = [
            self.scores(b, depth).logsumexp(-1)
            for b in range(len(queries))
            for depth in range(1, k + 1)
        ]
        paged_masses(
            held[:, :k],
            own_pages if pages is None else pages,
            table,
            self.chains,
            self.kind,
            out[:, :k, 1],
            max_context=self.max_context or max(self.positions) + 1,
            lse=torch.stack(sums).float().view(-1, k, self.heads) if lse else None,
            distances=distances,
        )
        assert (out[:, :, 0] == -7.0).all(), "another layer's"
        assert (out[:, k:] == -7.0).all(), "depths that were not drafted"
        return out[:, :k, 1]


def _agree(case: Paged, **how: Any) -> torch.Tensor:
    """Return masses by class, which are the twin's, and so are those by distance."""
    bins = case.bins()
    room = torch.full((*bins.shape[:2], 2, bins.shape[-1]), torch.nan)
    found = case.found(**how, distances=room[:, :, 1])
    wanted = case.measured(distances=bins).mean(2)
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=0, equal_nan=True)
    torch.testing.assert_close(room[:, :, 1], bins, atol=2e-6, rtol=0)
    assert room[:, :, 0].isnan().all(), "another layer's"
    return found


PLAIN = Paged()
KINDS = {
    "plain": PLAIN,
    "window": replace(PLAIN, window=40),
    "wide window": replace(PLAIN, window=352),
    "soft cap": replace(PLAIN, softcap=2.0),
    "odd head": replace(PLAIN, heads=6, kv_heads=1, size=24),
    "prompt shorter": replace(PLAIN, prompts=(20, 1, 300)),
    "long chain": replace(PLAIN, depths=5),
    "short chain": replace(PLAIN, depths=2),
    "one slot is the sink": replace(PLAIN, sink_slots=(0,)),
    "sink set of any slots": replace(PLAIN, sink_slots=(1, 64, 300, 655)),
    "sink set at the end": replace(PLAIN, prompts=(10, 2, 340), sink_slots=(3, 699)),
    "no sink": replace(PLAIN, sink_slots=()),
    "no sink in a window": replace(PLAIN, sink_slots=(), window=40),
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
    found = _agree(replace(PLAIN, bias=True))
    assert (found[..., MASSES.index("null_mass")] > 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(3, 3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("prompts", [(640, 640), (20, 20)])
def test_with_the_log_sum_exp_the_longer_class_is_not_read(prompts: tuple[int, int]) -> None:
    """The slots from 64 to 639 are those of the longer class that share no tile with others."""
    case = Paged(positions=(700, 699), prompts=prompts)
    pages, table = case.pages()
    spoiled, slot, bins = pages.clone(), torch.arange(64, 640), case.bins()
    spoiled[table[:, slot // case.page].long(), slot % case.page] = torch.nan
    found = case.found(lse=True, pages=spoiled, distances=bins)
    assert bins.isfinite().all()
    wanted = case.measured().mean(2)
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=0, equal_nan=True)
    assert case.found(pages=spoiled).isnan().any(), "the other way reads every key"


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("prompts", [(640, 640), (20, 20)])
def test_slots_that_bins_reach_are_read_of_the_longer_class_too(
    lse: bool, prompts: tuple[int, int]
) -> None:
    """The last of 40 single distances, and the bins after it, lie within the longer class."""
    _agree(Paged(positions=(700, 699), prompts=prompts, longest=40), lse=lse)


class TritonBench(Bench):
    make_kernels = TritonKernels
    use_triton = True


@pytest.mark.parametrize("flags", [{}, {"fc_norm": True, "norm_output": True}])
def test_a_drafters_chain_is_the_one_computed_by_hand(flags: dict[str, bool]) -> None:
    errors: list[Any] = []
    writer: Any = SimpleNamespace(count_error=lambda *error: errors.append(error))
    bench = TritonBench(tiny_drafter(**flags), Guard(writer), in_graph=True)
    batch = Batch(bench.proposer)
    bench.record(batch)
    assert errors == []
    bench.figures_are_by_hand(batch)


assert triton.knobs.runtime.interpret, "set TRITON_INTERPRET=1"
