"""Checks a drafter's config: norm flags, captured layers, positions, which engine serves it.

Most public mistakes are norm flags that do not fit the norms in the weights, and each is silent: an
engine runs without the norm, or with one whose weights are all 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from driftscope.boundary.text import dumps
from driftscope.inspect.checkpoints import DrafterFiles
from driftscope.inspect.checks.result import (
    SGLANG_CAPTURE,
    SGLANG_EAGLE1,
    SPECFORGE,
    SPECULATORS,
    UNNAMED,
    VLLM_CAPTURE,
    VLLM_DEFAULT,
    VLLM_EAGLE1_NAME,
    VLLM_LOADER,
    VLLM_MODEL,
    VLLM_SPECULATORS,
    Certainty,
    CheckLevel,
    CheckResult,
    Inspected,
    error,
    note,
    warning,
)
from driftscope.inspect.checks.tensors import FC_BIAS
from driftscope.inspect.drafter_classes import (
    AUX_LAYERS,
    IN_SGLANG,
    Family,
    mask_token,
)
from driftscope.inspect.reference.config import default_aux_layers

FLAGS = ("fc_norm", "norm_before_fc", "norm_before_residual", "norm_output")
_TRUE = ("true", "1")
_PER_STATE, _JOINED = "fc_norm.", "input_norm."
_WEIGHTS = {"fc_norm": _PER_STATE, "norm_before_fc": _JOINED}


def check_norm_flags(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield flags that do not fit the weights, that no engine reads, or that are no boolean."""
    drafter = inspected.drafter
    swapped = _swapped(drafter)
    if swapped is not None:
        yield swapped
    else:
        yield from _flag_and_weights(drafter, "fc_norm")
        yield from _flag_and_weights(drafter, "norm_before_fc")
    if drafter.flag("fc_norm") and drafter.flag("norm_before_fc"):
        yield warning(
            id="two_norms_before_fc",
            title="fc_norm and norm_before_fc are both on",
            expected="one of them; EAGLE-3.1 has fc_norm",
            rule=f"{SPECULATORS}; {VLLM_MODEL}: applies one after the other",
            found='"fc_norm": true, "norm_before_fc": true',
            change='"norm_before_fc": false, if it was trained with fc_norm alone',
            certainty=Certainty.LIKELY,
        )
    # Flags that are set where the engine does not look.
    layer = drafter.raw.get("transformer_layer_config")
    places: list[tuple[str, Any, tuple[str, ...]]] = [
        ("eagle_config", drafter.raw.get("eagle_config"), ("fc_norm", "norm_output")),
        ("transformer_layer_config", layer, FLAGS),
    ]
    for place, fields, names in places:
        for name in names if isinstance(fields, dict) else ():
            if fields.get(name) and not drafter.flag(name):
                yield error(
                    id="flag_not_read",
                    title=f"{name} is set in {place}, where it is not read",
                    expected=f"{name} at the top level of config.json",
                    rule=VLLM_SPECULATORS if drafter.format.speculators else VLLM_MODEL,
                    found=f'"{place}": {{"{name}": true}}, and none at the top level',
                    change=f'"{name}": true at the top level',
                )
    yield from _not_boolean(drafter)
    for flag, prefix in _WEIGHTS.items():
        norms = [norm for norm in drafter.named(prefix).values() if norm.is_float]
        if drafter.flag(flag) and norms and all(np.all(norm.array() == 1) for norm in norms):
            yield warning(
                id="norm_all_ones",
                title=f"all weights of {flag} are exactly 1",
                expected="weights that training moved",
                rule="a norm starts at 1, and each step of training changes it",
                found=f"{len(norms)} of {prefix}*, all 1",
                change="export the trained norms; a conversion may have made these anew",
                certainty=Certainty.LIKELY,
            )


