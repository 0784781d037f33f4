"""Details of a run that a report shows in addition to means; bounded, whatever the run's size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.closeup.durations import Distribution, durations_of
from driftscope.analysis.closeup.effect import Effect, effect_of
from driftscope.analysis.closeup.heads import Heads, heads_of
from driftscope.analysis.closeup.requests import (
    NamedRequest,
    OpenedRequest,
    PerRequest,
    ends_of,
    named_of,
    opened_of,
    ranked,
)
from driftscope.analysis.closeup.rows import (
    chains_by_head,
    chains_of_requests,
    rounds_of_requests,
    steps_that_drafted,
    texts_of_requests,
)
from driftscope.analysis.closeup.timeline import Timeline, timeline_of
from driftscope.analysis.figures.request_codes import MAX_CLUSTERS, Requests
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.query.column_arrays import Codes, Matrix
from driftscope.analysis.query.later import Later
from driftscope.metrics.acceptance import mean_length
from driftscope.metrics.attention import SELF
from driftscope.metrics.chains import Array
from driftscope.metrics.hidden import GROWTH


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseUp:
    """Details of one run: single requests, moments and durations."""

    effects: tuple[Effect, ...]
    timeline: Timeline | None
    durations: Mapping[str, Distribution]
    heads: Heads | None
    named: tuple[NamedRequest, ...]
    """Requests of the table, worst acceptance first."""
    opened: tuple[OpenedRequest, ...]
    """A few requests from both ends of `named`, with their rounds."""


SAMPLED = 500
"""Number of requests whose outputs are timed one by one, taken evenly from all requests."""


def closeup_of(run: Sums) -> Later[CloseUp]:
    """Read the rows of the close-up of a run, to be computed later."""
    requests, per, recorded = run.requests, _per_request(run), int(run.recorded.sum())
    chosen = ranked(per)
    opened = ends_of(chosen)
    sampled = np.unique(np.linspace(0, len(requests) - 1, min(len(requests), SAMPLED)).astype(int))
    rounds = rounds_of_requests(run.tables, _names(requests, np.union1d(sampled, chosen)))
    chains = chains_of_requests(
        run.tables, _names(requests, opened), run.drafted_in[opened], recorded
    )
    texts = texts_of_requests(run.tables, _names(requests, opened))
    by_head = chains_by_head(run.tables, recorded)
    timeline, drafted = timeline_of(run.tables, *_span(run)), steps_that_drafted(run.tables)
    return Later(
        lambda: CloseUp(
            effects=_effects(run),
            timeline=timeline,
            durations=durations_of(requests, drafted, rounds),
            heads=heads_of(by_head, run.shape.depths),
            named=named_of(requests, per, chosen, rounds),
            opened=opened_of(requests, opened, rounds, chains, texts),
        )
    )


def _span(run: Sums) -> tuple[float, float]:
    """Return the times of the first and the last decode step; infinite without one."""
    if run.cohort is not None:
        return run.cohort.start_s, run.cohort.end_s
    first, last = (each[np.isfinite(each)] for each in (run.first_s, run.last_s))
    return float(first.min(initial=np.inf)), float(last.max(initial=-np.inf))


def _names(requests: Requests, codes: NDArray[np.int64]) -> list[str]:
    names: list[str] = requests.keys.column("request").take(codes).to_pylist()
    return names


def _effects(run: Sums) -> tuple[Effect, ...]:
    """Return the effects by cell; a cell is one request unless there are very many requests."""
    n = int(run.cells.max(initial=-1)) + 1
    mine = run.cells[run.rounds.request]
    count = _summed(mine, run.rounds.rounds, n)
    tokens = _summed(mine, run.rounds.comparable_tokens()[:, 0], n)
    length = _length(tokens - count, count)
    growth, own = _drift(run, n)
    measures = ((GROWTH.name, growth), (SELF.name, own))
    effects = [
        effect_of(name, drift, length, count, run.cluster_of_cell) for name, drift in measures
    ]
    return tuple(effect for effect in effects if effect is not None)


def _per_request(run: Sums) -> PerRequest:
    n = len(run.requests)
    mine = run.rounds.request
    count, accepted = _summed(mine, run.rounds.rounds, n), _summed(mine, run.rounds.accepted, n)
    growth = own = np.full(n, np.nan)
    if n <= MAX_CLUSTERS:  # otherwise drift is known only per group of requests
        growth, own = _drift(run, n)
    length = _length(accepted, count)
    return PerRequest(rounds=count, mean_length=length, growth=growth, self_mass=own)


def _summed(of: Codes, values: NDArray[np.int64] | Matrix, n: int) -> Matrix:
    return np.asarray(np.bincount(of, weights=values, minlength=n), dtype=np.float64)


def _length(accepted: Array, rounds: Array) -> NDArray[np.float64]:
    pairs = zip(accepted.tolist(), rounds.tolist(), strict=True)
    return np.array([mean_length(a, n) if n else np.nan for a, n in pairs], dtype=np.float64)


def _drift(run: Sums, n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return growth of the hidden state and attention on the chain at the last depth, [clusters]
    each."""
    chains, out = run.chains, []
    for mean in (chains.means.get("growth"), chains.over_layers("self_mass")):
        values = np.full(n, np.nan)
        if mean is not None:
            top, bottom = mean.top[:, -1], mean.bottom[:, -1]
            values[chains.cell] = np.where(
                bottom > 0, top / np.where(bottom > 0, bottom, 1), np.nan
            )
        out.append(values)
    return out[0], out[1]
