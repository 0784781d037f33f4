"""How often 95 % intervals of a mean time hold the truth if requests share their steps.

python -m benchmarks.shared_steps --trials 400

Requests arrive one a second and live for as many seconds as requests are served at once. Those that
are served at once share the machine's speed, which is drawn anew for each such group; groups and
spans of time do not begin together. With one at a time, times are independent.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.random import RandomState

from driftscope.analysis.query.column_arrays import Matrix
from driftscope.analysis.statistics.clusters import mean_interval, mean_time_interval, spans_of

TRUE_MEAN = 10.0
OWN_NOISE = 0.5
"""Standard deviation of a request's own time; that of the shared speed is 1."""
WORLDS = ((1, 160), (1, 1000), (4, 160), (4, 320), (4, 1000), (8, 160), (8, 1000))
"""Requests at once, and requests of the run."""


def times(random: RandomState, at_once: int, requests: int) -> Matrix:
    """Return the times of a run's requests in order of arrival, [requests]."""
    groups = random.normal(0.0, 1.0, requests // at_once + 2)
    shared = np.repeat(groups, at_once)[random.randint(at_once) :][:requests]
    return TRUE_MEAN + shared + random.normal(0.0, OWN_NOISE, requests)


def row(at_once: int, requests: int, trials: int) -> tuple[float, float, float]:
    """Return how often the interval over requests holds the truth, how often the one that knows of
    time does, and how much wider it is on average."""
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
    return held[0] / trials, held[1] / trials, wider / trials


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=400)
    trials = parser.parse_args().trials
    print("| at once | requests | over requests | over time too | wider |")
    print("|---|---|---|---|---|")
    for at_once, requests in WORLDS:
        over_requests, over_time, wider = row(at_once, requests, trials)
        print(f"| {at_once} | {requests} | {over_requests:.3f} | {over_time:.3f} | {wider:.2f} |")


if __name__ == "__main__":
    main()
