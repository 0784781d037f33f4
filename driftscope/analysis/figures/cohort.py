"""Cohort of a run: the requests whose rounds figures use, and the rounds that they leave out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.requests import index_of
from driftscope.analysis.passes.lifetimes import ended_requests, lifetimes, outcomes
from driftscope.analysis.query.column_arrays import Matrix, floats, whole
from driftscope.analysis.query.record_views import REQUEST, Tables
from driftscope.analysis.statistics.lifetimes import Lifetimes, Selection, selection_of
from driftscope.metrics import acceptance as formula

ALL_ROUNDS = "verify_all"
"""Name of the view of all rounds of a run, whatever its conditions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Rounds as vLLM counts them: also those that figures leave out."""

    requests: int
    rounds: int
    mean_length: float
    counted: tuple[float, ...]
    """Rounds accepted up to each depth over all rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """How many rounds the figures of a run leave out, and why."""

    running: int
    """Number of requests that had not finished when the recording ended."""
    late_requests: int
    """Number of requests that began too late to be seen whole."""
    late_rounds: int
    early_requests: int
    """Number of requests that began before the beginning of a `--since` cut."""
    early_rounds: int
    duration_s: float | None
    """Time in seconds within which 95% of the requests finish decoding; None if all of them
    finished, or if too few did to know it."""
    enough: bool
    """Whether at least half of the rounds are left. If not, the figures use all rounds, and have
    neither interval nor trend."""
    served: Served
    start_s: float
    """Unix time of the first decode step of all requests."""
    end_s: float

    @property
    def left_out(self) -> int:
        """Number of rounds that the figures leave out."""
        return self.late_rounds + self.early_rounds if self.enough else 0


def cohort_of(tables: Tables, begin_s: float = -math.inf) -> tuple[Cohort | None, pa.Table | None]:
    """Return the cohort of a run that was cut at `begin_s`, and the requests that it leaves out;
    (None, None) if it is all requests, or if the run has no round."""
    lives, keys, spans = _lifetimes(tables)
    if not lives.rounds.sum():
        return None, None
    chosen = selection_of(lives, begin_s)
    outside = chosen.early | chosen.late
    if not (lives.rounds[outside] > 0).any():
        return None, None
    cohort = _cohort(tables, lives, chosen, spans)
    return cohort, keys.filter(pa.array(outside)) if chosen.enough else None


def _cohort(
    tables: Tables, lives: Lifetimes, chosen: Selection, spans: tuple[float, float]
) -> Cohort:
    rounds = lives.rounds
    return Cohort(
        running=int((~lives.ended).sum()),
        late_requests=int((rounds[chosen.late] > 0).sum()),
        late_rounds=int(rounds[chosen.late].sum()),
        early_requests=int((rounds[chosen.early] > 0).sum()),
        early_rounds=int(rounds[chosen.early].sum()),
        duration_s=chosen.duration_s,
        enough=chosen.enough,
        served=_served(tables, int((rounds > 0).sum())),
        start_s=spans[0],
        end_s=spans[1],
    )


def _served(tables: Tables, requests: int) -> Served:
    counted = tables.engine.rows(outcomes())
    accepted = np.maximum(whole(counted, "accepted"), 0)
    rounds = whole(counted, "rounds")
    histogram = np.bincount(accepted, rounds, int(whole(counted, "longest").max()) + 1)
    n = int(histogram.sum())
    return Served(
        requests=requests,
        rounds=n,
        mean_length=float(formula.mean_length(accepted @ rounds, n)),
        counted=formula.marginal_rates(formula.counts_of(histogram), n),
    )


def _lifetimes(tables: Tables) -> tuple[Lifetimes, pa.Table, tuple[float, float]]:
    """Return the lives of all requests that have a decode step under the run's conditions, their
    keys, and the times of the first and the last of these steps."""
    lived = tables.engine.rows(lifetimes(ALL_ROUNDS))
    end_s = _ends_of_servers(lived)
    met = tables.engine.rows(lifetimes("verify")) if tables.conditions else lived
    at = index_of(met, lived)
    keys = met.select(list(REQUEST))
    lives = Lifetimes(
        start_s=floats(lived, "first_s")[at],
        last_s=floats(lived, "last_s")[at],
        end_s=end_s[at],
        ended=_are_in(keys, tables.engine.rows(ended_requests())),
        rounds=whole(met, "rounds"),
    )
    first_s, last_s = floats(met, "first_s"), floats(met, "last_s")
    return lives, keys, (float(first_s.min(initial=np.inf)), float(last_s.max(initial=-np.inf)))


def _ends_of_servers(lived: pa.Table) -> Matrix:
    """Return, for each request, the last decode step of its replica, [requests]."""
    replica, last_s = whole(lived, "replica"), floats(lived, "last_s")
    _, server = np.unique(replica, return_inverse=True)
    end_s = np.full(int(server.max(initial=-1)) + 1, -np.inf)
    np.fmax.at(end_s, server, last_s)
    return np.asarray(end_s[server])


def _are_in(keys: pa.Table, others: pa.Table) -> NDArray[np.bool_]:
    if not others.num_rows:
        return np.zeros(keys.num_rows, dtype=np.bool_)
    return np.asarray(index_of(keys, others, missing=-1) >= 0)


def requests_with_steps(tables: Tables) -> int:
    """Return the number of requests of the whole run that have a decode step."""
    return int(tables.engine.rows(lifetimes(ALL_ROUNDS)).num_rows)


def longer(cohort: Cohort) -> str:
    """Return in words what to record so that enough requests are seen whole."""
    if not cohort.late_requests:
        return "choose an earlier --since"
    more = "stop recording after the requests, or record longer"
    if cohort.duration_s is None:
        return f"{more}: too few of them finished"
    return f"{more} than {2 * cohort.duration_s:,.1f} seconds"