def check_norm_meaning(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield flags that trainers and engines mean differently."""
    drafter = inspected.drafter
    normed = any(drafter.flag(flag) or drafter.named(_WEIGHTS[flag]) for flag in _WEIGHTS)
    if drafter.flag("norm_output") and not normed:
        yield warning(
            id="norm_output_of_specforge",
            title="norm_output is on in a drafter without the other norms of EAGLE-3.1",
            expected="norm_output together with fc_norm or norm_before_fc, as EAGLE-3.1 trains it",
            rule=f"{SPECFORGE}: writes true for EAGLE-3, which feeds the un-normed state",
            found='"norm_output": true, no fc_norm, no norm_before_fc',
            change='"norm_output": false, if SpecForge 0.2.0 or older trained it; with --target '
            "both are tried",
            certainty=Certainty.POSSIBLE,
        )
    if drafter.flag("fc_norm") and not drafter.flag("norm_output"):
        yield warning(
            id="norm_output_off",
            title="norm_output is off in a drafter with fc_norm",
            expected="both, as EAGLE-3.1 trains them",
            rule=f"{VLLM_MODEL}: feeds the residual stream. Converters lost the field (vllm#46488)",
            found=f'"norm_output": {_flag_words(drafter, "norm_output")}',
            change='"norm_output": true, if it was trained so; with --target both are tried',
            certainty=Certainty.POSSIBLE,
        )
    if drafter.format.speculators and any(drafter.flag(n) for n in ("fc_norm", "norm_output")):
        yield note(
            id="flags_need_newer_vllm",
            title="older vLLM ignores fc_norm and norm_output of the speculators format",
            expected="a vLLM that has vllm#46488 (merged June 2026)",
            rule=f"{VLLM_SPECULATORS}: copies both fields; before, both were false",
            found="a config in the speculators format that sets them",
        )


def _flag_and_weights(drafter: DrafterFiles, flag: str) -> Iterator[CheckResult]:
    weights, prefix = drafter.named(_WEIGHTS[flag]), _WEIGHTS[flag]
    if drafter.flag(flag) and not weights:
        yield error(
            id=f"{flag}_missing",
            title=f"{flag} is on, and its weights are missing",
            expected=f"{prefix}*: without them each weight is 1",
            rule=VLLM_MODEL,
            found=f'"{flag}": true, no {prefix}*',
            change=f'save the weights {prefix}*, or write "{flag}": false if it was trained '
            "without",
        )
    elif weights and not drafter.flag(flag):
        dropped = flag == "norm_before_fc"
        yield error(
            id=f"{flag}_unused",
            title=f"the weights of {flag} are there, and the flag is off",
            expected=f'"{flag}": true',
            rule=f"{VLLM_LOADER}: {'drops input_norm silently' if dropped else 'refuses fc_norm'}",
            found=f'"{flag}": {_flag_words(drafter, flag)}, and {len(weights)} of {prefix}*',
            change=f'"{flag}": true',
        )
    elif flag == "fc_norm" and weights and len(weights) != drafter.named_states:
        yield error(
            id="fc_norm_count",
            title="fc_norm has another number of norms than there are captured states",
            expected=f"{drafter.named_states} norms",
            rule=VLLM_MODEL,
            found=f"{len(weights)} of {prefix}*",
            change="name as many captured layers as there are norms",
        )


def _swapped(drafter: DrafterFiles) -> CheckResult | None:
    """Return a result if one flag is on and only the other's weights are there."""
    for flag, other in (("fc_norm", "norm_before_fc"), ("norm_before_fc", "fc_norm")):
        own, others = drafter.named(_WEIGHTS[flag]), drafter.named(_WEIGHTS[other])
        if drafter.flag(flag) and not drafter.flag(other) and others and not own:
            return error(
                id="fc_norm_and_norm_before_fc_swapped",
                title=f"{flag} is on, and the weights are those of {other}",
                expected=f"{_WEIGHTS[flag]}*; fc_norm is one norm per captured state, "
                "norm_before_fc one over all of them",
                rule=f"{VLLM_MODEL}; speculators#610 and #670 tell them apart",
                found=f'"{flag}": true, and {_WEIGHTS[other]}*',
                change=f'"{flag}": false, "{other}": true',
            )
    return None


def _not_boolean(drafter: DrafterFiles) -> Iterator[CheckResult]:
    for name in FLAGS:
        value = drafter.raw.get(name)
        if value is not None and not isinstance(value, bool):
            yield CheckResult(
                id="flag_not_boolean",
                level=CheckLevel.ERROR if value in ("false", "False", "0") else CheckLevel.WARNING,
                title=f"{name} is no boolean",
                expected="true or false",
                rule=f"{VLLM_MODEL}: any text counts as true",
                found=f'"{name}": {value!r}',
                change=f'"{name}": {dumps(str(value).lower() in _TRUE)}',
            )


def _flag_words(drafter: DrafterFiles, name: str) -> str:
    value = drafter.fields.get(name)
    return "absent" if value is None else str(value).lower()


IGNORED_BELOW = 0.001
"""Size of the columns of `fc` for one captured layer, relative to the largest, below which the
layer counts as ignored: RMS of the columns, times the fc_norm's weights if there are any. It is 0.6
or more in the shipped drafters; without fc_norm it is smaller for layers with larger states."""


def check_captured_layers(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield captured layers that an engine orders, merges, does not count or does not find."""
    drafter, target = inspected.drafter, inspected.target
    if not drafter.reads_captured:
        return
    named = drafter.aux_layers
    if named is None:
        yield from _unnamed(inspected)
        return
    field, later = drafter.layers_field
    written = [layer - later for layer in named]
    nested, top = drafter.eagle_config.get(AUX_LAYERS), drafter.raw.get(AUX_LAYERS)
    if nested and top and list(nested) != list(top):
        yield error(
            id="captured_layers_contradict",
            title="config.json names captured layers twice, differently",
            expected="the same list at the top level and in eagle_config",
            rule=f"{VLLM_CAPTURE}: reads the top level; SGLang reads eagle_config",
            found=f"{top} and {nested}",
            change=f'"{AUX_LAYERS}": the list that it was trained with, in both places',
        )
    if nested and not top and not later:
        yield note(
            id="captured_layers_nested",
            title="captured layers are named in eagle_config alone, where not every engine looks",
            expected=f'"{AUX_LAYERS}" at the top level too',
            rule="vLLM 0.32: its V2 model runner reads the top level alone "
            "(eagle3_utils.get_eagle3_aux_layers_from_config), V1 and SGLang read eagle_config",
            found=f"{nested} in eagle_config",
            change=f'"{AUX_LAYERS}": {list(named)} at the top level',
        )
    if len(named) != drafter.aux_states:
        yield _uncounted(drafter, named)
    if sorted(set(named)) != list(named):
        yield error(
            id="captured_layers_order",
            title="captured layers are repeated or not in ascending order",
            expected=f"{sorted(set(written))}",
            rule=f"{VLLM_CAPTURE}: sorts the list and drops repeated entries",
            found=f"{written}",
            change=f'"{field}": {sorted(set(written))}, and the columns of fc in this order',
        )
    if target is not None and not all(0 <= layer <= target.layers for layer in named):
        yield error(
            id="captured_layers_range",
            title="a captured layer does not exist in the target",
            expected=f"layers 0 to {target.layers - later}"
            + ("" if later else " (0 is the embedding)"),
            rule=f"{VLLM_CAPTURE}: a layer that does not exist is never captured",
            found=f"{written}",
            change=f'"{field}": layers of this target',
        )
    if named[0] == 1 and not later and drafter.format.family is not Family.BLOCKS:
        yield note(
            id="captured_layers_in_sglang",
            title="SGLang counts these captured layers differently",
            expected=f"{list(named)} in vLLM",
            rule=f"{SGLANG_CAPTURE}: adds 1 to each if the first is 1; before, always",
            found=f"in SGLang {[layer + 1 for layer in named]}, counted as vLLM counts",
            certainty=Certainty.LIKELY,
        )


def _uncounted(drafter: DrafterFiles, named: tuple[int, ...]) -> CheckResult:
    """Return that vLLM builds `fc` for another number of states than it captures."""
    place = " in transformer_layer_config" if drafter.format.speculators else ""
    return error(
        id="captured_layers_uncounted",
        title="vLLM builds fc for another number of captured layers than config.json names",
        expected=f'"num_aux_hidden_states": {len(named)}{place}',
        rule=f"{VLLM_MODEL}: counts num_aux_hidden_states, or the list in eagle_config, or takes "
        "3; the list at the top level is not counted (vllm#54526)",
        found=f"{len(named)} layers, {list(named)}; fc is built for {drafter.aux_states}, and its "
        "weights do not load",
        change=f'"num_aux_hidden_states": {len(named)}{place}',
    )


def check_mask_token(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a token for what is to be drafted that is missing, or outside the vocabulary."""
    drafter = inspected.drafter
    if not drafter.format.parallel:
        return
    token = mask_token(drafter.fields)
    if isinstance(token, int) and 0 <= token < drafter.vocab_size:
        return
    own_row = (drafter.folder / "mask_embedding.pt").exists()
    yield CheckResult(
        id="mask_token_missing" if token is None else "mask_token_range",
        level=CheckLevel.NOTE if own_row and token is not None else CheckLevel.ERROR,
        title="config.json names no mask token"
        if token is None
        else "the mask token is outside the vocabulary",
        expected=f'"mask_token_id": an id from 0 to {drafter.vocab_size - 1}',
        rule="vLLM 0.32: a parallel drafter reads the embedding of this token at each place that "
        "it drafts, and stops without one",
        found=f"{token}" + ("; mask_embedding.pt replaces its embedding" if own_row else ""),
        change='"mask_token_id": the id that it was trained with',
    )


def check_medusa_bias(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield biases of Medusa's blocks for which vLLM has no place."""
    drafter = inspected.drafter
    biases = [name for name in drafter.tensors if name.endswith(".bias")]
    if biases and not drafter.fields.get("medusa_fc_bias"):
        yield warning(
            id="medusa_bias_dropped",
            title="vLLM drops the biases of the heads",
            expected='"medusa_fc_bias": true',
            rule="vLLM 0.32, medusa.py: builds biases if medusa_fc_bias is on, and passes over "
            "weights that have no place",
            found=f"{len(biases)} biases, and no medusa_fc_bias",
            change='"medusa_fc_bias": true',
        )


def check_ignored_layers(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield captured layers whose columns of `fc` are next to zero."""
    drafter = inspected.drafter
    fc = drafter.tensors.get("fc.weight")
    states = drafter.aux_states
    if fc is None or not fc.is_float or not states or len(fc.shape) != 2:
        return
    if not fc.elements or fc.shape[-1] % states:
        return
    norms = [drafter.tensors.get(f"fc_norm.{state}.weight") for state in range(states)]
    squares = np.zeros(fc.shape[-1])
    for block in fc.blocks():
        squares += np.square(block, dtype=np.float64).sum(axis=0)
    parts = np.split(squares / fc.shape[0], states)
    for part, norm in zip(parts, norms, strict=True):
        if norm is not None and norm.is_float and norm.shape == part.shape:
            part *= np.square(norm.array(), dtype=np.float64)
    sizes = [float(np.sqrt(part.mean())) for part in parts]
    largest = max(sizes, default=0.0)
    for state, size in enumerate(sizes):
        if size <= IGNORED_BELOW * largest:
            named = drafter.aux_layers
            layer = named[state] if named and state < len(named) else f"number {state + 1}"
            yield warning(
                id="captured_layer_ignored",
                title=f"fc ignores captured layer {layer}",
                expected="columns of comparable size for each captured layer",
                rule="an RMS below a thousandth of the largest has no part in the sum",
                found=f"RMS of the columns: {', '.join(f'{size:.2g}' for size in sizes)}",
                change="train with all captured layers, or capture fewer",
                certainty=Certainty.LIKELY,
            )


def _unnamed(inspected: Inspected) -> Iterator[CheckResult]:
    target = inspected.target
    if inspected.drafter.format.family in (Family.BLOCKS, None):
        field, _ = inspected.drafter.layers_field
        yield error(
            id=UNNAMED,
            title="config.json names no captured layers",
            expected=f'"{field}": the layers that it was trained with',
            rule=f"{VLLM_CAPTURE}: takes layers of EAGLE-3 by default",
            found="none",
            change=f'"{field}": the layers that it was trained with',
            certainty=Certainty.LIKELY,
        )
        return
    try:
        layers = default_aux_layers(target.layers) if target else None
    except ValueError:
        layers = ()
    if target is not None and not layers:
        yield error(
            id="captured_layers_collapse",
            title="config.json names no captured layers, and the default gives fewer than three",
            expected=f'"{AUX_LAYERS}": the layers that it was trained with',
            rule=f"{VLLM_DEFAULT}: 2, half and the third last of {target.layers} layers",
            found=f"2, {target.layers // 2}, {target.layers - 3}",
            change=f'"{AUX_LAYERS}": the layers that it was trained with',
        )
    else:
        yield note(
            id=UNNAMED,
            title="config.json names no captured layers; the engine uses its default",
            expected=f'"{AUX_LAYERS}": the layers that it was trained with',
            rule=VLLM_DEFAULT,
            found=f"none; the default is {list(layers)}" if layers else "none",
        )


_USUAL_THETA = 10000.0
_THETA_OF_BLOCKS = 1e6
"""Base that vLLM 0.32 gives to DFlash and DSpark without one (qwen3_dflash.py)."""
_TRAINED = "positions must turn as they did in training; trainers copy the target's"


def check_rope(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield differences of base and scaling of the rotary positions."""
    if inspected.target is None:
        return
    own, targets = inspected.drafter.fields, inspected.target.fields
    family = inspected.drafter.format.family
    if family is None and not _has_theta(own):  # its default is not known
        return
    if family is Family.BLOCKS and not _has_theta(own):
        own = {**own, "rope_theta": _THETA_OF_BLOCKS}
    per_layer = any(
        isinstance(value, dict) for value in (*_rope(own).values(), *_rope(targets).values())
    )
    if per_layer:  # layers of several kinds, each with its own positions
        return
    if rope_theta(own) != rope_theta(targets):
        yield warning(
            id="rope_theta_differs",
            title="rope_theta is not the target's",
            expected=f'"rope_theta": {rope_theta(targets):g}',
            rule=_TRAINED,
            found=f"{rope_theta(own):g}" if _has_theta(own) else f"absent: {_USUAL_THETA:g}",
            change=f'"rope_theta": {rope_theta(targets):g}, if it was trained so',
            certainty=Certainty.POSSIBLE,
        )
    if _scaling(own) != _scaling(targets):
        yield warning(
            id="rope_scaling_differs",
            title="the scaling of rotary positions is not the target's",
            expected=f"{_scaling(targets) or 'none'}",
            rule=_TRAINED,
            found=f"{_scaling(own) or 'none'}",
            change='"rope_scaling": as in the target\'s config, if it was trained so',
            certainty=Certainty.POSSIBLE,
        )


def check_context(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a shorter longest context, and a window that the target does not have."""
    if inspected.target is None:
        return
    own, targets = inspected.drafter.fields, inspected.target.fields
    ours, theirs = (config.get("max_position_embeddings") for config in (own, targets))
    if isinstance(ours, int) and isinstance(theirs, int) and ours < theirs:
        yield warning(
            id="context_shorter",
            title="the drafter ends before the target's longest context",
            expected=f"{theirs} positions, or --max-model-len {ours}",
            rule="vLLM drafts nothing past the drafter's length (vllm#34734, #58080)",
            found=f'"max_position_embeddings": {ours}',
            change=f'"max_position_embeddings": {theirs}, if it was trained so far',
            certainty=Certainty.LIKELY,
        )
    window = own.get("sliding_window") if own.get("use_sliding_window", True) else None
    if window and window != targets.get("sliding_window"):
        yield note(
            id="own_window",
            title="the drafter has a sliding window of its own",
            expected="an engine that applies it",
            rule="speculators#684: engines that ignored it lost acceptance with long contexts",
            found=f'"sliding_window": {window}',
        )


def _rope(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rotary settings, which transformers 5 keeps in rope_parameters."""
    settings = fields.get("rope_parameters") or fields.get("rope_scaling")
    return settings if isinstance(settings, dict) else {}


def _has_theta(fields: Mapping[str, Any]) -> bool:
    return "rope_theta" in fields or "rope_theta" in _rope(fields)


def rope_theta(fields: Mapping[str, Any]) -> float:
    """Return the base of the rotary positions of a config."""
    value = _rope(fields).get("rope_theta", fields.get("rope_theta"))
    return float(value) if isinstance(value, int | float) else _USUAL_THETA


def _scaling(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scaling without the base; empty for plain positions."""
    rope = dict(_rope(fields))
    rope.pop("rope_theta", None)
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    # A factor of 1 changes nothing, whatever the kind.
    return {} if kind == "default" or rope.get("factor") == 1 else {"rope_type": kind, **rope}


def check_engine(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield that the other engine does not know the architecture that config.json names."""
    drafter = inspected.drafter
    other = "vLLM" if drafter.for_sglang else "SGLang"
    ((theirs, ours),) = IN_SGLANG.items()
    name = ours if drafter.for_sglang else theirs
    yield note(
        id="architecture_of_one_engine",
        title=f"{other} does not serve EAGLE-1 under this name of the architecture",
        expected=f'"architectures": ["{name}"] for {other}',
        rule=VLLM_EAGLE1_NAME if drafter.for_sglang else SGLANG_EAGLE1,
        found=f'"architectures": {dumps(drafter.raw.get("architectures"))}',
    )


def check_bias(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield that SGLang makes up a bias that the file does not have."""
    drafter = inspected.drafter
    if FC_BIAS in drafter.tensors:
        return
    yield CheckResult(
        id="bias_random_in_sglang",
        level=CheckLevel.WARNING if drafter.for_sglang else CheckLevel.NOTE,
        title="SGLang adds a bias of random numbers in fc",
        expected=f"{FC_BIAS} for SGLang, and none for vLLM, which refuses it",
        rule=f"{SGLANG_EAGLE1}: fc has a bias, whose numbers stay random if the file has none",
        found=f"no {FC_BIAS}",
        change=f"for SGLang, add {FC_BIAS} of zeros to a copy" if drafter.for_sglang else None,
    )
