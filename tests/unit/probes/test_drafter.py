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
    ("asked", "named", "captured", "source"),
    [
        ((2, 4, 5), (2, 4, 5), (2, 4, 5), "config"),
        ((2, 4, 5), None, (2, 4, 5), "engine default"),
        ((3, 1, 2), None, (1, 2, 3), "engine default"),  # vLLM hands them on as the layers run
        ((2, 3, 3), None, (2, 3), "engine default"),
        ((2, 1, -1), None, (1, 2), "engine default"),  # its default for a target of two layers
        ((), None, (), None),
    ],
)
def test_a_layer_is_captured_once_and_in_the_order_of_the_network(
    asked: tuple[int, ...], named: Any, captured: tuple[int, ...], source: str | None
) -> None:
    """The engine's own reading of the config says where they come from."""
    wanted = CapturedLayers(layers=captured, source=source) if captured else CapturedLayers()
    assert captured_by(Target(asked), lambda: named) == wanted


def test_a_target_of_transformers_names_them_in_its_keys() -> None:
    target = nn.Module()
    keys = {"output_aux_hidden_state_2": True, "output_aux_hidden_state_14": True}
    target._output_aux_hidden_states_kwargs = keys  # type: ignore[assignment]
    assert captured_by(target, lambda: (2, 14)).layers == (2, 14)


KEY = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("layers", "named", "words"),
    [
        ((2, 4, 5), None, None),
        ((2, 3), None, "hands over 2 captured layers (2, 3) and the drafter combines 3"),
        # vLLM's V2 runner reads no layers in `eagle_config`; no runner keeps their order.
        ((2, 4, 5), [1, 2, 3], "names the target layers 1, 2, 3, but this engine captured"),
        ((2, 4, 5), [4, 2, 5], "names the target layers 4, 2, 5, but this engine captured"),
    ],
)
def test_the_manifest_names_them_and_points_out_what_does_not_fit(
    layers: tuple[int, ...], named: list[int] | None, words: str | None
) -> None:
    captured = CapturedLayers(layers=layers, source="engine default")
    config = SimpleNamespace(eagle_config={KEY: named}) if named else SimpleNamespace()
    found = with_captured(manifest(Spec()), captured, 3, config)
    fits = len(layers) == 3
    wanted = (layers, "engine default") if fits else ((), None)
    assert (found.aux_layers, found.aux_layers_source) == wanted
    assert len(found.notes) == (words is not None)
    for note in found.notes:
        assert str(words) in note
        assert fits or KEY in note


def test_a_config_may_name_them_in_two_places() -> None:
    both = SimpleNamespace(**{KEY: [0, 5]}, eagle_config={KEY: [1]})
    assert named_layers(both) == (0, 5)
    assert named_layers(SimpleNamespace(eagle_config={KEY: [1, 2]})) == (1, 2)
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


def _v1(discarded: list[bool], **proposer: Any) -> tuple[Any, np.ndarray]:
    """Return a proposer of a V1 runner, and which of its requests are prefilling."""
    mask = np.array(discarded)
    batch = SimpleNamespace(num_reqs=min(2, len(mask)), req_ids=["a", "b", None], hidden=HIDDEN)
    discard = SimpleNamespace(np=mask)
    runner = SimpleNamespace(input_batch=batch, discard_request_mask=discard, num_spec_tokens=2)
    return SimpleNamespace(_driftscope_runner=runner, **proposer), mask


def test_a_step_of_the_v1_runner() -> None:
    common = SimpleNamespace(hidden=HIDDEN, max_seq_len=9)
    call = {"common_attn_metadata": common, "target_hidden_states": HIDDEN}
    proposer, mask = _v1([False, True, False], hidden=HIDDEN)
    step = _called(runner_v1._propose, proposer, **call, num_speculative_tokens=3).step()
    mask[:] = True
    assert _checked(step) == (("a", "b"), b"\0\1", 3), "of then"
    proposer, _ = _v1([True])
    for more, k in (({}, 2), ({"num_speculative_tokens": 1}, 1)):
        drafted = _called(runner_v1._propose_lookup, proposer, HIDDEN, **more)
        assert (drafted.k, _checked(drafted.step())) == (k, (("a",), b"\1", k))


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


def _untouched(model: Drafter) -> None:
    assert model.do_not_compile is False
    assert not any(module._forward_hooks for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())


def _found(give: Any, *, fed: bool = True, norm: Any = None) -> Anatomy:
    model = Drafter(give)
    model.norm = norm or model.norm
    states = made_up(torch.empty(ROWS, WIDTH))
    layers = {"a": model.layer.attention, "b": Attention()}
    anatomy = anatomy_of(model, layers, lambda: model(states.clone()), fed=fed)
    assert not model.ran_compiled
    _untouched(model)
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
    assert _found(_normed, fed=False).outputs == {"postnorm_rms": 0}, "fed nothing"


def test_a_forward_that_fails_leaves_nothing_behind() -> None:
    model, states = Drafter(lambda *_: 1 / 0), torch.ones(ROWS, WIDTH)
    with pytest.raises(ZeroDivisionError):
        anatomy_of(model, {}, lambda: model(states), fed=True)
    _untouched(model)
