"""Intervals of one run: of acceptance, over prompts that repeat and sessions, and of mean times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import RandomState
from support.simulate import Prompts, Truth
from support.simulate.sums import side

from benchmarks.calibration.table import (
    COVERED_AT_LEAST,
    COVERED_OF_FEW,
    NOMINAL,
    Figures,
    Rate,
    Table,
    covered,
    false,
    holds,
    mean_of,
    slack,
)
from driftscope.analysis.compare import comparison
from driftscope.analysis.figures.rounds import Rounds, Side
from driftscope.analysis.pairing import BY_DIGEST, UNPAIRED, Pairing
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


def coverage(truth: Truth, trials: int) -> Figures:
    """Return the figure whose intervals contain the truth least often, how often they do, and the
    same of a bootstrap."""
    true = np.append(truth.mean_length(), truth.marginal())
    hits, boot = np.zeros(len(true)), np.zeros(len(true))
    for trial in range(trials):
        drawn = run_of(truth, trial).rounds
        ours = (
            *(intervals(drawn.length_ratio()) or ()),
            *(rate_intervals(drawn.marginal_ratio()) or ()),
        )
        hits += [bool(holds(one, value)) for one, value in zip(ours, true, strict=True)]
        rounds = drawn.rounds[:, None].astype(np.float64)
        other = _bootstrap(
            np.hstack([rounds + drawn.accepted[:, None], drawn.reached]), rounds, trial
        )
        boot += [bool(holds(one, value)) for one, value in zip(other, true, strict=True)]
    at = int(hits.argmin())
    return {
        "worst": f"marginal, depth {at}" if at else "acceptance length",
        "covered": hits[at] / trials,
        "bootstrap": boot.min() / trials,
    }


def run_of(truth: Truth, trial: int, prompts: int | None = None) -> Side:
    """Draw one run; runs with the same `prompts` have the same prompts."""
    prompts = trial if prompts is None else prompts
    return side(replace(truth, seed=10_000 + trial, prompts_seed=50_000 + prompts))


def _bootstrap(top: np.ndarray, rounds: np.ndarray, seed: int) -> Iterator[Interval]:
    n = len(top)
    drawn = np.random.RandomState(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    low, high = np.percentile((drawn @ top) / (drawn @ rounds), [2.5, 97.5], axis=0)
    return (Interval(low=a, high=b) for a, b in zip(low, high, strict=True))


def _coverage(_: Truth, row: Figures, trials: int) -> Iterator[Rate]:
    yield covered("coverage", row["covered"], trials)


COVERAGE = Table(
    name="coverage",
    title="95 % intervals, {trials} simulated runs each: share that holds the truth, at worst",
    worlds=RUNS,
    figures=coverage,
    rates=_coverage,
)


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
            verified=rounds.astype(np.int64) * K,
            histogram=histogram,
            lengths=full,
            exhausted=exhausted,
            mix=np.zeros(K + 1),
            unit=session if world.sessions else prompt,
            crossed=prompt if world.sessions else None,
        ),
        labels=("",) * n,
    )


def clustered(world: World, seed: int) -> Figures:
    """Return whether the intervals over clusters, and over requests, of one run hold the truth, and
    whether any difference of two equal runs of other prompts, or of the same, is reported."""
    truth = mean_length(world)
    rounds = drawn(world, seed).rounds
    over_clusters, over_requests = rounds.length_ratio(), rounds.ungrouped().length_ratio()
    half = student(over_clusters.df) * over_clusters.error
    plain = intervals(over_requests)
    return {
        "covered": bool(abs(over_clusters.value[0] - truth) <= half[0]),
        "by_request": bool(plain and holds(plain[0], truth)),
        "intervals": (intervals(over_clusters) or (None,))[0] is not None,
        "design_effect": design_effect(over_clusters, over_requests),
        "unpaired": _called(world, seed, paired=False),
        "paired": _called(world, seed, paired=True),
    }


def _called(world: World, trial: int, *, paired: bool) -> bool:
    """Return whether any difference of two equal runs is reported."""
    seed = 2 * trial + 1_000_000
    prompts = seed + OTHER_STREAM
    first = drawn(world, seed, prompts_seed=prompts)
    second = drawn(world, seed + 1, prompts_seed=prompts if paired else None)
    rows = np.arange(len(first.labels) if paired else 0)
    if paired:
        second = Side(rounds=second.rounds.grouped_like(first.rounds), labels=second.labels)
    how = BY_DIGEST if paired else UNPAIRED
    pairing = Pairing(how=how, first=rows, second=rows, alone=0)
    return any(one.differs for one in comparison(first, second, ("a", "b"), pairing).differences)


FEW_CLUSTERS = 8
"""Number of clusters below which COVERED_OF_FEW is wanted."""


def _intervals_and_calls(world: World, row: Figures, trials: int) -> Iterator[Rate]:
    few = (world.sessions or world.prompts) < FEW_CLUSTERS
    wanted, nominal = (COVERED_OF_FEW, COVERED_OF_FEW) if few else (COVERED_AT_LEAST, 1 - NOMINAL)
    yield Rate(
        name="coverage", value=row["covered"], least=min(wanted, nominal - slack(NOMINAL, trials))
    )
    yield false("other prompts called different", row["unpaired"], trials)
    yield false("the same prompts called different", row["paired"], trials)


CLUSTERS = Table(
    name="clusters",
    title="Repeated prompts and sessions, {trials} runs each",
    worlds=WORLDS,
    figures=mean_of(clustered),
    rates=_intervals_and_calls,
    formats={"design_effect": ".1f"},
)


TRUE_MEAN = 10.0
OWN_NOISE = 0.5
"""Standard deviation of a request's own time; that of the shared speed is 1."""
LOADS = {
    f"{at_once} at once, {requests} requests": (at_once, requests)
    for at_once, requests in (
        *((1, 160), (1, 1000), (4, 160), (4, 320), (4, 1000), (8, 160), (8, 1000)),
    )
}
"""Requests at once, and requests of the run."""


