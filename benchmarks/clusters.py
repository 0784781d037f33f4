"""Test intervals and comparisons where prompts repeat, or sessions and prompts cross.

In the worlds "PROMPTS x TIMES" every prompt is asked several times; in the crossed ones every
session asks every prompt once. Requests of one prompt, and of one session, are alike. Wanted: 95 %
intervals of the acceptance length over clusters contain the truth in 93 to 97 % of runs, and of few
clusters (G < 8) in at least 90 %; two runs of the same drafter, with the same prompts or with
others, are called different in at most 6.8 % of 400 comparisons. With fewer than 5 effective
clusters there is no interval; its coverage is then that of the formula.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import RandomState

from driftscope.analysis.compare.run_comparison import comparison
from driftscope.analysis.figures.rounds import Rounds
from driftscope.analysis.figures.side import BY_DIGEST, UNPAIRED, Pairing, Side
from driftscope.analysis.statistics.clusters import design_effect
from driftscope.analysis.statistics.intervals.cluster_intervals import intervals
from driftscope.analysis.statistics.intervals.degrees_of_freedom import student

LOGITS = (1.4, 0.94, 0.66, 0.41, 0.2)
"""Logit of acceptance at each depth, given the depth before."""
K = len(LOGITS)
NODES = 40
OTHER_STREAM = 500_000
"""Added to a run's seed for its prompts, whose effects must not be those of its requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Truth of one world; effects are on the logit of acceptance."""

    prompts: int
    times: int
    """Number of requests of each prompt."""
    sessions: int = 0
    """Number of sessions, each of which asks every prompt once; 0: there are none."""
    rounds: int = 20
    """Mean number of rounds of a request; it is the prompt's own."""
    of_prompt: float = 0.7
    """Standard deviation of the prompts' own shift."""
    of_session: float = 0.0
    own: float = 0.2
    """Standard deviation of the requests' own shift."""

    @property
    def spread(self) -> float:
        """Standard deviation of a request's whole shift."""
        return float(np.sqrt(self.of_prompt**2 + self.of_session**2 + self.own**2))


