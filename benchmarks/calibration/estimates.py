"""Intervals of one run: of acceptance, over prompts that repeat and sessions, and of mean times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.random import RandomState
from support.simulate import Prompts, Truth
from support.simulate.sums import side

from benchmarks.calibration.runs import differ
from benchmarks.calibration.table import (
    COVERED,
    COVERED_BY_FEW,
    NEVER,
    Figures,
    at_worst,
    holds,
    table,
)
from driftscope.analysis.figures.rounds import Side
from driftscope.analysis.query.query_engine import Matrix
from driftscope.analysis.statistics.intervals import Interval, student
from driftscope.analysis.statistics.ratio import (
    design_effect,
    intervals,
    mean_interval,
    mean_time_interval,
    rate_intervals,
    spans_of,
)

RESAMPLES = 500
TWO = (Prompts(label="chat", shift=0.4), Prompts(label="code", shift=-0.4, tokens=(500, 4000)))
RUNS = {
    "30 requests": Truth(requests=30, rounds=30),
    "100 requests": Truth(requests=100, rounds=30),
    "300 short requests": Truth(requests=300, rounds=8),
    "100 requests that differ much": Truth(requests=100, rounds=30, between=1.2),
    "100 requests of two kinds": Truth(requests=100, rounds=30, prompts=TWO),
}
"""Truths by name; their depths reach marginal rates from 0.8 down to about 0.05."""


def run_of(truth: Truth, trial: int, prompts: int | None = None) -> Side:
    """Draw one run; runs with the same `prompts` have the same prompts."""
    prompts = trial if prompts is None else prompts
    return side(replace(truth, seed=10_000 + trial, prompts_seed=50_000 + prompts))


def twice(truth: Truth, trial: int, *, paired: bool) -> tuple[Side, Side]:
    """Draw two runs, of the same prompts or not."""
    first, second = 2 * trial, 2 * trial + 1
    return run_of(truth, first), run_of(truth, second, first if paired else None)


def inside(found: Sequence[Interval | None] | None, true: np.ndarray) -> np.ndarray:
    """Return whether each interval contains the truth."""
    return np.array([bool(holds(a, b)) for a, b in zip(found or (), true, strict=True)])


def _bootstrap(top: np.ndarray, rounds: np.ndarray, seed: int) -> Iterator[Interval]:
    n = len(top)
    drawn = np.random.RandomState(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    low, high = np.percentile((drawn @ top) / (drawn @ rounds), [2.5, 97.5], axis=0)
    return (Interval(low=a, high=b) for a, b in zip(low, high, strict=True))


def _where(truth: Truth, made: Sequence[Figures]) -> Figures:
    """Return which figure is covered least often beside how often."""
    at = int(np.mean([one["covered"] for one in made], axis=0).argmin())
    named = f"marginal, depth {at}" if at else "acceptance length"
    return {"worst": named, **at_worst(truth, made)}


@table(
    "coverage",
    "95 % intervals, {trials} simulated runs each: share that holds the truth, at worst",
    worlds=RUNS,
    summary=_where,
    wanted=lambda _: {"covered": COVERED},
)
def coverage(truth: Truth, trial: int) -> Figures:
    """Return whether the intervals of one run contain the truth, of the acceptance length and of
    each depth; and the same of a bootstrap."""
    true = np.append(truth.mean_length(), truth.marginal())
    drawn = run_of(truth, trial).rounds
    ours = (intervals(drawn.length_ratio()) or ()), (rate_intervals(drawn.marginal_ratio()) or ())
    rounds = drawn.rounds[:, None].astype(np.float64)
    sums = np.hstack([rounds + drawn.accepted[:, None], drawn.reached])
    return {
        "covered": inside([*ours[0], *ours[1]], true),
        "bootstrap": inside(list(_bootstrap(sums, rounds, trial)), true),
    }


def _repeated(prompts: int, times: int, **more: float) -> Truth:
    sizes = {"requests": prompts * times, "repeats": times, "rounds": 20}
    return replace(Truth(k=5, between=0.7, within=0.2), **sizes, **more)


REPEATED = {
    f"{prompts} prompts x {times}": _repeated(prompts, times)
    for prompts, times in ((16, 4), (8, 8), (20, 10), (6, 10), (4, 10), (200, 1))
} | {"20 prompts x 15 sessions": _repeated(20, 15, sessions=15, alike=0.5)}
FEW_CLUSTERS = 8
"""Number of clusters below which their intervals may cover the truth less often."""


def _of_clusters(truth: Truth) -> Figures:
    few = (truth.sessions or truth.requests // truth.repeats) < FEW_CLUSTERS
    covered = COVERED_BY_FEW if few else COVERED
    return {"covered": covered, "unpaired": NEVER, "paired": NEVER}


@table(
    "clusters",
    "Repeated prompts and sessions, {trials} runs each",
    worlds=REPEATED,
    wanted=_of_clusters,
    formats={"design_effect": ".1f"},
)
def clustered(truth: Truth, seed: int) -> Figures:
    """Return whether the intervals over clusters, and over requests, of one run hold the truth, and
    whether any difference of two equal runs of other prompts, or of the same, is reported."""
    true = truth.mean_length()
    rounds = run_of(truth, seed).rounds
    over_clusters, over_requests = rounds.length_ratio(), rounds.ungrouped().length_ratio()
    half = student(over_clusters.df) * over_clusters.error
    plain = intervals(over_requests)
    return {
        "covered": bool(abs(over_clusters.value[0] - true) <= half[0]),
        "by_request": bool(plain and holds(plain[0], true)),
        "intervals": (intervals(over_clusters) or (None,))[0] is not None,
        "design_effect": design_effect(over_clusters, over_requests),
        "unpaired": differ(*twice(truth, seed + 500_000, paired=False)),
        "paired": differ(*twice(truth, seed + 500_000, paired=True), paired=True),
    }


TRUE_MEAN = 10.0
OWN_NOISE = 0.5
"""Standard deviation of a request's own time; that of the shared speed is 1."""
LOADS = {
    f"{at_once} at once, {requests} requests": (at_once, requests)
    for at_once, sizes in ((1, (160, 1000)), (4, (160, 320, 1000)), (8, (160, 1000)))
    for requests in sizes
}
"""Requests at once, and requests of the run."""


