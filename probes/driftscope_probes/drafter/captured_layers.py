"""The target layers whose hidden states vLLM captures for its drafter, read from the loaded target.

A drafter's config may name them. If it names none, vLLM uses the target's default layers. In both
cases a target keeps each layer once and passes the states on in the order of the network, so the
layers are read from the loaded target and not from the config.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from driftscope.trace.format.manifest import AUX_FROM_CONFIG, AUX_FROM_ENGINE, Manifest

_ON_TARGET = "aux_hidden_state_layers"
"""Attribute of vLLM's own models."""
_ON_TRANSFORMERS = "_output_aux_hidden_states_kwargs"
"""Attribute of the models that vLLM takes from transformers, with one key for each layer."""
_IN_CONFIG = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedLayers:
    """Layers whose hidden states a loaded target captures."""

    layers: tuple[int, ...] = ()
    """Layers in the order in which the drafter receives them; see `Manifest.aux_layers`."""
    source: str | None = None
    """Source of the layers; see `Manifest.aux_layers_source`."""


def captured_by(target: Any, chosen_in_config: Callable[[], Any]) -> CapturedLayers:
    """Return the layers that `target`, a loaded vLLM model, captures.

    `chosen_in_config` is the runner's own reading of the drafter's config; it returns nothing if
    the engine falls back to its default. This function never raises: values that an unfamiliar vLLM
    version does not provide stay unknown.
    """
    layers = _set_on(target)
    if not layers:
        return CapturedLayers()
    try:
        source = AUX_FROM_CONFIG if chosen_in_config() else AUX_FROM_ENGINE
    except (AttributeError, ImportError, TypeError):
        return CapturedLayers(layers=layers)
    return CapturedLayers(layers=layers, source=source)


def _set_on(target: Any) -> tuple[int, ...]:
    for module in target.modules():
        if layers := getattr(module, _ON_TARGET, None):
            return tuple(sorted({int(layer) for layer in layers if layer >= 0}))
        if keys := getattr(module, _ON_TRANSFORMERS, None):
            return tuple(int(number) for key in keys for number in re.findall(r"\d+$", key))
    return ()


def with_captured(
    manifest: Manifest, captured: CapturedLayers, states: int, drafter_config: Any
) -> Manifest:
    """Return `manifest` with the captured layers and a note about them if a reader needs one.

    `states` is the number of states that the drafter combines, `drafter_config` its Hugging Face
    config.
    """
    note = _note(captured.layers, states, named_layers(drafter_config))
    fit = not states or not captured.layers or len(captured.layers) == states
    return replace(
        manifest,
        aux_layers=captured.layers if fit else (),
        aux_layers_source=captured.source if fit else None,
        notes=manifest.notes if note is None else (*manifest.notes, note),
    )


def _note(layers: tuple[int, ...], states: int, named: tuple[int, ...]) -> str | None:
    listed = ", ".join(map(str, layers))
    if layers and states and len(layers) != states:
        return (
            f"the target hands over {len(layers)} captured layers ({listed}) and the drafter "
            f"combines {states}: its input is wrong; name {states} different layers of the target "
            f"in the drafter's {_IN_CONFIG}"
        )
    if layers and named and named != layers:
        return (
            f"the drafter's config names the target layers {', '.join(map(str, named))}, but this "
            f"engine captured {listed}: put {_IN_CONFIG} at the top level of the drafter's "
            "config.json, in ascending order"
        )
    return None


def named_layers(drafter_config: Any) -> tuple[int, ...]:
    """Return the layers named at the top of a drafter's config, or else in its `eagle_config`."""
    named = getattr(drafter_config, _IN_CONFIG, None)
    if not named:
        eagle = getattr(drafter_config, "eagle_config", None)
        named = eagle.get(_IN_CONFIG) if isinstance(eagle, dict) else None
    return tuple(int(layer) for layer in named or ())
