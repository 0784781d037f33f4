"""Checks which layers of the target a drafter reads, and whether `fc` uses all of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from driftscope.inspect.checks.check_result import Certainty, CheckResult, Inspected, Level
from driftscope.inspect.checks.engine_rules import SGLANG_CAPTURE, VLLM_CAPTURE, VLLM_DEFAULT
from driftscope.inspect.files.drafter_files import AUX_LAYERS
from driftscope.inspect.files.safetensors_file import StoredTensor
from driftscope.inspect.reference.config import default_aux_layers

IGNORED_BELOW = 0.001
"""Size of the columns of `fc` for one captured layer, relative to the largest, below which the
layer counts as ignored: RMS of the columns, times the fc_norm's weights if there are any. It is 0.6
or more in the shipped drafters; without fc_norm it is smaller for layers with larger states."""


def check_captured_layers(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield captured layers that an engine orders, merges or does not find."""
    drafter, target = inspected.drafter, inspected.target
    named = drafter.aux_layers
    if named is None:
        yield from _unnamed(inspected)
        return
    nested, top = drafter.eagle_config.get(AUX_LAYERS), drafter.raw.get(AUX_LAYERS)
    if nested and top and list(nested) != list(top):
        yield CheckResult(
            id="captured_layers_contradict",
            level=Level.ERROR,
            title="config.json names captured layers twice, differently",
            expected="the same list at the top level and in eagle_config",
            rule=f"{VLLM_CAPTURE}: reads the top level; SGLang reads eagle_config",
            there=f"{top} and {nested}",
            change=f'"{AUX_LAYERS}": the list that it was trained with, in both places',
        )
    if sorted(set(named)) != list(named):
        yield CheckResult(
            id="captured_layers_order",
            level=Level.ERROR,
            title="captured layers are repeated or not in ascending order",
            expected=f"{sorted(set(named))}",
            rule=f"{VLLM_CAPTURE}: sorts the list and drops repeated entries",
            there=f"{list(named)}",
            change=f'"{AUX_LAYERS}": {sorted(set(named))}, and the columns of fc in this order',
        )
    if target is not None and not all(0 <= each <= target.layers for each in named):
        yield CheckResult(
            id="captured_layers_range",
            level=Level.ERROR,
            title="a captured layer does not exist in the target",
            expected=f"layers 0 to {target.layers} (0 is the embedding)",
            rule=f"{VLLM_CAPTURE}: a layer that does not exist is never captured",
            there=f"{list(named)}",
            change=f'"{AUX_LAYERS}": layers of this target',
        )
    if named[0] == 1:
        yield CheckResult(
            id="captured_layers_in_sglang",
            level=Level.NOTE,
            title="SGLang counts these captured layers differently",
            expected=f"{list(named)} in vLLM",
            rule=f"{SGLANG_CAPTURE}: adds 1 to each if the first is 1; before, always",
            there=f"in SGLang {[each + 1 for each in named]}, counted as vLLM counts",
            certainty=Certainty.LIKELY,
        )


def check_ignored_layers(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield captured layers whose columns of `fc` are next to zero."""
    drafter = inspected.drafter
    fc = drafter.tensors.get("fc.weight")
    states = drafter.aux_states
    if fc is None or not fc.is_float or fc.shape[-1] % states:
        return
    norms = [drafter.tensors.get(f"fc_norm.{state}.weight") for state in range(states)]
    sizes = _column_sizes(fc, norms, states)
    largest = max(sizes, default=0.0)
    for state, size in enumerate(sizes):
        if size <= IGNORED_BELOW * largest:
            named = drafter.aux_layers
            layer = named[state] if named and state < len(named) else f"number {state + 1}"
            yield CheckResult(
                id="captured_layer_ignored",
                level=Level.WARNING,
                title=f"fc ignores captured layer {layer}",
                expected="columns of comparable size for each captured layer",
                rule="an RMS below a thousandth of the largest has no part in the sum",
                there=f"RMS of the columns: {', '.join(f'{each:.2g}' for each in sizes)}",
                change="train with all captured layers, or capture fewer",
                certainty=Certainty.LIKELY,
            )


def _unnamed(inspected: Inspected) -> Iterator[CheckResult]:
    target = inspected.target
    try:
        layers = default_aux_layers(target.layers) if target else None
    except ValueError:
        layers = ()
    if target is not None and not layers:
        yield CheckResult(
            id="captured_layers_collapse",
            level=Level.ERROR,
            title="config.json names no captured layers, and the default gives fewer than three",
            expected=f'"{AUX_LAYERS}": the layers that it was trained with',
            rule=f"{VLLM_DEFAULT}: 2, half and the third last of {target.layers} layers",
            there=f"2, {target.layers // 2}, {target.layers - 3}",
            change=f'"{AUX_LAYERS}": the layers that it was trained with',
        )
    else:
        yield CheckResult(
            id="captured_layers_unnamed",
            level=Level.NOTE,
            title="config.json names no captured layers; the engine uses its default",
            expected=f'"{AUX_LAYERS}": the layers that it was trained with',
            rule=VLLM_DEFAULT,
            there=f"none; the default is {list(layers)}" if layers else "none",
        )


def _column_sizes(fc: StoredTensor, norms: list[StoredTensor | None], states: int) -> list[float]:
    """Return the RMS of the columns of each captured state, times its norm's weights."""
    squares = np.zeros(fc.shape[-1])
    for block in fc.blocks():
        squares += np.square(block, dtype=np.float64).sum(axis=0)
    parts = np.split(squares / fc.shape[0], states)
    for part, norm in zip(parts, norms, strict=True):
        if norm is not None and norm.is_float and norm.shape == part.shape:
            part *= np.square(norm.array(), dtype=np.float64)
    return [float(np.sqrt(part.mean())) for part in parts]
