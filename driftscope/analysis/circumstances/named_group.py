"""A group of rounds under a name."""

from __future__ import annotations

from driftscope.analysis.circumstances.groups import Group
from driftscope.analysis.figures import measure
from driftscope.analysis.figures.round_sums import Rounds
from driftscope.analysis.statistics.intervals.cluster_intervals import intervals


def group_of(name: str, rounds: Rounds) -> Group:
    """Return the group of these rounds; there must be at least one."""
    acceptance = measure.acceptance(rounds, spread=True)
    comparable = rounds.comparable_ratio()
    spread = intervals(comparable)
    return Group(
        name=name,
        requests=rounds.requests,
        rounds=len(rounds),
        mean_length=float(comparable.value[0]),
        mean_length_interval=spread[0] if spread else None,
        served_length=acceptance.mean_length,
        marginal=acceptance.marginal,
        marginal_interval=acceptance.marginal_interval,
    )
