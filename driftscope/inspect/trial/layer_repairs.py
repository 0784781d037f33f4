"""Repairs of a drafter's layers that are tried: how heads are cut and ordered, matrices that were
transposed or exchanged, norms, rows that are far too large.

The order of heads needs no run to be found. A query head is trained against the keys of its group,
so that the same numbers of both are large; o_proj's columns of a group read the values of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, unflatten
from torch.nn.functional import normalize

from driftscope.inspect.checks.config import rope_theta
from driftscope.inspect.checks.layer_fields import Heads, heads_of
from driftscope.inspect.checks.tensors import some
from driftscope.inspect.reference.config import DecoderConfig, rotary_share
from driftscope.inspect.trial.drafting import Repair, Variant, repaired

HEAD_FIELDS = ("num_attention_heads", "num_key_value_heads", "head_dim")
OF_VOCABULARY = ("lm_head", "embed_tokens")
LIKE_A_DIFFERENCE = 0.5
"""Mean weight of a norm below which it may be stored as w - 1. Trained norms are near 1."""
TOO_LARGE = 30.0
"""Largest number of a row relative to the median row's, above which the row is an outlier."""


def layer_repairs(base: Variant, target: Mapping[str, Any]) -> Iterator[Repair]:
    """Yield the repairs of the layers; `target` are the fields of the target's config."""
    yield from _numbers_of_target(base, target)
    yield from _norms_plus_one(base)
    yield from _rows(base)
    yield from _scale(base)
    yield from _gate_and_up(base)
    if base.config.latent is None:
        yield from _cut_of_heads(base, target)
        yield from _keys_and_values(base)
        yield from _order_of_heads(base)
        yield from _o_proj(base)


def _other_layer(base: Variant, name: str, mistake: str, fields: Mapping[str, Any]) -> Repair:
    layer: DecoderConfig = replace(base.config.layer, **fields)
    return repaired(base, name, mistake, fields=fields, config={"layer": layer})


def _numbers_of_target(base: Variant, target: Mapping[str, Any]) -> Iterator[Repair]:
    """Yield each number of the layer that is not the target's."""
    numbers = {"rms_norm_eps": target.get("rms_norm_eps", 1e-6)}
    if base.scaling is None:
        numbers["rope_theta"] = rope_theta(target)
    if base.scaling is None and base.config.latent is None:
        numbers["partial_rotary_factor"] = rotary_share(target)
    for name, theirs in numbers.items():
        if isinstance(theirs, int | float) and theirs != getattr(base.config.layer, name):
            yield _other_layer(base, name, f"{name} is not the target's", {name: float(theirs)})


def _cut_of_heads(base: Variant, target: Mapping[str, Any]) -> Iterator[Repair]:
    """Yield the target's heads, and heads of half and of double size, where the shapes fit."""
    layer = base.config.layer
    queries, keys, size = (getattr(layer, name) for name in HEAD_FIELDS)
    found = dict[Heads, None]()
    theirs = heads_of(target)
    if theirs and (theirs[0] * theirs[2], theirs[1] * theirs[2]) == (queries * size, keys * size):
        found[theirs] = None
    if keys % 2 == 0:
        found[queries // 2, keys // 2, size * 2] = None
    if size % 4 == 0:
        found[queries * 2, keys * 2, size // 2] = None
    found.pop((queries, keys, size), None)
    for heads in () if base.config.qk_norm or base.scaling else found:
        mistake = f"heads are cut into {queries} of {size}, not {heads[0]} of {heads[2]}"
        fields = dict(zip(HEAD_FIELDS, heads, strict=True))
        yield _other_layer(base, f"heads_{heads[0]}_of_{heads[2]}", mistake, fields)


def _norms_plus_one(base: Variant) -> Iterator[Repair]:
    tensors = {
        name: one + 1
        for name, one in base.state.items()
        if "norm" in name and one.dim() == 1 and float(one.mean()) < LIKE_A_DIFFERENCE
    }
    if tensors:
        mistake = "the norms are stored as differences from 1, as Gemma's"
        change = f"1 added to {some([*tensors])}"
        yield repaired(base, "norms_plus_one", mistake, change=change, tensors=tensors)


def _rows(base: Variant) -> Iterator[Repair]:
    """Yield the drafter with outlying rows as large as the others."""
    tensors, words = dict[str, Tensor](), list[str]()
    for name, one in base.state.items():
        if one.dim() != 2 or not one.is_floating_point():
            continue
        sizes = one.abs().amax(-1).double()
        usual = sizes.median()
        large = sizes > TOO_LARGE * usual
        if usual > 0 and large.any():
            factor = torch.where(large, usual / sizes, torch.ones_like(sizes)).float()
            tensors[name] = one * factor[:, None]
            rows = large.nonzero().flatten().tolist()
            words.append(f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows[:3]))} of {name}")
    if tensors:
        change = f"{'; '.join(words[:3])} as large as the others"
        mistake = f"{'; '.join(words[:3])}: more than {TOO_LARGE:g} times as large as the others"
        yield repaired(base, "outlying_rows", mistake, change=change, tensors=tensors)


