"""Acceptance of two runs at one mix of labels, for runs that did not answer the same prompts.

A run that served more of an easy label accepts more, whatever its drafter. The figures of each run
are averages over the labels that both have, weighted by the mean of both runs' shares of rounds
(direct standardisation: Fleiss, Levin and Paik 2003, chapter 19).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.figures.side import Side
from driftscope.analysis.statistics.intervals.cluster_ratio import Ratio, joined, ratio_of, weighted
from driftscope.analysis.statistics.mix_adjustment import LEAST_CLUSTERS, OTHER
from driftscope.analysis.statistics.risk_sets import marginal_ratio

LEAST_APART = 0.01
"""Smallest difference in a label's share of the rounds for which the mixes differ."""


def common_mix(a: Side, b: Side) -> Mapping[str, float]:
    """Return the share of each label at which the runs are compared, in order of the name; {} if
    they have one mix, or no label in common. If only one label is common, it is compared alone.

    Labels with fewer than LEAST_CLUSTERS clusters of requests in either run count as one, OTHER; it
    is left out if it has too few itself.
    """
    often = set.intersection(*(_frequent(side, np.array(side.labels)) for side in (a, b)))
    names = [_merged(side, often) for side in (a, b)]
    known = set.intersection(*(_frequent(*each) for each in zip((a, b), names, strict=True)))
    shares = [_shares(side, each) for side, each in zip((a, b), names, strict=True)]
    apart = [abs(shares[0].get(n, 0.0) - shares[1].get(n, 0.0)) for n in {*shares[0], *shares[1]}]
    if not known or max(apart) < LEAST_APART:
        return {}
    mean = {name: (shares[0][name] + shares[1][name]) / 2 for name in sorted(known)}
    return {name: share / sum(mean.values()) for name, share in mean.items()}


def figures_at(side: Side, mix: Mapping[str, float], k: int) -> Ratio:
    """Return the acceptance length, then the marginal rate at each depth, [1 + k], at `mix`;
    clusters without a round are left out."""
    rounds, label = side.rounds, _merged(side, mix)
    parts = []
    for name in mix:
        mine = np.asarray(label == name, dtype=np.int64)[:, None]
        tokens = (rounds.rounds + rounds.accepted)[:, None]
        length = rounds.over_clusters(ratio_of, tokens * mine, rounds.rounds[:, None] * mine)
        sums = (each * mine for each in (rounds.reached, rounds.at_risk, rounds.deep_enough))
        parts.append(joined(length, rounds.over_clusters(marginal_ratio, *sums).first(k)))
    return weighted(parts, list(mix.values()))


def _frequent(side: Side, names: NDArray[np.str_]) -> set[str]:
    """Return the names of enough clusters of requests."""
    pairs = {*zip(names.tolist(), side.rounds.cluster.tolist(), strict=True)}
    found, number = np.unique([name for name, _ in pairs], return_counts=True)
    return {str(name) for name, n in zip(found, number, strict=True) if n >= LEAST_CLUSTERS}


def _merged(side: Side, names: Mapping[str, float] | set[str]) -> NDArray[np.str_]:
    """Return the label of each row, OTHER if it is none of `names`, [rows]."""
    return np.array([label if label in names else OTHER for label in side.labels])


def _shares(side: Side, names: NDArray[np.str_]) -> dict[str, float]:
    found, at = np.unique(names, return_inverse=True)
    rounds = np.bincount(at, side.rounds.rounds.astype(np.float64))
    return dict(zip(found.tolist(), (rounds / rounds.sum()).tolist(), strict=True))
