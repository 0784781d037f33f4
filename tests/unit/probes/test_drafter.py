"""Which target layers an engine captures, read off a target that is laid out as vLLM's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.runs import Spec, manifest
from torch import nn

from driftscope.trace.manifest import Manifest
from driftscope_probes.drafter import CapturedLayers, captured_by, named_layers, with_captured


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
