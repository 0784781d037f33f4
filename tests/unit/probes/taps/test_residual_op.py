"""The tap on the residual stream: right, harmless, and alive under torch.compile."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from driftscope_probes.taps import tap_residual

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
    run = prepared(layer)
    for seed, rows in enumerate((ROWS, 3, ROWS)):
        x, residual = _inputs(rows, seed)
        run(x, residual)
        torch.testing.assert_close(watched.shown[-1], x * 2 + residual)
        torch.testing.assert_close(watched.last, watched.shown[-1][-1])
    assert len(watched.shown) == 3, "once a forward, and never while compiling"


def test_the_output_is_the_same_with_and_without(layer: Layer, prepared: Prepare) -> None:
    x, residual = _inputs(ROWS)
    without = layer(x, residual)
    watched = Watched(layer.norm)
    assert torch.equal(prepared(layer)(x, residual), without)
    watched.undo()


def test_undo_takes_it_off(layer: Layer) -> None:
    watched = Watched(layer.norm)
    watched.undo()
    layer(*_inputs(ROWS))
    assert watched.shown == []


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
