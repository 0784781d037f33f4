"""Decomposition of the agreement that is lost between depth 1 and depth K.

Agreement at a depth is the share of positions at which the drafted token is the target's, whatever
came before it in the chain. With tokens t and states s right (1) or the drafter's own (0), let
g_K(t, s) be the agreement at depth K. The loss g_1 - g_K(0, 0) is the sum of

    wrong tokens   what right tokens give back
    own states     what right states give back
    the rest       g_1 - g_K(1, 1): later positions are harder even with both right

What a factor gives back depends on whether the other one is right already. Each factor's part is
the mean of both orders (the Shapley value of two players), so that the parts add up exactly; both
orders are reported too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.ablate.intervention import (
    AS_SERVED,
    FACTORIAL,
    RIGHT_BOTH,
    RIGHT_STATES,
    RIGHT_TOKENS,
)
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import Ratio, intervals, ratio_of

Matches = NDArray[np.bool_]
"""Whether each drafted token is the target's, [positions of one prompt, K]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One term of the loss, as a share of all positions."""

    value: float
    interval: Interval | None
    """95% interval over prompts; None with too few of them."""
    orders: tuple[float, float] | None = None
    """Gains from the factor while the other one is the drafter's own, and while it is right;
    None for a term that is no factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposition:
    """Terms of the loss of agreement between depth 1 and depth K."""

    first: float
    """Agreement at depth 1."""
    last: float
    """Agreement at depth K as served."""
    loss: Part
    tokens: Part
    states: Part
    rest: Part


_COLUMNS = ("first", *FACTORIAL)
_FACTORS = {
    "loss": {"first": 1.0, AS_SERVED: -1.0},
    "tokens": {RIGHT_TOKENS: 0.5, AS_SERVED: -0.5, RIGHT_BOTH: 0.5, RIGHT_STATES: -0.5},
    "states": {RIGHT_STATES: 0.5, AS_SERVED: -0.5, RIGHT_BOTH: 0.5, RIGHT_TOKENS: -0.5},
    "rest": {"first": 1.0, RIGHT_BOTH: -1.0},
}
"""Coefficients of each term on the columns."""


def decompose(matches: Mapping[str, Sequence[Matches]]) -> Decomposition | None:
    """Return the decomposition from the matches of each intervention by prompt; None if one of
    FACTORIAL is missing or the chain has one depth. Prompts are the clusters of the intervals."""
    if any(name not in matches for name in FACTORIAL) or matches[AS_SERVED][0].shape[1] < 2:
        return None
    counts = np.array([[len(each)] for each in matches[AS_SERVED]], float)
    hits = [_hits(matches[AS_SERVED], 0), *(_hits(matches[name], -1) for name in FACTORIAL)]
    shares = ratio_of(np.column_stack(hits), np.repeat(counts, len(hits), axis=1))
    value = dict(zip(_COLUMNS, shares.value.tolist(), strict=True))
    tokens = (
        value[RIGHT_TOKENS] - value[AS_SERVED],
        value[RIGHT_BOTH] - value[RIGHT_STATES],
    )
    states = (
        value[RIGHT_STATES] - value[AS_SERVED],
        value[RIGHT_BOTH] - value[RIGHT_TOKENS],
    )
    return Decomposition(
        first=value["first"],
        last=value[AS_SERVED],
        loss=_part(shares, "loss"),
        tokens=_part(shares, "tokens", tokens),
        states=_part(shares, "states", states),
        rest=_part(shares, "rest"),
    )


def _hits(matches: Sequence[Matches], depth: int) -> NDArray[np.float64]:
    return np.array([each[:, depth].sum() for each in matches], float)


def _part(shares: Ratio, name: str, orders: tuple[float, float] | None = None) -> Part:
    """Return a linear combination of the columns with its interval."""
    weights = np.array([_FACTORS[name].get(column, 0.0) for column in _COLUMNS])
    one = Ratio(
        value=np.array([shares.value @ weights]),
        influence=(shares.influence @ weights)[:, None],
        df=shares.df[:1],
        units=shares.units[:1],
        heaviest=shares.heaviest[:1],
        share=shares.share[:, :1],
    )
    spread = intervals(one)
    return Part(value=float(one.value[0]), interval=spread[0] if spread else None, orders=orders)