def times(random: RandomState, at_once: int, requests: int) -> Matrix:
    """Return the times of a run's requests in order of arrival, [requests]."""
    groups = random.normal(0.0, 1.0, requests // at_once + 2)
    shared = np.repeat(groups, at_once)[random.randint(at_once) :][:requests]
    return TRUE_MEAN + shared + random.normal(0.0, OWN_NOISE, requests)


def shared_steps(load: tuple[int, int], trials: int) -> Figures:
    """Return how often intervals over requests hold the truth, and those that know of time, which
    driftscope reports; and the mean width of these, as a ratio to those over requests."""
    at_once, requests = load
    random = RandomState(at_once * 10_000 + requests)
    spans = spans_of(
        np.arange(requests, dtype=np.float64), np.full(requests, float(at_once), np.float64)
    )

    def trial(_: object, __: int) -> Figures:
        values = times(random, at_once, requests)
        alone, known = mean_interval(values), mean_time_interval(values, spans)
        assert alone is not None and known is not None
        return {
            "over_requests": holds(alone, TRUE_MEAN),
            "covered": holds(known, TRUE_MEAN),
            "wider": (known.high - known.low) / (alone.high - alone.low),
        }

    return mean_of(trial)(load, trials)


def _over_time(_: object, row: Figures, trials: int) -> Iterator[Rate]:
    # At most 20 spans of time, of which few may be independent.
    yield Rate(name="coverage", value=row["covered"], least=COVERED_OF_FEW - slack(NOMINAL, trials))


SHARED_STEPS = Table(
    name="shared_steps",
    title="Mean times of requests served at once, {trials} runs each: intervals hold the truth",
    worlds=LOADS,
    figures=shared_steps,
    rates=_over_time,
    formats={"wider": ".2f"},
)
