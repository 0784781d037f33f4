"""All repairs that are tried on a drafter: one change each, as public mistakes need it.

Sources: SpecForge#879 and vllm#46488 (norm_output), speculators#610 and #670 (fc_norm and
norm_before_fc), sglang#25454 and #32334 (captured layers); mimo.py of vLLM 0.32 and of SGLang
0.5.23 (state of MTP heads).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from driftscope.boundary.text import dumps
from driftscope.errors import UsageError
from driftscope.inspect.checkpoints import DrafterFiles
from driftscope.inspect.checks.tensors import EMBEDDING, HEAD
from driftscope.inspect.drafter_classes import AUX_LAYERS
from driftscope.inspect.reference.config import FINAL_STATE, LatentConfig, default_aux_layers
from driftscope.inspect.trial.drafting import Repair, Variant, repaired
from driftscope.inspect.trial.layer_repairs import (
    FITS_BETTER,
    HEAD_FIELDS,
    layer_repairs,
    queries_fit,
)
from driftscope.inspect.trial.result import DrafterChange

_QUERIES, _CACHED = "q_b_proj.weight", "kv_a_proj_with_mqa.weight"
_PLAIN_INPUTS = ("q_proj", "k_proj", "v_proj")
_LATENT_INPUTS = ("q_a_proj", "kv_a_proj_with_mqa")
_FIRST = "midlayer.self_attn."


def attention_repairs(base: Variant) -> Iterator[Repair]:
    """Yield the repairs of attention's projections."""
    latent = base.config.latent
    yield _in_pairs(base, latent) if latent else _in_halves(base, "q", "k")
    for part in () if latent else ("q", "k"):
        alone = _in_halves(base, part)
        if queries_fit(alone.variant) > FITS_BETTER * queries_fit(base):
            yield alone
    if not base.config.reads_final_state:
        parts = _LATENT_INPUTS if latent else _PLAIN_INPUTS
        names = [f"{_FIRST}{part}.weight" for part in parts]
        halves = {name: torch.cat(base.state[name].chunk(2, -1)[::-1], -1) for name in names}
        change = f"halves of the inputs of {', '.join(parts[:-1])} and {parts[-1]} exchanged"
        mistake = "attention reads the state before the embedding, not after it"
        yield repaired(base, "attention_halves", mistake, change=change, tensors=halves)


def _in_halves(base: Variant, *parts: str) -> Repair:
    turned = tuple(f"{one}_proj.{kind}" for one in parts for kind in ("weight", "bias"))
    state = dict(base.state)
    for name in (key for key in base.state if key.endswith(turned)):
        heads = state[name].reshape(-1, base.config.layer.head_dim, *state[name].shape[1:])
        state[name] = torch.cat([heads[:, ::2], heads[:, 1::2]], 1).reshape(state[name].shape)
    words = " and ".join(f"{part}_proj" for part in parts)
    change = f"rows of {words} in halves, not in pairs"
    mistake = f"rows of {words} are laid out for interleaved rotary positions"
    name = "rope_layout" if len(parts) > 1 else f"rope_layout_of_{parts[0]}"
    return repaired(base, name, mistake, change=change, tensors=state)


def _in_pairs(base: Variant, latent: LatentConfig) -> Repair:
    state = dict(base.state)
    for name in state:
        if name.endswith(_QUERIES):
            heads = latent.qk_nope_head_dim + latent.qk_rope_head_dim
            state[name] = _paired(state[name], heads, latent.qk_nope_head_dim)
        elif name.endswith(_CACHED):
            state[name] = _paired(state[name], len(state[name]), latent.kv_lora_rank)
    change = "rotated rows of q_b_proj and kv_a_proj_with_mqa in pairs, not in halves"
    mistake = "queries and keys are laid out for rotary positions in halves"
    return repaired(base, "rope_layout", mistake, change=change, tensors=state)


def _paired(rows: Tensor, head: int, plain: int) -> Tensor:
    """Return the rows with those after the first `plain` of each head in pairs, not in halves."""
    heads = rows.reshape(-1, head, rows.shape[-1])
    kept, turned = heads[:, :plain], heads[:, plain:]
    first, second = turned.chunk(2, 1)
    paired = torch.stack([first, second], 2).flatten(1, 2)
    return torch.cat([kept, paired], 1).reshape(rows.shape)