def _times(random: RandomState, at_once: int, requests: int) -> Matrix:
    """Return the times of a run's requests in order of arrival, [requests]."""
    groups = random.normal(0.0, 1.0, requests // at_once + 2)
    shared = np.repeat(groups, at_once)[random.randint(at_once) :][:requests]
    return TRUE_MEAN + shared + random.normal(0.0, OWN_NOISE, requests)


@table(
    "shared_steps",
    "Mean times of requests served at once, {trials} runs each: intervals hold the truth",
    worlds=LOADS,
    # At most 20 spans of time, of which few may be independent.
    wanted=lambda _: {"covered": COVERED_BY_FEW},
    formats={"wider": ".2f"},
)
def shared_steps(load: tuple[int, int], seed: int) -> Figures:
    """Return whether intervals over requests hold the truth, and those that know of time, which
    driftscope reports; and the width of these, as a ratio to those over requests."""
    at_once, requests = load
    values = _times(RandomState(1000 * (at_once * 10_000 + requests) + seed), at_once, requests)
    spans = spans_of(np.arange(requests) * 1.0, np.full(requests, float(at_once)))
    alone, over_time = mean_interval(values), mean_time_interval(values, spans)
    assert alone is not None and over_time is not None
    return {
        "over_requests": holds(alone, TRUE_MEAN),
        "covered": holds(over_time, TRUE_MEAN),
        "wider": (over_time.high - over_time.low) / (alone.high - alone.low),
    }
