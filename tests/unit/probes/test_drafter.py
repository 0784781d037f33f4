"""Tests of captured layers, of what a drafter's forward returns, and of views of steps."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.runs import Spec, manifest
from torch import nn

from driftscope.trace.manifest import Manifest
from driftscope_probes.discovery import ROWS, Anatomy, anatomy_of, made_up
from driftscope_probes.drafter import CapturedLayers, captured_by, named_layers, with_captured
from driftscope_probes.engine import DraftStep
from driftscope_probes.vllm import runner_v1, runner_v2
from driftscope_probes.vllm.attach import RECORDER


class Body(nn.Module):
    """Stands in for vLLM's EagleModelMixin, from 0.27 on: the layers asked for, sorted or not."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        super().__init__()
        self.aux_hidden_state_layers = layers


class Target(nn.Module):
    def __init__(self, layers: tuple[int, ...]) -> None:
        super().__init__()
        self.language_model = nn.Module()
        self.language_model.model = Body(layers)


@pytest.mark.parametrize(
    ("asked", "captured"),
    [
        ((2, 4, 5), (2, 4, 5)),
        ((3, 1, 2), (1, 2, 3)),  # vLLM hands them on as the layers run
        ((2, 3, 3), (2, 3)),
        ((2, 1, -1), (1, 2)),  # vLLM's default for a target of two layers
        ((), ()),
    ],
)
def test_a_layer_is_captured_once_and_in_the_order_of_the_network(
    asked: tuple[int, ...], captured: tuple[int, ...]
) -> None:
    assert captured_by(Target(asked), lambda: None).layers == captured


def test_a_target_of_transformers_names_them_in_its_keys() -> None:
    target = nn.Module()
    keys = {"output_aux_hidden_state_2": True, "output_aux_hidden_state_14": True}
    target._output_aux_hidden_states_kwargs = keys  # type: ignore[assignment]
    assert captured_by(target, lambda: (2, 14)).layers == (2, 14)


def test_the_engines_own_reading_of_the_config_says_where_they_come_from() -> None:
    target = Target((1, 2, 3))
    assert captured_by(target, lambda: (1, 2, 3)).source == "config"
    assert captured_by(target, lambda: None).source == "engine default"
    assert captured_by(Target(()), lambda: None) == CapturedLayers()


def _with(layers: tuple[int, ...], states: int = 3, **config: Any) -> Manifest:
    captured = CapturedLayers(layers=layers, source="engine default")
    return with_captured(manifest(Spec()), captured, states, SimpleNamespace(**config))


def test_the_manifest_names_them() -> None:
    found = _with((2, 4, 5))
    assert (found.aux_layers, found.aux_layers_source) == ((2, 4, 5), "engine default")
    assert found.notes == ()


def test_a_drafter_that_combines_more_states_than_the_target_captures_is_pointed_out() -> None:
    found = _with((2, 3))
    assert (found.aux_layers, found.aux_layers_source) == ((), None)
    (note,) = found.notes
    assert "hands over 2 captured layers (2, 3) and the drafter combines 3" in note
    assert "eagle_aux_hidden_state_layer_ids" in note


@pytest.mark.parametrize("named", [[1, 2, 3], [4, 2, 5]])
def test_a_config_that_the_engine_does_not_follow_is_pointed_out(named: list[int]) -> None:
    """vLLM's V2 runner reads no layers in `eagle_config`; no runner keeps their order."""
    found = _with((2, 4, 5), eagle_config={"eagle_aux_hidden_state_layer_ids": named})
    assert found.aux_layers == (2, 4, 5)
    (note,) = found.notes
    assert f"names the target layers {', '.join(map(str, named))}, but this engine captured" in note


def test_a_config_may_name_them_in_two_places() -> None:
    key = "eagle_aux_hidden_state_layer_ids"
    assert named_layers(SimpleNamespace(**{key: [0, 5]}, eagle_config={key: [1]})) == (0, 5)
    assert named_layers(SimpleNamespace(eagle_config={key: [1, 2]})) == (1, 2)
    assert named_layers(SimpleNamespace(eagle_config=None)) == ()
    assert named_layers(SimpleNamespace()) == ()


HIDDEN = torch.zeros(3, 8)


def _tensors(root: Any) -> Iterator[torch.Tensor]:
    """Those that `root` keeps alive; of functions what they closed over, not their modules."""
    left, seen = [root], set()
    while left:
        found = left.pop()
        if id(found) in seen or isinstance(found, type | types.ModuleType):
            continue
        seen.add(id(found))
        if isinstance(found, torch.Tensor):
            yield found
        elif isinstance(found, types.FunctionType):
            left += [cell.cell_contents for cell in found.__closure__ or ()]
        else:
            left += gc.get_referents(found)


def _checked(step: DraftStep) -> DraftStep:
    assert list(_tensors([HIDDEN])), "the search finds one"
    assert not list(_tensors(step))
    return step


def _called(seam: Any, owner: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the call that the seam passes to the recorder of `owner` when vLLM calls it."""
    setattr(owner, RECORDER, SimpleNamespace(draft=lambda call: call))
    return seam(type(owner).propose if hasattr(owner, "propose") else None)(owner, *args, **kwargs)


def test_a_step_of_the_v1_runner() -> None:
    common = SimpleNamespace(hidden=HIDDEN, max_seq_len=9)
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(num_reqs=2, req_ids=["a", "b", None], hidden=HIDDEN),
        discard_request_mask=SimpleNamespace(np=np.array([False, True, False])),
    )
    call = {
        "common_attn_metadata": common,
        "num_speculative_tokens": 3,
        "target_hidden_states": HIDDEN,
    }
    proposer = SimpleNamespace(hidden=HIDDEN, _driftscope_runner=runner)
    step = _called(runner_v1._propose, proposer, **call).step()
    runner.discard_request_mask.np[:] = True
    assert _checked(step) == (("a", "b"), b"\0\1", 3), "of then"


def test_a_step_of_a_drafter_that_is_called_with_another_k() -> None:
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(num_reqs=1, req_ids=["a"], hidden=HIDDEN),
        discard_request_mask=SimpleNamespace(np=np.array([True])),
        num_spec_tokens=2,
    )
    proposer = SimpleNamespace(_driftscope_runner=runner)
    drafted = _called(runner_v1._propose_lookup, proposer, HIDDEN)
    assert (drafted.k, _checked(drafted.step())) == (2, (("a",), b"\1", 2))
    asked = _called(runner_v1._propose_lookup, proposer, HIDDEN, num_speculative_tokens=1)
    assert (asked.k, asked.step().k) == (1, 1)


def test_a_step_of_the_v2_runner() -> None:
    class Speculator:
        num_speculative_steps = 3
        _driftscope_runner = SimpleNamespace()

        def propose(self, input_batch: Any, attn_metadata: Any, hidden: Any) -> None: ...

    batch = SimpleNamespace(
        num_reqs=2,
        req_ids=["a", "b"],
        hidden=HIDDEN,
        num_computed_prefill_tokens_np=np.array([4, 4]),
        num_scheduled_tokens=np.array([4, 2]),
        prefill_len_np=np.array([8, 8]),
    )
    speculator = Speculator()
    args = (batch, {"layer": HIDDEN}, HIDDEN)
    call = _called(runner_v2._propose, speculator, *args)
    assert (call.k, _checked(call.step())) == (3, (("a", "b"), b"\0\1", 3))
    assert _called(runner_v2._propose, speculator, *args, num_speculative_tokens=2).step().k == 2


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