FC, INPUT_NORM = "fc.weight", "input_norm.weight"
_MOST_PERMUTED = 3
"""Captured states of which all orders are tried; of more, only the reverse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """Parts of the target that repairs use."""

    layers: int
    fields: Mapping[str, Any]
    """Fields of its config."""
    embedding: Tensor
    head: Tensor


def repairs(base: Variant, target: TargetFacts) -> list[Repair]:
    """Return the repairs that change anything, those of the config alone first."""
    both = (
        _embedding_and_head,
        lambda variant, _: attention_repairs(variant),
        lambda variant, facts: layer_repairs(variant, facts.fields),
    )
    only = _OF_FINAL_STATE if base.config.reads_final_state else _OF_EAGLE3
    makers: tuple[Callable[[Variant, TargetFacts], Iterator[Repair]], ...] = (*only, *both)
    found = [repair for make in makers for repair in make(base, target)]
    return sorted(found, key=lambda repair: repair.weights)


def layers_needed(base: Variant, candidates: Sequence[Repair]) -> set[int]:
    """Return the target layers whose states the drafter or a repair reads."""
    variants = [base, *(repair.variant for repair in candidates)]
    return {layer for variant in variants for layer in variant.config.aux_layers}


def _other_flag(base: Variant, flag: str) -> Repair:
    """Return the repair that gives a flag its other value."""
    fields = {flag: not getattr(base.config, flag)}
    return repaired(base, flag, f"{flag} has the wrong value", fields=fields)


def _halves_of_fc(base: Variant, _target: TargetFacts) -> Iterator[Repair]:
    halves = base.state[FC].chunk(2, -1)
    first, second = ("embedding", "state") if base.config.mtp else ("state", "embedding")
    mistake = f"fc reads the {first} before the {second}, not after it"
    tensors = {FC: torch.cat(halves[::-1], -1)}
    yield repaired(
        base, "fc_halves", mistake, change="halves of the columns of fc exchanged", tensors=tensors
    )


def _flags(base: Variant, _target: TargetFacts) -> Iterator[Repair]:
    yield _other_flag(base, "norm_output")
    yield _other_flag(base, "norm_before_residual")


def _norms_before_fc(base: Variant, _target: TargetFacts) -> Iterator[Repair]:
    config, states = base.config, len(base.config.aux_layers)
    names = [f"fc_norm.{state}.weight" for state in range(states)]
    if config.fc_norm or all(name in base.state for name in names):
        yield _other_flag(base, "fc_norm")
    else:
        yield repaired(
            base,
            "fc_norm_of_ones",
            "the norms of fc_norm were lost",
            change='"fc_norm": true, with weights of 1',
            fields={"fc_norm": True},
            tensors=dict.fromkeys(names, torch.ones(config.aux_size)),
        )
    if config.latent:  # vLLM's model of latent attention has no norm before fc
        return
    if config.norm_before_fc or INPUT_NORM in base.state:
        yield _other_flag(base, "norm_before_fc")
    yield from _exchanged(base, names)


def _exchanged(base: Variant, names: list[str]) -> Iterator[Repair]:
    """Take the weights of one norm for the other's."""
    config = base.config
    if config.fc_norm == config.norm_before_fc:
        return
    other = "norm_before_fc" if config.fc_norm else "fc_norm"
    one = "fc_norm" if config.fc_norm else "norm_before_fc"
    if config.fc_norm:
        norms = {INPUT_NORM: torch.cat([base.state[name] for name in names])}
    else:
        norms = dict(zip(names, base.state[INPUT_NORM].chunk(len(names)), strict=True))
    yield repaired(
        base,
        "fc_norm_or_norm_before_fc",
        f"{one} was written for {other}",
        change=f'"{one}": false, "{other}": true, with the same norm weights',
        fields={one: False, other: True},
        tensors=norms,
    )


BEST_TRIED = "best of the layers tried"


