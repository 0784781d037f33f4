"""The hooks on a drafter: each figure against one computed by hand in float64, and a clean exit."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_drafter import HIDDEN, Batch, Bench, Norm, tiny_drafter
from torch import nn

from driftscope.trace.status import read_statuses
from driftscope.trace.writer import TraceWriter
from driftscope_probes.drafter import Drafter
from driftscope_probes.guard import Guard
from driftscope_probes.taps import tap_residual
from driftscope_probes.vllm.drafter import forward_mode

FLAGS: dict[str, dict[str, bool]] = {
    "eagle3": {},
    "eagle31": {"fc_norm": True, "norm_output": True},
    "norm_before_fc": {"norm_before_fc": True},
    "both_norms": {"norm_before_fc": True, "fc_norm": True},
}


@pytest.fixture(params=["torch", "numba"])
def guard(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Guard]:
    """With either kind of kernels; no hook fails."""
    if request.param == "numba":
        make = pytest.importorskip("driftscope_probes.cpu_kernels").CompiledKernels
        monkeypatch.setattr(Bench, "make_kernels", make)
    writer = TraceWriter(tmp_path / "run", source="worker0-1")
    yield Guard(writer)
    writer.close()
    (status,) = read_statuses(tmp_path / "run")
    assert status.errors == {}


@pytest.fixture
def bench_of(guard: Guard) -> Callable[..., Bench]:
    """Return a bench with a drafter of these flags."""
    return lambda *, in_graph=False, **flags: Bench(tiny_drafter(**flags), guard, in_graph=in_graph)


@pytest.fixture(params=sorted(FLAGS))
def drafter(request: pytest.FixtureRequest) -> Drafter:
    return tiny_drafter(**FLAGS[request.param])


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
    """Without norm_output what is fed on is the residual before the norm; with it, that after."""
    for norm_output, fed in ((False, "prenorm_rms"), (True, "postnorm_rms")):
        bench = bench_of(norm_output=norm_output)
        bench.record(Batch(bench.proposer))
        assert np.isnan(bench.found("aux_norm_rms")).all()
        np.testing.assert_array_equal(bench.found(fed), bench.found("fed_rms"))
    assert (np.abs(bench.found("prenorm_rms") - bench.found("fed_rms")) > 1e-3).all()


@pytest.mark.parametrize("not_kept", ["sampled", "many"])
def test_what_is_noted_of_a_chain_is_what_is_seen_at_once(
    guard: Guard,
    not_kept: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Logits that are sampled from change where they lie; many are not to wait in memory."""
    drafter = replace(tiny_drafter(k=5), samples=False)
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
    out, _ = bench.proposer.model(hidden_states=torch.ones(4, HIDDEN), meta=None)
    assert out.shape == (4, HIDDEN), "a profiling pass has no attention metadata"
    bench.taps.switch.forwards.clear()
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


def _attributes(model: Any) -> list[Any]:
    """Return what may be changed on a drafter: attributes and hooks of every module, and its
    attention."""
    found: list[Any] = [sorted(vars(layer.impl)) for layer in model.model.attention]
    for module in model.modules():
        hooks = dict(module._forward_hooks), dict(module._forward_pre_hooks)
        found += [sorted(vars(module)), *hooks, vars(module).get("_forward_method")]
    return found


def test_detach_leaves_the_drafter_as_it_was(drafter: Drafter, guard: Guard) -> None:
    before = _attributes(drafter.model)
    bench = Bench(drafter, guard)
    assert _attributes(drafter.model) != before
    tapped = bench.proposer.model
    assert tapped is not drafter.model and isinstance(tapped, torch.nn.Module)
    assert tapped.lm_head is drafter.model.lm_head, "it looks like the drafter"
    names = [[name for name, _ in model.named_parameters()] for model in (tapped, drafter.model)]
    assert names[0] == names[1]
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
    compiled = functools.partial(forward_mode, compiled=True)
    bench = Bench(replace(bench.drafter, compiled=True, forward_mode=compiled), guard)
    with override_forward_context(context):
        bench.record(Batch(bench.proposer))
    assert bench.taps.observer.execution(3) == "compiled"


