"""The hooks on a drafter: each figure against one computed by hand in float64, and a clean exit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_drafter import HIDDEN, LAYERS, SINKS, Batch, Bench, by_hand
from torch import nn

from driftscope.trace.status import read_statuses
from driftscope.trace.writer import TraceWriter
from driftscope.vocabulary import BY_DEPTH as PER_DEPTH
from driftscope.vocabulary import MASSES
from driftscope_probes.buffers import ChainBuffers
from driftscope_probes.drafter import Drafter
from driftscope_probes.guard import Guard
from driftscope_probes.kernels import Kernels, TorchKernels
from driftscope_probes.taps import tap_residual
from driftscope_probes.vllm.drafter import forward_mode

FLAGS: dict[str, dict[str, bool]] = {
    "eagle3": {},
    "eagle31": {"fc_norm": True, "norm_output": True},
    "norm_before_fc": {"norm_before_fc": True},
    "both_norms": {"norm_before_fc": True, "fc_norm": True},
}


@pytest.fixture(params=["torch", "numba"])
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    make: Callable[[ChainBuffers], Kernels] = TorchKernels
    if request.param == "numba":
        make = pytest.importorskip("driftscope_probes.cpu_kernels").CompiledKernels
    monkeypatch.setattr(Bench, "make_kernels", make)


@pytest.fixture
def guard(tmp_path: Path, _kernels: None) -> Iterator[Guard]:
    writer = TraceWriter(tmp_path / "run", source="worker0-1")
    yield Guard(writer)
    writer.close()
    (status,) = read_statuses(tmp_path / "run")
    assert status.errors == {}


@pytest.fixture
def bench_of(make_drafter: Callable[..., Drafter], guard: Guard) -> Callable[..., Bench]:
    """Return a bench with a drafter of these flags."""
    return lambda *, in_graph=False, **flags: Bench(make_drafter(**flags), guard, in_graph=in_graph)


@pytest.fixture(params=sorted(FLAGS))
def drafter(request: pytest.FixtureRequest, make_drafter: Callable[..., Drafter]) -> Drafter:
    return make_drafter(**FLAGS[request.param])


def test_every_figure_is_the_one_computed_by_hand_and_the_draft_stays(
    drafter: Drafter, guard: Guard
) -> None:
    without = Batch(SimpleNamespace(model=drafter.model)).draft()
    bench = Bench(drafter, guard)
    batch = Batch(bench.proposer)
    assert torch.equal(Batch(bench.proposer).draft(), without), "between recorded steps"
    assert bench.buffers.values.isnan().all(), "where nothing is measured"
    assert torch.equal(bench.record(batch), without), "while recording"
    bench.figures_are_by_hand(batch)


def test_what_the_drafter_does_not_have_stays_unmeasured(bench_of: Callable[..., Bench]) -> None:
    bench = bench_of()
    bench.record(Batch(bench.proposer))
    assert np.isnan(bench.found("aux_norm_rms")).all()
    # Without norm_output what is fed on is the residual before the norm; with it, that after.
    np.testing.assert_array_equal(bench.found("prenorm_rms"), bench.found("fed_rms"))
    bench = bench_of(norm_output=True)
    bench.record(Batch(bench.proposer))
    np.testing.assert_array_equal(bench.found("postnorm_rms"), bench.found("fed_rms"))
    assert (np.abs(bench.found("prenorm_rms") - bench.found("fed_rms")) > 1e-3).all()


def test_a_chain_shorter_than_the_longest_leaves_the_other_depths(
    bench_of: Callable[..., Bench],
) -> None:
    bench = bench_of(k=5)
    batch = Batch(bench.proposer, k=3)
    bench.record(batch)
    for b, wanted in enumerate(by_hand(batch, bench.drafter.model, SINKS)):
        for name in PER_DEPTH:
            np.testing.assert_allclose(bench.found(name)[b, :3], wanted[name], rtol=1e-5)
            assert bench.buffers.part(name, 2)[b, 3:].isnan().all()
        masses = bench.buffers.part("masses", 2)[b].view(5, len(LAYERS), len(MASSES))
        np.testing.assert_allclose(masses[:3], wanted["masses"].mean(2), atol=1e-6)
        assert masses[3:].isnan().all()
    assert bench.buffers.values[2:].isnan().all(), "rows of requests that are not there"


@pytest.mark.parametrize("not_kept", ["sampled", "many"])
def test_what_is_noted_of_a_chain_is_what_is_seen_at_once(
    make_drafter: Callable[..., Drafter],
    guard: Guard,
    not_kept: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Logits that are sampled from change where they lie; many are not to wait in memory."""
    drafter = replace(make_drafter(k=5), samples=False)
    noted = Bench(drafter, guard)
    noted.record(Batch(noted.proposer, k=5))
    assert noted.noted == 0, "before it is known how many logits there are"
    noted.record(Batch(noted.proposer, k=5))
    assert noted.noted == 1 + 4 + 4 * 5, "of the captured states, the first forward and later ones"
    assert not noted.taps.switch.notes, "or the tensors would last until the next chain"
    noted.taps.detach()
    if not_kept == "sampled":
        drafter = replace(drafter, samples=True)
    else:
        monkeypatch.setattr("driftscope_probes.kernels.LOGITS_AT_ONCE", 0)
    at_once = Bench(drafter, guard)
    for _ in range(2):
        at_once.record(Batch(at_once.proposer, k=5))
    assert at_once.noted == 0
    torch.testing.assert_close(at_once.buffers.values, noted.buffers.values, equal_nan=True)