def _captured_layers(base: Variant, target: TargetFacts) -> Iterator[Repair]:
    """Yield all layers one lower or higher, vLLM's default, and each layer alone one lower or
    higher; what is near the best of these is searched once it is known, see `nearby_layers`."""
    now, tried = base.config.aux_layers, {base.config.aux_layers}
    others = {
        "captured layers are one too high": tuple(layer - 1 for layer in now),
        "captured layers are one too low": tuple(layer + 1 for layer in now),
    }
    with suppress(ValueError):  # too few layers to have a default
        others["captured layers are not the default"] = default_aux_layers(target.layers)
    for mistake, layers in others.items():
        inside = layers[0] >= 0 and layers[-1] <= target.layers
        if inside and layers not in tried and len(layers) == len(now):
            tried.add(layers)
            yield _other_layers(base, layers, f"{mistake} ({BEST_TRIED})")
    yield from nearby_layers(base, now, set(range(target.layers + 1)), tried)


def nearby_layers(
    base: Variant, around: tuple[int, ...], available: Collection[int], seen: set[tuple[int, ...]]
) -> Iterator[Repair]:
    """Yield captured layers of which one differs by one from `around`, and add them to `seen`."""
    for at, layer in enumerate(around):
        for other in (layer - 1, layer + 1):
            layers = (*around[:at], other, *around[at + 1 :])
            ascending = all(low < high for low, high in itertools.pairwise(layers))
            if other in available and ascending and layers not in seen:
                seen.add(layers)
                now = base.config.aux_layers
                mistake = f"captured layers are {list(now)}, not those of training ({BEST_TRIED})"
                yield _other_layers(base, layers, mistake)


def _other_layers(base: Variant, layers: tuple[int, ...], mistake: str) -> Repair:
    return repaired(
        base,
        f"captured_layers_{'_'.join(str(layer) for layer in layers)}",
        mistake,
        fields={AUX_LAYERS: list(layers)},
        config={"aux_layers": layers},
    )


def _vocabulary(base: Variant, _target: TargetFacts) -> Iterator[Repair]:
    if not base.config.draft_vocab_size:
        return
    table, numbers = base.state["d2t"], torch.arange(base.config.draft_vocab_size)
    tables = {
        "d2t_from_ids": ("d2t[i] - i", "d2t holds ids, not differences", table - numbers),
        "d2t_minus_one": ("d2t - 1", "d2t is one too high", table - 1),
        "d2t_plus_one": ("d2t + 1", "d2t is one too low", table + 1),
        "d2t_plus_ids": ("d2t[i] + i", "d2t holds ids minus twice their number", table + numbers),
    }
    mask = base.state.get("t2d")
    chosen = mask.flatten().nonzero().flatten() if mask is not None else numbers[:0]
    if len(chosen) == len(numbers):
        tables["d2t_from_t2d"] = ("d2t from t2d", "d2t contradicts t2d", chosen - numbers)
    for name, (change, mistake, tensor) in tables.items():
        ids = tensor + numbers
        if (
            not torch.equal(tensor, table)
            and ids.min() >= 0
            and ids.max() < base.config.layer.vocab_size
        ):
            yield repaired(base, name, mistake, change=change, tensors={"d2t": tensor})


def _embedding_and_head(base: Variant, target: TargetFacts) -> Iterator[Repair]:
    own = base.state.get(EMBEDDING)
    shape = target.embedding.shape
    if own is not None and own.shape == shape and not torch.equal(own, target.embedding):
        yield repaired(
            base,
            "targets_embedding",
            "the drafter's embedding is not the target's",
            change="no embed_tokens in the weights: the engine shares the target's",
            tensors={EMBEDDING: target.embedding},
        )
    head = base.state.get(HEAD)
    if head is None or head.shape[-1] != target.head.shape[-1]:
        return
    ids = torch.arange(len(head))
    if base.config.draft_vocab_size:
        ids = (ids + base.state["d2t"]).clamp(0, len(target.head) - 1)
    if len(ids) <= len(target.head) and not base.config.reads_final_state:  # it has the target's
        mistake = "the drafter's head is not in the order of its vocabulary, or untrained"
        tensors = {HEAD: target.head[ids]}
        yield repaired(
            base, "targets_head", mistake, change="lm_head: the target's rows", tensors=tensors
        )


