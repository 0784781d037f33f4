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
    Rate,
    Table,
    covered,
    false,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Coverage of one figure: how often its intervals contained the truth."""

    run: str
    figure: str
    truth: float
    covered: float
    bootstrap: float


def coverages_of_runs(trials: int) -> Iterator[Coverage]:
    """Yield the coverage of each figure of each run."""
    for name, truth in RUNS.items():
        yield from coverage(name, truth, trials)


def coverage(name: str, truth: Truth, trials: int) -> Iterator[Coverage]:
    """Yield the coverage of each figure of one run."""
    true = np.append(truth.mean_length(), truth.marginal())
    hits, boot = np.zeros(len(true)), np.zeros(len(true))
    for trial in range(trials):
        drawn = run_of(truth, trial).rounds
        ours = (
            *(intervals(drawn.length_ratio()) or ()),
            *(rate_intervals(drawn.marginal_ratio()) or ()),
        )
        hits += [_holds(interval, value) for interval, value in zip(ours, true, strict=True)]
        rounds = drawn.rounds[:, None].astype(np.float64)
        other = _bootstrap(
            np.hstack([rounds + drawn.accepted[:, None], drawn.reached]), rounds, trial
        )
        boot += [_holds(interval, value) for interval, value in zip(other, true, strict=True)]
    figures = ["acceptance length", *(f"marginal, depth {d}" for d in range(1, truth.k + 1))]
    for at, figure in enumerate(figures):
        yield Coverage(
            run=name,
            figure=figure,
            truth=float(true[at]),
            covered=hits[at] / trials,
            bootstrap=boot[at] / trials,
        )


def run_of(truth: Truth, trial: int, prompts: int | None = None) -> Side:
    """Draw one run; runs with the same `prompts` have the same prompts."""
    prompts = trial if prompts is None else prompts
    return side(replace(truth, seed=10_000 + trial, prompts_seed=50_000 + prompts))


def _holds(interval: Interval | None, value: float) -> bool:
    return interval is not None and interval.low <= value <= interval.high


def _bootstrap(top: np.ndarray, rounds: np.ndarray, seed: int) -> Iterator[Interval]:
    n = len(top)
    drawn = np.random.RandomState(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    low, high = np.percentile((drawn @ top) / (drawn @ rounds), [2.5, 97.5], axis=0)
    return (Interval(low=a, high=b) for a, b in zip(low, high, strict=True))


def _coverage(row: Coverage, trials: int) -> Iterator[Rate]:
    yield covered("coverage", row.covered, trials)


COVERAGE = Table(
    name="coverage",
    title="95 % intervals, {trials} simulated runs each: share that holds the truth",
    rows=coverages_of_runs,
    rates=_coverage,
    formats={"truth": ".3f"},
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


FEW_CLUSTERS = 8
"""Number of clusters below which COVERED_OF_FEW is wanted."""


def _intervals_and_calls(row: Clustered, trials: int) -> Iterator[Rate]:
    few = row.clusters < FEW_CLUSTERS
    wanted, nominal = (COVERED_OF_FEW, COVERED_OF_FEW) if few else (COVERED_AT_LEAST, 1 - NOMINAL)
    yield Rate(
        name="coverage", value=row.covered, least=min(wanted, nominal - slack(NOMINAL, trials))
    )
    yield false("other prompts called different", row.unpaired, trials)
    yield false("the same prompts called different", row.paired, trials)


CLUSTERS = Table(
    name="clusters",
    title="Repeated prompts and sessions, {trials} runs each",
    rows=worlds,
    rates=_intervals_and_calls,
    formats={"design_effect": ".1f"},
)


TRUE_MEAN = 10.0
OWN_NOISE = 0.5
"""Standard deviation of a request's own time; that of the shared speed is 1."""
LOADS = ((1, 160), (1, 1000), (4, 160), (4, 320), (4, 1000), (8, 160), (8, 1000))
"""Requests at once, and requests of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSteps:
    """How often intervals hold the truth in one world."""

    at_once: int
    """Requests that are served at once."""
    requests: int
    over_requests: float
    """Share of intervals over requests that hold it."""
    covered: float
    """Share of those that know of time, which driftscope reports."""
    wider: float
    """Mean width of these, as a ratio to those over requests."""


def times(random: RandomState, at_once: int, requests: int) -> Matrix:
    """Return the times of a run's requests in order of arrival, [requests]."""
    groups = random.normal(0.0, 1.0, requests // at_once + 2)
    shared = np.repeat(groups, at_once)[random.randint(at_once) :][:requests]
    return TRUE_MEAN + shared + random.normal(0.0, OWN_NOISE, requests)


def shared_steps(trials: int) -> Iterator[SharedSteps]:
    """Yield a row for each world."""
    for at_once, requests in LOADS:
        yield shared_steps_at(at_once, requests, trials)


def shared_steps_at(at_once: int, requests: int, trials: int) -> SharedSteps:
    """Return the row of a world. Raises ValueError for too few requests."""
    random = RandomState(at_once * 10_000 + requests)
    spans = spans_of(
        np.arange(requests, dtype=np.float64), np.full(requests, float(at_once), np.float64)
    )
    held, wider = np.zeros(2), 0.0
    for _ in range(trials):
        values = times(random, at_once, requests)
        alone, known = mean_interval(values), mean_time_interval(values, spans)
        if alone is None or known is None:
            raise ValueError(f"{requests} requests have no interval")
        held += [each.low <= TRUE_MEAN <= each.high for each in (alone, known)]
        wider += (known.high - known.low) / (alone.high - alone.low)
    return SharedSteps(
        at_once=at_once,
        requests=requests,
        over_requests=float(held[0] / trials),
        covered=float(held[1] / trials),
        wider=wider / trials,
    )


def _over_time(row: SharedSteps, trials: int) -> Iterator[Rate]:
    # At most 20 spans of time, of which few may be independent.
    yield Rate(name="coverage", value=row.covered, least=COVERED_OF_FEW - slack(NOMINAL, trials))


SHARED_STEPS = Table(
    name="shared_steps",
    title="Mean times of requests served at once, {trials} runs each: intervals hold the truth",
    rows=shared_steps,
    rates=_over_time,
    formats={"wider": ".2f"},
)
