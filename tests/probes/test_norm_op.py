"""The tap on the residual stream: right, harmless, and alive under torch.compile."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from driftscope_probes.norm_op import row_rms, tap_residual

ROWS, DIM = 6, 16


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


@pytest.fixture(params=[True, False], ids=["dispatched", "plain"])
def layer(request: pytest.FixtureRequest) -> Layer:
    return Layer(FusedNorm(dispatched=request.param)).eval()


def _eager(layer: Layer) -> Callable[..., torch.Tensor]:
    return layer


def _compiled(layer: Layer) -> Callable[..., torch.Tensor]:
    return torch.compile(layer, backend="aot_eager", fullgraph=True)  # type: ignore[no-any-return]


@pytest.fixture(params=[_eager, _compiled], ids=["eager", "compiled"])
def prepared(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., Callable[..., torch.Tensor]]]:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch.compile's own
        yield request.param
    torch._dynamo.reset()


def _inputs(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, DIM, generator=generator) for _ in range(2))  # type: ignore[return-value]


def test_row_rms_is_the_norm_over_the_root_of_the_size() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, -1.0]])
    assert row_rms(x).tolist() == pytest.approx([5 / 2**0.5, 0.0, 1.0])
    half = row_rms(torch.full((1, 4096), 300.0, dtype=torch.float16))
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(300.0)


def test_each_forward_fills_the_buffer(
    layer: Layer, prepared: Callable[[Layer], Callable[..., torch.Tensor]]
) -> None:
    buffer, _ = tap_residual(layer.norm, ROWS)
    assert buffer.isnan().all()
    run = prepared(layer)
    for seed, rows in enumerate((ROWS, 3, ROWS)):
        x, residual = _inputs(rows, seed)
        before = buffer.clone()
        run(x, residual)
        torch.testing.assert_close(buffer[:rows], row_rms(x * 2 + residual))
        torch.testing.assert_close(buffer[rows:], before[rows:], equal_nan=True)


def test_the_output_is_the_same_with_and_without(
    layer: Layer, prepared: Callable[[Layer], Callable[..., torch.Tensor]]
) -> None:
    x, residual = _inputs(ROWS)
    without = layer(x, residual)
    tap_residual(layer.norm, ROWS)
    assert torch.equal(prepared(layer)(x, residual), without)


def test_undo_takes_it_off(layer: Layer) -> None:
    x, residual = _inputs(ROWS)
    buffer, undo = tap_residual(layer.norm, ROWS)
    undo()
    layer(x, residual)
    assert buffer.isnan().all()


def test_more_rows_than_the_buffer_holds_are_left_alone(layer: Layer) -> None:
    buffer, _ = tap_residual(layer.norm, 2)
    layer(*_inputs(ROWS))
    assert buffer.isnan().all()


def test_a_norm_without_a_residual_is_left_alone(layer: Layer) -> None:
    buffer, _ = tap_residual(layer.norm, ROWS)
    x, _ = _inputs(ROWS)
    assert isinstance(layer.norm(x), torch.Tensor)
    assert buffer.isnan().all()
