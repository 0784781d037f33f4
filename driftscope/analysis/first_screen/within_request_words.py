"""Sentences on how acceptance goes with the drafter's internals within requests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from driftscope.analysis.figures.verified_chains import WithinRequest, answers
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.analysis.statistics.within_strata import (
    FEWEST_CLUSTERS,
    FEWEST_ROWS,
    MARGIN,
    Answer,
    Association,
)
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.attention import SELF
from driftscope.metrics.hidden import GROWTH

_NAMES = {
    SELF.name: "attention on the chain itself",
    GROWTH.name: "growth of the hidden state",
}
CAVEAT = (
    "Draft tokens are compared within one request and one depth, among chains accepted up to that "
    "depth. This is an association, not a cause."
)


def lead(runs: Sequence[RunSummary]) -> str:
    """Return the sentences on all runs; each run is named if there are several."""
    named = [
        f"{run.label}: {words}" if len(runs) > 1 else words
        for run in runs
        if (words := _of_run(run.within_request))
    ]
    return " ".join([*named, CAVEAT]) if named else CAVEAT


def clauses(relations: Sequence[WithinRequest]) -> list[str]:
    """Return short clauses on the measures for which there is an answer."""
    pairs = zip(relations, answers(relations), strict=True)
    return [words for relation, answer in pairs if (words := _clause(relation, answer))]


def _clause(relation: WithinRequest, answer: Answer) -> str:
    name, alone = _NAMES[relation.measure], relation.alone
    if alone is None or answer is Answer.CANNOT_TELL:
        return ""
    if answer is Answer.NO:
        return f"acceptance within a request does not go with {name}"
    return (
        f"within a request, more {name} goes with {100 * abs(alone.per_sd):.1f} points {answer} "
        f"acceptance ({_points(alone.interval)} per standard deviation)"
    )


def _of_run(relations: Sequence[WithinRequest]) -> str:
    pairs = zip(relations, answers(relations), strict=True)
    return " ".join(_sentence(relation, answer) for relation, answer in pairs)


def _sentence(relation: WithinRequest, answer: Answer) -> str:
    name, alone = _NAMES[relation.measure], relation.alone
    if alone is None:
        return (
            f"Whether acceptance goes with {name} cannot be told: fewer than {FEWEST_CLUSTERS} "
            f"requests, or fewer than {FEWEST_ROWS} draft tokens in which both vary."
        )
    if answer is Answer.NO:
        return (
            f"Acceptance does not go with {name}: a change of {100 * MARGIN:g} points or more for "
            f"{_one_sd(relation)} can be excluded ({_points(alone.interval)} points)."
        )
    if answer is Answer.CANNOT_TELL:
        return (
            f"Whether acceptance goes with {name} cannot be told ({_points(alone.interval)} points "
            f"for {_one_sd(relation)}); about {alone.wanted_clusters:,} requests would tell, "
            f"{alone.clusters:,} were recorded."
        )
    return (
        f"With {_one_sd(relation)}, a draft token is accepted {100 * abs(alone.per_sd):.1f} points "
        f"{answer} often ({_points(alone.interval)}){_beyond(relation.beyond_confidence)}."
    )


def _one_sd(relation: WithinRequest) -> str:
    """Return one standard deviation of the measure in words."""
    sd = relation.alone.sd if relation.alone else math.nan
    if relation.measure == GROWTH.name:
        return f"a hidden state that has grown {math.expm1(sd):.0%} more"
    return f"{100 * sd:.1f} points more attention on the chain itself"


def _beyond(association: Association | None) -> str:
    if association is None:
        return ""
    return (
        f"; beyond the drafter's own confidence it is {100 * association.per_sd:+.1f} points "
        f"({_points(association.interval)})"
    )


def _points(interval: Interval) -> str:
    return f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f}"
