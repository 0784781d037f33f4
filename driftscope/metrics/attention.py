"""Attention mass of the drafter by depth, and what it would be if nothing drifted.

The query of depth d sees p + d slots: the verified ones 0..p and the d - 1 that the chain itself
has added (p is `DraftRow.position`). Masses are softmax probabilities summed over a class of slots,
averaged over heads by the probe, over layers and chains here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.metrics.chains import Array, finite_mean
from driftscope.metrics.definition import Definition

_PAPER = "Attention Drift, arXiv 2605.09992; classes as in driftscope's trace"

SINK = Definition(
    name="attention.sink",
    title="Attention on the sink",
    meaning="Share of the drafter's attention on the first slots of the context. Many models park "
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
    meaning="Share of the drafter's attention on the tokens that it has just guessed in this "
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
NO_DRIFT = Definition(
    name="attention.no_drift",
    title="No-drift expectation",
    meaning="What the chain's own tokens would get if each of them weighed as much as an average "
    "non-sink slot weighs at depth 1, and every other slot kept its weight.",
    unit="1",
    range="0 to 1",
    source="driftscope; for a target without a sink it is even attention over the visible slots",
)

EXCESS = Definition(
    name="attention.excess",
    title="Attention on the chain beyond no drift",
    meaning="Attention on the chain's own tokens, less the no-drift expectation. "
    "0 means that they get what the slots that they add account for.",
    unit="1",
    range="-1 to 1",
    source="driftscope",
)


def per_layer(masses: Array, weight: Array | None = None) -> Array:
    """[n, K, layers] -> [K, layers], mean over chains of `weight`."""
    return finite_mean(masses, weight)


def over_layers(masses: Array) -> Array:
    """[n, K, layers] -> [n, K], mean over the layers to which the class applies."""
    return finite_mean(masses, axis=2)


def visible_sink(position: NDArray[np.int64], sink_slots: Sequence[int]) -> NDArray[np.int64]:
    """[n] slots of the sink set among the verified slots 0..p, sets with gaps included."""
    return np.searchsorted(np.unique(sink_slots), position, side="right")


def even_share(
    position: NDArray[np.int64], slots: NDArray[np.int64] | int, weight: Array | None = None
) -> float:
    """Mean mass that attention spread evenly over the p + 1 verified slots gives `slots` of
    them."""
    return float(finite_mean(np.minimum(slots / (position + 1.0), 1.0), weight))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDrift:
    """The no-drift expectation; both [K], depth 1 first."""

    self_mass: Array
    kept: Array
    """Share of its depth-1 mass that any class of context slots keeps beside the growing chain."""


def no_drift(
    position: NDArray[np.int64],
    sink: Array,
    null: Array | None,
    sink_slots: NDArray[np.int64] | int,
    k: int,
    weight: Array | None = None,
) -> NoDrift:
    """The expectation from depth 1: `sink` and `null` are [n] masses there, `position` is p.

    With `sink_slots` of the p + 1 slots in the sink set, a chain slot weighs w = (1 - sink - null)
    / (p + 1 - sink_slots), so d - 1 of them take (d-1)w / (1 + (d-1)w). A chain whose context is
    all sink, or whose sink lies outside the attention window, says nothing and is left out.
    """
    added = _added_weight(position, sink, null, sink_slots, k)
    return NoDrift(
        self_mass=finite_mean(expected_self(position, sink, null, sink_slots, k), weight),
        kept=finite_mean(1.0 / (1.0 + added), weight),
    )


def expected_self(
    position: NDArray[np.int64],
    sink: Array,
    null: Array | None,
    sink_slots: NDArray[np.int64] | int,
    k: int,
) -> Array:
    """[n, K] the no-drift expectation of each chain; arguments as in `no_drift`."""
    added = _added_weight(position, sink, null, sink_slots, k)
    return np.asarray(added / (1.0 + added))


def _added_weight(
    position: NDArray[np.int64],
    sink: Array,
    null: Array | None,
    sink_slots: NDArray[np.int64] | int,
    k: int,
) -> Array:
    """[n, K] (d-1)w, see `no_drift`."""
    others = position + 1.0 - sink_slots
    free = 1.0 - sink - (0.0 if null is None else null)
    each = np.where(others > 0, free / np.maximum(others, 1.0), np.nan)
    return np.asarray(np.arange(k)[None, :] * each[:, None])