WORLDS = {
    "16 prompts x 4": World(prompts=16, times=4),
    "8 prompts x 8": World(prompts=8, times=8),
    "20 prompts x 10": World(prompts=20, times=10),
    "6 prompts x 10": World(prompts=6, times=10),
    "4 prompts x 10": World(prompts=4, times=10),
    "200 prompts x 1": World(prompts=200, times=1),
    "20 prompts x 15 sessions": World(prompts=20, times=15, sessions=15, of_session=0.5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustered:
    """Rates of one world."""

    world: str
    clusters: int
    covered: float
    """Share of runs whose interval over clusters contains the truth."""
    by_request: float
    """Share of runs whose interval over requests does."""
    intervals: float
    """Share of runs that have an interval."""
    design_effect: float
    """Median over runs."""
    unpaired: float
    """Share of comparisons of two runs with other prompts in which any difference is reported."""
    paired: float
    """Share of comparisons of two runs with the same prompts in which one is."""


def mean_length(world: World) -> float:
    """Return the true acceptance length: that of the mean round, since rounds of a request do not
    depend on how easy it is."""
    node, weight = np.polynomial.hermite_e.hermegauss(NODES)
    rates = 1 / (1 + np.exp(-(np.array(LOGITS)[:, None] + world.spread * node)))
    return 1.0 + float((np.cumprod(rates, axis=0) @ (weight / weight.sum())).sum())


def drawn(world: World, seed: int, prompts_seed: int | None = None) -> Side:
    """Draw one run; runs with the same `prompts_seed` have the same prompts."""
    random = RandomState(seed)
    of_prompts = RandomState(seed + OTHER_STREAM if prompts_seed is None else prompts_seed)
    n = world.prompts * world.times
    prompt, session = np.arange(n) % world.prompts, np.arange(n) // world.prompts
    shift = world.of_prompt * of_prompts.standard_normal(world.prompts)[prompt]
    half = world.rounds // 2
    rounds = of_prompts.randint(half, world.rounds + half + 1, world.prompts)[prompt]
    shift = shift + world.of_session * random.standard_normal(world.times)[session]
    shift = shift + world.own * random.standard_normal(n)
    of = np.repeat(np.arange(n), rounds)
    chance = 1 / (1 + np.exp(-(np.array(LOGITS) + shift[of][:, None])))
    taken = random.random_sample(chance.shape) < chance
    accepted = np.where(taken.all(axis=1), K, np.argmin(taken, axis=1))
    histogram = np.zeros((n, K + 1), dtype=np.int64)
    np.add.at(histogram, (of, accepted), 1)
    full = np.zeros_like(histogram)
    full[:, K] = rounds
    exhausted = np.zeros_like(histogram)
    exhausted[:, K] = histogram[:, K]
    return Side(
        rounds=Rounds(
            request=np.arange(n),
            rounds=rounds.astype(np.int64),
            drafted=rounds.astype(np.int64) * K,
            histogram=histogram,
            lengths=full,
            exhausted=exhausted,
            mix=np.zeros(K + 1),
            unit=session if world.sessions else prompt,
            crossed=prompt if world.sessions else None,
        ),
        labels=("",) * n,
    )


def clustered(name: str, world: World, trials: int) -> Clustered:
    """Return the rates of one world."""
    truth = mean_length(world)
    hits = np.zeros(3)
    effects = []
    for trial in range(trials):
        rounds = drawn(world, trial).rounds
        over_clusters, over_requests = rounds.length_ratio(), rounds.ungrouped().length_ratio()
        half = student(over_clusters.df) * over_clusters.error
        plain = intervals(over_requests)
        hits[0] += abs(over_clusters.value[0] - truth) <= half[0]
        hits[1] += bool(plain and plain[0] and plain[0].low <= truth <= plain[0].high)
        hits[2] += (intervals(over_clusters) or (None,))[0] is not None
        effects.append(design_effect(over_clusters, over_requests) or np.nan)
    calls = [np.mean(list(_called(world, trials, paired=each))) for each in (False, True)]
    return Clustered(
        world=name,
        clusters=world.sessions or world.prompts,
        covered=hits[0] / trials,
        by_request=hits[1] / trials,
        intervals=hits[2] / trials,
        design_effect=float(np.nanmedian(effects)),
        unpaired=float(calls[0]),
        paired=float(calls[1]),
    )


def _called(world: World, trials: int, *, paired: bool) -> Iterator[bool]:
    """Yield whether any difference of two equal runs is reported."""
    for trial in range(trials):
        seed = 2 * trial + 1_000_000
        prompts = seed + OTHER_STREAM
        first = drawn(world, seed, prompts_seed=prompts)
        second = drawn(world, seed + 1, prompts_seed=prompts if paired else None)
        rows = np.arange(len(first.labels) if paired else 0)
        if paired:
            second = Side(rounds=second.rounds.grouped_like(first.rounds), labels=second.labels)
        how = BY_DIGEST if paired else UNPAIRED
        pairing = Pairing(how=how, first=rows, second=rows, alone=0)
        compared = comparison(first, second, ("a", "b"), pairing)
        yield any(each.differs for each in compared.differences)


def worlds(trials: int) -> Iterator[Clustered]:
    """Yield the rates of every world."""
    for name, world in WORLDS.items():
        yield clustered(name, world, trials)


def show(rows: list[Clustered]) -> None:
    """Print the rates."""
    print(
        f"\n{'repeated prompts':<26}{'clusters':>9}{'covered':>9}{'by request':>11}"
        f"{'intervals':>10}{'design':>8}{'unpaired':>9}{'paired':>8}"
    )
    for row in rows:
        print(
            f"{row.world:<26}{row.clusters:>9}{row.covered:>9.3f}{row.by_request:>11.3f}"
            f"{row.intervals:>10.3f}{row.design_effect:>8.2f}{row.unpaired:>9.3f}{row.paired:>8.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=400)
    show(list(worlds(parser.parse_args().trials)))


if __name__ == "__main__":
    main()
