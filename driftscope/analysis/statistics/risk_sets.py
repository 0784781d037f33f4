"""Acceptance by depth over rounds that drafted different numbers of tokens: risk sets.

At depth i only rounds that drafted at least i tokens, and of which i-1 were accepted, can accept or
reject. The conditional rate divides by the number of these rounds, and the marginal rate is the
running product of conditional rates (Kaplan and Meier 1958). If every round drafts K tokens, the
product is the plain share of all rounds.
"""

from __future__ import annotations

import numpy as np

from driftscope.analysis.query.column_arrays import Matrix
from driftscope.analysis.statistics.intervals.cluster_ratio import Ratio, heaviest_of, ratio_of
from driftscope.analysis.statistics.intervals.degrees_of_freedom import degrees_of_freedom
from driftscope.metrics.acceptance import running_product


def conditional_ratio(accepted: Matrix, at_risk: Matrix) -> Ratio:
    """Return the conditional rate at each depth; sums are by cluster, [clusters, K]."""
    return ratio_of(accepted, at_risk)


def marginal_ratio(accepted: Matrix, at_risk: Matrix, drafted: Matrix) -> Ratio:
    """Return the marginal rate at each depth; sums are by cluster, [clusters, K] each.

    `accepted`: rounds with at least i tokens accepted; `at_risk`: rounds in which token i could be
    accepted; `drafted`: rounds that drafted at least i tokens, whose shares give the degrees of
    freedom.
    """
    top, bottom = accepted.sum(axis=0), at_risk.sum(axis=0)
    value = running_product(top, bottom)
    left_out = running_product(top - accepted, bottom - at_risk)
    units = drafted.sum(axis=0)
    share = drafted / np.where(units > 0, units, np.nan)
    return Ratio(
        value=value,
        influence=np.where(share < 1, value - left_out, np.nan),
        df=degrees_of_freedom(share),
        units=units,
        heaviest=heaviest_of(share),
        share=share,
    )