@pytest.mark.parametrize("in_graph", [False, True])
def test_warm_up_and_steps_that_are_not_recorded_write_nothing(
    bench_of: Callable[..., Bench], in_graph: bool
) -> None:
    bench = bench_of(in_graph=in_graph)
    # Before the first step hooks run if a graph is to hold them, behind a shut gate.
    assert bench.taps.switch.should_record is in_graph
    Batch(bench.proposer).draft()
    assert len(bench.taps.switch.forwards) == (3 if in_graph else 0)
    bench.taps.switch.serving()
    assert not bench.taps.switch.should_record
    Batch(bench.proposer).draft()
    assert bench.taps.switch.forwards == []
    assert bench.buffers.values.isnan().all()
    assert not any(queries.any() for queries in bench.buffers.queries.values())


def test_a_profiling_pass_without_attention_metadata_is_survived(
    bench_of: Callable[..., Bench],
) -> None:
    bench = bench_of(in_graph=True)
    out, _ = bench.proposer.model(hidden_states=torch.ones(4, HIDDEN), meta=None)
    assert out.shape == (4, HIDDEN)


def _attributes(model: torch.nn.Module) -> list[Any]:
    """Return what may be changed on a drafter: attributes and hooks of every module, and its
    attention."""
    found: list[Any] = []
    for name, module in model.named_modules():
        own = {k: v for k, v in vars(module).items() if not k.startswith("_parameters")}
        found.append(
            (
                name,
                sorted(own),
                dict(own.get("_forward_hooks", {})),
                dict(own.get("_forward_pre_hooks", {})),
                own.get("_forward_method"),
            )
        )
    return [*found, *(sorted(vars(a.impl)) for a in model.model.attention)]  # type: ignore[union-attr]


def test_detach_leaves_the_drafter_as_it_was(drafter: Drafter, guard: Guard) -> None:
    before = _attributes(drafter.model)
    bench = Bench(drafter, guard)
    assert _attributes(drafter.model) != before
    assert bench.proposer.model is not drafter.model
    bench.taps.detach()
    assert _attributes(drafter.model) == before
    assert bench.proposer.model is drafter.model
    bench.taps.switch.active = True
    Batch(bench.proposer).draft()
    assert bench.taps.switch.forwards == []
    bench.taps.detach()
    bench.taps.attach(bench.proposer, "model")
    bench.record(Batch(bench.proposer))
    assert not np.isnan(bench.found("prenorm_rms")).any()


def test_a_tapped_drafter_looks_like_the_drafter(bench_of: Callable[..., Bench]) -> None:
    bench = bench_of()
    tapped = bench.proposer.model
    assert isinstance(tapped, torch.nn.Module)
    assert tapped.lm_head is bench.drafter.model.lm_head
    assert [name for name, _ in tapped.named_parameters()] == [
        name for name, _ in bench.drafter.model.named_parameters()
    ]


def test_how_a_chain_ran_is_what_vllm_says_of_its_forwards(
    bench_of: Callable[..., Bench], guard: Guard
) -> None:
    from vllm.config import CUDAGraphMode
    from vllm.forward_context import override_forward_context

    bench = bench_of()
    bench.record(Batch(bench.proposer))
    assert bench.taps.observer.execution(3) == "eager"
    context: Any = SimpleNamespace(cudagraph_runtime_mode=CUDAGraphMode.PIECEWISE)
    with override_forward_context(context):
        bench.record(Batch(bench.proposer))
    assert bench.taps.observer.execution(3) == "piecewise"
    # Graphs that replay several depths at once are not seen from Python.
    assert bench.taps.observer.execution(4) == "piecewise+full"
    bench.taps.switch.serving()
    assert bench.taps.observer.execution(3) == "full"
    context.cudagraph_runtime_mode = CUDAGraphMode.NONE
    compiled = partial(forward_mode, compiled=True)
    bench = Bench(replace(bench.drafter, compiled=True, forward_mode=compiled), guard)
    with override_forward_context(context):
        bench.record(Batch(bench.proposer))
    assert bench.taps.observer.execution(3) == "compiled"