def _orders(base: Variant, _target: TargetFacts) -> Iterator[Repair]:
    """Give each captured state the columns of another, and each norm's weights likewise."""
    states = len(base.config.aux_layers)
    blocks, same = base.state[FC].chunk(states, -1), tuple(range(states))
    norms = [f"fc_norm.{state}.weight" for state in same]
    orders = [*itertools.permutations(same)][1:] if states <= _MOST_PERMUTED else [same[::-1]]
    for order in orders:
        fc = {FC: torch.cat([blocks[at] for at in order], -1)}
        places = enumerate(order) if base.config.fc_norm else ()
        moved = {norms[to]: base.state[norms[at]] for to, at in places}
        both = f"columns of fc{' and norms' if moved else ''}"
        for part, changed, mistake, tensors in (
            (
                "states",
                both,
                "the captured states are in another order than fc expects",
                {**fc, **moved},
            ),
            ("fc", "columns of fc", "the columns of fc are in another order than fc_norm", fc),
            (
                "fc_norm",
                "fc_norm",
                "the norms of fc_norm are in another order than the columns of fc",
                moved,
            ),
        )[: 3 if moved else 1]:
            words = ", ".join(str(at + 1) for at in order)
            name = f"{part}_order_{'_'.join(str(at + 1) for at in order)}"
            change = f"{changed} in the order {words}"
            yield repaired(base, name, mistake, change=change, tensors=tensors)


def _norms_of_a_head(base: Variant, _target: TargetFacts) -> Iterator[Repair]:
    if base.config.mtp:
        yield repaired(
            base,
            "normed_state",
            "the head was trained on states after the target's final norm, and vLLM gives it "
            "those before",
            change="the target's state after its final norm (SGLang gives it to the head, vLLM "
            "does not)",
            config={"aux_layers": (FINAL_STATE,)},
        )
        yield _swapped(base, "token_and_hidden_norm", "token_layernorm", "hidden_layernorm")


def _swapped_norms(base: Variant, _target: TargetFacts) -> Iterator[Repair]:
    names = "midlayer.input_layernorm", "midlayer.hidden_norm"
    yield _swapped(base, "input_and_hidden_norm", *names)


def _swapped(base: Variant, name: str, *norms: str) -> Repair:
    """Exchange the norms of the embedding and of the state."""
    words = " and ".join(norm.rpartition(".")[2] for norm in norms)
    stored = [f"{norm}.weight" for norm in norms]
    tensors = {to: base.state[at] for to, at in zip(stored, stored[::-1], strict=True)}
    mistake = f"{words} were exchanged"
    return repaired(base, name, mistake, change=f"{words} exchanged", tensors=tensors)


_OF_FINAL_STATE = (_halves_of_fc, _norms_of_a_head)
_OF_EAGLE3 = (_flags, _norms_before_fc, _captured_layers, _vocabulary, _orders, _swapped_norms)


_LAYER_FIELDS = ("rope_theta", "rms_norm_eps", "partial_rotary_factor", *HEAD_FIELDS)
"""Fields that the speculators format keeps in transformer_layer_config."""


def repaired_config(files: DrafterFiles, repair: DrafterChange) -> dict[str, Any]:
    """Return the content of config.json after the repair, in the format that it has."""
    fields: dict[str, Any] = copy.deepcopy(dict(files.raw))
    nested = fields.get("eagle_config")
    for name, value in repair.fields.items():
        if files.format.speculators and name in _LAYER_FIELDS:
            fields["transformer_layer_config"][name] = value
        elif name in (fields.get("rope_parameters") or ()):
            fields["rope_parameters"][name] = value
        else:
            fields[name] = value
        if isinstance(nested, dict) and (name in nested or name == AUX_LAYERS):
            nested[name] = value
    return fields


def write_config(files: DrafterFiles, repair: DrafterChange, path: Path) -> None:
    """Write the repaired config to a file. Raises UsageError for the drafter's own config."""
    if path.exists() and path.samefile(files.folder / "config.json"):
        raise UsageError(f"--write-config {path}: is the drafter's own; give another file")
    path.write_text(dumps(repaired_config(files, repair), indent=1) + "\n", "utf-8")