def _scale(base: Variant) -> Iterator[Repair]:
    """Yield the drafter with the matrices of fc and of its layers twice as large."""
    tensors = {
        name: 2 * one
        for name, one in base.state.items()
        if one.dim() == 2 and one.is_floating_point() and not name.startswith(OF_VOCABULARY)
    }
    mistake = (
        "the matrices are about half as large as they were trained: mixed with the weights that "
        "training started from, or merged with the wrong scale"
    )
    change = "matrices of fc and of the layers twice as large"
    yield repaired(base, "matrices_half_as_large", mistake, change=change, tensors=tensors)


def _layers(base: Variant, part: str) -> Iterator[str]:
    """Yield the beginning of the names of each layer's `part`."""
    names = [name for name in base.state if name.endswith(f"{part}.weight")]
    return (name.removesuffix(f"{part}.weight") for name in names)


BELONGS = 3.0
"""Standard deviations by which up_proj fits down_proj better than gate_proj does, above which both
are surely not exchanged."""
_SAMPLED = 1024
"""Neurons that are compared."""


def _fit(rows: Tensor, down: Tensor) -> float:
    """Return how well rows of a projection, [neurons, inputs], fit the columns of down_proj,
    [neurons, outputs], in standard deviations.

    A neuron works the same with the signs of its rows of up_proj and of down_proj reversed, so that
    they are trained together, while those of gate_proj and down_proj are independent.
    """
    at = torch.linspace(0, len(rows) - 1, min(len(rows), _SAMPLED)).long()
    first, second = (one[at].double() for one in (rows, down))
    products = torch.triu((first @ first.T) * (second @ second.T), 1)
    return float(products.sum() / products.square().sum().sqrt().clamp(min=1e-300))


def _gate_and_up(base: Variant) -> Iterator[Repair]:
    """Yield gate_proj and up_proj exchanged, unless the weights say that they are not."""
    layers = list[str]()
    for layer in _layers(base, "gate_proj"):
        gate, up, down = (
            base.state[f"{layer}{part}_proj.weight"] for part in ("gate", "up", "down")
        )
        if _fit(up, down.T) <= _fit(gate, down.T) + BELONGS:
            layers.append(layer)
    yield from _exchanged(base, layers, "gate", "up")


def _keys_and_values(base: Variant) -> Iterator[Repair]:
    """Yield k_proj and v_proj exchanged, if the queries fit the values better than the keys."""
    if queries_fit(base, "v") > FITS_BETTER * queries_fit(base):
        yield from _exchanged(base, _layers(base, "k_proj"), "k", "v")


FITS_BETTER = 1.2
"""Factor by which queries must fit better after a repair: they fit their keys 3.7 times as well as
independent rows in the shipped drafters, and 1.4 times in the last layer of their target."""


def queries_fit(variant: Variant, part: str = "k") -> float:
    """Return how well the queries fit the keys, or another part: the mean size of the cosines of
    corresponding rows, of each head with the group that fits it best. With n inputs independent
    rows have sqrt(2 / (pi n)), and trained ones more."""
    fits, size = list[Tensor](), variant.config.layer.head_dim
    for layer in _layers(variant, "k_proj"):
        queries, others = (
            unflatten(normalize(variant.state[f"{layer}{one}_proj.weight"]), 0, (-1, size))
            for one in ("q", part)
        )
        fits.append(torch.einsum("hdi,gdi->hgd", queries, others).abs().mean(-1).amax(1).mean())
    return float(torch.stack(fits).mean())


def _exchanged(base: Variant, layers: Iterable[str], *parts: str) -> Iterator[Repair]:
    """Yield two projections of equal shapes exchanged, with their biases, in some layers."""
    tensors = dict[str, Tensor]()
    for layer, kind in itertools.product(layers, ("weight", "bias")):
        first, second = (f"{layer}{part}_proj.{kind}" for part in parts)
        if first in base.state and second in base.state:
            tensors |= {first: base.state[second], second: base.state[first]}
    if tensors:
        words = " and ".join(f"{part}_proj" for part in parts)
        yield repaired(
            base,
            "_and_".join(parts),
            f"{words} were exchanged",
            change=f"{words} exchanged",
            tensors=tensors,
        )


