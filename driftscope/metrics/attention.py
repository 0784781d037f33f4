"""Attention mass of the drafter by depth, and its shift over depth.

The query at depth d sees p + d slots: the verified slots 0..p and the d - 1 slots that the chain
added (p is `DraftRow.position`). Masses are softmax probabilities summed over a class of slots,
averaged over heads by the probe, over layers and chains here.

A mean over chains is kept as two sums, so that it adds up over requests, files and engines. A chain
that was sampled at the rate r weighs 1 / r (Horvitz and Thompson 1952), so that a rate that changes
during a run leaves the mean unbiased.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from driftscope.metrics.definition import Definition

if TYPE_CHECKING:
    import ibis.expr.types as ir

Array = NDArray[np.floating[Any]]
_PAPER = "Attention Drift, arXiv 2605.09992; classes as in driftscope's trace"
SINK = Definition(
    name="attention.sink",
    title="Attention on the sink",
    meaning="Share of the drafter's attention on the first slots of the context. Many models put "
    "attention there that they have no other use for.",
    unit="1",
    range="0 to 1",
    source=_PAPER,
)
PROMPT = Definition(
    name="attention.prompt",
    title="Attention on the prompt",
    meaning="Share of the drafter's attention on the rest of the prompt.",
    unit="1",
    range="0 to 1",
    source=_PAPER,
)
GENERATED = Definition(
    name="attention.generated",
    title="Attention on the verified output",
    meaning="Share of the drafter's attention on tokens that the target has already produced.",
    unit="1",
    range="0 to 1",
    source=_PAPER,
)
SELF = Definition(
    name="attention.self",
    title="Attention on the chain itself",
    meaning="Share of the drafter's attention on the tokens that it has already drafted in this "
    "round. It is 0 at depth 1 by construction and gains one slot per depth.",
    unit="1",
    range="0 to 1",
    source=_PAPER,
)
NULL = Definition(
    name="attention.null",
    title="Attention on nothing",
    meaning="Share of the attention that a learned sink bias takes, in drafters that have one.",
    unit="1",
    range="0 to 1",
    source=_PAPER,
)
NEAR_SHIFT = Definition(
    name="attention.near_shift",
    title="Near shift",
    meaning="Attention on the nearest K - 1 places, the query's own included, minus the same at "
    "depth 1. It is 0 if attention by distance is the same at every depth, also in a drafter that "
    "prefers recent tokens.",
    unit="1",
    range="-1 to 1",
    source=f"driftscope; the drift is that of {_PAPER}",
)
OWN_EXCESS = Definition(
    name="attention.own_excess",
    title="Own excess",
    meaning="Attention on the chain's own tokens minus that on verified tokens in the same places "
    "at depth 1.",
    unit="1",
    range="-1 to 1",
    source="driftscope",
)
RETENTION = Definition(
    name="attention.sink_retention",
    title="Sink kept",
    meaning="Attention on the sink at a depth divided by that at depth 1. 1 means that all of it "
    "is kept.",
    unit="1",
    range="0 or more; empty without a sink",
    source=_PAPER,
)


def finite(value: ir.NumericValue) -> ir.BooleanValue:
    """Whether a value is a finite number; null for null. NaN sorts above infinity in SQL."""
    return value.abs() < math.inf


def weighted(value: ir.NumericValue, weight: ir.NumericValue) -> ir.NumericScalar:
    """Return the sum of finite values times their weights: the numerator of a mean."""
    import ibis

    return ibis.ifelse(finite(value), value * weight, ibis.null("float64")).sum()


def weight_of(value: ir.NumericValue, weight: ir.NumericValue) -> ir.NumericScalar:
    """Return the sum of the weights of finite values: the denominator of a mean."""
    import ibis

    return ibis.ifelse(finite(value), weight, ibis.null("float64")).sum()


def ratio(top: Array, bottom: Array) -> Array:
    """Return top / bottom; NaN where nothing was counted."""
    return np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1.0), np.nan)


def finite_mean(values: Array, axis: int = 0) -> Array:
    """Return the mean of the finite numbers along one axis; NaN where there are none."""
    known = np.isfinite(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.asarray(np.where(count > 0, total / np.where(count > 0, count, 1), np.nan))


def sink_retention(sink: Sequence[float]) -> tuple[float, ...]:
    """Return sink retention by depth, from the sink's mass."""
    return tuple(mass / sink[0] if sink[0] > 0 else math.nan for mass in sink)


def over_layers(layers: Sequence[ir.FloatingValue]) -> ir.FloatingValue:
    """Return the mean over the layers to which the class applies, for one chain and depth; null if
    there is none."""
    import ibis

    if len(layers) == 1:
        return layers[0]
    is_finite = [finite(layer).fill_null(False) for layer in layers]
    total = sum(ibis.ifelse(ok, layer, 0.0) for ok, layer in zip(is_finite, layers, strict=True))
    return total / sum(ok.cast("float64") for ok in is_finite).nullif(0.0)


def visible_sink(position: ir.IntegerValue, sink_slots: Sequence[int]) -> ir.IntegerValue:
    """Return how many slots of the sink set are among the verified slots 0..p; sets may have
    gaps."""
    import ibis

    slots = sorted(set(sink_slots))
    if slots == list(range(len(slots))):
        return ibis.least(position + 1, len(slots))
    return sum((position >= slot).cast("int64") for slot in slots)


def even_share(position: ir.IntegerValue, slots: ir.IntegerValue) -> ir.FloatingValue:
    """Return the mass on `slots` of the p + 1 verified slots if attention is spread evenly over
    them."""
    import ibis

    return ibis.least(slots / (position + 1.0), 1.0)


def layer_means(masses: Array) -> Array:
    """Return [n, K] from [n, K, layers], like `driftscope.metrics.attention.layer_means`; NaN
    instead of null."""
    finite = np.isfinite(masses)
    return ratio(np.where(finite, masses, 0.0).sum(axis=2), finite.sum(axis=2))