def test_hooks_rest_while_nothing_is_recorded(
    make_drafter: Callable[..., Drafter], guard: Guard
) -> None:
    drafter = make_drafter()
    before = _attributes(drafter.model)
    bench = Bench(drafter, guard)
    bench.record(Batch(bench.proposer))
    found = bench.found("prenorm_rms").copy()
    bench.taps.hooks.uninstall()
    assert _attributes(drafter.model) == before
    assert bench.proposer.model is drafter.model
    bench.taps.hooks.uninstall()
    bench.taps.hooks.install()
    bench.taps.hooks.install()
    bench.record(Batch(bench.proposer))
    assert np.array_equal(bench.found("prenorm_rms"), found)
    bench.taps.detach()
    assert _attributes(drafter.model) == before, "each hook was on once"


def test_hooks_that_a_graph_may_hold_do_not_rest(bench_of: Callable[..., Bench]) -> None:
    bench = bench_of(in_graph=True)
    on = bench.proposer.model
    bench.taps.hooks.uninstall()
    assert bench.proposer.model is on


ROWS, DIM = 6, 16
Prepare = Callable[[nn.Module], Callable[..., torch.Tensor]]


class FusedNorm(nn.Module):
    """RMSNorm as vLLM has it: adds the residual, returns the normed sum and the sum."""

    def __init__(self, *, dispatched: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((DIM,), 0.5))
        if dispatched:
            self._forward_method = self._native

    def _native(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        total = x if residual is None else x + residual
        normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * self.weight
        return normed if residual is None else (normed, total)

    def forward(self, *args: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        return getattr(self, "_forward_method", self._native)(*args)


class Layer(nn.Module):
    def __init__(self, norm: FusedNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        out, _ = self.norm(x * 2, residual)
        return out + 1


class Watched:
    """A tap on `norm` and what it was shown; it writes the last row to `last`, as kernels do."""

    def __init__(self, norm: nn.Module) -> None:
        self.last = torch.zeros(DIM)
        self.shown: list[torch.Tensor] = []
        self.undo = tap_residual(norm, torch.zeros(1), self._observe)

    def _observe(self, x: torch.Tensor) -> None:
        self.shown.append(x.clone())
        self.last.copy_(x[-1])


@pytest.fixture(params=[True, False], ids=["dispatched", "plain"])
def layer(request: pytest.FixtureRequest) -> Layer:
    return Layer(FusedNorm(dispatched=request.param)).eval()


@pytest.fixture
def watched(layer: Layer) -> Iterator[Watched]:
    made = Watched(layer.norm)
    yield made
    made.undo()


def _eager(layer: nn.Module) -> Callable[..., torch.Tensor]:
    return layer


def _compiled(layer: nn.Module) -> Callable[..., torch.Tensor]:
    return torch.compile(layer, backend="aot_eager", fullgraph=True)  # type: ignore[no-any-return]


@pytest.fixture(params=[_eager, _compiled], ids=["eager", "compiled"])
def prepared(request: pytest.FixtureRequest) -> Iterator[Prepare]:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch.compile's own
        yield request.param
    torch._dynamo.reset()


def _inputs(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, DIM, generator=generator) for _ in range(2))  # type: ignore[return-value]


def test_each_forward_shows_the_residual_stream(
    layer: Layer, watched: Watched, prepared: Prepare
) -> None:
    run, untapped = prepared(layer), Layer(FusedNorm(dispatched=True)).eval()
    for seed, rows in enumerate((ROWS, 3, ROWS)):
        x, residual = _inputs(rows, seed)
        assert torch.equal(run(x, residual), untapped(x, residual)), "the same comes out"
        torch.testing.assert_close(watched.shown[-1], x * 2 + residual)
        torch.testing.assert_close(watched.last, watched.shown[-1][-1])
    assert len(watched.shown) == 3, "once a forward, and never while compiling"


def test_a_graph_that_was_compiled_with_a_tap_runs_on_without_it(layer: Layer) -> None:
    watched, (x, residual) = Watched(layer.norm), _inputs(ROWS)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        run = _compiled(layer)
        out = run(x, residual)
        watched.undo()
        shown = len(watched.shown)
        assert torch.equal(run(x, residual), out)
    torch._dynamo.reset()
    assert len(watched.shown) == shown


def test_a_norm_without_a_residual_shows_what_enters_it(layer: Layer, watched: Watched) -> None:
    x, _ = _inputs(ROWS)
    assert isinstance(layer.norm(x), torch.Tensor)
    assert torch.equal(watched.shown[0], x)


def test_several_taps_do_not_mix_and_keep_their_numbers() -> None:
    """The number is part of a compiled graph, and vLLM keeps those from run to run."""
    norms = [FusedNorm(dispatched=True) for _ in range(3)]
    first, second = Watched(norms[0]), Watched(norms[1])
    x, residual = _inputs(ROWS)
    norms[1](x, residual)
    assert (len(first.shown), len(second.shown)) == (0, 1)
    first.undo()
    third = Watched(norms[2])
    norms[2](x, residual)
    norms[1](x, residual)
    assert (len(first.shown), len(second.shown), len(third.shown)) == (0, 2, 1)
    second.undo()
    third.undo()
