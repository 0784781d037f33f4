"""Test rates by depth and changes over time for runs of several K, simulated with known truth.

K follows the batch size, or is changed while the server runs. Wanted: 95 % intervals of the
marginal rates contain the truth in 93 to 97 % of the runs, over all rounds if acceptance does not
depend on the batch, and for each K if it does. A change over time is found in at most 5 % of the
runs in which only the mix of K changed. For comparison, the tables show the results of counting
over all rounds and of lengths as served.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from support.simulate import Truth
from support.simulate.sums import marginal_at_k, side

from driftscope.analysis.figures.change_points import Series, changes
from driftscope.analysis.figures.rounds import Rounds
from driftscope.analysis.statistics.intervals.cluster_intervals import rate_intervals
from driftscope.analysis.statistics.intervals.cluster_ratio import ratio_of
from driftscope.analysis.statistics.intervals.interval import Interval

BY_BATCH = Truth(requests=96, rounds=25, batches=(1, 2, 3, 6), k_by_batch=((2, 7), (4, 4), (6, 2)))
FALLING = -0.3
"""Logit shift of acceptance for each doubling of the batch."""
BUSIER = (*(1,) * 36, *(6,) * 12)
"""Batch sizes of a run in which load rises and K falls with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthCoverage:
    """Coverage of the interval at the depth where coverage is worst."""

    world: str
    rounds: str
    """Rounds that are counted: all, or those of one K."""
    depths: int
    worst: float
    counted: float | None
    """Coverage for rates as vLLM counts them; None if both are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixChanges:
    """Share of the runs in which a change over time was found although only the mix of K
    changed."""

    world: str
    comparable: float
    served: float
    """Share of runs in which a change is found for lengths as served."""


def coverages(trials: int) -> Iterator[DepthCoverage]:
    """Yield results for K by batch size, with equal acceptance at every batch size, then
    falling."""
    yield _coverage("K by batch size", BY_BATCH, None, trials)
    falling = replace(BY_BATCH, batch=FALLING)
    for k in (2, 4, 7):
        yield _coverage("K by batch size, acceptance falls with it", falling, k, trials)


def _coverage(world: str, truth: Truth, k: int | None, trials: int) -> DepthCoverage:
    depths = k or truth.k
    hits, counted = np.zeros(depths), np.zeros(depths)
    for trial in range(trials):
        drawn = replace(truth, seed=trial, prompts_seed=trial)
        rounds = side(drawn, drafted=k).rounds
        true = drawn.marginal() if k is None else marginal_at_k(drawn, k)
        hits += _hits(rate_intervals(rounds.marginal_ratio().first(depths)), true)
        counted += _hits(_as_counted(rounds), true)
    return DepthCoverage(
        world=world,
        rounds="all" if k is None else f"K = {k}",
        depths=depths,
        worst=float(hits.min() / trials),
        counted=float(counted.min() / trials) if k is None else None,
    )


def _as_counted(rounds: Rounds) -> tuple[Interval | None, ...] | None:
    of_all = np.broadcast_to(rounds.rounds[:, None].astype(np.float64), rounds.reached.shape)
    return rate_intervals(ratio_of(rounds.reached.astype(np.float64), of_all))


def _hits(found: tuple[Interval | None, ...] | None, true: np.ndarray) -> np.ndarray:
    pairs = zip(found or (), true, strict=False)
    return np.array([at is not None and at.low <= value <= at.high for at, value in pairs])


def mix_changes(trials: int) -> Iterator[MixChanges]:
    """Yield results for K that falls with rising load, with and without an effect of load, and by
    hand."""
    busier = replace(BY_BATCH, batches=BUSIER, requests=108)
    yield _changes("load rises, so K falls", busier, trials)
    yield _changes(
        "the same, acceptance falls with the batch", replace(busier, batch=FALLING), trials
    )
    by_hand = replace(BY_BATCH, batches=(3,), k_by_batch=(), k_from=((0.5, 2),))
    yield _changes("K set from 7 to 2 half-way", by_hand, trials)


def _changes(world: str, truth: Truth, trials: int) -> MixChanges:
    found = np.zeros(2)
    for trial in range(trials):
        rounds = side(replace(truth, seed=trial, prompts_seed=trial)).rounds
        for n, tokens in enumerate(
            (rounds.comparable_tokens()[:, 0], rounds.rounds + rounds.accepted)
        ):
            made = changes(_series(rounds, np.asarray(tokens, dtype=np.float64)))
            found[n] += made is not None and bool(made.points)
    return MixChanges(world=world, comparable=found[0] / trials, served=found[1] / trials)


def _series(rounds: Rounds, tokens: np.ndarray) -> Series:
    n = len(rounds.rounds)
    return Series(
        start_s=np.arange(n, dtype=np.float64),
        end_s=float(n),
        tokens=tokens,
        rounds=rounds.rounds.astype(np.float64),
        labels=np.full(n, "all"),
        several_k=True,
    )