def test_hooks_rest_while_nothing_is_recorded(guard: Guard) -> None:
    """But not those that a graph may hold."""
    drafter = tiny_drafter()
    before = _attributes(drafter.model)
    bench = Bench(drafter, guard)
    bench.record(Batch(bench.proposer))
    found = bench.found("prenorm_rms").copy()
    for _ in range(2):
        bench.taps.hooks.uninstall()
        assert _attributes(drafter.model) == before
        assert bench.proposer.model is drafter.model
    bench.taps.hooks.install()
    bench.taps.hooks.install()
    bench.record(Batch(bench.proposer))
    assert np.array_equal(bench.found("prenorm_rms"), found)
    bench.taps.detach()
    assert _attributes(drafter.model) == before, "each hook was on once"
    bench = Bench(drafter, guard, in_graph=True)
    on = bench.proposer.model
    bench.taps.hooks.uninstall()
    assert bench.proposer.model is on


ROWS = 6


class Plain(Norm):
    """A norm that does not dispatch."""

    def __init__(self) -> None:
        super().__init__()
        del self._forward_method

    def forward(self, *args: torch.Tensor) -> Any:
        return self._native(*args)


class Layer(nn.Module):
    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        out, _ = self.norm(x * 2, residual)
        return out + 1  # type: ignore[no-any-return]


class Watched:
    """A tap on `norm` and what it was shown; it writes the last row to `last`, as kernels do."""

    def __init__(self, norm: nn.Module) -> None:
        self.last = torch.zeros(HIDDEN)
        self.shown: list[torch.Tensor] = []
        self.undo = tap_residual(norm, torch.zeros(1), self._observe)

    def _observe(self, x: torch.Tensor) -> None:
        self.shown.append(x.clone())
        self.last.copy_(x[-1])


@pytest.fixture(params=[Norm, Plain])
def layer(request: pytest.FixtureRequest) -> Layer:
    return Layer(request.param()).eval()


@pytest.fixture
def watched(layer: Layer) -> Iterator[Watched]:
    made = Watched(layer.norm)
    yield made
    made.undo()


@pytest.fixture
def compiled() -> Iterator[Callable[[Layer], Callable[..., torch.Tensor]]]:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch.compile's own
        yield functools.partial(torch.compile, backend="aot_eager", fullgraph=True)
    torch._dynamo.reset()


def _inputs(rows: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, HIDDEN, generator=generator) for _ in range(2)]


@pytest.mark.parametrize("compiles", [False, True])
def test_each_forward_shows_the_residual_stream(
    layer: Layer, watched: Watched, compiled: Any, compiles: bool
) -> None:
    run, untapped = compiled(layer) if compiles else layer, Layer(Norm()).eval()
    for seed, rows in enumerate((ROWS, 3, ROWS)):
        x, residual = _inputs(rows, seed)
        assert torch.equal(run(x, residual), untapped(x, residual)), "the same comes out"
        torch.testing.assert_close(watched.shown[-1], x * 2 + residual)
        torch.testing.assert_close(watched.last, watched.shown[-1][-1])
    assert len(watched.shown) == 3, "once a forward, and never while compiling"


def test_a_graph_that_was_compiled_with_a_tap_runs_on_without_it(
    layer: Layer, compiled: Any
) -> None:
    watched, inputs = Watched(layer.norm), _inputs(ROWS)
    run = compiled(layer)
    out = run(*inputs)
    watched.undo()
    shown = len(watched.shown)
    assert torch.equal(run(*inputs), out)
    assert len(watched.shown) == shown


def test_a_norm_without_a_residual_shows_what_enters_it(layer: Layer, watched: Watched) -> None:
    x, _ = _inputs(ROWS)
    assert isinstance(layer.norm(x), torch.Tensor)
    assert torch.equal(watched.shown[0], x)


def test_several_taps_do_not_mix_and_keep_their_numbers() -> None:
    """The number is part of a compiled graph, and vLLM keeps those from run to run."""
    norms = [Norm() for _ in range(3)]
    first, second = Watched(norms[0]), Watched(norms[1])
    norms[1](*_inputs(ROWS))
    assert (len(first.shown), len(second.shown)) == (0, 1)
    first.undo()
    third = Watched(norms[2])
    norms[2](*_inputs(ROWS))
    norms[1](*_inputs(ROWS))
    assert (len(first.shown), len(second.shown), len(third.shown)) == (0, 2, 1)
    second.undo()
    third.undo()
