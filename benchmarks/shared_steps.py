"""How often 95 % intervals of a mean time hold the truth if requests share their steps.

Requests arrive one a second and live for as many seconds as requests are served at once. Those that
are served at once share the machine's speed, which is drawn anew for each such group; groups and
spans of time do not begin together. With one at a time, times are independent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import RandomState

from driftscope.analysis.query.column_arrays import Matrix
from driftscope.analysis.statistics.clusters import mean_interval, mean_time_interval, spans_of

TRUE_MEAN = 10.0
OWN_NOISE = 0.5
"""Standard deviation of a request's own time; that of the shared speed is 1."""
WORLDS = ((1, 160), (1, 1000), (4, 160), (4, 320), (4, 1000), (8, 160), (8, 1000))
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
    for at_once, requests in WORLDS:
        yield row(at_once, requests, trials)


def row(at_once: int, requests: int, trials: int) -> SharedSteps:
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
