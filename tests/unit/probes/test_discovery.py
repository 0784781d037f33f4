"""The outputs of a drafter's forward, found by watching one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from driftscope_probes.discovery import ROWS, Anatomy, anatomy_of, made_up

WIDTH = 8


class FusedRMSNorm(nn.Module):
    """Adds the residual stream and norms it in place, as an engine's fused kernel does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2.0, WIDTH), requires_grad=False)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        stream = x if residual is None else residual.add_(x)
        normed = stream * torch.rsqrt(stream.square().mean(-1, keepdim=True) + 1e-5) * self.weight
        return normed if residual is None else (x.copy_(normed), residual)


class Attention(nn.Module):
    """Without a cache, gives out memory that nobody wrote."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, torch.nan)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_norm, self.attention = FusedRMSNorm(), Attention()
        self.post_norm, self.mlp = FusedRMSNorm(), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        residual = hidden.clone()
        hidden = self.attention(self.input_norm(hidden))
        hidden, residual = self.post_norm(hidden, residual)
        return self.mlp(hidden), residual


class Drafter(nn.Module):
    def __init__(self, give: Callable[[Any, torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.norm, self.give = Layer(), FusedRMSNorm(), give
        self.do_not_compile = False
        self.ran_compiled = False

    def forward(self, hidden_states: torch.Tensor) -> Any:
        self.ran_compiled |= not self.do_not_compile
        return self.give(self, *self.layer(hidden_states))


def _normed(own: Any, hidden: torch.Tensor, residual: torch.Tensor) -> Any:
    return own.norm(hidden, residual)[0]


def _normed_and_stream(own: Any, hidden: torch.Tensor, residual: torch.Tensor) -> Any:
    return own.norm(hidden, residual)


def _stream(_: Any, hidden: torch.Tensor, residual: torch.Tensor) -> Any:
    return hidden + residual


def _stream_and_normed(own: Any, hidden: torch.Tensor, residual: torch.Tensor) -> Any:
    stream = hidden + residual
    return stream, own.norm(stream)


def _neither(_: Any, hidden: torch.Tensor, residual: torch.Tensor) -> Any:
    return 3 * (hidden + residual)


def _found(give: Any, *, fed: bool = True, norm: Any = None) -> Anatomy:
    model = Drafter(give)
    if norm is not None:
        model.norm = norm
    states = made_up(torch.empty(ROWS, WIDTH))
    anatomy = anatomy_of(
        model,
        {"a": model.layer.attention, "b": Attention()},
        lambda: model(states.clone()),
        fed=fed,
    )
    assert not model.ran_compiled
    assert model.do_not_compile is False
    assert not any(module._forward_hooks for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())
    return anatomy


@pytest.mark.parametrize(
    ("give", "outputs", "norms"),
    [
        (_normed, {"postnorm_rms": 0, "fed_rms": -1}, ("norm",)),
        (_normed_and_stream, {"postnorm_rms": 0, "prenorm_rms": -1, "fed_rms": -1}, ()),
        (_stream, {"prenorm_rms": 0, "fed_rms": -1}, ()),
        (_stream_and_normed, {"prenorm_rms": 0, "postnorm_rms": -1, "fed_rms": -1}, ()),
        (_neither, {"fed_rms": -1}, ()),
    ],
)
def test_the_place_of_each_output_is_found(give: Any, outputs: Any, norms: Any) -> None:
    idle = give in (_stream, _neither)
    wanted = Anatomy(outputs=outputs, norms=norms, layers=("a",), head_norms=idle)
    assert _found(give) == wanted


class LayerNorm(nn.Module):
    """A norm like Cohere's, which hands on the residual that it was given without having added
    it."""

    def forward(self, x: torch.Tensor, residual: Any = None) -> Any:
        return x - x.mean(-1, keepdim=True), residual


def test_a_norm_that_hands_on_something_else_than_it_normed_is_not_tapped() -> None:
    found = _found(_normed, norm=LayerNorm())
    assert (found.outputs, found.norms) == ({"postnorm_rms": 0, "fed_rms": -1}, ())


def test_a_drafter_that_is_fed_nothing_has_no_fed_state() -> None:
    assert _found(_normed, fed=False).outputs == {"postnorm_rms": 0}


def test_a_forward_that_fails_leaves_nothing_behind() -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no cache")

    model = Drafter(fail)
    states = torch.ones(ROWS, WIDTH)
    with pytest.raises(RuntimeError, match="no cache"):
        anatomy_of(model, {}, lambda: model(states), fed=True)
    assert not any(module._forward_hooks for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())