def _o_proj(base: Variant) -> Iterator[Repair]:
    names = [f"{layer}o_proj.weight" for layer in _layers(base, "o_proj")]
    if all(base.state[name].shape[0] == base.state[name].shape[1] for name in names):
        tensors = {name: base.state[name].T.contiguous() for name in names}
        mistake = "o_proj was stored transposed"
        yield repaired(
            base, "o_proj_transposed", mistake, change="o_proj transposed", tensors=tensors
        )


def _order_of_heads(base: Variant) -> Iterator[Repair]:
    """Yield the drafter with the heads in the order in which they fit each other."""
    heads = tuple(getattr(base.config.layer, name) for name in HEAD_FIELDS)
    tensors, words = dict[str, Tensor](), list[str]()
    for layer in _layers(base, "o_proj"):
        for part, state, order in _ordered(base.state, layer, heads):
            tensors |= state
            words.append(f"{part} in the order {', '.join(str(at + 1) for at in order)}")
    if tensors:
        change = f"heads of {'; '.join(words[:4])}"
        mistake = "the heads of queries, keys and values are not in the same order"
        yield repaired(base, "order_of_heads", mistake, change=change, tensors=tensors)


def _ordered(
    state: Mapping[str, Tensor], layer: str, heads: tuple[int, ...]
) -> Iterator[tuple[str, dict[str, Tensor], Sequence[int]]]:
    """Yield parts of a layer with their heads in another order: keys or queries, then values."""
    queries, keys, size = heads
    repeats = queries // keys
    q, k, v, o = (state[f"{layer}{part}_proj.weight"] for part in "qkvo")
    by_query, by_key = (unflatten(one, 0, (-1, size)) for one in (q, k))
    # Positions rotate each number of a head with one other: only equal numbers are compared.
    together = torch.einsum("hdi,gdi->hgd", by_query, by_key).abs().sum(-1)
    groups = _groups(together, repeats)
    whole = groups[::repeats]
    if groups == [group for group in whole for _ in range(repeats)]:
        yield from _reordered(state, f"{layer}k_proj", whole)
    else:
        # Within a group the order is not known: a rotation of all heads is the likeliest.
        turns = ([*range(at, queries), *range(at)] for at in range(queries))
        by_group = sorted(range(queries), key=lambda head: (groups[head], head))
        fits = (turn for turn in turns if [groups[head] for head in turn] == sorted(groups))
        order = next(fits, by_group)
        yield from _reordered(state, f"{layer}q_proj", order)
    reads = unflatten(o.T, 0, (keys, repeats, size)).transpose(-1, -2)
    values = unflatten(v, 0, (-1, size))
    sizes = torch.stack([_aligned(reads, one).sum(-1) for one in values], -1)
    yield from _reordered(state, f"{layer}v_proj", _groups(sizes, 1))


def _aligned(reads: Tensor, values: Tensor) -> Tensor:
    """Return how much blocks of o_proj [..., hidden, size] read of values [size, inputs]."""
    size = (reads @ values).flatten(-2).norm(dim=-1)
    aligned: Tensor = size / (reads.flatten(-2).norm(dim=-1) * values.norm())
    return aligned


def _reordered(
    state: Mapping[str, Tensor], name: str, order: Sequence[int]
) -> Iterator[tuple[str, dict[str, Tensor], Sequence[int]]]:
    """Yield a projection, with its bias, whose heads are in another order."""
    if list(order) != sorted(order):
        names = [f"{name}.{kind}" for kind in ("weight", "bias") if f"{name}.{kind}" in state]
        moved = {
            part: unflatten(state[part], 0, (len(order), -1))[list(order)].flatten(0, 1)
            for part in names
        }
        yield name.rpartition(".")[2], moved, order


def _groups(scores: Tensor, repeats: int) -> list[int]:
    """Return the group that fits each head best, [heads, groups], each for `repeats` heads."""
    from scipy.optimize import linear_sum_assignment

    costs = -np.repeat(scores.double().nan_to_num().cpu().numpy(), repeats, 1)
    heads, places = linear_sum_assignment(costs)
    found = dict(zip(heads.tolist(), (places // repeats).tolist(), strict=True))
    return [found[head] for head in range(len(scores))]
